//! **Purpose.** Reads the orphan list and the orphan file: inodes that the next mount deletes or
//! truncates.
//!
//! **Model.** Orphans are no fault: e2fsck with `-n` complains of them because it does not recover
//! before it checks. A list with an invalid link is a fault.

use std::ops::Range;

use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::features::RoCompat;
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock, orphan};
use std::collections::HashSet;

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::report::Findings;
use crate::volume::Volume;
use crate::walk::{Role, Sink, Walker};

/// Collects the places of the data of a file, and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Runs, each with its first logical block.
    pub(crate) runs: Vec<(u64, Range<PhysBlock>)>,
}

impl Sink for Places {
    fn claim(&mut self, _run: Range<PhysBlock>, _role: Role) {}

    fn wants_content(&self, _inode: &InodeView<'_>) -> bool {
        true
    }

    fn content(&mut self, logical: u64, run: Range<PhysBlock>, _state: ExtentState) {
        self.runs.push((logical, run));
    }

    fn fault(&mut self, _finding: Finding) {}
}

/// The places of the data of an inode, as far as its map can be followed.
pub(crate) fn places_of(volume: &Volume, nr: InodeNr, bytes: &mut Vec<u8>) -> Option<Places> {
    volume.read_inode(nr, bytes)?;
    Some(places_in(volume, &InodeView::new(bytes, nr)?))
}

/// As [`places_of`], for an inode that was read.
pub(crate) fn places_in(volume: &Volume, inode: &InodeView<'_>) -> Places {
    let mut places = Places::default();
    if super::blocks::has_map(inode) {
        Walker::new(volume).follow(inode, &mut places);
    }
    places
}

/// All orphans.
pub(crate) fn collect(volume: &Volume, findings: &mut Findings) -> HashSet<InodeNr> {
    let mut orphans = HashSet::new();
    chain(volume, &mut orphans, findings);
    if let Some(file) = volume.sb.orphan_file_inode() {
        file_entries(volume, file, &mut orphans, findings);
    }
    orphans
}

/// Follows the list, which is chained through `i_dtime`.
fn chain(volume: &Volume, orphans: &mut HashSet<InodeNr>, findings: &mut Findings) {
    let mut bytes = Vec::new();
    let mut next = volume.sb.last_orphan();
    while let Some(nr) = next.filter(|nr| nr.0 != 0) {
        if nr == InodeNr::ROOT || !volume.sb.may_be_named(nr) {
            let why = "a link refers to an inode that cannot be an orphan";
            findings.push(Finding::OrphanList { inode: nr, why });
            return;
        }
        if !orphans.insert(nr) {
            let why = "it returns to this inode";
            findings.push(Finding::OrphanList { inode: nr, why });
            return;
        }
        next = volume
            .read_inode(nr, &mut bytes)
            .and_then(|()| InodeView::new(&bytes, nr))
            .map(|inode| InodeNr(inode.base.i_dtime.get()));
    }
}

/// Reads the entries of the orphan file.
fn file_entries(
    volume: &Volume,
    file: InodeNr,
    orphans: &mut HashSet<InodeNr>,
    findings: &mut Findings,
) {
    let mut bytes = Vec::new();
    let Some(places) = places_of(volume, file, &mut bytes) else {
        return;
    };
    let Some(inode) = InodeView::new(&bytes, file) else {
        return;
    };
    let seed = inode.seed(&volume.sb);
    let is_marked = volume.ro_compat(RoCompat::ORPHAN_PRESENT);
    let mut block_bytes = vec![0; volume.block_bytes()];
    for (logical, run) in places.runs {
        for (nth, at) in (run.start.0..run.end.0).map(PhysBlock).enumerate() {
            let logical = u32::try_from(logical + nth as u64).unwrap_or(u32::MAX);
            if let Err(error) = volume.read(at, &mut block_bytes) {
                let (block, why) = (at, error.to_string());
                findings.push(Finding::Unreadable { block, why });
                continue;
            }
            match orphan::parse(&block_bytes, at, seed, &volume.sb) {
                Err(why) => {
                    let (inode, block) = (file, LogicalBlock(logical));
                    findings.push(Finding::OrphanFile { inode, block, why });
                }
                Ok(entries) => {
                    for (_, orphan) in entries {
                        if !is_marked {
                            let why = "in the orphan file without orphan_present";
                            findings.push(Finding::OrphanList { inode: orphan, why });
                        }
                        orphans.insert(orphan);
                    }
                }
            }
        }
    }
}
