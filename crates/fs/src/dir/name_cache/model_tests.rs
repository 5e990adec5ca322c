//! Lookups against departures, in many orders of steps: once a thread has seen what a name refers
//! to, no lookup returns an older value. Each part of the protocol is left out once, and the test
//! must find that.

use fourscore_sync::atomic::AtomicUsize;
use fourscore_sync::{Mutex, epoch, model, thread};

use super::*;

const SCHEDULES: usize = 5000;
/// The number of orders with an injected fault, which is found early as a rule; orders are random.
const SCHEDULES_OF_FAULTS: usize = 100_000;
const DIR: InodeNr = InodeNr(11);
const NAME: &[u8] = b"name";

/// The part of the protocol that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The entry is removed after the change.
    LateForget,
    /// The departure is not counted.
    NoMoment,
    /// A lookup does not check whether the directory has left memory.
    AnyCell,
    /// The departure count restarts when the directory comes back, and no life distinguishes the
    /// two counts.
    NoLife,
}

/// A directory with one name, which refers to each value of [`SEQUENCE`] in turn; 0 means that the
/// name is missing.
struct Shared {
    names: NameCache,
    leads: AtomicUsize,
    /// The departure counts of the directory's cells; `cell` says which of them is in memory.
    departures: [Departures; 2],
    cell: AtomicUsize,
    /// Held by a task that makes changes, so that the directory stays in memory.
    changing: Mutex<()>,
    /// The last position in the sequence that a task has seen.
    seen: AtomicUsize,
    fault: Fault,
}

/// What the name refers to, one after the other.
const SEQUENCE: [usize; 4] = [1, 0, 2, 3];

impl Shared {
    fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self {
            names: NameCache::new(1 << 12),
            leads: AtomicUsize::new(SEQUENCE[0]),
            departures: match fault {
                Fault::NoLife => Default::default(),
                _ => [1, 2].map(Departures::of_life),
            },
            cell: AtomicUsize::new(0),
            changing: Mutex::new(()),
            seen: AtomicUsize::new(0),
            fault,
        })
    }

    /// As `Fs::look_up`.
    fn look(&self) -> usize {
        let guard = epoch::pin();
        let cell = self.cell.load(Ordering::Acquire);
        let moment = self.departures[cell].moment();
        let key = self.names.key(DIR, NAME);
        if let Some(known) = self.names.get(&key, &guard) {
            return known.0 as usize;
        }
        let found = self.leads.load(Ordering::Acquire);
        if let (1.., Some(moment)) = (found, moment) {
            self.names
                .put(&key, InodeNr(u32::try_from(found).expect("small")), || {
                    let now = match self.fault {
                        Fault::AnyCell => cell,
                        _ => self.cell.load(Ordering::Acquire),
                    };
                    self.departures[now].moment() == Some(moment)
                });
        }
        found
    }

    /// Looks the name up, and compares the result with what other tasks have seen before.
    fn look_and_compare(&self) {
        let before = self.seen.load(Ordering::SeqCst);
        let found = self.look();
        let place = SEQUENCE.iter().position(|&value| value == found).unwrap();
        assert!(
            place >= before,
            "{found} was found, and later values before"
        );
        self.seen.fetch_max(place, Ordering::SeqCst);
    }

    /// Makes the name that refers to the value before `place` depart, as a plan does.
    fn depart(&self, place: usize) {
        let held = self.changing.lock();
        let departures = &self.departures[self.cell.load(Ordering::Acquire)];
        let hash = self.names.key(DIR, NAME).hash;
        if self.fault != Fault::NoMoment {
            departures.begin();
        }
        if self.fault != Fault::LateForget {
            self.names.forget(hash);
        }
        self.leads.store(SEQUENCE[place], Ordering::Release);
        if self.fault == Fault::LateForget {
            self.names.forget(hash);
        }
        if self.fault != Fault::NoMoment {
            departures.end();
        }
        drop(held);
        self.seen.fetch_max(place, Ordering::SeqCst);
    }

    /// Makes the name, which is no departure.
    fn come(&self, place: usize) {
        let held = self.changing.lock();
        self.leads.store(SEQUENCE[place], Ordering::Release);
        drop(held);
        self.seen.fetch_max(place, Ordering::SeqCst);
    }

    /// The directory leaves memory and comes back.
    fn evict(&self) {
        if let Some(_held) = self.changing.try_lock() {
            self.cell.store(1, Ordering::Release);
        }
    }
}

/// What the tasks of a model do.
type Work = fn(&Shared);

/// Runs `tasks` concurrently in many orders; afterwards the name refers to the value at `last`.
fn run(fault: Fault, tasks: &'static [Work], last: usize) {
    let schedules = match fault {
        Fault::None => SCHEDULES,
        _ => SCHEDULES_OF_FAULTS,
    };
    model::check(schedules, move || {
        let shared = Shared::new(fault);
        let running: Vec<_> = tasks
            .iter()
            .map(|work| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || work(&shared))
            })
            .collect();
        for task in running {
            task.join().expect("a task");
        }
        // Afterwards all lookups agree, the first one and the second.
        let value = SEQUENCE[last];
        let found = (shared.look(), shared.look());
        assert_eq!(found, (value, value), "in the end, later values before");
        let key = shared.names.key(DIR, NAME);
        let is_known = shared.names.get(&key, &epoch::pin()).is_some();
        assert_eq!(is_known, value > 0);
    });
}

const LOOKER: Work = |shared| (0..3).for_each(|_| shared.look_and_compare());

/// The whole life of the name, while the directory leaves memory.
const LIFE: [Work; 4] = [
    LOOKER,
    LOOKER,
    |shared| {
        shared.depart(1);
        shared.come(2);
        shared.depart(3);
    },
    Shared::evict,
];

/// The name is removed while one task looks it up once, and another twice.
const END: [Work; 3] = [
    Shared::look_and_compare,
    |shared| (0..2).for_each(|_| shared.look_and_compare()),
    |shared| shared.depart(1),
];

#[test]
fn no_lookup_finds_the_previous_inode_of_a_name() {
    run(Fault::None, &LIFE, 3);
    run(Fault::None, &END, 1);
}

#[test]
#[should_panic(expected = "later values before")]
fn an_entry_that_is_taken_out_behind_the_change_is_found() {
    run(Fault::LateForget, &END, 1);
}

#[test]
#[should_panic(expected = "later values before")]
fn an_entry_that_comes_in_late_is_found_if_departures_do_not_tell() {
    run(Fault::NoMoment, &LIFE, 3);
}

#[test]
#[should_panic(expected = "later values before")]
fn an_entry_that_comes_in_late_is_found_if_the_cell_does_not_tell() {
    run(Fault::AnyCell, &LIFE, 3);
}

#[test]
#[should_panic(expected = "later values before")]
fn an_entry_that_comes_in_late_is_found_if_counts_of_two_lives_are_compared() {
    run(Fault::NoLife, &LIFE, 3);
}
