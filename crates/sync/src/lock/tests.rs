//! Tests of the interface that all three builds share; they run in each of them.

use super::*;
use crate::atomic::{AtomicUsize, Ordering};
use crate::{Arc, thread};
use std::time::Duration;

/// Runs `test` as it is, or in the model under many schedules.
fn checked(test: impl Fn() + Clone + Send + Sync + 'static) {
    #[cfg(feature = "shuttle")]
    crate::model::check(200, test);
    #[cfg(not(feature = "shuttle"))]
    test();
}

#[test]
fn a_mutex_admits_one_at_a_time() {
    checked(|| {
        let total = Arc::new(Mutex::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..3 {
                        let before = *total.lock();
                        let mut now = total.lock();
                        *now = (*now).max(before) + 1;
                    }
                });
            }
        });
        let held = total.lock();
        assert_eq!(*held, 9);
        assert!(total.is_locked() && total.try_lock().is_none());
        drop(held);
        assert!(!total.is_locked() && total.try_lock().is_some());
        let total = Arc::into_inner(total).expect("the last owner");
        assert_eq!(total.into_inner(), 9);
    });
}

#[test]
fn readers_share_and_writers_do_not() {
    checked(|| {
        let lock = RwLock::new((0, 0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut both = lock.write();
                both.0 += 1;
                thread::yield_now();
                both.1 += 1;
            });
            scope.spawn(|| {
                let first = lock.read();
                assert_eq!(first.0, first.1, "half a write was seen");
                assert!(lock.try_write().is_none());
            });
        });
        assert_eq!(*lock.try_read().expect("no writer"), (1, 1));
        assert_eq!(lock.into_inner(), (1, 1));
    });
}

#[test]
fn a_waiter_is_woken_after_the_change_it_waits_for() {
    checked(|| {
        let state = Arc::new((Mutex::new(0), Condvar::new()));
        let other = Arc::clone(&state);
        let waiter = thread::spawn(move || {
            let mut value = other.0.lock();
            while *value < 2 {
                other.1.wait(&mut value);
            }
            other.1.wait_while(&mut value, |value| *value < 3);
            *value
        });
        for _ in 0..3 {
            *state.0.lock() += 1;
            state.1.notify_all();
        }
        assert_eq!(waiter.join().expect("the waiter"), 3);
    });
}

/// In the model no wait times out, so that a lost wake-up is found as a deadlock.
#[cfg(not(feature = "shuttle"))]
#[test]
fn a_wait_ends_by_its_timeout() {
    let (lock, condvar) = (Mutex::new(()), Condvar::new());
    let mut guard = lock.lock();
    assert!(
        condvar
            .wait_for(&mut guard, Duration::from_millis(1))
            .timed_out()
    );
    assert!(lock.try_lock().is_none(), "the lock is held again");
}

#[cfg(feature = "shuttle")]
#[test]
fn a_notification_ends_a_wait_with_a_timeout() {
    checked(|| {
        let state = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&state);
        let waker = thread::spawn(move || {
            *other.0.lock() = true;
            other.1.notify_one();
        });
        let mut done = state.0.lock();
        while !*done {
            assert!(
                !state
                    .1
                    .wait_for(&mut done, Duration::from_secs(1))
                    .timed_out()
            );
        }
        drop(done);
        waker.join().expect("the waker");
    });
}

#[test]
fn a_once_cell_is_written_once() {
    checked(|| {
        let cell = Arc::new(OnceLock::new());
        let runs = Arc::new(AtomicUsize::new(0));
        assert!(cell.get().is_none());
        let tasks: Vec<_> = (0..3_usize)
            .map(|number| {
                let (cell, runs) = (Arc::clone(&cell), Arc::clone(&runs));
                thread::spawn(move || {
                    *cell.get_or_init(|| {
                        runs.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        number
                    })
                })
            })
            .collect();
        let seen: Vec<_> = tasks
            .into_iter()
            .map(|task| task.join().expect("a task"))
            .collect();
        assert!(seen.iter().all(|number| Some(number) == cell.get()));
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert_eq!(cell.set(9), Err(9));
    });
}
