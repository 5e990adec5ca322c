//! **Purpose.** Consistent reads: what a reader of an inode may rely on while others change it, and
//! in which order a change becomes visible. Every read path goes through this module.
//!
//! **Model.** Reading one inode touches several objects: its version in memory, blocks of its map,
//! of its directory or of its attributes in the buffer cache, and content on the device. A writer
//! replaces these one after the other, so a reader could combine an old object with a new one.
//! Three mechanisms exclude that:
//!
//! ```text
//! epoch        what a pointer led to stays readable until the reader's guard is dropped
//! grace period freed blocks are reused only when every reader is gone that could still reach them
//! sequence     a count in each inode, odd while a change of several objects is made visible:
//!              a reader that saw it change looks again
//! ```
//!
//! A reader pins the epoch, notes the sequence count, looks, and compares the count:
//!
//! | afterwards | what is returned |
//! |---|---|
//! | the count is odd or has changed | nothing: the reader looks again |
//! | the count is the same even number | what was found, unless it is `Corrupt` |
//! | the same, and `Corrupt` | nothing: the reader looks again under the inode's lock |
//!
//! After [`UNLOCKED_ATTEMPTS`] attempts the reader takes the inode's lock shared and looks once
//! more. Nothing changes then, so that answer is final: readers make progress beside any number of
//! writers, and damage on disk is reported only if it is there while nobody writes.
//!
//! A plan makes its changes visible in this order, all of it inside the handle
//! (`write::plan::Plan::carry_out`), and each step only after the one before:
//!
//! 1. Names that go leave the name cache.
//! 2. The sequence counts of the changed inodes become odd, if the change spans several objects.
//! 3. New blocks change in the buffer cache, then new inodes; nothing leads to them yet but numbers
//!    that a reader has from earlier inodes.
//! 4. All other blocks change, those with names among them.
//! 5. New versions of inodes are published; a deleted inode has none from here on.
//! 6. Buffers of freed blocks are forgotten.
//! 7. The sequence counts become even.
//! 8. Freed blocks are handed to the allocator with a stamp of the grace-period clock taken *now*.
//!    A reader that finds one of these blocks by an older version has pinned the epoch before that
//!    stamp, so the grace period waits for it.
//!
//! The number of a deleted inode is given out after step 8, when its cell has left the cache. It
//! does not wait for readers: who has only a number may find what was made of it since.
//!
//! **Invariants.**
//! - A change that replaces one block or one version needs no sequence count: a reader sees it as
//!   a whole or not at all. A change that spans more, moves entries from one block to another,
//!   forgets buffers, or hides mapped blocks behind a smaller size raises the count
//!   (`Plan::raise_sequence`).
//! - A count belongs to the inode in memory. When the inode leaves the cache, its count becomes odd
//!   for good ([`SeqCount::close`](crate::inode::sequence::SeqCount::close)): who changes the inode
//!   next loads it anew, with another count
//!   than the one that an earlier reader compares.
//! - Only the holder of the inode's lock, alone, raises its count. So a reader that has the lock,
//!   shared or alone, needs no count: [`find::look_up_locked`](crate::dir::find::look_up_locked)
//!   and everything that takes a
//!   `&CachedInode` is for such callers, or is called inside of
//!   `consistent::read_consistent`.
//! - A name leads to the inode that had it when both were looked at: after the inode was loaded,
//!   the name is looked up again unless no name has left the directory meanwhile
//!   ([`path::step_to`](crate::dir::path::step_to)).
//!
//! **Locking.** The common case takes none and writes nothing that other threads read. The
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

/// How often a reader looks without the inode's lock.
pub(crate) const UNLOCKED_ATTEMPTS: u32 = 8;

/// What `look` finds of inode `nr` in one state of it. `look` may be called several times. The
/// caller holds neither the inode's lock nor one that comes behind it, and no epoch guard.
///
/// # Errors
/// `NotFound` if no such inode is in use; what `look` fails with.
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

/// The same under the inode's lock, which is shared.
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

/// With the fault `UnnoticedEviction`, whether a reader by `cell` that began at `begun` takes what
/// it
/// found although the inode has left memory meanwhile.
fn overlooks_eviction(faults: Faults, cell: &InodeCell, begun: Sequence) -> bool {
    faults.lacks(Sabotage::UnnoticedEviction)
        && cell.is_retired()
        && cell.sequence().was_only_closed(begun)
}

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
