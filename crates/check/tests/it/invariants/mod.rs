//! **Purpose.** Every broken invariant is found: for each there is a damage that breaks it. The
//! finding has its code, its object and a repair; e2fsck finds a fault, too; and the findings do
//! not depend on the number of threads.
//!
//! **Model.** There is one image of each configuration that cases name. Each case damages it, runs
//! both checkers, and undoes the damage. Invariants that changed bytes cannot break have their own
//! tests, which [`ELSEWHERE`] lists.
//!
//! | module | responsibility |
//! |---|---|
//! | `surgery` | damages structures by paths and field names |
//! | `cases` | the table of damages and invariants |
//! | `apart` | short and failing devices, logs, deep indexes |
//! | `links` | the inodes that names refer to, and link counts |
//! | `journals` | unusable and missing journals |
//! | `superblocks` | fields of the superblock that readers do not depend on |

mod apart;
pub(crate) mod cases;
mod journals;
mod links;
mod superblocks;
pub(crate) mod surgery;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore_check::{Finding, Report, Severity};
use fourscore_testkit::oracle::e2fsck;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use surgery::Surgery;

use crate::common::{count, report, texts};

/// Invariants that other tests of this module, of `crate::recovered` or `crate::repair` break.
const ELSEWHERE: &[(&str, &str)] = &[
    ("device-short", "apart::a_short_device_is_reported"),
    (
        "unreadable",
        "apart::blocks_that_cannot_be_read_are_reported",
    ),
    ("journal-tail", "apart::a_torn_last_transaction_is_reported"),
    (
        "journal-damaged",
        "crate::repair::logs::what_is_intact_of_a_damaged_log_is_replayed",
    ),
    ("index-node", "apart::indexes_of_two_levels_are_followed"),
    ("index-depth", "apart::indexes_of_two_levels_are_followed"),
    ("journal-replayed", "recovered"),
    ("fast-commits-replayed", "recovered"),
    ("orphan", "recovered"),
    (
        "journal-not-given",
        "journals::a_log_on_a_device_that_was_not_given_is_an_error",
    ),
    (
        "entry-encoding",
        "links::a_name_that_is_not_utf8_is_reported_where_the_encoding_is_strict",
    ),
    (
        "entry-value",
        "links::a_name_of_an_inode_that_holds_a_value_is_reported",
    ),
    (
        "value-flag",
        "links::a_flag_of_values_on_something_else_is_reported_as_that",
    ),
    (
        "dir-nlink",
        "links::more_links_than_can_be_counted_need_a_feature",
    ),
];

/// The invariant with a number of findings that depends on threads.
const BEYOND_MEASURE: &str = "shared-beyond-measure";

/// Checks a damaged image with one thread and with three, which must find the same.
fn checked(image: &Path) -> Result<Report> {
    let (one, three) = (report(image, 1)?, report(image, 3)?);
    ensure!(
        one.findings() == three.findings() || three.counts().contains_key(BEYOND_MEASURE),
        "one thread: {:?}, three: {:?}",
        one.findings(),
        three.findings()
    );
    for finding in three.findings() {
        let (text, json) = (finding.to_string(), finding.to_json());
        ensure!(text.contains(": ") && json["text"] == *text, "{text}");
        ensure!(json["repair"] == finding.invariant().repair, "{text}");
        ensure!(
            json["fields"]
                .as_object()
                .is_some_and(|fields| !fields.is_empty()),
            "{text} has no fields"
        );
    }
    Ok(three)
}

/// Runs both checkers on an image in which an invariant is broken.
fn assert_found(image: &Path, code: &str) -> Result<()> {
    let report = checked(image)?;
    let texts = texts(&report);
    ensure!(count(&report, code) > 0, "not found: {texts:#?}");
    let row = Finding::CODES.iter().find(|row| row.code == code);
    let severity = row.context("no such code")?.severity;
    // e2fsck follows such maps to their end, for minutes and in gigabytes.
    if severity == Severity::Error && code != BEYOND_MEASURE {
        // e2fsck does not count every question in its exit status.
        let theirs = e2fsck(image)?;
        let asks = theirs.output.lines().any(|line| line.ends_with("? no"));
        let goes_over = theirs.output.contains("trying backup blocks");
        ensure!(
            !theirs.is_clean() || asks || goes_over,
            "not found by e2fsck: {texts:#?}\n{}",
            theirs.output
        );
    }
    Ok(())
}

/// Runs all cases of one configuration; the error lists those that fail.
fn all_of(config: &matrix::Config) -> Result<()> {
    let populated = config.populated()?;
    let image = populated.image.path();
    let mut surgery = Surgery::new(&populated.image)?;
    let mut faults = Vec::new();
    for case in cases::all().filter(|case| case.config == config.name) {
        let outcome = (case.damage)(&mut surgery).and_then(|()| assert_found(image, case.code));
        if let Err(error) = outcome {
            faults.push(format!("{}: {error:#}", case.code));
        }
        surgery.undo()?;
    }
    ensure!(report(image, 2)?.findings().is_empty(), "damage is left");
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn broken_invariants_are_found() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let names: BTreeSet<&str> = cases::all().map(|case| case.config).collect();
    let names: Vec<&str> = names.into_iter().collect();
    matrix::assert_each(&matrix::named(&names), all_of);
}

#[test]
fn every_invariant_has_a_damage() {
    let mut covered: BTreeSet<&str> = cases::all().map(|case| case.code).collect();
    covered.extend(ELSEWHERE.iter().map(|(code, _)| *code));
    let all: BTreeSet<&str> = Finding::CODES.iter().map(|row| row.code).collect();
    assert_eq!(covered, all);
}
