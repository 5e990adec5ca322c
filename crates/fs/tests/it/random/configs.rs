//! Every configuration: either a history is applied to it, or the mount refuses it and names the
//! unsupported feature. This is the only list of both.

use anyhow::{Result, bail, ensure};
use fourscore::{Error, InodeNr};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::matrix::{self, Config, Kernel};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::histories::{history, one_mount, one_mount_as};
use super::images::{OWNER, mount};
use fourscore_proof::{Model, Pair, Rules};

use crate::common::{open, require_e2fsprogs};

/// The result of a read-write mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The configuration is writable.
    Written,
    /// The configuration is refused, and the error contains this word.
    Refused(&'static str),
}

use Answer::{Refused, Written};

/// Names of `testkit::matrix`, and the results. A configuration that is listed as refused but is
/// writable makes the test fail, so that the list stays correct.
const ANSWERS: &[(&str, Answer)] = &[
    ("ext4-1k", Written),
    ("ext4-2k", Written),
    ("ext4-4k", Written),
    ("ext4-8k", Written),
    ("ext4-16k", Written),
    ("ext4-32k", Written),
    ("ext4-64k", Written),
    ("ext4-1k-inode-128", Written),
    ("ext4-4k-inode-128", Written),
    ("ext4-4k-inode-1024", Written),
    ("no-64bit", Written),
    ("64bit-1k", Written),
    ("no-flex-bg", Written),
    ("flex-bg-128", Written),
    ("meta-bg", Written),
    ("meta-bg-32bit", Written),
    ("no-resize-inode", Written),
    ("sparse-super2", Written),
    ("small-groups", Written),
    ("stripe", Written),
    ("packed-meta", Written),
    ("lazy-tables", Written),
    ("crc16", Written),
    ("crc16-32bit", Written),
    ("no-checksums", Written),
    ("csum-seed", Written),
    ("fast-commit", Written),
    ("orphan-file", Written),
    ("project-ids", Written),
    ("stable-inodes", Written),
    ("no-dir-index", Written),
    ("large-dir", Written),
    ("hash-legacy", Written),
    ("hash-tea-unsigned", Written),
    ("ext2-1k", Written),
    ("ext2-4k", Written),
    ("ext3-1k", Written),
    ("ext3-4k", Written),
    ("ext3-first", Written),
    ("ext4-no-extent", Written),
    ("ext4-no-extent-1k", Written),
    ("no-journal", Written),
    ("inline-data", Written),
    ("inline-data-1k", Written),
    ("ext4-8k-inline", Written),
    ("ea-inode", Written),
    ("all-new-features", Written),
    ("bigalloc-16k", Written),
    ("bigalloc-1k-16k", Written),
    ("ext4-64k-bigalloc", Written),
    ("mmp", Written),
    ("encrypt", Written),
    ("quota", Refused("quota")),
];

/// Applies a history to a configuration, or checks how it is refused.
fn check(config: &Config, calls: usize) -> Result<()> {
    let (_, answer) = ANSWERS
        .iter()
        .find(|(name, _)| *name == config.name)
        .unwrap();
    let image = config.empty()?;
    match (mount(&image), *answer) {
        (Ok(fs), Written) => fs.unmount()?,
        (Ok(_), Refused(word)) => bail!("is written by now, but listed as refused for {word}"),
        (Err(Error::ReadOnly(why)), Refused(word)) => {
            ensure!(why.contains(word), "refused, but not for {word}: {why}");
            assert_clean(image.path());
            return Ok(());
        }
        (Err(error), _) => bail!("{error}"),
    }
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
    let names: Vec<&str> = ANSWERS.iter().map(|(name, _)| *name).collect();
    matrix::named(&names)
}

#[test]
fn every_configuration_is_written_or_refused_by_name() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tune2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let written = ANSWERS.iter().filter(|(_, answer)| *answer == Written);
    assert!(written.count() >= 24);
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
            fs.unmount().unwrap();
            assert_clean(image.path());
            model.compare(&open(&image), dir);
        }
    }
}

#[test]
fn the_list_has_no_name_twice() {
    let names: std::collections::BTreeSet<_> = ANSWERS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), ANSWERS.len());
}
