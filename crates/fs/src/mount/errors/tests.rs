//! Damaged bitmaps that fail no operation, because other groups serve.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use fourscore_block::{BlockDevice, DeviceOptions, open_path};
use fourscore_ondisk::GroupNr;
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::{assert_clean, dumpe2fs_header, e2fsck_repair};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::group::descriptor;
use crate::group::table::Map;
use crate::{Fs, MountOptions, NewAttributes};

const OWNER: NewAttributes = NewAttributes::owned_by(0, 0);

fn mounted(image: &Image, words: &str) -> Arc<Fs> {
    let device: Arc<dyn BlockDevice> =
        Arc::new(open_path(image.path(), DeviceOptions::read_write()).unwrap());
    Fs::mount(device, &MountOptions::new().parse(words).unwrap()).unwrap()
}

/// An image with a damaged bitmap in its first group, where the root directory is.
fn damaged(map: Map) -> Image {
    let image = Image::builder(MiB(32)).kind("ext4").block_size_bytes(1024);
    let image = image.make().unwrap();
    let fs = mounted(&image, "");
    let desc = descriptor::desc(&fs.core, GroupNr(0)).unwrap();
    fs.unmount().unwrap();
    let block = match map {
        Map::Blocks => desc.block_bitmap(),
        Map::Inodes => desc.inode_bitmap(),
    };
    let file = File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0x55; 100], block.0 * 1024).unwrap();
    image
}

#[test]
fn a_damaged_bitmap_is_noted_once_and_other_groups_serve() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs")
    );
    for map in [Map::Blocks, Map::Inodes] {
        let image = damaged(map);
        let fs = mounted(&image, "errors=continue");
        let desc = descriptor::desc(&fs.core, GroupNr(0)).unwrap();
        let before = fs.statfs().unwrap();
        for number in 0..40 {
            let name = format!("file {number}").into_bytes();
            let file = fs.create(InodeNr::ROOT, &name, &OWNER).unwrap();
            fs.write_at(file, &[1; 5000], 0).unwrap();
        }
        let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
        fs.create(dir, b"file", &OWNER).unwrap();
        fs.sync().unwrap();
        let after = fs.statfs().unwrap();
        match map {
            Map::Blocks => {
                let less = before.free_blocks - after.free_blocks;
                assert!(less >= u64::from(desc.free_clusters()) + 40 * 5, "{less}");
            }
            Map::Inodes => {
                let less = before.free_inodes - after.free_inodes;
                assert_eq!(less, desc.free_inodes() + 42);
            }
        }
        fs.unmount().unwrap();

        let header = dumpe2fs_header(image.path()).unwrap();
        assert_eq!(header["Filesystem state"], "clean with errors");
        assert_eq!(header["FS Error count"], "1");
        e2fsck_repair(image.path(), &[]).unwrap();
        assert_clean(image.path());
    }
}

#[test]
fn a_damaged_bitmap_stops_writing_if_the_policy_says_so() {
    require!(Need::Program("mke2fs"), Need::Program("dumpe2fs"));
    for map in [Map::Blocks, Map::Inodes] {
        let image = damaged(map);
        let fs = mounted(&image, "errors=remount-ro");
        let made = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER);
        assert_eq!(made.unwrap_err().errno(), 30);
        assert!(fs.mkdir(InodeNr::ROOT, b"other", &OWNER).is_err());
        fs.unmount().unwrap_err();
        let header = dumpe2fs_header(image.path()).unwrap();
        assert_eq!(header["FS Error count"], "1");
    }
}
