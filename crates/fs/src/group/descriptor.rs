//! **Purpose.** Group descriptors, bitmaps and the blocks of inode tables.
//!
//! **Model.** A descriptor is decoded and verified on each use: that costs less than the cache
//! entry that it would need, and a file system of 15 TiB has 120 000 descriptors. Bitmaps of groups
//! that were never used (`BLOCK_UNINIT`, `INODE_UNINIT`) do not exist on disk; they are computed
//! from the geometry.
//!
//! A bitmap that was read from the device is verified by its last sealed summary. If it was not
//! sealed since the mount, or there is no mount, its descriptor decides; the descriptor in memory
//! may lag behind a bitmap that was sealed ([`crate::group::table`]).
//!
//! **Invariants.** A bitmap whose bytes are not verified yet holds what the last seal found, or
//! what the device held at the mount:
//! - A buffer with changes that are not sealed, or not at the home location yet, does not leave the
//!   cache, and its bytes are verified: the writer has tagged them. So a buffer that is loaded
//!   holds the bytes of the last seal, in the log or not, whichever checkpoints were made.
//! - A block that joined a transaction without a change is a copy of such bytes.
//! - A growth changes bitmaps of old groups as any writer does. The mount knows a new group only
//!   once all steps are in their places, so its descriptor is right until its first seal.
//! - Nothing but a seal writes a checksum of a bitmap, so the descriptor of a bitmap that was never
//!   sealed does not lag.
//!
//! A seal may come between a reader's look at the summary and its look at the bitmap. Seals are
//! counted: a mismatch is an error only if no seal came between, otherwise the reader looks again.
//!
//! **Locking.** None.

use std::ops::Range;

use fourscore_block::VerifiedAs;
use fourscore_ondisk::group::{GroupDesc, GroupFlags};
use fourscore_ondisk::superblock::MetadataChecksum;
use fourscore_ondisk::{BlockCount, BytePlace, Corrupt, GroupNr, PhysBlock};
use fourscore_sync::epoch;

use crate::core::Core;
use crate::group::table::{Map, SealMark};
use crate::guard::with_guard;
use crate::{Error, Result, metadata};

/// A bitmap of a group: bit i of byte i / 8 is set if cluster or inode i is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    bytes: Box<[u8]>,
    bits: u32,
}

impl Bitmap {
    /// Returns the bitmap of `bits` clusters or inodes that is in the block `bytes`.
    #[must_use]
    pub fn new(bytes: &[u8], bits: u32) -> Self {
        Self {
            bytes: bytes.into(),
            bits,
        }
    }

    /// Returns the number of clusters or inodes of the group.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.bits
    }

    /// Returns the bitmap block; bits behind the group's end have no meaning.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the group has no clusters or inodes; every valid group has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Whether number `bit` is in use; bits behind the end count as used.
    #[must_use]
    pub fn is_used(&self, bit: u32) -> bool {
        let byte = self.bytes.get(bit as usize / 8).copied().unwrap_or(0xff);
        bit >= self.bits || byte >> (bit % 8) & 1 == 1
    }

    /// Returns the number of free bits.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free_runs().map(|run| run.end - run.start).sum()
    }

    /// Returns the runs of free bits, in order.
    pub fn free_runs(&self) -> impl Iterator<Item = std::ops::Range<u32>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, Bit::Free)?;
            let end = self.next(start, Bit::Used).unwrap_or(self.bits);
            at = end;
            Some(start..end)
        })
    }

    /// Returns the first bit at or behind `from` with the value `want`; scans whole words at a
    /// time.
    fn next(&self, from: u32, want: Bit) -> Option<u32> {
        let invert = match want {
            Bit::Free => u64::MAX,
            Bit::Used => 0,
        };
        let mut at = from;
        while at < self.bits {
            let start = (at / 64) as usize * 8;
            let mut word = [0xff; 8];
            let rest = self.bytes.get(start..).unwrap_or_default();
            let there = rest.len().min(8);
            word[..there].copy_from_slice(&rest[..there]);
            let matching = (u64::from_le_bytes(word) ^ invert) >> (at % 64);
            if matching != 0 {
                return Some(at + matching.trailing_zeros()).filter(|&bit| bit < self.bits);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[derive(Clone, Copy)]
enum Bit {
    Free,
    Used,
}

/// See [`Fs::group`](crate::Fs::group).
pub(crate) fn desc(core: &Core, group: GroupNr) -> Result<GroupDesc> {
    let place = desc_place(core, group)?;
    with_guard(core, |guard| {
        let block = metadata::unchecked_metadata(core, place.block, guard)?;
        parsed(core, group, place, block)
    })
}

/// Passes every descriptor to `each`, in the order of groups; looks up each block of descriptors
/// once.
///
/// # Errors
/// As [`Fs::group`](crate::Fs::group).
pub(crate) fn for_each_group(core: &Core, each: impl FnMut(&GroupDesc)) -> Result<()> {
    for_groups(core, 0..core.geometry().groups(), each)
}

/// As [`for_each_group`], for the groups of a range.
pub(crate) fn for_groups(
    core: &Core,
    range: Range<u32>,
    mut each: impl FnMut(&GroupDesc),
) -> Result<()> {
    let geometry = core.geometry();
    let groups = range.end.min(geometry.groups());
    let in_block = geometry.descs_per_block().max(1);
    let mut first = range.start;
    while first < groups {
        let next = (first / in_block + 1).saturating_mul(in_block);
        let place = desc_place(core, GroupNr(first))?;
        with_guard(core, |guard| {
            // Nothing else is read, so `each` is called once for each descriptor.
            let block = metadata::unchecked_metadata(core, place.block, guard)?;
            let mut place = place;
            for group in first..next.min(groups) {
                each(&parsed(core, GroupNr(group), place, block)?);
                place.offset_bytes += geometry.desc_size_bytes();
            }
            Ok(())
        })?;
        first = next;
    }
    Ok(())
}

/// Returns the first block of the inode table of `group`. On a read-write mount it is in memory.
pub(crate) fn inode_table(core: &Core, group: GroupNr) -> Result<PhysBlock> {
    let live = core.live.as_ref();
    match live.and_then(|live| live.groups.get(group)) {
        Some(state) => Ok(state.inodes().table),
        None => Ok(desc(core, group)?.inode_table()),
    }
}

fn desc_place(core: &Core, group: GroupNr) -> Result<BytePlace> {
    let place = core.geometry().desc_place(group);
    place.ok_or(Error::InvalidArgument("no such block group"))
}

/// Decodes the descriptor at a place in a block.
fn parsed(core: &Core, group: GroupNr, place: BytePlace, block: &[u8]) -> Result<GroupDesc> {
    let bytes = block.get(place.offset_bytes..).unwrap_or_default();
    let desc = GroupDesc::parse(bytes, group, core.superblock());
    Ok(desc.map_err(|error| Corrupt::from(error).in_group(group).in_block(place.block))?)
}

/// See [`Fs::block_bitmap`](crate::Fs::block_bitmap).
pub(crate) fn block_bitmap(core: &Core, group: GroupNr) -> Result<Bitmap> {
    let desc = desc(core, group)?;
    let bits = core.geometry().group_clusters(group);
    if is_uninit(core, group, &desc, GroupFlags::BLOCK_UNINIT) {
        return unused_block_bitmap(core, group, bits);
    }
    with_block_bitmap(core, group, |bytes| Bitmap::new(bytes, bits))
}

/// Returns the result of `use_bytes` on the block bitmap of a group that has one on disk.
pub(crate) fn with_block_bitmap<T>(
    core: &Core,
    group: GroupNr,
    use_bytes: impl FnMut(&[u8]) -> T,
) -> Result<T> {
    with_bitmap(core, group, Map::Blocks, use_bytes)
}

/// Returns the result of `use_bytes` on a bitmap that is on disk. See the module's documentation
/// for what it is verified by.
fn with_bitmap<T>(
    core: &Core,
    group: GroupNr,
    map: Map,
    mut use_bytes: impl FnMut(&[u8]) -> T,
) -> Result<T> {
    let tag = VerifiedAs::of_group(map.structure(), group);
    loop {
        // Before the bitmap is looked up.
        let sealed = last_seal(core, group, map);
        let checksum = sealed.and_then(SealMark::checksum);
        let desc = desc(core, group)?;
        let verify = |bytes: &[u8]| match map {
            Map::Blocks => {
                let desc = checksum.map_or(desc, |sum| desc.with_block_bitmap_checksum(sum));
                desc.verify_block_bitmap(bytes, core.superblock())
            }
            Map::Inodes => {
                let desc = checksum.map_or(desc, |sum| desc.with_inode_bitmap_checksum(sum));
                desc.verify_inode_bitmap(bytes, core.superblock())
            }
        };
        let block = match map {
            Map::Blocks => desc.block_bitmap(),
            Map::Inodes => desc.inode_bitmap(),
        };
        let used = with_guard(core, |guard| {
            let bytes = metadata::tagged_metadata(core, block, tag, guard, |bytes| {
                verify(bytes).map_err(|error| Corrupt::from(error).in_group(group))
            })?;
            Ok(use_bytes(bytes))
        });
        match used {
            Err(Error::Corrupt(_)) if last_seal(core, group, map) != sealed => {}
            used => return used,
        }
    }
}

/// Returns the last seal of a bitmap; `None` in a file system that was opened for reading.
fn last_seal(core: &Core, group: GroupNr, map: Map) -> Option<SealMark> {
    let group = core.live.as_ref()?.groups.get(group)?;
    Some(group.place(map).seal_mark())
}

/// Whether a bitmap does not exist on disk. On a read-write mount the state of the groups decides,
/// otherwise the descriptor does.
fn is_uninit(core: &Core, group: GroupNr, desc: &GroupDesc, flag: GroupFlags) -> bool {
    match &core.live {
        Some(live) => live.groups.is_uninit(group, flag),
        None => has_uninit_groups(core) && desc.flags().contains(flag),
    }
}

/// See [`Fs::inode_bitmap`](crate::Fs::inode_bitmap).
pub(crate) fn inode_bitmap(core: &Core, group: GroupNr) -> Result<Bitmap> {
    let desc = desc(core, group)?;
    let bits = core.geometry().inodes_per_group();
    if is_uninit(core, group, &desc, GroupFlags::INODE_UNINIT) {
        let bytes = vec![0; core.geometry().block_size().bytes()];
        return Ok(Bitmap::new(&bytes, bits));
    }
    with_bitmap(core, group, Map::Inodes, |bytes| Bitmap::new(bytes, bits))
}

/// Whether descriptors have checksums; only then are the flags for unused groups valid.
pub(crate) fn has_uninit_groups(core: &Core) -> bool {
    core.superblock().metadata_checksum() != MetadataChecksum::None
}

/// Returns the bitmap of a group in which only metadata is in use: the metadata at the start of the
/// group, and the bitmaps and tables of all groups of its flex group that are placed in it.
pub(crate) fn unused_block_bitmap(core: &Core, group: GroupNr, bits: u32) -> Result<Bitmap> {
    let geometry = core.geometry();
    let mut bytes = vec![0; geometry.block_size().bytes()];
    let cluster_bits = geometry.blocks_per_cluster_log();
    let start = geometry.group_first_block(group).0;
    let end = start.saturating_add(u64::from(bits) << cluster_bits);
    // Tables of other groups may cross the border of this group, or lie elsewhere.
    let mut mark = |first: PhysBlock, count: u32| {
        let from = first.0.max(start);
        let until = first.0.saturating_add(count.into()).min(end);
        if from < until {
            let clusters = (from - start) >> cluster_bits..=(until - 1 - start) >> cluster_bits;
            set_bits(&mut bytes, clusters);
        }
    };
    mark(
        geometry.group_first_block(group),
        geometry.base_meta_blocks(group),
    );
    let flex = core.superblock().groups_per_flex().max(1);
    let first = group.0 / flex * flex;
    for member in first..first.saturating_add(flex).min(geometry.groups()) {
        let desc = desc(core, GroupNr(member))?;
        mark(desc.block_bitmap(), 1);
        mark(desc.inode_bitmap(), 1);
        mark(desc.inode_table(), geometry.inode_table_blocks());
    }
    Ok(Bitmap {
        bytes: bytes.into(),
        bits,
    })
}

/// Returns the result of `look` on a block of the inode table of `group`. If the block is not in
/// memory, the blocks around it that belong to the used part of the table are read with it.
///
/// A block in which inodes are being created stays a mutable copy. Otherwise each creation of a
/// file that is opened at once would copy the block.
pub(crate) fn look_at_inode_table<R>(
    core: &Core,
    group: GroupNr,
    block: PhysBlock,
    look: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    if let Some(buffer) = core.buffers.cached(block, &epoch::pin()) {
        return Ok(buffer.look(look));
    }
    let (geometry, desc) = (core.geometry(), desc(core, group)?);
    let unused = if has_uninit_groups(core) {
        desc.itable_unused()
    } else {
        0
    };
    let used = geometry.inodes_per_group().saturating_sub(unused);
    let used_blocks = used.div_ceil(geometry.inodes_per_block());
    let offset = block.0.saturating_sub(desc.inode_table().0);
    let together = u64::from(core.inode_readahead.blocks());
    let start = offset - offset % together.max(1);
    let end = (start + together).min(used_blocks.into());
    if offset < end {
        let first = PhysBlock(desc.inode_table().0 + start);
        core.buffers.read_ahead(first, BlockCount(end - start));
    }
    let buffer = core.buffers.load(block)?;
    Ok(look(buffer.bytes(&epoch::pin())))
}

/// Sets bits, whole bytes at a time where possible; ignores bits behind the end.
fn set_bits(bytes: &mut [u8], bits: std::ops::RangeInclusive<u64>) {
    let index = |bit: u64| usize::try_from(bit / 8).unwrap_or(usize::MAX);
    let (first, last) = (index(*bits.start()), index(*bits.end()));
    let head = 0xff_u8 << (bits.start() % 8);
    let tail = 0xff_u8 >> (7 - bits.end() % 8);
    for (at, byte) in bytes
        .iter_mut()
        .enumerate()
        .take(last.saturating_add(1))
        .skip(first)
    {
        let from = if at == first { head } else { 0xff };
        let until = if at == last { tail } else { 0xff };
        *byte |= from & until;
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod sealed_tests;

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_from_the_first_to_the_last() {
        for first in 0..40 {
            for last in first..40 {
                let mut bytes = [0; 4];
                set_bits(&mut bytes, first..=last);
                let mut expected = [0; 4];
                for bit in first..=last.min(31) {
                    expected[usize::try_from(bit / 8).unwrap()] |= 1 << (bit % 8);
                }
                assert_eq!(bytes, expected);
            }
        }
    }

    #[test]
    fn free_runs_follow_the_bits_and_stop_at_the_end() {
        let mut bytes = vec![0xff; 32];
        bytes[0] = 0b1110_0111; // 3, 4 free
        bytes[8] = 0; // 64..72 free
        bytes[12] = 0b0000_1111; // 100..104 free, cut at 102
        let bitmap = Bitmap::new(&bytes, 102);
        let runs: Vec<_> = bitmap.free_runs().collect();
        assert_eq!(runs, [3..5, 64..72, 100..102]);
        assert_eq!(bitmap.free(), 12);
        assert!(bitmap.is_used(102) && bitmap.is_used(u32::MAX));
    }

    #[test]
    fn a_bitmap_shorter_than_its_bits_counts_as_used() {
        let bitmap = Bitmap::new(&[0], 64);
        assert_eq!(bitmap.free_runs().collect::<Vec<_>>(), [0..8]);
    }
}
