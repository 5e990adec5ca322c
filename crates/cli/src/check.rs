//! **Purpose.** `fourscore check -n`: checks every invariant of a file system and prints one line,
//! or one JSON object, for each violation.
//!
//! **Model.** The exit status is that of e2fsck: 0 for a clean file system, 4 if errors were found,
//! 8 if the check could not run.

use clap::Args;
use fourscore_block::{Access, DeviceOptions};
use fourscore_check::{CheckOptions, Finding, Report, Severity};
use serde_json::json;
use std::fmt::Write as _;
use std::num::NonZeroUsize;

use crate::failure::{Failure, Result};
use crate::image::{ImageSpec, device};
use crate::output::Stdout;

/// `check`
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Image file or block device, with @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Changes nothing; required, since check cannot repair
    #[arg(short = 'n', required = true)]
    pub(crate) no_changes: bool,
    /// Device of an external journal, with @OFFSET for a partition
    #[arg(short = 'j', long, value_name = "DEVICE")]
    pub(crate) journal: Option<ImageSpec>,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Number of findings of each kind to print; all are counted
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) most: u64,
    /// Number of threads [default: all cores]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}

/// Runs the verb.
pub(crate) fn run(args: &Check) -> Result<()> {
    let not_checked = |failure: Failure| Failure::NotChecked(Box::new(failure));
    let open = |spec| device(spec, DeviceOptions::default(), Access::ReadOnly);
    let image = open(&args.image).map_err(not_checked)?;
    let journal = args.journal.as_ref().map(open);
    let journal = journal.transpose().map_err(not_checked)?;
    let threads = NonZeroUsize::new(crate::threads(args.threads));
    let options = CheckOptions {
        threads: threads.unwrap_or(NonZeroUsize::MIN),
        most_of_a_code: args.most,
        journal,
    };
    let name = args.image.path.display().to_string();
    let report = fourscore_check::check(image, &options)
        .map_err(|why| not_checked(Failure::new(name.as_str(), why)))?;
    let text = if args.json {
        format!("{:#}\n", as_json(&report))
    } else {
        as_text(&report, &name)
    };
    let mut out = Stdout::open()?;
    out.write(text.as_bytes())?;
    out.flush()?;
    if report.is_clean() {
        Ok(())
    } else {
        Err(Failure::ErrorsLeft)
    }
}

fn as_text(report: &Report, name: &str) -> String {
    let mut text = String::new();
    // Writing into a String cannot fail.
    for finding in report.findings() {
        let row = finding.invariant();
        let (code, repair) = (row.code, row.repair);
        let _ = write!(text, "{finding} [{code}]");
        let _ = match row.severity {
            Severity::Note => writeln!(text),
            Severity::Warning | Severity::Error => writeln!(text, " (repair: {repair})"),
        };
    }
    let mut left = 0;
    for row in Finding::CODES {
        let printed = report.findings().iter();
        let printed = printed.filter(|finding| finding.invariant().code == row.code);
        let count = report.counts().get(row.code).copied().unwrap_or(0);
        left += count.saturating_sub(printed.count() as u64);
    }
    if left > 0 {
        let _ = writeln!(text, "... and {left} more of the same kinds");
    }
    let tally = report.tally();
    let verdict = if report.is_clean() {
        "clean"
    } else {
        "HAS ERRORS"
    };
    let _ = writeln!(
        text,
        "{name}: {verdict}: {} inodes, {} directories, {} entries, {} blocks in use",
        tally.inodes, tally.directories, tally.entries, tally.blocks
    );
    text
}

fn as_json(report: &Report) -> serde_json::Value {
    let tally = report.tally();
    let findings: Vec<_> = report.findings().iter().map(Finding::to_json).collect();
    json!({
        "clean": report.is_clean(),
        "findings": findings,
        "counts": report.counts(),
        "inodes": tally.inodes,
        "directories": tally.directories,
        "entries": tally.entries,
        "blocks": tally.blocks,
    })
}
