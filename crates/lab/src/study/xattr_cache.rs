//! **Purpose.** `s3-xattrcache`: what a cache of attribute blocks costs with one lock, with a lock
//! for each bucket, and without a cache at all, by how many files have equal attributes.
//!
//! **Model.** The caches are alone ([`attribute_cache`](crate::attribute_cache)). The publication
//! has loads of aim7 and of a database, in which attributes are a small part; here they are
//! everything, so ratios are further from 1. What the reply to it asks for is in the facts: how
//! often a file gets a block that another file has.

use std::io;

use crate::alloc::Published;
use crate::attribute_cache::{CacheTarget, by_name};
use crate::comparison::ThreadCount;
use crate::study::{Case, Facts, Measure, Sample, Side, Study, Surroundings, ThreadList};
use crate::xattrs::{Values, XattrLoad, XattrWorkload};

/// Files, or steps of the mix, of all threads together, by default.
const STEPS: u64 = 200_000;
const VALUE_BYTES: usize = 200;
/// Bytes in memory for each file: a block of its own, and its places.
const FILE_BYTES: u64 = 512;

/// The experiment.
pub(super) const STUDY: Study = Study {
    name: "s3-xattrcache",
    about: "what sharing attribute blocks costs by locks, and whether it pays",
    source: "T. Makphaibulchoke, ext4: increase mbcache scalability, and A. Dilger's reply, 2013",
    load: "sets attributes of 200 bytes, or creates files with them, changes and removes them",
    cases: &[
        case("mix-same", "the mix, all values equal"),
        case("mix-1000", "the mix, 1000 values"),
        case("mix-distinct", "the mix, no two values equal"),
        case("set-same", "sets only, all values equal"),
        case("set-1000", "sets only, 1000 values"),
        case("set-distinct", "sets only, no two values equal"),
    ],
    smallest_cases: 6,
    // Each thread has each of 1000 values twice.
    smallest_steps: 2000,
    sides: &[
        Side {
            name: "one lock",
            about: "one lock for lookups, users and the order of use",
        },
        Side {
            name: "sharded",
            about: "a lock for each of 64 buckets, one for the order of use",
        },
        Side {
            name: "bypass",
            about: "no cache: each file has a block of its own",
        },
        Side {
            name: "ours",
            about: "lookups without a lock, and a bypass that chooses itself",
        },
    ],
    published: &[
        row("90 cores, aim7 alltests", 11.85),
        row("90 cores, aim7 custom", 14.42),
        row("90 cores, aim7 fserver", 21.36),
        row("90 cores, aim7 new_dbase", 5.59),
        row("90 cores, aim7 new_fserver", 21.45),
        row("90 cores, aim7 shared", 12.84),
        row("90 cores, SPECjbb2013 max-jOPS", 5.99),
        row("90 cores, Swingbench DSS, 100 users", 8.46),
        row("90 cores, Swingbench DSS, 200 users", 8.00),
        row("90 cores, Swingbench DSS, 300 users", 7.35),
        row("90 cores, Swingbench DSS, 400 users", -0.313),
        row("90 cores, Swingbench DSS, 500 users", 1.09),
        row("90 cores, Swingbench DSS, 600 users", 0.69),
        row("90 cores, Swingbench DSS, 700 users", 0.30),
        row("90 cores, Swingbench DSS, 800 users", 2.18),
        row("90 cores, Swingbench DSS, 900 users", 5.23),
        row("90 cores, the same without shared memory, 100 users", 45.66),
        row("90 cores, the same without shared memory, 200 users", 47.62),
        row("90 cores, the same without shared memory, 300 users", 34.54),
        row("90 cores, the same without shared memory, 400 users", 25.15),
        row("90 cores, the same without shared memory, 500 users", 15.29),
        row("90 cores, the same without shared memory, 600 users", 3.38),
        row("90 cores, the same without shared memory, 700 users", -8.7),
        row("90 cores, the same without shared memory, 800 users", -4.98),
        row("90 cores, the same without shared memory, 900 users", -7.86),
        row("80 cores, Swingbench DSS, 100 users", -1.79),
        row("80 cores, Swingbench DSS, 200 users", 0.37),
        row("80 cores, Swingbench DSS, 300 users", 1.36),
        row("80 cores, Swingbench DSS, 400 users", 0.08),
        row("80 cores, Swingbench DSS, 500 users", 1.66),
        row("80 cores, Swingbench DSS, 600 users", 2.09),
        row("80 cores, Swingbench DSS, 700 users", 1.16),
        row("80 cores, Swingbench DSS, 800 users", 1.48),
        row("80 cores, Swingbench DSS, 900 users", 1.92),
    ],
    threads: ThreadList::OneAndTwo,
    scratch: None,
    measure: &Caches,
};

const fn case(name: &'static str, about: &'static str) -> Case {
    Case { name, about }
}

/// A published increase in percent.
const fn row(what: &'static str, percent: f64) -> Published {
    Published {
        what,
        unit: "% of the base",
        base: 100.0,
        patched: 100.0 + percent,
    }
}

/// What a case does.
fn workload(case: &Case) -> Option<XattrWorkload> {
    let (load, values) = case.name.split_once('-')?;
    Some(XattrWorkload {
        load: match load {
            "mix" => XattrLoad::Mix,
            "set" => XattrLoad::Set,
            _ => return None,
        },
        values: match values {
            "same" => Values::Same,
            "distinct" => Values::Distinct,
            count => Values::Few(count.parse().ok()?),
        },
        value_bytes: VALUE_BYTES,
    })
}

/// The name of a side's cache.
fn cache_of(side: &Side) -> &'static str {
    match side.name {
        "one lock" => "one-lock",
        "bypass" => "unshared",
        "ours" => "fourscore",
        name => name,
    }
}

struct Caches;

impl Measure for Caches {
    fn steps(&self, _: &Case, threads: ThreadCount) -> u64 {
        STEPS / threads.get() as u64
    }

    fn memory_bytes(&self, _: &Case) -> u64 {
        STEPS * FILE_BYTES
    }

    fn run(
        &self,
        case: &Case,
        side: &Side,
        threads: ThreadCount,
        steps: u64,
        around: &Surroundings<'_>,
    ) -> io::Result<Sample> {
        let workload = workload(case).ok_or(io::ErrorKind::InvalidInput)?;
        let cache = by_name(cache_of(side)).ok_or(io::ErrorKind::InvalidInput)?;
        let target = CacheTarget::new(&*cache);
        let all = steps.saturating_mul(threads.get() as u64);
        let all = u32::try_from(all).map_err(|_| io::ErrorKind::InvalidInput)?;
        let driven = workload.run(&target, threads, all, around.clock)?;
        let takes = target.takes();
        let facts = Facts::from([
            ("blocks taken", takes.all as f64),
            (
                "of another file, %",
                takes.shared as f64 * 100.0 / (takes.all as f64).max(1.0),
            ),
        ]);
        Ok(Sample {
            operations_per_second: driven.operations_per_second(),
            facts,
            profile: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute_cache::PUBLISHED_AIM7;
    use crate::clock::MonotonicClock;

    #[test]
    fn every_case_and_side_exists() {
        assert!(STUDY.cases.iter().all(|case| workload(case).is_some()));
        assert!(
            STUDY
                .sides
                .iter()
                .all(|side| by_name(cache_of(side)).is_some())
        );
        for (row, (name, percent)) in STUDY.published.iter().zip(PUBLISHED_AIM7) {
            assert!(row.what.ends_with(name), "{row:?}");
            assert!((row.patched - 100.0 - percent).abs() < 1e-9, "{row:?}");
        }
    }

    #[test]
    fn the_facts_say_how_often_blocks_are_shared() {
        let clock = MonotonicClock::default();
        let around = Surroundings {
            clock: &clock,
            scratch: None,
        };
        let shared = |case: &str, side: usize| {
            let (case, side) = (STUDY.case(case).expect(case), &STUDY.sides[side]);
            let sample = Caches.run(&case, side, ThreadCount::new(2), 400, &around);
            sample.expect("a run").facts["of another file, %"]
        };
        for side in [0, 1] {
            assert!(shared("set-same", side) > 99.0);
            assert!(shared("mix-distinct", side) <= 0.0);
        }
        assert!(shared("set-same", 2) <= 0.0);
        assert!(shared("set-same", 3) > 90.0);
    }
}
