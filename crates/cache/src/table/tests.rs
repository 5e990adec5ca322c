//! Tests of the cache on real threads: insertion, removal, eviction and loading.

use super::*;
use fourscore_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use fourscore_sync::thread;

/// A value that is evictable while it is `true`.
type Switch = AtomicBool;

const WEIGHT: usize = 64;

fn cache_of(entries: usize) -> ClockCache<u64, u64> {
    ClockCache::new(&Config {
        number: |key| *key,
        budget_bytes: entries * WEIGHT,
        expected_weight_bytes: WEIGHT,
        evictable: |_| true,
        hits: HitCounting::On,
    })
}

fn switched(entries: usize) -> ClockCache<u64, Switch> {
    ClockCache::new(&Config {
        number: |key| *key,
        budget_bytes: entries * WEIGHT,
        expected_weight_bytes: WEIGHT,
        evictable: |may_leave: &Switch| may_leave.load(Ordering::Acquire),
        hits: HitCounting::Off,
    })
}

/// Checks the length and weight of the cache against its entries; returns the number of entries.
fn check<V: Send + Sync>(cache: &ClockCache<u64, V>) -> usize {
    let mut keys = std::collections::BTreeSet::new();
    cache.for_each(|key, _| assert!(keys.insert(*key), "{key} has two entries"));
    assert_eq!(cache.len(), keys.len());
    assert_eq!(cache.weight_bytes(), keys.len() * WEIGHT);
    keys.len()
}

#[test]
fn the_first_value_of_a_key_stays() {
    let cache = cache_of(64);
    assert_eq!(*cache.insert(1, Arc::new(10), WEIGHT), 10);
    assert_eq!(*cache.insert(1, Arc::new(11), WEIGHT), 10);
    assert_eq!(cache.get(&1, &epoch::pin()), Some(&10));
    assert_eq!(cache.get(&2, &epoch::pin()), None);
    assert_eq!(cache.get_arc(&1).as_deref(), Some(&10));
    assert!(cache.remove_if(&1, |value| **value == 11).is_none());
    assert_eq!(cache.remove(&1).as_deref(), Some(&10));
    assert!(cache.remove(&1).is_none());
    assert!(cache.is_empty());
    assert_eq!(cache.weight_bytes(), 0);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.insertions), (2, 1, 1));
}

#[test]
fn taken_entries_are_gone_and_leave_space_for_others() {
    let cache = cache_of(64);
    assert!(cache.take(&1).is_none());
    for key in 0..64 {
        cache.insert(key, Arc::new(key), WEIGHT);
    }
    for key in 0..32 {
        assert_eq!(cache.take(&key).as_deref(), Some(&key));
        assert!(cache.take(&key).is_none() && cache.get(&key, &epoch::pin()).is_none());
    }
    let kept = check(&cache);
    for key in 0..32 {
        cache.insert(key, Arc::new(key), WEIGHT);
    }
    assert!(check(&cache) > kept, "the taken ones leave space");
}

#[test]
fn keys_of_one_bucket_do_not_disturb_each_other() {
    // Sixteen buckets for two hundred entries that refuse eviction: long buckets.
    let cache = switched(4);
    for key in 0..200 {
        cache.insert(key, Arc::new(Switch::new(false)), WEIGHT);
    }
    assert_eq!(check(&cache), 200);
    for key in (0..200).step_by(3) {
        assert!(cache.remove(&key).is_some());
    }
    let guard = epoch::pin();
    for key in 0..200 {
        assert_eq!(cache.get(&key, &guard).is_some(), key % 3 != 0, "{key}");
    }
}

#[test]
fn the_budget_holds() {
    let cache = cache_of(4096);
    for key in 0..40_960 {
        cache.insert(key, Arc::new(key), WEIGHT);
        if key % 4096 == 0 {
            check(&cache);
        }
    }
    let left = check(&cache);
    assert!((3_000..=4096).contains(&left), "{left} entries");
    assert_eq!(cache.stats().evictions, 40_960 - left as u64);
}

#[test]
fn entries_in_use_survive_a_scan() {
    let cache = cache_of(1024);
    for key in 0..256 {
        cache.insert(key, Arc::new(key), WEIGHT);
    }
    for key in 1_000..20_000 {
        cache.insert(key, Arc::new(key), WEIGHT);
        let guard = epoch::pin();
        if key % 32 == 0 {
            assert!((0..256).all(|used| cache.get(&used, &guard).is_some()));
        }
    }
    let guard = epoch::pin();
    let left = (0..256)
        .filter(|key| cache.get(key, &guard).is_some())
        .count();
    assert_eq!(
        left, 256,
        "a scan evicted entries that are used all the time"
    );
}

#[test]
fn refusing_entries_stay_and_are_not_offered_again_and_again() {
    let cache = switched(256);
    for key in 0..10_000 {
        cache.insert(key, Arc::new(Switch::new(false)), WEIGHT);
    }
    assert_eq!(check(&cache), 10_000);
    let refusals = cache.stats().refusals;
    assert!(
        refusals < 100 * 10_000,
        "{refusals} refusals for 10 000 insertions"
    );
    cache.for_each(|_, may_leave| may_leave.store(true, Ordering::Release));
    cache.trim();
    assert!(check(&cache) <= 256);
}

#[test]
fn a_value_larger_than_the_budget_is_kept_as_the_only_one() {
    let cache = cache_of(64);
    for key in 0..64 {
        cache.insert(key, Arc::new(key), WEIGHT);
    }
    cache.insert(1_000, Arc::new(0), 1 << 20);
    assert_eq!(cache.len(), 1);
    cache.insert(1_001, Arc::new(1), WEIGHT);
    assert!(check(&cache) <= 64, "the large value was evicted");
}

#[test]
fn an_evicted_value_lives_as_long_as_the_guard_that_found_it() {
    let cache = cache_of(16);
    cache.insert(0, Arc::new(77), WEIGHT);
    let guard = epoch::pin();
    let value = cache.get(&0, &guard).expect("just inserted");
    for key in 1..1_000 {
        cache.insert(key, Arc::new(key), WEIGHT);
    }
    assert!(cache.get_arc(&0).is_none(), "evicted");
    epoch::flush();
    assert_eq!(*value, 77);
    drop(cache);
    assert_eq!(*value, 77);
}

#[test]
fn one_loader_runs_and_all_callers_get_its_value() {
    let cache = cache_of(64);
    let loads = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let value = cache.get_or_try_load(&5, || {
                    loads.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(std::time::Duration::from_millis(20));
                    Ok::<_, ()>((Arc::new(55), WEIGHT))
                });
                assert_eq!(value.as_deref(), Ok(&55));
            });
        }
    });
    assert_eq!(loads.load(Ordering::Relaxed), 1);
    let stats = cache.stats();
    assert_eq!(stats.loads, 1);
    assert_eq!(stats.load_waits + stats.hits, 7);
    assert_eq!(check(&cache), 1);
}

#[test]
fn errors_and_panics_of_a_loader_are_not_cached() {
    let cache = cache_of(64);
    assert_eq!(
        cache.get_or_try_load(&5, || Err("unreadable")),
        Err("unreadable")
    );
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.get_or_try_load(&5, || -> Result<_, ()> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    assert!(cache.is_empty());
    let value = cache.get_or_try_load(&5, || Ok::<_, ()>((Arc::new(5), WEIGHT)));
    assert_eq!(value.as_deref(), Ok(&5));
}

#[test]
fn a_removal_discards_a_pending_load() {
    let cache = cache_of(64);
    let value = cache.get_or_try_load(&5, || {
        assert!(cache.remove(&5).is_none());
        Ok::<_, ()>((Arc::new(1), WEIGHT))
    });
    assert_eq!(value.as_deref(), Ok(&1), "the caller gets the loaded value");
    assert!(cache.is_empty(), "a value read before the removal is stale");
}

#[test]
fn an_insertion_during_a_load_wins() {
    let cache = cache_of(64);
    let value = cache.get_or_try_load(&5, || {
        cache.insert(5, Arc::new(2), WEIGHT);
        Ok::<_, ()>((Arc::new(1), WEIGHT))
    });
    assert_eq!(value.as_deref(), Ok(&2));
    assert_eq!(check(&cache), 1);
}

/// All operations from several threads on a full cache: values always belong to their keys, and at
/// the end the weight is right.
#[test]
fn threads_under_pressure_see_only_their_keys_values() {
    let cache = cache_of(512);
    thread::scope(|scope| {
        for number in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut state = number + 1;
                for _ in 0..20_000 {
                    // A linear congruential walk, different for each thread.
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(number);
                    let key = (state >> 40) % 2048;
                    match (state >> 33) % 8 {
                        0 => drop(cache.remove(&key)),
                        1 => drop(cache.insert(key, Arc::new(!key), WEIGHT)),
                        2 | 3 => {
                            let load = || Ok::<_, ()>((Arc::new(!key), WEIGHT));
                            assert_eq!(cache.get_or_try_load(&key, load).as_deref(), Ok(&!key));
                        }
                        _ => {
                            let guard = epoch::pin();
                            assert!(cache.get(&key, &guard).is_none_or(|value| *value == !key));
                        }
                    }
                }
            });
        }
    });
    assert!(check(&cache) <= 512);
}
