//! **Purpose.** Makes a file system larger.
//!
//! **Model.** One step: see [`crate::volume`].
//!
//! | part | where |
//! |---|---|
//! | bitmaps and inode tables of new groups | behind the old end, before the step |
//! | bitmaps of groups with a backup, if there will be more blocks of descriptors | steps before it |
//! | descriptors of new groups | the step: in blocks reserved for them, or in new groups |
//! | the last group, which gets longer | the step: its bitmap and its descriptor |
//! | the inode of reserved descriptors | the step, or its own: [`crate::resize_inode`] |
//! | counts | the step: the superblock |
//! | backups | after the step |
//!
//! **Crash safety.** Until the step is durable nothing of the old file system has changed, and what
//! lies behind its end belongs to nothing. Backups that are older than the step describe the file
//! system of the old size, whose groups are all still there.

mod groups;
pub(crate) mod mounted;

use fourscore_ondisk::GroupNr;
use fourscore_ondisk::superblock::Superblock;

use crate::bitmap;
use crate::desc_table;
use crate::error::Result;
use crate::resize_inode::{self, Removed};
use crate::volume::{Volume, add_free_clusters};
use groups::Tables;

/// Makes the file system that of the superblock `new`, which has more blocks.
pub(crate) fn grow(volume: &mut Volume<'_>, new: &Superblock) -> Result<()> {
    // New tables keep clear of reserved blocks also while none are reserved.
    let tables = groups::place(new, volume.geometry().groups())?;
    let geometry = *volume.geometry();
    if geometry.desc_blocks() != new.geometry().desc_blocks() {
        desc_table::store_bitmaps(volume, geometry.groups_with_super())?;
    }
    let removed = resize_inode::remove(volume, new)?;
    match &removed {
        None => step(volume, new, &tables, None)?,
        Some(removed) => {
            let without = resize_inode::without(new)?;
            step(volume, &without, &tables, Some(removed))?;
            resize_inode::restore(volume, removed, new)?;
        }
    }
    volume.write_backups()
}

fn step(
    volume: &mut Volume<'_>,
    new: &Superblock,
    tables: &[Tables],
    removed: Option<&Removed>,
) -> Result<()> {
    let old = volume.sb().clone();
    clear_new_table_blocks(volume, &old, new);
    volume.set_superblock(new.raw())?;
    let mut free = extend_last_group(volume, &old)?;
    free += groups::write(volume, tables)?;
    free += match removed {
        None => resize_inode::update(volume, &old)?,
        Some(_) => new_table_blocks(volume, &old)?,
    };
    let mut raw = *volume.sb().raw();
    add_free_clusters(&mut raw, &old, free);
    // Linux computes it where it is 0, as resize2fs leaves it.
    raw.s_overhead_clusters = 0.into();
    volume.set_superblock(&raw)?;
    volume.write_behind(old.geometry().data_blocks().end)?;
    volume.commit()
}

/// Marks the blocks of new descriptors as used in the groups that were there before, since they are
/// not reserved meanwhile. Returns the change of the number of free clusters.
fn new_table_blocks(volume: &mut Volume<'_>, old: &Superblock) -> Result<i64> {
    let geometry = *volume.geometry();
    let blocks = old.geometry().desc_blocks()..geometry.desc_blocks();
    let mut free = 0;
    for group in old.geometry().groups_with_super() {
        free += desc_table::take_in(volume, group, blocks.clone())?;
    }
    Ok(free)
}

/// Fills descriptor blocks that had no descriptors with zeroes.
fn clear_new_table_blocks(volume: &mut Volume<'_>, old: &Superblock, new: &Superblock) {
    let (old, new) = (old.geometry(), new.geometry());
    let per_block = new.descs_per_block();
    for index in old.desc_blocks()..new.desc_blocks() {
        if let Some(place) = new.desc_place(GroupNr(index * per_block)) {
            volume.set(place.block, vec![0; new.block_size().bytes()]);
        }
    }
}

/// Frees the blocks that the last group of the old size gets. Returns how many clusters they are.
fn extend_last_group(volume: &mut Volume<'_>, old: &Superblock) -> Result<i64> {
    let last = GroupNr(old.geometry().groups() - 1);
    let before = u64::from(old.geometry().group_clusters(last));
    let after = u64::from(volume.geometry().group_clusters(last));
    if before == after {
        return Ok(0);
    }
    let mut bits = volume.block_bitmap(last)?;
    bitmap::fill(&mut bits, before..after, false);
    volume.set_block_bitmap(last, bits)
}
