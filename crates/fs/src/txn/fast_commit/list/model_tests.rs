//! Cuts under shuttle: in each explored interleaving a cut has, with a unit, all units that it
//! depends on.

use fourscore_ondisk::InodeNr;
use fourscore_sync::{Arc, model, thread};

use super::*;
use crate::txn::fast_commit::reason::Reason;

const SCHEDULES: usize = 3000;
const TID: Tid = Tid(7);

/// An inode under its lock: the time of its last change, and how many there were.
type Inode = Mutex<(LastChange, u32)>;

fn change(lists: &Lists, inode: &Inode, is_loaded_again: bool) {
    let mut locked = inode.lock();
    locked.1 += 1;
    let mut notes = Notes::default();
    notes.push(Note::Taint {
        nr: InodeNr(locked.1),
        why: Reason::Xattr,
    });
    lists.add(TID, &notes, &[&locked.0]);
    if is_loaded_again {
        // It has left memory.
        locked.0 = LastChange::of(Some(TID), lists.now());
    }
}

/// The changes in the cut, which are numbered in the order in which they were made.
fn in_cut(cut: &Cut) -> Vec<u32> {
    let places = cut.units.iter().flat_map(|units| {
        let places = units.places.iter().filter(|place| place.clock <= cut.at.0);
        places.map(move |place| units.notes(place)[0])
    });
    let mut numbers: Vec<_> = places
        .filter_map(|note| match note {
            Note::Taint { nr, .. } => Some(nr.0),
            _ => None,
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

fn cuts_are_closed(faults: Faults) -> impl Fn() + Clone + Send + Sync + 'static {
    move || {
        let lists = Arc::new(Lists::new(1 << 20, faults));
        let inode = Arc::new(Inode::default());
        let changers: Vec<_> = (0..2)
            .map(|nth| {
                let (lists, inode) = (Arc::clone(&lists), Arc::clone(&inode));
                thread::spawn(move || {
                    for round in 0..3 {
                        change(&lists, &inode, (round + nth) % 2 == 0);
                    }
                })
            })
            .collect();
        let cut = lists.take(TID, &mut Vec::new());
        let numbers = in_cut(&cut);
        let expected: Vec<u32> = (1..).take(numbers.len()).collect();
        assert_eq!(numbers, expected, "an earlier unit is missing");
        for changer in changers {
            changer.join().expect("a task");
        }
    }
}

#[test]
fn a_cut_has_no_unit_without_those_it_depends_on() {
    model::check(SCHEDULES, cuts_are_closed(Faults::default()));
}

#[cfg(feature = "sabotage")]
#[test]
#[should_panic(expected = "an earlier unit is missing")]
fn a_cut_that_is_not_closed_is_noticed() {
    let fault = Some(crate::txn::faults::Sabotage::UnclosedCut);
    model::check(SCHEDULES, cuts_are_closed(Faults::injected(fault)));
}
