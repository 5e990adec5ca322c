//! What the tests of shared attributes have in common: files with attributes that do not fit into
//! inodes, and who uses which block.

use std::collections::BTreeMap;

use fourscore::{Fs, InodeNr, SetXattr, XattrPlace, XattrSharingStats};
use fourscore_sync::Arc;
use fourscore_testkit::image::Image;

use super::{PLAIN, ROOT, image_of, image_of_inodes, mount_words};

/// Too long for an inode.
pub(crate) const VALUE: [u8; 500] = [7; 500];
pub(crate) const NAME: &[u8] = b"user.same";
pub(crate) const LIMIT: usize = 1024;
pub(crate) const BLOCK_SIZES: [u32; 3] = [1024, 2048, 4096];

pub(crate) fn image_with(features: &[&str]) -> Image {
    image_of(4096, features)
}

pub(crate) fn image() -> Image {
    image_with(&[])
}

/// With values in inodes, and no space for attributes in the inode itself.
pub(crate) fn image_with_values() -> Image {
    image_of_inodes(4096, 128, &["ea_inode"])
}

/// The cache is asked each time, so that tests do not depend on what a core has found before.
pub(crate) fn sharing(image: &Image) -> Arc<Fs> {
    mount_words(image, "mbcache")
}

pub(crate) fn stats(fs: &Fs) -> XattrSharingStats {
    fs.stats().mount.unwrap().xattr_sharing.unwrap()
}

pub(crate) fn make(fs: &Fs, name: &str) -> InodeNr {
    fs.create(ROOT, name.as_bytes(), &PLAIN).unwrap()
}

pub(crate) fn set(fs: &Fs, inode: InodeNr, value: &[u8]) {
    fs.set_xattr(inode, NAME, value, SetXattr::Any).unwrap();
}

/// The block of an inode's attributes, as an offset in bytes.
pub(crate) fn block(fs: &Fs, inode: InodeNr) -> Option<u64> {
    match fs.xattr_place(inode).unwrap()? {
        XattrPlace::InBlock(range) => Some(range.start),
        XattrPlace::InInode(_) => None,
    }
}

/// How many of the inodes use each block.
pub(crate) fn users(fs: &Fs, inodes: &[InodeNr]) -> BTreeMap<u64, usize> {
    let mut users = BTreeMap::new();
    for &inode in inodes {
        *users.entry(block(fs, inode).unwrap()).or_default() += 1;
    }
    users
}

pub(crate) fn free_blocks(fs: &Fs) -> u64 {
    fs.sync().unwrap();
    fs.statfs().unwrap().free_blocks
}
