//! **Purpose.** Checking ext2, ext3 and ext4 file systems: the passes of e2fsck as named
//! invariants, on any number of threads, without writing to the device.
//!
//! ```no_run
//! use fourscore_block::{DeviceOptions, open_path};
//! use fourscore_check::{CheckOptions, check};
//!
//! let device = open_path("disk.ext4".as_ref(), DeviceOptions::default())?;
//! let report = check(fourscore_sync::Arc::new(device), &CheckOptions::default())?;
//! for finding in report.findings() {
//!     println!("{finding}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`repair()`] mends what a check finds. Each finding says what a repair does with it.
//!
//! **Model.** Passes run one after the other, each on all threads. Within a pass, threads take
//! groups, directories or ranges of inodes in order, and collect the results in shared bitmaps
//! whose bits are only ever set. A fault never ends a pass: what cannot be followed is skipped, and
//! the rest is checked.
//!
//! | module | responsibility |
//! |---|---|
//! | `open` | finds a valid superblock |
//! | `replay` | the state after recovery of the journal, in memory |
//! | `volume`, `inode` | the file system and its inodes as stored on the device |
//! | `walk` | follows the block map of an inode |
//! | `table` | reads inode tables in pieces |
//! | `memory` | what the checks of one repair remember of inodes and names |
//! | `bits`, `links`, `state` | the state that passes share |
//! | `parallel` | divides work among threads |
//! | `pass0`, `journal` | superblock, descriptors, copies, journal |
//! | `pass1` | inodes |
//! | `claims` | the owners of shared blocks (passes 1B to 1D) |
//! | `pass2`, `pass3`, `pass4`, `pass5` | directories, their tree, links, bitmaps |
//! | `policies` | the encryption policies of inodes |
//! | `quota` | quota files |
//! | [`mod@repair`] | patches for findings, over the image in memory, checked again until it is clean |
//! | `finding`, `report`, `text` | findings and their text |
//!
//! # Invariants
//! No byte of the image makes a check panic, loop, or take more memory than two or three bits a
//! block, a dozen bits an inode, and what directories, shared attributes and fast commits need.
//! Findings do not depend on the number of threads, with two exceptions: which inode is named of
//! those that share a broken attribute block, and how far maps are followed that share too many
//! blocks.
#![forbid(unsafe_code)]

mod bits;
mod claims;
mod finding;
mod inode;
mod journal;
mod links;
mod memory;
mod open;
mod parallel;
mod pass0;
mod pass1;
mod pass2;
mod pass3;
mod pass4;
mod pass5;
mod policies;
mod quota;
mod repair;
mod replay;
mod report;
mod state;
mod table;
mod text;
mod volume;
mod walk;

use std::io;
use std::num::NonZeroUsize;

use fourscore_block::BlockDevice;
use fourscore_ondisk::superblock::SuperblockRejected;
use fourscore_sync::Arc;

pub use finding::{Finding, Inodes, Invariant, Name, Pass, Severity};
pub use repair::{
    Change, ConvertError, NewJournal, Repaired, Scope, Switch, UndoDevice, UndoError, apply_undo,
    clear_mmp, convert, rehearse, repair,
};
pub use report::{Report, Tally};

use fourscore_ondisk::quota::QuotaUsage;
use memory::Memory;
use report::Findings;
use state::State;
use volume::Volume;

/// Options of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// How many threads to use; by default one.
    pub threads: NonZeroUsize,
    /// The most findings that are kept of each code; by default 1000. All are counted.
    pub most_of_a_code: u64,
    /// The device of an external journal; by default none. It is only read, and is
    /// ignored if the journal is internal.
    pub journal: Option<Arc<dyn BlockDevice>>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            threads: NonZeroUsize::MIN,
            most_of_a_code: 1000,
            journal: None,
        }
    }
}

/// Why a check could not begin.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// There is no usable superblock.
    #[error("{0}")]
    Refused(SuperblockRejected),
    /// The superblock cannot be read.
    #[error("{0}")]
    Io(io::Error),
}

/// Checks the file system on `device`. If its journal must be replayed, the state after recovery is
/// checked, and a note says so.
///
/// # Errors
/// There is no superblock, or it has unknown features. Everything else is a finding, also blocks
/// that cannot be read.
pub fn check(device: Arc<dyn BlockDevice>, options: &CheckOptions) -> Result<Report, CheckError> {
    examine(device, options, None, &|_| false).map(|examined| examined.report)
}

/// The result of a check, with everything that it found out.
struct Examined {
    volume: Volume,
    state: State,
    tree: pass2::Tree,
    usage: QuotaUsage,
    report: Report,
    /// Whether all passes were made.
    is_whole: bool,
}

/// As [`check`]. If `is_enough` says so of the findings of the superblock, the groups, the inodes
/// and their blocks, the other passes are left out, and the tree has no directories. Inodes and
/// directories that `memory` knows are not examined again; it learns of the others.
fn examine(
    device: Arc<dyn BlockDevice>,
    options: &CheckOptions,
    mut memory: Option<&mut Memory>,
    is_enough: &dyn Fn(&[Finding]) -> bool,
) -> Result<Examined, CheckError> {
    let threads = options.threads;
    let mut findings = Findings::new(options.most_of_a_code);
    let mut tally = Tally::default();
    let journal = options.journal.as_ref();
    let opened = open::open(device, journal, &mut findings)?;
    let mut volume = pass0::load(opened.device, opened.sb, &mut findings);
    journal::check(&mut volume, journal, opened.recovery, &mut findings);
    let orphans = match opened.fast_commits {
        Some(replayed) => {
            volume.changes = replayed.changes;
            replayed.orphans
        }
        None => pass1::orphans::collect(&volume, &mut findings),
    };
    let volume = volume;
    let state = State::new(&volume, orphans);
    pass0::check(&volume, &state, &mut findings);
    if let Some(memory) = memory.as_deref_mut() {
        memory.meet(&volume);
    }
    let scanned = pass1::run(
        &volume,
        &state,
        threads,
        memory.as_deref_mut(),
        &mut findings,
        &mut tally,
    );
    claims::run(&volume, &state, threads, memory.as_deref(), &mut findings);
    if is_enough(findings.kept()) {
        return Ok(Examined {
            volume,
            state,
            tree: pass2::Tree::new(Vec::new()),
            usage: scanned.usage,
            report: Report::new(findings, tally),
            is_whole: false,
        });
    }
    let tree = pass2::run(
        &volume,
        &state,
        &scanned,
        threads,
        memory,
        &mut findings,
        &mut tally,
    );
    pass3::run(&state, &tree, &mut findings);
    pass4::run(&volume, &state, threads, &mut findings);
    pass5::run(
        &volume,
        &state,
        opened.recovery,
        threads,
        &mut findings,
        &mut tally,
    );
    quota::check(&volume, &scanned.usage, &mut findings);
    Ok(Examined {
        volume,
        state,
        tree,
        usage: scanned.usage,
        report: Report::new(findings, tally),
        is_whole: true,
    })
}
