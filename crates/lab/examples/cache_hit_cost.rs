//! Measures a hit of the cache and the parts of it, on one thread.
//!
//! ```text
//! cargo run --release -p fourscore-lab --example cache_hit_cost
//! ```
//!
//! Each figure is the best of many short runs, so that other work on the machine has little effect.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use fourscore_cache::{ClockCache, Config, HitCounting};
use fourscore_sync::epoch::{self, EpochCell};
use fourscore_sync::{Arc, CoreNr};

const ENTRIES: u64 = 4096;
const RUNS: usize = 300;

/// Prints the nanoseconds of one call of `act`, which gets the numbers below [`ENTRIES`] in a
/// scattered order.
fn measure(what: &str, mut act: impl FnMut(u64)) {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        for number in 0..ENTRIES {
            act(number.wrapping_mul(2_654_435_761) % ENTRIES);
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / ENTRIES as f64;
        best = best.min(each);
    }
    println!("{best:8.2} ns  {what}");
}

fn cache(hits: HitCounting, entries: u64) -> ClockCache<u64, u64> {
    let cache = ClockCache::new(&Config {
        number: |key| *key,
        budget_bytes: 2 * 4096 * usize::try_from(entries).expect("a small number"),
        expected_weight_bytes: 4096,
        evictable: |_| true,
        hits,
    });
    for key in 0..entries {
        cache.insert(key, Arc::new(key), 4096);
    }
    cache
}

fn main() {
    measure("an empty step", |number| _ = black_box(number));
    measure("CoreNr::current", |_| _ = black_box(CoreNr::current()));
    measure("epoch::pin and unpin", |_| drop(black_box(epoch::pin())));
    let cell = EpochCell::new(Some(Box::new(1_u64)));
    measure("pin, load of an epoch cell, unpin", |_| {
        _ = black_box(cell.load(&epoch::pin()));
    });
    let plain = cache(HitCounting::Off, ENTRIES);
    measure("hit: pin, get, unpin", |key| {
        assert!(plain.get(&key, &epoch::pin()).is_some());
    });
    let guard = epoch::pin();
    measure("hit under an existing guard", |key| {
        assert!(plain.get(&key, &guard).is_some());
    });
    measure("absent key under a guard", |key| {
        assert!(plain.get(&!key, &guard).is_none());
    });
    drop(guard);
    measure("hit that takes an Arc", |key| {
        assert!(plain.get_arc(&key).is_some());
    });
    let counted = cache(HitCounting::On, ENTRIES);
    measure("counted hit: pin, get, unpin", |key| {
        assert!(counted.get(&key, &epoch::pin()).is_some());
    });
    let mut next = 3 * ENTRIES;
    measure("insertion that evicts", |_| {
        plain.insert(next, Arc::new(next), 4096);
        next += 1;
    });
    let large = cache(HitCounting::Off, 1 << 20);
    let mut walk = 0_u64;
    measure("hit among a million entries (cold lines)", |_| {
        walk = walk.wrapping_add(611_953) % (1 << 20);
        assert!(large.get(&walk, &epoch::pin()).is_some());
    });
}
