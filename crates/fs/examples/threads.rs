//! Eight threads write into one file system at the same time, each in its own directory; all data
//! that was reported as durable is there when the file system is opened again.
//!
//! ```console
//! $ fourscore mkfs disk.ext4 256M && cargo run --release --example threads disk.ext4
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::path::Path;
use std::sync::Arc;
use std::thread;

use fourscore::block::{DeviceOptions, open_path};
use fourscore::{Follow, Fs, InodeNr, MountOptions, NewAttributes, OpenOptions};

const THREADS: u32 = 8;
const FILES: u32 = 100;

fn main() -> anyhow::Result<()> {
    let image = std::env::args_os().nth(1);
    let image = image.ok_or_else(|| anyhow::anyhow!("usage: threads IMAGE"))?;
    write(image.as_ref())?;
    read(image.as_ref())
}

fn write(image: &Path) -> anyhow::Result<()> {
    let device = open_path(image, DeviceOptions::read_write())?;
    let fs = Fs::mount(Arc::new(device), &MountOptions::new())?;
    thread::scope(|scope| {
        let write = |thread| write_directory(&fs, thread);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || write(thread)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    Ok(fs.unmount()?)
}

fn write_directory(fs: &Fs, thread: u32) -> fourscore::Result<()> {
    let owner = NewAttributes::owned_by(0, 0).permissions(0o755);
    let dir = fs.mkdir(InodeNr::ROOT, format!("thread{thread}").as_bytes(), &owner)?;
    for number in 0..FILES {
        let file = fs.create(dir, format!("file{number}").as_bytes(), &owner)?;
        fs.write_at(file, format!("{thread} wrote {number}").as_bytes(), 0)?;
        fs.fsync(file)?;
    }
    Ok(())
}

fn read(image: &Path) -> anyhow::Result<()> {
    let device = open_path(image, DeviceOptions::default())?;
    let fs = Fs::open(Arc::new(device), &OpenOptions::new())?;
    let file = fs.resolve(b"/thread7/file99", Follow::Yes)?;
    let mut content = vec![0; 64];
    let len = fs.read_at(file, &mut content, 0)?;
    println!("{}", String::from_utf8_lossy(&content[..len]));
    Ok(())
}
