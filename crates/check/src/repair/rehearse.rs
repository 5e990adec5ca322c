//! **Purpose.** Makes a change of another crate in memory first, and judges the result, so that a
//! change that would leave errors writes nothing.
//!
//! **Not here.** Changes on the machinery of repair, which judge their results themselves
//! (`convert`).
//!
//! **Model.** The change gets an overlay over the image. It is made a second time on the image
//! itself, by the caller, since the order of its writes is what makes it safe in a crash.
//!
//! **Invariants.** The device is only read.
//!
//! Memory: a copy of each block that the change writes, copies of descriptors included; and that
//! of a check.

use std::collections::BTreeMap;

use fourscore_block::BlockDevice;
use fourscore_sync::Arc;

use super::convert::ConvertError;
use super::overlay::Overlay;
use crate::CheckOptions;
use crate::finding::{Finding, Severity};
use crate::report::Report;

/// Checks the file system on `device`, makes `change` in memory on a device that has the same
/// content, and checks the result. Nothing is written to `device`: if this succeeds, the same
/// change can be made there.
///
/// # Errors
/// `NotAtRest` if the file system has errors before; `Rest` if the change fails; `Impossible` if it
/// leaves an error, or a warning that was not there before; `Check`.
pub fn rehearse<E>(
    device: Arc<dyn BlockDevice>,
    options: &CheckOptions,
    change: &mut dyn FnMut(Arc<dyn BlockDevice>) -> Result<(), E>,
) -> Result<(), ConvertError<E>> {
    let before = crate::check(Arc::clone(&device), options)?;
    if let Some(error) = first_worse(&before, &BTreeMap::new(), Severity::Error) {
        let why = format!("it has errors ({error}): repair it first (check -y)");
        return Err(ConvertError::NotAtRest(why));
    }
    let copy: Arc<dyn BlockDevice> = Arc::new(Overlay::new(device));
    change(Arc::clone(&copy)).map_err(ConvertError::Rest)?;
    let after = crate::check(copy, options)?;
    match first_worse(&after, before.counts(), Severity::Warning) {
        None => Ok(()),
        Some(finding) => Err(ConvertError::Impossible {
            what: "the result",
            why: format!("has an error ({finding}), so nothing was written"),
        }),
    }
}

/// The first finding of at least that severity of whose code there are more than before.
fn first_worse<'r>(
    report: &'r Report,
    before: &BTreeMap<&'static str, u64>,
    least: Severity,
) -> Option<&'r Finding> {
    let is_more = |code: &'static str| report.counts().get(code) > before.get(code);
    let mut worse = report.findings().iter().filter(|finding| {
        let invariant = finding.invariant();
        invariant.severity >= least && is_more(invariant.code)
    });
    worse.next()
}
