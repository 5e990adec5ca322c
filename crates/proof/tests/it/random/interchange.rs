//! File systems that were not unmounted: an image that we leave is recovered by the kernel and by
//! e2fsck, and an image that the kernel leaves is recovered by us, to the same tree.

use std::fs::{self, File};
use std::io::Write;

use anyhow::{Result, bail};
use fourscore::InodeNr;
use fourscore_testkit::image::Image;
use fourscore_testkit::matrix::{self, Config};
use fourscore_testkit::mount::{Access, KernelMount, Log};
use fourscore_testkit::oracle::{assert_clean, e2fsck_repair};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::histories::history;
use super::images::{mount, mount_quietly};
use fourscore_proof::{Model, Pair, Rules};

use crate::common::open;
use crate::tree::recovered::{Forgiven, assert_recovered_alike};

const ROOT: InodeNr = InodeNr::ROOT;
/// Kinds of journals, descriptors and orphan lists that the kernel writes as well.
const CONFIGS: [&str; 10] = [
    "ext3-1k",
    "ext4-4k",
    "ext4-1k",
    "no-64bit",
    "no-checksums",
    "meta-bg-32bit",
    "csum-seed",
    "orphan-file",
    "fast-commit",
    "bigalloc-16k",
];

/// The process dies while inodes without a name are open. All finished operations are in the log.
fn ours_is_recovered(config: &Config, words: &str) -> Result<()> {
    let image = config.empty()?;
    let fs = mount_quietly(&image, words)?;
    let rules = Rules::of(&fs);
    let model = Model::new(rules, fs.stat(ROOT)?.links.into());
    let mut pair = Pair::resume(fs.clone(), ROOT, model);
    for number in history(7, 500) {
        pair.step(number);
    }
    fs.sync()?;
    let crashed = image.copy()?;
    let model = pair.model.after_crash();
    let nameless = pair.model.inodes() - model.inodes();
    assert!(nameless > 0, "nothing was open that had no name");
    drop(pair.finish());
    fs.unmount()?;

    model.compare(&open(&crashed), ROOT);
    let by_kernel = crashed.copy()?;
    let kernel = KernelMount::new(by_kernel.path(), Access::ReadWrite, "noatime")?;
    model.compare_with_host(kernel.path());
    kernel.unmount()?;
    assert_clean(by_kernel.path());

    let by_e2fsck = crashed.copy()?;
    e2fsck_repair(by_e2fsck.path(), &[])?;
    assert_clean(by_e2fsck.path());
    model.compare(&open(&by_e2fsck), ROOT);

    let fs = mount(&crashed)?;
    model.compare(&fs, ROOT);
    fs.unmount()?;
    assert_clean(crashed.path());
    Ok(())
}

/// The operations of the kernel before it was stopped: a transaction, fast commits and files
/// without names are in its log. One of six kinds of changes can be left out.
fn left_by_kernel(config: &Config, log: Log, left_out: Option<usize>) -> Result<Image> {
    let image = config.empty()?;
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "")?;
    let at = |name: &str| kernel.path().join(name);
    for dir in 0..5_u8 {
        fs::create_dir(at(&format!("dir {dir}")))?;
    }
    kernel.sync()?;
    let mut held = Vec::new();
    for number in 0..60_usize {
        let path = at(&format!("dir {}/file {number}", number % 5));
        let mut file = File::create(&path)?;
        file.write_all(&vec![b'a'; 900 * number])?;
        match number % 6 {
            kind if left_out == Some(kind) => {}
            0 => fs::remove_file(&path)?,
            1 => file.set_len(100)?,
            2 => fs::rename(&path, at(&format!("moved {number}")))?,
            3 => fs::hard_link(&path, at(&format!("link {number}")))?,
            _ => {}
        }
        if number % 2 == 0 {
            file.sync_all()?;
        }
        held.push(file);
    }
    kernel.shut_down(log)?;
    drop(held);
    kernel.unmount()?;
    Ok(image)
}

/// Does the same with a kernel that can replay what it wrote: sometimes the kernel refuses its own
/// fast commits, and then there is nothing to compare with.
fn recoverable(config: &Config, log: Log) -> Result<Image> {
    let has_fast_commits = config.has("fast_commit");
    for left_out in [None, Some(0), Some(1), Some(2), Some(3)] {
        let image = left_by_kernel(config, log, left_out)?;
        match KernelMount::new(image.copy()?.path(), Access::ReadWrite, "") {
            Err(error) if has_fast_commits => eprintln!("without {left_out:?}: {error:#}"),
            mounted => return mounted?.unmount().map(|()| image),
        }
    }
    bail!("the kernel replays none of its fast commits")
}

fn theirs_is_recovered(config: &Config) -> Result<()> {
    let forgiven = if config.has("fast_commit") {
        Forgiven::DirectoryLinks
    } else {
        Forgiven::Nothing
    };
    for log in [Log::Flushed, Log::Lost] {
        let what = format!("{} {log:?}", config.name);
        let image = recoverable(config, log)?;
        let tree = assert_recovered_alike(&image, forgiven, &what);
        assert!(tree.len() > 40, "{what}: {} objects", tree.len());
    }
    Ok(())
}

#[test]
fn what_we_leave_is_recovered_by_all() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tune2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    matrix::assert_each(&matrix::named(&CONFIGS), |config| {
        ours_is_recovered(config, "")
    });
}

/// Data in inodes, in attributes, in the log, and data that is in none of them yet, all at once.
#[test]
fn what_we_leave_with_journaled_content_is_recovered_by_all() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tune2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let configs = [
        "ext3-1k",
        "ext4-1k",
        "no-checksums",
        "inline-data-1k",
        "ea-inode",
    ];
    matrix::assert_each(&matrix::named(&configs), |config| {
        ours_is_recovered(config, "data=journal,discard")
    });
}

#[test]
fn what_the_kernel_leaves_is_recovered_by_all() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tune2fs"),
        Need::Program("e2fsck"),
        Need::Program("xfs_io"),
        Need::KernelMount
    );
    matrix::assert_each(&matrix::named(&CONFIGS), theirs_is_recovered);
}
