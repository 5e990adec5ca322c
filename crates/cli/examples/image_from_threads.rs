//! Makes an image and fills it from four threads: the program that docs/EMBED.md mentions.
//!
//! ```console
//! $ cargo run --release -p fourscore-cli --example image_from_threads new.ext4
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use fourscore::block::{BlockDevice, DeviceOptions, create_image};
use fourscore::{Fs, MountOptions};
use fourscore_mkfs::{Layout, OldContent, Options, Profile};

const IMAGE_BYTES: u64 = 256 << 20;
const THREADS: u32 = 4;
const LINES: u32 = 10_000;

fn main() -> anyhow::Result<()> {
    let image = std::env::args_os().nth(1);
    let image = image.ok_or_else(|| anyhow::anyhow!("usage: image_from_threads IMAGE"))?;
    run(image.as_ref())
}

pub(crate) fn run(image: &Path) -> anyhow::Result<()> {
    let device = Arc::new(make(image)?);
    let fs = Fs::mount(device, &MountOptions::new())?;
    thread::scope(|scope| {
        let threads = (0..THREADS).map(|nr| {
            scope.spawn({
                let fs = &fs;
                move || fill(fs, nr)
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|ended| ended.expect("a thread does not panic"))
    })?;
    for entry in fs.paths().walk("/") {
        println!("{}", String::from_utf8_lossy(&entry?.path));
    }
    Ok(fs.unmount()?)
}

/// Makes an empty file system in a new image.
fn make(image: &Path) -> anyhow::Result<impl BlockDevice + use<>> {
    let device = create_image(image, IMAGE_BYTES, DeviceOptions::read_write())?;
    let options = Options {
        old_content: OldContent::AllZero,
        ..Options::default()
    };
    Layout::new(&options, &Profile::system()?, IMAGE_BYTES)?.write(&device)?;
    Ok(device)
}

/// Writes a log in a directory of the thread's own.
fn fill(fs: &Fs, nr: u32) -> std::io::Result<()> {
    let files = fs.paths();
    files.create_dir_all(format!("/var/log/thread{nr}"))?;
    let mut log = BufWriter::new(files.create(format!("/var/log/thread{nr}/log"))?);
    for line in 0..LINES {
        writeln!(log, "thread {nr} wrote line {line}")?;
    }
    log.into_inner()?.sync_all()?;
    Ok(())
}
