//! Measures operations on names, and reads and writes of one block, on a file system in memory: for
//! `perf` and callgrind, and to see contention of threads in a directory.
//!
//! ```text
//! cargo run --release -p fourscore-lab --example names_cost \
//!     IMAGE OPERATION COUNT THREADS DIRECTORIES FIRST
//! ```
//!
//! IMAGE is not changed. OPERATION is one of:
//!
//! | operation | measures |
//! |---|---|
//! | `create` | creating a file |
//! | `open` | creating a file and keeping it open, as a mount does |
//! | `unlink` | removing a file |
//! | `append` | looking a file up and appending 4 KiB |
//! | `stat` | looking a file up and reading its attributes |
//! | `lookup` | the first lookup of a name, which puts it into the name cache |
//! | `search` | a lookup that does not put the name into the name cache |
//! | `again` | a lookup of a name that is in the name cache |
//! | `write`, `read` | writing or reading the one block of a file of the thread |
//!
//! Each of THREADS threads runs it COUNT times, in the DIRECTORIES directories in turn. With as
//! many directories as threads each thread has its own. A directory has FIRST names before: 5000
//! make an index with many leaves, 0 an unindexed directory. One thread does the preparation.
//! Prints nanoseconds per operation and thread, and how often and how long threads waited for the
//! locks of each kind.
#![forbid(unsafe_code)]

use std::env;
use std::path::Path;
use std::time::Instant;

use fourscore::{Fs, InodeNr, MountOptions, NewAttributes, OpenInode, Result};
use fourscore_block::{BlockDevice, DeviceOptions, RamDevice, open_path};
use fourscore_sync::{Arc, thread};

/// The allocator of the `fourscore` command: that of the C library serialises threads that free
/// each other's memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const OWNER: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);
/// The data of one read or write.
const BLOCK: [u8; 4096] = [1; 4096];

fn name(thread: u32, number: u32) -> Vec<u8> {
    format!("name {number} of thread {thread}").into_bytes()
}

fn operation(fs: &Fs, dir: InodeNr, what: &str, name: &[u8]) -> Result<()> {
    let lookup = || fs.lookup(dir, name);
    match what {
        "create" => fs.create(dir, name, &OWNER).map(|_| ()),
        "open" => OpenInode::created(fs, dir, name, &OWNER)?.close(),
        "write" => fs.write_at(lookup()?, &BLOCK, 0).map(|_| ()),
        "read" => fs.read_at(lookup()?, &mut { BLOCK }, 0).map(|_| ()),
        "unlink" => fs.unlink(dir, name),
        "append" => fs.append(lookup()?, &BLOCK).map(|_| ()),
        "stat" => fs.stat(lookup()?).map(|_| ()),
        "search" => fs.lookup_once(dir, name).map(|_| ()),
        _ => lookup().map(|_| ()),
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let [_, image, what, count, threads, dirs, first] = &arguments[..] else {
        println!("usage: names_cost IMAGE OPERATION COUNT THREADS DIRECTORIES FIRST");
        return Ok(());
    };
    let number = |text: &String| text.parse::<u32>().unwrap_or(1);
    let (count, threads, dirs) = (number(count), number(threads), number(dirs));
    let base = open_path(Path::new(image), DeviceOptions::default())?;
    let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::over(Arc::new(base)));
    let fs = Fs::mount(device, &MountOptions::new())?;
    let mut all = Vec::new();
    for nr in 0..dirs.max(1) {
        let dir = fs.mkdir(InodeNr::ROOT, format!("dir {nr}").as_bytes(), &OWNER)?;
        for number in 0..number(first) {
            fs.create(dir, &name(u32::MAX, number), &OWNER)?;
        }
        all.push(dir);
    }
    let dir = |thread: u32, number: u32| all[(number * threads + thread) as usize % all.len()];
    let uses_one_file = what == "write" || what == "read";
    if what != "create" && what != "open" {
        for thread in 0..threads {
            for number in 0..if uses_one_file { 1 } else { count } {
                let (dir, name) = (dir(thread, number), name(thread, number));
                let file = fs.create(dir, &name, &OWNER)?;
                if what == "again" {
                    fs.lookup(dir, &name)?;
                }
                if uses_one_file {
                    fs.write_at(file, &BLOCK, 0)?;
                }
            }
        }
    }
    let waits_before: Vec<_> = Fs::lock_waits().collect();
    let begin = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (fs, dir) = (&fs, &dir);
                scope.spawn(move || {
                    (0..count).try_for_each(|number| {
                        let number = if uses_one_file { 0 } else { number };
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
    for ((name, after), (_, before)) in Fs::lock_waits().zip(waits_before) {
        let (count, time) = (after.count - before.count, after.time - before.time);
        if count > 0 {
            println!(
                "  {name}: {count} waits of {:?}",
                time / u32::try_from(count).unwrap_or(u32::MAX)
            );
        }
    }
    fs.unmount()
}
