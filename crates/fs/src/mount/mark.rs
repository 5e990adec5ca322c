//! **Purpose.** The fields of the superblock that mark a file system as mounted, and so say what
//! has to be done if the mount never ended.
//!
//! **Model.**
//! ```text
//!                          mounted                      unmounted
//! with a journal           needs_recovery               without it
//! without                  s_state without VALID_FS     with it
//! with an orphan file      orphan_present               without it, if the file is empty
//! ```
//! As in Linux, a file system with a journal stays "clean" in `s_state` while it is mounted: after
//! a crash it is recovered. One without a journal has to be checked after a crash, and is refused
//! for writing until then: its bitmaps may mark used blocks as free. Linux only warns.
//!
//! **Crash safety.** Mounting writes the superblock, durably, before the first transaction can be
//! durable. A mount that fails before its first transaction writes the previous superblock again.
//! Unmounting writes it after everything else is durable.

use std::io::IoSlice;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::superblock::{
    SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, State, Superblock,
};
use fourscore_ondisk::time::Timestamp;
use fourscore_ondisk::{PhysBlock, RawSuperblock};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::inode::orphans::Orphans;
use crate::mount::clock::now;
use crate::{Error, Result};

/// Whether a file system is mounted for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounted {
    /// Mounted. With `orphan_file` this also means that the file may hold entries.
    Yes,
    /// Mounted as before, after it was frozen.
    Again,
    No,
    /// Not mounted any more, but the orphan file holds entries.
    NoWithOrphans,
}

impl Mounted {
    /// Returns the mark for a file system that needs no recovery.
    pub(crate) fn left_behind(orphans: &Orphans) -> Self {
        if orphans.has_file_entries() {
            Self::NoWithOrphans
        } else {
            Self::No
        }
    }
}

/// Refuses a file system that has no journal and was not unmounted.
pub(crate) fn check_unmounted(superblock: &Superblock) -> Result<()> {
    if superblock.journal().is_some() || superblock.state().contains(State::VALID_FS) {
        return Ok(());
    }
    Err(Error::ReadOnly(
        "it has no journal and was not unmounted, so it has to be checked first".into(),
    ))
}

/// Returns the place of a part of the superblock: its block, and the range of bytes in the block.
pub(crate) fn superblock_part(core: &Core, part: Range<usize>) -> (PhysBlock, Range<usize>) {
    let block_bytes = core.geometry().block_size().bytes() as u64;
    let block = PhysBlock(SUPERBLOCK_OFFSET_BYTES / block_bytes);
    // The remainder is at most the superblock's own offset, so it fits.
    let start = usize::try_from(SUPERBLOCK_OFFSET_BYTES % block_bytes).unwrap_or(0);
    (block, start + part.start..start + part.end)
}

/// Writes into the superblock on the device whether the file system is mounted, and the free blocks
/// and inodes if they are known.
pub(crate) fn mark(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    mounted: Mounted,
    free: Option<(u64, u64)>,
) -> Result<()> {
    rewrite_superblock(device, superblock, |raw| {
        set_mounted(superblock, raw, mounted, free);
    })
}

/// Changes the superblock on the device, durably. No other thread may be writing it.
pub(crate) fn rewrite_superblock(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    change: impl FnOnce(&mut RawSuperblock),
) -> Result<()> {
    let mut raw = raw_superblock(device)?;
    change(&mut raw);
    if superblock.has_metadata_csum() {
        raw.seal();
    }
    let slice = IoSlice::new(raw.as_bytes());
    Ok(device.write_fua(&[slice], SUPERBLOCK_OFFSET_BYTES)?)
}

/// Writes the superblock that was read before a mark, durably: the mount has failed, and nothing
/// else of the file system was changed. No other thread may be writing it.
pub(crate) fn restore(device: &dyn BlockDevice, before: &RawSuperblock) -> Result<()> {
    let slice = IoSlice::new(before.as_bytes());
    Ok(device.write_fua(&[slice], SUPERBLOCK_OFFSET_BYTES)?)
}

/// Reads the superblock from the device.
pub(crate) fn raw_superblock(device: &dyn BlockDevice) -> Result<RawSuperblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    Ok(*RawSuperblock::from_bytes(&bytes)?)
}

fn set_mounted(
    superblock: &Superblock,
    raw: &mut RawSuperblock,
    mounted: Mounted,
    free: Option<(u64, u64)>,
) {
    let (low, high) = time_halves(now());
    (raw.s_wtime, raw.s_wtime_hi) = (low.into(), high);
    if mounted == Mounted::Yes {
        (raw.s_mtime, raw.s_mtime_hi) = (low.into(), high);
        raw.s_mnt_count = raw.s_mnt_count.get().wrapping_add(1).into();
    }
    set_state(superblock, raw, mounted);
    if let Some((blocks, inodes)) = free {
        let (low, high) = word_halves(blocks);
        raw.s_free_blocks_count_lo = low.into();
        if raw.features().incompat.contains(Incompat::BIT64) {
            raw.s_free_blocks_count_hi = high.into();
        }
        raw.s_free_inodes_count = u32::try_from(inodes).unwrap_or(u32::MAX).into();
    }
}

fn set_state(superblock: &Superblock, raw: &mut RawSuperblock, mounted: Mounted) {
    let is_mounted = matches!(mounted, Mounted::Yes | Mounted::Again);
    if superblock.journal().is_some() {
        let recover = Incompat::RECOVER.bits();
        let others = raw.s_feature_incompat.get() & !recover;
        let set = if is_mounted { recover } else { 0 };
        raw.s_feature_incompat = (others | set).into();
    } else {
        let mut state = State::from_bits_retain(raw.s_state.get());
        state.set(State::VALID_FS, !is_mounted);
        raw.s_state = state.bits().into();
    }
    let present = RoCompat::ORPHAN_PRESENT.bits();
    let ro_compat = raw.s_feature_ro_compat.get();
    let has_orphan_file = superblock.orphan_file_inode().is_some();
    match mounted {
        Mounted::Yes | Mounted::Again if has_orphan_file => {
            raw.s_feature_ro_compat = (ro_compat | present).into();
        }
        Mounted::No => raw.s_feature_ro_compat = (ro_compat & !present).into(),
        Mounted::Yes | Mounted::Again | Mounted::NoWithOrphans => {}
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a number")]
fn word_halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the superblock keeps 40 bits"
)]
pub(crate) fn time_halves(time: Timestamp) -> (u32, u8) {
    let seconds = time.seconds();
    (seconds as u32, (seconds >> 32) as u8)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use fourscore_block::{DeviceOp, FaultyDevice, RamDevice, Rule};
    use fourscore_sync::Arc;
    use fourscore_testkit::image::{Image, MiB};
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::raw_superblock;
    use crate::{Fs, MountOptions};

    /// A mount of which one read fails, whichever it is.
    #[test]
    fn a_mount_that_fails_leaves_no_mark() {
        require!(Need::Program("mke2fs"));
        for features in [&["^has_journal", "quota"][..], &["quota"], &["orphan_file"]] {
            let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(1024);
            let image = image.features(features).make().unwrap();
            let before = std::fs::read(image.path()).unwrap();
            let marks = |device: &RamDevice| {
                let raw = raw_superblock(device).unwrap();
                let (incompat, ro_compat) = (raw.s_feature_incompat, raw.s_feature_ro_compat);
                (raw.s_state.get(), incompat.get(), ro_compat.get())
            };
            let unmarked = marks(&RamDevice::from_bytes(&before));
            let (mut nth, mut failures) = (1, 0);
            loop {
                let inner = Arc::new(RamDevice::from_bytes(&before));
                let device = Arc::new(FaultyDevice::new(Arc::clone(&inner) as _));
                device.add(Rule::nth(DeviceOp::Read, nth));
                let mounted = Fs::mount(Arc::clone(&device) as _, &MountOptions::new());
                let has_struck = device.has_struck();
                device.heal();
                match mounted {
                    Ok(fs) => fs.unmount().unwrap(),
                    Err(error) => {
                        failures += 1;
                        let what = format!("{features:?}, read {nth}: {error}");
                        assert_eq!(marks(&inner), unmarked, "{what}");
                    }
                }
                if !has_struck {
                    break;
                }
                nth += 1;
            }
            // Reads before the mark, of the superblock and the group descriptors, and after it.
            assert!(failures > 4, "{features:?}: {failures}");
        }
    }
}
