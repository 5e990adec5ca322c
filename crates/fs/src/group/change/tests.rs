//! Superblocks that claim more groups than there are.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use fourscore_block::{DeviceOptions, open_path};
use fourscore_ondisk::superblock::SUPERBLOCK_OFFSET_BYTES;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::{Fs, MountOptions};

/// Returns the most memory that this process had so far, in KiB.
fn most_memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

/// Makes an image claim `blocks` blocks in groups of 256, each with 8 inodes. Returns whether the
/// host can have so long a file.
fn claim_groups(image: &Image, blocks: u64) -> bool {
    let file = File::options().write(true).open(image.path()).unwrap();
    let put = |at: u64, value: u64| {
        let low = u32::try_from(value & u64::from(u32::MAX)).unwrap();
        file.write_all_at(&low.to_le_bytes(), SUPERBLOCK_OFFSET_BYTES + at)
            .unwrap();
    };
    put(0x00, (blocks - 1).div_ceil(256) * 8);
    put(0x04, blocks);
    put(0x150, blocks >> 32);
    for (at, value) in [(0x20, 256), (0x24, 256), (0x28, 8), (0x08, 0), (0x154, 0)] {
        put(at, value);
    }
    file.set_len(blocks << 10).is_ok()
}

#[test]
fn groups_that_a_superblock_claims_take_no_memory_before_they_are_found() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
    let image = image.features(&[
        "^metadata_csum",
        "^uninit_bg",
        "^has_journal",
        "^resize_inode",
        "^flex_bg",
        "64bit",
        "meta_bg",
        "^sparse_super",
    ]);
    let image = image.arguments(["-I", "128", "-g", "8192"]).make().unwrap();
    if !claim_groups(&image, (1 << 37) - 2560) {
        eprintln!("skipped: the file system of the host has no files of 128 TiB");
        return;
    }
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let before = most_memory_kib();
    let error = Fs::mount(Arc::new(device), &MountOptions::new()).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    // The names of the blocks of descriptors alone would be 512 MiB. Linux adds up what each core
    // has counted, so its maximum may also be a little lower than before.
    assert!(most_memory_kib().saturating_sub(before) < 100 << 10);
}
