//! **Purpose.** Runs the checker on a file system, and reports its errors.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, bail};
use fourscore_block::BlockDevice;
use fourscore_check::{CheckOptions, Finding, Report, Severity, check};
use fourscore_sync::Arc;

/// Checks a file system, and returns the report, which has no errors.
///
/// # Errors
/// The first errors that the checker finds.
pub(crate) fn check_clean(device: Arc<dyn BlockDevice>) -> Result<Report> {
    check_clean_but_for(device, |_| false)
}

/// Checks a file system, and returns the report, which has no errors but those that are `known`.
///
/// # Errors
/// The first other errors that the checker finds.
pub(crate) fn check_clean_but_for(
    device: Arc<dyn BlockDevice>,
    known: impl Fn(&Finding) -> bool,
) -> Result<Report> {
    let options = CheckOptions {
        threads: NonZeroUsize::MIN,
        most_of_a_code: 5,
        journal: None,
    };
    let report = check(device, &options).context("the checker")?;
    let errors = report.findings().iter().filter(|finding| {
        let is_error = finding.invariant().severity == Severity::Error;
        is_error && !known(finding)
    });
    let lines: Vec<_> = errors.map(|finding| format!("    {finding}")).collect();
    if report.is_clean() || lines.is_empty() {
        return Ok(report);
    }
    bail!("the checker:\n{}", lines.join("\n"));
}
