//! Where the superblock or the journal's inode is damaged, their copies are read.

use fourscore::{
    BlockSize, Error, FoundBy, Fs, MountOptions, OpenOptions, PhysBlock, Result, SuperblockCopy,
};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::debugfs_write;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::common::{PLAIN, ROOT, mount, mount_with, open};

fn image() -> Image {
    let image = Image::builder(MiB(16)).kind("ext4");
    image.block_size_bytes(1024).make().unwrap()
}

#[test]
fn a_file_system_is_read_by_a_backup_of_its_superblock() {
    require!(Need::Program("mke2fs"));
    let image = image();
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    fs.write_at(file, b"content", 0).unwrap();
    fs.unmount().unwrap();
    let broken = File::options().write(true).open(image.path()).unwrap();
    broken.write_all_at(&[0; 1024], 1024).unwrap();

    let open_by = |copy| -> Result<Arc<Fs>> {
        let device = open_path(image.path(), DeviceOptions::default()).unwrap();
        Fs::open(Arc::new(device), &OpenOptions::new().superblock(copy))
    };
    let refused = open_by(SuperblockCopy::Primary);
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    let backup = SuperblockCopy::Backup {
        block: PhysBlock(8193),
        block_size: BlockSize::from_log(0).unwrap(),
    };
    let fs = open_by(backup).unwrap();
    assert_eq!(fs.paths().read("file").unwrap(), b"content");
}

#[test]
fn a_journal_is_found_by_the_copy_of_its_inode() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = image();
    // Commits happen only on request, so the file is only in the journal.
    let options = MountOptions::new().parse("commit=100000").unwrap();
    let fs = mount_with(&image, &options);
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    fs.fsync(file).unwrap();
    let crashed = image.copy().unwrap();
    fs.unmount().unwrap();
    assert_eq!(open(&crashed).journal_found_by(), FoundBy::Inode);

    debugfs_write(crashed.path(), &["clri <8>"]).unwrap();
    let fs = open(&crashed);
    assert_eq!(fs.journal_found_by(), FoundBy::Copy);
    assert_eq!(fs.resolve(b"file", fourscore::Follow::No).unwrap(), file);
}
