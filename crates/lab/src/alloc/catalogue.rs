//! **Purpose.** Workloads and switches by name. A switch turns a feature of the allocator on or
//! off, or sets it back to what ext4 does.
//!
//! **Not here.** The names of scenarios, which are in [`scenario`](crate::alloc::scenario).

use crate::alloc::bench::{AllocBench, Bitmaps};
use crate::alloc::target::{Changes, Reuse};
use crate::alloc::workloads::{AllocFree, Fallocate3, LargeGoals, MixedAppend, SmallFiles};
use crate::workload::{Fallocate2, Workload};

/// A workload with its name.
#[derive(Clone, Copy)]
pub struct NamedWorkload {
    /// Its name on the command line.
    pub name: &'static str,
    /// What a step does, in a few words.
    pub about: &'static str,
    /// The workload.
    pub workload: &'static dyn Workload,
}

impl NamedWorkload {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self {
            name: "pair",
            about: "allocates 8 KiB and frees them",
            workload: &AllocFree { bytes: 8192 },
        },
        Self {
            name: "fallocate2",
            about: "allocates the next 8 KiB of a file, which is truncated to 0 at 1 MiB",
            workload: &Fallocate2,
        },
        Self {
            name: "fallocate3",
            about: "truncates a file to 0 and allocates 73 819 750 bytes for it",
            workload: &Fallocate3,
        },
        Self {
            name: "files",
            about: "writes a file of 64 KiB; each thread keeps its last 512",
            workload: &SmallFiles {
                file_bytes: 65_536,
                keep: 512,
            },
        },
        Self {
            name: "large-goals",
            about: "writes 64 KiB of a file of 16 MiB, whose goal is 8 MiB; all files stay",
            workload: &LargeGoals {
                written_bytes: 65_536,
            },
        },
        Self {
            name: "append",
            about: "appends up to 256 KiB to one of four files of up to 8 MiB",
            workload: &MixedAppend {
                files: 4,
                file_bytes: 8 << 20,
                max_append_bytes: 256 << 10,
            },
        },
    ];

    /// The workload with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|named| named.name == name)
    }
}

/// A switch of a run.
#[derive(Clone, Copy)]
pub struct Switch {
    /// Its name on the command line.
    pub name: &'static str,
    /// The values it takes, as help text; the first is the default.
    pub values: &'static str,
    /// What it does.
    pub about: &'static str,
    set: fn(&mut AllocBench, &str) -> Option<()>,
}

/// An unknown switch, or a value that the switch does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// No switch has this name.
    #[error("unknown switch {name}; the switches are {known}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// All names of switches.
        known: String,
    },
    /// The switch does not take this value.
    #[error("switch {name}: {found} is not {values}")]
    Value {
        /// The switch.
        name: &'static str,
        /// The values it takes.
        values: &'static str,
        /// The value that was given.
        found: String,
    },
}

impl Switch {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self {
            name: "prefetch",
            values: "counted, locked, descriptor, plain or off",
            about: "how a group's state is tested before its bitmap is read ahead",
            set: |bench, value| match value {
                "counted" => bench.tune("mb_prefetch_test", 0),
                "locked" => bench.tune("mb_prefetch_test", 1),
                "descriptor" => bench.tune("mb_prefetch_test", 2),
                "plain" => bench.tune("mb_prefetch_test", 3),
                "off" => bench.tune("mb_prefetch", 0),
                _ => None,
            },
        },
        Self {
            name: "goals",
            values: "core, inode or one",
            about: "a stream goal for each core, for each inode, or one for all",
            set: |bench, value| {
                let sharing = ["one", "inode", "core"]
                    .iter()
                    .position(|&name| name == value)?;
                bench.tune("mb_stream_goals", u32::try_from(sharing).ok()?)
            },
        },
        Self {
            name: "optimize_scan",
            values: "1 or 0",
            about: "0: the criteria scan groups instead of the order sets",
            set: |bench, value| bench.tune("mb_optimize_scan", bit(value, ["0", "1"])?),
        },
        Self {
            name: "trim",
            values: "a number of orders, 3 by default, 0 for none",
            about: "by how much the best-available criterion may trim a request",
            set: |bench, value| bench.tune("mb_best_avail_max_trim_order", value.parse().ok()?),
        },
        Self {
            name: "indexes",
            values: "on or off",
            about: "off: a search that the order sets cannot answer scans groups, as in ext4",
            set: |bench, value| bench.tune("mb_indexes", bit(value, ["off", "on"])?),
        },
        Self {
            name: "best_avail",
            values: "on or off",
            about: "off: ext4's search has no best-available criterion, as before 6.5",
            set: |bench, value| bench.tune("mb_best_avail", bit(value, ["off", "on"])?),
        },
        Self {
            name: "short",
            values: "skipped or measured",
            about: "measured: fast criteria of ext4's search measure short extents too, as before 6.5",
            set: |bench, value| bench.tune("mb_skip_short", bit(value, ["measured", "skipped"])?),
        },
        Self {
            name: "scan",
            values: "unlocked or locked",
            about: "locked: ext4's search holds a group's lock while it scans, as ext4 does",
            set: |bench, value| bench.tune("mb_scan_locked", bit(value, ["unlocked", "locked"])?),
        },
        Self {
            name: "busy",
            values: "skip or wait",
            about: "wait: ext4's search waits for busy groups, as before 6.17",
            set: |bench, value| bench.tune("mb_wait_busy", bit(value, ["skip", "wait"])?),
        },
        Self {
            name: "hold_times",
            values: "off or on",
            about: "measures how long group locks are held",
            set: |bench, value| bench.tune("mb_hold_times", bit(value, ["off", "on"])?),
        },
        Self {
            name: "bitmaps",
            values: "loaded (absent above a million groups) or absent",
            about: "whether the bitmaps are in memory when the run begins",
            set: |bench, value| {
                let absent = bit(value, ["loaded", "absent"])? == 1;
                bench.bitmaps = if absent {
                    Bitmaps::Absent
                } else {
                    Bitmaps::Loaded
                };
                Some(())
            },
        },
        Self {
            name: "reuse",
            values: "transaction or commit",
            about: "commit: clusters freed in the transaction that allocated them wait for its commit, and count as free meanwhile, as in ext4",
            set: |bench, value| {
                let after = bit(value, ["transaction", "commit"])? == 1;
                bench.reuse = if after {
                    Reuse::AfterCommit
                } else {
                    Reuse::InTransaction
                };
                Some(())
            },
        },
        Self {
            name: "changes",
            values: "dropped or applied",
            about: "applied: changes are made to bitmaps, and allocating a cluster twice is an error",
            set: |bench, value| {
                let applied = bit(value, ["dropped", "applied"])? == 1;
                bench.changes = if applied {
                    Changes::Applied
                } else {
                    Changes::Dropped
                };
                Some(())
            },
        },
    ];

    /// Sets the switch `name` of a run.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn set(bench: &mut AllocBench, name: &str, value: &str) -> Result<(), SwitchError> {
        let Some(switch) = Self::ALL.iter().find(|switch| switch.name == name) else {
            let known: Vec<_> = Self::ALL.iter().map(|switch| switch.name).collect();
            return Err(SwitchError::Unknown {
                name: name.to_owned(),
                known: known.join(", "),
            });
        };
        (switch.set)(bench, value).ok_or_else(|| SwitchError::Value {
            name: switch.name,
            values: switch.values,
            found: value.to_owned(),
        })
    }
}

impl AllocBench {
    fn tune(&mut self, name: &str, value: u32) -> Option<()> {
        self.tunables.push((name.to_owned(), value));
        Some(())
    }
}

/// The index of a value among two words.
fn bit(value: &str, words: [&str; 2]) -> Option<u32> {
    (0..)
        .zip(words)
        .find_map(|(nr, word)| (word == value).then_some(nr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::scenario::Scenario;

    fn bench() -> AllocBench {
        AllocBench::on(Scenario::by_name("16g-aged-64k").expect("it exists"))
    }

    #[test]
    fn every_switch_takes_its_values_and_the_allocator_takes_the_tunables() {
        let mut bench = bench();
        for (name, values) in [
            (
                "prefetch",
                &["counted", "locked", "descriptor", "plain", "off"][..],
            ),
            ("best_avail", &["on", "off"]),
            ("short", &["skipped", "measured"]),
            ("scan", &["unlocked", "locked"]),
            ("busy", &["skip", "wait"]),
            ("goals", &["core", "inode", "one"]),
            ("optimize_scan", &["1", "0"]),
            ("trim", &["0", "3"]),
            ("indexes", &["on", "off"]),
            ("hold_times", &["off", "on"]),
            ("bitmaps", &["loaded", "absent"]),
            ("reuse", &["transaction", "commit"]),
            ("changes", &["dropped", "applied"]),
        ] {
            assert!(Switch::ALL.iter().any(|switch| switch.name == name));
            for value in values {
                assert_eq!(Switch::set(&mut bench, name, value), Ok(()));
            }
            let nonsense = Switch::set(&mut bench, name, "nonsense");
            assert!(matches!(nonsense, Err(SwitchError::Value { .. })), "{name}");
        }
        assert_eq!(bench.bitmaps, Bitmaps::Absent);
        assert_eq!(bench.changes, Changes::Applied);
        assert_eq!(bench.reuse, Reuse::AfterCommit);
        assert!(bench.target().is_ok());
    }

    #[test]
    fn the_error_of_an_unknown_switch_has_all_names() {
        let error = Switch::set(&mut bench(), "speed", "high").expect_err("no such switch");
        let text = error.to_string();
        assert!(
            Switch::ALL.iter().all(|switch| text.contains(switch.name)),
            "{text}"
        );
    }

    #[test]
    fn names_find_their_workloads() {
        for named in NamedWorkload::ALL {
            assert_eq!(
                NamedWorkload::by_name(named.name).map(|n| n.about),
                Some(named.about)
            );
        }
        assert!(NamedWorkload::by_name("nothing").is_none());
    }
}
