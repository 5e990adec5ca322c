//! **Purpose.** Consistent reads: what a reader of an inode may rely on while other threads change
//! the inode, and in which order a change becomes visible. Every read path goes through this
//! module.
//!
//! **Model.** A read of one inode touches several objects: its version in memory, blocks of its
//! map, of its directory or of its attributes in the buffer cache, and data on the device. A writer
//! replaces these objects one after the other, so a reader could combine an old object with a new
//! one. Three mechanisms prevent that:
//!
//! ```text
//! epoch        an object that a reader has reached stays readable until the reader drops its guard
//! grace period a freed block is reused only after all readers that could reach it have finished
//! sequence     a count in each inode, odd while a change of several objects is published:
//!              a reader that sees the count change retries
//! ```
//!
//! A reader pins the epoch, notes the sequence count, reads, and compares the count:
//!
//! | count afterwards | result |
//! |---|---|
//! | odd, or changed | none: the reader retries |
//! | the same even number | what was read, unless it is `Corrupt` |
//! | the same, and the result is `Corrupt` | none: the reader retries under the inode's lock |
//!
//! After [`UNLOCKED_ATTEMPTS`] attempts the reader takes the inode's lock shared and reads once
//! more. The inode cannot change then, so that result is final. Readers therefore make progress
//! beside any number of writers, and damage on disk is reported only if it is there while no thread
//! changes the inode.
//!
//! `Plan::apply` applies a plan. Its changes become visible in this order, all inside the
//! handle, and each step begins only after the step before it:
//!
//! 1. Removed names leave the name cache.
//! 2. The sequence counts of the changed inodes become odd, if the change spans several objects.
//! 3. New blocks change in the buffer cache, then new inodes. Nothing refers to them yet, except
//!    inode numbers that a reader has from earlier inodes.
//! 4. All other blocks change, including those that hold names.
//! 5. New versions of inodes are published. A deleted inode has no version from here on.
//! 6. Buffers of freed blocks are forgotten.
//! 7. The sequence counts become even.
//! 8. Freed blocks are handed to the allocator with a stamp of the grace-period clock taken *now*.
//!    A reader that reaches one of these blocks through an older version has pinned the epoch
//!    before that stamp, so the grace period waits for that reader.
//!
//! The number of a deleted inode can be allocated again after step 8, once its cell has left the
//! cache. The number does not wait for readers: a reader that holds only a number may find the
//! inode that has been created with that number since.
//!
//! **Invariants.**
//! - A change that replaces one block or one version needs no sequence count: a reader sees it as a
//!   whole or not at all. A change raises the count (`Plan::raise_sequence`) if it spans more,
//!   moves entries from one block to another, forgets buffers, or hides mapped blocks behind a
//!   smaller size.
//! - A count belongs to the inode in memory. When the inode leaves the cache, its count becomes odd
//!   forever ([`SeqCount::close`](crate::inode::sequence::SeqCount::close)). The next thread that
//!   changes the inode loads it again and gets another count than the one that an earlier reader
//!   compares.
//! - Only the holder of the inode's exclusive lock raises its count. So a reader that holds the
//!   lock, shared or exclusive, needs no count:
//!   [`find::look_up_locked`](crate::dir::find::look_up_locked) and every function that takes a
//!   `&CachedInode` is for such callers, or is called inside `consistent::read_consistent`.
//! - A name refers to the inode that had it when both were read. After the inode is loaded, the
//!   name is looked up again, unless no name has left the directory in between
//!   ([`path::step_to`](crate::dir::path::step_to)).
//!
//! **Locking.** The common case takes no lock and writes nothing that other threads read. The
//! fall-back takes the inode's lock shared, without an epoch guard, since the holder of that lock
//! may be waiting for a grace period.
//!
//! **References.** Linux, Documentation/locking/seqlock.rst and Documentation/RCU/whatisRCU.rst.

use fourscore_ondisk::InodeNr;
use fourscore_sync::epoch::{self, Guard};
use fourscore_sync::thread;

use crate::core::Core;
use crate::inode::cache;
use crate::inode::cached::CachedInode;
use crate::inode::cell::InodeCell;
use crate::inode::sequence::Sequence;
use crate::txn::faults::{Faults, Sabotage};
use crate::{Error, Result};

/// How many times a reader tries without the inode's lock.
pub(crate) const UNLOCKED_ATTEMPTS: u32 = 8;

/// Returns what `look` reads of inode `nr` in one consistent state. `look` may be called several
/// times. The caller holds neither the inode's lock nor one that comes after it in the lock order,
/// and no epoch guard.
///
/// # Errors
/// `NotFound` if no such inode is in use; the errors of `look`.
pub(crate) fn read_consistent<T>(
    core: &Core,
    nr: InodeNr,
    mut look: impl FnMut(&CachedInode, &Guard) -> Result<T>,
) -> Result<T> {
    for attempt in 0..UNLOCKED_ATTEMPTS {
        let guard = epoch::pin();
        let cell = cache::cell(core, nr, &guard)?;
        let begun = cell.sequence().begin();
        let inode = cell.version(&guard)?.not_a_value()?;
        if let Some(begun) = begun {
            let found = look(inode, &guard);
            if cell.sequence().is_still(begun) || overlooks_eviction(core.faults, cell, begun) {
                if matches!(found, Err(Error::Corrupt(_))) && core.looks_again_at_damage() {
                    break;
                }
                return found;
            }
        }
        drop(guard);
        thread::back_off(attempt);
    }
    read_locked(core, nr, look)
}

/// Like `read_consistent`, but under the inode's shared lock.
#[cold]
pub(crate) fn read_locked<T>(
    core: &Core,
    nr: InodeNr,
    mut look: impl FnMut(&CachedInode, &Guard) -> Result<T>,
) -> Result<T> {
    let pinned = cache::pin_inode(core, nr)?;
    let _shared = pinned.share();
    let guard = epoch::pin();
    look(pinned.version(&guard)?, &guard)
}

/// With the injected fault `UnnoticedEviction`: whether a reader of `cell` that began at `begun`
/// accepts its result although the inode has left memory in between.
fn overlooks_eviction(faults: Faults, cell: &InodeCell, begun: Sequence) -> bool {
    faults.lacks(Sabotage::UnnoticedEviction)
        && cell.is_retired()
        && cell.sequence().was_only_closed(begun)
}

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
