//! **Purpose.** Reading a crashed file system as if its journal had been replayed.
//!
//! **Model.** The journal's blocks are found through its inode, or on a device of their own. The
//! log is recovered into a plan; the plan becomes an overlay over the device.
//!
//! **Crash safety.** Nothing is written, so it can be cut and done again at will.

use std::fmt;

use fourscore_block::BlockDevice;
use fourscore_journal::{FastCommits, JournalMap, JournalRun, Log, recover};
use fourscore_ondisk::jbd2::{Damage, JournalBlock};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::superblock::JournalPlace;
use fourscore_ondisk::{Corrupt, InodeNr, Tid};
use fourscore_sync::Arc;

use crate::{Error, Fs, OpenOptions, Result};

/// What a dirty journal changes.
pub(crate) struct Replayed {
    /// The device as it reads after the log was replayed.
    pub(crate) device: Arc<dyn BlockDevice>,
    /// What was fast-committed after that.
    pub(crate) records: FastCommits,
    /// What was left out.
    pub(crate) damage: Option<JournalDamage>,
}

/// A transaction at the end of a dirty journal that was left out, because it does not match its
/// checksums: what it changed reads as it was before. With asynchronous commits that is how a
/// crash ordinarily ends the log; else something has damaged it, and the kernel refuses to mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalDamage {
    /// The transaction.
    pub tid: Tid,
    /// The first part of it that does not match.
    pub damage: Damage,
}

impl fmt::Display for JournalDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tid, damage } = self;
        write!(f, "transaction {tid}, the last one, was left out: {damage}")
    }
}

impl Fs {
    /// Recovers the journal of this file system, which was opened without it.
    pub(crate) fn replay(&self, options: &OpenOptions) -> Result<Replayed> {
        let log = self.log(options)?;
        let recovered = recover(&log, self.geometry().blocks())?;
        let inode_bytes = self.geometry().inode_size_bytes();
        // As for the kernel, fast commits count only behind a log that is not empty.
        let records = match log.superblock().start() {
            Some(_) => FastCommits::read(&log, recovered.end_tid(), inode_bytes)?,
            None => FastCommits::default(),
        };
        let device: Arc<dyn BlockDevice> = if recovered.copies().is_empty() {
            fourscore_sync::clone_arc(&self.device)
        } else {
            let base = fourscore_sync::clone_arc(&self.device);
            Arc::new(recovered.overlay(&log, base)?)
        };
        let damage = recovered.damage();
        Ok(Replayed {
            device,
            records,
            damage: damage.map(|(tid, damage)| JournalDamage { tid, damage }),
        })
    }

    /// The journal: inside the file system or on the device that the options name.
    pub(crate) fn log(&self, options: &OpenOptions) -> Result<Log> {
        let block_size = self.geometry().block_size();
        match self.superblock().journal() {
            Some(JournalPlace::Inode(inode)) => {
                let map = self.journal_map(inode)?;
                Ok(Log::open(
                    fourscore_sync::clone_arc(&self.device),
                    block_size,
                    map,
                )?)
            }
            Some(JournalPlace::Device { uuid, .. }) => {
                let device = options.external_journal().ok_or_else(|| {
                    Error::Unsupported(format!(
                        "the journal must be replayed and is on another device (UUID {uuid})"
                    ))
                })?;
                Ok(Log::open_external(
                    fourscore_sync::clone_arc(device),
                    uuid,
                    block_size,
                )?)
            }
            None => Err(Corrupt::from(RelationError::NoJournal).into()),
        }
    }

    /// Where the blocks of the journal inode are.
    fn journal_map(&self, inode: InodeNr) -> Result<JournalMap> {
        let runs = self.extents(inode)?.into_iter().map(|extent| JournalRun {
            journal_block: JournalBlock(extent.logical.0),
            block: extent.physical,
            blocks: extent.blocks,
        });
        let map = JournalMap::from_runs(runs, self.geometry().blocks());
        Ok(map.map_err(|error| Corrupt::from(error).in_inode(inode))?)
    }
}
