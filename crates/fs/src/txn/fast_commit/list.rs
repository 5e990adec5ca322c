//! **Purpose.** Lists of the units of the running transaction, one for each core, and the clocks by
//! which a fast commit takes a consistent part of them.
//!
//! **Model.** A unit gets a time of a logical clock (Lamport): it is later than all earlier units
//! of its core and than all earlier units that changed one of its inodes. A fast commit chooses a
//! time, the *cut*, and takes the units up to it. So with a unit it takes all units that the unit
//! depends on.
//!
//! ```text
//! core 0   .. 7 ... 9 .......... 12 ...
//! core 1   ..... 8 ....... 10 ......... 13
//!                            ^ cut
//! ```
//!
//! No clock of a core passes the *ceiling*, a word that all cores read. A core that reaches it
//! raises it by some thousands, so it is written rarely. The cut is the ceiling as the committer
//! reads it: units that are listed later, as 12 and 13 above, wait for the next fast commit.
//!
//! **Invariants.**
//! - A unit is listed before its changes are visible. So a thread that has seen a change of an
//!   inode finds a ceiling that is at least the unit's time.
//! - After a cut no unit gets a time up to that of the cut: each core's clock is set to it when its
//!   list is taken.
//! - An inode that is loaded again may have been changed by any unit up to the ceiling, so its own
//!   clock begins there.
//!
//! **Locking.** The lock of a list is a leaf; it is taken under an open handle.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::mem;

use fourscore_ondisk::Tid;
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{CachePadded, CoreNr, Mutex, PerCore};

use crate::inode::last_change::LastChange;
use crate::txn::fast_commit::note::{Note, Notes, Piece, Place};
use crate::txn::fast_commit::time::Time;
use crate::txn::faults::{Faults, Sabotage};

/// By how much the ceiling is raised.
const STEP: u64 = 4096;

/// The most bytes of one list, whatever the area has.
const MOST_BYTES: usize = 1 << 30;

/// A name or an inode in the bytes of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    at: u32,
    len: u16,
}

impl Bytes {
    /// The bytes of a note in the unit at `place`.
    pub(crate) fn of(piece: Piece, place: &Place) -> Self {
        Self {
            // A list has at most MOST_BYTES.
            at: u32::try_from(place.bytes.start)
                .unwrap_or(u32::MAX)
                .saturating_add(piece.at),
            len: piece.len,
        }
    }
}

/// The units of one core.
#[derive(Debug, Default)]
pub(crate) struct Units {
    /// In ascending order of their times.
    pub(crate) places: Vec<Place>,
    notes: Vec<Note>,
    bytes: Vec<u8>,
}

impl Units {
    /// Returns the notes of a unit.
    pub(crate) fn notes(&self, place: &Place) -> &[Note] {
        &self.notes[place.notes.clone()]
    }

    /// Returns a name or an inode of a unit.
    pub(crate) fn bytes(&self, bytes: Bytes) -> &[u8] {
        let at = bytes.at as usize;
        let piece = self.bytes.get(at..at + usize::from(bytes.len));
        piece.unwrap_or_default()
    }

    fn clear(&mut self) {
        self.places.clear();
        self.notes.clear();
        self.bytes.clear();
    }

    /// Adds a unit, which is later than the others.
    pub(crate) fn push(&mut self, clock: u64, notes: &Notes) {
        let (first, start) = (self.notes.len(), self.bytes.len());
        self.notes.extend_from_slice(&notes.all);
        self.bytes.extend_from_slice(&notes.bytes);
        self.places.push(Place {
            clock,
            notes: first..self.notes.len(),
            bytes: start..self.bytes.len(),
        });
    }

    fn size_bytes(&self) -> usize {
        let notes = self.notes.len() * size_of::<Note>();
        self.bytes.len() + notes + self.places.len() * size_of::<Place>()
    }

    /// The number of units up to a time.
    pub(crate) fn up_to(&self, time: Time) -> usize {
        self.places.partition_point(|place| place.clock <= time.0)
    }

    /// Whether there are no units.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

/// The units of several lists up to a time, in the order of their times, each with the number of
/// its list.
#[derive(Debug)]
pub(crate) struct InOrder<'u> {
    lists: &'u [Units],
    until: Time,
    /// The next unit of each list that has one: its time, the list, and its place.
    next: BinaryHeap<Reverse<(u64, usize, usize)>>,
}

impl<'u> InOrder<'u> {
    pub(crate) fn new(lists: &'u [Units], until: Time) -> Self {
        let first = lists.iter().enumerate().filter_map(|(list, units)| {
            let place = units.places.first()?;
            (place.clock <= until.0).then_some(Reverse((place.clock, list, 0)))
        });
        Self {
            lists,
            until,
            next: first.collect(),
        }
    }
}

impl<'u> Iterator for InOrder<'u> {
    type Item = (usize, &'u Place);

    fn next(&mut self) -> Option<Self::Item> {
        let mut first = self.next.peek_mut()?;
        let Reverse((_, list, at)) = *first;
        let places = &self.lists[list].places;
        match places.get(at + 1).filter(|next| next.clock <= self.until.0) {
            Some(next) => *first = Reverse((next.clock, list, at + 1)),
            None => drop(PeekMut::pop(first)),
        }
        Some((list, &places[at]))
    }
}

#[derive(Debug, Default)]
struct List {
    clock: u64,
    /// The transaction of the units.
    tid: Option<Tid>,
    units: Units,
    /// Whether units of the transaction were dropped because there were too many.
    is_overflowed: bool,
}

/// The lists of all cores.
#[derive(Debug)]
pub(crate) struct Lists {
    lists: PerCore<Mutex<List>>,
    ceiling: CachePadded<AtomicU64>,
    /// The most bytes of one list.
    most_bytes: usize,
    faults: Faults,
}

/// What was taken from the lists.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    pub(crate) at: Time,
    pub(crate) units: Vec<Units>,
    pub(crate) is_overflowed: bool,
}

impl Lists {
    /// Empty lists; none will grow beyond `most_bytes`.
    pub(crate) fn new(most_bytes: usize, faults: Faults) -> Self {
        Self {
            lists: PerCore::default(),
            ceiling: CachePadded::new(AtomicU64::new(0)),
            most_bytes: most_bytes.min(MOST_BYTES),
            faults,
        }
    }

    /// Lists a unit of the transaction `tid`, which changes the inodes of `last`. The caller has an
    /// open handle in it.
    pub(crate) fn add(&self, tid: Tid, notes: &Notes, last: &[&LastChange]) {
        let mut list = self.lists.mine().lock();
        let seen = last.iter().map(|last| last.time().0).max().unwrap_or(0);
        let clock = list.clock.max(seen) + 1;
        if clock > self.ceiling.load(Ordering::Acquire) {
            self.ceiling.fetch_max(clock + STEP, Ordering::AcqRel);
        }
        list.clock = clock;
        last.iter().for_each(|last| last.reach(Time(clock)));
        if list.tid != Some(tid) {
            list.tid = Some(tid);
            list.units.clear();
            list.is_overflowed = false;
        }
        if list.is_overflowed {
            return;
        }
        list.units.push(clock, notes);
        if list.units.size_bytes() > self.most_bytes {
            list.units = Units::default();
            list.is_overflowed = true;
        }
    }

    /// Returns a time that is not before any unit whose changes the caller has seen.
    pub(crate) fn now(&self) -> Time {
        Time(self.ceiling.load(Ordering::Acquire))
    }

    /// Takes the units of the transaction `tid`, and leaves the memory of `spare` in their place.
    /// Units that are later than the cut are taken as well.
    pub(crate) fn take(&self, tid: Tid, spare: &mut Vec<Units>) -> Cut {
        let mut cut = Cut {
            at: self.now(),
            ..Cut::default()
        };
        if self.faults.lacks(Sabotage::UnclosedCut) {
            cut.at = Time(u64::MAX);
        }
        for core in CoreNr::all() {
            let mut list = self.lists.of(core).lock();
            if !self.faults.lacks(Sabotage::UnclosedCut) {
                list.clock = list.clock.max(cut.at.0);
            }
            if list.tid != Some(tid) {
                continue;
            }
            cut.is_overflowed |= list.is_overflowed;
            if !list.units.is_empty() {
                let mut empty = spare.pop().unwrap_or_default();
                empty.clear();
                cut.units.push(mem::replace(&mut list.units, empty));
            }
        }
        cut
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
