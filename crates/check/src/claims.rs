//! **Purpose.** Finds the owners of shared blocks: the passes 1B to 1D of e2fsck.
//!
//! **Model.** Only if pass 1 met a cluster twice, the maps of all inodes are followed once more, to
//! find which of them map shared clusters. Runs with the same owners become one finding. Of inodes
//! that a memory knows nothing is read.
//!
//! **Invariants.** Memory is bounded: each thread keeps at most [`MOST_CLAIMS`] claims. Of images
//! that share more, pass 1 reports each inode.

use std::num::NonZeroUsize;
use std::ops::Range;

use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock};

use crate::bits::Bits;
use crate::finding::{Finding, Inodes};
use crate::inode::InodeView;
use crate::memory::{Kind, Memory, Slot, Slots};
use crate::parallel::{Pieces, on_threads};
use crate::pass1::has_map;
use crate::report::Findings;
use crate::state::State;
use crate::table::{self, TableBlock, Visitor};
use crate::volume::Volume;
use crate::walk::{Role, Sink, Walker};

/// The most claims that a thread keeps.
const MOST_CLAIMS: usize = 1 << 18;
/// The most owners named for a run.
const MOST_NAMED: usize = 64;

/// Shared clusters, and an inode that maps them.
type Claim = (Range<u64>, InodeNr);

/// Collects claims on shared clusters.
struct Searcher<'s> {
    volume: &'s Volume,
    shared: &'s Bits,
    inode: InodeNr,
    claims: Vec<Claim>,
}

impl Sink for Searcher<'_> {
    fn claim(&mut self, run: Range<PhysBlock>, _role: Role) {
        if run.end <= run.start {
            return;
        }
        let last = self.volume.cluster(PhysBlock(run.end.0 - 1));
        let (inode, claims) = (self.inode, &mut self.claims);
        let clusters = self.volume.cluster(run.start)..last + 1;
        self.shared.runs_in(clusters, |shared| {
            if claims.len() < MOST_CLAIMS {
                claims.push((shared, inode));
            }
        });
    }

    fn wants_content(&self, _inode: &InodeView<'_>) -> bool {
        false
    }

    fn content(&mut self, _logical: u64, _run: Range<PhysBlock>, _state: ExtentState) {}

    fn fault(&mut self, _finding: Finding) {}
}

/// Reports the owners of shared clusters.
pub(crate) fn run(
    volume: &Volume,
    state: &State,
    threads: NonZeroUsize,
    memory: Option<&Memory>,
    findings: &mut Findings,
) {
    let memory = memory.filter(|memory| memory.is_on());
    let Some(shared) = state.shared.get() else {
        return;
    };
    let pieces = Pieces::new(volume.groups.len() as u64, 1);
    let found = on_threads(threads, || {
        let mut search = Search {
            state,
            walker: Walker::new(volume),
            searcher: Searcher {
                volume,
                shared,
                inode: InodeNr(0),
                claims: Vec::new(),
            },
        };
        let mut piece = Vec::new();
        while let Some(groups) = pieces.take() {
            for nr in groups {
                let nr = GroupNr(u32::try_from(nr).unwrap_or(u32::MAX));
                table::visit(volume, nr, memory, &mut piece, &mut search);
            }
        }
        search.searcher.claims
    });
    let mut claims: Vec<Claim> = found.into_iter().flatten().collect();
    claims.sort_unstable_by_key(|(run, inode)| (run.start, run.end, inode.0));
    report(volume, state, &claims, findings);
}

/// The search of one thread.
struct Search<'s> {
    state: &'s State,
    walker: Walker<'s>,
    searcher: Searcher<'s>,
}

impl Search<'_> {
    fn inode(&mut self, inode: &InodeView<'_>) {
        let nr = inode.number;
        if !self.state.used.contains(nr.0.into()) {
            return;
        }
        let searcher = &mut self.searcher;
        let volume = searcher.volume;
        searcher.inode = nr;
        let attributes = inode.file_acl(&volume.sb);
        if volume.physical().contains(&attributes) {
            let run = attributes..PhysBlock(attributes.0 + 1);
            searcher.claim(run, Role::Attributes);
        }
        if has_map(inode) || nr == InodeNr(1) {
            self.walker.follow(inode, searcher);
        }
    }

    /// Looks at a block of remembered files whose blocks follow each other; returns whether none of
    /// these is shared.
    fn has_no_shared(&mut self, slots: &Slots) -> bool {
        let Some(run) = slots.files() else {
            return false;
        };
        if run.is_empty() {
            return true;
        }
        let volume = self.searcher.volume;
        let clusters = volume.cluster(run.start)..volume.cluster(PhysBlock(run.end.0 - 1)) + 1;
        self.searcher.shared.count_in(clusters) == 0 && self.walker.spend(run.end.0 - run.start.0)
    }

    /// Looks at a remembered inode; returns whether its bytes are not needed.
    fn recall(&mut self, nr: InodeNr, slot: &Slot) -> bool {
        if slot.kind == Kind::Again {
            return false;
        }
        let run = slot.run();
        if !run.is_empty() && self.walker.spend(run.end.0 - run.start.0) {
            self.searcher.inode = nr;
            self.searcher.claim(run, Role::Data);
        }
        true
    }
}

impl Visitor for Search<'_> {
    fn remembered(&mut self, slots: &Slots) {
        if self.has_no_shared(slots) {
            return;
        }
        for (nr, slot) in slots.iter() {
            self.recall(nr, slot);
        }
    }

    fn read(&mut self, block: &TableBlock<'_>, slots: Option<&Slots>) {
        match slots {
            Some(slots) => {
                for (inode, (nr, slot)) in block.inodes().zip(slots.iter()) {
                    if !self.recall(nr, slot) {
                        self.inode(&inode);
                    }
                }
            }
            None => block.inodes().for_each(|inode| self.inode(&inode)),
        }
    }

    // Pass 1 has reported it, and found no inode in it.
    fn unreadable(&mut self, _block: PhysBlock, _error: std::io::Error) {}
}

/// Reports each run of clusters with the same owners.
fn report(volume: &Volume, state: &State, claims: &[Claim], findings: &mut Findings) {
    let mut edges: Vec<u64> = claims
        .iter()
        .flat_map(|(run, _)| [run.start, run.end])
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let mut open: Vec<Claim> = Vec::new();
    let mut next = claims.iter().peekable();
    let mut last: Option<(Range<u64>, Vec<InodeNr>)> = None;
    for pair in edges.windows(2) {
        let run = pair[0]..pair[1];
        open.retain(|(claim, _)| claim.end > run.start);
        while let Some(claim) = next.next_if(|(claim, _)| claim.start <= run.start) {
            open.push(claim.clone());
        }
        let mut owners: Vec<InodeNr> = open.iter().map(|(_, inode)| *inode).collect();
        owners.sort_unstable();
        owners.dedup();
        match &mut last {
            Some((before, same)) if before.end == run.start && *same == owners => {
                before.end = run.end;
            }
            _ => {
                if let Some((run, owners)) = last.replace((run, owners)) {
                    report_run(volume, state, &run, owners, findings);
                }
            }
        }
    }
    if let Some((run, owners)) = last {
        report_run(volume, state, &run, owners, findings);
    }
}

fn report_run(
    volume: &Volume,
    state: &State,
    run: &Range<u64>,
    mut owners: Vec<InodeNr>,
    findings: &mut Findings,
) {
    if owners.is_empty() {
        return;
    }
    owners.truncate(MOST_NAMED);
    let block = volume.cluster_start(run.start);
    let end = volume
        .cluster_start(run.end)
        .0
        .min(volume.geometry().blocks().0);
    let count = end.saturating_sub(block.0);
    let inodes = Inodes(owners);
    let with_metadata = state.metadata.count_in(block.0..end) > 0;
    findings.push(if with_metadata {
        Finding::SharedWithMetadata {
            block,
            count,
            inodes,
        }
    } else {
        Finding::SharedBlocks {
            block,
            count,
            inodes,
        }
    });
}
