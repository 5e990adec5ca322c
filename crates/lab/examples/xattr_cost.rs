//! Measures changes of attributes that are stored in blocks, on a file system in memory: for `perf`
//! and callgrind.
//!
//! ```text
//! cargo run --release -p fourscore-lab --example xattr_cost IMAGE OPERATION COUNT OPTIONS
//! ```
//!
//! IMAGE is not changed; a file system with inodes of 256 bytes. OPTIONS are those of the mount,
//! for example `mbcache` or `no_mbcache`. OPERATION is one of:
//!
//! | operation | measures |
//! |---|---|
//! | `change` | giving a file, which has a block of its own, another value |
//! | `move` | giving a file the value of another shared block, in turns |
//! | `pair` | setting an attribute, in a new block, and removing it |
//!
//! One thread runs it COUNT times. Prints nanoseconds per operation. The difference of the
//! instructions of two runs with different COUNTs is that of the operations.
#![forbid(unsafe_code)]

use std::env;
use std::path::Path;
use std::time::Instant;

use fourscore::{Fs, InodeNr, MountOptions, NewAttributes, Result, SetXattr};
use fourscore_block::{BlockDevice, DeviceOptions, RamDevice, open_path};
use fourscore_sync::Arc;

const OWNER: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o644);
const NAME: &[u8] = b"user.attribute";

/// A value that does not fit into an inode.
fn value(number: u32) -> [u8; 200] {
    let mut value = [7; 200];
    value[..4].copy_from_slice(&number.to_le_bytes());
    value
}

fn set(fs: &Fs, file: InodeNr, number: u32) -> Result<()> {
    fs.set_xattr(file, NAME, &value(number), SetXattr::Any)
}

fn operation(fs: &Fs, file: InodeNr, what: &str, number: u32) -> Result<()> {
    match what {
        "change" => set(fs, file, number),
        "move" => set(fs, file, number % 2),
        _ => {
            set(fs, file, number)?;
            fs.remove_xattr(file, NAME)
        }
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let [_, image, what, count, options] = &arguments[..] else {
        println!("usage: xattr_cost IMAGE OPERATION COUNT OPTIONS");
        return Ok(());
    };
    let count: u32 = count.parse().unwrap_or(1);
    let base = open_path(Path::new(image), DeviceOptions::default())?;
    let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::over(Arc::new(base)));
    let options = MountOptions::new().parse(options)?;
    let fs = Fs::mount(device, &options)?;
    let make = |name: &str| fs.create(InodeNr::ROOT, name.as_bytes(), &OWNER);
    // Two values have users, between which a file can move.
    for number in 0..2 {
        set(&fs, make(&format!("user {number}"))?, number)?;
    }
    let file = make("file")?;
    let begin = Instant::now();
    for number in 0..count {
        operation(&fs, file, what, number + 2)?;
    }
    let each = begin.elapsed().as_nanos() / u128::from(count.max(1));
    println!("{what}: {each} ns");
    fs.unmount()
}
