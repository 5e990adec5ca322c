//! **Purpose.** Fast commits: makes what a thread syncs durable by records of inodes, ranges and
//! names, where a full commit would write all blocks that the transaction has changed.
//!
//! **Not here.** The area of the journal (crate `journal`, `area`), the bytes of records
//! (`fourscore_ondisk::fast_commit`), and their replay ([`crate::mount::fast_commit`]).
//!
//! | module | responsibility |
//! |---|---|
//! | `note`, `unit` | what a plan changes, in the terms of records |
//! | `slots` | whether a record expresses the change of an inode's slot |
//! | `list`, `time` | the units of all cores, and the cut that a fast commit takes |
//! | `net`, `objects`, `components`, `ranges` | the net effect of units as records |
//! | `taints` | what is left out |
//! | `reason` | why changes are left out |
//! | `alone` | fast commits without a file system, to measure them |
//!
//! **Model.**
//!
//! ```text
//! plan: notes -> apply: one unit on the list of this core -> changes are visible
//! fsync -> role of committer -> cut -> net effect -> records -> flush, write with FUA
//!          '-> the synced inode is tainted, or the records do not fit: full commit
//! ```
//!
//! A fast commit takes all units up to its cut, whichever inode the calling thread syncs, so that
//! the next threads find their changes durable. Its work is linear in these units, each of which is
//! recorded once. The time of the cut is the *watermark*: an inode whose last change is not later
//! needs no commit, unless it is tainted.
//!
//! **Invariants.**
//! - The units belong to the running transaction. With its full commit they are void, and so are
//!   the taints.
//! - Clusters that were freed are not reused before the full commit, also if they were allocated in
//!   the same transaction: a record may refer to them.
//!
//! **Locking.** The committer takes the lock of the state, then the lists one by one. Threads that
//! sync take the lock of the state only while something is tainted.

#[cfg(feature = "lab")]
pub(crate) mod alone;
mod components;
pub(crate) mod list;
mod net;
pub(crate) mod note;
mod objects;
mod ranges;
pub(crate) mod reason;
pub(crate) mod slots;
mod taints;
pub(crate) mod time;
mod unit;

use std::mem;

use fourscore_journal::{Covered, FastCommit, FastCommitRequest};
use fourscore_ondisk::fast_commit::FastCommitBlocks;
use fourscore_ondisk::geometry::Geometry;
use fourscore_ondisk::{InodeNr, Tid};
use fourscore_sync::Mutex;
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::inode::last_change::LastChange;
use crate::txn::fast_commit::list::{InOrder, Lists, Units};
use crate::txn::fast_commit::net::Net;
use crate::txn::fast_commit::note::{Notes, new_inodes};
use crate::txn::fast_commit::objects::Objects;
use crate::txn::fast_commit::reason::Reasons;
use crate::txn::fast_commit::taints::Taints;
use crate::txn::fast_commit::time::Time;
use crate::txn::faults::{Faults, Sabotage};

/// The fast commits of a mount.
#[derive(Debug)]
pub(crate) struct FastCommits {
    block_bytes: usize,
    /// The number of inodes in a block of the inode table.
    inodes_per_block: u32,
    faults: Faults,
    lists: Lists,
    /// The time up to which all units are durable or tainted.
    watermark: AtomicU64,
    has_taints: AtomicBool,
    state: Mutex<State>,
}

/// The committer's state.
#[derive(Debug, Default)]
struct State {
    /// The transaction that the rest belongs to.
    tid: Option<Tid>,
    taints: Taints,
    /// Units that were later than the last cut.
    later: Vec<Units>,
    /// The time of the cut that is being committed.
    cut: Time,
    memory: Memory,
    /// The most units of a fast commit of the transaction.
    most_units: usize,
    counts: Counts,
}

/// Memory for the next fast commit.
#[derive(Debug, Default)]
struct Memory {
    /// For the lists of the cores.
    spare: Vec<Units>,
    objects: Objects,
    records: Vec<u8>,
}

/// Counts of fast commits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Units in fast commits.
    pub(crate) units: u64,
    /// Records in fast commits.
    pub(crate) records: u64,
    pub(crate) reasons: Reasons,
}

impl FastCommits {
    /// For a file system of this geometry, whose area has `area_blocks`.
    pub(crate) fn new(geometry: &Geometry, area_blocks: u32, faults: Faults) -> Self {
        Self::with(
            geometry.block_size().bytes(),
            geometry.inodes_per_block(),
            area_blocks,
            faults,
        )
    }

    fn with(block_bytes: usize, inodes_per_block: u32, area_blocks: u32, faults: Faults) -> Self {
        let area_bytes = block_bytes.saturating_mul(area_blocks as usize);
        Self {
            block_bytes,
            inodes_per_block,
            faults,
            // A note takes more memory than its record takes in the area.
            lists: Lists::new(area_bytes.saturating_mul(2), faults),
            watermark: AtomicU64::new(0),
            has_taints: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Lists the notes of a plan as a unit of the transaction `tid`. Called under the plan's
    /// handle, before its changes are visible.
    pub(crate) fn list(&self, tid: Tid, notes: &Notes, last: &[&LastChange]) {
        if self.faults.lacks(Sabotage::FreedNumberReused) {
            let mut state = self.state.lock();
            for nr in new_inodes(&notes.all) {
                state.taints.inodes.remove(&nr);
            }
        }
        if !notes.is_empty() {
            self.lists.add(tid, notes, last);
        }
    }

    /// Returns a time that is not before any change that the caller has seen.
    pub(crate) fn now(&self) -> Time {
        self.lists.now()
    }

    /// Whether the changes of inode `nr` up to `time` are durable. `tid` is the transaction of the
    /// last of them, or a later one if the inode was loaded since.
    pub(crate) fn covered(&self, nr: InodeNr, tid: Tid, time: Time) -> Covered {
        // The watermark is set after the taints.
        let is_past = time.0 <= self.watermark.load(Ordering::Acquire);
        if self.has_taints.load(Ordering::Acquire) {
            let state = self.state.lock();
            // The transaction of the taints may be a previous one, which is being committed.
            let tainted = state.tid.filter(|_| state.taints.include(nr));
            if let Some(tainted) = tainted.filter(|&tainted| tainted == tid || is_past) {
                return Covered::InFull(tainted);
            }
        }
        match is_past {
            true => Covered::Yes,
            false => Covered::No,
        }
    }

    /// Makes the records of all units up to now.
    pub(crate) fn records(&self, request: &FastCommitRequest) -> FastCommit {
        let state = &mut *self.state.lock();
        state.begin(request.tid);
        let made = self.try_records(state, request);
        self.has_taints
            .store(!state.taints.are_none(), Ordering::Release);
        made.unwrap_or(FastCommit::InFull)
    }

    /// Makes the records, if a fast commit is worth it; `None` if not.
    fn try_records(&self, state: &mut State, request: &FastCommitRequest) -> Option<FastCommit> {
        let cut = self.lists.take(request.tid, &mut state.memory.spare);
        state.cut = cut.at;
        let mut units = mem::take(&mut state.later);
        units.extend(cut.units);
        // Recovery makes the changes again in one transaction, perhaps with a few blocks more.
        if cut.is_overflowed || request.dirty_blocks > request.most_blocks / 4 * 3 {
            return None;
        }
        let blocks = self.net_records(state, &units, request)?;
        for mut taken in units {
            taken.places.retain(|place| place.clock > state.cut.0);
            match taken.is_empty() {
                true => state.memory.spare.push(taken),
                false => state.later.push(taken),
            }
        }
        if blocks.is_empty() {
            state.memory.records = blocks.end(request.tid);
            return Some(FastCommit::Nothing);
        }
        Some(FastCommit::Records(blocks.end(request.tid)))
    }

    /// Returns the records of the units up to the cut; `None` if they are too many.
    fn net_records(
        &self,
        state: &mut State,
        units: &[Units],
        request: &FastCommitRequest,
    ) -> Option<FastCommitBlocks> {
        let Memory {
            objects, records, ..
        } = &mut state.memory;
        let count = units.iter().map(|units| units.up_to(state.cut)).sum();
        state.most_units = state.most_units.max(count);
        let mut net = Net::new(units, count, objects, self.faults);
        for (list, place) in InOrder::new(units, state.cut) {
            if let Some(why) = net.add(list, place, &mut state.taints) {
                state.counts.reasons.count(why);
            }
        }
        net.settle(&mut state.taints, &mut state.counts.reasons);
        let mut blocks = FastCommitBlocks::in_memory_of(mem::take(records), self.block_bytes);
        if request.is_first {
            blocks.begin_area(request.tid);
        }
        let mut records = 0;
        // Inode numbers begin with 1; the journal's inode is in the first block.
        let is_in_another_block = |nr: InodeNr| nr.0 > self.inodes_per_block;
        let first: Option<&dyn Fn(InodeNr) -> bool> = match request.is_first {
            true => Some(&is_in_another_block),
            false => None,
        };
        let is_possible = net.records(first, |record| {
            blocks.push(record);
            records += 1;
        });
        let needed = u32::try_from(blocks.blocks()).unwrap_or(u32::MAX);
        let is_worth_it = blocks.is_empty() || needed <= request.dirty_blocks.max(1);
        if !is_possible || needed > request.room_blocks || !is_worth_it {
            return None;
        }
        state.counts.units += count as u64;
        state.counts.records += records;
        Some(blocks)
    }

    /// Notes that the records that were made last are durable. `records` is their memory, which is
    /// used again, or empty if there were none.
    pub(crate) fn are_durable(&self, records: Vec<u8>) {
        let mut state = self.state.lock();
        if records.capacity() > state.memory.records.capacity() {
            state.memory.records = records;
        }
        let cut = state.cut;
        drop(state);
        self.watermark.store(cut.0, Ordering::Release);
    }

    /// Returns the counts.
    pub(crate) fn counts(&self) -> Counts {
        self.state.lock().counts.clone()
    }
}

impl State {
    /// Begins fast commits of the transaction `tid`, if there were none.
    fn begin(&mut self, tid: Tid) {
        if self.tid != Some(tid) {
            self.tid = Some(tid);
            self.taints.clear();
            self.later.clear();
            // The memory for a transaction as large as the last one is kept.
            if self.memory.objects.capacity() / 4 > self.most_units.max(1024) {
                self.memory = Memory::default();
            }
            self.most_units = 0;
        }
    }
}
