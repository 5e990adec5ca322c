//! Predictions for machines with many cores (`cargo test -p fourscore-lab --features count --test
//! count_predict`), on file systems small enough for a debug build.

use std::time::Duration;

use fourscore_lab::ThreadCount;
use fourscore_lab::alloc::predict::machines::{EPYC_9654, KUNPENG_920, Load, MachineModel};
use fourscore_lab::alloc::predict::{HALVES_WITHIN, Length, Predicted, Setup};
use fourscore_lab::alloc::{AllocBench, Fallocate3, Scenario, Switch};
use fourscore_lab::{Fallocate2, Workload};
use fourscore_sync::Mutex;
use fourscore_sync::count::LineHeap;

#[global_allocator]
static HEAP: LineHeap = LineHeap;

/// Predictions take the most memory and time of all tests here: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

const EXT4: [(&str, &str); 3] = [("indexes", "off"), ("scan", "locked"), ("reuse", "commit")];

struct Case {
    machine: MachineModel,
    load: Load,
    threads: usize,
    length: Length,
    switches: Vec<(&'static str, &'static str)>,
}

/// The interval of commits of jbd2, which is longer than the runs here.
const LONG: Duration = Duration::from_secs(5);

/// A run of so many steps.
fn exactly(steps: u64) -> Length {
    Length {
        least: steps,
        most: steps,
    }
}

fn predict(case: &Case) -> Predicted {
    // 75 % used, as 16 GiB are small enough to be used up in a few hundred steps.
    let scenario = Scenario {
        bytes: 16 << 30,
        ..Scenario::by_name("133g-75").expect("the scenario exists")
    };
    predict_on(scenario, case, LONG)
}

fn predict_on(scenario: Scenario, case: &Case, commit_every: Duration) -> Predicted {
    let _alone = ALONE.lock();
    let mut bench = AllocBench::on(scenario);
    for (name, value) in &case.switches {
        Switch::set(&mut bench, name, value).expect(name);
    }
    let workload: &dyn Workload = match case.load {
        Load::Fallocate2 => &Fallocate2,
        Load::Fallocate3 => &Fallocate3,
    };
    let setup = Setup {
        bench: &bench,
        workload,
        machine: case.machine.costs,
        rest: case.machine.rest(case.load).expect("fitted"),
        threads: ThreadCount::new(case.threads),
        length: case.length,
        commit_every,
        laid_out_as_ext4: case.switches.contains(&EXT4[0]),
    };
    setup.predict().expect("a run")
}

fn ext4(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    EXT4.iter().chain(more).copied().collect()
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    for (load, threads, steps) in [(Load::Fallocate2, 32, 1000), (Load::Fallocate3, 12, 55)] {
        let case = Case {
            machine: EPYC_9654,
            load,
            threads,
            length: exactly(steps),
            switches: ext4(&[("goals", "one"), ("prefetch", "locked")]),
        };
        let first = predict(&case);
        assert!(first.per_second > 0.0 && first.transfers_per_step > 0.0);
        assert_eq!(predict(&case), first);
    }
}

#[test]
fn many_goals_are_faster_than_one_where_many_cores_allocate_and_no_slower_for_one() {
    let rate = |goals, threads, steps| {
        let case = Case {
            machine: KUNPENG_920,
            load: Load::Fallocate2,
            threads,
            length: exactly(steps),
            switches: ext4(&[("goals", goals)]),
        };
        predict(&case).per_second
    };
    let gain = rate("inode", 32, 3200) / rate("one", 32, 3200);
    assert!(gain > 1.1, "{gain}");
    let gain = rate("inode", 1, 500) / rate("one", 1, 500);
    assert!((gain - 1.0).abs() < 0.02, "{gain}");
}

#[test]
fn a_plain_test_is_faster_than_a_locked_one_and_moves_fewer_lines() {
    let run = |prefetch| {
        predict(&Case {
            machine: EPYC_9654,
            load: Load::Fallocate3,
            threads: 8,
            length: exactly(120),
            switches: ext4(&[("goals", "one"), ("prefetch", prefetch)]),
        })
    };
    let (locked, plain) = (run("locked"), run("plain"));
    assert!(plain.per_second > locked.per_second, "{locked:?} {plain:?}");
    assert!(
        plain.transfers_per_step < locked.transfers_per_step,
        "{locked:?} {plain:?}"
    );
}

/// As in ext4, freed clusters count as free before the commit. Were requests refused by a count,
/// all threads that find the space used up would wait for its lock in turn, and most of them where
/// the search is faster.
#[test]
fn the_gain_stays_where_more_threads_use_the_space_up() {
    let run = |prefetch| {
        predict(&Case {
            machine: EPYC_9654,
            load: Load::Fallocate3,
            threads: 24,
            length: exactly(240),
            switches: ext4(&[("goals", "one"), ("busy", "wait"), ("prefetch", prefetch)]),
        })
    };
    let (locked, plain) = (run("locked"), run("plain"));
    let gain = plain.per_second / locked.per_second;
    assert!(gain > 1.05, "{gain}: {locked:?} {plain:?}");
}

#[test]
fn a_run_with_uneven_halves_is_made_longer_within_limits() {
    let run = |load, length| {
        predict(&Case {
            machine: EPYC_9654,
            load,
            threads: 4,
            length,
            switches: ext4(&[("goals", "one"), ("prefetch", "plain")]),
        })
    };
    // The first of these steps find empty groups and the last do not.
    let length = |least, most| Length { least, most };
    let short = run(Load::Fallocate3, exactly(56));
    assert_eq!(short.steps, 56);
    assert!((short.halves - 1.0).abs() >= HALVES_WITHIN, "{short:?}");
    let longer = run(Load::Fallocate3, length(56, 112));
    assert_eq!(longer.steps, 112);
    let steady = run(Load::Fallocate2, length(1024, 4096));
    assert_eq!(steady.steps, 1024);
    assert!((steady.halves - 1.0).abs() < HALVES_WITHIN, "{steady:?}");
}

/// Files at the end of a cycle are made of many short extents. A commit gives the threads long ones
/// again, without waiting for the last of the short ones to be found.
#[test]
fn transactions_that_have_become_old_are_committed() {
    let scenario = Scenario {
        bytes: 16 << 30,
        ..Scenario::by_name("133g-75").expect("the scenario exists")
    };
    let rate = |commit_every| {
        let case = Case {
            machine: EPYC_9654,
            load: Load::Fallocate3,
            threads: 1,
            length: exactly(120),
            switches: ext4(&[("goals", "one"), ("prefetch", "plain")]),
        };
        predict_on(scenario, &case, commit_every).per_second
    };
    let (often, seldom) = (rate(Duration::from_millis(1)), rate(LONG));
    assert!(often > 1.5 * seldom, "{often} {seldom}");
}

/// Published for 15 TiB: 16 threads in two clusters make three quarters of the steps of 8 in one.
/// If threads came to a lock in the order of their cores, most lines would move within a cluster.
#[test]
fn a_lock_moves_between_clusters_and_takes_its_lines_along() {
    let scenario = Scenario {
        bytes: 64 << 30,
        used_per_mille: 60,
        ..Scenario::by_name("15t").expect("the scenario exists")
    };
    let rate = |threads: usize| {
        let case = Case {
            machine: EPYC_9654,
            load: Load::Fallocate3,
            threads,
            length: exactly(16 * threads as u64),
            switches: ext4(&[("goals", "inode"), ("prefetch", "plain")]),
        };
        predict_on(scenario, &case, LONG).per_second
    };
    let ratio = rate(16) / rate(8);
    assert!((0.7..0.9).contains(&ratio), "{ratio}");
}
