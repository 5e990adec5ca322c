//! **Purpose.** Every invariant is met when it is broken: for each there is a damage that breaks
//! it, the finding bears its code, names its object and says what a repair would do; e2fsck finds
//! a fault, too; and what is told does not depend on threads.
//!
//! **Model.** One image of each configuration that the cases ask for; each case damages it, asks
//! both checkers, and undoes what it did. Invariants that take more than bytes to be broken have
//! tests of their own in `apart`, or in another file, which [`ELSEWHERE`] names.
//!
//! | module | responsibility |
//! |---|---|
//! | `surgery` | damage by paths and names of fields |
//! | `cases` | what to damage, and the invariant that breaks |
//! | `apart` | devices that are short or fail, logs, other shapes of trees |
//! | `links` | what names lead to, and how many do |
//! | `journals` | journals that are not where they should be |
//! | `superblocks` | fields of the superblock that reading does not depend on |

mod apart;
mod cases;
mod journals;
mod links;
mod superblocks;
mod surgery;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_check::{CheckOptions, Finding, Report, Severity, check};
use fourscore_sync::Arc;
use fourscore_testkit::oracle::e2fsck;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{matrix, require};

use surgery::Surgery;

/// Invariants that are broken in other tests than the table of cases.
const ELSEWHERE: &[(&str, &str)] = &[
    ("device-short", "apart::a_short_device_is_told"),
    ("unreadable", "apart::blocks_that_cannot_be_read_are_told"),
    ("journal-tail", "apart::a_torn_last_transaction_is_told"),
    ("index-node", "apart::indexes_of_two_levels_are_followed"),
    ("index-depth", "apart::indexes_of_two_levels_are_followed"),
    ("journal-replayed", "--test recovered"),
    ("fast-commits-replayed", "--test recovered"),
    ("orphan", "--test recovered"),
    (
        "journal-not-given",
        "journals::a_log_on_a_device_that_was_not_given_is_an_error",
    ),
    (
        "entry-encoding",
        "links::a_name_that_is_not_utf8_is_told_where_the_encoding_is_strict",
    ),
    (
        "entry-value",
        "links::a_name_of_an_inode_that_holds_a_value_is_told",
    ),
    (
        "value-flag",
        "links::a_flag_of_values_on_something_else_is_told_as_that",
    ),
    (
        "dir-nlink",
        "links::more_links_than_can_be_counted_need_a_feature",
    ),
];

/// The invariant of which it depends on threads how much of it is told.
const BEYOND_MEASURE: &str = "shared-beyond-measure";

fn report(image: &Path, threads: usize) -> Result<Report> {
    let device = open_path(image, DeviceOptions::default())?;
    let options = CheckOptions {
        threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
        ..CheckOptions::default()
    };
    Ok(check(Arc::new(device), &options)?)
}

/// What is told of a damaged image, which one thread and three find alike.
fn told(image: &Path) -> Result<Report> {
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

/// Both checkers on an image in which an invariant is broken.
fn assert_met(image: &Path, code: &str) -> Result<()> {
    let told = told(image)?;
    let texts: Vec<_> = told.findings().iter().map(ToString::to_string).collect();
    ensure!(told.counts().contains_key(code), "not met: {texts:#?}");
    let row = Finding::CODES.iter().find(|row| row.code == code);
    let severity = row.context("no such code")?.severity;
    // e2fsck follows such maps to their end, for minutes and in gigabytes.
    if severity == Severity::Error && code != BEYOND_MEASURE {
        // Not all that e2fsck asks about does it count in its exit status.
        let theirs = e2fsck(image)?;
        let asks = theirs.output.lines().any(|line| line.ends_with("? no"));
        let goes_over = theirs.output.contains("trying backup blocks");
        ensure!(
            !theirs.is_clean() || asks || goes_over,
            "not met by e2fsck: {texts:#?}\n{}",
            theirs.output
        );
    }
    Ok(())
}

/// All cases of one configuration; the faults of those that fail.
fn all_of(config: &matrix::Config) -> Result<()> {
    let populated = config.populated()?;
    let image = populated.image.path();
    let mut surgery = Surgery::new(&populated.image)?;
    let mut faults = Vec::new();
    for case in cases::all().filter(|case| case.config == config.name) {
        let outcome = (case.damage)(&mut surgery).and_then(|()| assert_met(image, case.code));
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
fn what_is_broken_is_met() {
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
