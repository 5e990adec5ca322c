//! How the tests of the library come to a file system on an image.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several test programs, none of which needs all of it"
)]

use fourscore::block::{DeviceOptions, open_path};
use fourscore::{Arc, Fs, MountOptions, OpenOptions};
use fourscore_testkit::image::Image;

/// The image, open for writing.
pub fn mount(image: &Image) -> Arc<Fs> {
    mount_with(image, &MountOptions::new())
}

/// The image, open for writing in a way of its own.
pub fn mount_with(image: &Image, options: &MountOptions) -> Arc<Fs> {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    Fs::mount(Arc::new(device), options).unwrap()
}

/// The image, open for reading.
pub fn open(image: &Image) -> Arc<Fs> {
    let device = open_path(image.path(), DeviceOptions::default()).unwrap();
    Fs::open(Arc::new(device), &OpenOptions::new()).unwrap()
}
