//! **Purpose.** The published tables that are predicted, cell by cell.
//!
//! **Model.** A cell is a number of threads; its figures are steps per second of all threads before
//! and with a change. Each table names the machine, the file system, and the switches of both
//! sides, which are those of the kernel that was measured: one stream goal for all and busy groups
//! waited for in Linux 6.6, goals by inode number and busy groups skipped in 7.0 and 7.1, the scan
//! of a group under its lock in both, freed clusters that wait for the commit. Meanwhile these are
//! in ext4's counter of free clusters, so a request that finds the space used up fails after a
//! search of all groups; it does not wait for a count.
//!
//! File systems on which groups are walked are predicted at a part of their size, 133 GB at a half,
//! because a cycle takes time with the square of the size. Half of the groups means walks of half
//! the length, so the surroundings of the allocator are given half of their work and words too,
//! and the rates are divided by 2. A cycle then takes a quarter of the time, and so does the
//! interval of commits.
//!
//! S1 calls the file systems of 842 and 802 GB existing ones, and those of 133 GB made for the
//! purpose: so the former have the free extents of a file system in use, the others longer ones.
//!
//! **References.** S1: B. Trach, "ext4: avoid RMW atomics and descriptor reads in
//! ext4_mb_prefetch", 2026. S4: B. Li, "ext4: utilize multiple global goals to reduce contention",
//! 2025. Free extents of file systems in use: e2freefrag(8), example; T. Ts'o, answer to the patch
//! "e2freefrag utility", linux-ext4, July 2009.

use crate::alloc::predict::Length;
use crate::alloc::predict::machines::{self, Load, MachineModel};
use crate::alloc::scenario::{Fragments, Scenario};

/// Switches of a side: name and value.
pub type Switches = [(&'static str, &'static str)];

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// Two whole cycles, each of which uses the free space once, and as many more as
    /// [`Steps::length`] says.
    Cycles,
    /// So many for each thread, and more if the halves of the run differ.
    PerThread(u64),
}

/// Runs of fewer threads are not made longer, for the time that it takes: their walks are the most
/// and the longest.
const MANY_THREADS: usize = 16;
/// A run of cycles has so many steps for each thread, if there are many.
const LEAST_OF_THREAD: u64 = 8;
/// A run is made longer up to this many times the first length, for the time that it takes.
const LONGER_AT_MOST: u64 = 2;

impl Steps {
    /// The length of a run of so many threads, with so many steps in a cycle.
    #[must_use]
    pub fn length(self, cycle: u64, threads: usize) -> Length {
        let is_many = threads >= MANY_THREADS;
        let threads = threads as u64;
        let first = match self {
            Self::Cycles => 2 * cycle.max(1),
            Self::PerThread(steps) => steps * threads,
        };
        let (mut least, mut most) = (first, first);
        if is_many {
            most *= LONGER_AT_MOST;
            while least < LEAST_OF_THREAD * threads {
                least *= 2;
            }
        }
        Length { least, most }
    }
}

/// The published figures of one number of threads, in steps per second of all threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Threads.
    pub threads: usize,
    /// Before the change.
    pub base: f64,
    /// With it.
    pub patched: f64,
}

/// A published table.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The publication.
    pub source: &'static str,
    /// The file system, or the setting.
    pub what: &'static str,
    /// The machine.
    pub machine: MachineModel,
    /// The workload.
    pub load: Load,
    /// The file system that is predicted.
    pub scenario: Scenario,
    /// By how much it is smaller than the one that was measured.
    pub shrink: u64,
    /// Steps of a run.
    pub steps: Steps,
    /// Switches of the kernel before the change.
    pub base: &'static Switches,
    /// Switches of the kernel with it.
    pub patched: &'static Switches,
    /// The number of threads of the row on whose patched figure the surroundings were fitted.
    pub fitted: Option<usize>,
    /// The cells.
    pub rows: &'static [Row],
}

const fn row(threads: usize, base: f64, patched: f64) -> Row {
    Row {
        threads,
        base,
        patched,
    }
}

/// A row whose figures are those of one container.
const fn containers(count: usize, base: f64, patched: f64) -> Row {
    row(count, base * count as f64, patched * count as f64)
}

/// A fresh file system, as in [`Scenario::ALL`].
const fn by_gib(name: &'static str, gib: u64, used_per_mille: u32) -> Scenario {
    with_fragments(name, gib, used_per_mille, 1 << 20)
}

/// A file system that was in use before it was measured. The mean of free extents is that of the
/// example in the manual of e2freefrag, of a file system with home directories. Of the only other
/// example that was found, of a root file system, it is 184 KiB.
const fn in_use(name: &'static str, gib: u64, used_per_mille: u32) -> Scenario {
    with_fragments(name, gib, used_per_mille, 252 << 10)
}

const fn with_fragments(
    name: &'static str,
    gib: u64,
    used_per_mille: u32,
    mean_bytes: u64,
) -> Scenario {
    Scenario {
        name,
        bytes: gib << 30,
        s_log_block_size: 2,
        used_per_mille,
        fragments: Fragments::Packed { mean_bytes },
        seed: 1,
    }
}

/// Switches of ext4 on all kernels, with those given.
macro_rules! ext4 {
    ($($switch:expr),*) => {
        [
            ("indexes", "off"),
            ("scan", "locked"),
            ("reuse", "commit"),
            $($switch),*
        ]
    };
}

const LINUX_6_6_BASE: [(&str, &str); 6] =
    ext4![("goals", "one"), ("busy", "wait"), ("prefetch", "locked")];
const LINUX_6_6_PATCHED: [(&str, &str); 6] =
    ext4![("goals", "one"), ("busy", "wait"), ("prefetch", "plain")];
const LINUX_7_BASE: [(&str, &str); 5] = ext4![("goals", "inode"), ("prefetch", "locked")];
const LINUX_7_PATCHED: [(&str, &str); 5] = ext4![("goals", "inode"), ("prefetch", "plain")];
const ONE_GOAL_SCANNED: [(&str, &str); 6] = ext4![
    ("goals", "one"),
    ("optimize_scan", "0"),
    ("prefetch", "locked")
];
const MANY_GOALS_SCANNED: [(&str, &str); 6] = ext4![
    ("goals", "inode"),
    ("optimize_scan", "0"),
    ("prefetch", "locked")
];
const ONE_GOAL_SETS: [(&str, &str); 5] = ext4![("goals", "one"), ("prefetch", "locked")];
const MANY_GOALS_SETS: [(&str, &str); 5] = ext4![("goals", "inode"), ("prefetch", "locked")];

/// All tables.
pub const ALL: &[Table] = &[
    Table {
        source: "S1",
        what: "842 GB, 31 % used, Linux 7.0",
        machine: machines::KUNPENG_920,
        load: Load::Fallocate3,
        scenario: in_use("53g-31", 53, 310),
        shrink: 16,
        steps: Steps::Cycles,
        base: &LINUX_7_BASE,
        patched: &LINUX_7_PATCHED,
        fitted: None,
        rows: &[
            row(1, 1286.0, 1608.0),
            row(2, 1673.0, 1680.0),
            row(4, 1698.0, 1712.0),
            row(8, 1721.0, 1730.0),
            row(16, 1739.0, 2313.0),
            row(32, 1742.0, 3571.0),
            row(64, 1735.0, 3427.0),
            row(96, 1688.0, 1814.0),
        ],
    },
    Table {
        source: "S1",
        what: "802 GB, 68 % used, Linux 6.6",
        machine: machines::KUNPENG_920B,
        load: Load::Fallocate3,
        scenario: in_use("100g-68", 100, 680),
        shrink: 8,
        steps: Steps::Cycles,
        base: &LINUX_6_6_BASE,
        patched: &LINUX_6_6_PATCHED,
        fitted: None,
        rows: &[
            row(1, 1613.0, 1625.0),
            row(2, 1620.0, 2603.0),
            row(4, 1624.0, 4894.0),
            row(8, 2505.0, 8328.0),
            row(16, 4736.0, 11632.0),
            row(32, 7784.0, 13124.0),
            row(64, 8094.0, 8636.0),
            row(128, 6914.0, 7890.0),
        ],
    },
    Table {
        source: "S1",
        what: "133 GB, 25 % used, Linux 6.6",
        machine: machines::KUNPENG_920B,
        load: Load::Fallocate3,
        scenario: by_gib("66g-25", 66, 250),
        shrink: 2,
        steps: Steps::Cycles,
        base: &LINUX_6_6_BASE,
        patched: &LINUX_6_6_PATCHED,
        fitted: None,
        rows: &[
            row(1, 5398.0, 7025.0),
            row(2, 7451.0, 12299.0),
            row(4, 12574.0, 20899.0),
            row(8, 18645.0, 27694.0),
            row(16, 25088.0, 31739.0),
            row(32, 26699.0, 27632.0),
            row(64, 14943.0, 19547.0),
            row(128, 13047.0, 14544.0),
        ],
    },
    Table {
        source: "S1",
        what: "133 GB, 50 % used, Linux 6.6",
        machine: machines::KUNPENG_920B,
        load: Load::Fallocate3,
        scenario: by_gib("66g-50", 66, 500),
        shrink: 2,
        steps: Steps::Cycles,
        base: &LINUX_6_6_BASE,
        patched: &LINUX_6_6_PATCHED,
        fitted: Some(8),
        rows: &[
            row(1, 4881.0, 6618.0),
            row(2, 6544.0, 11660.0),
            row(4, 11156.0, 19506.0),
            row(8, 16842.0, 25835.0),
            row(16, 23305.0, 29260.0),
            row(32, 24622.0, 25303.0),
            row(64, 13814.0, 17707.0),
            row(128, 12061.0, 13180.0),
        ],
    },
    Table {
        source: "S1",
        what: "133 GB, 75 % used, Linux 6.6",
        machine: machines::KUNPENG_920B,
        load: Load::Fallocate3,
        scenario: by_gib("66g-75", 66, 750),
        shrink: 2,
        steps: Steps::Cycles,
        base: &LINUX_6_6_BASE,
        patched: &LINUX_6_6_PATCHED,
        fitted: None,
        rows: &[
            row(1, 7037.0, 10580.0),
            row(2, 9216.0, 9075.0),
            row(4, 14534.0, 22076.0),
            row(8, 19341.0, 25936.0),
            row(16, 23592.0, 27409.0),
            row(32, 23680.0, 23078.0),
            row(64, 12836.0, 15902.0),
            row(128, 9614.0, 10341.0),
        ],
    },
    Table {
        source: "S1",
        what: "15 TiB, 6 % used, Linux 7.1",
        machine: machines::EPYC_9654,
        load: Load::Fallocate3,
        scenario: by_gib("1t-6", 1024, 60),
        shrink: 1,
        steps: Steps::PerThread(40),
        base: &LINUX_7_BASE,
        patched: &LINUX_7_PATCHED,
        fitted: Some(8),
        rows: &[
            row(1, 30901.0, 31191.0),
            row(2, 50874.0, 50504.0),
            row(4, 66068.0, 64108.0),
            row(8, 63963.0, 61927.0),
            row(16, 47809.0, 47044.0),
            row(32, 42441.0, 42326.0),
            row(64, 39773.0, 39929.0),
            row(128, 37065.0, 36413.0),
        ],
    },
    Table {
        source: "S1",
        what: "133 GB, 25 % used, Linux 6.6",
        machine: machines::EPYC_9654,
        load: Load::Fallocate3,
        scenario: by_gib("66g-25", 66, 250),
        shrink: 2,
        steps: Steps::Cycles,
        base: &LINUX_6_6_BASE,
        patched: &LINUX_6_6_PATCHED,
        fitted: None,
        rows: &[
            row(1, 5964.0, 6778.0),
            row(2, 11811.0, 13415.0),
            row(4, 20111.0, 23570.0),
            row(8, 30083.0, 36296.0),
            row(16, 27781.0, 38302.0),
            row(32, 28325.0, 36930.0),
            row(64, 26044.0, 29952.0),
            row(128, 19969.0, 20882.0),
        ],
    },
    Table {
        source: "S1",
        what: "133 GB, 50 % used, Linux 6.6",
        machine: machines::EPYC_9654,
        load: Load::Fallocate3,
        scenario: by_gib("66g-50", 66, 500),
        shrink: 2,
        steps: Steps::Cycles,
        base: &LINUX_6_6_BASE,
        patched: &LINUX_6_6_PATCHED,
        fitted: None,
        rows: &[
            row(1, 4093.0, 7380.0),
            row(2, 13168.0, 13906.0),
            row(4, 21440.0, 22623.0),
            row(8, 30523.0, 32360.0),
            row(16, 27502.0, 34017.0),
            row(32, 27189.0, 32480.0),
            row(64, 24146.0, 26463.0),
            row(128, 18386.0, 18631.0),
        ],
    },
    Table {
        source: "S1",
        what: "133 GB, 75 % used, Linux 6.6",
        machine: machines::EPYC_9654,
        load: Load::Fallocate3,
        scenario: by_gib("66g-75", 66, 750),
        shrink: 2,
        steps: Steps::Cycles,
        base: &LINUX_6_6_BASE,
        patched: &LINUX_6_6_PATCHED,
        fitted: None,
        rows: &[
            row(1, 5738.0, 7208.0),
            row(2, 13869.0, 15309.0),
            row(4, 21803.0, 23447.0),
            row(8, 29004.0, 30766.0),
            row(16, 25542.0, 30584.0),
            row(32, 24242.0, 28631.0),
            row(64, 20631.0, 22833.0),
            row(128, 14603.0, 15086.0),
        ],
    },
    Table {
        source: "S4",
        what: "mb_optimize_scan=0",
        machine: machines::KUNPENG_920,
        load: Load::Fallocate2,
        scenario: by_gib("842g-31", 842, 310),
        shrink: 1,
        steps: Steps::PerThread(384),
        base: &ONE_GOAL_SCANNED,
        patched: &MANY_GOALS_SCANNED,
        fitted: Some(1),
        rows: &[
            containers(1, 337597.0, 320885.0),
            containers(80, 9636.0, 19628.0),
        ],
    },
    Table {
        source: "S4",
        what: "mb_optimize_scan=1",
        machine: machines::KUNPENG_920,
        load: Load::Fallocate2,
        scenario: by_gib("842g-31", 842, 310),
        shrink: 1,
        steps: Steps::PerThread(384),
        base: &ONE_GOAL_SETS,
        patched: &MANY_GOALS_SETS,
        fitted: None,
        rows: &[
            containers(1, 341440.0, 321275.0),
            containers(80, 4834.0, 7129.0),
        ],
    },
    Table {
        source: "S4",
        what: "mb_optimize_scan=0",
        machine: machines::EPYC_9654,
        load: Load::Fallocate2,
        scenario: by_gib("842g-31", 842, 310),
        shrink: 1,
        steps: Steps::PerThread(384),
        base: &ONE_GOAL_SCANNED,
        patched: &MANY_GOALS_SCANNED,
        fitted: Some(1),
        rows: &[
            containers(1, 219707.0, 213145.0),
            containers(96, 22341.0, 53760.0),
        ],
    },
    Table {
        source: "S4",
        what: "mb_optimize_scan=1",
        machine: machines::EPYC_9654,
        load: Load::Fallocate2,
        scenario: by_gib("842g-31", 842, 310),
        shrink: 1,
        steps: Steps::PerThread(384),
        base: &ONE_GOAL_SETS,
        patched: &MANY_GOALS_SETS,
        fitted: None,
        rows: &[
            containers(1, 215732.0, 215262.0),
            containers(96, 9177.0, 12716.0),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::bench::AllocBench;
    use crate::alloc::catalogue::Switch;

    #[test]
    fn runs_are_whole_cycles_with_steps_for_every_thread() {
        let length = |least, most| Length { least, most };
        assert_eq!(Steps::Cycles.length(240, 8), length(480, 480));
        assert_eq!(Steps::Cycles.length(240, 16), length(480, 960));
        assert_eq!(Steps::Cycles.length(240, 128).least, 1920);
        assert_eq!(Steps::PerThread(40).length(0, 16), length(640, 1280));
    }

    #[test]
    fn every_table_can_be_predicted_and_names_the_row_it_was_fitted_on() {
        for table in ALL {
            let name = format!("{} {}", table.machine.name, table.what);
            assert!(table.machine.rest(table.load).is_some(), "{name}");
            let has_row = |threads| table.rows.iter().any(|row| row.threads == threads);
            assert!(table.fitted.is_none_or(has_row), "{name}");
            for (switch, value) in table.base.iter().chain(table.patched) {
                let mut bench = AllocBench::on(table.scenario);
                Switch::set(&mut bench, switch, value).expect(switch);
            }
            let differs = table.base.iter().zip(table.patched).filter(|(a, b)| a != b);
            assert_eq!(differs.count(), 1, "{name}: sides differ in one thing");
        }
    }
}
