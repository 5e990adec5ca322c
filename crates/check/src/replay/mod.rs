//! **Purpose.** Gives the file system as recovery of its journal would leave it, so that this is
//! what the passes judge.
//!
//! **Not here.** Repair. Nothing is written to the device, but for [`replay_in_place`] and
//! [`salvage_in_place`], with which a repair begins.
//!
//! **Model.** Transactions of the log hold whole blocks: they are replayed as a block map over the
//! device. Fast commits describe changes of inodes, maps and names instead. They are not replayed
//! by a mount of a copy, because then the verdict would rest on the allocator, the directory code
//! and the orphan processing that the checker is to judge. This module applies them itself, and
//! writes only what has one right place and one right form:
//! ```text
//! changed        where                      why
//! inodes         copy of the device         their place in the table is fixed
//! bitmaps        copy of the device         records name the blocks and inodes in use
//! maps           Changes::maps, in memory   a tree would need nodes: many right forms
//! names          Changes::dirs, in memory   entries would need blocks, leaves and splits
//! ```
//! The walk of a map lays the edits over the extents of the tree, and pass 2 lays the names over
//! the entries of the blocks. So the trees and directory blocks on the device are checked as they
//! are, faults before the replay stay visible, and nothing is allocated.
//!
//! An inode that the fast commits delete is an orphan, as those of the orphan list are: the next
//! mount frees it. Quota files are not in fast commits: they count what changed inodes had before
//! ([`Charged`]).
//!
//! | module | responsibility |
//! |---|---|
//! | `log` | finds the log; the block map of its transactions |
//! | `records` | applies the records of fast commits |
//! | `edits` | changed ranges of a map |
//! | `names` | changed names, and the names on the device |
//! | `image` | the bytes of a changed inode |
//! | `clusters` | what the map of an inode holds |
//! | `write` | the copy of the device: inodes, and what their maps gain and lose |
//! | `bitmaps` | the copy of the device: bitmaps and descriptors |
//!
//! **References.** Kernel `fs/ext4/fast_commit.c`; `docs/FINDINGS.md` for where Linux and e2fsck
//! differ.

mod bitmaps;
mod clusters;
mod edits;
mod image;
mod log;
mod names;
mod records;
mod write;

use std::collections::{HashMap, HashSet};

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::superblock::{
    SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, State as SuperState,
};
use fourscore_ondisk::{InodeNr, RawSuperblock, Superblock};
use fourscore_sync::Arc;
use std::io;
use zerocopy::{FromBytes, IntoBytes};

use crate::finding::Finding;
use crate::pass0;
use crate::pass1::orphans;
use crate::report::Findings;
use crate::volume::Volume;
use fourscore_ondisk::quota::QuotaIds;

pub(crate) use edits::MapEdits;
pub(crate) use log::FoundBy;
pub(crate) use names::{Change, DirChanges};

/// What fast commits change and the device does not show.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Maps that differ from the tree on the device.
    pub(crate) maps: HashMap<InodeNr, MapEdits>,
    /// Directories whose names differ from their blocks.
    pub(crate) dirs: HashMap<InodeNr, DirChanges>,
    /// What quota files count of changed inodes: `None` of new ones.
    pub(crate) charged: HashMap<InodeNr, Option<Charged>>,
}

impl Changes {
    /// Whether nothing differs from the device.
    pub(crate) fn is_empty(&self) -> bool {
        self.maps.is_empty() && self.dirs.is_empty() && self.charged.is_empty()
    }

    /// The parent of a directory that fast commits made outside of its inode: it has no block.
    pub(crate) fn made_in(&self, dir: InodeNr) -> Option<InodeNr> {
        self.dirs.get(&dir)?.made_in
    }
}

/// What quota files count of an inode that fast commits changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    pub(crate) owner: QuotaIds,
    pub(crate) bytes: u64,
}

/// The file system after recovery.
pub(crate) struct Replayed {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) found_by: FoundBy,
    /// That not all of the log is replayed, if so.
    pub(crate) damage: Option<Finding>,
    /// What fast commits change beside the device, if there are any.
    pub(crate) fast_commits: Option<FastCommitted>,
}

/// What fast commits change beside the device.
#[derive(Debug)]
pub(crate) struct FastCommitted {
    pub(crate) changes: Changes,
    /// The inodes of the orphan list and of the orphan file, and those that were deleted.
    pub(crate) orphans: HashSet<InodeNr>,
}

/// Replays the journal of the file system on `device`. `external` is the device of an external
/// journal.
///
/// # Errors
/// Says why the journal cannot be replayed. Nothing is added to `findings` then.
pub(crate) fn replay(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    external: Option<&Arc<dyn BlockDevice>>,
    findings: &mut Findings,
) -> Result<Replayed, String> {
    let unreplayed = quietly_loaded(Arc::clone(device), sb);
    let replayed = log::replay(&unreplayed, external)?;
    let mut result = Replayed {
        device: replayed.device,
        found_by: replayed.found_by,
        damage: replayed.damage,
        fast_commits: None,
    };
    if replayed.fast_commits.is_empty() {
        return Ok(result);
    }
    let sb = crate::open::primary(&*result.device).map_err(|error| error.to_string())?;
    let before = quietly_loaded(Arc::clone(&result.device), &sb);
    let mut found = Findings::new(findings.limit());
    let orphans = orphans::collect(&before, &mut found);
    let outcome = records::apply(&replayed.fast_commits, &before, &orphans);
    let outcome = outcome.map_err(|error| error.to_string())?;
    let written = write::write(&before, orphans, outcome);
    let (after, orphans) = written.map_err(|error| error.to_string())?;
    findings.merge(found);
    result.device = after.device;
    result.fast_commits = Some(FastCommitted {
        changes: after.changes,
        orphans,
    });
    Ok(result)
}

/// Replays the log of the file system on `device` there, and clears the flag that it is due.
/// Returns whether it did. A log that cannot be replayed is left to the check, and one with damage
/// that no crash explains to [`salvage_in_place`]. Fast commits are left as well: they describe
/// changes of maps and names, which only a mount carries out.
///
/// # Errors
/// The device cannot be written.
pub(crate) fn replay_in_place(
    device: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
) -> io::Result<bool> {
    let Some(volume) = due(device) else {
        return Ok(false);
    };
    if log::replay_in_place(&volume, external).is_err() {
        return Ok(false);
    }
    change_superblock(device, clear_recover)?;
    Ok(true)
}

/// Replays what is intact of a log that has damage that no crash explains, on `device`. Returns the
/// finding about the damage; `None` if there is none, or if the log is on another device.
///
/// # Crash safety
/// The copies are durable first, then the state that the file system has errors, then the empty
/// log. So a crash leaves a log that can be salvaged again, or a file system that must be checked.
///
/// # Errors
/// The device cannot be written.
pub(crate) fn salvage_in_place(device: &Arc<dyn BlockDevice>) -> io::Result<Option<Finding>> {
    let Some(volume) = due(device) else {
        return Ok(None);
    };
    let has_errors = |raw: &mut RawSuperblock| {
        let state = SuperState::from_bits_retain(raw.s_state.get()) | SuperState::ERROR_FS;
        raw.s_state = state.bits().into();
    };
    let salvaged = log::salvage_in_place(&volume, || change_superblock(device, has_errors));
    let finding = salvaged.map_err(io::Error::other)?;
    if finding.is_some() {
        change_superblock(device, clear_recover)?;
    }
    Ok(finding)
}

/// The file system of `device`, if its log has to be replayed.
fn due(device: &Arc<dyn BlockDevice>) -> Option<Volume> {
    let sb = crate::open::primary(&**device).ok()?;
    let is_due = sb.features().incompat.contains(Incompat::RECOVER);
    let is_whole = device.len_bytes() >= sb.geometry().size_bytes();
    (is_due && is_whole).then(|| quietly_loaded(Arc::clone(device), &sb))
}

fn clear_recover(raw: &mut RawSuperblock) {
    let features = raw.s_feature_incompat.get() & !Incompat::RECOVER.bits();
    raw.s_feature_incompat = features.into();
}

/// Changes the primary superblock of `device`; durable when the call returns.
fn change_superblock(
    device: &Arc<dyn BlockDevice>,
    change: impl FnOnce(&mut RawSuperblock),
) -> io::Result<()> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    if let Ok(raw) = RawSuperblock::mut_from_bytes(&mut bytes) {
        change(raw);
        if raw.features().ro_compat.contains(RoCompat::METADATA_CSUM) {
            raw.seal();
        }
        device.write_at(raw.as_bytes(), SUPERBLOCK_OFFSET_BYTES)?;
    }
    device.flush()
}

/// The file system of a device, of which pass 0 reports the faults later.
fn quietly_loaded(device: Arc<dyn BlockDevice>, sb: &Superblock) -> Volume {
    pass0::load(device, sb.clone(), &mut Findings::new(0))
}
