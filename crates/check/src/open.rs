//! **Purpose.** Opens the file system that is checked: finds a valid superblock, and has the
//! journal replayed in memory.
//!
//! **Model.** If the journal is dirty, the state after recovery is checked ([`replay`]); of a
//! damaged one, the state after a replay of what is intact, which a repair begins with. If it
//! cannot be recovered, or is on a device that was not given, that is a finding, and the blocks in
//! place are checked. If the primary superblock is invalid or gives a wrong place of the
//! descriptors, backups are tried where mke2fs puts the first one for each block size.
//!
//! **Crash safety.** Nothing is written to the device.

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::superblock::{
    JournalPlace, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, SuperblockError,
    SuperblockRejected,
};
use fourscore_ondisk::{BlockSize, InodeNr, PhysBlock, RawSuperblock, Superblock};
use fourscore_sync::Arc;

use crate::CheckError;
use crate::finding::Finding;
use crate::replay::{self, FastCommitted, FoundBy};
use crate::report::Findings;
use crate::text;

/// The file system to check.
pub(crate) struct Opened {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) sb: Superblock,
    /// Whether a mount would recover first, so that hints of the superblock are out of date.
    pub(crate) recovery: Recovery,
    /// What fast commits change beside the device, if there are any.
    pub(crate) fast_commits: Option<FastCommitted>,
}

/// What a mount would recover first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Nothing.
    None,
    /// Replay the journal.
    Journal,
    /// The same, but the log was found by the copy of its inode.
    JournalByCopy,
}

/// Opens the file system on `device`.
///
/// # Errors
/// `Refused` where there is no superblock or it has unknown features; `Io`.
pub(crate) fn open(
    device: Arc<dyn BlockDevice>,
    journal: Option<&Arc<dyn BlockDevice>>,
    findings: &mut Findings,
) -> Result<Opened, CheckError> {
    let sb = superblock(&*device, findings)?;
    let (found, expected) = (device.len_bytes(), sb.geometry().size_bytes());
    let is_short = found < expected;
    if is_short {
        findings.push(Finding::DeviceShort { found, expected });
    }
    if is_short || !sb.features().incompat.contains(Incompat::RECOVER) {
        return Ok(Opened {
            device,
            sb,
            recovery: Recovery::None,
            fast_commits: None,
        });
    }
    Ok(recovered(device, sb, journal, findings))
}

/// The file system as recovery of its journal leaves it; in place where there is none.
fn recovered(
    device: Arc<dyn BlockDevice>,
    sb: Superblock,
    journal: Option<&Arc<dyn BlockDevice>>,
    findings: &mut Findings,
) -> Opened {
    let in_place = |device, sb| Opened {
        device,
        sb,
        recovery: Recovery::Journal,
        fast_commits: None,
    };
    let inode = match (sb.journal(), journal) {
        (Some(JournalPlace::Device { uuid, .. }), None) => {
            let uuid = uuid.to_string();
            findings.push(Finding::JournalNotGiven { uuid });
            return in_place(device, sb);
        }
        (Some(JournalPlace::Inode(inode)), _) => inode,
        _ => InodeNr::JOURNAL,
    };
    let replayed = replay::replay(&device, &sb, journal, findings).and_then(|replayed| {
        let sb = primary(&*replayed.device).map_err(|error| error.to_string())?;
        Ok((replayed, sb))
    });
    let (replayed, sb) = match replayed {
        Ok(replayed) => replayed,
        Err(why) => {
            findings.push(Finding::JournalUnreadable { why });
            return in_place(device, sb);
        }
    };
    if let Some(damage) = replayed.damage {
        findings.push(damage);
    }
    findings.push(match replayed.fast_commits {
        Some(_) => Finding::FastCommitsReplayed { inode },
        None => Finding::JournalReplayed { inode },
    });
    Opened {
        device: replayed.device,
        sb,
        recovery: match replayed.found_by {
            FoundBy::Inode => Recovery::Journal,
            FoundBy::Copy => Recovery::JournalByCopy,
        },
        fast_commits: replayed.fast_commits,
    }
}

/// The primary superblock of `device`.
///
/// # Errors
/// `Refused` or `Io`.
pub(crate) fn primary(device: &dyn BlockDevice) -> Result<Superblock, CheckError> {
    read_superblock(device, SUPERBLOCK_OFFSET_BYTES)?.map_err(CheckError::Refused)
}

/// The primary superblock, or the first valid backup.
///
/// # Errors
/// `Refused` or `Io`.
pub(crate) fn superblock(
    device: &dyn BlockDevice,
    findings: &mut Findings,
) -> Result<Superblock, CheckError> {
    let (primary, why) = match read_superblock(device, SUPERBLOCK_OFFSET_BYTES)? {
        Ok(sb) => match descriptors_fault(&sb) {
            None => return Ok(sb),
            Some(fault) => (Some(sb), fault.into()),
        },
        Err(why) => (None, why),
    };
    // A valid superblock with unknown features is no fault: a backup would have them too.
    if matches!(
        why,
        SuperblockRejected::JournalDevice | SuperblockRejected::Unsupported(_)
    ) {
        return Err(CheckError::Refused(why));
    }
    for (block, size) in (0..=6).filter_map(first_backup) {
        if let Ok(Ok(sb)) = read_superblock(device, size.offset(block))
            && sb.geometry().block_size() == size
            && descriptors_fault(&sb).is_none()
        {
            let block_bytes = u32::try_from(size.bytes()).unwrap_or(u32::MAX);
            let why = text::of_superblock(&why);
            findings.push(Finding::SuperblockRejected { why });
            findings.push(Finding::BackupInUse { block, block_bytes });
            return Ok(sb);
        }
    }
    primary.ok_or(CheckError::Refused(why))
}

/// The fault of a field that gives the place of the descriptors. A backup is then more likely to be
/// right, even if the field can be used.
fn descriptors_fault(sb: &Superblock) -> Option<SuperblockError> {
    let is_one = |fault: &&SuperblockError| matches!(fault, SuperblockError::FirstMetaBg { .. });
    sb.faults().iter().find(is_one).cloned()
}

/// The place of the first backup in a file system with groups of full size.
fn first_backup(log: u32) -> Option<(PhysBlock, BlockSize)> {
    let size = BlockSize::from_log(log)?;
    let first_data_block = u64::from(log == 0);
    Some((PhysBlock(first_data_block + size.bytes() as u64 * 8), size))
}

/// Reads the superblock at `offset` in bytes. Past the end of the device there is none.
pub(crate) fn read_superblock(
    device: &dyn BlockDevice,
    offset: u64,
) -> Result<Result<Superblock, SuperblockRejected>, CheckError> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    let end = offset.saturating_add(SUPERBLOCK_SIZE_BYTES as u64);
    if end <= device.len_bytes() {
        device.read_at(&mut bytes, offset).map_err(CheckError::Io)?;
    }
    let raw = RawSuperblock::from_bytes(&bytes);
    Ok(raw.and_then(Superblock::try_from))
}
