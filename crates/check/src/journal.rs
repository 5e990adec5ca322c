//! **Purpose.** The journal's inode and superblock: whether a log could be kept there.
//!
//! **Not here.** Replaying: [`open`](crate::open).

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::jbd2::{JournalSuperblock, RawJournalSuperblock};
use fourscore_ondisk::superblock::JournalPlace;
use zerocopy::FromBytes;

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::pass1::orphans::places_of;
use crate::report::Findings;
use crate::volume::Volume;

/// The least that a log can have.
const LEAST_BLOCKS: u64 = 1024;

/// Checks the journal of a file system that has it inside.
pub(crate) fn check(volume: &Volume, findings: &mut Findings) {
    match volume.sb.journal() {
        None => {
            let inode = InodeNr(volume.sb.raw().s_journal_inum.get());
            if inode.0 != 0 {
                let why = "named without the feature has_journal";
                findings.push(Finding::JournalInode { inode, why });
            }
        }
        Some(JournalPlace::Device { .. }) => {
            let why = "on another device, which is not looked at";
            findings.push(Finding::JournalElsewhere { why });
        }
        Some(JournalPlace::Inode(inode)) => {
            if let Some(why) = inode_fault(volume, inode, findings) {
                findings.push(Finding::JournalInode { inode, why });
            }
        }
    }
}

/// What is wrong with the journal's inode; what is wrong with its superblock is told at once.
fn inode_fault(volume: &Volume, nr: InodeNr, findings: &mut Findings) -> Option<&'static str> {
    let mut bytes = Vec::new();
    let Some(places) = places_of(volume, nr, &mut bytes) else {
        return Some("cannot be read");
    };
    let inode = InodeView::new(&bytes, nr)?;
    if inode.file_type() != Some(FileType::Regular) || inode.links() == 0 {
        return Some("not a regular file in use");
    }
    let blocks = inode.size_bytes() >> volume.geometry().block_size().bits();
    if blocks < LEAST_BLOCKS {
        return Some("too short for a log");
    }
    let mut end = 0;
    for (logical, run) in &places.runs {
        if *logical != end {
            return Some("has a hole");
        }
        end = logical + (run.end.0 - run.start.0);
    }
    if end < blocks {
        return Some("ends before its size");
    }
    let start = places.runs.first().map(|(_, run)| run.start)?;
    let mut block = vec![0; volume.block_bytes()];
    if let Err(error) = volume.read(start, &mut block) {
        let why = error.to_string();
        findings.push(Finding::Unreadable { block: start, why });
        return None;
    }
    let (raw, _) = RawJournalSuperblock::ref_from_prefix(&block).ok()?;
    match JournalSuperblock::try_from(raw) {
        Err(error) => {
            let why = error.to_string();
            findings.push(Finding::JournalUnreadable { why });
        }
        Ok(log) => {
            if u64::from(log.maxlen()) > blocks {
                return Some("shorter than its superblock says");
            }
            if raw.s_blocksize.get() as usize != volume.block_bytes() {
                return Some("its superblock gives another block size");
            }
            if log.nr_users() > 1 {
                return Some("its superblock counts several file systems");
            }
            let needs_recovery = volume.incompat(Incompat::RECOVER);
            if let Some(start) = log.start().filter(|_| !needs_recovery) {
                findings.push(Finding::JournalUnmarked { start: start.0 });
            }
        }
    }
    None
}
