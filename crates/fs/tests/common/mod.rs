//! Opens file systems on images for the tests of the library, and lists the names in them.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several test programs, none of which needs all of it"
)]

use fourscore::{Fs, InodeNr, MountOptions, OpenOptions};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::Arc;
use fourscore_testkit::image::Image;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The image, open for writing.
pub fn mount(image: &Image) -> Arc<Fs> {
    mount_with(image, &MountOptions::new())
}

/// The image, open for writing with the given options.
pub fn mount_with(image: &Image, options: &MountOptions) -> Arc<Fs> {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    Fs::mount(Arc::new(device), options).unwrap()
}

/// The image, open for reading.
pub fn open(image: &Image) -> Arc<Fs> {
    let device = open_path(image.path(), DeviceOptions::default()).unwrap();
    Fs::open(Arc::new(device), &OpenOptions::new()).unwrap()
}

/// The names in a directory, in order.
pub fn names(fs: &Fs, dir: InodeNr) -> Vec<Vec<u8>> {
    let listed = fs.read_dir(dir).unwrap().into_iter();
    let mut names: Vec<_> = listed.map(|entry| entry.name).collect();
    names.retain(|name| name != b"." && name != b"..");
    names.sort();
    names
}

/// The names in a directory of the host, in order.
pub fn host_names(path: &Path) -> Vec<Vec<u8>> {
    let listed = std::fs::read_dir(path).unwrap();
    let mut names: Vec<_> = listed
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    names.sort();
    names
}
