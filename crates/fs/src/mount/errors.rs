//! **Purpose.** Handles errors of a read-write mount: the file system is found to be broken, or its
//! journal cannot go on.
//!
//! **Model.** Every operation that changes something passes its result through
//! [`errors::noting`](crate::mount::errors::noting). An error about the disk's content, or about an
//! aborted journal, is noted in the superblock: the number of errors, and for the first and the
//! last one the time, inode, block and position in this program's source. The superblock is also
//! marked as having errors; `e2fsck` removes that mark. Then the mount option decides:
//!
//! | `errors=` | broken structure | aborted journal |
//! |---|---|---|
//! | `continue` | noted by a transaction | as `remount-ro` |
//! | `remount-ro` | the journal is aborted, writing stops | writing stops |
//! | `panic` | as `remount-ro`, then the program's hook | the same |
//!
//! As in Linux, an abort discards changes that were not committed: the broken structure may have
//! corrupted them.
//!
//! Damage of something that an operation can do without fails no operation: if the bitmap of a
//! group is damaged, another group serves. The damage is kept
//! ([`Found`](crate::mount::error_policy::Found)) until the end of the next operation that changes
//! something, which notes it first. If that stops writing, this operation fails.
//!
//! **Not here.** Readers: they change nothing, so errors that they find are returned and not noted.
//!
//! **Locking.** [`errors::noting`](crate::mount::errors::noting) opens handles and waits, so no
//! thread calls it with an open handle or with the chain of orphans locked. One lock, before
//! handles, serializes the threads that note errors.
//!
//! **Crash safety.** While the journal goes on the note is part of a transaction. Otherwise it is
//! written in place, after all writers have ended. A log that is recovered later may hold an older
//! superblock, so a mount keeps the noted errors across the recovery, and takes over the error that
//! the log itself holds.
//!
//! **References.** `ext4_handle_error` of Linux; Documentation/filesystems/ext4/super.rst.

use std::mem::offset_of;
use std::ops::Range;
use std::panic::Location;

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::corrupt::CorruptKind;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::superblock::State;
use fourscore_ondisk::time::Timestamp;
use fourscore_ondisk::{Corrupt, InodeNr, PhysBlock, RawSuperblock};
use zerocopy::{FromZeros, IntoBytes};

use crate::core::Core;
use crate::inode::last_change::LastChange;
use crate::mount::clock::now;
use crate::mount::error_policy::{OnError, PanicHook};
use crate::mount::mark::{self, superblock_part, time_halves};
use crate::mount::replay;
use crate::mount::state::Mount;
use crate::txn::plan::Plan;
use crate::{Error, OpenOptions, Result};

/// The parts of the superblock that hold errors.
const PARTS: [Range<usize>; 3] = [
    offset_of!(RawSuperblock, s_state)..offset_of!(RawSuperblock, s_errors),
    offset_of!(RawSuperblock, s_error_count)..offset_of!(RawSuperblock, s_mount_opts),
    offset_of!(RawSuperblock, s_first_error_time_hi)..offset_of!(RawSuperblock, s_encoding),
];

/// The kinds of errors, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Code {
    /// `EXT4_ERR_EIO`
    Io = 2,
    /// `EXT4_ERR_EFSCORRUPTED`
    Corrupt = 5,
}

/// An error as it is noted.
#[derive(Clone, Copy, Debug)]
struct Note {
    time: Timestamp,
    inode: Option<InodeNr>,
    block: Option<PhysBlock>,
    at: &'static Location<'static>,
    code: Code,
}

impl Note {
    /// Adds the error to a superblock.
    fn put(&self, raw: &mut RawSuperblock) {
        set_error_state(raw);
        let (low, high) = time_halves(self.time);
        let inode = self.inode.map_or(0, |nr| nr.0);
        let block = self.block.map_or(0, |block| block.0);
        let (place, line) = (place(self.at), self.at.line());
        if raw.s_error_count.get() == 0 {
            (raw.s_first_error_time, raw.s_first_error_time_hi) = (low.into(), high);
            raw.s_first_error_ino = inode.into();
            raw.s_first_error_block = block.into();
            (raw.s_first_error_func, raw.s_first_error_line) = (place, line.into());
            raw.s_first_error_errcode = self.code as u8;
        }
        (raw.s_last_error_time, raw.s_last_error_time_hi) = (low.into(), high);
        raw.s_last_error_ino = inode.into();
        raw.s_last_error_block = block.into();
        (raw.s_last_error_func, raw.s_last_error_line) = (place, line.into());
        raw.s_last_error_errcode = self.code as u8;
        raw.s_error_count = raw.s_error_count.get().saturating_add(1).into();
    }
}

/// Returns the source file for the field in which the kernel names a function: the end of the
/// file's name, terminated by a zero.
fn place(at: &Location<'_>) -> [u8; 32] {
    let mut place = [0; 32];
    let name = at.file().as_bytes();
    let name = &name[name.len().saturating_sub(place.len() - 1)..];
    place[..name.len()].copy_from_slice(name);
    place
}

/// Whether `before` holds errors that `after` does not hold.
fn holds_newer_errors(before: &RawSuperblock, after: &RawSuperblock) -> bool {
    let state = State::from_bits_retain(before.s_state.get());
    let count = |raw: &RawSuperblock| raw.s_error_count.get();
    state.contains(State::ERROR_FS) && count(before) > count(after)
}

/// Copies the errors in `from` to `to`.
fn carry_over(from: &RawSuperblock, to: &mut RawSuperblock) {
    let state = to.s_state;
    for part in PARTS {
        to.as_mut_bytes()[part.clone()].copy_from_slice(&from.as_bytes()[part]);
    }
    to.s_state = state;
    set_error_state(to);
}

fn set_error_state(raw: &mut RawSuperblock) {
    let state = State::from_bits_retain(raw.s_state.get()) | State::ERROR_FS;
    raw.s_state = state.bits().into();
}

/// Returns the result of an operation that changes something. If it is an error about a broken file
/// system, the error is noted and handled as the mount option says.
#[track_caller]
#[inline]
pub(crate) fn noting<T>(mount: &Mount, result: Result<T>) -> Result<T> {
    if mount.errors.found.is_any() {
        return noting_found(mount, result, Location::caller());
    }
    if let Err(error) = &result {
        note_error(mount, error, Location::caller());
    }
    result
}

/// As [`noting`], for a mount with damage that is not noted yet
/// ([`Found`](crate::mount::error_policy::Found)). As in Linux, an operation that found no space
/// because of it fails with the damage.
#[cold]
fn noting_found<T>(mount: &Mount, result: Result<T>, at: &'static Location<'static>) -> Result<T> {
    let mut found = mount.errors.found.take();
    for error in &found {
        note_error(mount, error, at);
    }
    match result {
        Ok(value) => mount.errors.check().map(|()| value),
        Err(Error::NoSpace) if !found.is_empty() => Err(found.swap_remove(0)),
        Err(error) => {
            note_error(mount, &error, at);
            Err(error)
        }
    }
}

/// Whether an error only repeats that something is out of use. Its damage was noted when it was
/// found.
fn is_noted(error: &Corrupt) -> bool {
    use RelationError::{GroupOutOfUse, InodesOutOfUse};
    matches!(
        error.kind(),
        CorruptKind::Relation(GroupOutOfUse | InodesOutOfUse)
    )
}

#[cold]
fn note_error(mount: &Mount, error: &Error, at: &'static Location<'static>) {
    let (place, code) = match error {
        Error::Corrupt(corrupt) if is_noted(corrupt) => return,
        Error::Corrupt(corrupt) => (corrupt.place(), Code::Corrupt),
        _ if mount.journal.abort_cause().is_some() => match damage_at_seal(mount) {
            Some(corrupt) => (corrupt.place(), Code::Corrupt),
            None => (Default::default(), Code::Io),
        },
        _ => return,
    };
    let errors = &mount.errors;
    let noting = errors.noting.lock();
    if errors.stopped.get().is_some() {
        return;
    }
    tracing::error!(%error, place = %at, "the file system has an error");
    let note = Note {
        time: now(),
        inode: place.inode,
        block: place.block,
        at,
        code,
    };
    let goes_on = errors.on_error == OnError::Continue && mount.journal.abort_cause().is_none();
    if goes_on && note_in_transaction(mount, &note).is_ok() {
        return;
    }
    stop_writing(mount, &note, error);
    drop(noting);
    if let (OnError::Panic, Some(PanicHook(hook))) = (errors.on_error, &errors.hook) {
        hook(&error.to_string());
    }
}

/// Returns the damage that a seal has found, for which it has aborted the journal. A seal belongs
/// to no operation that could return it.
fn damage_at_seal(mount: &Mount) -> Option<&Corrupt> {
    mount.quota.as_deref()?.damage()
}

/// Notes an error in a transaction, while the journal goes on.
fn note_in_transaction(mount: &Mount, note: &Note) -> Result<()> {
    let mut plan = Plan::new(mount);
    let mut raw = RawSuperblock::new_zeroed();
    let tag = VerifiedAs::new(Structure::Superblock, InodeNr(0));
    let mut regions = Vec::with_capacity(PARTS.len());
    for part in PARTS {
        let (block, range) = superblock_part(&mount.core, part.clone());
        let region = plan.part(block, range, tag)?;
        raw.as_mut_bytes()[part].copy_from_slice(plan.bytes(region));
        regions.push(region);
    }
    note.put(&mut raw);
    for (part, region) in PARTS.into_iter().zip(regions) {
        plan.bytes_mut(region)
            .copy_from_slice(&raw.as_bytes()[part]);
    }
    plan.apply(&[&LastChange::new()]).map(drop)
}

/// Keeps the errors of the superblock as it was `before` the journal was replayed: writes them
/// again if the replay removed them.
pub(crate) fn keep_errors(core: &Core, before: &RawSuperblock) -> Result<()> {
    if !holds_newer_errors(before, &mark::raw_superblock(&*core.device)?) {
        return Ok(());
    }
    mark::rewrite_superblock(&*core.device, core.superblock(), |raw| {
        carry_over(before, raw);
    })
}

/// Takes over the error that the journal holds, if it was aborted.
pub(crate) fn take_over_error(core: &Core, options: &OpenOptions) -> Result<()> {
    if core.superblock().journal().is_none() {
        return Ok(());
    }
    let mut log = replay::log(core, options)?;
    if log.superblock().errno() == 0 {
        return Ok(());
    }
    mark::rewrite_superblock(&*core.device, core.superblock(), set_error_state)?;
    Ok(log.clear_errno()?)
}

/// Stops all writing, and notes the cause in place.
fn stop_writing(mount: &Mount, note: &Note, error: &Error) {
    // The journal has failed already if it had to be aborted.
    mount.journal.fail();
    mount.journal.wait_idle();
    // The device itself may have failed.
    if let Err(error) =
        mark::rewrite_superblock(&*mount.core.device, mount.core.superblock(), |raw| {
            note.put(raw);
        })
    {
        tracing::error!(%error, "the error could not be noted");
    }
    // The lock is held, so no other thread has set it.
    let _ = mount.errors.stopped.set(format!("after an error: {error}"));
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
