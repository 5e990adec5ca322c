//! **Purpose.** Tests of the switches that bring back what ext4's search did before a change, each
//! by what distinguishes it.

use super::*;
use crate::criteria::Criterion;
use crate::stats::CriterionCount;

/// Two loaded groups with free extents of these lengths, each behind a used cluster.
fn bench(lens: &[u32], mode: Mode) -> Bench {
    let geometry = geometry(2, 1024);
    let disk = Disk::new(geometry);
    for group in 0..2 {
        let mut at = 0;
        for len in lens {
            disk.preset(&run(group, at, 1));
            at += 1 + len;
        }
        disk.preset(&run(group, at, 1024 - at));
    }
    let bench = Bench::on(disk, geometry);
    bench.set_mode(mode);
    (0..2).for_each(|group| bench.allocator.load(GroupNr(group)).unwrap());
    bench
}

#[test]
fn before_best_avail_a_request_is_trimmed_by_the_last_criterion() {
    for (best_avail, criterion, len) in [
        (1, Criterion::BestAvailLen, 128),
        (0, Criterion::AnyFree, 200),
    ] {
        let bench = bench(&[200, 200, 200], Mode::new(1, 0));
        let tunables = bench.allocator.tunables();
        tunables.set(Tunable::MbBestAvail, best_avail).unwrap();
        let file = Arc::new(FilePrealloc::default());
        // A goal of 1024 clusters, of which 17 are asked for.
        let request = Request {
            size: ClusterCount(600),
            ..data(0, 17)
        };
        let claim = bench.claim(&request, Some(&file)).unwrap();
        assert_eq!(file.clusters() + 17, len);
        bench.mark(claim, Tid(1));
        let tally = bench.allocator.mb_stats();
        assert_eq!(tally[(criterion, CriterionCount::Hits)], 1, "{tally}");
        bench.settle(Tid(1));
    }
}

#[test]
fn before_short_extents_were_skipped_all_of_a_group_are_measured() {
    for (skip_short, expected) in [(1, 1), (0, 6)] {
        let bench = bench(&[10, 10, 10, 10, 10, 300], Mode::new(0, 0));
        let tunables = bench.allocator.tunables();
        tunables.set(Tunable::MbSkipShort, skip_short).unwrap();
        // Metadata, because data finds it at a stream goal first.
        let request = Request::metadata(InodeNr(2), ClusterCount(20), PhysBlock(1));
        assert_eq!(bench.use_up(&request, Tid(1)).len, ClusterCount(20));
        let tally = bench.allocator.mb_stats();
        let of_criterion = |count| tally[(Criterion::GoalLenFast, count)];
        assert_eq!(of_criterion(CriterionCount::ExtentsScanned), expected);
        assert_eq!(of_criterion(CriterionCount::Hits), 1);
        bench.settle(Tid(1));
    }
}

/// A group that is skipped although it fits, and one that is waited for.
#[test]
fn before_busy_groups_were_skipped_a_search_waits_for_them() {
    for wait in [0, 1] {
        let bench = bench(&[300], Mode::new(0, 0));
        let tunables = bench.allocator.tunables();
        tunables.set(Tunable::MbWaitBusy, wait).unwrap();
        let (bench, is_held) = (&bench, AtomicBool::new(true));
        let got = thread::scope(|scope| {
            let locked = bench.allocator.table().lock(GroupNr(0), Patience::Wait);
            let held = &is_held;
            let search = scope.spawn(move || {
                let request = Request::metadata(InodeNr(2), ClusterCount(20), PhysBlock(1));
                let run = bench.use_up(&request, Tid(1));
                (run.group, held.load(Ordering::Acquire))
            });
            if wait == 1 {
                // As long as the search waits, nothing but time can tell.
                thread::sleep(std::time::Duration::from_millis(50));
                is_held.store(false, Ordering::Release);
                drop(locked);
                search.join().unwrap()
            } else {
                let got = search.join().unwrap();
                drop(locked);
                got
            }
        });
        let expected = [(GroupNr(1), true), (GroupNr(0), false)];
        assert_eq!(got, expected[wait as usize]);
    }
}

/// With ext4's counter, which has pending clusters already, it is the search that finds none.
#[test]
fn a_request_that_counts_pending_clusters_as_free_fails_after_a_search() {
    for mode in Mode::ALL {
        let bench = bench(&[300], mode);
        let all = [run(0, 1, 300), run(1, 1, 300)];
        let claim = |len, tid, mut reservation| {
            let claim = bench
                .allocator
                .allocate(&exact(len), None, &mut reservation);
            bench.allocator.unreserve(reservation);
            claim.map(|claim| bench.mark(claim, tid))
        };
        let ahead = |len, tid| claim(len, tid, bench.allocator.reserve_ahead(u64::from(len)));
        // These are counted: a reservation ahead may leave one core with too few tokens, and
        // another, to which the thread has moved, with as many too many.
        let mut taken = [(); 2].map(|()| {
            let reservation = bench.allocator.reserve(300, Privilege::User).unwrap();
            claim(300, Tid(1), reservation).unwrap()
        });
        taken.sort_unstable_by_key(|run| run.group.0);
        assert_eq!(taken, all, "{mode:?}");
        assert_eq!(bench.allocator.free_clusters(), 0);
        assert!(matches!(
            ahead(1, Tid(1)),
            Err(Error::NoSpace { wanted: 1, .. })
        ));
        bench.free(taken[1], Tid(2));
        let passes = || bench.allocator.mb_stats()[Count::ExactPasses];
        let before = passes();
        let counted = bench.allocator.reserve(200, Privilege::User);
        assert!(matches!(counted, Err(Error::CommitFirst { .. })));
        assert_eq!(passes(), before, "a counted request is not searched for");
        let error = ahead(200, Tid(2)).unwrap_err();
        let is_right = matches!(error, Error::CommitFirst { waiting: 300, .. });
        assert!(is_right, "{mode:?}: {error}");
        assert_eq!(passes(), before + 1, "{mode:?}: one search, and no other");
        bench.allocator.set_durable(Tid(2));
        bench.allocator.sweep();
        assert_eq!(ahead(200, Tid(3)).unwrap().len, ClusterCount(200));
        assert_eq!(bench.allocator.free_clusters(), 100);
        bench.settle(Tid(3));
    }
}
