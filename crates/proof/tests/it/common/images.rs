//! Images and mounts that many tests begin with.

use fourscore::{Fs, MountOptions};
use fourscore_journal::{Background, JournalOptions};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;

use super::mount;

/// Skips the test without the programs that make and check images.
macro_rules! require_e2fsprogs {
    () => {
        fourscore_testkit::require!(
            fourscore_testkit::tools::Need::Program("mke2fs"),
            fourscore_testkit::tools::Need::Program("e2fsck")
        )
    };
}

/// Skips the test without these programs, or where the kernel cannot mount images.
macro_rules! require_kernel {
    () => {
        fourscore_testkit::require!(
            fourscore_testkit::tools::Need::Program("mke2fs"),
            fourscore_testkit::tools::Need::Program("e2fsck"),
            fourscore_testkit::tools::Need::KernelMount
        )
    };
}

pub(crate) use {require_e2fsprogs, require_kernel};

/// An empty file system of 64 MiB, with the blocks and inodes that mke2fs chooses.
pub(crate) fn image(features: &[&str]) -> Image {
    let image = Image::builder(MiB(64)).kind("ext4").features(features);
    image.make().unwrap()
}

/// An empty file system of 64 MiB with blocks of the given size.
pub(crate) fn image_of(block_bytes: u32, features: &[&str]) -> Image {
    let image = Image::builder(MiB(64)).kind("ext4").features(features);
    image.block_size_bytes(block_bytes).make().unwrap()
}

/// The same with inodes of the given size.
pub(crate) fn image_of_inodes(block_bytes: u32, inode_bytes: u16, features: &[&str]) -> Image {
    let image = Image::builder(MiB(64)).kind("ext4").features(features);
    let image = image.block_size_bytes(block_bytes);
    image.inode_size_bytes(inode_bytes.into()).make().unwrap()
}

/// Unmounts a file system, and checks its image with e2fsck.
#[track_caller]
pub(crate) fn unmount_clean(fs: Arc<Fs>, image: &Image) {
    fs.unmount().unwrap();
    assert_clean(image.path());
}

/// The options of a mount that commits and checkpoints only on request.
pub(crate) fn quiet() -> MountOptions {
    MountOptions::new().journal(JournalOptions {
        background: Background::None,
        ..JournalOptions::default()
    })
}

/// `len` bytes that differ from those of another seed at every offset.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let at = |offset: usize| seed ^ u8::try_from(offset % 251).unwrap();
    (0..len).map(at).collect()
}

/// The same file system twice, mounted by us and by the kernel.
pub(crate) struct Populated<R> {
    pub(crate) fs: Arc<Fs>,
    pub(crate) image: Image,
    pub(crate) kernel: KernelMount,
    /// What the function returned that made the files.
    pub(crate) made: R,
    _twin: Image,
}

impl<R> Populated<R> {
    /// Makes a file system of 64 MiB, has `populate` make files through our mount, and mounts it
    /// and a copy.
    pub(crate) fn new(populate: impl FnOnce(&Fs) -> R) -> Self {
        let image = image(&[]);
        let fs = mount(&image);
        let made = populate(&fs);
        fs.unmount().unwrap();
        let twin = image.copy().unwrap();
        let kernel = KernelMount::new(twin.path(), Access::ReadWrite, "").unwrap();
        Self {
            fs: mount(&image),
            image,
            kernel,
            made,
            _twin: twin,
        }
    }
}
