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
//! A reader of data finds the places of the data in this way, drops its guard, and reads the
//! device. Without a guard the grace period does not wait for the reader, and the blocks may
//! already hold other data. Either of two comparisons shows that they do not:
//!
//! - the file system's reuse clock has not advanced since the reader held its guard
//!   ([`crate::inode::reuse`]): one comparison, which nearly always succeeds;
//! - the inode's counts have not changed: its sequence count, and a count of the changes that
//!   unmapped or freed blocks of it.
//!
//! Data that is in buffers (data=journal) needs the counts, because a change may forget the
//! buffers: the device never had that data. What is not in memory is loaded without a guard as well
//! ([`crate::guard`]); the reader then begins again, which does not count as an attempt.
//!
//! After [`UNLOCKED_ATTEMPTS`] attempts the reader takes the inode's lock shared and reads once
//! more. The inode cannot change then, so that result is final. Readers therefore make progress
//! beside any number of writers, and damage on disk is reported only if it is there while no thread
//! changes the inode.
//!
//! `Plan::apply` applies a plan. Its changes become visible in this order, all inside the handle,
//! and each step begins only after the step before it:
//!
//! 1. Removed names leave the name cache.
//! 2. The sequence counts of the changed inodes become odd, if the change spans several objects.
//! 3. New blocks change in the buffer cache, then new inodes. Nothing refers to them yet, except
//!    inode numbers that a reader has from earlier inodes.
//! 4. All other blocks change, including those that hold names.
//! 5. New versions of inodes are published. A deleted inode has no version from here on.
//! 6. Buffers of freed blocks are forgotten.
//! 7. The sequence counts become even, and frees are counted.
//! 8. Freed blocks are handed to the allocator with a stamp of the grace-period clock taken *now*.
//!    A reader that reaches one of these blocks through an older version has pinned the epoch
//!    before that stamp, so the grace period waits for that reader. Preallocated blocks that have
//!    never been inside the file's size have no readers, and wait for no grace period
//!    ([`Readers`](crate::txn::memory::Readers)).
//!
//! The number of a deleted inode can be allocated again after step 8, once its cell has left the
//! cache; without a log, and with fast commits, after the full commit. The number does not wait for
//! readers: a reader that holds only a number may find the inode that has been created with that
//! number since.
//!
//! **Invariants.**
//! - A change that replaces one block or one version needs no sequence count: a reader sees it as a
//!   whole or not at all. A change raises the count (`Plan::raise_sequence`) if it spans more,
//!   moves entries from one block to another, forgets buffers, or hides mapped blocks behind a
//!   smaller size.
//! - What is read is checked against the size of the file system, which grows. A reader without a
//!   lock that has read the size too early finds `Corrupt`, and reads again under the lock, where
//!   it repeats that until the size stays the same. A thread that changes something takes all locks
//!   of what it checks before it reads the size.
//! - A read of data that overlaps a truncation may return zeroes behind the new size, as in Linux.
//! - A count belongs to the inode in memory. When the inode leaves the cache, its count becomes odd
//!   forever ([`SeqCount::close`](crate::inode::sequence::SeqCount::close)). The next thread that
//!   changes the inode loads it again and gets another count than the one that an earlier reader
//!   compares.
//! - Only the holder of the inode's exclusive lock raises its count. So a reader that holds the
//!   lock, shared or exclusive, needs no count:
//!   [`find::look_up_pinned`](crate::dir::find::look_up_pinned) and every function that takes a
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

use std::convert::Infallible;
use std::ptr;

use fourscore_ondisk::InodeNr;
use fourscore_sync::epoch;
use fourscore_sync::thread;

use crate::core::Core;
use crate::guard::{Guard, Loader, with_guard};
use crate::inode::cache;
use crate::inode::cached::CachedInode;
use crate::inode::cell::InodeCell;
use crate::inode::sequence::Sequence;
use crate::txn::faults::{self, Faults, Sabotage};
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
    let look = |(): &mut (), inode: &CachedInode, guard: &Guard| look(inode, guard).map(Found::All);
    let read = |(): &mut (), places: &Infallible| match *places {};
    read_consistent_data(core, nr, &mut (), look, read)
}

/// What a reader has found in memory.
pub(crate) enum Found<P, T> {
    /// All that it reads.
    All(T),
    /// The places of data, which it reads next.
    Places(P, Validity),
}

/// How long the places of data hold that data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    /// The places are on the device, and hold the data until they are reused.
    UntilReuse,
    /// The places may be in buffers, which a change of the inode may forget.
    UntilChange,
}

/// As [`read_consistent`], for a reader of data: `look` finds the places of the data, and `read`
/// reads it, without a guard. Both store into `output`. The blocks may be freed, allocated for
/// another file and overwritten during `read`; then the reader notices that and retries.
///
/// # Errors
/// As [`read_consistent`]; the errors of `read`.
pub(crate) fn read_consistent_data<O: ?Sized, P, T>(
    core: &Core,
    nr: InodeNr,
    output: &mut O,
    mut look: impl FnMut(&mut O, &CachedInode, &Guard) -> Result<Found<P, T>>,
    mut read: impl FnMut(&mut O, &P) -> Result<T>,
) -> Result<T> {
    let (mut attempt, mut loader) = (0, Loader::default());
    // The sequence count when the loader began to read data.
    let mut loaded_since = None;
    while attempt < UNLOCKED_ATTEMPTS {
        let guard = loader.pin();
        let time = core.reuse_time();
        let mut begun = None;
        let found = attempt_to_read(core, nr, &guard, &mut begun, |inode| {
            look(output, inode, &guard)
        });
        let may_use_data = !guard.has_data() || begun == loaded_since;
        let found = match loader.unpin(guard) {
            _ if !may_use_data => Ok(Attempt::Overtaken),
            None => found,
            Some(missed) => {
                loaded_since = begun;
                match loader.load(core, missed) {
                    Ok(()) => continue,
                    // It may have belonged to the inode before a change.
                    Err(_) if begun.is_some_and(|begun| !has_kept(core, nr, begun)) => {
                        Ok(Attempt::Overtaken)
                    }
                    Err(error) => Err(error),
                }
            }
        };
        match found {
            Ok(Attempt::Overtaken) => {}
            Ok(Attempt::Consistent(Found::All(found))) => return Ok(found),
            Ok(Attempt::Consistent(Found::Places(places, validity))) => {
                epoch::assert_not_pinned();
                if core.faults.lacks(Sabotage::ForgetBeforePublish) {
                    faults::pass_time();
                }
                let found = read(output, &places);
                let is_unused = validity == Validity::UntilReuse && core.has_reused_nothing(time);
                if is_unused || begun.is_some_and(|begun| has_kept(core, nr, begun)) {
                    return found;
                }
            }
            Err(Error::Corrupt(_)) if core.rechecks_damage() => break,
            Err(error) => return Err(error),
        }
        loader.next_piece();
        attempt += 1;
        thread::back_off(attempt);
    }
    read_locked_data(core, nr, output, look, read)
}

/// The result of one attempt to read without a lock.
enum Attempt<T> {
    Consistent(T),
    /// The inode changed meanwhile.
    Overtaken,
}

/// Reads once. Stores the sequence count of the beginning in `begun`, if the inode is in memory.
///
/// # Errors
/// `NotFound`; the errors of `look`, if the inode did not change meanwhile.
#[inline]
fn attempt_to_read<T>(
    core: &Core,
    nr: InodeNr,
    guard: &Guard,
    begun: &mut Option<Sequence>,
    look: impl FnOnce(&CachedInode) -> Result<T>,
) -> Result<Attempt<T>> {
    let cell = cache::cell(core, nr, guard)?;
    let sequence = *begun.insert(cell.sequence().begin());
    let inode = cell.version(guard)?.not_a_value()?;
    if sequence.is_in_change() {
        return Ok(Attempt::Overtaken);
    }
    let found = look(inode);
    let is_still =
        cell.sequence().is_still(sequence) || overlooks_eviction(core.faults, cell, sequence);
    match is_still {
        true => found.map(Attempt::Consistent),
        false => Ok(Attempt::Overtaken),
    }
}

/// Whether inode `nr` exists, has not changed and has freed nothing since `begun`.
pub(crate) fn has_kept(core: &Core, nr: InodeNr, begun: Sequence) -> bool {
    if !core.is_live() {
        return true;
    }
    let guard = epoch::pin();
    match core.inodes.get(&nr, &guard) {
        Some(cell) => cell.sequence().has_freed_nothing(begun) && cell.version(&guard).is_ok(),
        None => core.faults.lacks(Sabotage::UnnoticedEviction),
    }
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
    in_one_size(core, || {
        with_guard(core, |guard| look(pinned.version(guard)?, guard))
    })
}

#[cold]
fn read_locked_data<O: ?Sized, P, T>(
    core: &Core,
    nr: InodeNr,
    output: &mut O,
    mut look: impl FnMut(&mut O, &CachedInode, &Guard) -> Result<Found<P, T>>,
    mut read: impl FnMut(&mut O, &P) -> Result<T>,
) -> Result<T> {
    let pinned = cache::pin_inode(core, nr)?;
    let _shared = pinned.share();
    let found = in_one_size(core, || {
        with_guard(core, |guard| look(output, pinned.version(guard)?, guard))
    });
    match found? {
        Found::All(found) => Ok(found),
        Found::Places(places, _) => read(output, &places),
    }
}

/// Calls `read` until its result is not `Corrupt`, or the file system has not grown meanwhile.
/// Names are added to a directory whose lock is shared: a reader that reads the number of inodes,
/// waits for a block while the file system grows, and finds a name of one of the new inodes there,
/// would take it for damage.
fn in_one_size<T>(core: &Core, mut read: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        let superblock = core.superblock();
        match read() {
            Err(Error::Corrupt(_)) if !ptr::eq(superblock, core.superblock()) => {}
            found => return found,
        }
    }
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
