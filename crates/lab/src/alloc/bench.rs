//! **Purpose.** One run of a workload on a file system in memory: sets up the allocator, drives the
//! workload, commits meanwhile, and compares the free space before and after.

use std::io;
use std::time::Duration;

use fourscore_sync::{Condvar, Mutex, thread};

use crate::alloc::free_space::FreeSpace;
use crate::alloc::outcome::AllocOutcome;
use crate::alloc::ram::RamGroups;
use crate::alloc::scenario::Scenario;
use crate::alloc::target::{AllocTarget, Changes, Reuse};
use crate::clock::Clock;
use crate::comparison::ThreadCount;
use crate::workload::{Until, Workload, drive};

/// The bitmaps of a file system of at most this many groups are all loaded before a run, unless
/// `bitmaps` says otherwise. With blocks of 4 KiB they take ten gigabytes.
const MAX_LOADED_GROUPS: u32 = 1 << 20;

/// Whether the bitmaps are in memory when a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bitmaps {
    /// All of them, as on a file system that has been in use for a while.
    Loaded,
    /// None of them.
    Absent,
}

/// A run.
#[derive(Clone, Debug)]
pub struct AllocBench {
    /// The file system.
    pub scenario: Scenario,
    /// Tunables to set: name and value.
    pub tunables: Vec<(String, u32)>,
    /// Whether bitmaps are loaded before the run.
    pub bitmaps: Bitmaps,
    /// Whether every change is applied and checked.
    pub changes: Changes,
    /// When clusters freed in the transaction that allocated them can be allocated again.
    pub reuse: Reuse,
    /// Interval of periodic commits; jbd2's is 5 seconds.
    pub commit_every: Duration,
}

impl AllocBench {
    /// A run with the defaults. The bitmaps are loaded, unless they would take tens of gigabytes.
    #[must_use]
    pub fn on(scenario: Scenario) -> Self {
        let groups = scenario.geometry().map_or(0, |geometry| geometry.groups());
        let bitmaps = if groups > MAX_LOADED_GROUPS {
            Bitmaps::Absent
        } else {
            Bitmaps::Loaded
        };
        Self {
            scenario,
            tunables: Vec::new(),
            bitmaps,
            changes: Changes::Dropped,
            reuse: Reuse::InTransaction,
            commit_every: Duration::from_secs(5),
        }
    }

    /// Sets up the allocator on the file system.
    ///
    /// # Errors
    /// The scenario has no valid layout, or a tunable is unknown.
    pub fn target(&self) -> io::Result<AllocTarget> {
        let geometry = self.scenario.geometry().map_err(io::Error::other)?;
        let target = AllocTarget::new(
            RamGroups::new(self.scenario, geometry),
            self.changes,
            self.reuse,
        );
        for (name, value) in &self.tunables {
            target
                .allocator()
                .tunables()
                .set_by_name(name, *value)
                .map_err(io::Error::other)?;
        }
        if self.bitmaps == Bitmaps::Loaded {
            target.load_all()?;
        }
        Ok(target)
    }

    /// Runs a workload on each of `threads` threads.
    ///
    /// # Errors
    /// The file system cannot be set up, or the first failure of a worker.
    pub fn run(
        &self,
        workload: &dyn Workload,
        threads: ThreadCount,
        until: Until,
        clock: &dyn Clock,
    ) -> io::Result<AllocOutcome> {
        let target = self.target()?;
        let allocator = target.allocator();
        let before = self.free_space(&target)?;
        let counted = allocator.mb_stats();
        let driven = committing(&target, self.commit_every, || {
            drive(&target, workload, threads, until, clock)
        })?;
        let tally = allocator.mb_stats().since(&counted);
        let looks = allocator.stats().looks();
        let holds = allocator.stats().holds();
        let commits = target.commits();
        target.commit();
        allocator.discard_preallocations();
        let work = driven.total();
        Ok(AllocOutcome {
            threads,
            operations: work.operations,
            wall: work.wall.unwrap_or_default(),
            fairness: driven.fairness(),
            allocations: target.allocations(),
            extents: target.extents(),
            commits,
            tally,
            looks,
            holds,
            before,
            after: self.free_space(&target)?,
            profile: driven.profile,
        })
    }

    /// The free space; `None` if the bitmaps must stay absent, since counting would load them.
    fn free_space(&self, target: &AllocTarget) -> io::Result<Option<FreeSpace>> {
        match self.bitmaps {
            Bitmaps::Loaded => FreeSpace::of(target.allocator()).map(Some),
            Bitmaps::Absent => Ok(None),
        }
    }
}

/// Runs `body` while a thread commits at intervals of `every`.
fn committing<R>(target: &AllocTarget, every: Duration, body: impl FnOnce() -> R) -> R {
    let (ended, end) = (Mutex::new(false), Condvar::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut ended = ended.lock();
            while !*ended {
                end.wait_for(&mut ended, every);
                if !*ended {
                    target.commit();
                }
            }
        });
        let result = body();
        *ended.lock() = true;
        end.notify_all();
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;
    use crate::workload::Fallocate2;

    #[test]
    fn commits_are_periodic() {
        let mut bench = AllocBench::on(Scenario::by_name("16g-aged-64k").expect("it exists"));
        bench.commit_every = Duration::from_millis(20);
        let until = Until::Elapsed(Duration::from_millis(300));
        let outcome = bench
            .run(
                &Fallocate2,
                ThreadCount::new(2),
                until,
                &MonotonicClock::default(),
            )
            .expect("a run");
        assert!(outcome.commits.periodic >= 2, "{:?}", outcome.commits);
        assert_eq!(outcome.commits.on_demand, 0);
        assert!(outcome.before.is_some() && outcome.after.is_some());
    }
}
