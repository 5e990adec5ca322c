//! **Purpose.** Support for all tests of the checker: reports of images, and their texts and codes.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::Result;
use fourscore_block::{BlockDevice, DeviceOptions, open_path};
use fourscore_check::{CheckError, CheckOptions, Report, check};
use fourscore_sync::Arc;

/// The device of an image, read-only.
pub(crate) fn opened(image: &Path) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(open_path(image, DeviceOptions::default())?))
}

/// Checks a device on a number of threads.
pub(crate) fn report_on(
    device: Arc<dyn BlockDevice>,
    threads: usize,
) -> Result<Report, CheckError> {
    let options = CheckOptions {
        threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
        ..CheckOptions::default()
    };
    check(device, &options)
}

/// Checks an image on a number of threads.
pub(crate) fn report(image: &Path, threads: usize) -> Result<Report> {
    Ok(report_on(opened(image)?, threads)?)
}

/// The texts of all findings.
pub(crate) fn texts(report: &Report) -> Vec<String> {
    report.findings().iter().map(ToString::to_string).collect()
}

/// The number of findings of each code.
pub(crate) fn codes(report: &Report) -> BTreeMap<&'static str, u64> {
    report.counts().clone()
}

/// The number of findings with a code.
pub(crate) fn count(report: &Report, code: &str) -> u64 {
    report.counts().get(code).copied().unwrap_or(0)
}

/// The number in an environment variable; `default` without one.
pub(crate) fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}
