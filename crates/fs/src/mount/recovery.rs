//! **Purpose.** Recovery at a read-write mount: replays the journal's transactions, and finishes
//! deletions and truncations that a crash interrupted.
//!
//! **Not here.** Fast commits: their changes are known after the replay and written before anything
//! else is done ([`crate::mount::fast_commit_replay`]).
//!
//! **Model.** The journal is replayed as for reading, but onto the device. An inode on the orphan
//! list that has no name is freed. One that has a name loses the blocks that are mapped past its
//! size. Either is removed from the orphan list in the handle that finishes it.
//!
//! An inode without a name that cannot be freed, because it is damaged or too large for the
//! journal, stays on the list. As in Linux, that does not refuse the mount: the error is logged,
//! and damage is noted in the superblock. With `errors=remount-ro` damage does refuse it, since
//! nothing could be written. A truncation that cannot be finished refuses the mount: the file has a
//! name, and a second entry for it would break the list.
//!
//! **Damage.** If the last transaction does not match its checksums, it is left out only if a crash
//! explains that. Otherwise the mount is refused before anything is written: what the transaction
//! holds was synced, and emptying the log would lose even the blocks of it that are intact.
//!
//! **Crash safety.** A recovery that is interrupted is repeated: unfinished inodes are still on the
//! orphan list.

use fourscore_journal::{Log, recover, replay, replay_before_fast_commits};
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr};
use fourscore_sync::Arc;

use crate::core::Core;
use crate::dir::lost_name;
use crate::file::truncate;
use crate::group::descriptor;
use crate::inode::cached::CachedInode;
use crate::inode::last_change::LastChange;
use crate::inode::orphans::OrphanPlace;
use crate::inode::{alloc, cache, orphan_plan};
use crate::mount::error_policy::OnError;
use crate::mount::fast_commit::FastCommitOverlay;
use crate::mount::state::Mount;
use crate::mount::{errors, open, replay as journal_replay};
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, OpenOptions, Replay, Result};

/// Replays a dirty journal onto the device. Returns the changes of its fast commits, which still
/// have to be written, with the log that holds them.
///
/// # Errors
/// `Corrupt`, with nothing written, also for a last transaction whose damage no crash explains.
pub(crate) fn replay_onto_device(
    core: &Core,
    options: &OpenOptions,
) -> Result<Option<(Log, FastCommitOverlay)>> {
    let in_memory = options.clone().replay(Replay::InMemory);
    let overlay = open::open(Arc::clone(&core.device), &in_memory)?.fast_commit;
    let mut log = journal_replay::log(core, options)?;
    let recovered = recover(&log, core.geometry().blocks())?;
    recovered.check_writable().map_err(Corrupt::from)?;
    if let Some((tid, damage)) = recovered.damage() {
        tracing::warn!(%tid, %damage, "the journal's last transaction is left out");
    }
    let blocks = recovered.copies().len();
    tracing::info!(
        blocks,
        fast_commits = overlay.is_some(),
        "the journal is replayed"
    );
    match overlay {
        None => {
            replay(&mut log, &recovered, &*core.device)?;
            Ok(None)
        }
        Some(_) if core.geometry().blocks_per_cluster_log() > 0 => Err(Error::ReadOnly(
            "it has fast commits, and clusters of several blocks".into(),
        )),
        Some(overlay) => {
            replay_before_fast_commits(&mut log, &recovered, &*core.device)?;
            Ok(Some((log, overlay)))
        }
    }
}

/// Finishes everything on the orphan list. An inode that cannot be deleted stays there, for the
/// next mount or e2fsck; the error is noted as the mount option `errors=` says.
///
/// # Errors
/// `Corrupt` for an inode on the orphan list that is free or cannot be a file; the error of a
/// truncation, or one after which nothing may be written.
pub(crate) fn finish_orphans(mount: &Mount) -> Result<()> {
    for (nr, place) in mount.orphans().all() {
        check_orphan(&mount.core, nr)?;
        let inode = CachedInode::new(cache::load_inode(&mount.core, nr)?, mount.core.superblock())?;
        tracing::info!(
            inode = nr.0,
            "an interrupted deletion or truncation is finished"
        );
        if inode.on_disk().links_count() > 0 {
            finish_truncation(mount, &inode, place)?;
        } else {
            finish_deletion(mount, inode, place)?;
        }
    }
    Ok(())
}

/// Frees an inode without a name. Nothing refers to it, so if it cannot be freed the file system is
/// as usable as while the inode was open.
fn finish_deletion(mount: &Mount, inode: CachedInode, place: OrphanPlace) -> Result<()> {
    let nr = inode.nr();
    let Err(error) = lost_name::free_orphan(mount, inode, &LastChange::new(), place) else {
        alloc::freed(mount, nr);
        return Ok(());
    };
    let stops = match error {
        Error::Corrupt(_) => mount.errors.on_error != OnError::Continue,
        _ => mount.journal().abort_cause().is_some(),
    };
    if stops {
        return Err(error);
    }
    tracing::error!(inode = nr.0, %error, "an orphan cannot be deleted, and stays on the list");
    // The mount goes on without it.
    let _ = errors::noting(mount, Err::<(), _>(error));
    Ok(())
}

fn check_orphan(core: &Core, nr: InodeNr) -> Result<()> {
    let superblock = core.superblock();
    let reserved = nr == InodeNr::ROOT || !superblock.may_be_named(nr);
    let (group, index) = core.geometry().inode_group(nr).ok_or(Error::NotFound)?;
    let error = if reserved {
        RelationError::OrphanReserved
    } else if !descriptor::inode_bitmap(core, group)?.is_used(index.0) {
        RelationError::OrphanFree
    } else {
        return Ok(());
    };
    Err(Corrupt::from(error).in_inode(nr).into())
}

/// Frees the blocks that a file maps past its size.
fn finish_truncation(mount: &Mount, inode: &CachedInode, place: OrphanPlace) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode.nr())?;
    let mut locked = pinned.lock();
    locked.orphan = Some(place);
    if inode.file_type() == FileType::Regular {
        return truncate::truncate_locked(mount, pinned.locked(&mut locked), inode.size_bytes());
    }
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, inode.nr())?;
    orphan_plan::remove_orphan(&mut plan, slot, place)?;
    let version = slot::version(&mut plan, slot)?;
    plan.apply_publishing(&[&locked.last], Publication::of(&[&pinned]), || {
        pinned.publish(Some(version));
    })?;
    locked.orphan = None;
    Ok(())
}
