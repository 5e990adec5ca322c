//! **Purpose.** Whether the checker finds anything wrong with a file system.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, bail};
use fourscore::Arc;
use fourscore::block::BlockDevice;
use fourscore_check::{CheckOptions, Report, Severity, check};

/// What the checker has to say beside errors.
///
/// # Errors
/// The first of the errors that it finds.
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
