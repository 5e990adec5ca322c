//! **Purpose.** The checker: every invariant of a forged image.
//!
//! **Input.** As for the target `image`: which image, a byte of switches, changes to its blocks.

use std::num::NonZeroUsize;

use fourscore_check::{CheckOptions, Severity, check};
use fourscore_sync::Arc;

use crate::input::Input;
use crate::seal::reseal;
use crate::targets::SEAL;
use crate::{images, patch};

/// Enough to tell that findings are bounded.
const MOST_OF_A_CODE: u64 = 20;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let image = images::nth(input.u8());
    let switches = input.u8();
    let mut device = image.device();
    patch::apply(&mut input, &image.blocks, image, &mut device);
    if switches & SEAL != 0 {
        reseal(&mut device, image);
    }
    let options = CheckOptions {
        threads: NonZeroUsize::MIN,
        most_of_a_code: MOST_OF_A_CODE,
        journal: None,
    };
    let report = match check(Arc::new(device), &options) {
        Ok(report) => report,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let mut errors = 0;
    for finding in report.findings() {
        assert!(!finding.to_string().is_empty());
        errors += u32::from(finding.invariant().severity == Severity::Error);
    }
    assert_eq!(report.is_clean(), errors == 0);
    for (code, &count) in report.counts() {
        let kept = report.findings().iter();
        let kept = kept
            .filter(|finding| finding.invariant().code == *code)
            .count() as u64;
        assert_eq!(kept, count.min(MOST_OF_A_CODE), "{code}");
    }
}
