//! **Purpose.** The cores that hold each cache line, and the tally of each place in the source.
//!
//! **Locking.** Lines and tallies are sharded by line address, and each shard has a lock of the
//! standard library, so threads may record in parallel. Labels have a lock of their own, which is
//! never taken under the lock of a shard.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

pub(super) const MAX_CORES: usize = 256;
const LINE_BYTES: usize = 64;
const SHARDS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A set of cores.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct CoreSet([u64; MAX_CORES / 64]);

impl CoreSet {
    fn only(core: usize) -> Self {
        let mut set = Self::default();
        set.insert(core);
        set
    }

    fn insert(&mut self, core: usize) {
        self.0[core / 64] |= 1 << (core % 64);
    }

    fn contains(&self, core: usize) -> bool {
        self.0[core / 64] & (1 << (core % 64)) != 0
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

/// The state of a line. A line that no core has written yet comes from memory, not from a core.
#[derive(Clone, Copy, Default)]
struct Line {
    holders: CoreSet,
    /// Where the last write came from.
    written: Option<&'static Location<'static>>,
}

impl Line {
    /// Performs an access. Returns whether the line had to be fetched from, or invalidated in, the
    /// cache of another core.
    fn access(&mut self, core: usize, access: Access, site: &'static Location<'static>) -> bool {
        match access {
            Access::Read => {
                let transfer = self.written.is_some() && !self.holders.contains(core);
                self.holders.insert(core);
                transfer
            }
            Access::Write => {
                let exclusive = CoreSet::only(core);
                let transfer = !self.holders.is_empty() && self.holders != exclusive;
                *self = Self {
                    holders: exclusive,
                    written: Some(site),
                };
                transfer
            }
        }
    }
}

/// Where a line was accessed. Ordered by label, then file and line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    pub(super) label: Option<&'static str>,
    pub(super) location: &'static Location<'static>,
}

/// The accesses of one site.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) transfers: u64,
    /// The write that made the last transfer necessary.
    pub(super) after: Option<&'static Location<'static>>,
}

#[derive(Default)]
struct Shard {
    lines: HashMap<usize, Line>,
    /// The key is the label and the address of the `Location`, which is quick to compare; the same
    /// location may appear under several addresses.
    tallies: HashMap<(Option<&'static str>, usize), (Site, Tally)>,
}

/// A label and the end of its range, by the start of the range.
type Labels = BTreeMap<usize, (usize, &'static str)>;

/// The memory of one virtual machine.
pub(super) struct Recorder {
    shards: [Mutex<Shard>; SHARDS],
    labels: RwLock<Labels>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            labels: RwLock::default(),
        }
    }
}

impl Recorder {
    pub(super) fn note(
        &self,
        address: usize,
        core: usize,
        access: Access,
        site: &'static Location<'static>,
    ) {
        let site = Site {
            label: self.label(address),
            location: site,
        };
        let mut shard = self.shard(address / LINE_BYTES);
        let line = shard.lines.entry(address / LINE_BYTES).or_default();
        let after = line.written;
        let transfer = line.access(core, access, site.location);
        let key = (site.label, std::ptr::from_ref(site.location).addr());
        let (_, tally) = shard.tallies.entry(key).or_insert((site, Tally::default()));
        match access {
            Access::Read => tally.reads += 1,
            Access::Write => tally.writes += 1,
        }
        if transfer {
            tally.transfers += 1;
            tally.after = after;
        }
    }

    /// Marks all lines of the range as written by `core` and held by no other core.
    pub(super) fn written(
        &self,
        range: Range<usize>,
        core: usize,
        site: &'static Location<'static>,
    ) {
        let line = Line {
            holders: CoreSet::only(core),
            written: Some(site),
        };
        for number in range.start / LINE_BYTES..=(range.end - 1) / LINE_BYTES {
            self.shard(number).lines.insert(number, line);
        }
    }

    pub(super) fn forget(&self, address: usize) {
        self.shard(address / LINE_BYTES)
            .lines
            .remove(&(address / LINE_BYTES));
    }

    pub(super) fn forget_all(&self, range: Range<usize>) {
        for number in range.start / LINE_BYTES..=(range.end - 1) / LINE_BYTES {
            self.shard(number).lines.remove(&number);
        }
    }

    pub(super) fn name(&self, range: Range<usize>, label: &'static str) {
        let mut labels = self.labels.write().unwrap_or_else(PoisonError::into_inner);
        labels.insert(range.start, (range.end, label));
    }

    /// Clears the tallies.
    pub(super) fn restart(&self) {
        for shard in &self.shards {
            lock(shard).tallies.clear();
        }
    }

    /// The tallies so far, one for each site.
    pub(super) fn tallies(&self) -> BTreeMap<Site, Tally> {
        let mut all = BTreeMap::<Site, Tally>::new();
        for shard in &self.shards {
            for (site, tally) in lock(shard).tallies.values() {
                let sum = all.entry(*site).or_default();
                sum.reads += tally.reads;
                sum.writes += tally.writes;
                sum.transfers += tally.transfers;
                sum.after = sum.after.or(tally.after);
            }
        }
        all
    }

    fn label(&self, address: usize) -> Option<&'static str> {
        let labels = self.labels.read().unwrap_or_else(PoisonError::into_inner);
        let (_, (end, label)) = labels.range(..=address).next_back()?;
        (address < *end).then_some(*label)
    }

    fn shard(&self, line: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[line % SHARDS])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
