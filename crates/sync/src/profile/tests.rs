//! Tests of profiles. The sums are those of the process, so the tests take turns.

use std::sync::Mutex;
use std::thread::{scope, sleep, spawn};
use std::time::Instant;

use super::*;

static TURN: Mutex<()> = Mutex::new(());
const PAUSE: Duration = Duration::from_millis(3);

/// What a profile of `body` adds to the sums, and how long it took.
fn profiled(sampling: Sampling, body: impl FnOnce()) -> (Totals, Duration) {
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    start(sampling);
    let (before, began) = (sums(), Instant::now());
    body();
    let wall = began.elapsed();
    let after = sums();
    stop();
    (after.since(&before).totals(), wall)
}

/// Works for a time without a system call.
fn spin(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn a_nested_section_is_taken_out_of_the_one_around_it() {
    let (totals, wall) = profiled(Sampling::All, || {
        let _operation = operation();
        sleep(PAUSE);
        let _handle = enter(Section::Handle);
        sleep(2 * PAUSE);
        {
            let _journal = enter(Section::Journal);
            let _device = enter(Section::Device);
            sleep(4 * PAUSE);
        }
        // Entered again in itself: one time.
        let _again = enter(Section::Handle);
    });
    let time = |section| totals.of(section).time;
    assert!(time(Section::Device) >= 4 * PAUSE, "{totals:?}");
    assert!(time(Section::Handle) >= 2 * PAUSE, "{totals:?}");
    assert!(totals.rest >= PAUSE, "{totals:?}");
    assert!(time(Section::Journal) < PAUSE, "{totals:?}");
    let entered = Section::ALL.map(|section| totals.of(section).entered);
    assert_eq!(entered, [1, 0, 0, 0, 0, 1, 1]);
    assert_eq!((totals.operations, totals.measured), (1, 1));
    // Each time is in one section only. The clocks may differ by a thousandth.
    assert!(totals.all() <= wall + wall / 100, "{totals:?}, {wall:?}");
}

#[test]
fn sections_take_no_more_than_the_threads_and_gaps_are_outside() {
    const THREADS: u32 = 3;
    let (totals, wall) = profiled(Sampling::All, || {
        scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let operation = operation();
                        drop(enter(Section::Map));
                        sleep(PAUSE);
                        drop(operation);
                        sleep(PAUSE);
                    }
                });
            }
        });
    });
    assert_eq!(totals.operations, u64::from(THREADS) * 10);
    assert!(
        totals.in_sections() <= wall * THREADS,
        "{totals:?}, {wall:?}"
    );
    assert!(
        totals.all() <= (wall + wall / 100) * THREADS,
        "{totals:?}, {wall:?}"
    );
    // The gap after the last operation of a thread has no end.
    assert!(totals.outside >= 9 * THREADS * PAUSE, "{totals:?}");
    assert!(totals.rest >= 10 * THREADS * PAUSE, "{totals:?}");
}

#[test]
fn a_sample_stands_for_all_operations() {
    const OPERATIONS: u64 = 20_000;
    // A multiple of two powers of two: a sample at equal distances would see one kind only.
    let (totals, wall) = profiled(Sampling::Some, || {
        for nr in 0..OPERATIONS {
            let _operation = operation();
            let section = if nr % 4 == 0 {
                Section::Bitmap
            } else {
                Section::Map
            };
            let _section = enter(section);
            spin(Duration::from_micros(2));
        }
    });
    assert!(totals.measured < OPERATIONS / 4, "{totals:?}");
    assert!(totals.measured > OPERATIONS / 200, "{totals:?}");
    let of = |section| totals.of(section);
    let entered = of(Section::Bitmap).entered as f64 / totals.operations as f64;
    assert!((0.15..0.35).contains(&entered), "{totals:?}");
    let time = of(Section::Bitmap).time.as_secs_f64() / totals.in_sections().as_secs_f64();
    assert!((0.1..0.5).contains(&time), "{totals:?}");
    // All but the operations after the last one that was measured.
    assert!(totals.operations <= OPERATIONS && totals.operations > OPERATIONS - 600);
    assert!(totals.all() <= wall + wall / 100, "{totals:?}, {wall:?}");
}

#[test]
fn waiting_is_timed_in_every_operation_of_a_sample() {
    const EVERY: u64 = 500;
    let (totals, wall) = profiled(Sampling::Some, || {
        for nr in 0..5001 {
            let _operation = operation();
            let _map = enter(Section::Map);
            if nr % EVERY == 0 {
                let _journal = enter(Section::Journal);
                let _device = enter(Section::Device);
                sleep(PAUSE);
            }
        }
    });
    let device = totals.of(Section::Device);
    // The last two may be behind the last operation that was measured.
    assert!((9..=11).contains(&device.entered), "{totals:?}");
    assert!(device.time >= PAUSE * 9, "{totals:?}");
    assert!(totals.of(Section::Journal).time < PAUSE, "{totals:?}");
    assert!(totals.all() <= wall + wall / 100, "{totals:?}, {wall:?}");
}

#[test]
fn nothing_is_measured_without_an_operation_or_a_profile() {
    let (inside, _) = profiled(Sampling::All, || {
        drop(enter(Section::Device));
        {
            // A thread of its own has no operation, whatever this one has.
            let _operation = operation();
            let other = spawn(|| drop(enter(Section::Map)));
            other.join().expect("no panic");
        }
        stop();
        let _operation = operation();
        drop(enter(Section::Handle));
    });
    assert_eq!(inside.in_sections(), Duration::ZERO);
    assert_eq!((inside.operations, inside.measured), (1, 1));
}

#[test]
fn guards_dropped_in_another_order_do_no_harm() {
    let (totals, wall) = profiled(Sampling::All, || {
        let outer = operation();
        let (map, device) = (enter(Section::Map), enter(Section::Device));
        let inner = operation();
        drop(outer);
        drop(map);
        drop(inner);
        drop(device);
        drop(operation());
    });
    assert_eq!(totals.operations, 2);
    assert!(totals.all() <= wall + wall / 100, "{totals:?}, {wall:?}");
}
