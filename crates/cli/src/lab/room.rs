//! **Purpose.** Whether a run has the memory that it takes, and a place for its report, before it
//! begins.
//!
//! **Model.** Estimates are of the most that a run takes, with a margin. What is available is the
//! least of what the machine has left, what the control group allows, and what the limit of the
//! process's addresses allows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fourscore_lab::alloc::Scenario;
use fourscore_lab::study::StudyScale;
use rustix::process::{Resource, getrlimit};
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::lab::chosen::Chosen;
use crate::lab::page;
use crate::lab::report::Report;

/// What the program itself takes.
const PROGRAM_BYTES: u64 = 32 << 20;
/// A group's state, without its bitmaps.
const GROUP_BYTES: u64 = 1024;
/// The most that a report takes on disk.
const REPORT_BYTES: u64 = 4 << 20;

/// Fails if the run takes more memory than there is; the message says what would fit.
pub(super) fn check_memory(chosen: &Chosen) -> Result<()> {
    let available = available_bytes();
    let (name, needed) = match chosen {
        Chosen::Alloc(known, scale) => (known.name, alloc_bytes(&scale.scenario)),
        Chosen::Study(known, scale, _) => (known.name, known.memory_bytes(scale) + PROGRAM_BYTES),
        // It is not known what a command takes.
        Chosen::Command(_) => return Ok(()),
    };
    if needed <= available {
        return Ok(());
    }
    let fitting: Vec<&str> = match chosen {
        Chosen::Alloc(..) => {
            let all = Scenario::ALL.iter();
            let fitting = all.filter(|scenario| alloc_bytes(scenario) <= available);
            fitting.map(|scenario| scenario.name).collect()
        }
        Chosen::Study(known, scale, _) => {
            let bytes = |case| {
                let cases = vec![case];
                let scale = StudyScale {
                    cases,
                    ..scale.clone()
                };
                known.memory_bytes(&scale) + PROGRAM_BYTES
            };
            let all = known.cases.iter();
            let fitting = all.filter(|&&case| bytes(case) <= available);
            fitting.map(|case| case.name).collect()
        }
        Chosen::Command(_) => Vec::new(),
    };
    let option = match chosen {
        Chosen::Alloc(..) => "--scenario",
        Chosen::Study(..) | Chosen::Command(_) => "--cases",
    };
    Err(too_little(name, needed, available, option, &fitting))
}

fn too_little(name: &str, needed: u64, available: u64, option: &str, fitting: &[&str]) -> Failure {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let fits = match fitting {
        [] => "nothing smaller fits".to_owned(),
        fitting => format!("{option} {} would fit", fitting.join(",")),
    };
    let why = format!(
        "the run takes up to {} MiB of memory, and {} MiB are available; {fits}",
        mib(needed),
        available >> 20,
    );
    Failure::new(format!("lab run {name}"), why)
}

/// The bitmap and the buddies of each group, and the bitmaps that have changed.
fn alloc_bytes(scenario: &Scenario) -> u64 {
    let groups = scenario
        .geometry()
        .map_or(0, |geometry| u64::from(geometry.groups()));
    let block_bytes = 1024_u64 << scenario.s_log_block_size;
    groups.saturating_mul(3 * block_bytes + GROUP_BYTES) + PROGRAM_BYTES
}

/// The memory that this process may still take.
fn available_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(u64::MAX);
    let addresses = getrlimit(Resource::As).current.unwrap_or(u64::MAX);
    machine
        .min(addresses)
        .min(group_bytes().unwrap_or(u64::MAX))
}

fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What the control group (version 2) has left; `None` without a limit.
fn group_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let directory = Path::new("/sys/fs/cgroup").join(own);
    let number = |name: &str| {
        let text = fs::read_to_string(directory.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

/// The directory of a report.
#[derive(Debug)]
pub(super) struct ReportDirectory {
    path: PathBuf,
}

impl ReportDirectory {
    /// Makes the directory, or takes an empty one.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |why| Failure::new(path.display().to_string(), why);
        match fs::create_dir(path) {
            Ok(()) => {}
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {
                let mut entries = fs::read_dir(path).map_err(failed)?;
                if let Some(entry) = entries.next() {
                    let found = entry.map_err(failed)?.file_name();
                    let why = format!("the directory is not empty: it has {}", found.display());
                    return Err(Failure::new(path.display().to_string(), why)
                        .advise("--report takes a new or an empty directory"));
                }
            }
            Err(why) => return Err(failed(why)),
        }
        let place = rustix::fs::statvfs(path).map_err(|why| failed(why.into()))?;
        let free = place.f_bavail.saturating_mul(place.f_frsize);
        if free < REPORT_BYTES {
            let why = format!(
                "{} KiB are free, and a report takes up to {} KiB",
                free >> 10,
                REPORT_BYTES >> 10
            );
            return Err(Failure::new(path.display().to_string(), why));
        }
        let path = path.to_owned();
        Ok(Self { path })
    }

    /// Writes the page and the JSON that it is made from.
    pub(super) fn write(&self, report: &Report) -> Result<()> {
        let files = [
            ("report.json", format!("{:#}\n", json!(report))),
            ("report.csv", report.to_csv()),
            ("index.html", page::render(report)),
        ];
        for (name, text) in files {
            let path = self.path.join(name);
            let written = fs::write(&path, text);
            written.map_err(|why| Failure::new(path.display().to_string(), why))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_what_is_missing_and_what_fits() {
        let failure = too_little("s2", 3 << 20, 1 << 20, "--cases", &["a", "b"]);
        assert_eq!(
            failure.to_string(),
            "lab run s2: the run takes up to 3 MiB of memory, and 1 MiB are available; \
             --cases a,b would fit"
        );
        let failure = too_little("s2", 3 << 20, 1 << 20, "--cases", &[]);
        assert!(failure.to_string().ends_with("; nothing smaller fits"));
    }

    #[test]
    fn the_kernels_files_are_read() {
        let meminfo = "MemTotal:  16 kB\nMemAvailable:    8 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemAvailable:"), Some(8192));
        assert_eq!(meminfo_bytes(meminfo, "MemFree:"), None);
        let available = available_bytes();
        assert!(available > 0 && available < u64::MAX);
    }

    #[test]
    fn larger_file_systems_take_more() {
        let bytes = |name| alloc_bytes(&Scenario::by_name(name).expect(name));
        assert!(bytes("16g-95") < bytes("133g-95"));
        assert!(bytes("133g-95") < 200 << 20);
        assert!(bytes("1p-95") > 32 << 30);
    }
}
