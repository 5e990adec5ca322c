//! **Purpose.** `fourscore check`: checks every invariant of a file system and prints one line, or
//! one JSON object, for each violation; with `-p` and `-y` it repairs.
//!
//! **Model.** The exit status is that of e2fsck: 0 for a clean file system, 1 if all errors were
//! repaired, 4 if errors are left, 8 if the check could not run. What was found decides, also if
//! it cannot be printed; only where that would be 0, a report that is lost gives 8, unless its
//! reader has closed the pipe.
//!
//! | module | responsibility |
//! |---|---|
//! | `repair` | `-p`, `-y` and undo files |
//! | `superblock` | `--superblock` |

pub(crate) mod repair;
pub(crate) mod superblock;

use clap::Args;
use fourscore_block::BlockDevice;
use fourscore_check::{CheckError, CheckOptions, Finding, Report, Severity};
use fourscore_ondisk::PhysBlock;
use fourscore_ondisk::superblock::SuperblockRejected;
use fourscore_sync::Arc;
use serde_json::json;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::failure::{self, Failure, Result};
use crate::foreign;
use crate::image::{ImageSpec, device_to_read};
use crate::output::Stdout;
use crate::verbosity;
use superblock::Substituted;

/// `check`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(crate) struct Check {
    /// Image file or block device, with @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Changes nothing
    #[arg(short = 'n', group = "what")]
    pub(crate) no_changes: bool,
    /// Repairs where nothing that was stored can be lost; if anything else is found, changes
    /// nothing and exits with 4
    #[arg(short = 'p', short_alias = 'a', group = "what")]
    pub(crate) preen: bool,
    /// Repairs everything
    #[arg(short = 'y', group = "what")]
    pub(crate) yes: bool,
    /// Writes back what the undo file of a repair saved, and checks nothing
    #[arg(long, value_name = "FILE", group = "what")]
    pub(crate) undo_apply: Option<PathBuf>,
    /// Saves what a repair overwrites in a new file, which e2undo applies, too
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no_changes", "undo_apply"])]
    pub(crate) undo: Option<PathBuf>,
    /// Checks even if the file system seems clean, which is always done
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Number of the block with a backup of the superblock, which is used in the place of the
    /// primary one; a repair writes it there
    #[arg(long, value_name = "BLOCK", conflicts_with = "undo_apply")]
    pub(crate) superblock: Option<u64>,
    /// Size of the blocks in which --superblock counts, in bytes [default: found by trying]
    #[arg(long, value_name = "BYTES")]
    pub(crate) block_size: Option<u32>,
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
    if let Some(file) = &args.undo_apply {
        return repair::undo(args, file);
    }
    if args.preen || args.yes {
        return repair::run(args);
    }
    let not_checked = |failure: Failure| Failure::NotChecked(Box::new(failure));
    let mut image = device_to_read(&args.image).map_err(not_checked)?;
    let substituted = substituted(args, &image)?;
    if let Some(substituted) = &substituted {
        image = Arc::<Substituted>::clone(substituted);
    }
    let journal = args.journal.as_ref().map(device_to_read);
    let journal = journal.transpose().map_err(not_checked)?;
    let options = options(args, journal);
    let name = args.image.shown();
    let report = fourscore_check::check(image, &options).map_err(|why| refusal(args, why))?;
    let text = if args.json {
        format!("{:#}\n", as_json(&report))
    } else {
        as_text(&report, &name)
    };
    let is_other = substituted.is_some_and(|device| device.is_other().unwrap_or(true));
    if is_other {
        let why = "the primary superblock is another one than the backup, which a repair writes";
        failure::message(&format!("{name}: {why}"));
    }
    let found = match report.is_clean() && !is_other {
        true => Ok(()),
        false => Err(Failure::ErrorsLeft),
    };
    print(&text, found)
}

/// The device with the backup of the superblock that was asked for.
fn substituted(args: &Check, image: &Arc<dyn BlockDevice>) -> Result<Option<Arc<Substituted>>> {
    let Some(block) = args.superblock.map(PhysBlock) else {
        return Ok(None);
    };
    let device = Substituted::new(Arc::clone(image), block, args.block_size);
    let device = device.map_err(|why| {
        let failure = Failure::new(args.image.shown(), why);
        Failure::NotChecked(Box::new(failure))
    })?;
    Ok(Some(Arc::new(device)))
}

/// Prints a report, and returns what was found.
fn print(text: &str, found: Result<()>) -> Result<()> {
    let printed = Stdout::open().and_then(|mut out| {
        out.write(text.as_bytes())?;
        out.flush()
    });
    match (printed, found) {
        (Ok(()) | Err(Failure::BrokenPipe), found) => found,
        (Err(failure), Ok(())) => Err(Failure::NotChecked(Box::new(failure))),
        (Err(failure), found) => {
            failure::message(&failure.to_string());
            found
        }
    }
}

/// The options of a check or a repair.
fn options(args: &Check, journal: Option<Arc<dyn BlockDevice>>) -> CheckOptions {
    let threads = NonZeroUsize::new(crate::threads(args.threads));
    CheckOptions {
        threads: threads.unwrap_or(NonZeroUsize::MIN),
        most_of_a_code: args.most,
        journal,
    }
}

/// The failure of a check that could not begin.
fn refusal(args: &Check, why: CheckError) -> Failure {
    let disk = match why {
        CheckError::Refused(SuperblockRejected::NotExt4 { .. }) => foreign::failure(&args.image),
        _ => None,
    };
    let name = args.image.shown();
    let failure = disk.unwrap_or_else(|| Failure::new(name, why));
    Failure::NotChecked(Box::new(failure))
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
    if verbosity::is_quiet() {
        return text;
    }
    let verdict = if report.is_clean() {
        "clean"
    } else {
        "HAS ERRORS"
    };
    text.push_str(&sum(report, name, verdict));
    text
}

/// The last line: the verdict and what was counted.
fn sum(report: &Report, name: &str, verdict: &str) -> String {
    let tally = report.tally();
    format!(
        "{name}: {verdict}: {} inodes, {} directories, {} entries, {} blocks in use\n",
        tally.inodes, tally.directories, tally.entries, tally.blocks
    )
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
