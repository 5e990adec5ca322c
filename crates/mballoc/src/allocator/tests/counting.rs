//! **Purpose.** Tests of `mb_stats`: every request that is answered is counted in exactly one way,
//! also where a scan ends early, and the length wanted counts wherever it was found.

use super::*;
use crate::criteria::Criterion;
use crate::stats::CriterionCount;

/// Requests counted as answered by a criterion.
fn hits(tally: &Tally) -> u64 {
    let hits = |&criterion| tally[(criterion, CriterionCount::Hits)];
    Criterion::ALL.iter().map(hits).sum()
}

/// Requests counted as answered, whichever way.
fn answered(tally: &Tally) -> u64 {
    let ways = [
        Count::GoalHits,
        Count::StreamGoalHits,
        Count::InodePreallocHits,
        Count::GroupPreallocHits,
    ];
    hits(tally) + ways.iter().map(|&way| tally[way]).sum::<u64>()
}

/// Loaded groups whose free extents have 4 clusters each.
fn fragmented(groups: u32, mode: Mode) -> Bench {
    let geometry = geometry(groups, 1024);
    let disk = Disk::new(geometry);
    for group in 0..groups {
        (0..128).for_each(|i| disk.preset(&run(group, i * 8 + 4, 4)));
    }
    let bench = Bench::on(disk, geometry);
    bench.set_mode(mode);
    (0..groups).for_each(|group| bench.allocator.load(GroupNr(group)).unwrap());
    bench
}

#[test]
fn the_best_extent_of_a_scan_that_ends_early_is_a_hit_of_its_criterion() {
    let bench = fragmented(4, Mode::new(0, 0));
    let tunables = bench.allocator.tunables();
    tunables.set(Tunable::MbMaxToScan, 5).unwrap();
    let got = bench.use_up(&exact(64), Tid(1));
    assert_eq!(got.len, ClusterCount(4));
    let tally = bench.allocator.mb_stats();
    assert_eq!(tally[Count::Breaks], 1);
    assert_eq!(tally[(Criterion::GoalLenSlow, CriterionCount::Hits)], 1);
    assert_eq!(hits(&tally), 1);
    assert_eq!(tally[Count::LenGoalHits], 0);
}

#[test]
fn the_best_extent_of_all_groups_is_a_hit_of_the_last_criterion() {
    let bench = fragmented(1, Mode::new(0, 0));
    // More than two criteria together meet.
    let tunables = bench.allocator.tunables();
    tunables.set(Tunable::MbMaxToScan, 1000).unwrap();
    let got = bench.use_up(&exact(64), Tid(1));
    assert_eq!(got.len, ClusterCount(4));
    let tally = bench.allocator.mb_stats();
    assert_eq!(tally[Count::Breaks], 0);
    assert_eq!(tally[(Criterion::AnyFree, CriterionCount::Hits)], 1);
}

#[test]
fn every_answered_request_is_counted_once_in_every_mode() {
    for mode in Mode::ALL {
        let bench = fragmented(8, mode);
        let files: Vec<_> = (0..4).map(|_| Arc::new(FilePrealloc::default())).collect();
        for step in 0..400_u32 {
            let file = &files[step as usize % files.len()];
            let mut request = data(step * 3, 1 + step % 90);
            request.inode = InodeNr(20 + step % 4);
            // Short of space in the end: some of these fail.
            let Ok(claim) = bench.claim(&request, Some(file)) else {
                break;
            };
            bench.mark(claim, Tid(1));
        }
        files.iter().for_each(|file| bench.allocator.discard(file));
        let tally = bench.allocator.mb_stats();
        assert!(tally[Count::Reqs] > 100, "{mode:?}: {tally}");
        assert_eq!(answered(&tally), tally[Count::Reqs], "{mode:?}: {tally}");
    }
}

#[test]
fn the_length_wanted_counts_at_goals_too() {
    for mode in Mode::ALL {
        let bench = Bench::new(4, 1024);
        bench.set_mode(mode);
        // By a criterion, at the stream goal, and after the file's own last cluster.
        bench.use_up(&exact(20), Tid(1));
        let last = bench.use_up(&exact(20), Tid(1));
        let goal = PhysBlock(block(&bench, &last).0 + 20);
        let left = Some(Neighbour {
            logical: LogicalCluster(19),
            block: PhysBlock(goal.0 - 1),
        });
        let request = Request {
            left,
            sizing: Sizing::Exact,
            ..data(20, 20)
        };
        bench.use_up(&request, Tid(1));
        let tally = bench.allocator.mb_stats();
        let at_goals = [Count::GoalHits, Count::StreamGoalHits].map(|count| tally[count]);
        assert_eq!(at_goals, [1, 1], "{mode:?}: {tally}");
        assert_eq!(tally[Count::LenGoalHits], 3, "{mode:?}: {tally}");
    }
}

#[test]
fn a_piece_of_the_goal_is_not_the_length_wanted() {
    let geometry = geometry(1, 1024);
    let disk = Disk::new(geometry);
    disk.preset(&run(0, 110, 10));
    let bench = Bench::on(disk, geometry);
    let request = Request {
        goal: geometry.block_of(GroupNr(0), GroupOffset(100)),
        sizing: Sizing::GoalOnly,
        ..data(0, 20)
    };
    assert_eq!(bench.use_up(&request, Tid(1)), run(0, 100, 10));
    let tally = bench.allocator.mb_stats();
    assert_eq!(tally[Count::GoalHits], 1);
    assert_eq!(tally[Count::LenGoalHits], 0);
}
