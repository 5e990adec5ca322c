//! **Purpose.** The experiments of `fourscore lab`, with the figures that were published for each.
//!
//! **Model.** The bases are those of the publications: what ext4 did before a change is what the
//! switches `prefetch`, `goals`, `busy`, `short`, `best_avail` and `scan` bring back. All of ext4's
//! sides run with `indexes=off`; ours runs with the defaults. Two things of ext4 are in none of
//! them: its state words lie in the groups, and its freed extents in one list under one lock.

use crate::alloc::experiment::{Experiment, Published, Variant};
use crate::alloc::workloads::{Fallocate3, LargeGoals};
use crate::workload::Fallocate2;

const OURS: Variant = Variant {
    name: "ours",
    about: "the defaults of fourscore",
    switches: &[],
};

/// A row of operations per second by all threads.
const fn row(what: &'static str, base: f64, patched: f64) -> Published {
    let unit = "operations/s";
    Published {
        what,
        unit,
        base,
        patched,
    }
}

const S1: Experiment = Experiment {
    name: "s1-prefetch",
    about: "what testing the state of each group costs before its bitmap is read ahead",
    source: "B. Trach, ext4: avoid RMW atomics and descriptor reads in ext4_mb_prefetch, 2026",
    load: "fallocate3: truncates a file to 0 and allocates 73 819 750 bytes for it",
    workload: &Fallocate3,
    scenario: "133g-50",
    seconds: Some(2.0),
    steps: 0,
    smallest_steps: 30,
    variants: &[
        Variant {
            name: "base",
            about: "the descriptor, then a locked read-modify-write",
            switches: &[
                ("indexes", "off"),
                ("optimize_scan", "0"),
                ("goals", "inode"),
                ("prefetch", "locked"),
            ],
        },
        Variant {
            name: "patch 1",
            about: "a plain load before the read-modify-write",
            switches: &[
                ("indexes", "off"),
                ("optimize_scan", "0"),
                ("goals", "inode"),
                ("prefetch", "descriptor"),
            ],
        },
        Variant {
            name: "patched",
            about: "and the descriptor only after it",
            switches: &[
                ("indexes", "off"),
                ("optimize_scan", "0"),
                ("goals", "inode"),
                ("prefetch", "plain"),
            ],
        },
        Variant {
            name: "counted",
            about: "nothing once all groups are loaded",
            switches: &[
                ("indexes", "off"),
                ("optimize_scan", "0"),
                ("goals", "inode"),
            ],
        },
        OURS,
    ],
    published: &[
        row("AMD 9654, 133 GB half full, 1 thread", 4093.0, 7380.0),
        row("AMD 9654, 133 GB half full, 2 threads", 13168.0, 13906.0),
        row("AMD 9654, 133 GB half full, 16 threads", 27502.0, 34017.0),
        row("Kunpeng 920b, 133 GB half full, 1 thread", 4881.0, 6618.0),
        row("Kunpeng 920b, 133 GB half full, 2 threads", 6544.0, 11660.0),
        row(
            "Kunpeng 920b, 133 GB half full, 16 threads",
            23305.0,
            29260.0,
        ),
        row("Kunpeng 920b, 802 GB 68 % full, 8 threads", 2505.0, 8328.0),
    ],
};

const S4: Experiment = Experiment {
    name: "s4-goals",
    about: "how threads that allocate for their own files keep out of each other's way",
    source: "B. Li, ext4: utilize multiple global goals to reduce contention, 2025",
    load: "fallocate2: allocates the next 8 KiB of a file, which is truncated to 0 at 1 MiB",
    workload: &Fallocate2,
    scenario: "16g-aged-4k",
    seconds: Some(2.0),
    steps: 0,
    smallest_steps: 2000,
    variants: &[
        Variant {
            name: "before",
            about: "one goal, busy groups waited for, optimize_scan=0",
            switches: &[
                ("indexes", "off"),
                ("optimize_scan", "0"),
                ("goals", "one"),
                ("scan", "locked"),
                ("busy", "wait"),
            ],
        },
        Variant {
            name: "base",
            about: "one goal, busy groups skipped, optimize_scan=0",
            switches: &[
                ("indexes", "off"),
                ("optimize_scan", "0"),
                ("goals", "one"),
                ("scan", "locked"),
            ],
        },
        Variant {
            name: "patched",
            about: "goals by inode number, optimize_scan=0",
            switches: &[
                ("indexes", "off"),
                ("optimize_scan", "0"),
                ("goals", "inode"),
                ("scan", "locked"),
            ],
        },
        Variant {
            name: "base, sets",
            about: "one goal, busy groups skipped, optimize_scan=1",
            switches: &[("indexes", "off"), ("goals", "one"), ("scan", "locked")],
        },
        Variant {
            name: "patched, sets",
            about: "goals by inode number, optimize_scan=1",
            switches: &[("indexes", "off"), ("goals", "inode"), ("scan", "locked")],
        },
        OURS,
    ],
    published: &[
        container(
            "Kunpeng 920, optimize_scan=0, 80 containers",
            9636.0,
            19628.0,
        ),
        container(
            "Kunpeng 920, optimize_scan=0, 1 container",
            337_597.0,
            320_885.0,
        ),
        container(
            "Kunpeng 920, optimize_scan=1, 80 containers",
            4834.0,
            7129.0,
        ),
        container(
            "AMD 9654 x 2, optimize_scan=0, 96 containers",
            22341.0,
            53760.0,
        ),
        container(
            "AMD 9654 x 2, optimize_scan=0, 1 container",
            219_707.0,
            213_145.0,
        ),
        container(
            "AMD 9654 x 2, optimize_scan=1, 96 containers",
            9177.0,
            12716.0,
        ),
    ],
};

/// A row of operations per second by each container.
const fn container(what: &'static str, base: f64, patched: f64) -> Published {
    let unit = "operations/s for each container";
    Published {
        what,
        unit,
        base,
        patched,
    }
}

const S5: Experiment = Experiment {
    name: "s5-bestavail",
    about: "what a search costs whose goal is longer than all free extents",
    source: "O. Mujoo, [RFC 00/11] multiblock allocator improvements, 2023",
    load: "writes 64 KiB of a new file at a time, with a goal of 8 MiB; all files stay",
    workload: &LargeGoals {
        written_bytes: 65_536,
    },
    scenario: "16g-aged-64k",
    seconds: None,
    steps: 40_000,
    smallest_steps: 2000,
    variants: &[
        Variant {
            name: "base",
            about: "short extents measured, no BestAvailLen",
            switches: &[
                ("indexes", "off"),
                ("goals", "one"),
                ("best_avail", "off"),
                ("short", "measured"),
                ("scan", "locked"),
                ("busy", "wait"),
            ],
        },
        Variant {
            name: "patched",
            about: "short extents skipped, BestAvailLen",
            switches: &[
                ("indexes", "off"),
                ("goals", "one"),
                ("scan", "locked"),
                ("busy", "wait"),
            ],
        },
        OURS,
    ],
    published: &[
        s5("64 KiB blocks, fsmark on NVMe", "files/s", 6866.0, 13527.0),
        s5(
            "64 KiB blocks, fsmark on NVMe",
            "extents scanned",
            8_188_644.0,
            1_719_725.0,
        ),
        s5(
            "64 KiB blocks, mean free extent after",
            "KiB",
            4096.0,
            2688.0,
        ),
        s5("4 KiB blocks, fsmark on NVMe", "files/s", 21618.0, 23528.0),
        s5(
            "4 KiB blocks, fsmark on NVMe",
            "extents scanned",
            8_149_272.0,
            223_013.0,
        ),
    ],
};

const fn s5(what: &'static str, unit: &'static str, base: f64, patched: f64) -> Published {
    Published {
        what,
        unit,
        base,
        patched,
    }
}

impl Experiment {
    /// All of them.
    pub const ALL: &[Self] = &[S1, S4, S5];

    /// The experiment with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|experiment| experiment.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::scenario::Scenario;
    use fourscore_mballoc::Tunables;

    #[test]
    fn every_side_names_switches_that_exist_and_the_last_is_ours() {
        for experiment in Experiment::ALL {
            let scenario = Scenario::by_name(experiment.scenario).expect("it exists");
            let tunables = Tunables::new(scenario.geometry().expect("valid"));
            for variant in experiment.variants {
                let bench = experiment.bench(variant, scenario).expect(variant.name);
                for (name, value) in &bench.tunables {
                    tunables.set_by_name(name, *value).expect(name);
                }
            }
            let last = experiment.variants.last().expect("there are some");
            assert!(last.switches.is_empty(), "{}", experiment.name);
            assert!(!experiment.published.is_empty());
        }
    }
}
