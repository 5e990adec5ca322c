//! **Purpose.** Replays a dirty journal in memory, so that a crashed file system can be read.
//!
//! **Model.** The journal's blocks are found through its inode, or on an external device. The log
//! is recovered into a replay plan, and the plan becomes an overlay over the device.
//!
//! **Crash safety.** Nothing is written, so a replay can be interrupted and repeated at any time.

use fourscore_block::BlockDevice;
use fourscore_journal::{FastCommits, JournalMap, JournalRun, Log, recover};
use fourscore_ondisk::extent::Extent;
use fourscore_ondisk::inode::{FileType, Inode};
use fourscore_ondisk::jbd2::JournalBlock;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::superblock::JournalPlace;
use fourscore_ondisk::{Corrupt, InodeNr};
use fourscore_sync::Arc;

use crate::core::Core;
use crate::file::read;
use crate::inode::cache;
use crate::inode::cached::CachedInode;
use crate::mount::damage::{FoundBy, JournalDamage};
use crate::{Error, OpenOptions, Result};

/// The results of a replay in memory.
pub(crate) struct Replayed {
    /// The device with the overlay: reads give the blocks after the replay.
    pub(crate) device: Arc<dyn BlockDevice>,
    /// The fast commits after the replayed transactions.
    pub(crate) records: FastCommits,
    /// The last transaction, if it was left out.
    pub(crate) damage: Option<JournalDamage>,
    /// How the log was found.
    pub(crate) found_by: FoundBy,
}

/// Recovers the journal of this file system, which was opened without it.
pub(crate) fn replay(core: &Core, options: &OpenOptions) -> Result<Replayed> {
    let (log, found_by) = log_to_read(core, options)?;
    let recovered = recover(&log, core.geometry().blocks())?;
    let blocks = recovered.copies().len();
    tracing::info!(blocks, "the journal is replayed in memory");
    let inode_bytes = core.geometry().inode_size_bytes();
    // As in the kernel, fast commits count only if the log is not empty.
    let records = match log.superblock().start() {
        Some(_) => FastCommits::read(&log, recovered.end_tid(), inode_bytes)?,
        None => FastCommits::default(),
    };
    let device: Arc<dyn BlockDevice> = if recovered.copies().is_empty() {
        fourscore_sync::clone_arc(&core.device)
    } else {
        let base = fourscore_sync::clone_arc(&core.device);
        Arc::new(recovered.overlay(&log, base)?)
    };
    let damage = recovered.damage();
    Ok(Replayed {
        device,
        records,
        damage: damage.map(|(tid, damage)| JournalDamage { tid, damage }),
        found_by,
    })
}

/// Returns the journal. If its inode cannot be used it is found by the copy of the inode in the
/// superblock. A journal found by the copy may only be read, since nothing else marks its blocks as
/// used.
fn log_to_read(core: &Core, options: &OpenOptions) -> Result<(Log, FoundBy)> {
    let error = match log(core, options) {
        Err(error @ Error::Corrupt(_)) => error,
        other => return Ok((other?, FoundBy::Inode)),
    };
    match log_by_copy(core) {
        Some(Ok(log)) => Ok((log, FoundBy::Copy)),
        _ => Err(error),
    }
}

/// Returns the journal by the copy of its inode; `None` if there is no copy.
fn log_by_copy(core: &Core) -> Option<Result<Log>> {
    let (number, bytes) = core.superblock().journal_inode_copy()?;
    let found = Inode::parse(&bytes, number, core.superblock());
    Some(
        found
            .map_err(|error| Corrupt::from(error).in_inode(number).into())
            .and_then(|inode| CachedInode::new(inode, core.superblock()))
            .and_then(|inode| read::extents_of(core, &inode))
            .and_then(|extents| internal_log(core, number, extents)),
    )
}

/// Returns the journal, which is inside the file system or on the device in the options.
pub(crate) fn log(core: &Core, options: &OpenOptions) -> Result<Log> {
    let block_size = core.geometry().block_size();
    match core.superblock().journal() {
        Some(JournalPlace::Inode(inode)) => {
            let found = cache::load_inode(core, inode)?;
            let (mode, links) = (found.mode().0, found.links_count());
            if found.file_type() != Some(FileType::Regular) || links == 0 {
                let error = Corrupt::from(RelationError::JournalInode { mode, links });
                return Err(error.in_inode(inode).into());
            }
            internal_log(core, inode, read::extents(core, inode)?)
        }
        Some(JournalPlace::Device { uuid, .. }) => {
            let device = options.external_journal();
            let device = device.ok_or(Error::JournalNotGiven { uuid })?;
            Ok(Log::open_external(
                fourscore_sync::clone_arc(device),
                uuid,
                block_size,
            )?)
        }
        None => Err(Corrupt::from(RelationError::NoJournal).into()),
    }
}

/// Returns the journal whose inode maps `extents`.
fn internal_log(core: &Core, inode: InodeNr, extents: Vec<Extent>) -> Result<Log> {
    let runs = extents.into_iter().map(|extent| JournalRun {
        journal_block: JournalBlock(extent.logical.0),
        block: extent.physical,
        blocks: extent.blocks,
    });
    let map = JournalMap::from_runs(runs, core.geometry().blocks());
    let map = map.map_err(|error| Corrupt::from(error).in_inode(inode))?;
    let device = fourscore_sync::clone_arc(&core.device);
    Ok(Log::open(device, core.geometry().block_size(), map)?)
}
