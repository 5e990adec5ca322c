//! **Purpose.** The cores that hold each cache line, and the tally of each place in the source.
//!
//! **Locking.** Lines and tallies are sharded by line address, and each shard has a lock of the
//! standard library, so threads may record in parallel. Labels, and the places of values that are
//! counted elsewhere, have locks of their own, which are never taken under the lock of a shard.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
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

    /// The cores of the set, in order.
    fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_CORES).filter(move |&core| self.contains(core))
    }
}

/// The cores that a line moves from.
#[derive(Clone, Copy)]
pub(super) struct Sources(CoreSet);

impl Sources {
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        self.0.iter()
    }
}

/// The state of a line. A line that no core has written yet comes from memory, not from a core.
#[derive(Clone, Copy, Default)]
struct Line {
    holders: CoreSet,
    /// Where the last write came from.
    written: Option<&'static Location<'static>>,
    /// The core of the last write.
    writer: u16,
}

impl Line {
    /// Whether an access has to fetch the line from the cache of another core, or invalidate it
    /// there.
    fn moves(&self, core: usize, access: Access) -> bool {
        match access {
            Access::Read => self.written.is_some() && !self.holders.contains(core),
            Access::Write => !self.holders.is_empty() && self.holders != CoreSet::only(core),
        }
    }

    /// Performs an access. Returns the cores that the line moves from, if it moves: the last writer
    /// for a read, all holders for a write.
    fn access(
        &mut self,
        core: usize,
        access: Access,
        site: &'static Location<'static>,
    ) -> Option<Sources> {
        let moves = self.moves(core, access);
        let from = match access {
            Access::Read => {
                self.holders.insert(core);
                CoreSet::only(self.writer.into())
            }
            Access::Write => std::mem::replace(self, Self::written_by(core, site)).holders,
        };
        moves.then_some(Sources(from))
    }

    /// A line that a core has just written.
    fn written_by(core: usize, site: &'static Location<'static>) -> Self {
        Self {
            holders: CoreSet::only(core),
            written: Some(site),
            writer: u16::try_from(core).unwrap_or(u16::MAX),
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

/// Hashes addresses and numbers of lines, of which there are many, in few instructions.
#[derive(Clone, Copy, Default)]
pub(super) struct AddressHasher(u64);

/// A map by address or number of line.
pub(super) type AddressMap<K, V> = HashMap<K, V, BuildHasherDefault<AddressHasher>>;

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, value: u64) {
        // The upper half of the product depends on all lower bits of the value.
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

#[derive(Default)]
struct Shard {
    lines: AddressMap<usize, Line>,
    /// The key is the label and the address of the `Location`, which is quick to compare; the same
    /// location may appear under several addresses.
    tallies: AddressMap<(Option<&'static str>, usize), (Site, Tally)>,
}

/// A label and the end of its range, by the start of the range.
type Labels = BTreeMap<usize, (usize, &'static str)>;

/// The memory of one virtual machine.
pub(super) struct Recorder {
    shards: [Mutex<Shard>; SHARDS],
    labels: RwLock<Labels>,
    /// Addresses that are taken to be on the line of another address.
    moved: RwLock<AddressMap<usize, usize>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            labels: RwLock::default(),
            moved: RwLock::default(),
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
    ) -> Option<Sources> {
        let site = Site {
            label: self.label(address),
            location: site,
        };
        let number = self.line(address);
        let mut shard = self.shard(number);
        let line = shard.lines.entry(number).or_default();
        let after = line.written;
        let from = line.access(core, access, site.location);
        let key = (site.label, std::ptr::from_ref(site.location).addr());
        let (_, tally) = shard.tallies.entry(key).or_insert((site, Tally::default()));
        match access {
            Access::Read => tally.reads += 1,
            Access::Write => tally.writes += 1,
        }
        if from.is_some() {
            tally.transfers += 1;
            tally.after = after;
        }
        from
    }

    /// Whether an access would move a line.
    pub(super) fn moves(&self, address: usize, core: usize, access: Access) -> bool {
        let number = self.line(address);
        let shard = self.shard(number);
        let line = shard.lines.get(&number);
        line.is_some_and(|line| line.moves(core, access))
    }

    /// The number of the line that an address is on.
    pub(super) fn line(&self, address: usize) -> usize {
        let moved = self.moved.read().unwrap_or_else(PoisonError::into_inner);
        moved.get(&address).map_or(address, |&to| to) / LINE_BYTES
    }

    /// Puts the value at an address on the line of another one.
    pub(super) fn put_beside(&self, address: usize, other: usize) {
        let mut moved = self.moved.write().unwrap_or_else(PoisonError::into_inner);
        moved.insert(address, other);
    }

    /// Marks all lines of the range as written by `core` and held by no other core.
    pub(super) fn written(
        &self,
        range: Range<usize>,
        core: usize,
        site: &'static Location<'static>,
    ) {
        let line = Line::written_by(core, site);
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
