//! Every configuration that is written: histories are applied to it. This is the only list of them.

use anyhow::Result;
use fourscore::InodeNr;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::matrix::{self, Config, Kernel};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::histories::{history, one_mount, one_mount_as};
use super::images::{OWNER, mount};
use fourscore_proof::{Model, Pair, Rules};

use crate::common::{open, require_e2fsprogs, unmount_clean};

/// Names of `testkit::matrix`.
const WRITTEN: &[&str] = &[
    "ext4-1k",
    "ext4-2k",
    "ext4-4k",
    "ext4-8k",
    "ext4-16k",
    "ext4-32k",
    "ext4-64k",
    "ext4-1k-inode-128",
    "ext4-4k-inode-128",
    "ext4-4k-inode-1024",
    "no-64bit",
    "64bit-1k",
    "no-flex-bg",
    "flex-bg-128",
    "meta-bg",
    "meta-bg-32bit",
    "no-resize-inode",
    "sparse-super2",
    "small-groups",
    "stripe",
    "packed-meta",
    "lazy-tables",
    "crc16",
    "crc16-32bit",
    "no-checksums",
    "csum-seed",
    "fast-commit",
    "orphan-file",
    "project-ids",
    "stable-inodes",
    "no-dir-index",
    "large-dir",
    "hash-legacy",
    "hash-tea-unsigned",
    "ext2-1k",
    "ext2-4k",
    "ext3-1k",
    "ext3-4k",
    "ext3-first",
    "ext4-no-extent",
    "ext4-no-extent-1k",
    "no-journal",
    "inline-data",
    "inline-data-1k",
    "ext4-8k-inline",
    "ea-inode",
    "all-new-features",
    "bigalloc-16k",
    "bigalloc-1k-16k",
    "ext4-64k-bigalloc",
    "mmp",
    "encrypt",
    "quota",
];

/// Applies a history to a configuration.
fn check(config: &Config, calls: usize) -> Result<()> {
    let image = config.empty()?;
    let mut model = None;
    for seed in [1, 2] {
        model = Some(one_mount(&image, model, &history(seed, calls)));
    }
    let model = model.unwrap();
    let access = match config.kernel() {
        Kernel::Writes => Access::ReadWrite,
        Kernel::Reads => Access::ReadOnly,
        Kernel::Refuses => return Ok(()),
    };
    let kernel = KernelMount::new(image.path(), access, "noatime")?;
    model.compare_with_host(kernel.path());
    kernel.unmount()?;
    if access == Access::ReadWrite {
        // A history continues on an image that the kernel has written.
        one_mount(&image, Some(model), &history(3, calls / 4));
    }
    Ok(())
}

fn all() -> Vec<Config> {
    matrix::named(WRITTEN)
}

#[test]
fn every_configuration_is_written() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tune2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    matrix::assert_each(&all(), |config| check(config, 400));
}

#[test]
#[ignore = "takes ten minutes"]
fn every_configuration_takes_long_histories() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tune2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    matrix::assert_each(&all(), |config| check(config, 4_000));
}

/// Data in the log, in inodes and in values of attributes, copied, trimmed and frozen.
#[test]
fn histories_pass_with_all_mount_options() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tune2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let configs = [
        "ext3-1k",
        "all-new-features",
        "inline-data-1k",
        "ea-inode",
        "bigalloc-1k-16k",
    ];
    matrix::assert_each(&matrix::named(&configs), |config| {
        let image = config.empty()?;
        let mut model = None;
        let words = [
            "data=journal,discard",
            "lazytime,strictatime",
            "data=journal,lazytime",
        ];
        for (seed, words) in (11..).zip(words) {
            model = Some(one_mount_as(&image, words, model, &history(seed, 400)));
        }
        let kernel = KernelMount::new(image.path(), Access::ReadOnly, "noatime")?;
        model.unwrap().compare_with_host(kernel.path());
        kernel.unmount()
    });
}

/// The kernel may not know the feature, so only e2fsck checks names and hashes.
#[test]
fn histories_in_directories_that_ignore_case() {
    require_e2fsprogs!();
    let configurations: [(u32, &[&str]); 4] = [
        (1024, &["casefold"]),
        (4096, &["casefold", "inline_data", "verity", "encrypt"]),
        (1024, &["casefold", "^metadata_csum"]),
        (1024, &["casefold", "^dir_index"]),
    ];
    for (block_size, features) in configurations {
        let image = Image::builder(MiB(256)).kind("ext4").features(features);
        let image = image.block_size_bytes(block_size).extended("encoding=utf8");
        let image = image.make().unwrap();
        let fs = mount(&image).unwrap();
        let dir = fs.mkdir(InodeNr::ROOT, b"any case", &OWNER).unwrap();
        let flags = fs.stat(dir).unwrap().flags & InodeFlags::USER_VISIBLE;
        fs.set_flags(dir, flags | InodeFlags::CASEFOLD_FL).unwrap();
        let rules = Rules {
            ignores_case: true,
            ..Rules::of(&fs)
        };
        let mut model = Model::new(rules, 2);
        fs.unmount().unwrap();
        for seed in [21, 22] {
            let fs = mount(&image).unwrap();
            let mut pair = Pair::resume(fs.clone(), dir, model);
            for number in history(seed, 600) {
                pair.step(number);
            }
            pair.compare(dir);
            model = pair.finish();
            unmount_clean(fs, &image);
            model.compare(&open(&image), dir);
        }
    }
}

#[test]
fn the_list_has_no_name_twice() {
    let names: std::collections::BTreeSet<_> = WRITTEN.iter().collect();
    assert_eq!(names.len(), WRITTEN.len());
}
