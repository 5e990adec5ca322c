//! **Purpose.** What reading ahead costs, by its counters: nothing once everything is loaded, one
//! plain load for a group that is.

use super::*;

/// What one request with a search costs that begins at a group.
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
    // From each goal on there are this flex group's groups to be tested, three of them loaded
    // without having been read ahead.
    assert_eq!(cost(&bench, 0), [4, 1, 1]);
    // The request has made the buddy of what has arrived.
    assert_eq!(cost(&bench, 0), [0, 0, 0]);
    assert_eq!(cost(&bench, 6), [2, 1, 1]);
    assert_eq!(bench.allocator.mb_stats()[Count::PrefetchedBitmaps], 2);
}

#[test]
fn a_bitmap_on_its_way_is_not_asked_for_again() {
    let bench = bench(4, 0..3);
    bench.disk.broken.store(true, Ordering::Relaxed);
    assert_eq!(cost(&bench, 0), [4, 1, 1]);
    assert_eq!(cost(&bench, 0), [4, 0, 0]);
    assert_eq!(cost(&bench, 2), [2, 0, 0]);
}

#[test]
fn the_locked_way_pays_for_every_group_every_time() {
    let bench = bench(16, 0..16);
    let tunables = bench.allocator.tunables();
    tunables.set(Tunable::MbPrefetchLocked, 1).unwrap();
    for _ in 0..3 {
        assert_eq!(cost(&bench, 0), [0, 4, 4]);
        assert_eq!(cost(&bench, 6), [0, 2, 2]);
    }
}
