//! **Purpose.** Finds the log of a file system and replays its transactions as a block map: each
//! block that recovery would write reads as its copy in the log.
//!
//! **Model.** The log is found through its inode. Where that cannot be used, the copy of the inode
//! in the superblock (`s_jnl_blocks`) is tried, as in e2fsck. An external journal is a device that
//! the caller gives.
//!
//! A log whose damage no crash explains is not replayed as it is: what is intact of it can be
//! salvaged, as e2fsck does. Fast commits behind it are given up then, since they continue a state
//! that cannot be restored.

use fourscore_block::BlockDevice;
use fourscore_journal::{
    Error, FastCommits, JournalMap, JournalRun, Log, Recovered, recover, replay_salvaged, salvage,
};
use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::inode::{FileType, Inode};
use fourscore_ondisk::jbd2::{JournalBlock, JournalError};
use fourscore_ondisk::superblock::JournalPlace;
use fourscore_ondisk::{InodeNr, PhysBlock};
use fourscore_sync::Arc;
use std::io;
use std::ops::Range;

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::volume::Volume;
use crate::walk::{Role, Sink, Walker};

/// What the log holds.
pub(super) struct Replayed {
    /// The device as it reads after the transactions are replayed.
    pub(super) device: Arc<dyn BlockDevice>,
    /// The fast commits that follow the transactions.
    pub(super) fast_commits: FastCommits,
    /// That not all of the log is replayed, if so.
    pub(super) damage: Option<Finding>,
    pub(super) found_by: FoundBy,
}

/// How the log was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// By its inode, or on a device of its own.
    Inode,
    /// By the copy of its inode in the superblock.
    Copy,
}

/// Replays the log of `volume`, whose device is as it was found. `external` is the device of an
/// external journal.
///
/// # Errors
/// Says why there is no log that could be recovered.
pub(super) fn replay(
    volume: &Volume,
    external: Option<&Arc<dyn BlockDevice>>,
) -> Result<Replayed, String> {
    let (log, found_by) = find(volume, external)?;
    let text = |error: Error| error.to_string();
    let recovered = recovered(&log, volume).map_err(text)?;
    let damage = damage(&recovered);
    let is_salvaged = matches!(damage, Some(Finding::JournalDamaged { .. }));
    let inode_bytes = volume.geometry().inode_size_bytes();
    // As for the kernel, fast commits count only behind a log that is not empty.
    let fast_commits = match log.superblock().start() {
        Some(_) if !is_salvaged => {
            FastCommits::read(&log, recovered.end_tid(), inode_bytes).map_err(text)?
        }
        _ => FastCommits::default(),
    };
    let base = Arc::clone(&volume.device);
    let device: Arc<dyn BlockDevice> = if recovered.copies().is_empty() {
        base
    } else {
        Arc::new(recovered.overlay(&log, base).map_err(text)?)
    };
    Ok(Replayed {
        device,
        fast_commits,
        damage,
        found_by,
    })
}

/// What recovery replays of a log, or, if it has damage that no crash explains, what is intact.
fn recovered(log: &Log, volume: &Volume) -> Result<Recovered, Error> {
    let blocks = volume.geometry().blocks();
    match recover(log, blocks) {
        Ok(recovered) if recovered.check_writable().is_ok() => Ok(recovered),
        Ok(_) | Err(Error::Corrupt(JournalError::Damaged { .. })) => salvage(log, blocks),
        Err(error) => Err(error),
    }
}

/// The finding about what is not replayed.
fn damage(recovered: &Recovered) -> Option<Finding> {
    let (tid, damage) = recovered.damage()?;
    if recovered.check_writable().is_ok() {
        let why = format!("transaction {tid}, the last one, was left out: {damage}");
        return Some(Finding::JournalTail { why });
    }
    let why = match recovered.skipped() {
        0 => format!("transaction {tid} is damaged: {damage}; the log is used up to it"),
        1 => format!("transaction {tid} is damaged: {damage}; all but this copy is used"),
        skipped => {
            format!("transaction {tid} is damaged: {damage}; all but {skipped} copies are used")
        }
    };
    Some(Finding::JournalDamaged { why })
}

/// Replays the log of `volume` on its device, and marks the log as empty. Fast commits in it are
/// lost.
///
/// # Errors
/// Says why there is no log that could be replayed, or that [`salvage_in_place`] has to do it.
pub(super) fn replay_in_place(
    volume: &Volume,
    external: Option<&Arc<dyn BlockDevice>>,
) -> Result<(), String> {
    let (mut log, _) = find(volume, external)?;
    let text = |error: Error| error.to_string();
    let recovered = recover(&log, volume.geometry().blocks()).map_err(text)?;
    recovered.check_writable().map_err(|why| why.to_string())?;
    fourscore_journal::replay(&mut log, &recovered, &volume.device).map_err(text)
}

/// Replays what is intact of the log of `volume` on its device, if it has damage that no crash
/// explains, and marks the log as empty; `mark` is called before. Returns the finding about the
/// damage. A log on another device is left alone.
///
/// # Errors
/// The device fails.
pub(super) fn salvage_in_place(
    volume: &Volume,
    mark: impl FnOnce() -> io::Result<()>,
) -> Result<Option<Finding>, Error> {
    let Ok((mut log, _)) = find(volume, None) else {
        return Ok(None);
    };
    let Ok(recovered) = recovered(&log, volume) else {
        return Ok(None);
    };
    match damage(&recovered) {
        Some(finding @ Finding::JournalDamaged { .. }) => {
            replay_salvaged(&mut log, &recovered, &volume.device, mark)?;
            Ok(Some(finding))
        }
        _ => Ok(None),
    }
}

fn find(
    volume: &Volume,
    external: Option<&Arc<dyn BlockDevice>>,
) -> Result<(Log, FoundBy), String> {
    match volume.sb.journal() {
        None => Err("needs_recovery is set, but there is no journal".to_owned()),
        Some(JournalPlace::Device { uuid, .. }) => {
            let device = external.ok_or("the device of the journal was not given")?;
            let size = volume.geometry().block_size();
            let log = Log::open_external(Arc::clone(device), uuid, size);
            Ok((log.map_err(|error| error.to_string())?, FoundBy::Inode))
        }
        Some(JournalPlace::Inode(number)) => {
            let mut bytes = Vec::new();
            let read = volume.read_inode(number, &mut bytes);
            let read = read.ok_or_else(|| format!("inode {number} cannot be read"));
            let error = match read.and_then(|()| internal(volume, number, &bytes)) {
                Ok(log) => return Ok((log, FoundBy::Inode)),
                Err(error) => error,
            };
            let copy = volume.sb.journal_inode_copy();
            let log = copy.and_then(|(number, bytes)| internal(volume, number, &bytes).ok());
            log.map(|log| (log, FoundBy::Copy)).ok_or(error)
        }
    }
}

/// The log inside the file system whose inode is `bytes`.
fn internal(volume: &Volume, number: InodeNr, bytes: &[u8]) -> Result<Log, String> {
    let in_inode = |error: String| format!("inode {number}: {error}");
    let inode = Inode::parse(bytes, number, &volume.sb);
    let inode = inode.map_err(|error| in_inode(error.to_string()))?;
    if inode.file_type() != Some(FileType::Regular) || inode.links_count() == 0 {
        return Err(in_inode("not a regular file in use".to_owned()));
    }
    let view = InodeView::new(bytes, number).ok_or_else(|| in_inode("too short".to_owned()))?;
    let mut runs = JournalRuns::default();
    Walker::new(volume).follow(&view, &mut runs);
    if let Some(fault) = runs.fault {
        return Err(in_inode(fault));
    }
    let map = JournalMap::from_runs(runs.runs, volume.geometry().blocks());
    let map = map.map_err(|error| in_inode(error.to_string()))?;
    let log = Log::open(
        Arc::clone(&volume.device),
        volume.geometry().block_size(),
        map,
    );
    log.map_err(|error| error.to_string())
}

/// Gathers the map of the journal's inode, and the first fault of it.
#[derive(Debug, Default)]
struct JournalRuns {
    runs: Vec<JournalRun>,
    fault: Option<String>,
}

impl Sink for JournalRuns {
    fn claim(&mut self, _run: Range<PhysBlock>, _role: Role) {}

    fn wants_content(&self, _inode: &InodeView<'_>) -> bool {
        true
    }

    fn content(&mut self, logical: u64, run: Range<PhysBlock>, _state: ExtentState) {
        self.runs.push(JournalRun {
            journal_block: JournalBlock(u32::try_from(logical).unwrap_or(u32::MAX)),
            block: run.start,
            blocks: u32::try_from(run.end.0 - run.start.0).unwrap_or(u32::MAX),
        });
    }

    fn fault(&mut self, finding: Finding) {
        self.fault.get_or_insert_with(|| finding.to_string());
    }
}
