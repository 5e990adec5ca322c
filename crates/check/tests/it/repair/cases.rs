//! **Purpose.** Each damage of the table of invariants is repaired: afterwards neither checker
//! finds anything. One case in [`ONE_IN`] is run; `FOURSCORE_REPAIR_CASES=all` runs all.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use crate::invariants::cases;
use crate::invariants::surgery::Surgery;

use super::assert_repaired;

/// Findings that cannot be repaired, or that are none.
const LEFT: [&str; 2] = ["superblock-unknown-features", "journal-elsewhere"];

/// How many cases there are for each that is run.
const ONE_IN: usize = 4;
/// Backups of the descriptors mend these before the first check.
const OF_BACKUPS: [&str; 2] = ["group-place", "metadata-overlap"];

fn some_of(config: &matrix::Config) -> Result<()> {
    let populated = config.populated()?;
    let mut surgery = Surgery::new(&populated.image)?;
    let mut faults = Vec::new();
    let own = cases::all().filter(|case| case.config == config.name);
    let own = own.filter(|case| !LEFT.contains(&case.code));
    let one_in = match std::env::var_os("FOURSCORE_REPAIR_CASES") {
        Some(_) => 1,
        None => ONE_IN,
    };
    for case in own.step_by(one_in) {
        (case.damage)(&mut surgery)?;
        let image = populated.image.copy()?;
        surgery.undo()?;
        let outcome = assert_repaired(image.path()).and_then(|result| {
            // The first block of a root that lost its type still says what it is.
            if case.code == "no-root" {
                return Ok(());
            }
            let codes = result.mended.iter().map(|finding| finding.invariant().code);
            let is_named = codes.into_iter().any(|code| {
                let is_of_backups = OF_BACKUPS.contains(&case.code);
                code == case.code || (is_of_backups && code == "backup-descriptors")
            });
            ensure!(is_named, "not among what was mended");
            Ok(())
        });
        if let Err(error) = outcome {
            faults.push(format!("{}: {error:#}", case.code));
        }
    }
    ensure!(
        faults.is_empty(),
        "{} fail\n{}",
        faults.len(),
        faults.join("\n")
    );
    Ok(())
}

#[test]
fn every_damage_of_the_table_is_repaired() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let names: BTreeSet<&str> = cases::all().map(|case| case.config).collect();
    let names: Vec<&str> = names.into_iter().collect();
    matrix::assert_each(&matrix::named(&names), some_of);
}
