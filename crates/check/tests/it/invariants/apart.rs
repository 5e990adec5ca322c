//! **Purpose.** Invariants that changed bytes cannot break: short and unreadable devices, logs, and
//! indexes of two levels.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use fourscore_block::{DeviceOp, DeviceOptions, FaultyDevice, Rule, open_path};
use fourscore_check::{CheckOptions, Finding, Report, check};
use fourscore_ondisk::InodeNr;
use fourscore_sync::Arc;
use fourscore_testkit::damage::{Kind, Site};
use fourscore_testkit::oracle::{debugfs_write, e2fsck, e2fsck_repair};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, matrix, require, scratch};

use super::surgery::Surgery;
use super::{assert_found, report};

#[test]
fn a_short_device_is_reported() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = Image::builder(MiB(16))
        .kind("ext4")
        .make()
        .expect("an image");
    let file = File::options()
        .write(true)
        .open(image.path())
        .expect("it is there");
    file.set_len(MiB(16).bytes() - 4096)
        .expect("a shorter file");
    assert_found(image.path(), "device-short").expect("both find it");
}

/// Checks a device of which a range cannot be read.
fn with_broken(image: &Path, range: Range<u64>) -> Result<Report> {
    let device = FaultyDevice::new(Arc::new(open_path(image, DeviceOptions::default())?));
    device.add(Rule::nth(DeviceOp::Read, 1).within(range).and_after());
    let options = CheckOptions {
        threads: NonZeroUsize::MIN,
        ..CheckOptions::default()
    };
    Ok(check(Arc::new(device), &options)?)
}

/// A few structures of each kind but the superblock, which is needed.
fn some_of_each(surgery: &Surgery) -> Vec<Site> {
    const EACH: usize = 3;
    let kinds = [
        Kind::Descriptor,
        Kind::BlockBitmap,
        Kind::InodeBitmap,
        Kind::Inode,
        Kind::ExtentNode,
        Kind::Leaf,
        Kind::IndexRoot,
        Kind::Xattrs,
        Kind::Journal,
    ];
    let sites = kinds.into_iter().map(|kind| surgery.sites(kind));
    sites
        .flat_map(|sites| sites.into_iter().take(EACH))
        .collect()
}

#[test]
fn blocks_that_cannot_be_read_are_reported() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let configs = matrix::named(&["ext4-4k"]);
    let Some(config) = configs.first() else {
        return;
    };
    let image = config.populated().expect("an image").image;
    let surgery = Surgery::new(&image).expect("a sound image");
    let sites = some_of_each(&surgery);
    assert!(sites.len() > 15, "there is something of each kind");
    let mut told = BTreeMap::new();
    for site in sites {
        let broken = site.at / 4096;
        let range = broken * 4096..(broken + 1) * 4096;
        let report = with_broken(image.path(), range).expect("a report");
        let names_it = report.findings().iter().any(
            |finding| matches!(finding, Finding::Unreadable { block, .. } if block.0 == broken),
        );
        assert!(
            names_it,
            "{:?} in block {broken}: {:#?}",
            site.kind,
            report.findings()
        );
        assert!(!report.is_clean());
        *told.entry(site.kind).or_insert(0) += 1;
    }
    assert!(told.len() == 9, "{told:?}");
}

/// debugfs writes a journal with one transaction; then its commit block is damaged.
#[test]
fn a_torn_last_transaction_is_reported() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = Image::builder(MiB(16)).kind("ext4").block_size_bytes(1024);
    let image = image.make().expect("mke2fs runs");
    debugfs_write(image.path(), &["jo -c", "jw -b 15000 /dev/zero", "jc"])
        .expect("debugfs has a journal");
    let whole = report(image.path(), 1).expect("a report");
    assert_eq!(whole.counts().get("journal-tail"), None);
    let mut bytes = std::fs::read(image.path()).expect("the image");
    let is_commit = |block: &&mut [u8]| block.starts_with(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2]);
    let commit = bytes.chunks_mut(1024).find(is_commit);
    // The time of the commit, which nothing but the checksum holds.
    commit.expect("a commit block")[0x3b] ^= 1;
    std::fs::write(image.path(), &bytes).expect("room");
    let torn = report(image.path(), 1).expect("a report");
    assert_eq!(torn.counts().get("journal-tail"), Some(&1));
    assert!(torn.is_clean(), "{:#?}", torn.findings());
}

/// An image with a directory whose index has two levels: blocks of 1 KiB have space for three names
/// of this length, and for the entries of 120 blocks.
fn deep_index() -> Image {
    let source = scratch::folder().expect("a folder");
    for nr in 0..600 {
        let name = format!("{nr:0230}");
        File::create_new(source.path().join(name)).expect("room");
    }
    let image = Image::builder(MiB(16)).kind("ext4").block_size_bytes(1024);
    let image = image.source(source.path()).make().expect("mke2fs runs");
    e2fsck_repair(image.path(), &["-D"]).expect("e2fsck makes indexes");
    image
}

#[test]
fn indexes_of_two_levels_are_followed() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = deep_index();
    let sound = report(image.path(), 2).expect("a report");
    assert!(sound.findings().is_empty(), "{:#?}", sound.findings());
    let mut surgery = Surgery::new(&image).expect("a sound image");
    let (root, node) = (Kind::IndexRoot, Kind::IndexNode);
    let [root, node] = [root, node].map(|kind| surgery.nth(kind, 0).expect("two levels"));

    surgery
        .change(&node, "limit", 0, |old| old + 1)
        .expect("damage");
    assert_found(image.path(), "index-node").expect("both find it");
    surgery.undo().expect("it can be undone");

    // The root refers to a leaf directly.
    let leaf = surgery.value(&node, "block", 0).expect("an entry");
    surgery.change(&root, "block", 0, |_| leaf).expect("damage");
    assert_found(image.path(), "index-depth").expect("both find it");
    surgery.undo().expect("it can be undone");
    assert!(e2fsck(image.path()).expect("e2fsck runs").is_clean());
}

/// Memory does not follow the size of a directory: at 24 bytes for each block up to it, there would
/// not be enough.
#[test]
fn a_directory_of_absurd_size_takes_no_memory() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = deep_index();
    let mut surgery = Surgery::new(&image).expect("a sound image");
    let root = surgery.inode_site(InodeNr::ROOT).expect("there is one");
    let count = surgery.value(&root, "eh_entries", 0).expect("extents");
    assert_eq!(surgery.value(&root, "eh_depth", 0).expect("extents"), 0);
    let last = usize::try_from(count).expect("a few") - 1;
    let far = |_| 0xffff_0000;
    surgery
        .change(&root, "ee_block", last, far)
        .expect("damage");
    assert_found(image.path(), "dir-hole").expect("both find it");
}
