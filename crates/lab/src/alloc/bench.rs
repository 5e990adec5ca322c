//! **Purpose.** One run of a workload on a file system in memory, and everything to be said about
//! it: speed, the allocator's counters, looks at groups, lock times, free space before and after.

use std::fmt;
use std::io;
use std::time::Duration;

use fourscore_mballoc::Allocator;
use fourscore_mballoc::stats::{HoldHistogram, LooksHistogram, Tally};
use fourscore_ondisk::GroupNr;

use crate::alloc::ram::RamGroups;
use crate::alloc::scenario::Scenario;
use crate::alloc::target::{AllocTarget, Changes};
use crate::clock::Clock;
use crate::comparison::ThreadCount;
use crate::workload::{Workload, drive};

/// Whether the file system has been in use for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bitmaps {
    /// All bitmaps are in memory.
    Loaded,
    /// None is.
    Absent,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct AllocBench {
    /// The file system.
    pub scenario: Scenario,
    /// Tunables to set, by name.
    pub tunables: Vec<(String, u32)>,
    /// Whether bitmaps are loaded first.
    pub bitmaps: Bitmaps,
    /// Whether every change is applied and checked.
    pub changes: Changes,
}

/// Free extents by length, as e2freefrag counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Free extents.
    pub extents: u64,
    /// Free clusters.
    pub clusters: u64,
    /// Extents of `2^i` to `2^(i+1) - 1` clusters.
    pub histogram: [u64; 20],
}

impl FreeSpace {
    /// Counts the free extents of all groups, loading them.
    ///
    /// # Errors
    /// The first group's that cannot be loaded.
    pub fn of(allocator: &Allocator) -> io::Result<Self> {
        let mut space = Self::default();
        for group in (0..allocator.geometry().groups()).map(GroupNr) {
            let counted = allocator.free_extents(group, |len| {
                space.extents += 1;
                space.clusters += u64::from(len);
                space.histogram[len.ilog2().min(19) as usize] += 1;
            });
            counted.map_err(io::Error::other)?;
        }
        Ok(space)
    }

    /// Clusters of an extent on average.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.clusters / self.extents.max(1)
    }
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct AllocOutcome {
    /// Threads.
    pub threads: ThreadCount,
    /// Steps of the workload, of all threads.
    pub operations: u64,
    /// From the first step to the last.
    pub wall: Duration,
    /// Requests to the allocator.
    pub allocations: u64,
    /// Extents that files got.
    pub extents: u64,
    /// Commits.
    pub commits: u64,
    /// What the allocator counted.
    pub tally: Tally,
    /// Groups looked at by each search.
    pub looks: LooksHistogram,
    /// How long group locks were held, if that was measured.
    pub holds: HoldHistogram,
    /// Free space before; nothing if bitmaps were to be read in the run.
    pub before: FreeSpace,
    /// Free space after; nothing if bitmaps were to be read in the run.
    pub after: FreeSpace,
}

impl AllocBench {
    /// A run on a file system whose bitmaps are in memory, with the defaults.
    #[must_use]
    pub fn on(scenario: Scenario) -> Self {
        Self {
            scenario,
            tunables: Vec::new(),
            bitmaps: Bitmaps::Loaded,
            changes: Changes::Dropped,
        }
    }

    /// The allocator on the file system, set up.
    ///
    /// # Errors
    /// An impossible scenario, an unknown tunable.
    pub fn target(&self) -> io::Result<AllocTarget> {
        let geometry = self.scenario.geometry().map_err(io::Error::other)?;
        let target = AllocTarget::new(RamGroups::new(self.scenario, geometry), self.changes);
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

    /// Runs `steps` steps on each thread.
    ///
    /// # Errors
    /// What keeps the file system from being set up, or the first failure of a worker.
    pub fn run(
        &self,
        workload: &dyn Workload,
        threads: ThreadCount,
        steps: u64,
        clock: &dyn Clock,
    ) -> io::Result<AllocOutcome> {
        let target = self.target()?;
        let allocator = target.allocator();
        let before = match self.bitmaps {
            Bitmaps::Loaded => FreeSpace::of(allocator)?,
            Bitmaps::Absent => FreeSpace::default(),
        };
        let counted = allocator.stats().sum();
        let work = drive(&target, workload, threads, steps, clock)?;
        let tally = allocator.stats().sum().since(&counted);
        let looks = allocator.stats().looks();
        let holds = allocator.stats().holds();
        let commits = target.commits();
        target.commit();
        allocator.discard_preallocations();
        let after = match self.bitmaps {
            Bitmaps::Loaded => FreeSpace::of(allocator)?,
            Bitmaps::Absent => FreeSpace::default(),
        };
        Ok(AllocOutcome {
            threads,
            operations: work.operations,
            wall: work.wall.unwrap_or_default(),
            allocations: target.allocations(),
            extents: target.extents(),
            commits,
            tally,
            looks,
            holds,
            before,
            after,
        })
    }
}

/// The value below which 99 of 100 entries of a histogram are, as the index of its bucket.
#[must_use]
pub fn percentile_99(histogram: &[u64]) -> usize {
    let all: u64 = histogram.iter().sum();
    let mut seen = 0;
    let at = histogram.iter().position(|&count| {
        seen += count;
        seen * 100 >= all * 99
    });
    at.unwrap_or(0)
}

impl fmt::Display for AllocOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.wall.as_nanos().max(1);
        let each = nanos * self.threads.get() as u128 / u128::from(self.operations.max(1));
        let rate = u128::from(self.operations) * 1_000_000_000 / nanos;
        let searches: u64 = self.looks.iter().sum();
        let looks: u64 = self
            .looks
            .iter()
            .zip(0_u64..)
            .map(|(count, looks)| count * looks)
            .sum();
        writeln!(
            f,
            "threads {}: {rate} operations/s, {each} ns each",
            self.threads.get()
        )?;
        writeln!(
            f,
            "  {} allocations, {} extents, {} commits",
            self.allocations, self.extents, self.commits
        )?;
        let mean_hundredths = looks * 100 / searches.max(1);
        writeln!(
            f,
            "  {searches} searches, groups looked at: mean {}.{:02}, p99 {}",
            mean_hundredths / 100,
            mean_hundredths % 100,
            percentile_99(&self.looks)
        )?;
        if self.holds.iter().any(|&count| count > 0) {
            writeln!(
                f,
                "  group lock held: p99 below {} ns",
                1_u64 << percentile_99(&self.holds)
            )?;
        }
        for (when, space) in [("before", &self.before), ("after", &self.after)] {
            writeln!(
                f,
                "  free {when}: {} extents of {} clusters on average",
                space.extents,
                space.mean()
            )?;
        }
        write!(f, "{}", self.tally)
    }
}
