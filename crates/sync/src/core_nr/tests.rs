//! Tests of core numbers and per-core values.

#[cfg(not(feature = "shuttle"))]
use super::machine::count_of_possible;
use super::*;

#[cfg(not(feature = "shuttle"))]
#[test]
fn the_count_covers_the_highest_possible_number() {
    assert_eq!(count_of_possible("0\n"), Some(1));
    assert_eq!(count_of_possible("0-191\n"), Some(192));
    assert_eq!(count_of_possible("0-3,8-11\n"), Some(12));
    assert_eq!(count_of_possible("0,2,64"), Some(65));
    assert_eq!(count_of_possible(""), None);
    assert_eq!(count_of_possible("0-x"), None);
    assert_eq!(count_of_possible("0-18446744073709551615"), None);
}

#[cfg(not(any(feature = "shuttle", feature = "count")))]
#[test]
fn every_core_has_a_slot() {
    let slots = PerCore::new(CoreNr::index);
    assert_eq!(slots.iter().count(), CoreNr::count());
    for core in CoreNr::all() {
        assert_eq!(*slots.of(core), core.index());
        assert_eq!(CoreNr::new(core.index()), Some(core));
    }
    assert_eq!(CoreNr::new(CoreNr::count()), None);
    assert!(*slots.mine() < CoreNr::count());
}

#[cfg(not(feature = "shuttle"))]
#[test]
fn a_counter_loses_nothing_when_threads_share_cores() {
    let counter = Counter::default();
    crate::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    counter.add(3);
                }
            });
        }
    });
    assert_eq!(counter.sum(), 12_000);
}

#[cfg(feature = "shuttle")]
#[test]
fn tasks_move_between_queries() {
    shuttle::check_random(
        || {
            let seen: Vec<_> = (0..8).map(|_| CoreNr::current().index()).collect();
            assert!(seen.contains(&0) && seen.contains(&1), "{seen:?}");
        },
        10,
    );
}

#[cfg(not(feature = "shuttle"))]
#[test]
fn serial_numbers_are_unique() {
    let serial = Serial::default();
    let take = || (0..1000).map(|_| serial.next()).collect::<Vec<_>>();
    let mut given = crate::thread::scope(|scope| {
        let takers = [(); 4].map(|()| scope.spawn(take));
        takers.map(|taker| taker.join().expect("no panic")).concat()
    });
    given.sort_unstable();
    given.dedup();
    assert_eq!(given.len(), 4000);
}
