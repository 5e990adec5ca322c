//! **Purpose.** Checks the journal's inode and superblock: whether they can hold a log.
//!
//! **Not here.** The replay ([`crate::replay`]).
//!
//! **Model.** An unusable inode is reported. If the superblock has a sound copy of it
//! (`s_jnl_blocks`), the copy replaces the inode in all passes, as in e2fsck: the blocks of the log
//! are in use, and its content is not lost.

use fourscore_block::BlockDevice;
use fourscore_journal::Log;
use fourscore_ondisk::InodeNr;
use fourscore_ondisk::features::{Compat, Incompat};
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::jbd2::{JournalSuperblock, RawJournalSuperblock};
use fourscore_ondisk::superblock::JournalPlace;
use fourscore_sync::Arc;
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::open::Recovery;
use crate::pass1::orphans::places_in;
use crate::report::Findings;
use crate::volume::Volume;

/// The minimum length of a log.
const LEAST_BLOCKS: u64 = 1024;

/// Checks the journal; `given` is the device of an external one. Sets the copy of its inode if the
/// inode is unusable.
pub(crate) fn check(
    volume: &mut Volume,
    given: Option<&Arc<dyn BlockDevice>>,
    recovery: Recovery,
    findings: &mut Findings,
) {
    match volume.sb.journal() {
        None => {
            let inode = InodeNr(volume.sb.raw().s_journal_inum.get());
            if inode.0 != 0 && !volume.compat(Compat::HAS_JOURNAL) {
                let why = "named without the feature has_journal";
                findings.push(Finding::JournalInode { inode, why });
            }
        }
        Some(JournalPlace::Device { uuid, .. }) => {
            // An external journal that had to be replayed was checked then.
            if recovery == Recovery::None {
                external(volume, uuid, given, findings);
            }
        }
        Some(JournalPlace::Inode(number)) => internal(volume, number, recovery, findings),
    }
}

/// Checks an external journal, which need not be replayed.
fn external(
    volume: &Volume,
    uuid: Uuid,
    given: Option<&Arc<dyn BlockDevice>>,
    findings: &mut Findings,
) {
    let Some(device) = given else {
        let why = "on another device, which was not given";
        findings.push(Finding::JournalElsewhere { why });
        return;
    };
    let size = volume.geometry().block_size();
    match Log::open_external(Arc::clone(device), uuid, size) {
        Err(error) => {
            let why = error.to_string();
            findings.push(Finding::JournalUnreadable { why });
        }
        Ok(log) => {
            if let Some(start) = log.superblock().start() {
                findings.push(Finding::JournalUnmarked { start: start.0 });
            }
        }
    }
}

/// Checks an internal journal, also as its inode was before the replay.
fn internal(volume: &mut Volume, number: InodeNr, recovery: Recovery, findings: &mut Findings) {
    let mut bytes = Vec::new();
    let read = volume.read_inode(number, &mut bytes);
    let why = match read.and_then(|()| InodeView::new(&bytes, number)) {
        None => Some("cannot be read"),
        Some(inode) => match map_fault(volume, &inode) {
            None => log_fault(volume, &inode, findings),
            why => why,
        },
    };
    let before = "unusable before the log was replayed";
    let Some(why) = why.or((recovery == Recovery::JournalByCopy).then_some(before)) else {
        return;
    };
    let inode = number;
    findings.push(Finding::JournalInode { inode, why });
    let copy = volume.sb.journal_inode_copy();
    volume.journal_copy = copy.filter(|(number, bytes)| {
        let view = InodeView::new(bytes, *number);
        view.is_some_and(|view| map_fault(volume, &view).is_none() && has_log(volume, &view))
    });
    if volume.journal_copy.is_some() {
        findings.push(Finding::JournalCopyUsed { inode });
    }
}

/// The fault of a journal's inode or its map.
fn map_fault(volume: &Volume, inode: &InodeView<'_>) -> Option<&'static str> {
    let is_deleted = inode.base.i_dtime.get() != 0;
    match (inode.mode(), inode.links(), inode.file_type()) {
        (0, ..) => return Some("not in use: i_mode is 0"),
        (_, 0, _) if is_deleted => return Some("deleted: i_links_count is 0, and i_dtime is set"),
        (_, 0, _) => return Some("not in use: i_links_count is 0"),
        (_, _, Some(FileType::Regular)) => {}
        _ => return Some("not a regular file"),
    }
    if inode.has(InodeFlags::ENCRYPT_FL) {
        return Some("encrypted");
    }
    let blocks = inode.size_bytes() >> volume.geometry().block_size().bits();
    if blocks < LEAST_BLOCKS {
        return Some("too short for a log");
    }
    let mut end = 0;
    for (logical, run) in &places_in(volume, inode).runs {
        if *logical != end {
            return Some("has a hole");
        }
        end = logical + (run.end.0 - run.start.0);
    }
    (end < blocks).then_some("ends before its size")
}

/// Reads the first block of the journal of an inode whose map is sound.
fn first_block(volume: &Volume, inode: &InodeView<'_>, findings: &mut Findings) -> Option<Vec<u8>> {
    let places = places_in(volume, inode);
    let start = places.runs.first().map(|(_, run)| run.start)?;
    let mut block = vec![0; volume.block_bytes()];
    if let Err(error) = volume.read(start, &mut block) {
        let why = error.to_string();
        findings.push(Finding::Unreadable { block: start, why });
        return None;
    }
    Some(block)
}

/// Whether the first block of an inode is a journal superblock.
fn has_log(volume: &Volume, inode: &InodeView<'_>) -> bool {
    let block = first_block(volume, inode, &mut Findings::new(0));
    let block = block.unwrap_or_default();
    let raw = RawJournalSuperblock::ref_from_prefix(&block);
    raw.is_ok_and(|(raw, _)| JournalSuperblock::try_from(raw).is_ok())
}

/// Compares the journal superblock with its inode, and returns the fault. A fault of the superblock
/// itself is reported.
fn log_fault(
    volume: &Volume,
    inode: &InodeView<'_>,
    findings: &mut Findings,
) -> Option<&'static str> {
    let block = first_block(volume, inode, findings)?;
    let (raw, _) = RawJournalSuperblock::ref_from_prefix(&block).ok()?;
    let log = match JournalSuperblock::try_from(raw) {
        Err(error) => {
            let why = error.to_string();
            findings.push(Finding::JournalUnreadable { why });
            return None;
        }
        Ok(log) => log,
    };
    let blocks = inode.size_bytes() >> volume.geometry().block_size().bits();
    if u64::from(log.maxlen()) > blocks {
        return Some("shorter than its superblock says");
    }
    if raw.s_blocksize.get() as usize != volume.block_bytes() {
        return Some("its superblock gives another block size");
    }
    if log.nr_users() > 1 {
        return Some("its superblock counts several file systems");
    }
    if log.errno() != 0 {
        let errno = log.errno().unsigned_abs();
        findings.push(Finding::JournalErrno { errno });
    }
    let needs_recovery = volume.incompat(Incompat::RECOVER);
    if let Some(start) = log.start().filter(|_| !needs_recovery) {
        findings.push(Finding::JournalUnmarked { start: start.0 });
    }
    None
}
