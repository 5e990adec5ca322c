//! What making, finding and removing names costs, and reading and writing one block, in memory: for
//! `perf` and callgrind, and to see whether threads meet in a directory.
//!
//! ```text
//! names_cost IMAGE OPERATION COUNT THREADS DIRECTORIES FIRST
//! ```
//!
//! IMAGE is left as it is. OPERATION is `create`, `open`, `unlink`, `append`, `stat`, `lookup`,
//! `search`, `again`, `write` or `read`: `open` makes a file and has it open, as a mount does;
//! `lookup` is the first look for a name, which is kept, `search` one that keeps nothing, `again`
//! is for names that are known; `write` and `read` are for a block that each thread has. Each of
//! THREADS does it COUNT times, each time in the next of DIRECTORIES directories that is its own if
//! there are as many, each with FIRST names from the beginning: 5000 give it an index over many
//! leaves, and 0 a leaf. What comes before the operation is done by one thread. Prints nanoseconds
//! per operation and thread.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::env;
use std::path::Path;
use std::time::Instant;

use fourscore::block::{BlockDevice, DeviceOptions, RamDevice, open_path};
use fourscore::{Arc, Fs, InodeNr, MountOptions, NewAttributes, OpenInode, Result};
use fourscore_sync::thread;

const OWNER: NewAttributes = NewAttributes {
    permissions: 0o755,
    umask: 0,
    uid: 0,
    gid: 0,
};
/// What is written and read at once.
const BLOCK: [u8; 4096] = [1; 4096];

fn name(thread: u32, number: u32) -> Vec<u8> {
    format!("name {number} of thread {thread}").into_bytes()
}

fn operation(fs: &Fs, dir: InodeNr, what: &str, name: &[u8]) -> Result<()> {
    let found = || fs.lookup(dir, name);
    match what {
        "create" => fs.create(dir, name, &OWNER).map(|_| ()),
        "open" => OpenInode::created(fs, dir, name, &OWNER)?.close(),
        "write" => fs.write_at(found()?, &BLOCK, 0).map(|_| ()),
        "read" => fs.read_at(found()?, &mut { BLOCK }, 0).map(|_| ()),
        "unlink" => fs.unlink(dir, name),
        "append" => fs.append(found()?, &BLOCK).map(|_| ()),
        "stat" => fs.stat(found()?).map(|_| ()),
        "search" => fs.lookup_once(dir, name).map(|_| ()),
        _ => found().map(|_| ()),
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let [_, image, what, count, threads, dirs, first] = &arguments[..] else {
        println!("names_cost IMAGE OPERATION COUNT THREADS DIRECTORIES FIRST");
        return Ok(());
    };
    let number = |text: &String| text.parse::<u32>().unwrap_or(1);
    let (count, threads, dirs) = (number(count), number(threads), number(dirs));
    let base = open_path(Path::new(image), DeviceOptions::default())?;
    let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::over(Arc::new(base)));
    let fs = Fs::mount(device, &MountOptions::new())?;
    let mut all = Vec::new();
    for nth in 0..dirs.max(1) {
        let dir = fs.mkdir(InodeNr::ROOT, format!("dir {nth}").as_bytes(), &OWNER)?;
        for number in 0..number(first) {
            fs.create(dir, &name(u32::MAX, number), &OWNER)?;
        }
        all.push(dir);
    }
    let dir = |thread: u32, number: u32| all[(number * threads + thread) as usize % all.len()];
    let is_of_one = what == "write" || what == "read";
    if what != "create" && what != "open" {
        for thread in 0..threads {
            for number in 0..if is_of_one { 1 } else { count } {
                let (dir, name) = (dir(thread, number), name(thread, number));
                let file = fs.create(dir, &name, &OWNER)?;
                if what == "again" {
                    fs.lookup(dir, &name)?;
                }
                if is_of_one {
                    fs.write_at(file, &BLOCK, 0)?;
                }
            }
        }
    }
    let begin = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (fs, dir) = (&fs, &dir);
                scope.spawn(move || {
                    (0..count).try_for_each(|number| {
                        let number = if is_of_one { 0 } else { number };
                        operation(fs, dir(thread, number), what, &name(thread, number))
                    })
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    })?;
    let each = begin.elapsed().as_nanos() / u128::from(count.max(1));
    println!("{what}: {each} ns, {threads} threads in {dirs} directories");
    fs.unmount()
}
