//! **Purpose.** Makes a file system smaller.
//!
//! **Model.** Steps of the old size first, then those that change the size:
//!
//! | step | of |
//! |---|---|
//! | inodes of groups that vanish get other numbers | `renumber`, `values` |
//! | bitmaps and inode tables behind the new end move | `tables` |
//! | blocks of files behind the new end move | `relocate` |
//! | the journal moves, if it lies behind the new end | `journal` |
//! | the inode of reserved descriptor blocks is taken away | [`crate::resize_inode`] |
//! | groups vanish: the superblock alone | here |
//! | blocks of their tables and descriptors become free, the last group, and counts | here |
//! | the inode of reserved descriptor blocks is made again | [`crate::resize_inode`] |
//!
//! The least size is computed in `least`, how far one pass gets in `room`. Data is copied and
//! discarded by `copy`.
//!
//! **Crash safety.** Each step leaves a file system with all files. What has moved before a crash
//! stays where it is; the next shrink goes on from there.
//!
//! The number of groups changes by one write of the superblock, with an empty log. Linux computes
//! it before it replays the log; if a replay changed it, that mount would go on to use the groups
//! that have vanished, and lose what it writes there. From that write to the end of the next step
//! the superblock has the mark of errors: what the vanished groups had in the others is still
//! marked as used there. It is lost space, which a check frees; files may be written meanwhile.

mod copy;
mod journal;
pub(crate) mod least;
mod relocate;
mod renumber;
mod room;
mod tables;
mod values;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::superblock::{State, Superblock};
use fourscore_ondisk::{BlockCount, GroupNr, PhysBlock, RawSuperblock};

use crate::bitmap;
use crate::desc_table::{self, Tables};
use crate::error::{ResizeError, Result};
use crate::resize_inode;
use crate::target;
use crate::volume::{Volume, set_free_blocks};
use relocate::Relocation;
use room::Room;

/// Makes the file system that of the superblock `new`, which has fewer blocks.
///
/// Tables of groups that vanish may lie in front of the new end, and are free only when the groups
/// have vanished. So groups are cut off in rounds: in each round as many as there is space for what
/// is in them. If that finds no space after all, each round cuts off half of the groups that are
/// left: then what moves finds all but the tables of one group free.
pub(crate) fn shrink(volume: &mut Volume<'_>, new: &Superblock) -> Result<()> {
    let end = new.geometry().data_blocks().end;
    if volume.sb().mmp_block().is_some_and(|block| block >= end) {
        let why = "the block of multi-mount protection (mmp) lies behind that size";
        return Err(ResizeError::Unsupported(why.into()));
    }
    let has_flex = volume.sb().features().incompat.contains(Incompat::FLEX_BG);
    let mut pace = Pace::AsFarAsPossible;
    loop {
        let middle = match has_flex {
            true => middle(volume, new, pace)?,
            false => None,
        };
        let done = shrink_to(volume, middle.as_ref().unwrap_or(new));
        match done {
            Err(ResizeError::NoRoom) if has_flex && pace == Pace::AsFarAsPossible => {
                volume.reload()?;
                pace = Pace::Halves;
            }
            Ok(()) if middle.is_some() => {}
            other => return other,
        }
    }
}

/// How many groups vanish at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    AsFarAsPossible,
    Halves,
}

/// A size on the way to `new`, to which the file system shrinks first; `None` if there is none.
fn middle(volume: &Volume<'_>, new: &Superblock, pace: Pace) -> Result<Option<Superblock>> {
    let geometry = *volume.geometry();
    let vanishing = geometry.groups() - new.geometry().groups();
    if vanishing < 2 {
        return Ok(None);
    }
    let half = geometry.groups() - vanishing / 2;
    let groups = match pace {
        Pace::Halves => half,
        Pace::AsFarAsPossible => {
            let room = Room::of(volume)?;
            if room.is_enough_for(volume, new)? {
                return Ok(None);
            }
            half.min(room.least_groups(new.geometry().groups() + 1))
        }
    };
    let blocks = geometry.group_first_block(GroupNr(groups)).0;
    target::of(volume.sb(), blocks).map(Some)
}

/// Shrinks at once.
fn shrink_to(volume: &mut Volume<'_>, new: &Superblock) -> Result<()> {
    let end = new.geometry().data_blocks().end;
    let mut relocation = Relocation::new(volume, end)?;
    relocation.renumber(new.geometry().inodes())?;
    relocation.move_tables(new.geometry().groups())?;
    relocation.move_reserved_top()?;
    relocation.move_files()?;
    relocation.move_journal()?;
    drop(relocation);
    // The superblock has changed meanwhile.
    let new = &target::with_counts_of(volume.sb(), new)?;
    let removed = resize_inode::remove(volume, new)?;
    match &removed {
        None => cut(volume, new)?,
        Some(removed) => {
            cut(volume, &resize_inode::without(new)?)?;
            resize_inode::restore(volume, removed, new)?;
        }
    }
    volume.write_backups()
}

/// The last steps: nothing is in use behind the new end.
fn cut(volume: &mut Volume<'_>, new: &Superblock) -> Result<()> {
    let old = volume.sb().clone();
    let freed = without_vanishing_tables(volume, new)?;
    if new.geometry().groups() < old.geometry().groups() {
        drop_groups(volume, new)?;
    }
    let before = volume.sb().clone();
    for (group, bits) in freed {
        volume.set_block_bitmap(group, bits)?;
    }
    volume.set_superblock(new.raw())?;
    let geometry = *volume.geometry();
    let last = GroupNr(geometry.groups() - 1);
    let clusters = u64::from(geometry.group_clusters(last));
    let before = u64::from(before.geometry().group_clusters(last));
    // The last group has a bitmap that was written.
    let mut bits = volume.block_bitmap(last)?;
    bitmap::fill(&mut bits, clusters..before, true);
    volume.set_block_bitmap(last, bits)?;
    desc_table::give_back(volume, table_end(new)..table_end(&old))?;
    let counted = counted(volume, volume.sb())?;
    volume.set_superblock(&counted)?;
    volume.commit()?;
    // Not before: in place, a crash may leave the old superblock, whose groups are all there.
    volume.clear_behind_descs()
}

/// Takes away the groups that `new` does not have, by one write of the superblock: see the module.
///
/// A replay would not do: Linux counts groups and blocks of descriptors before it replays the log,
/// and would use groups that have vanished until it is mounted again.
fn drop_groups(volume: &mut Volume<'_>, new: &Superblock) -> Result<()> {
    let geometry = *volume.geometry();
    let groups = new.geometry().groups();
    // Blocks of descriptors that are given back are used until the step after this one, also in
    // bitmaps that would be computed. The last group has to have a bitmap.
    let copies = geometry.groups_with_super();
    let copies = copies.filter(|group| group.0 < groups - 1);
    desc_table::store_bitmaps(volume, copies.chain([GroupNr(groups - 1)]))?;
    let end = geometry.group_first_block(GroupNr(groups));
    let whole = target::of(volume.sb(), end.0)?;
    let mut raw = counted(volume, &whole)?;
    raw.s_r_blocks_count_lo = new.raw().s_r_blocks_count_lo;
    raw.s_r_blocks_count_hi = new.raw().s_r_blocks_count_hi;
    raw.s_state = (raw.s_state.get() | State::ERROR_FS.bits()).into();
    volume.replace_superblock(&raw)
}

/// The superblock `sb` with the free clusters and inodes that the descriptors of its groups count.
fn counted(volume: &Volume<'_>, sb: &Superblock) -> Result<RawSuperblock> {
    let (mut free, mut free_inodes) = (0, 0);
    for group in 0..sb.geometry().groups() {
        let desc = volume.desc(GroupNr(group))?;
        free += u64::from(desc.free_clusters());
        free_inodes += desc.free_inodes();
    }
    let mut raw = *sb.raw();
    let log = sb.geometry().blocks_per_cluster_log();
    set_free_blocks(&mut raw, BlockCount(free << log));
    raw.s_free_inodes_count = free_inodes.into();
    // Linux computes it where it is 0, as resize2fs leaves it.
    raw.s_overhead_clusters = 0.into();
    Ok(raw)
}

/// Where the blocks reserved for descriptors end, counted from the first block of the table. A
/// table that gets shorter keeps as many of them: they move to its new end.
fn table_end(sb: &Superblock) -> u32 {
    let geometry = sb.geometry();
    let table = geometry.first_meta_bg().unwrap_or(geometry.desc_blocks());
    table + u32::from(sb.reserved_gdt_blocks())
}

/// The block bitmaps of groups that stay, without what groups that vanish have there: bitmaps and
/// inode tables.
///
/// Tables lie behind superblock and descriptors of their group, so they share clusters only with
/// each other and with the last cluster of these.
fn without_vanishing_tables(
    volume: &Volume<'_>,
    new: &Superblock,
) -> Result<BTreeMap<GroupNr, Vec<u8>>> {
    let geometry = *volume.geometry();
    let log = geometry.blocks_per_cluster_log();
    let end = new.geometry().data_blocks().end.0;
    let staying = Tables::of_groups(volume, 0..new.geometry().groups())?;
    let going = Tables::of_groups(volume, new.geometry().groups()..geometry.groups())?;
    let mut bitmaps = BTreeMap::new();
    // The end may cut a table in two.
    for first in going
        .clusters(log)
        .map(|cluster| cluster << log)
        .filter(|&first| first < end)
    {
        let block = PhysBlock(first.max(geometry.first_data_block().0));
        let Some((group, offset)) = geometry.block_group(block) else {
            continue;
        };
        let has_base = offset.0 < geometry.base_meta_blocks(group);
        if has_base || staying.overlap(&(first..first + (1 << log))) {
            continue;
        }
        let bitmap = match bitmaps.entry(group) {
            Entry::Vacant(entry) => entry.insert(volume.block_bitmap(group)?),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        let bit = u64::from(offset.0 >> log);
        bitmap::fill(bitmap, bit..bit + 1, false);
    }
    Ok(bitmaps)
}
