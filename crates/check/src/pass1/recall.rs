//! **Purpose.** Adds what an earlier check remembers of plain inodes ([`crate::memory`]) to the
//! shared state.
//!
//! **Model.** Inodes that follow each other mostly map blocks that follow each other. Runs of both
//! are gathered and added at once.
//!
//! **Invariants.** What is added for an inode is what its examination would add: the inode as used,
//! of its type, its links, its blocks, what the walk of its map takes from the walker's limit of
//! blocks, and of a directory what pass 2 needs. Nodes of a map that is not walked are not counted
//! for the limit of nodes.

use std::ops::Range;

use fourscore_ondisk::{InodeNr, PhysBlock};

use super::Scanner;
use super::blocks::claim_clusters;
use crate::finding::Finding;
use crate::memory::{Kind, Slot, Slots};
use crate::state::{Directory, Run};

/// Inodes and blocks that are to be added.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Regular files with one link.
    files: Range<u64>,
    blocks: Range<u64>,
}

impl Scanner<'_> {
    /// Adds a remembered inode; returns whether it need not be examined.
    pub(super) fn recall(&mut self, inode: InodeNr, slot: &Slot, slots: &Slots) -> bool {
        let nr = u64::from(inode.0);
        let state = self.state;
        let set = match slot.kind {
            Kind::Again => return false,
            Kind::Nothing => return true,
            Kind::ReservedBlocks => {
                state.used.insert(nr);
                state.links.add(inode, slot.links.into());
                self.add_blocks(slot.run());
                return true;
            }
            Kind::Regular => &state.regular,
            Kind::Symlink => &state.symlinks,
            Kind::Directory => &state.directories,
        };
        if slot.kind == Kind::Regular && slot.links == 1 {
            self.add_files(nr..nr + 1);
        } else {
            state.used.insert(nr);
            set.insert(nr);
            state.links.add(inode, slot.links.into());
        }
        self.tally.inodes += 1;
        let run = slot.run();
        let blocks = run.end.0 - run.start.0;
        let may = run.is_empty() || self.walker.spend(blocks);
        if slot.kind == Kind::Directory
            && let Some(directory) = slots.directory(inode)
        {
            let may_read = self.walker.may_claim(blocks);
            self.add_directory(directory, may_read.then(|| run.clone()));
        }
        if !may {
            self.findings.push(Finding::SharedBeyond { inode });
        } else if !run.is_empty() {
            self.add_blocks(run);
        }
        true
    }

    /// Adds a block of inodes if they are files whose blocks follow each other, and if the walker's
    /// limit is not reached; returns whether it did.
    pub(super) fn recall_files(&mut self, slots: &Slots) -> bool {
        let Some(run) = slots.files() else {
            return false;
        };
        if !self.walker.spend(run.end.0 - run.start.0) {
            return false;
        }
        let inodes = slots.inodes();
        self.tally.inodes += inodes.end - inodes.start;
        self.add_files(inodes);
        if !run.is_empty() {
            self.add_blocks(run.clone());
        }
        true
    }

    fn add_directory(&mut self, directory: &Directory, run: Option<Range<PhysBlock>>) {
        self.tally.directories += 1;
        let first_run = self.directories.runs.len();
        if let Some(run) = run {
            self.directories.runs.push(Run {
                logical: 0,
                blocks: u32::try_from(run.end.0 - run.start.0).unwrap_or(u32::MAX),
                start: run.start,
            });
        }
        self.directories.all.push(Directory {
            first_run: u32::try_from(first_run).unwrap_or(u32::MAX),
            runs: u32::try_from(self.directories.runs.len() - first_run).unwrap_or(0),
            ..*directory
        });
    }

    fn add_files(&mut self, inodes: Range<u64>) {
        if self.pending.files.end != inodes.start {
            self.add_pending_files();
            self.pending.files = inodes.start..inodes.start;
        }
        self.pending.files.end = inodes.end;
    }

    fn add_blocks(&mut self, run: Range<PhysBlock>) {
        if self.pending.blocks.end != run.start.0 {
            self.add_pending_blocks();
            self.pending.blocks = run.start.0..run.start.0;
        }
        self.pending.blocks.end = run.end.0;
    }

    /// Adds what was gathered.
    pub(super) fn add_pending(&mut self) {
        self.add_pending_files();
        self.add_pending_blocks();
    }

    fn add_pending_files(&mut self) {
        let files = std::mem::take(&mut self.pending.files);
        self.state.used.insert_run(files.clone(), |_| {});
        self.state.regular.insert_run(files.clone(), |_| {});
        self.state.links.add_one_each(files);
    }

    fn add_pending_blocks(&mut self) {
        let blocks = std::mem::take(&mut self.pending.blocks);
        if !blocks.is_empty() {
            let volume = self.volume;
            let last = volume.cluster(PhysBlock(blocks.end - 1));
            let clusters = volume.cluster(PhysBlock(blocks.start))..last + 1;
            claim_clusters(volume, self.state, clusters);
        }
    }
}
