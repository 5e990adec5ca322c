//! Statistics on a clock that the sides advance themselves, so every figure is exact.

use std::cell::RefCell;

use super::*;
use crate::clock::FakeClock;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn sides_take_turns_and_warm_up_is_discarded() {
    let clock = FakeClock::default();
    let order = RefCell::new(String::new());
    let slow = RefCell::new([1000, 30, 10, 20].into_iter());
    let fast = RefCell::new([2000, 10, 10, 5].into_iter());
    let report = Comparison::new("turns")
        .rounds(Rounds(3))
        .side(Side::closure("slow", |_| {
            order.borrow_mut().push('A');
            clock.advance(ms(slow.borrow_mut().next().expect("four rounds")));
            Ok(Work::ONCE)
        }))
        .side(Side::closure("fast", |_| {
            order.borrow_mut().push('B');
            clock.advance(ms(fast.borrow_mut().next().expect("four rounds")));
            Ok(Work::ONCE)
        }))
        .run(&clock)
        .expect("no side fails");
    assert_eq!(*order.borrow(), "ABABABAB");
    let sides = &report.rows[0].sides;
    assert_eq!(
        sides[0].wall_ns.samples,
        [30_000_000, 10_000_000, 20_000_000]
    );
    assert_eq!(sides[0].wall_ns.median, 20_000_000);
    assert_eq!(sides[1].wall_ns.median, 10_000_000);
    // Rounds: 30/10, 10/10, 20/5.
    let ratio = sides[1].speed.expect("both sides took time");
    assert_eq!((ratio.median, ratio.min, ratio.max), (3.0, 1.0, 4.0));
    assert_eq!(sides[0].speed.map(|r| r.median), Some(1.0));
}

#[test]
fn speed_counts_operations_not_only_time() {
    let clock = FakeClock::default();
    let run = |operations| {
        let clock = &clock;
        move |_| {
            clock.advance(ms(10));
            Ok(Work {
                operations,
                bytes: 4096 * operations,
                wall: None,
            })
        }
    };
    let report = Comparison::new("rates")
        .warm_up(Rounds(0))
        .side(Side::closure("few", run(100)))
        .side(Side::closure("many", run(250)))
        .run(&clock)
        .expect("no side fails");
    let many = &report.rows[0].sides[1];
    assert_eq!(many.speed.map(|r| r.median), Some(2.5));
    assert_eq!(many.operations_per_second, 25_000.0);
    assert_eq!(many.bytes_per_second, 102_400_000.0);
}

#[test]
fn preparation_and_own_timing_do_not_count() {
    let clock = FakeClock::default();
    let report = Comparison::new("prepared")
        .threads(&[ThreadCount::ONE, ThreadCount::new(4)])
        .side(
            Side::closure("a", |threads| {
                clock.advance(ms(threads.get() as u64));
                Ok(Work::ONCE)
            })
            .prepared_by(|| {
                clock.advance(ms(500));
                Ok(())
            }),
        )
        .side(Side::closure("b", |_| {
            clock.advance(ms(700));
            Ok(Work {
                wall: Some(ms(7)),
                ..Work::ONCE
            })
        }))
        .run(&clock)
        .expect("no side fails");
    assert_eq!(report.rows.len(), 2);
    assert_eq!(report.rows[0].sides[0].wall_ns.median, 1_000_000);
    assert_eq!(report.rows[1].threads, ThreadCount::new(4));
    assert_eq!(report.rows[1].sides[0].wall_ns.max, 4_000_000);
    assert_eq!(report.rows[1].sides[1].wall_ns.median, 7_000_000);
}

#[test]
fn a_failing_side_ends_the_comparison() {
    let clock = FakeClock::default();
    let error = Comparison::new("broken")
        .side(Side::closure("x", |_| Err("no space".into())))
        .run(&clock)
        .expect_err("the side fails");
    assert_eq!(error.to_string(), "side x: no space");
    let empty = Comparison::new("empty").run(&clock).expect_err("no sides");
    assert!(matches!(empty, LabError::Empty { .. }), "{empty}");
}

#[test]
fn processes_are_measured() {
    let clock = crate::clock::MonotonicClock::default();
    let busy = CommandLine::shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.05");
    let report = Comparison::new("processes")
        .warm_up(Rounds(0))
        .rounds(Rounds(1))
        .side(Side::process("busy", busy))
        .run(&clock)
        .expect("sh exists");
    let side = &report.rows[0].sides[0];
    assert!(side.wall_ns.median >= 50_000_000, "{side:?}");
    let usage = side.user_ns.as_ref().expect("a process has CPU time");
    assert!(
        usage.median > 0 && usage.median < side.wall_ns.median * 2,
        "{side:?}"
    );
    assert!(
        side.max_rss_bytes.expect("a process has memory") > 100_000,
        "{side:?}"
    );
    assert!(
        side.command
            .as_deref()
            .is_some_and(|c| c.starts_with("sh -c "))
    );
    let failed = Comparison::new("failing")
        .side(Side::process("false", CommandLine::shell("exit 3")))
        .run(&clock)
        .expect_err("the command fails");
    assert!(failed.to_string().contains("exit status: 3"), "{failed}");
}

#[test]
fn thread_counts_double() {
    let counts = |n| -> Vec<usize> {
        ThreadCount::doubling_to(ThreadCount::new(n))
            .into_iter()
            .map(ThreadCount::get)
            .collect()
    };
    assert_eq!(counts(0), [1]);
    assert_eq!(counts(2), [1, 2]);
    assert_eq!(counts(12), [1, 2, 4, 8, 12]);
}
