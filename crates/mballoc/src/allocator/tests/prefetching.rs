//! **Purpose.** Tests of the cost of prefetching, by its counters: nothing once everything is
//! loaded, one plain load for a loaded group.

use super::*;

/// The cost of one request with a search whose goal is in a group: plain tests, locked tests and
/// descriptors fetched.
fn cost(bench: &Bench, group: u32) -> [u64; 3] {
    let before = bench.allocator.mb_stats();
    let goal = bench
        .allocator
        .geometry()
        .block_of(GroupNr(group), GroupOffset(0));
    bench.use_up(
        &Request::metadata(InodeNr(2), ClusterCount(1), goal),
        Tid(1),
    );
    let counted = bench.allocator.mb_stats().since(&before);
    [
        counted[Count::PrefetchTests],
        counted[Count::PrefetchLockedTests],
        counted[Count::PrefetchDescriptors],
    ]
}

/// Flex groups of four groups, all with a bitmap on disk; `loaded` are loaded.
fn bench(groups: u32, loaded: impl Iterator<Item = u32>) -> Bench {
    let geometry = geometry(groups, 1024);
    let disk = Disk::new(geometry);
    (0..groups).for_each(|group| disk.preset(&run(group, 0, 10)));
    let bench = Bench::on(disk, geometry);
    loaded.for_each(|group| bench.allocator.load(GroupNr(group)).unwrap());
    bench
}

#[test]
fn nothing_is_tested_once_all_is_loaded() {
    let bench = bench(16, 0..16);
    for group in 0..16 {
        assert_eq!(cost(&bench, group), [0, 0, 0]);
    }
}

#[test]
fn a_flex_group_that_is_loaded_costs_nothing() {
    let bench = bench(16, 0..15);
    for group in 0..12 {
        assert_eq!(cost(&bench, group), [0, 0, 0]);
    }
}

#[test]
fn a_loaded_group_costs_a_plain_load_and_an_absent_one_is_read_once() {
    let bench = bench(16, (0..16).filter(|group| group % 4 != 3));
    // The groups of the goal's flex group from the goal on are tested; three of them are loaded.
    assert_eq!(cost(&bench, 0), [4, 1, 1]);
    // The request has made the buddy of the bitmap that has arrived.
    assert_eq!(cost(&bench, 0), [0, 0, 0]);
    assert_eq!(cost(&bench, 6), [2, 1, 1]);
    assert_eq!(bench.allocator.mb_stats()[Count::PrefetchedBitmaps], 2);
}

#[test]
fn a_bitmap_being_read_is_not_read_ahead_again() {
    let bench = bench(4, 0..3);
    bench.disk.broken.store(true, Ordering::Relaxed);
    assert_eq!(cost(&bench, 0), [4, 1, 1]);
    assert_eq!(cost(&bench, 0), [4, 0, 0]);
    assert_eq!(cost(&bench, 2), [2, 0, 0]);
}

#[test]
fn the_tests_of_ext4_are_made_for_every_group_every_time() {
    let bench = bench(16, 0..16);
    for (test, expected) in [(1, [0, 4, 4]), (2, [4, 0, 4]), (3, [4, 0, 0])] {
        let tunables = bench.allocator.tunables();
        tunables.set(Tunable::MbPrefetchTest, test).unwrap();
        for _ in 0..3 {
            assert_eq!(cost(&bench, 0), expected);
            assert_eq!(cost(&bench, 6), expected.map(|count| count / 2));
        }
    }
}

#[test]
fn full_groups_do_not_keep_the_others_from_being_all_loaded() {
    const FULL: u32 = 5;
    let geometry = geometry(16, 1024);
    let disk = Disk::new(geometry);
    (0..16).for_each(|group| disk.preset(&run(group, 0, 10)));
    disk.preset(&run(FULL, 10, 1014));
    let bench = Bench::on(disk, geometry);
    let others = (0..16).filter(|&group| group != FULL).map(GroupNr);
    others.for_each(|group| bench.allocator.load(group).unwrap());
    for group in 0..16 {
        assert_eq!(cost(&bench, group), [0, 0, 0], "goal in group {group}");
    }
    assert_eq!(bench.allocator.absent_groups(), 1, "the full group");
    // Freeing in it loads it, and from then on it is like any other.
    bench.free(run(FULL, 0, 100), Tid(1));
    assert_eq!(bench.allocator.absent_groups(), 0);
    bench.settle(Tid(1));
    // All groups have been used since the last pass, which spares them once.
    let evicted = bench.allocator.evict_idle(100);
    assert_eq!(bench.allocator.absent_groups(), evicted);
    assert_eq!(evicted, 16);
    assert_eq!(bench.allocator.table().absent(), 16);
}
