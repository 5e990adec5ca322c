//! **Purpose.** Switches features that concern more than the superblock: checksums of metadata, the
//! journal, quota files, the orphan file, multi-mount protection, indexes of directories; and
//! changes the UUID where checksums depend on it, or hashes of values.
//!
//! **Not here.** Changes of the superblock alone (`fourscore_mkfs::tune`), which the caller passes
//! as the last part of the change.
//!
//! **Model.** The file system must be clean. A change is one or more steps. Each step is an overlay
//! in memory over the previous one:
//! ```text
//!   image <- forget (superblock) <- clear inodes <- indexes <- add files <- checksums
//!         -> check -> write
//! ```
//! Sums that follow from the steps (bitmaps, free counts, `i_blocks`, usage in quota files) are
//! patched by the rules of repair. Then the result is checked as a whole. Only a result without
//! errors is written, step by step, each in the order of `write`.
//!
//! | module | responsibility |
//! |---|---|
//! | `plan` | which steps the wished changes take |
//! | `checksums` | computes all checksums again, for other features or another UUID |
//! | `files` | adds and removes the files that belong to features |
//! | `index` | makes indexed directories linear |
//!
//! **Invariants.** No byte of the image is written before all steps are computed and the result is
//! checked, but for the block that keeps other hosts away (feature `mmp`), which is as before at
//! the end. A result with an error is a refusal.
//!
//! **Crash safety.** From the first write to the last one the superblock says that the file system
//! has errors, so it is checked before it is used. Between two steps the file system is valid but
//! for sums and limits of index blocks. A step ends with the superblock, which alone decides what
//! the features are:
//!
//! - Checksums are computed while the file system has none: without `metadata_csum`, their fields
//!   are not looked at. So a new UUID takes the feature away first, and gives it back last. Only
//!   descriptors change the kind of their checksums shortly before the superblock does: in
//!   between, the kernel refuses to mount it, and a check computes them again.
//! - A file that is removed is forgotten by the superblock in a step before its inode is cleared.
//! - A file that is added is written before the superblock names it. Until then its inode is
//!   one that the check clears.
//!
//! Memory: a copy of each block of metadata that changes; with checksums, of all metadata.

mod checksums;
mod files;
mod index;
mod plan;

use std::io;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_block::mmp::{ClaimError, Claimed};
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::quota::QuotaKind;
use fourscore_ondisk::superblock::{
    SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, State as SuperState,
};
use fourscore_ondisk::{PhysBlock, RawSuperblock, Superblock};
use fourscore_sync::Arc;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::editor::{Editor, Left};
use super::overlay::Overlay;
use super::{Rounds, Scope, is_sum, seconds_now, write};
use crate::finding::{Finding, Severity};
use crate::{CheckError, CheckOptions, Examined};
use plan::Step;

/// Whether a feature is switched on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// It is switched on.
    On,
    /// It is switched off.
    Off,
}

/// A change. One that is there already changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Checksums of all metadata. Without them, descriptors keep a checksum (`uninit_bg`), as
    /// tune2fs does it.
    MetadataCsum(Switch),
    /// Checksums of descriptors alone. Does nothing with `metadata_csum`, which has them.
    UninitBg(Switch),
    /// The UUID, if checksums depend on it, or hashes of values may (`ea_inode`); else it is not
    /// changed here.
    Uuid(Uuid),
    /// A journal inside the file system.
    AddJournal(NewJournal),
    /// The file system gets no journal, and loses the one inside it.
    RemoveJournal,
    /// Quota of one kind; that of projects with the feature `project`.
    Quota {
        /// Whose quota.
        kind: QuotaKind,
        /// Whether there is a file for it.
        switch: Switch,
    },
    /// The orphan file.
    OrphanFile(Switch),
    /// Multi-mount protection.
    Mmp(Switch),
    /// The inode that reserves blocks for descriptors; it can only be given up.
    RemoveResizeInode,
    /// Indexed directories become linear ones, and none gets an index any more.
    RemoveDirIndex,
}

/// A new journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewJournal {
    /// Blocks of the log.
    pub log_blocks: u64,
    /// Blocks behind it for fast commits.
    pub fast_commit_blocks: u64,
    /// Where it is placed if there is space; else, and without a goal, in the middle.
    pub goal: Option<PhysBlock>,
}

/// Why features are not switched. But for `Io` while it is written, the image is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError<E> {
    /// The file system cannot be read.
    #[error("{0}")]
    Check(#[from] CheckError),
    /// It is in use, was left by a crash, or has errors.
    #[error("{0}")]
    NotAtRest(String),
    /// A change that is not possible, and why.
    #[error("{what}: {why}")]
    Impossible {
        /// The option or feature.
        what: &'static str,
        /// Why, and what would help.
        why: String,
    },
    /// The last part of the change, that of the caller, failed.
    #[error("{0}")]
    Rest(E),
    /// The device failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl<E> From<ClaimError> for ConvertError<E> {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::InUse(_) | ClaimError::Corrupt(_) | ClaimError::Unsupported(_) => {
                Self::NotAtRest(error.to_string())
            }
            ClaimError::Io(error) => Self::Io(error),
        }
    }
}

/// Makes the changes on `device`, which nothing else of this host may be writing, and `rest` after
/// them: it changes the superblock and its backups on the device that it gets. When the call
/// returns, all is durable. Without a change that concerns more than the superblock, `rest` gets
/// the device without a layer over it, and nothing is checked. With the feature `mmp` other hosts
/// are kept away meanwhile; if one of them did not release the file system, this waits for some
/// twenty seconds.
///
/// # Errors
/// As above. A crash while it is written leaves a file system that is marked as having errors, and
/// that a check repairs: see the module.
pub fn convert<E>(
    device: Arc<dyn BlockDevice>,
    options: &CheckOptions,
    changes: &[Change],
    rest: &mut dyn FnMut(&dyn BlockDevice) -> Result<(), E>,
) -> Result<(), ConvertError<E>> {
    let sb = crate::open::primary(&*device)?;
    let steps = plan::steps(&sb, changes);
    let steps = steps.map_err(|(what, why)| ConvertError::Impossible { what, why })?;
    if !steps.is_empty() {
        refuse_if_not_at_rest(&sb).map_err(ConvertError::NotAtRest)?;
    }
    let claimed = Claimed::take(device, &sb)?;
    let made = match steps.is_empty() {
        true => rest(&**claimed.device()).map_err(ConvertError::Rest),
        false => make(&claimed, options, &steps, rest),
    };
    let released = claimed.release();
    made?;
    Ok(released?)
}

/// Makes the changes of steps on a claimed file system.
fn make<E>(
    claimed: &Claimed,
    options: &CheckOptions,
    steps: &[Step],
    rest: &mut dyn FnMut(&dyn BlockDevice) -> Result<(), E>,
) -> Result<(), ConvertError<E>> {
    let state = crate::open::primary(&**claimed.device())?.state();
    let mut layers = Layers {
        claimed,
        options: CheckOptions {
            most_of_a_code: u64::MAX,
            ..options.clone()
        },
        now: seconds_now(),
        done: Vec::new(),
    };
    for step in steps {
        layers.add(step)?;
    }
    layers.finish(state, rest)
}

/// Refuses what a crash has left, and what was not unmounted.
fn refuse_if_not_at_rest(sb: &Superblock) -> Result<(), String> {
    let features = sb.features();
    let refused = |why: &str| Err(why.to_owned());
    if features.incompat.contains(Incompat::RECOVER) {
        return refused("its journal needs recovery: mount it once, or run e2fsck -p");
    }
    if features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) || sb.last_orphan().is_some() {
        return refused(
            "it has files whose deletion a crash interrupted: mount it once, or run e2fsck -p",
        );
    }
    if !sb.state().contains(SuperState::VALID_FS) || sb.state().contains(SuperState::ERROR_FS) {
        return refused("it was not unmounted, or has errors: repair it first (check -y)");
    }
    Ok(())
}

/// One step in memory.
struct Layer {
    overlay: Arc<Overlay>,
    /// Blocks that nothing referred to before.
    taken: Ranges,
    /// Bytes that are zeroed when the step is written, and that nothing refers to before.
    zeroed: Ranges,
}

/// Ranges of bytes of the device.
pub(super) type Ranges = Vec<Range<u64>>;

/// The steps that are computed.
struct Layers<'c> {
    claimed: &'c Claimed,
    options: CheckOptions,
    now: u32,
    done: Vec<Layer>,
}

impl Layers<'_> {
    /// Computes a step over those before it.
    fn add<E>(&mut self, step: &Step) -> Result<(), ConvertError<E>> {
        let below: Arc<dyn BlockDevice> = match self.done.last() {
            Some(layer) => Arc::<Overlay>::clone(&layer.overlay),
            None => Arc::clone(self.claimed.device()),
        };
        let overlay = Arc::new(Overlay::new(below));
        let found = self.examine(&overlay)?;
        let error = first_error(&found);
        if let (true, Some(error)) = (self.done.is_empty(), error) {
            let why = format!("it has errors ({error}): repair it first (check -y)");
            return Err(ConvertError::NotAtRest(why));
        }
        let editor = Editor::new(&found, &overlay, self.now);
        let left = |Left(why)| ConvertError::Impossible {
            what: step.option(),
            why,
        };
        let zeroed = step.apply(&editor).map_err(left)?;
        set_state(&overlay, found.volume.sb.state() | SuperState::ERROR_FS)?;
        let taken = editor.taken();
        self.done.push(Layer {
            overlay,
            taken,
            zeroed,
        });
        Ok(())
    }

    fn examine(&self, overlay: &Arc<Overlay>) -> Result<Examined, CheckError> {
        let device: Arc<dyn BlockDevice> = Arc::<Overlay>::clone(overlay);
        crate::examine(device, &self.options, None, &|_| false)
    }

    /// Completes the last step with the rest and with what follows from all steps, and writes them.
    fn finish<E>(
        mut self,
        state: SuperState,
        rest: &mut dyn FnMut(&dyn BlockDevice) -> Result<(), E>,
    ) -> Result<(), ConvertError<E>> {
        let Some(last) = self.done.last() else {
            return Ok(());
        };
        let overlay = Arc::clone(&last.overlay);
        set_state(&overlay, state)?;
        rest(&*overlay).map_err(ConvertError::Rest)?;
        let mut rounds = Rounds::new(&overlay, crate::memory::Memory::default());
        let found = rounds.run(&self.options, Scope::Everything, self.now)?;
        let strange = rounds.mended.iter().find(|finding| !follows(finding));
        if let Some(finding) = strange.or_else(|| first_error(&found)) {
            return Err(ConvertError::Impossible {
                what: "the result",
                why: format!("has an error ({finding}), so nothing was written"),
            });
        }
        let backups = Editor::new(&found, &overlay, self.now).write_backups();
        backups.map_err(|Left(why)| ConvertError::Impossible {
            what: "the backups",
            why,
        })?;
        if let Some(last) = self.done.last_mut() {
            last.taken.append(&mut rounds.taken);
        }
        self.claimed.confirm()?;
        for layer in &self.done {
            self.write(layer, &found)?;
        }
        Ok(())
    }

    fn write(&self, layer: &Layer, result: &Examined) -> io::Result<()> {
        let device = &**self.claimed.device();
        let mut superblock = [0; SUPERBLOCK_SIZE_BYTES];
        layer
            .overlay
            .read_at(&mut superblock, SUPERBLOCK_OFFSET_BYTES)?;
        write::mark_errors(device, &superblock)?;
        for range in &layer.zeroed {
            device.write_zeroes(range.clone())?;
        }
        device.flush()?;
        let threads = self.options.threads;
        write::write_to(
            device,
            &layer.overlay,
            &result.volume,
            &layer.taken,
            threads,
        )?;
        Ok(())
    }
}

/// Sets the state of the superblock.
fn set_state(overlay: &Overlay, state: SuperState) -> io::Result<()> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    overlay.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    let Ok(raw) = RawSuperblock::mut_from_bytes(&mut bytes) else {
        return Ok(());
    };
    raw.s_state = state.bits().into();
    if raw.features().ro_compat.contains(RoCompat::METADATA_CSUM) {
        raw.seal();
    }
    overlay.write_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)
}

/// Whether a finding follows from the changes, so that its patch belongs to them.
fn follows(finding: &Finding) -> bool {
    let is_expected = matches!(
        finding,
        Finding::BackupSuperblock { .. }
            | Finding::BackupDescriptors { .. }
            | Finding::LargeFile { .. }
            | Finding::QuotaFile { .. }
    );
    is_sum(finding) || is_expected || finding.invariant().severity < Severity::Error
}

fn first_error(found: &Examined) -> Option<&Finding> {
    let all = found.report.findings().iter();
    let mut errors = all.filter(|finding| finding.invariant().severity == Severity::Error);
    errors.next()
}
