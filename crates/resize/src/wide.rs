//! **Purpose.** Descriptors of 64 bytes instead of 32, and back: the feature `64bit`.
//!
//! **Model.** The table of descriptors becomes twice or half as long. It takes blocks that are
//! reserved behind it, then free ones; or it gives blocks back to those that are reserved, if there
//! are such, else they become free:
//!
//! ```text
//! superblock | table              | reserved               | bitmaps, inode tables, data
//! superblock | table, twice as long          | reserved    | bitmaps, inode tables, data
//! ```
//!
//! Nothing moves. The high half of the checksum of a bitmap is only in a long descriptor, so long
//! ones are computed from the bitmaps.
//!
//! **Crash safety.** Linux reads superblock and descriptors before it replays the journal, and
//! would take new descriptors from there for old ones. So the change is written in place, with a
//! flush after each step:
//!
//! ```text
//! 1. the superblock, marked as having errors
//! 2. the copies of superblock and descriptors, as they are
//! 3. zeroes over the table, and over what it will take; with one group, behind its descriptor
//! 4. bitmaps and the inode of reserved blocks, if the table gets longer
//! 5. the new superblock, marked as having errors
//! 6. the new table
//! 7. the same as 4, if the table gets shorter
//! 8. the copies: tables, then superblocks
//! 9. the new superblock
//! ```
//!
//! From step 3 to step 6 the table has descriptors of the layout that the superblock names, or
//! zeroes. A descriptor of zeroes is valid nowhere: Linux does not mount it for writing, and a
//! check takes the places of bitmaps and inode tables from a copy, in the layout of that copy.
//!
//! Steps 4 and 7 are where they are so that the inode of reserved blocks never refers to a block of
//! a table, whichever layout a repair chooses. Otherwise e2fsck 1.47.0 would take descriptors for
//! pointers, and need a second run.
//!
//! A file system of one group has no copy, and needs none: the first 32 bytes of its only
//! descriptor stay the same but for the checksum. Step 3 zeroes the 32 bytes behind them, which
//! become the high half: an old descriptor of a group that a shrink took away may lie there. A file
//! system of several groups without a copy is refused.
//!
//! Memory: the new table. If table and reserved blocks together get another end, also the places of
//! all bitmaps and inode tables, and the block bitmap of each group with a copy.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;

use fourscore_ondisk::features::{Compat, Incompat};
use fourscore_ondisk::group::{BitmapSummary, GroupDesc, GroupDescMut, GroupFlags, RawGroupDesc};
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, State, Superblock};
use fourscore_ondisk::{GroupNr, PhysBlock, RawSuperblock};
use zerocopy::IntoBytes as _;

use crate::bitmap;
use crate::desc_table::{self, Tables};
use crate::error::{ResizeError, Result};
use crate::resize_inode;
use crate::volume::{Volume, add_free_clusters};

/// How long descriptors of groups are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 32 bytes: without `64bit`, for less than 2^32 blocks.
    Narrow,
    /// 64 bytes: with `64bit`.
    Wide,
}

const WIDE_BYTES: u16 = 64;
const NARROW_BYTES: u16 = 32;
/// The most clusters and inodes of a group that a narrow descriptor counts.
const MOST_NARROW: u32 = 65_528;

/// Gives descriptors a width; does nothing if they have it already.
pub(crate) fn set(volume: &mut Volume<'_>, width: Width) -> Result<()> {
    let is_wide = volume.sb().features().incompat.contains(Incompat::BIT64);
    if is_wide == (width == Width::Wide) {
        return Ok(());
    }
    let old = volume.on_device()?;
    let new = target(old.sb(), width)?;
    volume.set_superblock(new.raw())?;
    fill_table(volume, &old)?;
    let free = move_end(volume, &old)? + resize_inode::update(volume, old.sb())?;
    let mut raw = *volume.sb().raw();
    add_free_clusters(&mut raw, old.sb(), free);
    // Linux computes it where it is 0, as resize2fs leaves it.
    raw.s_overhead_clusters = 0.into();
    volume.set_superblock(&raw)?;
    write(volume, &old)
}

/// The superblock afterwards, but for its counts.
fn target(old: &Superblock, width: Width) -> Result<Superblock> {
    let (geometry, features) = (old.geometry(), old.features());
    let refused = |why: &str| Err(ResizeError::Unsupported(why.into()));
    if geometry.first_meta_bg().is_some() {
        return refused(
            "with meta_bg, other blocks would have to move: resize2fs -b or -s does it",
        );
    }
    if geometry.groups() > 1 && geometry.groups_with_super().nth(1).is_none() {
        return refused("there is no copy of its descriptors, which a crash could damage");
    }
    let mut raw = *old.raw();
    let (incompat, bytes) = match width {
        Width::Wide if !features.incompat.contains(Incompat::EXTENTS) => {
            return refused("64bit needs the feature extent: tune -O extent");
        }
        Width::Wide => (features.incompat | Incompat::BIT64, WIDE_BYTES),
        Width::Narrow => {
            let per_group = geometry.clusters_per_group();
            let per_group = per_group.max(geometry.inodes_per_group());
            if geometry.blocks().0 > u32::MAX.into() || per_group > MOST_NARROW {
                return refused("it is too large for descriptors of 32 bytes");
            }
            (features.incompat - Incompat::BIT64, NARROW_BYTES)
        }
    };
    raw.s_feature_incompat = incompat.bits().into();
    raw.s_desc_size = bytes.into();
    // These mean something only with 64bit, and are 0 for less than 2^32 blocks.
    raw.s_blocks_count_hi = 0.into();
    raw.s_r_blocks_count_hi = 0.into();
    raw.s_free_blocks_count_hi = 0.into();
    let new = sealed(raw, old)?;
    if features.compat.contains(Compat::RESIZE_INODE) {
        let most = u32::try_from(geometry.block_size().bytes() / 4).unwrap_or(u32::MAX);
        let end = geometry.desc_blocks() + u32::from(old.reserved_gdt_blocks());
        let left = end.saturating_sub(new.geometry().desc_blocks()).min(most);
        let left = u16::try_from(left).map_err(ResizeError::corrupt)?;
        raw.s_reserved_gdt_blocks = left.into();
    }
    sealed(raw, old)
}

fn sealed(mut raw: RawSuperblock, old: &Superblock) -> Result<Superblock> {
    if old.has_metadata_csum() {
        raw.seal();
    }
    Superblock::try_from(&raw).map_err(ResizeError::corrupt)
}

/// Adds all descriptors to the changes, in the layout of `volume`.
fn fill_table(volume: &mut Volume<'_>, old: &Volume<'_>) -> Result<()> {
    let geometry = *volume.geometry();
    let table = geometry.primary_table();
    for block in table.start.0 + 1..table.end.0 {
        volume.set(PhysBlock(block), vec![0; geometry.block_size().bytes()]);
    }
    for group in (0..geometry.groups()).map(GroupNr) {
        let desc = old.desc(group)?;
        let sums = Sums::of(volume.sb(), old, &desc, group)?;
        volume.change_desc(group, |bytes, sb| put(bytes, sb, &desc, &sums))?;
    }
    Ok(())
}

/// What a long descriptor says of the bitmaps of its group, where they were written.
#[derive(Default)]
struct Sums {
    blocks: Option<BitmapSummary>,
    inodes: Option<BitmapSummary>,
}

impl Sums {
    fn of(new: &Superblock, old: &Volume<'_>, desc: &GroupDesc, group: GroupNr) -> Result<Self> {
        let is_wide = new.features().incompat.contains(Incompat::BIT64);
        if !is_wide || !new.has_metadata_csum() {
            return Ok(Self::default());
        }
        let geometry = new.geometry();
        let (clusters, most) = (
            geometry.group_clusters(group),
            geometry.clusters_per_group(),
        );
        let inodes = geometry.inodes_per_group();
        let was_written = |flag| !desc.flags().contains(flag);
        let mut sums = Self::default();
        if was_written(GroupFlags::BLOCK_UNINIT) {
            let bits = old.read(desc.block_bitmap())?;
            sums.blocks = Some(BitmapSummary::of(&bits, clusters, most, new));
        }
        if was_written(GroupFlags::INODE_UNINIT) {
            let bits = old.read(desc.inode_bitmap())?;
            sums.inodes = Some(BitmapSummary::of(&bits, inodes, inodes, new));
        }
        Ok(sums)
    }
}

/// Writes a descriptor like `old`.
fn put(bytes: &mut [u8], sb: &Superblock, old: &GroupDesc, sums: &Sums) -> Result<()> {
    bytes.fill(0);
    let low = bytes.get_mut(..size_of::<RawGroupDesc>());
    let low = low.ok_or_else(|| ResizeError::corrupt("a descriptor of less than 32 bytes"))?;
    low.copy_from_slice(old.raw().as_bytes());
    let mut desc = GroupDescMut::new(bytes, sb).map_err(ResizeError::corrupt)?;
    if let Some(sum) = &sums.blocks {
        desc.set_block_bitmap(sum);
    }
    if let Some(sum) = &sums.inodes {
        desc.set_inode_bitmap(sum);
    }
    let places = |desc: &GroupDesc| (desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table());
    let new = GroupDesc::unchecked(bytes, sb).map_err(ResizeError::corrupt)?;
    match places(&new) == places(old) {
        true => Ok(()),
        false => Err(ResizeError::corrupt("a descriptor with a place past 2^32")),
    }
}

/// Takes or frees the blocks by which table and reserved blocks together get longer or shorter, in
/// each group that has them. Returns the change of the number of free clusters.
fn move_end(volume: &mut Volume<'_>, old: &Volume<'_>) -> Result<i64> {
    let end = |sb: &Superblock| sb.geometry().desc_blocks() + u32::from(sb.reserved_gdt_blocks());
    let (before, after) = (end(old.sb()), end(volume.sb()));
    if after <= before {
        return desc_table::give_back(volume, after..before);
    }
    let tables = Tables::of(volume)?;
    let geometry = *volume.geometry();
    let mut free = 0;
    for group in geometry.groups_with_super() {
        free += take(volume, old, &tables, group, &(before..after))?;
    }
    Ok(free)
}

/// Marks the blocks behind a table of descriptors as used. The first of them may share the last
/// cluster of that table.
fn take(
    volume: &mut Volume<'_>,
    old: &Volume<'_>,
    tables: &Tables,
    group: GroupNr,
    blocks: &Range<u32>,
) -> Result<i64> {
    let blocks = desc_table::blocks_in(volume, group, blocks);
    let clusters = desc_table::clusters_of(volume, group, &blocks)?;
    // One that was never written is computed, and so has to be that of the old table.
    let mut bits = old.block_bitmap(group)?;
    let log = volume.geometry().blocks_per_cluster_log();
    let first = volume.geometry().group_first_block(group).0;
    // The first cluster may be one that the table has already.
    let is_shared = (blocks.start - first).trailing_zeros() < log;
    let fresh = clusters.start + u64::from(is_shared)..clusters.end;
    let is_used = fresh.clone().any(|bit| bitmap::is_set(&bits, bit));
    if is_used || tables.overlap(&blocks) {
        return Err(ResizeError::Unsupported(format!(
            "longer descriptors need {} more blocks in front of block {}, and other things are \
             there: resize2fs -b moves them",
            blocks.end - blocks.start,
            blocks.end
        )));
    }
    bitmap::fill(&mut bits, fresh, true);
    volume.set_block_bitmap(group, bits)
}

/// Writes the changes of `volume`: see the module.
fn write(volume: &mut Volume<'_>, old: &Volume<'_>) -> Result<()> {
    let (before, after) = (
        old.geometry().primary_table(),
        volume.geometry().primary_table(),
    );
    let table = before.start.0 + 1..before.end.0.max(after.end.0);
    let mut others = volume.take_changes();
    let mut behind = others.split_off(&after.end);
    let new_table = others.split_off(&PhysBlock(after.start.0 + 1));
    others.append(&mut behind);
    let gets_longer = volume.geometry().desc_size_bytes() > old.geometry().desc_size_bytes();
    write_superblock(volume, old.sb(), State::ERROR_FS)?;
    if volume.geometry().groups() > 1 {
        old.write_backups()?;
        let zeroes = vec![0; volume.block_bytes()];
        for block in table {
            volume.write_now(PhysBlock(block), &zeroes)?;
        }
        volume.device().flush()?;
    } else if gets_longer {
        old.clear_behind_descs()?;
        volume.device().flush()?;
    }
    if gets_longer {
        write_blocks(volume, &others)?;
    }
    let new = volume.sb().clone();
    write_superblock(volume, &new, State::ERROR_FS)?;
    write_blocks(volume, &new_table)?;
    if !gets_longer {
        write_blocks(volume, &others)?;
    }
    volume.write_backups()?;
    write_superblock(volume, &new, State::empty())
}

fn write_blocks(volume: &Volume<'_>, blocks: &BTreeMap<PhysBlock, Vec<u8>>) -> Result<()> {
    for (block, bytes) in blocks {
        volume.write_now(*block, bytes)?;
    }
    Ok(volume.device().flush()?)
}

/// Writes the superblock durably, with a mark beside its own state.
fn write_superblock(volume: &Volume<'_>, sb: &Superblock, mark: State) -> Result<()> {
    let mut raw = *sb.raw();
    raw.s_state = (raw.s_state.get() | mark.bits()).into();
    if sb.has_metadata_csum() {
        raw.seal();
    }
    let slice = [IoSlice::new(raw.as_bytes())];
    Ok(volume.device().write_fua(&slice, SUPERBLOCK_OFFSET_BYTES)?)
}
