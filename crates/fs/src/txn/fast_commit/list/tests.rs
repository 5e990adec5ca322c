//! The lists of units, and their cuts.

use fourscore_ondisk::InodeNr;
use fourscore_sync::atomic::AtomicBool;
use fourscore_sync::{Arc, thread};

use super::*;
use crate::txn::fast_commit::note::Note;
use crate::txn::fast_commit::reason::Reason;

const TID: Tid = Tid(7);

fn notes(nr: u32) -> Notes {
    let mut notes = Notes::default();
    notes.push(Note::Taint {
        nr: InodeNr(nr),
        why: Reason::Xattr,
    });
    notes
}

/// The numbers of the inodes of the units up to the cut, and of those behind it.
fn numbers(cut: &Cut) -> (Vec<u32>, Vec<u32>) {
    let places = cut.units.iter().flat_map(|units| {
        let places = units.places.iter();
        places.map(move |place| (place.clock, units.notes(place)[0]))
    });
    let (mut in_cut, mut behind) = (Vec::new(), Vec::new());
    for (clock, note) in places {
        let Note::Taint { nr, .. } = note else {
            panic!("another note")
        };
        match clock <= cut.at.0 {
            true => in_cut.push(nr.0),
            false => behind.push(nr.0),
        }
    }
    (in_cut, behind)
}

#[test]
fn a_cut_takes_the_units_of_the_transaction_once() {
    let lists = Lists::new(1 << 20, Faults::default());
    let last = LastChange::new();
    lists.add(Tid(6), &notes(1), &[&last]);
    lists.add(TID, &notes(2), &[&last]);
    lists.add(TID, &notes(3), &[]);
    let mut spare = Vec::new();
    let cut = lists.take(TID, &mut spare);
    assert_eq!(numbers(&cut), (vec![2, 3], vec![]));
    assert!(last.time() > Time(0) && last.time() <= cut.at);
    assert!(!cut.is_overflowed);
    assert!(lists.take(TID, &mut spare).units.is_empty());
    // Later changes are later than the cut.
    lists.add(TID, &notes(4), &[&last]);
    assert!(last.time() > cut.at && lists.now() >= last.time());
    assert!(lists.take(Tid(8), &mut spare).units.is_empty());
    assert_eq!(numbers(&lists.take(TID, &mut spare)), (vec![4], vec![]));
}

#[test]
fn a_list_that_grows_too_long_is_dropped_and_says_so() {
    let lists = Lists::new(1000, Faults::default());
    for nr in 0..100 {
        lists.add(TID, &notes(nr), &[]);
    }
    assert!(lists.take(TID, &mut Vec::new()).is_overflowed);
    lists.add(Tid(8), &notes(1), &[]);
    let cut = lists.take(Tid(8), &mut Vec::new());
    assert!(!cut.is_overflowed && cut.units.len() == 1);
}

/// Threads change an inode one after the other. Whatever the cut has of it is a prefix.
#[test]
fn a_cut_has_no_unit_without_those_it_depends_on() {
    let lists = Arc::new(Lists::new(1 << 24, Faults::default()));
    // The inode, with the number of its changes.
    let inode = Arc::new(Mutex::new((LastChange::new(), 0)));
    let is_done = Arc::new(AtomicBool::new(false));
    let changers: Vec<_> = (0..3)
        .map(|_| {
            let (lists, inode, is_done) =
                (Arc::clone(&lists), Arc::clone(&inode), Arc::clone(&is_done));
            thread::spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    let mut locked = inode.lock();
                    locked.1 += 1;
                    lists.add(TID, &notes(locked.1), &[&locked.0]);
                    if locked.1 % 5 == 0 {
                        // It leaves memory, and is loaded again.
                        locked.0 = LastChange::of(Some(TID), lists.now());
                    }
                }
            })
        })
        .collect();
    let (mut next, mut later) = (1, Vec::new());
    while next < 20_000 {
        thread::yield_now();
        let cut = lists.take(TID, &mut Vec::new());
        let (mut in_cut, behind) = numbers(&cut);
        in_cut.append(&mut later);
        in_cut.sort_unstable();
        for nr in in_cut {
            assert_eq!(nr, next, "an earlier unit is missing");
            next += 1;
        }
        later = behind;
    }
    is_done.store(true, Ordering::Relaxed);
    changers
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}
