//! **Purpose.** Fields of the superblock that are valid by themselves but wrong: what else is in
//! the image shows it, and no file is lost. And fields without a meaning that e2fsck does not
//! accept.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use super::assert_repaired;
use super::drawn::{compare, paths};
use crate::invariants::surgery::Surgery;

/// Configuration, field, value, what is said of it. There is one backup: two would outvote a field.
const WRONG: [(&str, &str, u64, &str); 13] = [
    // With checksums of inodes and without, and with a hidden inode that is not reserved. Inode 11
    // is lost+found; the last number makes most inodes reserved.
    ("ext4-4k", "s_first_ino", 12, FIRST_INODE),
    ("ext4-4k", "s_first_ino", 0x8fcf, FIRST_INODE),
    ("ext3-4k", "s_first_ino", 0x8fcf, FIRST_INODE),
    ("orphan-file", "s_first_ino", 0x2001, FIRST_INODE),
    (
        "ext4-4k",
        "s_blocks_per_group",
        0x6852,
        "a backup lies where",
    ),
    ("ext3-4k", "s_desc_size", 0x22eb, "8939 without 64bit"),
    (
        "bigalloc-16k",
        "s_log_groups_per_flex",
        0xac,
        "172 is over 31",
    ),
    ("ext3-4k", "s_log_groups_per_flex", 32, "32 is over 31"),
    (
        "ext4-4k",
        "s_clusters_per_group",
        0x7fff,
        "32767 without bigalloc",
    ),
    // The root, a number that is reserved for something else, and a file.
    ("ext4-4k", "s_grp_quota_inum", 2, "is 2 without the feature"),
    ("ext4-4k", "s_usr_quota_inum", 9, "is 9 without the feature"),
    (
        "ext4-4k",
        "s_prj_quota_inum",
        0x400,
        "is 1024 without the feature",
    ),
    (
        "bigalloc-16k",
        "s_orphan_file_inum",
        0x400,
        "without the feature",
    ),
];
const FIRST_INODE: &str = "is in use, which s_first_ino would not allow";

fn wrong_fields(config: &matrix::Config) -> Result<()> {
    let populated = config.populated()?;
    let before = paths(populated.image.path())?;
    let mut surgery = Surgery::new(&populated.image)?;
    for (_, field, value, why) in WRONG.iter().filter(|row| row.0 == config.name) {
        surgery.sb(field, |_| *value)?;
        let image = populated.image.copy()?;
        surgery.undo()?;
        let what = || format!("{field} = {value}");
        let result = assert_repaired(image.path()).with_context(what)?;
        let mended: Vec<String> = result.mended.iter().map(ToString::to_string).collect();
        let is_named = mended.iter().any(|text| text.contains(why));
        ensure!(is_named, "{}: {mended:#?}", what());
        let kept = compare(&before, image.path(), &BTreeSet::new()).with_context(what)?;
        ensure!(kept > 100, "only {kept} paths were compared");
    }
    Ok(())
}

#[test]
fn a_wrong_field_of_the_superblock_loses_no_file() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let names: BTreeSet<&str> = WRONG.iter().map(|row| row.0).collect();
    let names: Vec<&str> = names.into_iter().collect();
    matrix::assert_each(&matrix::named(&names), wrong_fields);
}
