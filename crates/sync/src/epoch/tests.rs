//! Tests of epoch cells, with values whose drop is counted and would be seen by readers.

use super::*;
use crate::Arc;
use crate::thread;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value that counts how many of its kind are alive, and spoils its number when it is dropped.
struct Probe {
    number: usize,
    alive: Arc<AtomicUsize>,
}

impl Probe {
    fn new(number: usize, alive: &Arc<AtomicUsize>) -> Box<Self> {
        alive.fetch_add(1, Ordering::SeqCst);
        Box::new(Self {
            number,
            alive: Arc::clone(alive),
        })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // A reader that still uses the value afterwards sees the wrong number.
        self.number = usize::MAX;
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until `alive` values are left. The tests of this process share one collector, so a guard
/// of some other test may hold values back for a moment.
fn settles_at(alive: &AtomicUsize, expected: usize) {
    settles_while(alive, expected, || ());
}

/// As [`settles_at`], calling `between` before each check.
fn settles_while(alive: &AtomicUsize, expected: usize, mut between: impl FnMut()) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        between();
        flush();
        let left = alive.load(Ordering::SeqCst);
        if left == expected {
            return;
        }
        assert!(
            left > expected && std::time::Instant::now() < deadline,
            "{left} values are left, not {expected}"
        );
        std::thread::yield_now();
    }
}

fn in_a_model(test: impl Fn() + Send + Sync + 'static) {
    #[cfg(feature = "shuttle")]
    shuttle::check_random(test, 50);
    #[cfg(not(feature = "shuttle"))]
    test();
}

#[test]
fn replaced_values_wait_for_their_readers_only() {
    in_a_model(|| {
        let alive = Arc::new(AtomicUsize::new(0));
        let cell = EpochCell::new(Some(Probe::new(1, &alive)));
        let guard = pin();
        let first = cell.load(&guard).expect("a value");
        cell.store(Some(Probe::new(2, &alive)));
        flush();
        assert_eq!(first.number, 1, "kept by the guard");
        assert_eq!(cell.load(&guard).map(|probe| probe.number), Some(2));
        assert_eq!(alive.load(Ordering::SeqCst), 2);
        drop(guard);
        settles_at(&alive, 1);
        drop(cell);
        settles_at(&alive, 0);
    });
}

#[test]
fn a_value_outlives_its_cell_under_a_guard() {
    in_a_model(|| {
        let alive = Arc::new(AtomicUsize::new(0));
        let guard = pin();
        let value = {
            let cell = EpochCell::new(Some(Probe::new(7, &alive)));
            cell.load(&guard).expect("a value")
        };
        flush();
        assert_eq!(value.number, 7);
        assert_eq!(alive.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn an_inner_guard_does_not_end_the_outer_one() {
    in_a_model(|| {
        let alive = Arc::new(AtomicUsize::new(0));
        let cell = EpochCell::new(Some(Probe::new(3, &alive)));
        let outer = pin();
        let value = cell.load(&outer).expect("a value");
        {
            let mut inner = pin();
            assert_eq!(cell.take(&inner).map(|probe| probe.number), Some(3));
            inner.refresh();
        }
        flush();
        assert_eq!(value.number, 3);
        assert!(cell.is_empty());
    });
}

#[test]
fn refreshing_the_only_guard_ends_its_protection() {
    in_a_model(|| {
        let alive = Arc::new(AtomicUsize::new(0));
        let cell = EpochCell::new(Some(Probe::new(1, &alive)));
        let mut guard = pin();
        cell.store(None);
        flush();
        assert_eq!(alive.load(Ordering::SeqCst), 1);
        settles_while(&alive, 0, || guard.refresh());
        drop(guard);
    });
}

#[test]
fn replace_compares_the_object_and_returns_a_rejected_value() {
    in_a_model(|| {
        let cell = EpochCell::new(Some(Box::new(1_u32)));
        let guard = pin();
        let one = cell.load(&guard);
        let old = cell
            .replace(one, Some(Box::new(2)), &guard)
            .expect("unchanged so far");
        assert_eq!(old, Some(&1));
        let changed = cell
            .replace(one, Some(Box::new(3)), &guard)
            .expect_err("changed since");
        assert_eq!(changed.found, Some(&2));
        assert_eq!(changed.rejected.as_deref(), Some(&3));
        let changed = cell
            .replace(None, Some(Box::new(4)), &guard)
            .expect_err("not empty");
        assert_eq!(changed.found, Some(&2));
        cell.store(None);
        assert_eq!(
            cell.replace(None, Some(Box::new(5)), &guard)
                .expect("empty"),
            None
        );
        assert_eq!(cell.load(&guard), Some(&5));
    });
}

/// `tests/nested_cells.rs` has this test for the collector of the normal build.
#[cfg(feature = "shuttle")]
#[test]
fn cells_inside_retired_values_are_retired_in_turn() {
    in_a_model(|| {
        let alive = Arc::new(AtomicUsize::new(0));
        let inner = EpochCell::new(Some(Probe::new(9, &alive)));
        let outer = EpochCell::new(Some(Box::new(inner)));
        {
            let guard = pin();
            let inner = outer.load(&guard).expect("the inner cell");
            outer.store(None);
            assert_eq!(inner.load(&guard).map(|probe| probe.number), Some(9));
        }
        settles_at(&alive, 0);
    });
}

/// Readers check every value they see while writers replace, exchange and empty the cell.
#[cfg(not(feature = "shuttle"))]
#[test]
fn readers_never_see_a_dropped_value() {
    const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };
    let alive = Arc::new(AtomicUsize::new(0));
    let cell = EpochCell::new(Some(Probe::new(0, &alive)));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let guard = pin();
                    let before = cell.load(&guard);
                    if round % 3 == 0 {
                        let _ = cell.replace(before, Some(Probe::new(round, &alive)), &guard);
                    } else {
                        cell.store((round % 7 != 0).then(|| Probe::new(round, &alive)));
                    }
                    assert!(before.is_none_or(|probe| probe.number < ROUNDS));
                }
                flush();
            });
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let guard = pin();
                    if let Some(probe) = cell.load(&guard) {
                        thread::yield_now();
                        assert!(probe.number < ROUNDS, "a dropped value was read");
                    }
                }
            });
        }
    });
    drop(cell);
    settles_at(&alive, 0);
}

/// The same race under the schedules that shuttle tries.
#[cfg(feature = "shuttle")]
#[test]
fn readers_never_see_a_dropped_value() {
    shuttle::check_pct(
        || {
            let alive = Arc::new(AtomicUsize::new(0));
            let cell = Arc::new(EpochCell::new(Some(Probe::new(0, &alive))));
            let tasks: Vec<_> = (1..4)
                .map(|number| {
                    let (cell, alive) = (Arc::clone(&cell), Arc::clone(&alive));
                    thread::spawn(move || {
                        let guard = pin();
                        let before = cell.load(&guard);
                        let _ = cell.replace(before, Some(Probe::new(number, &alive)), &guard);
                        cell.store(Some(Probe::new(number + 10, &alive)));
                        assert!(before.is_none_or(|probe| probe.number < 20));
                    })
                })
                .collect();
            for task in tasks {
                task.join().expect("a task");
            }
            assert_eq!(
                alive.load(Ordering::SeqCst),
                1,
                "only the last value is left"
            );
        },
        2000,
        3,
    );
}

#[cfg(all(debug_assertions, not(feature = "shuttle")))]
#[test]
fn waiting_is_refused_while_any_guard_of_the_thread_is_held() {
    let is_refused = || std::panic::catch_unwind(assert_not_pinned).is_err();
    assert!(!is_refused());
    let (first, second) = (pin(), pin());
    assert!(is_refused());
    let elsewhere = crate::thread::spawn(assert_not_pinned);
    elsewhere.join().expect("another thread's own");
    drop(first);
    assert!(is_refused());
    drop(second);
    assert!(!is_refused());
}

/// Other tests of this process hold guards for a moment only.
#[test]
#[cfg(not(feature = "shuttle"))]
fn values_that_hold_much_memory_do_not_wait_for_a_full_batch() {
    let alive = Arc::new(AtomicUsize::new(0));
    let cell = EpochCell::empty();
    // A batch has a value for each active thread at least.
    for number in 0..200 {
        cell.store(Some(Probe::new(number, &alive)));
    }
    cell.store(None);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while alive.load(Ordering::SeqCst) > 0 {
        assert!(std::time::Instant::now() < deadline);
        count_retired_bytes(1 << 18);
        std::thread::yield_now();
    }
}
