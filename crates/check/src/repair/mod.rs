//! **Purpose.** Repair: each finding of a check has a patch. Patches are laid over the image in
//! memory, the result is checked again until nothing is found, and only then it is written.
//!
//! **Model.**
//! ```text
//! replay the log -> check -> patch the first stage with findings -> check -> ... -> write
//!                     ^------------------ a bounded number of rounds ------|
//! ```
//! A round patches one stage ([`rules`]), because what later stages find may follow from it. So a
//! patch may rely on everything of earlier stages, and never has to bring anything up to date that
//! a later stage computes. A check ends before the directories if inodes or their blocks are to be
//! patched first; the last one makes all passes. What a check found out about plain inodes is used
//! by the next ones as long as no patch writes to it, and so are the names in directories
//! ([`crate::memory`]).
//!
//! Where nothing that a user stored can be lost, a repair may do without being asked ([`Scope`]).
//! It then does all that is found, or nothing.
//!
//! | module | responsibility |
//! |---|---|
//! | `rules` | which patch a finding has, and when |
//! | `overlay` | the image with the changes, in memory |
//! | `editor` | changes of one structure; free blocks and inodes |
//! | `supers`, `journal` | superblock, descriptors, backups; the journal |
//! | `vote` | fields of the superblock against which two backups agree |
//! | `places` | descriptors whose places backups know better |
//! | `inodes`, `map`, `attributes` | fields of inodes, their maps, their attributes |
//! | `directories`, `salvage`, `tree` | blocks of directories, entries in broken ones, lost+found |
//! | `reindex` | new hash indexes |
//! | `counts`, `quota` | bitmaps, counts, quota files |
//! | `write` | the order of the writes |
//! | `undo` | saves what is overwritten |
//! | [`mod@convert`] | features that are switched, on the same machinery |
//!
//! **Invariants.** No byte of the image is written before all rounds are done, but for the replay
//! of a log that is not damaged. A file whose metadata is sound keeps its blocks, its name and its
//! content. A finding that could not be mended is in the result.
//!
//! Other hosts are kept away (feature `mmp`) from before the first write to after the last one. A
//! damaged block of that feature does not say which host has the file system; then a repair goes
//! on without.
//!
//! **Crash safety.** See `write`. A damaged log is replayed in memory first, and on the device
//! before all other writes, in the order of [`crate::replay::salvage_in_place`].

mod attributes;
mod convert;
mod counts;
mod directories;
mod editor;
mod inodes;
mod journal;
mod map;
mod overlay;
mod places;
mod quota;
mod rehearse;
mod reindex;
mod rules;
mod salvage;
mod supers;
mod tree;
mod undo;
mod vote;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use fourscore_block::BlockDevice;
use fourscore_block::mmp::{self, ClaimError, Claimed};
use fourscore_ondisk::features::RoCompat;
use fourscore_ondisk::superblock::SUPERBLOCK_OFFSET_BYTES;
use fourscore_ondisk::{InodeNr, RawSuperblock};
use fourscore_sync::Arc;
use zerocopy::IntoBytes;

use crate::finding::{Finding, Severity};
use crate::memory::Memory;
use crate::report::{Findings, Report};
use crate::{CheckError, CheckOptions, Examined};
pub use convert::{Change, ConvertError, NewJournal, Switch, convert};
use editor::{Editor, Left};
use overlay::Overlay;
pub use rehearse::rehearse;
use rules::{Agenda, Stage};
pub use undo::{UndoDevice, UndoError, apply_undo};

/// How often a patch of the same finding is tried.
const MOST_TRIES: u32 = 3;
/// The most rounds. Each ends with fewer kinds of faults, or with faults that were hidden before.
const MOST_ROUNDS: u32 = 40;

/// What a repair may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only where nothing that a user stored can be lost (`-p`). If anything else is found, nothing
    /// is changed.
    Safe,
    /// Everything (`-y`).
    Everything,
}

/// The result of a repair.
#[derive(Debug)]
pub struct Repaired {
    /// What was mended, in the order in which it was.
    pub mended: Vec<Finding>,
    /// What was left, each with the reason.
    pub left: Vec<(Finding, String)>,
    /// The last check: that of what is on the device now.
    pub report: Report,
    /// Whether the device was changed, by more than a replay of the log.
    pub is_changed: bool,
    /// Whether the log was replayed on the device.
    pub is_replayed: bool,
}

impl Repaired {
    /// Whether no errors are left.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.report.is_clean()
    }
}

/// Repairs the file system on `device`. The log is replayed first. When the call returns, all
/// changes are durable. With the feature `mmp` other hosts are kept away meanwhile; if one of them
/// did not release the file system, this waits for some twenty seconds.
///
/// # Errors
/// As [`check`](crate::check); `Io` also if the device cannot be written, and of kind
/// `ResourceBusy` if another host has the file system. What was written until then leaves a file
/// system that can be repaired.
pub fn repair(
    device: Arc<dyn BlockDevice>,
    options: &CheckOptions,
    scope: Scope,
) -> Result<Repaired, CheckError> {
    repair_with(device, options, scope, seconds_now(), Memory::default())
}

/// As [`repair`], at a time in seconds since 1970.
fn repair_with(
    device: Arc<dyn BlockDevice>,
    options: &CheckOptions,
    scope: Scope,
    now: u32,
    memory: Memory,
) -> Result<Repaired, CheckError> {
    let claimed = claim(device).map_err(CheckError::Io)?;
    let repaired = repair_claimed(&claimed, options, scope, now, memory);
    let released = claimed.release().map_err(|why| CheckError::Io(why.into()));
    let repaired = repaired?;
    released.map(|()| repaired)
}

/// As [`repair_with`], of a file system that no other host uses.
fn repair_claimed(
    claimed: &Claimed,
    options: &CheckOptions,
    scope: Scope,
    now: u32,
    memory: Memory,
) -> Result<Repaired, CheckError> {
    let device = Arc::clone(claimed.device());
    let is_replayed = crate::replay::replay_in_place(&device, options.journal.as_ref())
        .map_err(CheckError::Io)?;
    let overlay = Arc::new(Overlay::new(device));
    let options = CheckOptions {
        most_of_a_code: u64::MAX,
        ..options.clone()
    };
    let mut result = Rounds::new(&overlay, memory);
    result.salvage_log().map_err(CheckError::Io)?;
    if scope == Scope::Everything {
        result.restore_fields().map_err(CheckError::Io)?;
        result.restore_places().map_err(CheckError::Io)?;
    }
    let found = result.run(&options, scope, now)?;
    let found = result.index_again(&options, scope, now, found)?;
    let (mut is_changed, mut is_salvaged) = (false, false);
    if !result.mended.is_empty() {
        let is_ours = claimed.confirm();
        is_ours.map_err(|why| CheckError::Io(why.into()))?;
        let salvaged = crate::replay::salvage_in_place(overlay.base()).map_err(CheckError::Io)?;
        is_salvaged = salvaged.is_some();
        let is_written = write::write_out(&overlay, &found.volume, &result.taken, options.threads);
        is_changed = is_written.map_err(CheckError::Io)? || is_salvaged;
    }
    let left = result.left.into_values().collect();
    Ok(Repaired {
        mended: result.mended,
        left,
        report: found.report,
        is_changed,
        is_replayed: is_replayed || is_salvaged,
    })
}

/// Makes the block of multi-mount protection say that no host has the file system, also if only a
/// backup of the superblock is sound. Returns whether there is such a block. The user must know
/// that no host has the file system, and that no check of it runs.
///
/// # Errors
/// As [`check`](crate::check); `Io` also if the device cannot be written.
pub fn clear_mmp(device: &dyn BlockDevice) -> Result<bool, CheckError> {
    let sb = crate::open::superblock(device, &mut Findings::new(0))?;
    mmp::clear(device, &sb).map_err(|why| CheckError::Io(why.into()))?;
    Ok(sb.mmp_block().is_some())
}

/// Keeps other hosts away from a file system that may be damaged. Without a sound superblock, and
/// with a block of multi-mount protection that is damaged or part of other metadata, there is
/// nothing to claim.
fn claim(device: Arc<dyn BlockDevice>) -> io::Result<Claimed> {
    let mut findings = Findings::new(0);
    let Ok(sb) = crate::open::superblock(&*device, &mut findings) else {
        return Ok(Claimed::without(device));
    };
    let is_in_table = |block| {
        let volume = crate::pass0::load(Arc::clone(&device), sb.clone(), &mut findings);
        volume.has_table_at(block)
    };
    if sb.mmp_block().is_some_and(is_in_table) {
        return Ok(Claimed::without(device));
    }
    let claimed = match Claimed::take(Arc::clone(&device), &sb) {
        // Another host may have been writing the block just then.
        Err(ClaimError::Corrupt(_)) => Claimed::take(Arc::clone(&device), &sb),
        claimed => claimed,
    };
    match claimed {
        Err(ClaimError::Corrupt(_)) => Ok(Claimed::without(device)),
        claimed => Ok(claimed?),
    }
}

fn seconds_now() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
    })
}

/// The rounds of one repair.
struct Rounds {
    overlay: Arc<Overlay>,
    mended: Vec<Finding>,
    left: BTreeMap<String, (Finding, String)>,
    /// How often each finding was patched.
    tries: BTreeMap<String, u32>,
    /// Blocks that were free before.
    taken: Vec<std::ops::Range<u64>>,
    /// Directories that lost their index.
    unindexed: BTreeSet<InodeNr>,
    /// What the checks know of inodes and directories that no patch has changed since.
    memory: Memory,
}

impl Rounds {
    fn new(overlay: &Arc<Overlay>, memory: Memory) -> Self {
        Self {
            overlay: Arc::clone(overlay),
            mended: Vec::new(),
            left: BTreeMap::new(),
            tries: BTreeMap::new(),
            taken: Vec::new(),
            unindexed: BTreeSet::new(),
            memory,
        }
    }

    /// Replays what is intact of a damaged log, in memory. On the device that is done before all
    /// other writes, in an order of its own.
    fn salvage_log(&mut self) -> io::Result<()> {
        let device: Arc<dyn BlockDevice> = Arc::<Overlay>::clone(&self.overlay);
        self.mended
            .extend(crate::replay::salvage_in_place(&device)?);
        Ok(())
    }

    /// Restores fields of the superblock that backups or inodes contradict.
    fn restore_fields(&mut self) -> io::Result<()> {
        if let Some((raw, names)) = vote::outvoted(&*self.overlay) {
            let why = format!("two backups agree against {}", names.join(", "));
            self.restore_superblock(raw, why)?;
        }
        if let Some(raw) = vote::group_length(&*self.overlay) {
            let why = "a backup lies where s_blocks_per_group does not expect it";
            self.restore_superblock(raw, why.into())?;
        }
        let device: Arc<dyn BlockDevice> = Arc::<Overlay>::clone(&self.overlay);
        if let Some((raw, witness)) = vote::first_inode(device) {
            let why = format!("inode {witness} is in use, which s_first_ino would not allow");
            self.restore_superblock(raw, why)?;
        }
        Ok(())
    }

    fn restore_superblock(&mut self, mut raw: RawSuperblock, why: String) -> io::Result<()> {
        if raw.features().ro_compat.contains(RoCompat::METADATA_CSUM) {
            raw.seal();
        }
        self.overlay
            .write_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)?;
        self.mended.push(Finding::SuperblockField { why });
        Ok(())
    }

    /// Restores places of bitmaps and inode tables that backups know better.
    fn restore_places(&mut self) -> io::Result<()> {
        let device: Arc<dyn BlockDevice> = Arc::<Overlay>::clone(&self.overlay);
        for outvoted in places::outvoted(device) {
            self.overlay.write_at(&outvoted.bytes, outvoted.at)?;
            self.mended.push(outvoted.finding);
        }
        Ok(())
    }

    /// Checks and patches until nothing is left that can be patched; returns the last check.
    fn run(
        &mut self,
        options: &CheckOptions,
        scope: Scope,
        now: u32,
    ) -> Result<Examined, CheckError> {
        let mut rounds = 0;
        let mut must_be_whole = scope == Scope::Safe;
        loop {
            let found = self.check(options, must_be_whole)?;
            self.left.clear();
            let all = found.report.findings();
            let is_stuck = all.iter().any(is_stop);
            let is_allowed = scope == Scope::Everything || all.iter().all(rules::is_safe);
            if is_stuck && !found.is_whole {
                must_be_whole = true;
                continue;
            }
            if is_stuck || !is_allowed || rounds == MOST_ROUNDS {
                self.leave(all, is_stuck, is_allowed);
                return Ok(found);
            }
            let is_patched = self.round(&found, now);
            if !is_patched && found.is_whole {
                return Ok(found);
            }
            rounds += 1;
            must_be_whole = scope == Scope::Safe || !is_patched || rounds == MOST_ROUNDS;
        }
    }

    /// Checks the image with the patches. Inodes that no patch has changed since the last check are
    /// not read again.
    fn check(
        &mut self,
        options: &CheckOptions,
        must_be_whole: bool,
    ) -> Result<Examined, CheckError> {
        let device: Arc<dyn BlockDevice> = Arc::<Overlay>::clone(&self.overlay);
        let mut memory = std::mem::take(&mut self.memory);
        memory.forget(self.overlay.take_written());
        let is_enough =
            |found: &[Finding]| !must_be_whole && found.iter().any(|f| self.is_due_early(f));
        let found = crate::examine(Arc::clone(&device), options, Some(&mut memory), &is_enough)?;
        if cfg!(debug_assertions) {
            let afresh = crate::examine(device, options, None, &is_enough)?;
            assert_same(&found, &afresh);
        }
        self.memory = memory;
        Ok(found)
    }

    /// Whether a finding is patched before the directories are looked at, so that what a check
    /// finds in them now is not used.
    fn is_due_early(&self, finding: &Finding) -> bool {
        let has_tries = || {
            let tries = self.tries.get(&finding.to_string());
            tries.is_none_or(|&tries| tries < MOST_TRIES)
        };
        rules::stage(finding) <= Stage::Shared && has_tries()
    }

    /// Patches the first stage of what a check found that can be patched; returns whether there was
    /// one. The stages that only compute sums of all others are patched in one round, and so is the
    /// tree with directories of which no entry comes back.
    fn round(&mut self, found: &Examined, now: u32) -> bool {
        let overlay = Arc::clone(&self.overlay);
        let editor = Editor::new(found, &overlay, now);
        let all = found.report.findings();
        let mut stages: Vec<Stage> = all.iter().map(rules::stage).collect();
        stages.sort_unstable();
        stages.dedup();
        let before = self.mended.len();
        let mut first = None;
        for stage in stages {
            if first.is_some_and(|first| !rules::may_go_on(first, stage, all)) {
                break;
            }
            self.patch(&editor, all, stage);
            if self.mended.len() > before {
                first.get_or_insert(stage);
            }
        }
        self.taken.extend(editor.taken());
        self.unindexed.extend(editor.unindexed());
        self.mended.len() > before
    }

    /// Gives directories that lost their index a new one, when nothing else is left. If that leads
    /// to anything but new counts and bitmaps, they stay without.
    fn index_again(
        &mut self,
        options: &CheckOptions,
        scope: Scope,
        now: u32,
        found: Examined,
    ) -> Result<Examined, CheckError> {
        if self.unindexed.is_empty() || !self.left.is_empty() || !found.report.is_clean() {
            return Ok(found);
        }
        let saved = self.overlay.saved();
        let (mended, taken) = (self.mended.len(), self.taken.len());
        let mut is_changed = false;
        {
            let editor = Editor::new(&found, &self.overlay, now);
            for dir in std::mem::take(&mut self.unindexed) {
                // One that fails has its old blocks.
                is_changed |= matches!(editor.index(dir), Ok(true));
            }
            self.taken.extend(editor.taken());
        }
        if !is_changed {
            return Ok(found);
        }
        self.tries.clear();
        let again = self.run(options, scope, now)?;
        let is_indexed = self.mended.split_off(mended).iter().all(is_sum)
            && again.report.is_clean()
            && self.left.is_empty();
        if is_indexed {
            return Ok(again);
        }
        self.overlay.restore(saved);
        self.memory = Memory::default();
        self.taken.truncate(taken);
        self.left.clear();
        Ok(found)
    }

    /// Patches the findings of one stage.
    fn patch(&mut self, editor: &Editor<'_>, all: &[Finding], stage: Stage) {
        let mut agenda = Agenda::default();
        let mut failed: Vec<(&Finding, Left)> = Vec::new();
        let mut tried = Vec::new();
        for finding in all.iter().filter(|finding| rules::stage(finding) == stage) {
            let tries = self.tries.entry(finding.to_string()).or_default();
            *tries += 1;
            let outcome = match *tries {
                ..=MOST_TRIES => agenda.patch(editor, finding),
                _ => Err(Left::because("its patch does not last")),
            };
            match outcome {
                Ok(()) => tried.push(finding),
                Err(why) => failed.push((finding, why)),
            }
        }
        failed.extend(agenda.finish(editor));
        let is_mended = |finding: &&&Finding| failed.iter().all(|(other, _)| other != *finding);
        let mended: Vec<Finding> = tried
            .iter()
            .filter(is_mended)
            .map(|f| (*f).clone())
            .collect();
        self.mended.extend(mended);
        for (finding, why) in failed {
            if finding.invariant().severity > Severity::Note {
                self.left
                    .insert(finding.to_string(), (finding.clone(), why.0));
            }
        }
    }

    /// Notes that everything is left that was found. If nothing may be changed, what the rounds
    /// patched is not written either.
    fn leave(&mut self, all: &[Finding], is_stuck: bool, is_allowed: bool) {
        let why = match (is_stuck, is_allowed) {
            (true, _) => "the journal must be replayed first",
            (_, false) => "not safe without being asked; -y repairs it",
            _ => "too many rounds",
        };
        let is_nothing_written = is_stuck || !is_allowed;
        let salvaged = self.mended.iter().filter(|finding| {
            is_nothing_written && matches!(finding, Finding::JournalDamaged { .. })
        });
        for finding in all
            .iter()
            .filter(|f| f.invariant().severity > Severity::Note)
            .chain(salvaged)
        {
            let left = (finding.clone(), why.to_owned());
            self.left.insert(finding.to_string(), left);
        }
        if is_nothing_written {
            self.mended.clear();
        }
    }
}

/// Panics if a check that used what earlier ones remember differs from one that did not. Which of
/// several users of a broken attribute block is named depends on the threads, and so does where the
/// search of blocks that are shared too often ends.
fn assert_same(found: &Examined, afresh: &Examined) {
    let both = [found, afresh];
    if both.map(|checked| {
        checked
            .report
            .counts()
            .contains_key("shared-beyond-measure")
    }) == [false; 2]
    {
        let results = both.map(|checked| {
            (
                checked.is_whole,
                checked.report.tally(),
                checked.report.counts(),
            )
        });
        assert_eq!(results[0], results[1], "a check by memory, and one without");
        let trees = both.map(|checked| checked.tree.nodes());
        let [by_memory, without] = trees;
        assert!(
            by_memory.eq(without),
            "the same tree by memory, and without"
        );
        for nr in 0..=found.volume.geometry().inodes() {
            let [by_memory, without] = both.map(|checked| checked.state.names.get(InodeNr(nr)));
            assert_eq!(by_memory, without, "names of inode {nr}");
        }
    }
}

/// Whether a finding is about a sum of what all else says, so that its patch follows from other
/// changes.
fn is_sum(finding: &Finding) -> bool {
    let pass = finding.invariant().pass.number();
    pass == 5
        || matches!(
            finding,
            Finding::InodeBlocks { .. } | Finding::QuotaUsage { .. }
        )
}

/// Whether a finding forbids every patch: a log that is not replayed would undo them.
fn is_stop(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::JournalNotGiven { .. }
            | Finding::JournalReplayed { .. }
            | Finding::FastCommitsReplayed { .. }
    )
}

#[cfg(test)]
mod tests;
