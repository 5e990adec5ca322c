//! **Purpose.** Images that e2fsck calls clean are sound for the checker too, in every
//! configuration of the matrix and on any number of threads; and a dirty journal is checked as it
//! will be.

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Result, ensure};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_check::{CheckOptions, Report, check};
use fourscore_sync::Arc;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

fn report(image: &Path, threads: usize) -> Result<Report> {
    let device = open_path(image, DeviceOptions::default())?;
    let options = CheckOptions {
        threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
        ..CheckOptions::default()
    };
    Ok(check(Arc::new(device), &options)?)
}

fn lines(report: &Report) -> Vec<String> {
    report.findings().iter().map(ToString::to_string).collect()
}

#[test]
fn clean_images_of_the_matrix_are_sound() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    matrix::assert_all(|config| {
        let populated = config.populated()?;
        let image = populated.image.path();
        let found = report(image, 2)?;
        ensure!(found.findings().is_empty(), "{:#?}", lines(&found));
        let tally = found.tally();
        ensure!(tally.directories > 3 && tally.entries > 2 * tally.directories);
        for threads in [1, 5] {
            let again = report(image, threads)?;
            ensure!(again.tally() == tally && again.findings().is_empty());
        }
        Ok(())
    });
}
