//! **Purpose.** Pass 1: every inode, its map, and the blocks that it claims.
//!
//! **Model.** Threads take groups in order. The used part of each inode table is read in large
//! pieces, and inodes are checked in place. The map of an inode is followed at once, and its blocks
//! are claimed in a bitmap. Directories are collected for pass 2. What an earlier check remembers
//! of an inode is added without reading it.
//!
//! | module | responsibility |
//! |---|---|
//! | `fields` | the inode's own fields, and the roles of reserved inodes |
//! | `special` | symbolic links, devices, pipes, sockets |
//! | `blocks` | the map, compared with size and counts |
//! | `xattrs` | attributes inside the inode and in blocks |
//! | `orphans` | the orphan list and the orphan file |
//! | `recall` | inodes that an earlier check remembers |
//!
//! **Invariants.** An inode whose map fits into its `i_block` is checked without allocation.

mod blocks;
mod fields;
pub(crate) mod orphans;
mod recall;
mod special;
mod xattrs;

use std::num::NonZeroUsize;

use fourscore_ondisk::quota::QuotaUsage;
use fourscore_ondisk::{GroupNr, PhysBlock};

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::memory::{Claimed, Kind, Memory, Slot, Slots, TablePlace};
use crate::parallel::{Pieces, on_threads};
use crate::policies::PolicyRuns;
use crate::report::{Findings, Tally};
use crate::state::{Directories, Directory, Scanned, State};
use crate::table::{self, TableBlock, Visitor};
use crate::volume::Volume;
use crate::walk::Walker;

pub(crate) use blocks::has_map;
use recall::Pending;

/// The state of one thread.
struct Scanner<'a> {
    volume: &'a Volume,
    state: &'a State,
    walker: Walker<'a>,
    findings: Findings,
    directories: Directories,
    policies: PolicyRuns,
    usage: QuotaUsage,
    tally: Tally,
    /// A buffer for a block of attributes or of a symbolic link.
    block: Vec<u8>,
    /// A buffer for an inode that holds an attribute value.
    other_inode: Vec<u8>,
    /// A buffer for the places of values in an area of attributes.
    places: Vec<(usize, usize)>,
    /// Whether small times of deletion are links of an orphan list: not if the clock was that low.
    checks_dtime: bool,
    /// What the inode at hand claimed.
    claimed: Claimed,
    /// What a later check may use instead of the inode at hand.
    slot: Slot,
    /// What is new to the memory, for each group.
    learned: Vec<Vec<(TablePlace, Slots)>>,
    /// What is new of the group at hand.
    new: Vec<(TablePlace, Slots)>,
    learns: bool,
    /// Buffers for the slots and the directories of the block at hand.
    learning: (Vec<Slot>, Vec<Directory>),
    /// Remembered inodes that are not added yet.
    pending: Pending,
}

/// Checks all inodes, but for those that `memory` knows and has not forgotten.
pub(crate) fn run(
    volume: &Volume,
    state: &State,
    threads: NonZeroUsize,
    mut memory: Option<&mut Memory>,
    findings: &mut Findings,
    tally: &mut Tally,
) -> Scanned {
    let limit = findings.limit();
    let known = memory.as_deref().filter(|memory| memory.is_on());
    // Orphans are reported, whatever their inodes say.
    let recalled = known.filter(|_| state.orphans.is_empty());
    let pieces = Pieces::new(volume.groups.len() as u64, 1);
    let scanners = on_threads(threads, || {
        let mut scanner = Scanner::new(volume, state, limit);
        scanner.learns = known.is_some();
        let mut piece = Vec::new();
        while let Some(groups) = pieces.take() {
            for nr in groups {
                let nr = GroupNr(u32::try_from(nr).unwrap_or(u32::MAX));
                table::visit(volume, nr, recalled, &mut piece, &mut scanner);
                scanner.add_pending();
                scanner.learned.push(std::mem::take(&mut scanner.new));
            }
        }
        (
            scanner.findings,
            scanner.directories,
            scanner.policies,
            scanner.usage,
            scanner.tally,
            scanner.learned,
        )
    });
    let mut scanned = Scanned::default();
    let mut policies = Vec::new();
    for (found, directories, runs, usage, part, learned) in scanners {
        if let Some(memory) = &mut memory {
            memory.learn(learned.into_iter().flatten());
        }
        findings.merge(found);
        scanned.directories.push(directories);
        policies.push(runs);
        scanned.usage.merge(&usage);
        tally.inodes += part.inodes;
        tally.directories += part.directories;
    }
    scanned.policies = PolicyRuns::gather(policies);
    xattrs::check_refcounts(state, findings);
    scanned
}

impl<'a> Scanner<'a> {
    fn new(volume: &'a Volume, state: &'a State, limit: u64) -> Self {
        let raw = volume.sb.raw();
        let inodes = volume.geometry().inodes();
        let times = [raw.s_wtime, raw.s_mtime, raw.s_mkfs_time].map(|time| time.get());
        Self {
            volume,
            state,
            walker: Walker::new(volume),
            findings: Findings::new(limit),
            directories: Directories::default(),
            policies: PolicyRuns::default(),
            usage: QuotaUsage::default(),
            tally: Tally::default(),
            block: Vec::new(),
            other_inode: Vec::new(),
            places: Vec::new(),
            checks_dtime: times.iter().all(|&time| time == 0 || time >= inodes),
            claimed: Claimed::default(),
            slot: Slot::AGAIN,
            learned: Vec::new(),
            new: Vec::new(),
            learns: false,
            learning: Default::default(),
            pending: Pending::default(),
        }
    }
}

impl Scanner<'_> {
    /// Examines an inode; returns what a later check may use instead.
    fn examined(&mut self, inode: &InodeView<'_>) -> Slot {
        let before = self.findings.pushed();
        self.slot = Slot::NOTHING;
        self.claimed = Claimed::default();
        self.inode(inode);
        if self.findings.pushed() > before {
            Slot::AGAIN
        } else {
            self.slot
        }
    }
}

impl Visitor for Scanner<'_> {
    fn remembered(&mut self, slots: &Slots) {
        if self.recall_files(slots) {
            return;
        }
        for (nr, slot) in slots.iter() {
            self.recall(nr, slot, slots);
        }
    }

    fn read(&mut self, block: &TableBlock<'_>, slots: Option<&Slots>) {
        let (mut new, mut directories) = std::mem::take(&mut self.learning);
        let mut is_new = slots.is_none();
        for (nth, inode) in block.inodes().enumerate() {
            let known = slots.zip(slots.and_then(|slots| slots.get(nth)));
            let known = known.filter(|(slots, slot)| self.recall(inode.number, slot, slots));
            let slot = known.map_or_else(|| self.examined(&inode), |(_, slot)| slot);
            if self.learns {
                if slot.kind == Kind::Directory {
                    directories.extend(self.directories.all.last());
                }
                is_new |= known.is_none() && slot.kind != Kind::Again;
                new.push(slot);
            }
        }
        if self.learns && block.is_read && is_new {
            let slots = Slots::new(block.first, &new, &directories);
            self.new.push((block.place, slots));
        }
        new.clear();
        directories.clear();
        self.learning = (new, directories);
    }

    fn unreadable(&mut self, block: PhysBlock, error: std::io::Error) {
        let why = error.to_string();
        self.findings.push(Finding::Unreadable { block, why });
    }
}
