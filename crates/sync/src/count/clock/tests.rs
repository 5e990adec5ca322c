//! Tests of the rules of clocks, on a machine whose costs are easy to add up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex as PlainMutex;
use std::time::Duration;

use super::Machine;
use crate::atomic::{AtomicU64, Ordering};
use crate::count::{now, with_cores};
use crate::{CachePadded, Condvar, CoreNr, Mutex, RwLock, work};

/// A read takes 1 ns, a write 10, a transfer 100, 200 or 400; two cores a cluster, four a socket.
const MACHINE: Machine = Machine {
    cluster_cores: 2,
    socket_cores: 4,
    step_ps: 1000,
    read_ps: 1000,
    write_ps: 10_000,
    cluster_ps: 100_000,
    socket_ps: 200_000,
    remote_ps: 400_000,
};

/// Runs `body` on so many cores, and returns the time of each at its end in nanoseconds.
fn ends(cores: usize, body: impl Fn(usize) + Sync) -> Vec<u64> {
    with_cores(cores, |machine| {
        machine.race(MACHINE, |core| {
            body(core.index());
            nanoseconds()
        })
    })
}

fn nanoseconds() -> u64 {
    let now = now().expect("in a race").as_nanos();
    u64::try_from(now).expect("a short run")
}

#[test]
fn there_is_no_clock_outside_of_a_race() {
    with_cores(2, |cores| {
        assert_eq!(now(), None);
        let inside = cores.race(MACHINE, |_| now());
        assert_eq!(inside, [Some(Duration::ZERO); 2]);
        assert_eq!(now(), None);
    });
}

#[test]
fn work_takes_its_steps_and_cores_do_not_share_a_clock() {
    assert_eq!(ends(3, |core| work(core as u64 * 7)), [0, 7, 14]);
}

#[test]
fn an_access_costs_its_own_time_and_a_transfer_the_distance() {
    for (cores, latency) in [(2, 100), (3, 200), (5, 400)] {
        let word = CachePadded::new(AtomicU64::new(0));
        let ends = ends(cores, |core| {
            if core == 0 {
                word.store(1, Ordering::Relaxed);
                word.load(Ordering::Relaxed);
            } else if core == cores - 1 {
                work(1000);
                word.fetch_add(1, Ordering::Relaxed);
                word.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(ends[0], 11, "it has the line");
        assert_eq!(ends[cores - 1], 1000 + 10 + latency + 10, "{cores} cores");
    }
}

#[test]
fn a_line_shared_by_readers_costs_each_of_them_once() {
    let word = CachePadded::new(AtomicU64::new(0));
    let ends = ends(2, |core| {
        if core == 0 {
            word.store(1, Ordering::Relaxed);
        } else {
            work(500);
            (0..50).for_each(|_| _ = word.load(Ordering::Relaxed));
        }
    });
    assert_eq!(ends, [10, 500 + 100 + 50]);
}

#[test]
fn transfers_of_one_line_come_one_after_the_other() {
    // All four cores write at the same time. The first needs no transfer.
    let word = CachePadded::new(AtomicU64::new(0));
    let mut ends = ends(4, |_| _ = word.fetch_add(1, Ordering::Relaxed));
    ends.sort_unstable();
    assert_eq!(ends, [10, 110, 110 + 200, 110 + 200 + 100]);
    assert_eq!(word.load(Ordering::Relaxed), 4);
}

#[test]
fn two_cores_on_one_lock_take_as_long_as_both_together() {
    let lock = Mutex::new(());
    let ends = ends(2, |core| {
        work(core as u64);
        let held = lock.lock();
        work(1000);
        drop(held);
    });
    // Taking it, holding it, releasing it.
    let first = 10 + 1000 + 10;
    assert_eq!(ends[0], first);
    // The attempt that failed, 100 for the line and 10, was over by then. After the release it
    // tries again; the first core still has a copy of the line and none has another one.
    assert_eq!(ends[1], first + 10 + 1000 + 10);
}

#[test]
fn a_lock_that_is_free_at_the_time_of_the_core_is_not_waited_for() {
    let lock = Mutex::new(());
    let ends = ends(2, |core| {
        work(2000 * core as u64);
        let held = lock.lock();
        work(1000);
        drop(held);
    });
    assert_eq!(ends, [1020, 2000 + 10 + 100 + 1000 + 10]);
}

#[test]
fn trying_a_busy_lock_goes_on_at_once() {
    let lock = Mutex::new(());
    let ends = ends(2, |core| {
        if core == 0 {
            let held = lock.lock();
            work(1000);
            drop(held);
        } else {
            work(500);
            assert!(lock.try_lock().is_none(), "core 0 holds it until 1010");
            work(300);
            assert!(lock.try_lock().is_none());
            work(200);
            assert!(lock.try_lock().is_some());
        }
    });
    // The second attempt has a copy of the line already; the third invalidates that of core 0.
    let attempts = 110 + 300 + 10 + 200 + 110;
    assert_eq!(ends, [1020, 500 + attempts + 10]);
}

#[test]
fn waiters_are_served_in_the_order_in_which_they_came() {
    let lock = Mutex::new(Vec::new());
    ends(8, |core| {
        // Core 0 holds it while all others come, the last first.
        work(if core == 0 {
            0
        } else {
            5000 - 500 * core as u64
        });
        let mut held = lock.lock();
        if core == 0 {
            work(10_000);
        }
        held.push(core);
    });
    assert_eq!(lock.into_inner(), [0, 7, 6, 5, 4, 3, 2, 1]);
}

#[test]
fn readers_share_a_lock_and_a_writer_waits_for_all_of_them() {
    let lock = RwLock::new(());
    let ends = ends(3, |core| {
        work(core as u64 * 500);
        if core < 2 {
            let held = lock.read();
            work(2000);
            drop(held);
        } else {
            drop(lock.write());
        }
    });
    assert!(ends[1] < 2500 + 200, "it did not wait for the other reader");
    assert!(ends[2] > ends[1] && ends[2] < ends[1] + 300, "{ends:?}");
}

#[test]
fn a_notified_core_goes_on_at_the_time_of_the_notice() {
    let (ready, changed) = (Mutex::new(false), Condvar::new());
    let ends = ends(2, |core| {
        if core == 0 {
            let mut ready = ready.lock();
            changed.wait_while(&mut ready, |ready| !*ready);
        } else {
            work(5000);
            *ready.lock() = true;
            changed.notify_all();
        }
    });
    assert!(ends[0] > 5000 && ends[0] < 6000, "{ends:?}");
}

#[test]
fn events_happen_in_the_order_of_times() {
    let words: Vec<_> = (0..4)
        .map(|_| CachePadded::new(AtomicU64::new(0)))
        .collect();
    let log = PlainMutex::new(Vec::new());
    ends(16, |core| {
        for step in 0..100 {
            work((core as u64 * 31 + step as u64 * 17) % 97);
            words[(core + step) % 4].fetch_add(1, Ordering::Relaxed);
            log.lock().expect("no panic").push(nanoseconds());
        }
    });
    let log = log.into_inner().expect("no panic");
    assert_eq!(log.len(), 1600);
    // An access may be early by a transfer within a cluster, and ends after its own transfer.
    let longest = 400 + 100;
    let mut latest = 0;
    for (&time, nr) in log.iter().zip(0..) {
        latest = latest.max(time);
        let queue = 16 * longest;
        assert!(time + queue > latest, "access {nr}: {time} after {latest}");
    }
}

#[test]
fn the_same_race_takes_the_same_time() {
    let run = || {
        let locks: Vec<_> = (0..3)
            .map(|_| CachePadded::new(Mutex::new(0_u64)))
            .collect();
        let ends = ends(32, |core| {
            for step in 0..50 {
                let nr = (core * 7 + step * 5) % 3;
                if let Some(mut held) = locks[nr].try_lock() {
                    *held += 1;
                    work(step as u64 % 13);
                } else {
                    *locks[(nr + 1) % 3].lock() += 1;
                }
            }
        });
        let counts: Vec<u64> = locks.iter().map(|lock| *lock.lock()).collect();
        (ends, counts)
    };
    let first = run();
    assert_eq!(first.1.iter().sum::<u64>(), 32 * 50);
    for _ in 0..5 {
        assert_eq!(run(), first);
    }
}

#[test]
fn a_race_ends_when_a_core_panics_or_when_all_wait() {
    let lock = Mutex::new(());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        ends(3, |core| {
            let _held = lock.lock();
            assert!(core != 1, "core 1 fails");
        })
    }));
    assert!(panicked.is_err());
    let never = Condvar::new();
    let all_wait = catch_unwind(AssertUnwindSafe(|| {
        ends(2, |_| never.wait(&mut lock.lock()));
    }));
    assert!(all_wait.is_err());
}

#[test]
fn a_value_put_beside_another_moves_with_its_line() {
    let words: Vec<_> = (0..2)
        .map(|_| CachePadded::new(AtomicU64::new(0)))
        .collect();
    let (one, other) = (&*words[0], &*words[1]);
    let transfers = |beside: bool| {
        with_cores(2, |cores| {
            if beside {
                cores.put_beside(one, other);
            }
            let report = cores.run(10, |core, _| {
                let word = if core == CoreNr::at(0) { one } else { other };
                word.store(1, Ordering::Relaxed);
            });
            report.transfers()
        })
    };
    assert_eq!((transfers(false), transfers(true)), (0, 19));
}
