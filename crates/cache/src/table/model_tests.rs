//! Tests of the cache under the schedules that shuttle tries.

use super::*;
use fourscore_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use fourscore_sync::{model, thread};

const WEIGHT: usize = 64;
const SCHEDULES: usize = 1500;

/// A value that knows its key, and spoils it when it is dropped.
struct Probe {
    key: u64,
    /// Clean, dirty or evicted, for the test of the eviction hook.
    state: AtomicU64,
}

const CLEAN: u64 = 0;
const DIRTY: u64 = 1;
const EVICTED: u64 = 2;

impl Probe {
    fn new(key: u64) -> Arc<Self> {
        Arc::new(Self {
            key,
            state: AtomicU64::new(CLEAN),
        })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.key = u64::MAX;
    }
}

fn cache_of(entries: usize, evictable: fn(&Probe) -> bool) -> Arc<ClockCache<u64, Probe>> {
    Arc::new(ClockCache::new(&Config {
        number: |key| *key,
        budget_bytes: entries * WEIGHT,
        expected_weight_bytes: WEIGHT,
        evictable,
        hits: HitCounting::On,
    }))
}

/// Runs the tasks concurrently.
fn run_concurrently(tasks: Vec<Box<dyn FnOnce() + Send>>) {
    let tasks: Vec<_> = tasks.into_iter().map(thread::spawn).collect();
    for task in tasks {
        task.join().expect("a task");
    }
}

#[test]
fn readers_keep_values_that_insertions_evict() {
    model::check(SCHEDULES, || {
        let cache = cache_of(2, |_| true);
        let task = |first: u64| -> Box<dyn FnOnce() + Send> {
            let cache = Arc::clone(&cache);
            Box::new(move || {
                let guard = epoch::pin();
                let mut seen = Vec::new();
                for key in first..first + 3 {
                    assert_eq!(cache.insert(key, Probe::new(key), WEIGHT).key, key);
                    seen.extend(
                        (0..6).filter_map(|key| cache.get(&key, &guard).map(|probe| (key, probe))),
                    );
                }
                drop(cache.remove(&first));
                for (key, probe) in seen {
                    assert_eq!(probe.key, key, "a dropped value was read");
                }
            })
        };
        run_concurrently(vec![task(0), task(2), task(3)]);
        assert!(cache.len() <= 2);
        assert_eq!(cache.weight_bytes(), cache.len() * WEIGHT);
    });
}

#[test]
fn two_insertions_agree_on_one_value() {
    model::check(SCHEDULES, || {
        let cache = cache_of(8, |_| true);
        let task = || {
            let cache = Arc::clone(&cache);
            thread::spawn(move || cache.insert(1, Probe::new(1), WEIGHT))
        };
        let (one, two) = (task(), task());
        let (one, two) = (one.join().expect("a task"), two.join().expect("a task"));
        assert!(Arc::ptr_eq(&one, &two));
        assert!(Arc::ptr_eq(&one, &cache.get_arc(&1).expect("in the cache")));
        assert_eq!(cache.len(), 1);
    });
}

#[test]
fn one_load_serves_all_callers_with_its_key() {
    model::check(SCHEDULES, || {
        let cache = cache_of(8, |_| true);
        let loads = Arc::new(AtomicUsize::new(0));
        let task = || -> Box<dyn FnOnce() + Send> {
            let (cache, loads) = (Arc::clone(&cache), Arc::clone(&loads));
            Box::new(move || {
                let value = cache.get_or_try_load(&7, || {
                    loads.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    Ok::<_, ()>((Probe::new(7), WEIGHT))
                });
                assert_eq!(value.map(|probe| probe.key), Ok(7));
            })
        };
        run_concurrently(vec![task(), task(), task()]);
        assert_eq!(loads.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn after_a_failed_load_a_waiter_loads() {
    model::check(SCHEDULES, || {
        let cache = cache_of(8, |_| true);
        let loads = Arc::new(AtomicUsize::new(0));
        let failures = Arc::new(AtomicUsize::new(0));
        let task = || -> Box<dyn FnOnce() + Send> {
            let (cache, loads) = (Arc::clone(&cache), Arc::clone(&loads));
            let failures = Arc::clone(&failures);
            Box::new(move || {
                let value = cache.get_or_try_load(&7, || {
                    if loads.fetch_add(1, Ordering::SeqCst) == 0 {
                        return Err("unreadable");
                    }
                    Ok((Probe::new(7), WEIGHT))
                });
                if value.is_err() {
                    failures.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        run_concurrently(vec![task(), task(), task()]);
        assert_eq!(loads.load(Ordering::SeqCst), 2);
        assert_eq!(
            failures.load(Ordering::SeqCst),
            1,
            "only the caller whose loader failed"
        );
        assert_eq!(cache.len(), 1);
    });
}

/// One task rewrites a block on the device and removes it from the cache, while others load it.
#[test]
fn a_value_read_before_a_removal_is_not_inserted_after_it() {
    model::check(SCHEDULES, || {
        let cache = cache_of(8, |_| true);
        let device = Arc::new(AtomicU64::new(1));
        let reader = || -> Box<dyn FnOnce() + Send> {
            let (cache, device) = (Arc::clone(&cache), Arc::clone(&device));
            Box::new(move || {
                let load = || Ok::<_, ()>((Probe::new(device.load(Ordering::SeqCst)), WEIGHT));
                assert!(cache.get_or_try_load(&7, load).is_ok());
            })
        };
        let writer: Box<dyn FnOnce() + Send> = {
            let (cache, device) = (Arc::clone(&cache), Arc::clone(&device));
            Box::new(move || {
                device.store(2, Ordering::SeqCst);
                drop(cache.remove(&7));
            })
        };
        run_concurrently(vec![reader(), writer, reader()]);
        assert!(
            cache.get_arc(&7).is_none_or(|probe| probe.key == 2),
            "a stale block stayed"
        );
    });
}

/// The contract of the eviction hook: of "evict" and "make dirty" exactly one succeeds.
#[test]
fn a_dirty_value_is_not_evicted() {
    let evictable = |probe: &Probe| {
        let (order, failed) = (Ordering::SeqCst, Ordering::SeqCst);
        probe
            .state
            .compare_exchange(CLEAN, EVICTED, order, failed)
            .is_ok()
    };
    model::check(SCHEDULES, move || {
        let cache = cache_of(1, evictable);
        cache.insert(1, Probe::new(1), WEIGHT);
        let modifier = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                cache.get_arc(&1).is_some_and(|probe| {
                    let (order, failed) = (Ordering::SeqCst, Ordering::SeqCst);
                    probe
                        .state
                        .compare_exchange(CLEAN, DIRTY, order, failed)
                        .is_ok()
                })
            })
        };
        for key in 2..4 {
            cache.insert(key, Probe::new(key), WEIGHT);
        }
        if modifier.join().expect("the modifier") {
            let kept = cache.get_arc(&1).expect("a dirty value was evicted");
            assert_eq!(kept.state.load(Ordering::SeqCst), DIRTY);
        }
    });
}

#[test]
fn removals_and_insertions_keep_the_weight_right() {
    model::check(SCHEDULES, || {
        let cache = cache_of(4, |_| true);
        let task = |number: u64| -> Box<dyn FnOnce() + Send> {
            let cache = Arc::clone(&cache);
            Box::new(move || {
                for key in 0..3 {
                    if (key + number).is_multiple_of(2) {
                        cache.insert(key, Probe::new(key), WEIGHT);
                    } else if let Some(probe) = cache.remove(&key) {
                        assert_eq!(probe.key, key);
                    }
                }
            })
        };
        run_concurrently(vec![task(0), task(1), task(2)]);
        let mut found = 0;
        cache.for_each(|_, _| found += 1);
        assert_eq!((cache.len(), cache.weight_bytes()), (found, found * WEIGHT));
    });
}
