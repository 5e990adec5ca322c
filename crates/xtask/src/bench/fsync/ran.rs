//! **Purpose.** Runs `fourscore bench fsync` and reads its report.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What a run reported.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) operations: u64,
    pub(super) wall: Duration,
    pub(super) fsyncs: f64,
    pub(super) fsyncs_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// The processor time of an fsync, where it is measured.
    pub(super) cpu_us: f64,
    pub(super) fast_commits: u64,
    pub(super) full_commits: u64,
    /// Full commits in place of fast ones.
    pub(super) ineligible: u64,
    /// Records of the fast commits.
    pub(super) records: u64,
    pub(super) attributes_set: u64,
    /// Flushes of the memory, and how long one took.
    pub(super) flushes: u64,
    pub(super) flush_us: f64,
    /// The time of the quadratic reference by its records, if it ran.
    pub(super) quadratic_record_ns: Option<f64>,
}

impl Ran {
    /// Operations per second.
    pub(super) fn per_second(&self) -> f64 {
        self.operations as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// Runs the command.
pub(super) fn ran(command: &mut Command) -> Result<Ran> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let number = |name: &str| {
        let found = report[name].as_f64();
        found.with_context(|| format!("the report has no {name}"))
    };
    let whole = |value: &Value| value.as_u64().unwrap_or(0);
    let counts = &report["counts"];
    let flushes = whole(&counts["flushes"]);
    let reference = &report["quadratic"];
    Ok(Ran {
        operations: whole(&report["operations"]),
        wall: Duration::from_secs_f64(number("seconds")?),
        fsyncs: number("fsyncs")?,
        fsyncs_per_s: number("fsyncs_per_second")?,
        p50_us: number("fsync_p50_ns")? / 1e3,
        p99_us: number("fsync_p99_ns")? / 1e3,
        cpu_us: number("fsync_cpu_p50_ns")? / 1e3,
        fast_commits: whole(&counts["fast_commits"]),
        full_commits: whole(&counts["full_commits"]),
        ineligible: whole(&counts["ineligible"]),
        records: whole(&counts["fast_commit_records"]),
        attributes_set: whole(&report["attributes_set"]),
        flushes,
        flush_us: whole(&counts["flushing_ns"]) as f64 / flushes.max(1) as f64 / 1e3,
        quadratic_record_ns: reference["ns"]
            .as_f64()
            .zip(reference["records"].as_f64())
            .map(|(ns, records)| ns / records.max(1.0)),
    })
}

/// The median of some figures; not a number if there are none.
pub(super) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
