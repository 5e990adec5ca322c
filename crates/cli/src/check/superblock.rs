//! **Purpose.** `check --superblock BLOCK`: a device on which a backup is in the place of the
//! primary superblock.
//!
//! **Model.** Reads of the primary superblock return the backup until it is written. A repair is
//! made as if the backup were the primary; [`Substituted::settle`] then writes it, unless the
//! repair has written it already. Backups do not say that the log is dirty; if the primary
//! superblock of the same file system does, so does the backup in its place, as synced changes are
//! in the log.
//!
//! **Crash safety.** The device has the backup in its place only after the repair. If that is cut
//! off, it can be made again with the same backup.
//!
//! **References.** e2fsck(8), `-b` and `-B`.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_block::{BlockDevice, Hints};
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_ondisk::{BlockSize, PhysBlock, RawSuperblock, Superblock};
use fourscore_sync::{Arc, RwLock};
use zerocopy::IntoBytes;

/// The bytes of the primary superblock.
const PLACE: Range<u64> =
    SUPERBLOCK_OFFSET_BYTES..SUPERBLOCK_OFFSET_BYTES + SUPERBLOCK_SIZE_BYTES as u64;
/// The logarithms of the block sizes from 1 KiB to 64 KiB, as superblocks have them.
const LOGS: std::ops::RangeInclusive<u32> = 0..=6;

/// The device.
#[derive(Debug)]
pub(super) struct Substituted {
    base: Arc<dyn BlockDevice>,
    /// The superblock in the place of the primary one; `None` when that was written.
    superblock: RwLock<Option<[u8; SUPERBLOCK_SIZE_BYTES]>>,
}

impl Substituted {
    /// Takes the backup in a block, as [`find`] does.
    ///
    /// # Errors
    /// Those of [`find`].
    pub(super) fn new(
        base: Arc<dyn BlockDevice>,
        block: PhysBlock,
        block_bytes: Option<u32>,
    ) -> io::Result<Self> {
        let raw = find(&*base, block, block_bytes)?;
        let mut found = [0; SUPERBLOCK_SIZE_BYTES];
        found.copy_from_slice(as_primary(&*base, raw)?.as_bytes());
        Ok(Self {
            base,
            superblock: RwLock::new(Some(found)),
        })
    }

    /// Whether the superblock differs from that of the device.
    pub(super) fn is_other(&self) -> io::Result<bool> {
        let Some(superblock) = *self.superblock.read() else {
            return Ok(false);
        };
        let mut before = [0; SUPERBLOCK_SIZE_BYTES];
        self.base.read_at(&mut before, PLACE.start)?;
        Ok(before != superblock)
    }

    /// Writes the superblock if it differs from that of the device; whether it was written.
    pub(super) fn settle(&self) -> io::Result<bool> {
        let Some(superblock) = *self.superblock.read() else {
            return Ok(true);
        };
        if !self.is_other()? {
            return Ok(false);
        }
        self.base.write_at(&superblock, PLACE.start)?;
        self.base.flush()?;
        *self.superblock.write() = None;
        Ok(true)
    }
}

/// The superblock in a block. Without `block_bytes`, all sizes of blocks are tried.
///
/// # Errors
/// There is no valid superblock of a file system with blocks of that size; or the host's.
pub(crate) fn find(
    device: &dyn BlockDevice,
    block: PhysBlock,
    block_bytes: Option<u32>,
) -> io::Result<RawSuperblock> {
    let sizes = LOGS.filter_map(BlockSize::from_log);
    let is_wanted = |size: &BlockSize| block_bytes.is_none_or(|n| size.bytes() == n as usize);
    for size in sizes.filter(is_wanted) {
        if let Some(raw) = read(device, size, block)? {
            return Ok(raw);
        }
    }
    let why = format!("block {block} has no valid superblock of a file system with such blocks");
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

/// The superblock in a block. `None` if there is no valid one.
fn read(
    device: &dyn BlockDevice,
    size: BlockSize,
    block: PhysBlock,
) -> io::Result<Option<RawSuperblock>> {
    let bytes = size.bytes() as u64;
    let at = match block.0 {
        // The first block of larger ones begins with the boot sector.
        0 => Some(SUPERBLOCK_OFFSET_BYTES),
        block => block.checked_mul(bytes),
    };
    let end = at.and_then(|at| at.checked_add(SUPERBLOCK_SIZE_BYTES as u64));
    let Some(at) = at.filter(|_| end.is_some_and(|end| end <= device.len_bytes())) else {
        return Ok(None);
    };
    let mut found = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut found, at)?;
    let raw = RawSuperblock::from_bytes(&found).ok().copied();
    let has_size = |raw: &RawSuperblock| {
        let sb = Superblock::try_from(raw);
        sb.is_ok_and(|sb| sb.geometry().block_size() == size)
    };
    Ok(raw.filter(has_size))
}

/// A backup as it is in the place of the primary superblock.
fn as_primary(device: &dyn BlockDevice, mut backup: RawSuperblock) -> io::Result<RawSuperblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, PLACE.start)?;
    let primary = RawSuperblock::from_bytes(&bytes).ok();
    let primary = primary.filter(|raw| Superblock::try_from(*raw).is_ok());
    let is_dirty = primary.is_some_and(|primary| {
        let incompat = primary.features().incompat;
        primary.s_uuid == backup.s_uuid && incompat.contains(Incompat::RECOVER)
    });
    if is_dirty {
        let incompat = backup.features().incompat | Incompat::RECOVER;
        backup.s_feature_incompat = incompat.bits().into();
    }
    backup.s_block_group_nr = 0.into();
    if backup
        .features()
        .ro_compat
        .contains(RoCompat::METADATA_CSUM)
    {
        backup.seal();
    }
    Ok(backup)
}

/// The common bytes of a buffer at `at` and the primary superblock: where they begin in each, and
/// how many they are.
fn common(at: u64, len: usize) -> Option<(usize, usize, usize)> {
    let start = at.max(PLACE.start);
    let end = at.saturating_add(len as u64).min(PLACE.end);
    let count = usize::try_from(end.checked_sub(start)?).ok()?;
    let in_buffer = usize::try_from(start - at).ok()?;
    let in_place = usize::try_from(start - PLACE.start).ok()?;
    (count > 0).then_some((in_buffer, in_place, count))
}

impl BlockDevice for Substituted {
    fn len_bytes(&self) -> u64 {
        self.base.len_bytes()
    }

    fn hints(&self) -> Hints {
        self.base.hints()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs.iter_mut() {
            self.base.read_at(buf, at)?;
            if let Some(superblock) = &*self.superblock.read()
                && let Some((in_buffer, in_place, count)) = common(at, buf.len())
            {
                let (to, from) = (in_buffer..in_buffer + count, in_place..in_place + count);
                if let (Some(to), Some(from)) = (buf.get_mut(to), superblock.get(from)) {
                    to.copy_from_slice(from);
                }
            }
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        if common(offset, len).is_some() {
            // The bytes around what is written are those of the backup, too.
            self.settle()?;
        }
        self.base.write_vectored_at(bufs, offset)?;
        if common(offset, len).is_some() {
            *self.superblock.write() = None;
        }
        Ok(())
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.base.forget_cached(range);
    }

    fn flush(&self) -> io::Result<()> {
        self.base.flush()
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.base.discard(range)
    }
}

#[cfg(test)]
mod tests {
    use fourscore_block::RamDevice;

    use super::*;

    #[test]
    fn the_common_bytes_of_a_buffer_and_the_superblock() {
        assert_eq!(common(0, 1024), None);
        assert_eq!(common(0, 4096), Some((1024, 0, 1024)));
        assert_eq!(common(1024, 512), Some((0, 0, 512)));
        assert_eq!(common(1536, 4096), Some((0, 512, 512)));
        assert_eq!(common(2048, 1), None);
    }

    #[test]
    fn a_device_without_a_backup_is_refused() {
        let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::new(1 << 20));
        for (block, block_bytes) in [(1, None), (0, Some(4096)), (u64::MAX, None), (1, Some(3))] {
            let refused = Substituted::new(Arc::clone(&device), PhysBlock(block), block_bytes);
            assert!(refused.is_err(), "{block}");
        }
    }
}
