//! **Purpose.** Checksums of group descriptors, and their copies with `meta_bg`.

use std::fs;
use std::path::Path;

use fourscore_check::Scope;
use fourscore_testkit::oracle::{assert_clean, debugfs_write, e2fsck_preen};
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};

use super::{assert_repaired, repaired};
use crate::common::{count, report};

const BLOCK_BYTES: usize = 1024;
const DESC_BYTES: usize = 64;

fn mke2fs(image: &Path, options: &[&str]) {
    let mut command = tools::command("mke2fs").expect("found before");
    command.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-g", "1024"]);
    command.args(options).arg(image).arg("24M");
    tools::stdout_of(&mut command).expect("mke2fs runs");
}

#[test]
fn a_wrong_checksum_of_a_descriptor_is_mended_without_being_asked() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let folder = scratch::folder().expect("a folder");
    let (image, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    mke2fs(&image, &["-d", "tests"]);
    for group in [0, 1, 7] {
        let request = format!("set_bg {group} checksum 0x1234");
        debugfs_write(&image, &[request]).expect("it is changed");
        fs::copy(&image, &theirs).expect("a copy");
        let preen = e2fsck_preen(&theirs).expect("it runs");
        assert!(!preen.left_errors(), "{}", preen.output);
        let found = report(&image, 1).expect("it can be checked");
        assert_eq!(count(&found, "group-checksum"), 1, "group {group}");
        let result = repaired(&image, Scope::Safe).expect("it can be repaired");
        assert!(result.left.is_empty(), "{:?}", result.left);
        assert!(result.is_clean() && result.is_changed);
        assert_clean(&image);
    }
}

#[test]
fn copies_of_descriptors_inside_their_groups_are_compared() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    mke2fs(&image, &["-O", "meta_bg,^resize_inode"]);
    let before = fs::read(&image).expect("readable");
    // Groups 17 and 31 have the copies of the descriptors of groups 16 to 31, which do not follow
    // a superblock; group 1 has those of the first sixteen behind one.
    for (holder, start, described) in [(1, 1 + 1024 + 1, 2), (17, 1 + 17 * 1024, 20)] {
        let mut damaged = before.clone();
        let at = start * BLOCK_BYTES + described % 16 * DESC_BYTES + 8;
        damaged[at] ^= 0x40;
        fs::write(&image, &damaged).expect("writable");
        let found = report(&image, 1).expect("it can be checked");
        assert_eq!(count(&found, "backup-descriptors"), 1, "group {holder}");
        assert_repaired(&image).expect("it is repaired");
        let after = fs::read(&image).expect("readable");
        assert!(after[at] == before[at], "the copy in group {holder}");
    }
}
