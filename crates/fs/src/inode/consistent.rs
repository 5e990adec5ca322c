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
//!   for good ([`SeqCount::close`]): who changes the inode next loads it anew, with another count
//!   than the one that an earlier reader compares.
//! - Only the holder of the inode's lock, alone, raises its count. So a reader that has the lock,
//!   shared or alone, needs no count: [`Fs::look_up_locked`] and everything that takes a
//!   `&CachedInode` is for such callers, or is called inside of [`Fs::read_consistent`].
//! - A name leads to the inode that had it when both were looked at: after the inode was loaded,
//!   the name is looked up again unless no name has left the directory meanwhile
//!   ([`Fs::step_to`]).
//!
//! **Locking.** The common case takes none and writes nothing that other threads read. The
//! fall-back takes the inode's lock shared, without an epoch guard, since the holder of that lock
//! may be waiting for a grace period.
//!
//! **References.** Linux, Documentation/locking/seqlock.rst and Documentation/RCU/whatisRCU.rst.

use fourscore_ondisk::InodeNr;
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::epoch::{self, Guard};
use fourscore_sync::thread;

use crate::dir::find::Keep;
use crate::dir::name_cache::Moment;
use crate::inode::cache::CachedInode;
use crate::{Error, Fs, Result};

/// How often a reader looks without the inode's lock.
const UNLOCKED_ATTEMPTS: u32 = 8;
/// How often an operation that starts from names is begun anew before a name is taken for broken
/// that leads to an inode which does not exist. Each time somebody else has to rename over that
/// name just between two steps of this thread.
const NAME_ATTEMPTS: u32 = 64;

/// A sequence count: odd while the objects that it stands for are being changed, and for good once
/// their inode has left memory.
#[derive(Debug, Default)]
pub(crate) struct SeqCount(AtomicU64);

/// The count as it was when a reader began; no change was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence(u64);

impl SeqCount {
    /// Where a reader begins; `None` while a change is under way.
    pub(crate) fn begin(&self) -> Option<Sequence> {
        let count = self.0.load(Ordering::Acquire);
        count.is_multiple_of(2).then_some(Sequence(count))
    }

    /// Whether nothing has changed since `begun`. What a reader looks at in between is loaded with
    /// acquire ordering, so this load is not moved before it.
    pub(crate) fn is_still(&self, begun: Sequence) -> bool {
        self.0.load(Ordering::Acquire) == begun.0
    }

    /// Whether nothing has changed since `begun` but that the inode has left memory, for a caller
    /// who knows that it has.
    pub(crate) fn was_only_closed(&self, begun: Sequence) -> bool {
        self.0.load(Ordering::Acquire) == begun.0 + 1
    }

    /// The inode leaves memory. Who changes it next does so with a count that is made anew, so the
    /// readers that are at this one look again, and so does who comes to it from now on.
    pub(crate) fn close(&self) {
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        debug_assert!(before.is_multiple_of(2), "it leaves while it is changed");
    }

    /// Begins a change, which ends when the result is dropped. Changes do not nest.
    pub(crate) fn change(&self) -> Change<'_> {
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        debug_assert!(before.is_multiple_of(2), "changes of one inode nest");
        Change(self)
    }
}

/// A change that is under way.
#[derive(Debug)]
pub(crate) struct Change<'c>(&'c SeqCount);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Where one component of a path leads.
#[derive(Debug)]
pub(crate) enum Step {
    /// To an inode that is no symbolic link.
    Inode(InodeNr),
    /// To a symbolic link with this target.
    Link(Vec<u8>),
}

impl Fs {
    /// What `look` finds of inode `nr` in one state of it. `look` may be called several times. The
    /// caller holds neither the inode's lock nor one that comes behind it, and no epoch guard.
    ///
    /// # Errors
    /// `NotFound` if no such inode is in use; what `look` fails with.
    pub(crate) fn read_consistent<T>(
        &self,
        nr: InodeNr,
        mut look: impl FnMut(&CachedInode, &Guard) -> Result<T>,
    ) -> Result<T> {
        for attempt in 0..UNLOCKED_ATTEMPTS {
            let guard = epoch::pin();
            let cell = self.cell(nr, &guard)?;
            let begun = cell.sequence().begin();
            let inode = cell.version(&guard)?.not_a_value()?;
            if let Some(begun) = begun {
                let found = look(inode, &guard);
                if cell.sequence().is_still(begun) || self.overlooks_eviction(cell, begun) {
                    if matches!(found, Err(Error::Corrupt(_))) && self.looks_again_at_damage() {
                        break;
                    }
                    return found;
                }
            }
            drop(guard);
            thread::back_off(attempt);
        }
        self.read_locked(nr, look)
    }

    /// The same under the inode's lock, which is shared.
    #[cold]
    fn read_locked<T>(
        &self,
        nr: InodeNr,
        mut look: impl FnMut(&CachedInode, &Guard) -> Result<T>,
    ) -> Result<T> {
        let pinned = self.pin_inode(nr)?;
        let _shared = pinned.share();
        let guard = epoch::pin();
        look(pinned.version(&guard)?, &guard)
    }

    /// Where `name` leads in the directory `dir`. The caller holds no lock of a directory and no
    /// epoch guard.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`.
    pub(crate) fn find_name(&self, dir: InodeNr, name: &[u8], keep: Keep) -> Result<InodeNr> {
        for attempt in 0..UNLOCKED_ATTEMPTS {
            let guard = epoch::pin();
            let cell = self.cell(dir, &guard)?;
            // The moment first: what is found behind it is kept only if no name has left since.
            let (begun, moment) = (cell.sequence().begin(), cell.departures().moment());
            let here = self.directory(cell.version(&guard)?.not_a_value()?)?;
            let key = self.name_key(here, name);
            if let Some(known) = key.and_then(|key| self.names.get(&key, &guard)) {
                return Ok(known);
            }
            match self.look_up_once(here, name, &guard) {
                // Found in a block that the directory has, or had when this began.
                Ok(inode) => {
                    // A name in the cache of names has passed this.
                    if keep == Keep::Found
                        && let Ok(found) = self.any_inode(inode, &guard)
                    {
                        found.not_a_value()?;
                    }
                    if let (Keep::Found, Some(key), Some(moment)) = (keep, key, moment) {
                        self.keep_name(&key, inode, moment, &guard);
                    }
                    return Ok(inode);
                }
                Err(error) => {
                    if begun.is_some_and(|begun| cell.sequence().is_still(begun)) {
                        if matches!(error, Error::Corrupt(_)) && self.looks_again_at_damage() {
                            break;
                        }
                        return Err(error);
                    }
                }
            }
            drop(guard);
            thread::back_off(attempt);
        }
        self.read_locked(dir, |dir, guard| self.look_up_locked(dir, name, guard))
    }

    /// The same for the holder of the directory's lock, shared or alone.
    pub(crate) fn look_up_locked(
        &self,
        dir: &CachedInode,
        name: &[u8],
        guard: &Guard,
    ) -> Result<InodeNr> {
        let dir = self.directory(dir)?;
        let key = self.name_key(dir, name);
        match key.and_then(|key| self.names.get(&key, guard)) {
            Some(known) => Ok(known),
            None => self.look_up_once(dir, name, guard),
        }
    }

    /// Where `name` leads in `dir`, and the target if that is a symbolic link: of the inode that
    /// had the name, also if others replace it at that time and use its number again.
    ///
    /// # Errors
    /// As [`Fs::find_name`]; `Corrupt` for a link that is none.
    pub(crate) fn step_to(&self, dir: InodeNr, name: &[u8]) -> Result<Step> {
        let step = || {
            let moment = self.cell(dir, &epoch::pin())?.departures().moment();
            let nr = self.find_name(dir, name, Keep::Found)?;
            let step = self.read_consistent(nr, |inode, guard| self.step_of(inode, guard))?;
            if self.has_kept_names(dir, moment)? || self.find_name(dir, name, Keep::Nothing)? == nr
            {
                return Ok(step);
            }
            // Begun anew, since the name is there.
            Err(Error::NotFound)
        };
        match self.revalidates_paths() {
            true => self.revalidated(&[(dir, name)], step),
            false => {
                let nr = self.find_name(dir, name, Keep::Found)?;
                self.step_of(self.inode(nr, &epoch::pin())?, &epoch::pin())
            }
        }
    }

    /// Whether no name has left the directory `dir` since `moment`.
    fn has_kept_names(&self, dir: InodeNr, moment: Option<Moment>) -> Result<bool> {
        let guard = epoch::pin();
        let cell = self.cell(dir, &guard)?;
        // Names inside of an inode leave it without a departure.
        let has_departures = !cell.version(&guard)?.is_inline();
        Ok(has_departures && moment.is_some() && cell.departures().moment() == moment)
    }

    fn step_of(&self, inode: &CachedInode, guard: &Guard) -> Result<Step> {
        match inode.file_type() {
            crate::FileType::Symlink => Ok(Step::Link(self.link_target(inode, guard)?)),
            _ => Ok(Step::Inode(inode.nr())),
        }
    }

    /// What `attempt` comes to for an operation that starts from `names`. It looks names up without
    /// a lock and then uses the inodes; another thread may rename over a name in between, and the
    /// inode that it led to is deleted although the name was never missing. So `NotFound` counts
    /// only if one of the names is missing, and else the operation is begun anew. No lock is held
    /// between two attempts.
    ///
    /// # Errors
    /// `NotFound` if one of the names is missing; what `attempt` fails with otherwise.
    pub(crate) fn revalidated<T>(
        &self,
        names: &[(InodeNr, &[u8])],
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        for _ in 0..NAME_ATTEMPTS {
            match attempt() {
                Err(Error::NotFound) => {}
                answer => return answer,
            }
            for (dir, name) in names {
                self.find_name(*dir, name, Keep::Nothing)?;
            }
            thread::yield_now();
        }
        Err(Error::NotFound)
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
