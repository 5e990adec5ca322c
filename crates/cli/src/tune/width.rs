//! **Purpose.** `tune -O 64bit` and `-O ^64bit`: descriptors of groups of 64 or of 32 bytes.
//!
//! **Model.** It is the only change of its call: it is one of the layout (`fourscore_resize`), and
//! durable by itself. The file system is checked before, since all descriptors are written again.

use fourscore_block::BlockDevice;
use fourscore_check::{CheckOptions, Finding, Severity};
use fourscore_mkfs::{FeatureChange, Tuning};
use fourscore_ondisk::features::Incompat;
use fourscore_resize::{Resizer, Width};
use fourscore_sync::Arc;

use super::{TuneOptions, changes};
use crate::failure::{Failure, Result};

/// The width that is wished, if it is another one.
///
/// # Errors
/// A usage failure if something else is to be changed with it.
pub(super) fn wished(
    device: &dyn BlockDevice,
    tuning: &Tuning,
    options: &TuneOptions,
) -> Result<Option<Width>> {
    let features = changes::superblock(device).map(|sb| sb.features());
    let is_wide = features.map(|features| features.incompat.contains(Incompat::BIT64));
    let is_change = |change: &&FeatureChange| change.name() == "64bit";
    let last = tuning.features.iter().rfind(is_change);
    let Some(change) = last.filter(|change| is_wide == Some(!change.is_on())) else {
        return Ok(None);
    };
    let alone = Tuning {
        features: vec![*change],
        ..Tuning::default()
    };
    if *tuning != alone || options.has_changes() {
        let why = "is a change of the layout: give it alone, and other changes before or after it";
        return Err(Failure::usage("-O 64bit", why));
    }
    Ok(Some(match change.is_on() {
        true => Width::Wide,
        false => Width::Narrow,
    }))
}

/// Gives the file system on a device that width.
pub(super) fn set(
    device: Arc<dyn BlockDevice>,
    check: &CheckOptions,
    width: Width,
    name: &str,
) -> Result<()> {
    let failed = |why: &dyn std::fmt::Display| Failure::new(name, why);
    let mut resizer = Resizer::open(Arc::clone(&device)).map_err(|why| failed(&why))?;
    let report = fourscore_check::check(device, check).map_err(|why| failed(&why))?;
    if !report.is_clean() {
        let is_error = |found: &&Finding| found.invariant().severity == Severity::Error;
        let first = report.findings().iter().find(is_error);
        let first = first.map_or_else(String::new, |found| format!(", such as: {found}"));
        let why = format!("has errors{first}");
        return Err(Failure::new(name, why).advise("repair it first: fourscore check -y"));
    }
    resizer.set_width(width).map_err(|why| failed(&why))
}
