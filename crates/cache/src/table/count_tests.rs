//! Tests of the number of cache lines that operations move between cores.

use super::*;
use fourscore_sync::count::{Cores, Report, with_cores};

const WEIGHT: usize = 4096;
const ENTRIES: u64 = 512;

fn cache(hits: HitCounting) -> ClockCache<u64, u64> {
    let cache = ClockCache::new(&Config {
        number: |key| *key,
        budget_bytes: 4096 * WEIGHT,
        expected_weight_bytes: WEIGHT,
        evictable: |_| true,
        hits,
    });
    for key in 0..ENTRIES {
        cache.insert(key, Arc::new(key), WEIGHT);
    }
    cache
}

/// The cost after every core has accessed every entry.
fn steady(cores: &Cores, mut operation: impl FnMut(u64)) -> Report {
    let mut all = || (0..ENTRIES).for_each(&mut operation);
    cores.run(2, |_, _| all());
    cores.run(2, |_, _| all())
}

#[test]
fn hits_move_no_line() {
    for size in [2, 80, 192] {
        with_cores(size, |cores| {
            for hits in [HitCounting::Off, HitCounting::On] {
                let cache = cache(hits);
                let report = steady(cores, |key| {
                    assert_eq!(cache.get(&key, &epoch::pin()), Some(&key));
                });
                assert_eq!(report.transfers(), 0, "{report}");
            }
        });
    }
}

/// A value on a cache line of its own, so that its count shares none with the entry.
#[derive(Debug)]
#[repr(align(64))]
struct OwnLine;

#[test]
fn a_reference_to_a_value_moves_one_line() {
    with_cores(80, |cores| {
        let cache: ClockCache<u64, OwnLine> = ClockCache::new(&Config {
            number: |key| *key,
            budget_bytes: 4096 * WEIGHT,
            expected_weight_bytes: WEIGHT,
            evictable: |_| true,
            hits: HitCounting::Off,
        });
        cache.insert(7, Arc::new(OwnLine), WEIGHT);
        // All cores use the same entry, so that each finds its count in another core's cache.
        let operation = || assert!(cache.get_arc(&7).is_some());
        cores.run(2, |_, _| operation());
        let report = cores.run(10, |_, _| operation());
        assert!((report.transfers_per_op() - 1.0).abs() < 1e-9, "{report}");
    });
}

/// Insertions that evict cost readers of other entries little: the referenced flags and the copied
/// buckets.
#[test]
fn insertions_cost_readers_only_of_their_buckets() {
    with_cores(80, |cores| {
        let cache = cache(HitCounting::Off);
        let mut next = ENTRIES;
        let mut operation = |core: CoreNr| {
            if core.index() == 0 {
                cache.insert(next, Arc::new(next), WEIGHT);
                next += 1;
            } else {
                assert!(cache.get(&(core.index() as u64), &epoch::pin()).is_some());
            }
        };
        cores.run(10, |core, _| operation(core));
        let report = cores.run(100, |core, _| operation(core));
        assert!(report.transfers_per_op() < 0.1, "{report}");
    });
}
