//! **Purpose.** Writes the changes of a repair to the image.
//!
//! **Crash safety.** The order, with a flush after each step:
//! ```text
//! 1. the superblock as it was, marked as having errors
//! 2. blocks that nothing referred to: new nodes, copies of shared blocks, new directories
//! 3. everything else but bitmaps and descriptors: inodes, directories, the journal
//! 4. bitmaps and descriptors
//! 5. the superblock and its backups, as they are now
//! ```
//! Nothing refers to the blocks of step 2 before step 3, so a file that the repair gives a copy
//! never maps a block that was not written. A crash within step 3 leaves old and new inodes and
//! directories next to each other: a next repair finds what does not fit, as it would after a
//! damage. Bitmaps follow what they are made of; no file system that is mounted in between takes a
//! block that is in use, because the superblock says that it has errors and that a check is due.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::RoCompat;
use fourscore_ondisk::superblock::{
    SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, State as SuperState,
};
use fourscore_ondisk::{GroupNr, RawSuperblock, Superblock};
use zerocopy::{FromBytes, IntoBytes};

use super::overlay::{Change, Overlay};
use crate::volume::Volume;

/// The longest write.
const MOST_BYTES: usize = 1 << 20;

/// When a change is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    New,
    Metadata,
    Bitmaps,
    Super,
}

/// Writes all changes to the base of the overlay, in order. `taken` are blocks that nothing
/// referred to before. Returns whether there were any changes.
///
/// # Errors
/// The device cannot be read or written.
pub(super) fn write_out(
    overlay: &Overlay,
    volume: &Volume,
    taken: &[Range<u64>],
    threads: NonZeroUsize,
) -> io::Result<bool> {
    write_to(&**overlay.base(), overlay, volume, taken, threads)
}

/// As [`write_out`], to a device that has what the base of the overlay has.
pub(super) fn write_to(
    device: &dyn BlockDevice,
    overlay: &Overlay,
    volume: &Volume,
    taken: &[Range<u64>],
    threads: NonZeroUsize,
) -> io::Result<bool> {
    let places = Places::of(volume, taken);
    let changes = overlay.changes(MOST_BYTES, threads);
    if changes.is_empty() {
        return Ok(false);
    }
    let mut superblock = [0; SUPERBLOCK_SIZE_BYTES];
    overlay.read_at(&mut superblock, SUPERBLOCK_OFFSET_BYTES)?;
    mark_errors(device, &superblock)?;
    let mut pieces: Vec<(Step, Change)> = Vec::new();
    for change in changes {
        split(&places, change, &mut pieces);
    }
    pieces.sort_by_key(|(step, change)| (*step, change.at));
    let mut last = None;
    for (step, change) in &pieces {
        if last.is_some_and(|last| last != *step) {
            device.flush()?;
        }
        last = Some(*step);
        if *step != Step::Super {
            device.write_at(&change.bytes, change.at)?;
        }
    }
    device.flush()?;
    let supers = pieces.iter().filter(|(step, _)| *step == Step::Super);
    for (_, change) in supers {
        device.write_at(&change.bytes, change.at)?;
    }
    // Also if it does not change: it is marked as having errors now.
    device.write_at(&superblock, SUPERBLOCK_OFFSET_BYTES)?;
    device.flush()?;
    Ok(true)
}

/// Marks the file system as having errors, in the superblock that is on the device, or in the new
/// one if that is none.
pub(super) fn mark_errors(
    device: &dyn BlockDevice,
    new: &[u8; SUPERBLOCK_SIZE_BYTES],
) -> io::Result<()> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    let is_sound =
        RawSuperblock::from_bytes(&bytes).is_ok_and(|raw| Superblock::try_from(raw).is_ok());
    if !is_sound {
        bytes = *new;
    }
    if let Ok(raw) = RawSuperblock::mut_from_bytes(&mut bytes) {
        let state = SuperState::from_bits_retain(raw.s_state.get()) | SuperState::ERROR_FS;
        raw.s_state = state.bits().into();
        if raw.features().ro_compat.contains(RoCompat::METADATA_CSUM) {
            raw.seal();
        }
        device.write_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)?;
    }
    device.flush()
}

/// Where the structures of each step lie, in bytes, sorted by their start.
struct Places {
    ranges: Vec<(Range<u64>, Step)>,
}

impl Places {
    fn of(volume: &Volume, taken: &[Range<u64>]) -> Self {
        let geometry = volume.geometry();
        let size = geometry.block_size();
        let bytes = |blocks: Range<u64>| blocks.start << size.bits()..blocks.end << size.bits();
        let mut ranges: Vec<(Range<u64>, Step)> = Vec::new();
        ranges.extend(taken.iter().map(|run| (bytes(run.clone()), Step::New)));
        let table = geometry.primary_table();
        ranges.push((bytes(table.start.0 + 1..table.end.0), Step::Bitmaps));
        let end = SUPERBLOCK_OFFSET_BYTES + SUPERBLOCK_SIZE_BYTES as u64;
        ranges.push((SUPERBLOCK_OFFSET_BYTES..end, Step::Super));
        for group in geometry.groups_with_super().filter(|group| group.0 > 0) {
            let start = geometry.group_first_block(group).0;
            ranges.push((bytes(start..start + 1), Step::Super));
        }
        for (nr, group) in (0..).map(GroupNr).zip(&volume.groups) {
            let own = [group.block_bitmap, group.inode_bitmap];
            for block in own.into_iter().flatten() {
                ranges.push((bytes(block.0..block.0 + 1), Step::Bitmaps));
            }
            if let Some(place) = geometry.desc_place(nr) {
                let block = place.block.0;
                ranges.push((bytes(block..block + 1), Step::Bitmaps));
            }
        }
        ranges.sort_by_key(|(range, step)| (range.start, *step));
        ranges.dedup();
        Self { ranges }
    }

    /// The step of the byte at `at`, and where the part that has it ends at the latest.
    fn step_at(&self, at: u64) -> (Step, u64) {
        let next = self.ranges.partition_point(|(range, _)| range.start <= at);
        // The ranges of one step may overlap, but none is longer than those before it reach.
        let before = self.ranges.get(..next).unwrap_or(&[]).iter().rev().take(4);
        let own = before.clone().find(|(range, _)| range.contains(&at));
        let limit = self
            .ranges
            .get(next)
            .map_or(u64::MAX, |(range, _)| range.start);
        match own {
            Some((range, step)) => (*step, range.end.min(limit)),
            None => (Step::Metadata, limit),
        }
    }
}

/// Splits a change where its step changes.
fn split(places: &Places, change: Change, pieces: &mut Vec<(Step, Change)>) {
    let Change { mut at, bytes } = change;
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (step, end) = places.step_at(at);
        let length = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
        let (now, later) = rest.split_at(length.clamp(1, rest.len()));
        pieces.push((
            step,
            Change {
                at,
                bytes: now.to_vec(),
            },
        ));
        at += now.len() as u64;
        rest = later;
    }
}
