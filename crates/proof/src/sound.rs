//! **Purpose.** Runs the checker on a file system, and reports its errors.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, bail};
use fourscore_block::BlockDevice;
use fourscore_check::{CheckOptions, Report, Severity, check};
use fourscore_sync::Arc;

/// Checks a file system, and returns the report, which has no errors.
///
/// # Errors
/// The first errors that the checker finds.
pub(crate) fn check_clean(device: Arc<dyn BlockDevice>) -> Result<Report> {
    let options = CheckOptions {
        threads: NonZeroUsize::MIN,
        most_of_a_code: 5,
        journal: None,
    };
    let report = check(device, &options).context("the checker")?;
    if report.is_clean() {
        return Ok(report);
    }
    let errors = report.findings().iter();
    let errors = errors.filter(|finding| finding.invariant().severity == Severity::Error);
    let lines: Vec<_> = errors.map(|finding| format!("    {finding}")).collect();
    bail!("the checker:\n{}", lines.join("\n"));
}
