//! **Purpose.** Writing a planned file system to a device.
//!
//! **Model.** What is known to read as zeroes is not written: a discarded image file stays sparse,
//! and groups that nobody uses cost their descriptor only. Everything else goes out in long
//! writes. The descriptors, with the checksums in them, are made by several threads.
//!
//! **Crash safety.** The old primary superblock is cleared and flushed first; the new one is
//! written after everything else is durable. So a cut leaves a whole file system or none, never
//! half of one.
//!
//! **Locking.** Threads share an iterator over parts of the descriptor table. No lock is held
//! across I/O.

use std::io::{ErrorKind, IoSlice};
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::group::{self, GroupFlags, RawGroupDesc, RawGroupDescHigh};
use fourscore_ondisk::superblock::{RawSuperblock, SUPERBLOCK_OFFSET_BYTES, State};
use fourscore_ondisk::{GroupNr, GroupOffset, PhysBlock};
use fourscore_sync::Mutex;
use fourscore_sync::thread;
use zerocopy::IntoBytes;

use super::error::{FormatError, FormatResult};
use super::options::OldContent;
use super::plan::Plan;
use super::superblock::{low, low16};
use super::tables::GroupPlan;

/// The part of the device in front of the block that holds the superblock, and up to where old
/// signatures are wiped.
const OLD_HEAD: Range<u64> = 0..4096;
/// What software RAID and others keep at the end of a device, in bytes.
const OLD_TAIL_BYTES: u64 = 64 << 10;
/// Groups whose bitmaps are made before they are written, or whose descriptors one thread makes.
const GROUPS_AT_ONCE: usize = 1024;
/// Pieces in one call to the device, below the limit of the system call.
const PIECES_PER_WRITE: usize = 512;
/// More threads than this only get in each other's way.
const MOST_THREADS: usize = 16;

/// A stretch of the device that is written in one piece.
struct Piece<'a> {
    block: u64,
    bytes: std::borrow::Cow<'a, [u8]>,
}

impl Plan {
    /// Writes the file system, which begins at the first byte of `device`. It is durable when the
    /// call returns.
    ///
    /// # Errors
    /// [`FormatError::Io`]; then the device holds no file system any more.
    pub fn write<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        self.prepare(device)?;
        self.complete(device)
    }

    /// The first half of [`Plan::write`]: the device holds no file system any more, and what must
    /// be zero is. A builder writes what it fills in after this.
    ///
    /// # Errors
    /// [`FormatError::Io`], and a device too small.
    pub fn prepare<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        if device.len_bytes() < geometry.size_bytes() {
            let why = format!(
                "the device has {} bytes, the file system {}",
                device.len_bytes(),
                geometry.size_bytes()
            );
            return Err(FormatError::option("size", why));
        }
        self.clear(device)
    }

    /// The second half of [`Plan::write`]: writes the metadata, and when all is durable the
    /// superblock.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub fn complete<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        let descriptors = self.descriptors()?;
        let raw = self.final_superblock(&descriptors);
        self.write_content(device, &raw, &descriptors)?;
        device.flush()?;
        device.write_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)?;
        device.flush()?;
        Ok(())
    }

    /// Wipes what was there and zeroes what must be zero.
    fn clear<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<()> {
        let size_bytes = self.superblock.geometry().size_bytes();
        if wipe(device, size_bytes, self.old_content, self.discard)? {
            return Ok(());
        }
        device.write_zeroes(size_bytes.saturating_sub(OLD_TAIL_BYTES)..size_bytes)?;
        let bits = self.superblock.geometry().block_size().bits();
        for run in merged(self.zero.iter().cloned().chain(self.tables_to_zero())) {
            device.write_zeroes(run.start << bits..run.end << bits)?;
        }
        Ok(())
    }

    /// Inode tables: whole where the descriptor promises it, else as far as inodes are in use.
    fn tables_to_zero(&self) -> impl Iterator<Item = Range<u64>> {
        let geometry = self.superblock.geometry();
        let (per_group, per_block) = (geometry.inodes_per_group(), geometry.inodes_per_block());
        let whole = u64::from(geometry.inode_table_blocks());
        let lazy = self.superblock.metadata_checksum()
            != fourscore_ondisk::superblock::MetadataChecksum::None;
        self.groups.iter().map(move |plan| {
            let blocks = if !lazy || plan.flags.contains(GroupFlags::INODE_ZEROED) {
                whole
            } else {
                u64::from((per_group - plan.itable_unused).div_ceil(per_block))
            };
            plan.inode_table..plan.inode_table + blocks
        })
    }

    /// The descriptor table, whole blocks.
    fn descriptors(&self) -> FormatResult<Vec<u8>> {
        let geometry = self.superblock.geometry();
        let bytes = geometry.desc_blocks() as usize * geometry.block_size().bytes();
        let mut table = vec![0; bytes];
        let part_bytes = GROUPS_AT_ONCE * geometry.desc_size_bytes();
        let parts = Mutex::new(table.chunks_mut(part_bytes).enumerate());
        let failed = Mutex::new(None);
        let work = || {
            loop {
                let part = parts.lock().next();
                let Some((index, part)) = part else { break };
                if let Err(error) = self.put_descriptors(part, index * GROUPS_AT_ONCE) {
                    failed.lock().get_or_insert(error);
                }
            }
        };
        in_threads(self.groups.len().div_ceil(GROUPS_AT_ONCE), work);
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(table),
        }
    }

    /// The descriptors of the groups from `first` on, as far as `part` goes.
    fn put_descriptors(&self, part: &mut [u8], first: usize) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        let mut bitmap = vec![0; geometry.block_size().bytes()];
        let groups = (0..geometry.groups()).zip(&self.groups).skip(first);
        let descs = part.chunks_exact_mut(geometry.desc_size_bytes());
        for (desc, (number, plan)) in descs.zip(groups) {
            self.put_descriptor(desc, GroupNr(number), plan, &mut bitmap)?;
        }
        Ok(())
    }

    fn put_descriptor(
        &self,
        desc: &mut [u8],
        number: GroupNr,
        plan: &GroupPlan,
        bitmap: &mut [u8],
    ) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        let blocks = geometry.group_blocks(number);
        let free = self.space.free_in(blocks.start.0..blocks.end.0);
        let free = free >> geometry.blocks_per_cluster_log();
        let free_inodes = u64::from(geometry.inodes_per_group() - plan.used_inodes);
        let mut bitmap_csums = [0; 2];
        if self.superblock.has_metadata_csum() {
            let seed = self.superblock.checksum_seed();
            if !plan.flags.contains(GroupFlags::BLOCK_UNINIT) {
                self.fill_block_bitmap(number, bitmap);
                let covered = &bitmap[..geometry.clusters_per_group() as usize / 8];
                bitmap_csums[0] = seed.start().update(covered).value();
            }
            if !plan.flags.contains(GroupFlags::INODE_UNINIT) {
                self.fill_inode_bitmap(plan, bitmap);
                let covered = &bitmap[..geometry.inodes_per_group() as usize / 8];
                bitmap_csums[1] = seed.start().update(covered).value();
            }
        }
        let [block_csum, inode_csum] = bitmap_csums.map(u64::from);
        let (dirs, unused) = (u64::from(plan.dirs), u64::from(plan.itable_unused));
        let raw = RawGroupDesc {
            bg_block_bitmap_lo: low(plan.block_bitmap),
            bg_inode_bitmap_lo: low(plan.inode_bitmap),
            bg_inode_table_lo: low(plan.inode_table),
            bg_free_blocks_count_lo: low16(free),
            bg_free_inodes_count_lo: low16(free_inodes),
            bg_used_dirs_count_lo: low16(dirs),
            bg_flags: plan.flags.bits().into(),
            bg_block_bitmap_csum_lo: low16(block_csum),
            bg_inode_bitmap_csum_lo: low16(inode_csum),
            bg_itable_unused_lo: low16(unused),
            ..RawGroupDesc::default()
        };
        let (base, more) = desc.split_at_mut(size_of::<RawGroupDesc>());
        base.copy_from_slice(raw.as_bytes());
        if let Some(more) = more.get_mut(..size_of::<RawGroupDescHigh>()) {
            let raw = RawGroupDescHigh {
                bg_block_bitmap_hi: low(plan.block_bitmap >> 32),
                bg_inode_bitmap_hi: low(plan.inode_bitmap >> 32),
                bg_inode_table_hi: low(plan.inode_table >> 32),
                bg_free_blocks_count_hi: low16(free >> 16),
                bg_free_inodes_count_hi: low16(free_inodes >> 16),
                bg_used_dirs_count_hi: low16(dirs >> 16),
                bg_itable_unused_hi: low16(unused >> 16),
                bg_block_bitmap_csum_hi: low16(block_csum >> 16),
                bg_inode_bitmap_csum_hi: low16(inode_csum >> 16),
                ..RawGroupDescHigh::default()
            };
            more.copy_from_slice(raw.as_bytes());
        }
        group::seal(desc, number, &self.superblock)
            .map_err(|error| FormatError::Invalid(error.to_string()))
    }

    /// Bits of taken clusters, of clusters that do not exist, and behind the last cluster.
    fn fill_block_bitmap(&self, number: GroupNr, bitmap: &mut [u8]) {
        let geometry = self.superblock.geometry();
        let log = geometry.blocks_per_cluster_log();
        let blocks = geometry.group_blocks(number);
        let clusters = geometry.clusters_per_group() as usize;
        bitmap.fill(0xff);
        bitmap[..clusters / 8].fill(0);
        let bit = |block: u64| usize::try_from((block - blocks.start.0) >> log).unwrap_or(clusters);
        for run in self.space.runs_in(blocks.start.0..blocks.end.0) {
            // A run ends with a cluster, or with the file system.
            set_bits(bitmap, bit(run.start)..bit(run.end + (1 << log) - 1));
        }
        set_bits(bitmap, bit(blocks.end.0)..clusters);
    }

    /// Inodes are used from the first on, without gaps.
    fn fill_inode_bitmap(&self, plan: &GroupPlan, bitmap: &mut [u8]) {
        let inodes = self.superblock.geometry().inodes_per_group() as usize;
        bitmap.fill(0xff);
        bitmap[..inodes / 8].fill(0);
        set_bits(bitmap, 0..plan.used_inodes as usize);
    }

    /// The primary superblock with what is known only now.
    fn final_superblock(&self, descriptors: &[u8]) -> RawSuperblock {
        let mut raw = *self.superblock.raw();
        if raw.s_kbytes_written.get() > 0 {
            let block_bytes = self.superblock.geometry().block_size().bytes() as u64;
            let bitmaps: u64 = self.groups.iter().map(|plan| self.bitmaps_of(plan)).sum();
            let files = self.blocks.len() as u64 + 1;
            let copies = self.backups().count() as u64 + 1;
            let table = descriptors.len() as u64 + block_bytes;
            let bytes = (bitmaps + files) * block_bytes + copies * table;
            raw.s_kbytes_written = (1 + (bytes >> 10)).into();
        }
        self.seal(&mut raw);
        raw
    }

    fn bitmaps_of(&self, plan: &GroupPlan) -> u64 {
        let uninit = [GroupFlags::BLOCK_UNINIT, GroupFlags::INODE_UNINIT];
        2 - uninit
            .iter()
            .filter(|&&flag| plan.flags.contains(flag))
            .count() as u64
    }

    fn seal(&self, raw: &mut RawSuperblock) {
        if self.superblock.has_metadata_csum() {
            raw.seal();
        }
    }

    /// Writes everything but the primary superblock. One thread does: hosts let only one at a time
    /// write to an image file, and others who try cost more than they prepare.
    fn write_content<D: BlockDevice + ?Sized>(
        &self,
        device: &D,
        raw: &RawSuperblock,
        descriptors: &[u8],
    ) -> FormatResult<()> {
        let geometry = self.superblock.geometry();
        for number in (0..geometry.groups()).map(GroupNr) {
            if geometry.base_meta_blocks(number) > 0 {
                self.write_pieces(device, self.base(number, raw, descriptors))?;
            }
        }
        for start in (0..self.groups.len()).step_by(GROUPS_AT_ONCE) {
            let end = (start + GROUPS_AT_ONCE).min(self.groups.len());
            self.write_pieces(device, self.bitmaps(start..end))?;
        }
        self.write_pieces(device, self.files())
    }

    fn bitmaps(&self, groups: Range<usize>) -> Vec<Piece<'_>> {
        let block_bytes = self.superblock.geometry().block_size().bytes();
        let checksums = self.superblock.metadata_checksum()
            != fourscore_ondisk::superblock::MetadataChecksum::None;
        let uninit = |plan: &GroupPlan, flag| checksums && plan.flags.contains(flag);
        let mut pieces = Vec::new();
        for index in groups {
            let Some(plan) = self.groups.get(index) else {
                continue;
            };
            let number = GroupNr(u32::try_from(index).unwrap_or(u32::MAX));
            if !uninit(plan, GroupFlags::BLOCK_UNINIT) {
                let mut bytes = vec![0; block_bytes];
                self.fill_block_bitmap(number, &mut bytes);
                pieces.push(Piece::owned(plan.block_bitmap, bytes));
            }
            if !uninit(plan, GroupFlags::INODE_UNINIT) {
                let mut bytes = vec![0; block_bytes];
                self.fill_inode_bitmap(plan, &mut bytes);
                pieces.push(Piece::owned(plan.inode_bitmap, bytes));
            }
        }
        pieces
    }

    /// Superblock and descriptors of a group; of the first only the descriptors, since its
    /// superblock comes last.
    fn base<'a>(
        &self,
        number: GroupNr,
        raw: &RawSuperblock,
        descriptors: &'a [u8],
    ) -> Vec<Piece<'a>> {
        let geometry = self.superblock.geometry();
        let block_bytes = geometry.block_size().bytes();
        let has_super = geometry.has_super(number);
        let start = match number.0 {
            0 => geometry.super_block().0,
            _ => geometry.group_first_block(number).0,
        };
        let mut pieces = Vec::new();
        if has_super && number.0 > 0 {
            let mut copy = *raw;
            let state = State::from_bits_retain(raw.s_state.get()) - State::VALID_FS;
            copy.s_state = state.bits().into();
            copy.s_block_group_nr = low16(number.0.min(u16::MAX.into()).into());
            self.seal(&mut copy);
            let mut bytes = copy.as_bytes().to_vec();
            bytes.resize(block_bytes, 0);
            pieces.push(Piece::owned(start, bytes));
        }
        let meta_bg = self
            .superblock
            .features()
            .incompat
            .contains(Incompat::META_BG);
        let part = if meta_bg {
            let meta_group = (number.0 / geometry.descs_per_block()) as usize;
            let place = number.0 % geometry.descs_per_block();
            let holds = place <= 1 || place == geometry.descs_per_block() - 1;
            let at = meta_group * block_bytes;
            if holds { at..at + block_bytes } else { 0..0 }
        } else if has_super {
            0..descriptors.len()
        } else {
            0..0
        };
        if let Some(bytes) = descriptors.get(part).filter(|bytes| !bytes.is_empty()) {
            pieces.push(Piece {
                block: start + u64::from(has_super),
                bytes: bytes.into(),
            });
        }
        pieces
    }

    /// Blocks with content of their own, and the blocks of inode tables with inodes in use.
    fn files(&self) -> Vec<Piece<'_>> {
        let geometry = self.superblock.geometry();
        let mut pieces: Vec<Piece<'_>> = self
            .blocks
            .iter()
            .map(|(&block, bytes)| Piece {
                block,
                bytes: bytes.as_slice().into(),
            })
            .collect();
        let mut tables = std::collections::BTreeMap::new();
        for (&number, inode) in &self.inodes {
            let group = (number - 1) / geometry.inodes_per_group();
            let index = GroupOffset((number - 1) % geometry.inodes_per_group());
            let Some(plan) = self.groups.get(group as usize) else {
                continue;
            };
            let place = geometry.inode_place(PhysBlock(plan.inode_table), index);
            let block: &mut Vec<u8> = tables
                .entry(place.block.0)
                .or_insert_with(|| vec![0; geometry.block_size().bytes()]);
            super::files::put(block, place.offset_bytes, inode);
        }
        pieces.extend(
            tables
                .into_iter()
                .map(|(block, bytes)| Piece::owned(block, bytes)),
        );
        pieces
    }

    /// Writes pieces, those that lie side by side in one call.
    fn write_pieces<D: BlockDevice + ?Sized>(
        &self,
        device: &D,
        mut pieces: Vec<Piece<'_>>,
    ) -> FormatResult<()> {
        let bits = self.superblock.geometry().block_size().bits();
        pieces.sort_unstable_by_key(|piece| piece.block);
        let mut rest = pieces.as_slice();
        while let Some(first) = rest.first() {
            let mut end = first.block;
            let mut count = 0;
            for piece in rest.iter().take(PIECES_PER_WRITE) {
                if piece.block != end {
                    break;
                }
                end += piece.bytes.len() as u64 >> bits;
                count += 1;
            }
            let (now, later) = rest.split_at(count);
            let slices: Vec<_> = now.iter().map(|piece| IoSlice::new(&piece.bytes)).collect();
            device.write_vectored_at(&slices, first.block << bits)?;
            rest = later;
        }
        Ok(())
    }
}

impl Piece<'_> {
    fn owned(block: u64, bytes: Vec<u8>) -> Self {
        Self {
            block,
            bytes: bytes.into(),
        }
    }
}

/// Clears the superblock that was there, for good, and discards the first `size_bytes`. Says
/// whether these read as zeroes now.
pub(super) fn wipe<D: BlockDevice + ?Sized>(
    device: &D,
    size_bytes: u64,
    old_content: OldContent,
    discard: bool,
) -> FormatResult<bool> {
    if old_content == OldContent::AllZero {
        return Ok(true);
    }
    device.write_zeroes(OLD_HEAD.start..OLD_HEAD.end.min(size_bytes))?;
    device.flush()?;
    if discard && device.hints().discard {
        match device.discard(0..size_bytes) {
            Ok(()) => return Ok(old_content == OldContent::ZeroAfterDiscard),
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Runs `work` in as many threads as there are cores, but not more than `jobs`.
fn in_threads(jobs: usize, work: impl Fn() + Sync) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(MOST_THREADS).min(jobs);
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(&work);
        }
        work();
    });
}

/// Sets bits, the lowest of each byte first.
fn set_bits(bitmap: &mut [u8], bits: Range<usize>) {
    let Range { start, end } = bits;
    if start >= end {
        return;
    }
    let (first, last) = (start / 8, (end - 1) / 8);
    let head = 0xff_u8 << (start % 8);
    let tail = 0xff_u8 >> (7 - (end - 1) % 8);
    if first == last {
        bitmap[first] |= head & tail;
        return;
    }
    bitmap[first] |= head;
    bitmap[first + 1..last].fill(0xff);
    bitmap[last] |= tail;
}

/// Runs in order, those that touch as one.
fn merged(runs: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut runs: Vec<_> = runs.collect();
    runs.sort_unstable_by_key(|run| run.start);
    let mut found: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match found.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => found.push(run),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_that_touch_are_zeroed_in_one_call() {
        let runs = [5..7, 1..3, 3..4, 10..11];
        assert_eq!(merged(runs.into_iter()), [1..4, 5..7, 10..11]);
    }

    proptest! {
        #[test]
        fn exactly_the_bits_of_the_range_are_set(start in 0usize..64, length in 0usize..64) {
            let end = (start + length).min(64);
            let mut bitmap = [0; 8];
            set_bits(&mut bitmap, start..end);
            for bit in 0..64 {
                let set = bitmap[bit / 8] >> (bit % 8) & 1 == 1;
                prop_assert_eq!(set, (start..end).contains(&bit));
            }
        }
    }
}
