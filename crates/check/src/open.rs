//! **Purpose.** From a device to the file system that is checked: a superblock that can be
//! believed, and the journal replayed in memory.
//!
//! **Model.** A dirty journal is recovered into an overlay, as every reader does it; what is
//! checked is what recovery would give. Fast commits are carried out by a mount of a copy in
//! memory, which keeps only the blocks that change. If the journal cannot be recovered, or is on a
//! device that was not given, that is a finding and what is in place is checked. If the primary
//! superblock cannot be believed, backups are tried where mke2fs puts the first one for each block
//! size; so they are if it says wrongly where descriptors are.
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

/// What is checked.
pub(crate) struct Opened {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) sb: Superblock,
    /// Whether a mount would have recovered something first, so that hints of the superblock are
    /// those of another moment.
    pub(crate) recovery: Recovery,
    /// What fast commits change beside the device, if there are any.
    pub(crate) fast_commits: Option<FastCommitted>,
}

/// What a mount would do first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Nothing.
    None,
    /// Replay the journal.
    Journal,
    /// The same, but only the copy of its inode leads to the log.
    JournalByCopy,
}

/// Opens the file system on `device`.
///
/// # Errors
/// `NotExt` where there is no superblock, `Refused` for features that are not known, `Io`.
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
    if let Some(why) = replayed.damage {
        findings.push(Finding::JournalTail { why });
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

/// The primary superblock, or the first backup that can be believed.
fn superblock(device: &dyn BlockDevice, findings: &mut Findings) -> Result<Superblock, CheckError> {
    let (primary, why) = match read_superblock(device, SUPERBLOCK_OFFSET_BYTES)? {
        Ok(sb) => match descriptors_fault(&sb) {
            None => return Ok(sb),
            Some(fault) => (Some(sb), fault.into()),
        },
        Err(why) => (None, why),
    };
    // What is sound but unknown is no fault: a backup would say the same.
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

/// What is wrong with a field that says where descriptors are. Where it can be read nonetheless,
/// a backup is more likely to be right.
fn descriptors_fault(sb: &Superblock) -> Option<SuperblockError> {
    let is_one = |fault: &&SuperblockError| matches!(fault, SuperblockError::FirstMetaBg { .. });
    sb.faults().iter().find(is_one).cloned()
}

/// Where the first backup is in a file system with groups of full size.
fn first_backup(log: u32) -> Option<(PhysBlock, BlockSize)> {
    let size = BlockSize::from_log(log)?;
    let first_data_block = u64::from(log == 0);
    Some((PhysBlock(first_data_block + size.bytes() as u64 * 8), size))
}

/// The superblock at a byte of the device. What lies beyond its end is not one.
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
