//! **Purpose.** Tests of special requests: stripes, powers of two, bigalloc clusters, the reserved
//! pools, metadata groups, pending clusters.

use super::*;
use crate::geometry::Layout;

/// Values of `MbStreamGoals`.
const ONE_FOR_ALL: u32 = 0;
const BY_INODE: u32 = 1;
const BY_CORE: u32 = 2;

fn striped(groups: u32, stripe: u32) -> Geometry {
    Geometry::new(Layout {
        stripe,
        ..*geometry(groups, 1024).layout()
    })
    .unwrap()
}

#[test]
fn whole_stripes_begin_with_a_stripe_in_every_mode() {
    for mode in Mode::ALL {
        // Group starts, at 1 and 1025, are no multiples of 6.
        let geometry = striped(4, 6);
        let bench = Bench::on(Disk::new(geometry), geometry);
        bench.set_mode(mode);
        // ext4 looks for stripes at the fast criteria only, and these read no bitmaps.
        (0..4).for_each(|group| bench.allocator.load(GroupNr(group)).unwrap());
        for _ in 0..100 {
            let run = bench.use_up(&exact(18), Tid(1));
            assert_eq!(block(&bench, &run).0 % 6, 0, "{mode:?}");
            // A length that is no multiple of the stripe is not aligned, and shifts the others.
            bench.use_up(&exact(7), Tid(1));
        }
        bench.settle(Tid(1));
    }
}

/// From either of two stream goals, because the group of the other goal is tried last.
#[test]
fn a_request_for_stripes_is_served_where_no_stripe_begins() {
    let modes = Mode::ALL.into_iter();
    for (mode, inode) in modes.flat_map(|mode| [(mode, 12), (mode, 13)]) {
        let geometry = striped(2, 16);
        let disk = Disk::new(geometry);
        // Free are 20 of every 32 clusters, and stripes would begin at 15, 31, and so on.
        for group in 0..2 {
            (0..32).for_each(|chunk| disk.preset(&run(group, chunk * 32 + 4, 12)));
        }
        let bench = Bench::on(disk, geometry);
        bench.set_mode(mode);
        let tunables = bench.allocator.tunables();
        tunables.set(Tunable::MbStreamGoals, BY_INODE).unwrap();
        let request = Request {
            inode: InodeNr(inode),
            ..exact(16)
        };
        for _ in 0..2 * 31 {
            let run = bench.use_up(&request, Tid(1));
            assert_eq!(run.len, ClusterCount(16), "{mode:?}, inode {inode}");
        }
        bench.settle(Tid(1));
    }
}

#[test]
fn a_power_of_two_is_cut_from_the_smallest_buddy_that_has_it() {
    let geometry = geometry(8, 1024);
    let disk = Disk::new(geometry);
    // Group 5 has one free chunk of 64, and as its first extent 63 clusters.
    disk.preset(&run(5, 63, 1));
    disk.preset(&run(5, 128, 896));
    (0..5).for_each(|group| disk.preset(&run(group, 0, 1024)));
    let bench = Bench::on(disk, geometry);
    (0..8).for_each(|group| bench.allocator.load(GroupNr(group)).unwrap());
    // Metadata, because data may find it at a stream goal first.
    let request = Request::metadata(InodeNr(2), ClusterCount(64), PhysBlock(1));
    assert_eq!(bench.use_up(&request, Tid(1)), run(5, 64, 64));
    assert_eq!(bench.allocator.mb_stats()[Count::TwoOrderHits], 1);
    bench.settle(Tid(1));
}

#[test]
fn bigalloc_clusters_are_allocated_whole() {
    let geometry = Geometry::new(Layout {
        s_blocks_count: 1 + 4 * 512 * 16,
        s_clusters_per_group: 512,
        cluster_bits: 4,
        ..*geometry(1, 512).layout()
    })
    .unwrap();
    let bench = Bench::on(Disk::new(geometry), geometry);
    assert_eq!(bench.allocator.free_clusters(), 4 * 512);
    let mut before: Option<Run> = None;
    for logical in 0..40 {
        // The neighbour is given by the first block of its cluster.
        let left = before.map(|run| Neighbour {
            logical: LogicalCluster(logical - 1),
            block: block(&bench, &run),
        });
        let request = Request {
            left,
            content: Content::Metadata,
            sizing: Sizing::Exact,
            ..data(logical, 1)
        };
        let got = bench.use_up(&request, Tid(1));
        assert_eq!((block(&bench, &got).0 - 1) % 16, 0);
        if let Some(before) = before {
            assert_eq!(got.start.0, before.end(), "goals count in clusters");
        }
        before = Some(got);
    }
    assert_eq!(bench.allocator.free_clusters(), 4 * 512 - 40);
    let runs = geometry.runs(block(&bench, &before.unwrap()), 1).unwrap();
    runs.into_iter().for_each(|run| bench.free(run, Tid(2)));
    bench.settle(Tid(2));
}

#[test]
fn the_pools_serve_privileged_requests_only() {
    let geometry = geometry(2, 512);
    let disk = Arc::new(Disk::new(geometry));
    let options = Options {
        durable: Tid(0),
        root_clusters: 50,
        reserved_clusters: 20,
        fast_commits: false,
    };
    let allocator = Allocator::new(geometry, Box::new(Arc::clone(&disk)), options);
    let mut held = allocator.reserve(1024 - 70, Privilege::User).unwrap();
    for (privilege, has) in [
        (Privilege::User, 0),
        (Privilege::Root, 50),
        (Privilege::Reserved, 20),
    ] {
        let error = allocator.reserve(has + 1, privilege).unwrap_err();
        assert!(
            matches!(error, Error::NoSpace { available, .. } if available == has),
            "{privilege:?}: {error}"
        );
        held.absorb(allocator.reserve(has, privilege).unwrap());
    }
    // The holder of the tokens gets the clusters, down to the last.
    while held.clusters() > 0 {
        let len = u32::try_from(held.clusters()).unwrap().min(100);
        let claim = allocator.allocate(&exact(len), None, &mut held).unwrap();
        disk.apply(claim.change());
        allocator.mark(claim, Tid(1));
    }
    allocator.unreserve(held);
    assert_eq!(disk.free(), 0);
}

#[test]
fn data_in_powers_of_two_avoids_the_group_kept_for_metadata() {
    let bench = Bench::new(8, 1024);
    (0..8).for_each(|group| bench.allocator.load(GroupNr(group)).unwrap());
    let goal = |group| {
        bench
            .allocator
            .geometry()
            .block_of(GroupNr(group), GroupOffset(0))
    };
    for _ in 0..40 {
        let request = Request {
            goal: goal(6),
            ..exact(128)
        };
        let got = bench.use_up(&request, Tid(1));
        assert!(!got.group.0.is_multiple_of(4), "{got:?}");
    }
    let request = Request::metadata(InodeNr(2), ClusterCount(1), goal(4));
    assert_eq!(bench.use_up(&request, Tid(1)).group, GroupNr(4));
}

#[test]
fn a_search_does_not_skip_all_groups_kept_for_metadata() {
    const GROUPS: u32 = 200;
    // Chunks of 256 in the groups kept for metadata and in the last one; elsewhere 4 clusters.
    let bench = |larger: Option<u32>| {
        let geometry = geometry(GROUPS, 1024);
        let disk = Disk::new(geometry);
        for group in 0..GROUPS {
            if Some(group) == larger {
                continue;
            }
            let has_chunks = group.is_multiple_of(4) || group == GROUPS - 1;
            disk.preset(&run(group, 0, if has_chunks { 768 } else { 1020 }));
        }
        let bench = Bench::on(disk, geometry);
        (0..GROUPS).for_each(|group| bench.allocator.load(GroupNr(group)).unwrap());
        bench
    };
    let allocate = |bench: &Bench| {
        let goal = bench
            .allocator
            .geometry()
            .block_of(GroupNr(1), GroupOffset(0));
        bench.use_up(&Request { goal, ..exact(128) }, Tid(1)).group
    };
    // Data goes to a group kept for metadata before 49 of them are skipped for the one group after
    // them.
    let got = allocate(&bench(None));
    assert!(got.0.is_multiple_of(4), "{got:?}");
    // It does not where another group has larger chunks.
    assert_eq!(allocate(&bench(Some(150))), GroupNr(150));
}

#[test]
fn requests_that_need_a_commit_get_the_same_tid() {
    let bench = Bench::new(2, 512);
    let runs: Vec<_> = (0..2).map(|_| bench.use_up(&exact(512), Tid(3))).collect();
    bench.free(runs[0], Tid(4));
    bench.free(runs[1], Tid(5));
    for wanted in [1, 600] {
        let error = bench
            .allocator
            .reserve(wanted, Privilege::User)
            .unwrap_err();
        let expected = Some(Tid(5));
        assert!(
            matches!(error, Error::CommitFirst { waiting: 1024, tid, .. } if tid == expected),
            "{error:?}"
        );
    }
    bench.allocator.set_durable(Tid(4));
    bench.use_up(&exact(512), Tid(6));
    let error = bench.allocator.reserve(1, Privilege::User).unwrap_err();
    assert!(matches!(error, Error::CommitFirst { waiting: 512, .. }));
    bench.allocator.set_durable(Tid(5));
    bench.use_up(&exact(512), Tid(6));
    bench.settle(Tid(6));
}

/// As in Linux, where the goal is shared as there.
#[test]
fn a_hit_at_the_goal_of_a_file_moves_a_shared_stream_goal() {
    for (sharing, moves) in [(ONE_FOR_ALL, true), (BY_INODE, true), (BY_CORE, false)] {
        let bench = Bench::new(16, 1024);
        (0..16).for_each(|group| bench.allocator.load(GroupNr(group)).unwrap());
        let tunables = bench.allocator.tunables();
        tunables.set(Tunable::MbStreamGoals, sharing).unwrap();
        // The file continues in group 9; no stream goal is there at first.
        let before = GroupOffset(99);
        let left = Some(Neighbour {
            logical: LogicalCluster(99),
            block: bench.allocator.geometry().block_of(GroupNr(9), before),
        });
        let request = Request {
            left,
            sizing: Sizing::Exact,
            ..data(100, 20)
        };
        assert_eq!(bench.use_up(&request, Tid(1)), run(9, 100, 20));
        // A new file of the same stream. Shared goals have no offset in the group.
        let next = bench.use_up(&exact(20), Tid(1));
        assert_eq!(next == run(9, 0, 20), moves, "{sharing}: {next:?}");
        bench.settle(Tid(1));
    }
}
