//! **Purpose.** The whole library: open a forged image, walk it, read everything.
//!
//! **Input.** Which image, a byte of switches, changes ([`crate::patch`]) to its blocks.

use fourscore::{Error, Fs, OpenOptions, Replay};
use fourscore_sync::Arc;

use crate::device::Patched;
use crate::input::Input;
use crate::seal::reseal;
use crate::targets::SEAL;
use crate::walk::{Found, read_everything};
use crate::{images, patch};

/// Small, so that entries have to leave while the walk goes on.
const CACHE_BYTES: usize = 192 << 10;
/// But large enough for some of the largest blocks, which would otherwise be read and checked again
/// and again.
const CACHE_BLOCKS: usize = 24;

/// Runs the target.
pub fn run(data: &[u8]) {
    if let Err(error) = open_and_read(data) {
        assert!(error.errno() > 0 && !error.to_string().is_empty());
    }
}

/// Opens the image and reads it.
///
/// # Errors
/// If it cannot be opened.
pub fn open_and_read(data: &[u8]) -> Result<Found, Error> {
    let mut input = Input::new(data);
    let image = images::nth(input.u8());
    let switches = input.u8();
    let mut device = image.device();
    patch::apply(&mut input, &image.blocks, image, &mut device);
    if switches & SEAL != 0 {
        reseal(&mut device, image);
    }
    let replay = if switches & 2 == 0 {
        Replay::InMemory
    } else {
        Replay::Ignore
    };
    read(device, replay)
}

/// Opens a device and reads everything on it.
///
/// # Errors
/// If it cannot be opened.
pub fn read(device: Patched, replay: Replay) -> Result<Found, Error> {
    let cache_bytes = CACHE_BYTES.max(CACHE_BLOCKS * device.block_bytes());
    let options = OpenOptions::new().replay(replay).cache_bytes(cache_bytes);
    Ok(read_everything(&*Fs::open(Arc::new(device), &options)?))
}
