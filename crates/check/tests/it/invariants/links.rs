//! **Purpose.** Inodes that names must not refer to, names that an encoding forbids, and more links
//! than can be counted.

use std::collections::BTreeMap;
use std::path::Path;

use fourscore::{Fs, MountOptions, NewAttributes, OpenOptions, SetXattr};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_check::Finding;
use fourscore_ondisk::InodeNr;
use fourscore_sync::Arc;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{debugfs_write, e2fsck};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require};

use super::surgery::Surgery;
use super::{assert_found, checked};

use crate::common;

const EA_INODE_FL: u32 = 0x20_0000;
const EXTENTS_FL: u32 = 0x8_0000;
const CASEFOLD_FL: u32 = 0x4000_0000;
/// One more than a directory without `dir_nlink` may have links, two of which are its own.
const TOO_MANY: u32 = 64_999;

/// The number of findings of an image, by code.
fn codes(image: &Path) -> BTreeMap<&'static str, u64> {
    common::codes(&checked(image).expect("a report"))
}

/// The text of the finding with this code.
fn text_of(image: &Path, code: &str) -> String {
    let report = checked(image).expect("a report");
    let mut found = report.findings().iter();
    let found = found.find(|finding: &&Finding| finding.invariant().code == code);
    found.expect("it is found").to_string()
}

/// An image with a file whose attribute value is in another inode, and that inode.
fn with_value() -> (Image, InodeNr) {
    let image = Image::builder(MiB(16))
        .kind("ext4")
        .inode_size_bytes(256)
        .features(&["ea_inode"]);
    let image = image.make().expect("mke2fs runs");
    let device = open_path(image.path(), DeviceOptions::read_write()).expect("it is there");
    let fs = Fs::mount(Arc::new(device), &MountOptions::new()).expect("sound");
    let owner = NewAttributes::owned_by(0, 0).permissions(0o755);
    let root = InodeNr::ROOT;
    let file = fs.create(root, b"file", &owner).expect("room");
    fs.mkdir(root, b"dir", &owner).expect("room");
    fs.create(root, b"other", &owner).expect("room");
    fs.set_xattr(file, b"user.large", &[7; 5000], SetXattr::Create)
        .expect("room");
    let inodes = fs.geometry().inodes();
    let mut inodes = (11..=inodes).map(InodeNr);
    let value = inodes.find(|&nr| fs.holds_value(nr).unwrap_or(false));
    fs.unmount().expect("no inode is open");
    (image, value.expect("the value has an inode"))
}

#[test]
fn a_name_of_an_inode_that_holds_a_value_is_reported() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let (image, value) = with_value();
    assert_eq!(codes(image.path()), BTreeMap::new());
    debugfs_write(image.path(), &[format!("ln <{value}> xlink")]).expect("debugfs runs");
    // The name does not count: without it, everything is sound again.
    assert_eq!(codes(image.path()), BTreeMap::from([("entry-value", 1)]));
    let text = text_of(image.path(), "entry-value");
    let expected = format!("'xlink' refers to inode {value}, which holds the value");
    assert!(text.contains(&expected), "{text}");
}

/// An image with the project quota file and the orphan file, which have ordinary numbers.
fn with_hidden_files() -> (Image, [InodeNr; 2]) {
    let image = Image::builder(MiB(16)).kind("ext4");
    let image = image
        .features(&["quota", "project", "orphan_file"])
        .extended("quotatype=usrquota:grpquota:prjquota");
    let image = image.make().expect("mke2fs runs");
    let device = open_path(image.path(), DeviceOptions::default()).expect("it is there");
    let fs = Fs::open(Arc::new(device), &OpenOptions::new()).expect("sound");
    let superblock = fs.superblock();
    let quota = superblock.quota_inodes().project.expect("made");
    let orphans = superblock.orphan_file_inode().expect("made");
    (image, [quota, orphans])
}

#[test]
fn a_name_of_a_hidden_file_is_reported() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let (image, hidden) = with_hidden_files();
    assert_eq!(codes(image.path()), BTreeMap::new());
    let commands = hidden.map(|nr| format!("ln <{nr}> x{nr}"));
    debugfs_write(image.path(), &commands).expect("debugfs runs");
    assert_eq!(codes(image.path()), BTreeMap::from([("entry-inode", 2)]));
}

#[test]
fn a_hidden_file_is_no_orphan() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let (image, hidden) = with_hidden_files();
    for nr in hidden {
        let copy = image.copy().expect("copied");
        debugfs_write(copy.path(), &[format!("ssv last_orphan {nr}")]).expect("debugfs runs");
        assert_eq!(codes(copy.path()).get("orphan-list"), Some(&1));
    }
}

#[test]
fn a_flag_of_values_on_something_else_is_reported_as_that() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let (image, _) = with_value();
    let flagged = EXTENTS_FL | EA_INODE_FL;
    let cases = [
        (
            "/",
            "inode-flags",
            "inode 2: flag EA_INODE_FL: not a regular file",
        ),
        (
            "/dir",
            "inode-flags",
            "flag EA_INODE_FL: not a regular file",
        ),
        ("/other", "value-flag", "no attribute has its value there"),
    ];
    for (path, code, says) in cases {
        let copy = image.copy().expect("room");
        let flag = format!("set_inode_field {path} flags {flagged:#x}");
        debugfs_write(copy.path(), &[flag]).expect("debugfs runs");
        assert_eq!(codes(copy.path()), BTreeMap::from([(code, 1)]), "{path}");
        let text = text_of(copy.path(), code);
        assert!(text.contains(says), "{path}: {text}");
    }
}

#[test]
fn a_name_that_is_not_utf8_is_reported_where_the_encoding_is_strict() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("e2fsck")
    );
    for is_strict in [true, false] {
        let image = Image::builder(MiB(16)).kind("ext4").features(&["casefold"]);
        let image = image.extended("encoding=utf8-12.1");
        let image = match is_strict {
            true => image.extended("encoding_flags=strict"),
            false => image,
        };
        let image = image.make().expect("mke2fs runs");
        let casefold = EXTENTS_FL | CASEFOLD_FL;
        let commands = [
            "mkdir folded".to_owned(),
            "mkdir plain".to_owned(),
            format!("set_inode_field folded flags {casefold:#x}"),
            "write /dev/null folded/name".to_owned(),
            "write /dev/null plain/name".to_owned(),
        ];
        debugfs_write(image.path(), &commands).expect("debugfs runs");
        assert_eq!(codes(image.path()), BTreeMap::new());
        let mut surgery = Surgery::new(&image).expect("a sound image");
        for dir in ["folded", "plain"] {
            let not_utf8 = |_| 0xff;
            surgery.record(dir, 2, "name", not_utf8).expect("damage");
        }
        let clean = e2fsck(image.path()).expect("e2fsck runs").is_clean();
        assert_eq!(clean, !is_strict);
        let expected = is_strict.then_some(("entry-encoding", 1));
        assert_eq!(codes(image.path()), expected.into_iter().collect());
        if is_strict {
            assert_found(image.path(), "entry-encoding").expect("both find it");
        }
    }
}

#[test]
fn more_links_than_can_be_counted_need_a_feature() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let image = Image::builder(MiB(200))
        .kind("ext4")
        .block_size_bytes(1024)
        .inode_size_bytes(128);
    let image = image.arguments(["-N", "70000"]).make();
    let image = image.expect("mke2fs runs");
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("a mount");
    let parent = mount.path().join("parent");
    std::fs::create_dir(&parent).expect("room");
    for nr in 0..TOO_MANY {
        std::fs::create_dir(parent.join(nr.to_string())).expect("room");
    }
    mount.unmount().expect("the mount is not busy");
    assert_eq!(codes(image.path()), BTreeMap::new());
    let few = image.copy().expect("room");

    debugfs_write(image.path(), &["feature -dir_nlink"]).expect("debugfs runs");
    assert_found(image.path(), "dir-nlink").expect("both find it");
    let told = codes(image.path());
    assert_eq!(told, BTreeMap::from([("dir-nlink", 1)]));
    let text = text_of(image.path(), "dir-nlink");
    assert!(text.contains("65001 links"), "{text}");

    // A directory that had too many links keeps the count 1.
    let mount = KernelMount::new(few.path(), Access::ReadWrite, "").expect("a mount");
    for nr in 0..10 {
        let path = mount.path().join("parent").join(nr.to_string());
        std::fs::remove_dir(path).expect("it is empty");
    }
    mount.unmount().expect("the mount is not busy");
    assert!(e2fsck(few.path()).expect("e2fsck runs").is_clean());
    assert_eq!(codes(few.path()), BTreeMap::new());
}
