//! **Purpose.** Offers the attributes that readers load to the sharing cache.
//!
//! **Model.** A block of attributes is offered when it has been loaded and checked, a value when it
//! has been read and is not known. Later hits offer nothing.
//!
//! **Locking.** The lock of the block or of the value's inode, if it is free; a reader does not
//! wait. Under it the inode that is being read still refers to the block, or the value's inode is
//! still in use. So there is a user, and the plan that takes away the last one comes later and
//! removes the entry.

use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::xattr::{self, EaInode, MAX_BLOCK_REFS, SharedContent};
use fourscore_ondisk::{InodeNr, PhysBlock};
use fourscore_sync::{MutexGuard, epoch};

use crate::core::Core;
use crate::txn::faults::Sabotage;
use crate::txn::striped::StripedLocks;
use crate::xattr::share::Sharing;
use crate::xattr::shared::SharedXattrs;

/// Returns the locks and the cache, if something is to be offered now.
fn shared(core: &Core) -> Option<(&SharedXattrs, &Sharing)> {
    let shared = &*core.live.as_ref()?.xattrs;
    let sharing = shared.cache.as_ref()?;
    (!sharing.is_paused()).then_some((shared, sharing))
}

/// Takes the lock of a block, or of a value's inode, if it is free.
fn try_lock<'l>(core: &Core, locks: &'l StripedLocks, place: u64) -> Option<Held<'l>> {
    let lock = locks.try_lock_nth(locks.nth(place))?;
    let is_kept = !core.faults.lacks(Sabotage::OfferedUnlocked);
    Some(Held(is_kept.then_some(lock)))
}

/// A lock, or none if that is the injected fault.
struct Held<'l>(#[expect(dead_code, reason = "it is held")] Option<MutexGuard<'l, ()>>);

/// Offers the block of attributes of inode `nr`, which has just been loaded.
pub(crate) fn offer_block(core: &Core, nr: InodeNr, block: PhysBlock) {
    let _ = try_offer_block(core, nr, block);
}

fn try_offer_block(core: &Core, nr: InodeNr, block: PhysBlock) -> Option<()> {
    let (shared, sharing) = shared(core)?;
    let _lock = try_lock(core, &shared.blocks, block.0)?;
    let guard = epoch::pin();
    let inode = core.inodes.get(&nr, &guard)?.version(&guard).ok()?;
    if inode.on_disk().file_acl() != Some(block) {
        return None;
    }
    let bytes = core.buffers.cached(block, &guard)?.bytes(&guard);
    if xattr::users(bytes).ok()? < MAX_BLOCK_REFS {
        let key = sharing.key_of_block(&SharedContent::of(bytes)?);
        sharing.come_unproven(key, block.0);
    }
    Some(())
}

/// Offers the value in inode `nr`, which has just been read.
pub(crate) fn offer_value(core: &Core, nr: InodeNr) {
    let _ = try_offer_value(core, nr);
}

fn try_offer_value(core: &Core, nr: InodeNr) -> Option<()> {
    let (shared, sharing) = shared(core)?;
    let guard = epoch::pin();
    let key = || {
        let inode = core.inodes.get(&nr, &guard)?.version(&guard).ok()?;
        let facts = EaInode::of(inode.on_disk().raw());
        let is_value = inode.has(InodeFlags::EA_INODE_FL)
            && facts.refs > 0
            && inode.on_disk().links_count() > 0;
        is_value.then(|| sharing.key_of_value(facts.value_hash, inode.size_bytes()))
    };
    if sharing.knows(key()?) {
        return None;
    }
    let _lock = try_lock(core, &shared.values, nr.0.into())?;
    sharing.come_unproven(key()?, nr.0.into());
    Some(())
}
