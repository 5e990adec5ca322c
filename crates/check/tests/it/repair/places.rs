//! **Purpose.** A descriptor with a wrong place that is valid by itself: backups know the right
//! one, and no file is lost.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use fourscore_ondisk::GroupNr;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use super::assert_repaired;
use super::drawn::{compare, paths};
use crate::invariants::surgery::Surgery;

/// With checksums of inodes and without, with one backup and several, and with those of `meta_bg`.
const CONFIGS: [&str; 4] = ["ext4-4k", "ext3-4k", "ext2-1k", "meta-bg"];
/// The inode table lies too far up, or a bitmap.
const FIELDS: [(&str, u64); 2] = [("bg_inode_table_lo", 40), ("bg_block_bitmap_lo", 1000)];

fn first_and_last_group(config: &matrix::Config) -> Result<()> {
    let populated = config.populated()?;
    let before = paths(populated.image.path())?;
    let mut surgery = Surgery::new(&populated.image)?;
    let last = surgery.superblock().geometry().groups() - 1;
    for group in [0, last] {
        for (field, by) in FIELDS {
            let site = surgery.descriptor(GroupNr(group))?;
            surgery.change(&site, field, 0, |old| old + by)?;
            let image = populated.image.copy()?;
            surgery.undo()?;
            let what = || format!("group {group}: {field}");
            let result = assert_repaired(image.path()).with_context(what)?;
            ensure!(!result.mended.is_empty(), "{}: not found", what());
            let kept = compare(&before, image.path(), &BTreeSet::new()).with_context(what)?;
            ensure!(kept > 100, "only {kept} paths were compared");
        }
    }
    Ok(())
}

#[test]
fn wrong_places_lose_no_file() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    matrix::assert_each(&matrix::named(&CONFIGS), first_and_last_group);
}
