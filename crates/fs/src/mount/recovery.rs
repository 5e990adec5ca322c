//! **Purpose.** Finishing, when a file system is mounted for writing, what a crash left half done:
//! the journal's transactions, and files that were being deleted or truncated.
//!
//! **Not here.** Fast commits, whose changes are known after the replay and written before anything
//! else is done ([`crate::mount::fast_commit_replay`]).
//!
//! **Model.** The journal is replayed as for reading, but onto the device. An inode on record that
//! has no name is freed. One that has a name loses what is mapped behind its size. Either is taken
//! off the record in the handle that ends it.
//!
//! **Crash safety.** A recovery that is cut is made again: what is not finished is still on record.

use fourscore_journal::{LastTid, Log, recover, replay, replay_before_fast_commits};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr};
use fourscore_sync::Arc;

use crate::inode::cache::CachedInode;
use crate::inode::orphans::OrphanPlace;
use crate::mount::fast_commit::FastCommitOverlay;
use crate::mount::writer::Writer;
use crate::txn::apply::Show;
use crate::txn::plan::Plan;
use crate::{Error, FileType, Fs, OpenOptions, Replay, Result};

impl Fs {
    /// Replays a dirty journal onto the device. Gives what its fast commits change, which is still
    /// to be written, with the log that holds them.
    pub(crate) fn replay_onto_device(
        &self,
        options: &OpenOptions,
    ) -> Result<Option<(Log, FastCommitOverlay)>> {
        let in_memory = options.clone().replay(Replay::InMemory);
        let replayed = Self::open(Arc::clone(&self.device), &in_memory)?;
        let overlay = Arc::into_inner(replayed).and_then(|fs| fs.fast_commit);
        let mut log = self.log(options)?;
        let recovered = recover(&log, self.geometry().blocks())?;
        match overlay {
            None => {
                replay(&mut log, &recovered, &*self.device)?;
                Ok(None)
            }
            Some(_) if self.geometry().blocks_per_cluster_log() > 0 => Err(Error::ReadOnly(
                "it has fast commits, and clusters of several blocks".into(),
            )),
            Some(overlay) => {
                replay_before_fast_commits(&mut log, &recovered, &*self.device)?;
                Ok(Some((log, overlay)))
            }
        }
    }

    /// Finishes everything on record.
    ///
    /// # Errors
    /// `Corrupt` for an inode on record that is free or cannot be a file; `Unsupported` for one
    /// that is not changed here.
    pub(crate) fn finish_orphans(&self) -> Result<()> {
        let writer = self.writer()?;
        for (nr, place) in writer.orphans().all() {
            self.check_orphan(nr)?;
            let inode = CachedInode::new(self.load_inode(nr)?, self)?;
            if inode.on_disk().links_count() > 0 {
                self.finish_truncation(writer, &inode, place)?;
            } else {
                self.free_orphan(writer, inode, &LastTid::new(), place)?;
                writer.inodes().freed(nr, self, writer);
            }
        }
        Ok(())
    }

    fn check_orphan(&self, nr: InodeNr) -> Result<()> {
        let superblock = self.superblock();
        let reserved = nr < superblock.first_inode() || superblock.orphan_file_inode() == Some(nr);
        let (group, index) = self.geometry().inode_group(nr).ok_or(Error::NotFound)?;
        let error = if reserved {
            RelationError::OrphanReserved
        } else if !self.inode_bitmap(group)?.is_used(index.0) {
            RelationError::OrphanFree
        } else {
            return Ok(());
        };
        Err(Corrupt::from(error).in_inode(nr).into())
    }

    /// Cuts off what a file maps behind its size.
    fn finish_truncation(
        &self,
        writer: &Writer,
        inode: &CachedInode,
        place: OrphanPlace,
    ) -> Result<()> {
        let pinned = self.pin_inode(inode.nr())?;
        let mut locked = pinned.lock();
        locked.orphan = Some(place);
        if inode.file_type() == FileType::Regular {
            return self.truncate_locked(&pinned, &mut locked, inode.size_bytes());
        }
        let mut plan = Plan::new(self, writer);
        let slot = plan.slot(inode.nr())?;
        plan.remove_orphan(slot, place)?;
        let version = plan.version(slot)?;
        plan.carry_out_showing(&[&locked.last], Show::of(&[&pinned]), || {
            pinned.publish(Some(version));
        })?;
        locked.orphan = None;
        Ok(())
    }
}
