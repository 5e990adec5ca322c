//! **Purpose.** The places of one content: which blocks, or inodes of values, hold it and have room
//! for another user.
//!
//! **Model.** A content has a *current* place, which cores take users of, and a few *spare* ones,
//! which become current when it leaves. A core that uses the content often gets a place of its own,
//! so that cores do not meet at one count:
//!
//! ```text
//! content -> current | spare spare spare spare | own place of core 0, 1, ..
//! ```
//!
//! The table of own places is made with the first of them. Its slots say: no own place (0), a
//! place, or that the core's place is used up and it gets another one ([`AWAITED`]).
//!
//! **Invariants.** A place is added and removed only under its own lock (that of the block or of
//! the inode of a value). So for the holder of that lock the answer of [`Known::has`] stays true.
//!
//! **Locking.** None here: atomic words, each of which is written when a place comes or leaves and
//! not when it is used.

use fourscore_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use fourscore_sync::{Arc, CoreNr, OnceLock};

/// No place: neither block 0 nor inode 0 holds attributes.
const NONE: u64 = 0;
/// The slot of a core that gets an own place with its next use.
const AWAITED: u64 = u64::MAX;
/// Places that are kept beside the current one. More are forgotten; they are found again when they
/// are loaded.
const SPARES: usize = 4;

/// A place to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) place: u64,
    /// Whether it is a spare place, which is to become a current one.
    pub(crate) is_spare: bool,
    /// Whether the core has no own place and this one was made by another core.
    pub(crate) is_foreign: bool,
}

/// Which cores use a new place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// All cores without an own place.
    All,
    /// One core.
    Own(CoreNr),
}

/// Whether a place is in use by its bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    Used,
    /// A reader has found it, and looks into no bitmap.
    None,
}

/// The places of one content.
#[derive(Debug)]
pub(crate) struct Known {
    current: AtomicU64,
    /// The core that made the current place.
    home: AtomicU64,
    spare: [AtomicU64; SPARES],
    /// The place that a reader has added, until a plan that wants it looks into the bitmap.
    unproven: AtomicU64,
    own: OnceLock<Table>,
}

/// The own places of cores.
#[derive(Debug)]
struct Table {
    slots: Box<[AtomicU64]>,
    _memory: Memory,
}

/// The memory that tables of own places may take, shared by all contents.
#[derive(Debug)]
pub(crate) struct Allowance(Arc<AtomicUsize>);

/// A part of the allowance, which is given back with it.
#[derive(Debug)]
struct Memory {
    of: Arc<AtomicUsize>,
    bytes: usize,
}

impl Allowance {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Whether there is enough for another table.
    pub(crate) fn has_some(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= Self::table_bytes()
    }

    fn table_bytes() -> usize {
        CoreNr::count() * size_of::<AtomicU64>()
    }

    fn take(&self) -> Option<Memory> {
        let bytes = Self::table_bytes();
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(bytes)
            });
        taken.is_ok().then(|| Memory {
            of: Arc::clone(&self.0),
            bytes,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.of.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

impl Known {
    pub(crate) fn new(place: u64, proof: Proof) -> Self {
        let unproven = match proof {
            Proof::Used => NONE,
            Proof::None => place,
        };
        Self {
            current: AtomicU64::new(place),
            home: AtomicU64::new(CoreNr::current().index() as u64),
            spare: Default::default(),
            unproven: AtomicU64::new(unproven),
            own: OnceLock::new(),
        }
    }

    /// Returns the place that `core` is to use; `None` if there is none, or if the core is to have
    /// a new one of its own.
    pub(crate) fn choose(&self, core: CoreNr) -> Option<Choice> {
        let own = self.own_slot(core).map_or(NONE, load);
        if own != NONE && own != AWAITED {
            return Some(Choice {
                place: own,
                is_spare: false,
                is_foreign: false,
            });
        }
        let current = load(&self.current);
        if own == NONE && current != NONE {
            let is_foreign = load(&self.home) != core.index() as u64;
            return Some(Choice {
                place: current,
                is_spare: false,
                is_foreign,
            });
        }
        let spare = self.spare.iter().map(load).find(|&place| place != NONE)?;
        Some(Choice {
            place: spare,
            is_spare: true,
            is_foreign: false,
        })
    }

    /// Returns a place for a core that would rather have its own, but must do with any.
    pub(crate) fn any(&self) -> Option<Choice> {
        let place = self.slots().map(load);
        let place = { place }.find(|&place| !matches!(place, NONE | AWAITED))?;
        Some(Choice {
            place,
            is_spare: false,
            is_foreign: false,
        })
    }

    /// Whether `core` is to have a place of its own.
    pub(crate) fn awaits_own(&self, core: CoreNr) -> bool {
        self.own_slot(core)
            .is_some_and(|slot| load(slot) == AWAITED)
    }

    /// Whether `place` is one of the places. For the holder of its lock.
    pub(crate) fn has(&self, place: u64) -> bool {
        self.slots().any(|slot| load(slot) == place)
    }

    /// Whether there are no places.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots()
            .all(|slot| matches!(load(slot), NONE | AWAITED))
    }

    /// Adds a place for `users`. For the holder of its lock. The first own place needs memory of
    /// `allowance`; without any, the place is one for all.
    pub(crate) fn add(&self, place: u64, users: Users, allowance: &Allowance) {
        self.prove(place);
        if self.has(place) {
            return;
        }
        if let Users::Own(core) = users {
            self.make_table(allowance);
            // A place that is there already stays: it is moved under its own lock only.
            if let Some(slot) = self.own_slot(core)
                && (replace(slot, NONE, place) || replace(slot, AWAITED, place))
            {
                return;
            }
        }
        if replace(&self.current, NONE, place) {
            self.set_home();
        } else {
            let _ = self.add_spare(place);
        }
    }

    /// Adds a place that a reader has loaded, unless another such place waits for its proof. For
    /// the holder of its lock.
    pub(crate) fn add_unproven(&self, place: u64) {
        if self.has(place) || !replace(&self.unproven, NONE, place) {
            return;
        }
        if replace(&self.current, NONE, place) {
            self.set_home();
        } else if !self.add_spare(place) {
            self.prove(place);
        }
    }

    /// Whether it is unknown if the place is in use by the bitmap. For the holder of its lock.
    pub(crate) fn is_unproven(&self, place: u64) -> bool {
        load(&self.unproven) == place
    }

    /// Notes that the place is in use by the bitmap. For the holder of its lock.
    pub(crate) fn prove(&self, place: u64) {
        replace(&self.unproven, place, NONE);
    }

    /// Makes a spare place a current one. For the holder of its lock.
    pub(crate) fn promote(&self, place: u64, core: CoreNr) {
        let Some(spare) = self.spare.iter().find(|slot| load(slot) == place) else {
            return;
        };
        let own = self.own_slot(core);
        if own.is_some_and(|slot| replace(slot, AWAITED, place)) {
            replace(spare, place, NONE);
        } else if replace(&self.current, NONE, place) {
            self.set_home();
            replace(spare, place, NONE);
        }
    }

    /// Removes a place, which is used up or freed. For the holder of its lock.
    pub(crate) fn remove(&self, place: u64) {
        replace(&self.current, place, NONE);
        for slot in &self.spare {
            replace(slot, place, NONE);
        }
        self.prove(place);
        for slot in self.own_slots() {
            replace(slot, place, AWAITED);
        }
    }

    fn make_table(&self, allowance: &Allowance) {
        if self.own.get().is_some() {
            return;
        }
        if let Some(memory) = allowance.take() {
            self.own.get_or_init(|| Table {
                slots: (0..CoreNr::count()).map(|_| AtomicU64::default()).collect(),
                _memory: memory,
            });
        }
    }

    /// Returns whether the place is kept.
    fn add_spare(&self, place: u64) -> bool {
        self.spare.iter().any(|slot| replace(slot, NONE, place))
    }

    fn set_home(&self) {
        let core = CoreNr::current().index() as u64;
        self.home.store(core, Ordering::Release);
    }

    fn own_slot(&self, core: CoreNr) -> Option<&AtomicU64> {
        self.own.get()?.slots.get(core.index())
    }

    fn own_slots(&self) -> impl Iterator<Item = &AtomicU64> {
        self.own.get().into_iter().flat_map(|table| &table.slots)
    }

    /// The places.
    #[cfg(all(test, feature = "shuttle"))]
    pub(super) fn places(&self) -> Vec<u64> {
        let places = self.slots().map(load);
        places
            .filter(|&place| !matches!(place, NONE | AWAITED))
            .collect()
    }

    fn slots(&self) -> impl Iterator<Item = &AtomicU64> {
        let shared = std::iter::once(&self.current).chain(&self.spare);
        shared.chain(self.own_slots())
    }
}

fn load(slot: &AtomicU64) -> u64 {
    slot.load(Ordering::Acquire)
}

/// Replaces `old` by `new`. Writes nothing if the slot has another value.
fn replace(slot: &AtomicU64, old: u64, new: u64) -> bool {
    load(slot) == old
        && slot
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn place(known: &Known, core: CoreNr) -> Option<u64> {
        known.choose(core).map(|choice| choice.place)
    }

    #[test]
    fn a_place_that_leaves_is_followed_by_a_spare_one() {
        let core = CoreNr::current();
        let known = Known::new(7, Proof::Used);
        let none = Allowance::new(0);
        known.add(7, Users::All, &none);
        known.add(8, Users::All, &none);
        assert_eq!(place(&known, core), Some(7));
        known.remove(7);
        let choice = known.choose(core).unwrap();
        assert!(choice.place == 8 && choice.is_spare, "{choice:?}");
        known.promote(8, core);
        assert!(!known.choose(core).unwrap().is_spare);
        assert!(known.has(8) && !known.has(7));
        known.remove(8);
        assert!(known.is_empty() && known.choose(core).is_none());
    }

    #[test]
    fn a_core_keeps_to_its_own_place_and_awaits_another() {
        let core = CoreNr::new(0).unwrap();
        let known = Known::new(7, Proof::Used);
        let some = Allowance::new(1 << 20);
        known.add(9, Users::Own(core), &some);
        assert_eq!(place(&known, core), Some(9));
        known.remove(9);
        assert!(known.awaits_own(core) && place(&known, core).is_none());
        known.add(11, Users::All, &some);
        assert_eq!(place(&known, core), Some(11), "a spare place");
        known.promote(11, core);
        assert!(!known.awaits_own(core));
        assert_eq!(place(&known, core), Some(11));
        if let Some(other) = CoreNr::new(1) {
            assert_eq!(place(&known, other), Some(7));
        }
    }

    /// The place that is in a slot already may be leaving under its own lock, which the thread that
    /// adds another one does not have.
    #[test]
    fn a_second_own_place_leaves_the_first_where_it_is() {
        let core = CoreNr::new(0).unwrap();
        let known = Known::new(7, Proof::Used);
        let some = Allowance::new(1 << 20);
        known.add(9, Users::Own(core), &some);
        known.add(11, Users::Own(core), &some);
        assert_eq!(place(&known, core), Some(9));
        known.remove(9);
        let choice = known.choose(core).unwrap();
        assert!(choice.place == 11 && choice.is_spare, "{choice:?}");
    }

    #[test]
    fn a_table_takes_memory_and_gives_it_back() {
        let core = CoreNr::new(0).unwrap();
        let allowance = Allowance::new(Allowance::table_bytes());
        let (one, two) = (Known::new(1, Proof::Used), Known::new(2, Proof::Used));
        one.add(3, Users::Own(core), &allowance);
        assert!(!allowance.has_some());
        two.add(4, Users::Own(core), &allowance);
        assert!(two.has(4) && two.own.get().is_none(), "a spare place");
        drop(one);
        assert!(allowance.has_some());
    }

    #[test]
    fn one_unproven_place_is_kept_until_it_is_proven_or_leaves() {
        let known = Known::new(1, Proof::None);
        known.add_unproven(2);
        assert!(!known.has(2), "the first one waits");
        known.prove(1);
        known.add_unproven(2);
        assert!(known.has(2) && known.is_unproven(2) && !known.is_unproven(1));
        known.remove(2);
        let none = Allowance::new(0);
        (3..3 + SPARES as u64).for_each(|place| known.add(place, Users::All, &none));
        known.add_unproven(20);
        assert!(!known.has(20), "no slot is left");
        known.remove(3);
        known.add_unproven(21);
        assert!(known.has(21), "the one without a slot is forgotten");
        known.add(21, Users::All, &none);
        assert!(!known.is_unproven(21), "a plan knows that it is used");
    }

    #[test]
    fn more_places_than_are_kept_are_forgotten() {
        let known = Known::new(1, Proof::Used);
        let none = Allowance::new(0);
        (2..20).for_each(|place| known.add(place, Users::All, &none));
        let kept = (1..20).filter(|&place| known.has(place)).count();
        assert_eq!(kept, 1 + SPARES);
    }
}
