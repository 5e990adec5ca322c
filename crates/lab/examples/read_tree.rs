//! Reads the whole tree of an image again and again in this process, for `cargo xtask bench read`:
//! `read_tree IMAGE THREADS PASSES`.
//!
//! In each pass every thread visits every object: it lists directories, looks each name up, asks
//! for its attributes and reads the first 4 KiB of files. The first pass fills the caches, so
//! what is measured over many passes is hits.

use std::ops::ControlFlow;
use std::path::Path;

use fourscore::block::{DeviceOptions, open_path};
use fourscore::{Arc, FileType, Fs, InodeNr, OpenOptions};
use fourscore_sync::thread;

const READ_BYTES: usize = 4096;

fn visit(fs: &Fs, dir: InodeNr, buffer: &mut [u8]) -> fourscore::Result<u64> {
    let (mut objects, mut directories) = (0, Vec::new());
    let mut failed = None;
    fs.for_each_entry(dir, |entry| {
        if matches!(entry.name, b"." | b"..") {
            return ControlFlow::Continue(());
        }
        let visited = fs.lookup(dir, entry.name).and_then(|inode| {
            let stat = fs.stat(inode)?;
            match stat.file_type {
                FileType::Directory => directories.push(inode),
                FileType::Regular => drop(fs.read_at(inode, buffer, 0)?),
                _ => {}
            }
            Ok(())
        });
        objects += 1;
        match visited {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    for dir in directories {
        objects += visit(fs, dir, buffer)?;
    }
    Ok(objects)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, threads, passes] = arguments.as_slice() else {
        return Err("usage: read_tree IMAGE THREADS PASSES".into());
    };
    let (threads, passes): (usize, usize) = (threads.parse()?, passes.parse()?);
    let device = open_path(Path::new(image), DeviceOptions::default())?;
    let options = OpenOptions::new().cache_bytes(1 << 30);
    let fs = Fs::open(Arc::new(device), &options)?;
    let objects = thread::scope(|scope| {
        let work = || -> fourscore::Result<u64> {
            let mut buffer = vec![0; READ_BYTES];
            (0..passes)
                .map(|_| visit(&fs, InodeNr::ROOT, &mut buffer))
                .sum()
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let sum: fourscore::Result<u64> = workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .sum();
        sum
    })?;
    println!("{objects} visits");
    Ok(())
}
