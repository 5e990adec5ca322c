//! **Purpose.** After a repair nothing is wrong any more, for this checker and for e2fsck.
//!
//! | module | what it shows |
//! |---|---|
//! | `apart` | sound images, safe repairs, crashes, undo files, a lost root |
//! | `cases` | each damage of [`crate::invariants`] is repaired |
//! | `descriptors` | checksums of group descriptors, and their copies with `meta_bg` |
//! | `drawn` | drawn damage is repaired, and sound files are kept |
//! | `extents` | an extent at a wrong place hides no other one |
//! | `fields` | a wrong field of the superblock loses no file |
//! | `hosts` | other hosts are kept away, and left alone (feature `mmp`) |
//! | `indexes` | a directory that loses its index gets another one |
//! | `logs` | what is intact of a damaged log is replayed |
//! | `places` | wrong places of inode tables lose no file |

mod apart;
mod cases;
mod descriptors;
mod drawn;
mod extents;
mod fields;
mod hosts;
mod indexes;
mod logs;
mod places;

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore_block::{Access, DeviceOptions, open_path};
use fourscore_check::{CheckOptions, Repaired, Scope, repair};
use fourscore_sync::Arc;
use fourscore_testkit::oracle::e2fsck;

use crate::common::report;

/// Repairs an image with two threads.
pub(crate) fn repaired(image: &Path, scope: Scope) -> Result<Repaired> {
    let options = DeviceOptions {
        access: Access::ReadWrite,
        ..DeviceOptions::default()
    };
    let device = open_path(image, options)?;
    let options = CheckOptions {
        threads: NonZeroUsize::new(2).context("two")?,
        ..CheckOptions::default()
    };
    Ok(repair(Arc::new(device), &options, scope)?)
}

/// Repairs an image, after which neither checker finds anything.
pub(crate) fn assert_repaired(image: &Path) -> Result<Repaired> {
    let result = repaired(image, Scope::Everything)?;
    let left: Vec<String> = result
        .left
        .iter()
        .map(|(finding, why)| format!("{finding}: {why}"))
        .collect();
    let mended: Vec<String> = result.mended.iter().map(ToString::to_string).collect();
    ensure!(left.is_empty(), "left: {left:#?}\nmended: {mended:#?}");
    let again = report(image, 2)?;
    ensure!(
        again.findings().is_empty(),
        "found again: {:#?}\nmended: {mended:#?}",
        crate::common::texts(&again)
    );
    let theirs = e2fsck(image)?;
    ensure!(
        theirs.is_clean(),
        "e2fsck: {}\nmended: {mended:#?}",
        theirs.output
    );
    Ok(result)
}
