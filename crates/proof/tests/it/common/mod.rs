//! What the tests of the library share: opening file systems on images, reading what is in them.

mod images;
pub(crate) mod shared_attributes;

use fourscore::{Fs, InodeNr, MountOptions, NewAttributes, OpenOptions, Result};
use fourscore_block::{BlockDevice, DeviceOptions, open_path};
use fourscore_sync::Arc;
use fourscore_testkit::image::Image;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(crate) use images::*;

pub(crate) const ROOT: InodeNr = InodeNr::ROOT;
/// Files and directories of the super-user, which all may read and search.
pub(crate) const OWNER: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);
/// The same without the permission to search, which the super-user does not need.
pub(crate) const PLAIN: NewAttributes = NewAttributes::owned_by(0, 0);
/// The same of an ordinary user.
pub(crate) const OF_USER: NewAttributes = NewAttributes::owned_by(1, 2);

/// The image as a device, for reading and writing.
pub(crate) fn device(image: &Image) -> Arc<dyn BlockDevice> {
    Arc::new(open_path(image.path(), DeviceOptions::read_write()).unwrap())
}

/// The image as a device, for reading.
pub(crate) fn device_to_read(image: &Image) -> Arc<dyn BlockDevice> {
    Arc::new(open_path(image.path(), DeviceOptions::default()).unwrap())
}

/// The image, open for writing.
pub(crate) fn mount(image: &Image) -> Arc<Fs> {
    mount_with(image, &MountOptions::new())
}

/// The image, open for writing with the given options.
pub(crate) fn mount_with(image: &Image, options: &MountOptions) -> Arc<Fs> {
    try_mount(image, options).unwrap()
}

/// The image, open for writing with the given mount options.
pub(crate) fn mount_words(image: &Image, words: &str) -> Arc<Fs> {
    mount_with(image, &MountOptions::new().parse(words).unwrap())
}

/// Mounts the image with the given options.
pub(crate) fn try_mount(image: &Image, options: &MountOptions) -> Result<Arc<Fs>> {
    Fs::mount(device(image), options)
}

/// The image, open for reading.
pub(crate) fn open(image: &Image) -> Arc<Fs> {
    Fs::open(device_to_read(image), &OpenOptions::new()).unwrap()
}

/// The data of a file.
pub(crate) fn content(fs: &Fs, file: InodeNr) -> Vec<u8> {
    let len = usize::try_from(fs.stat(file).unwrap().size_bytes).unwrap();
    let mut bytes = vec![0xaa; len];
    assert_eq!(fs.read_at(file, &mut bytes, 0).unwrap(), len);
    bytes
}

/// Copies what a device holds to an image that is blank where the device has only zeroes.
pub(crate) fn write_out(device: &dyn BlockDevice, image: &Image) {
    let file = File::options().write(true).open(image.path()).unwrap();
    let mut bytes = vec![0; 1 << 20];
    for offset in (0..device.len_bytes()).step_by(1 << 20) {
        device.read_at(&mut bytes, offset).unwrap();
        if bytes.iter().any(|&byte| byte != 0) {
            file.write_all_at(&bytes, offset).unwrap();
        }
    }
}

/// The names in a directory, in order.
pub(crate) fn names(fs: &Fs, dir: InodeNr) -> Vec<Vec<u8>> {
    let listed = fs.read_dir(dir).unwrap().into_iter();
    let mut names: Vec<_> = listed.map(|entry| entry.name).collect();
    names.retain(|name| name != b"." && name != b"..");
    names.sort();
    names
}

/// The names in a directory of the host, in order.
pub(crate) fn host_names(path: &Path) -> Vec<Vec<u8>> {
    let listed = std::fs::read_dir(path).unwrap();
    let mut names: Vec<_> = listed
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    names.sort();
    names
}
