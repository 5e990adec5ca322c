//! Reads all files below a directory and writes their bytes into one file, with a thread for each
//! core, for `cargo xtask bench build`: what making an image of the directory cannot avoid.
//!
//! ```text
//! read_and_write DIRECTORY FILE
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fourscore_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use fourscore_sync::thread;

/// Bytes that are written at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Files that a thread takes at once.
const FILES_AT_ONCE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(tree), Some(output)) = (arguments.next(), arguments.next()) else {
        return Err("usage: read_and_write DIRECTORY FILE".into());
    };
    let copy = Copy {
        files: files_below(tree.as_ref())?,
        next: AtomicUsize::new(0),
        output: File::create_new(output)?,
        end: AtomicU64::new(0),
    };
    let threads = thread::available_parallelism()?.get();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| copy.run())).collect();
        let mut ends = workers.into_iter().map(|worker| worker.join());
        ends.try_for_each(|end| end.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })?;
    Ok(())
}

/// The regular files below a directory.
fn files_below(tree: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut files, mut left) = (Vec::new(), vec![tree.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => left.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    Ok(files)
}

/// The work that is shared by all threads.
struct Copy {
    files: Vec<PathBuf>,
    /// The first file that no thread has taken.
    next: AtomicUsize,
    output: File,
    /// The first byte of the output that no thread has taken.
    end: AtomicU64,
}

impl Copy {
    fn run(&self) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut filled = 0;
        loop {
            let from = self.next.fetch_add(FILES_AT_ONCE, Ordering::Relaxed);
            let Some(files) = self.files.get(from..) else {
                return self.write(&buffer[..filled]);
            };
            for path in files.iter().take(FILES_AT_ONCE) {
                let mut file = File::open(path)?;
                loop {
                    if filled == buffer.len() {
                        self.write(&buffer)?;
                        filled = 0;
                    }
                    match file.read(&mut buffer[filled..])? {
                        0 => break,
                        read => filled += read,
                    }
                }
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let place = self.end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.output.write_all_at(bytes, place)
    }
}
