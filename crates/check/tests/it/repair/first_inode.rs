//! **Purpose.** A number of the first inode that is valid by itself but wrong: the inodes that it
//! makes reserved are files, and none is lost.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use super::assert_repaired;
use super::drawn::{compare, paths};
use crate::invariants::surgery::Surgery;

/// With checksums of inodes and without, and with an inode that is hidden although it is not
/// reserved. Each has one backup: two would outvote the field.
const CONFIGS: [&str; 3] = ["ext4-4k", "ext3-4k", "orphan-file"];
/// What is said of the field.
const WHY: &str = "is in use, which s_first_ino would not allow";

fn wrong_numbers(config: &matrix::Config) -> Result<()> {
    let populated = config.populated()?;
    let before = paths(populated.image.path())?;
    let mut surgery = Surgery::new(&populated.image)?;
    let inodes = u64::from(surgery.superblock().geometry().inodes());
    for first in [12, inodes / 2, inodes] {
        surgery.sb("s_first_ino", |_| first)?;
        let image = populated.image.copy()?;
        surgery.undo()?;
        let what = || format!("first inode {first}");
        let result = assert_repaired(image.path()).with_context(what)?;
        let mut mended = result.mended.iter().map(ToString::to_string);
        ensure!(
            mended.any(|text| text.contains(WHY)),
            "{}: not found",
            what()
        );
        let kept = compare(&before, image.path(), &BTreeSet::new()).with_context(what)?;
        ensure!(kept > 100, "only {kept} paths were compared");
    }
    Ok(())
}

#[test]
fn a_wrong_number_of_the_first_inode_loses_no_file() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    matrix::assert_each(&matrix::named(&CONFIGS), wrong_numbers);
}
