//! **Purpose.** Images that e2fsck finds clean are sound for the checker too, in every
//! configuration of the matrix and on any number of threads.

use anyhow::ensure;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use crate::common::{report, texts};

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
        ensure!(found.findings().is_empty(), "{:#?}", texts(&found));
        let tally = found.tally();
        ensure!(tally.directories > 3 && tally.entries > 2 * tally.directories);
        for threads in [1, 5] {
            let again = report(image, threads)?;
            ensure!(again.tally() == tally && again.findings().is_empty());
        }
        Ok(())
    });
}
