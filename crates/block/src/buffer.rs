//! **Purpose.** A buffer: one metadata block in memory, read without a lock, modified by
//! copy-on-write, and sealed for the commit of a transaction (as jbd2 does with a buffer head and
//! its frozen data).
//!
//! **Model.** The live content of a buffer is in one of two states: a *frozen* version, which is
//! immutable, or a *draft*, a mutable copy:
//!
//! ```text
//!             modify: copy                    modify: in place
//!   FROZEN ----------------------> DRAFT ------------.
//!     ^   an immutable version,      |  ^____________|
//!     |   read lock-free             |   a mutable copy, accessed
//!     |                              |   only under the lock
//!     '------------------------------'
//!        freeze, by a reader or by sealing: moved, not copied
//! ```
//!
//! A writer copies a frozen version because a reader may be using it. Further changes are made in
//! the draft without copying until a reader freezes it. So a block that is changed a thousand times
//! in a transaction and not read meanwhile is copied once, and a reader never sees half of a
//! change.
//!
//! *Sealing* hands the block as a transaction left it to the commit. If a newer transaction changes
//! the block before the committing one was sealed, the buffer keeps the content of the committing
//! one beside the live content (`committing`). The tid of a change decides under the lock which of
//! the two it belongs to; reference counts play no part.
//!
//! **Invariants.**
//! - Live content = the frozen version if there is one, else the draft; never both.
//! - `dirty` is the one transaction whose changes the live content holds and that is not sealed;
//!   `committing` belongs to the transaction before it.
//! - The bytes of a version, of `committing` after sealing and of a [`Sealed`] never change.
//! - A buffer that is dirty, has `committing` content, is not checkpointed or is kept ([`Kept`]) is
//!   not retired, unless its block is freed. A retired buffer is never changed again: a writer must
//!   look the block up again.
//!
//! **Locking.** Reading a frozen version takes no lock and writes nothing. The lock is held for
//! memory operations only, never across I/O, and no lock of another buffer is taken under it
//! (asserted in debug builds). The tag of a version is a relaxed atomic: it describes bytes that
//! were published to the reader together with the version itself.
//!
//! **Crash safety.** [`Sealed`] is exactly the block as the transaction left it, whatever runs
//! meanwhile. Checksums written while sealing go into the live content as well, unless a newer
//! transaction has changed it, so a stale checksum is neither logged nor checkpointed.

use std::fmt;
use std::mem;
use std::ops::Deref;

use fourscore_ondisk::checksum::InodeSeed;
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock, Tid};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::epoch::{self, EpochCell, Guard};
use fourscore_sync::rank::{Rank, Ranked};
use fourscore_sync::{Arc, Mutex, MutexGuard};

/// The kinds of structure that a block can be verified as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Structure {
    /// The superblock or a backup of it.
    Superblock = 1,
    /// A block of group descriptors.
    GroupDescriptors,
    /// The block bitmap of a group.
    BlockBitmap,
    /// The inode bitmap of a group.
    InodeBitmap,
    /// A part of an inode table.
    InodeTable,
    /// A node of an extent tree.
    ExtentNode,
    /// A block of an indirect block map.
    IndirectMap,
    /// A block of directory entries.
    DirectoryLeaf,
    /// A root or inner node of a hashed directory.
    DirectoryIndex,
    /// A block of extended attributes.
    Xattrs,
    /// A block of the orphan file.
    OrphanFile,
    /// The block of multiple-mount protection.
    Mmp,
    /// The target of a slow symbolic link.
    Symlink,
    /// Data of a file that is journaled.
    Content,
}

impl Structure {
    const ALL: [Self; 14] = [
        Self::Superblock,
        Self::GroupDescriptors,
        Self::BlockBitmap,
        Self::InodeBitmap,
        Self::InodeTable,
        Self::ExtentNode,
        Self::IndirectMap,
        Self::DirectoryLeaf,
        Self::DirectoryIndex,
        Self::Xattrs,
        Self::OrphanFile,
        Self::Mmp,
        Self::Symlink,
        Self::Content,
    ];
}

/// The tag of the bytes of a buffer: the kind of structure that they were verified as, and the
/// inode it belongs to (0 for structures of the file system itself).
///
/// A writer adds the seed of the owner's checksums, so that the checksum can be computed at sealing
/// from the tag alone. The seed takes no part in comparisons.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedAs {
    key: u64,
    seed: u32,
}

impl VerifiedAs {
    /// The tag of a `structure` that belongs to `owner`.
    #[must_use]
    pub fn new(structure: Structure, owner: InodeNr) -> Self {
        Self::with_key(structure, owner.0)
    }

    /// The tag of a `structure` that belongs to a group: a bitmap.
    #[must_use]
    pub fn of_group(structure: Structure, group: GroupNr) -> Self {
        Self::with_key(structure, group.0)
    }

    fn with_key(structure: Structure, owner: u32) -> Self {
        Self {
            key: (structure as u64) << 32 | u64::from(owner),
            seed: 0,
        }
    }

    /// The same tag with the seed of the owner's checksums.
    #[must_use]
    pub fn seeded(self, seed: InodeSeed) -> Self {
        Self {
            seed: seed.value(),
            ..self
        }
    }

    /// The kind of structure; `None` for the tag of bytes that were not verified.
    #[must_use]
    pub fn structure(self) -> Option<Structure> {
        let kind = self.key >> 32;
        Structure::ALL
            .into_iter()
            .find(|&structure| structure as u64 == kind)
    }

    /// The inode it belongs to, 0 for structures of the file system itself.
    #[must_use]
    pub fn owner(self) -> InodeNr {
        InodeNr(self.low_half())
    }

    /// The group of a tag made by [`VerifiedAs::of_group`].
    #[must_use]
    pub fn group(self) -> GroupNr {
        GroupNr(self.low_half())
    }

    /// The seed given with [`VerifiedAs::seeded`].
    #[must_use]
    pub fn seed(self) -> InodeSeed {
        InodeSeed::from_value(self.seed)
    }

    fn low_half(self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the low half is the number"
        )]
        let owner = self.key as u32;
        owner
    }
}

impl PartialEq for VerifiedAs {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for VerifiedAs {}

/// The rank of the locks of buffers: after all locks of operations and the handle. A thread holds
/// one of them at a time.
pub const BUFFER: Rank = Rank::new(90, "buffer");

/// The number of looks at a draft under the lock ([`Buffer::look_verified`]) between two changes,
/// before a further look freezes it. A writer that creates a name looks a few times, for the name
/// and for space, before it changes the block; more looks than this come from mere readers.
const MAX_LOOKS: u8 = 16;

/// The tag of bytes that were not verified yet.
const UNVERIFIED: VerifiedAs = VerifiedAs { key: 0, seed: 0 };

/// A block of metadata in memory.
///
/// A buffer has cache lines of its own, which its reference counts share: buffers that are
/// allocated one after the other may be used by different cores.
#[repr(align(64))]
pub struct Buffer {
    block: PhysBlock,
    frozen: EpochCell<Version>,
    write_state: Mutex<WriteState>,
}

/// Immutable bytes and their tag.
struct Version {
    verified_as: AtomicU64,
    /// The seed of the checksums, given by the writer.
    seed: u32,
    bytes: Arc<[u8]>,
}

impl Version {
    fn new(tag: VerifiedAs, bytes: Arc<[u8]>) -> Self {
        Self {
            verified_as: AtomicU64::new(tag.key),
            seed: tag.seed,
            bytes,
        }
    }

    fn tag(&self) -> VerifiedAs {
        VerifiedAs {
            key: self.verified_as.load(Ordering::Relaxed),
            seed: self.seed,
        }
    }
}

/// The state that is guarded by the buffer's lock.
#[derive(Default)]
struct WriteState {
    draft: Option<Draft>,
    dirty: Option<Tid>,
    committing: Option<CommittingContent>,
    /// The last transaction that was sealed here and is not checkpointed yet.
    uncheckpointed: Option<Tid>,
    /// What its home location holds, until the block is sealed.
    novelty: Novelty,
    /// The number of callers that keep it in the cache.
    keepers: u32,
    retired: bool,
}

/// A mutable copy of the content, accessed only under the lock. Its bytes have no other owner.
struct Draft {
    verified_as: VerifiedAs,
    bytes: Arc<[u8]>,
    /// The number of looks since the last change.
    looks: u8,
}

/// The content as a committing transaction left it, which was not sealed yet.
struct CommittingContent {
    tid: Tid,
    verified_as: VerifiedAs,
    bytes: Arc<[u8]>,
}

/// A block as a transaction left it. The bytes never change.
#[derive(Clone)]
pub struct Sealed {
    /// The block.
    pub block: PhysBlock,
    /// The transaction.
    pub tid: Tid,
    /// Its content.
    pub bytes: Arc<[u8]>,
    /// What its home location held before this transaction.
    pub novelty: Novelty,
}

/// What the home location of a block held before the transaction that changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Novelty {
    /// Older content of the block.
    #[default]
    Known,
    /// Nothing that is read: the block has a fixed place, such as a bitmap, and the device says
    /// that it was never used, or it is preallocated for data. An older copy may be in the log.
    Unused,
    /// Nothing: the transaction has allocated the block, so nothing that is durable refers to it.
    Allocated,
}

/// Whether a change was the first of its transaction in this buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It was: the caller adds the buffer to the transaction's list.
    First,
    /// It was not: the buffer is on the list already.
    Again,
}

/// The buffer has left the cache; the caller must look the block up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffer has left the cache")]
pub struct Retired;

impl Buffer {
    /// A buffer with the content `bytes` as it is on the device.
    #[must_use]
    pub fn new(block: PhysBlock, bytes: Arc<[u8]>) -> Self {
        let version = Version::new(UNVERIFIED, bytes);
        Self {
            block,
            frozen: EpochCell::new(Some(Box::new(version))),
            write_state: Mutex::new(WriteState::default()),
        }
    }

    /// A buffer that is made in memory, with the content `bytes`, which nothing else owns. Nothing
    /// refers to older content at the block's home location. The content is a draft, so that the
    /// writer that fills it copies nothing.
    pub(crate) fn made(block: PhysBlock, bytes: Arc<[u8]>, novelty: Novelty) -> Self {
        let draft = Draft {
            verified_as: UNVERIFIED,
            bytes,
            looks: 0,
        };
        let write_state = WriteState {
            draft: Some(draft),
            novelty,
            ..WriteState::default()
        };
        Self {
            block,
            frozen: EpochCell::new(None),
            write_state: Mutex::new(write_state),
        }
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> PhysBlock {
        self.block
    }

    /// The live bytes. The returned slice does not change while the guard lives; the next call
    /// returns later changes.
    #[must_use]
    pub fn bytes<'g>(&self, guard: &'g Guard) -> &'g [u8] {
        &self.version(guard).bytes
    }

    /// The live bytes, after `check` has accepted them as the structure of `tag`. The check is
    /// skipped if these very bytes have passed it before, or if the writer that changed them gave
    /// the same tag.
    ///
    /// # Errors
    /// The error of `check`. It is not cached.
    pub fn verified<'g, E>(
        &self,
        tag: VerifiedAs,
        guard: &'g Guard,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<&'g [u8], E> {
        let version = self.version(guard);
        if version.verified_as.load(Ordering::Relaxed) != tag.key {
            check(&version.bytes)?;
            version.verified_as.store(tag.key, Ordering::Relaxed);
        }
        Ok(&version.bytes)
    }

    /// Calls `look` with the live bytes, after `check` has accepted them as in [`verified`]. For
    /// callers that are going to change the block: unlike a reader, this does not freeze a draft,
    /// so that the next change needs no copy. Only after 16 looks between two changes does a
    /// further one freeze it. If there is a draft, both functions run under the buffer's lock.
    ///
    /// # Errors
    /// The error of `check`.
    ///
    /// [`verified`]: Self::verified
    pub fn look_verified<R, E>(
        &self,
        tag: VerifiedAs,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, E> {
        let guard = epoch::pin();
        if self.frozen.load(&guard).is_none() {
            let mut state = self.lock();
            if let Some(draft) = &mut state.draft
                && draft.looks < MAX_LOOKS
            {
                draft.looks += 1;
                if draft.verified_as != tag {
                    check(&draft.bytes)?;
                }
                return Ok(look(&draft.bytes));
            }
        }
        self.verified(tag, &guard, check).map(look)
    }

    /// Calls `look` with the live bytes without a check, and never freezes a draft. For blocks of
    /// which each user checks its own part.
    pub fn look<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let guard = epoch::pin();
        if self.frozen.load(&guard).is_none() {
            let state = self.lock();
            if let Some(draft) = &state.draft {
                return look(&draft.bytes);
            }
        }
        look(self.bytes(&guard))
    }

    fn lock(&self) -> Ranked<MutexGuard<'_, WriteState>> {
        BUFFER
            .only()
            .lock(|| self.write_state.try_lock(), || self.write_state.lock())
    }

    /// The live content as a version. Freezes a draft.
    fn version<'g>(&self, guard: &'g Guard) -> &'g Version {
        match self.frozen.load(guard) {
            Some(version) => version,
            None => self.freeze(&mut self.lock(), guard),
        }
    }

    /// Freezes a draft if there is one. Returns the version, which stays the live one while the
    /// lock is held.
    fn freeze<'g>(&self, state: &mut WriteState, guard: &'g Guard) -> &'g Version {
        if let Some(draft) = state.draft.take() {
            self.publish(draft.verified_as, draft.bytes);
        }
        self.frozen
            .load(guard)
            .expect("without a draft there is a frozen version")
    }

    fn publish(&self, verified_as: VerifiedAs, bytes: Arc<[u8]>) {
        self.frozen
            .store(Some(Box::new(Version::new(verified_as, bytes))));
    }

    /// Changes the bytes within the running transaction `tid`, and marks the result as verified as
    /// `tag`: apart from its checksum it must be a valid structure of this kind.
    ///
    /// # Errors
    /// [`Retired`] if the buffer has left the cache.
    ///
    /// # Panics
    /// If two older transactions are not sealed yet: a journal commits one transaction at a time.
    pub fn modify<R>(
        &self,
        tid: Tid,
        tag: VerifiedAs,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<(R, Joined), Retired> {
        self.try_modify(tid, tag, change).map_err(|_| Retired)
    }

    /// Adds the block to the transaction `tid` without changing it. If an older transaction has
    /// changed it and is not sealed yet, the content keeps the tag of that change, so that both
    /// transactions write the checksum. Else the content is sealed as it is.
    ///
    /// # Errors
    /// If the buffer is retired; nothing was done then.
    ///
    /// # Panics
    /// As [`Buffer::modify`].
    pub fn join(&self, tid: Tid) -> Result<Joined, Retired> {
        let mut state = self.lock();
        if state.retired {
            return Err(Retired);
        }
        if state.dirty == Some(tid) {
            return Ok(Joined::Again);
        }
        self.draft_for(&mut state, tid);
        Ok(Joined::First)
    }

    /// As [`Buffer::modify`], but if the buffer is retired, the error is `change`, so that the
    /// caller can apply it to the new buffer of the block.
    pub(crate) fn try_modify<R, F>(
        &self,
        tid: Tid,
        tag: VerifiedAs,
        change: F,
    ) -> Result<(R, Joined), F>
    where
        F: FnOnce(&mut [u8]) -> R,
    {
        let mut state = self.lock();
        if state.retired {
            return Err(change);
        }
        let joined = if state.dirty == Some(tid) {
            Joined::Again
        } else {
            Joined::First
        };
        let draft = self.draft_for(&mut state, tid);
        let bytes = Arc::get_mut(&mut draft.bytes).expect("the bytes of a draft have one owner");
        let result = change(bytes);
        (draft.verified_as, draft.looks) = (tag, 0);
        Ok((result, joined))
    }

    /// The draft for `tid`. This is the existing draft if it holds no changes of an older
    /// transaction, else a copy of the live content. The content with changes of an older
    /// transaction is kept for its commit, and the copy has its tag.
    fn draft_for<'s>(&self, state: &'s mut WriteState, tid: Tid) -> &'s mut Draft {
        let older = state.dirty.replace(tid).filter(|&older| older != tid);
        let is_own = older.is_none() && state.draft.is_some();
        if is_own {
            return state.draft.as_mut().expect("checked above");
        }
        let (verified_as, live) = match state.draft.take() {
            Some(draft) => (draft.verified_as, draft.bytes),
            None => {
                let guard = epoch::pin();
                let version = self.freeze(state, &guard);
                (version.tag(), Arc::clone(&version.bytes))
            }
        };
        let copy = Draft {
            verified_as: if older.is_some() {
                verified_as
            } else {
                UNVERIFIED
            },
            bytes: Arc::from(&*live),
            looks: 0,
        };
        if let Some(older) = older {
            assert!(
                state.committing.is_none(),
                "block {}: two unsealed transactions",
                self.block
            );
            state.committing = Some(CommittingContent {
                tid: older,
                verified_as,
                bytes: live,
            });
        }
        if !self.frozen.is_empty() {
            self.frozen.store(None);
            epoch::count_retired_bytes(copy.bytes.len());
        }
        state.draft.insert(copy)
    }

    /// Seals the buffer for the transaction `tid`: returns the block as `tid` left it. The next
    /// change, by any transaction, copies it. `None` if `tid` changed nothing here, or was sealed
    /// before.
    ///
    /// No handle of `tid` may be open any more.
    #[must_use]
    pub fn seal(&self, tid: Tid) -> Option<Sealed> {
        self.seal_by(tid, None::<fn(VerifiedAs, &mut [u8])>)
    }

    /// As [`Buffer::seal`], after `finish` has written the fields that are written once per commit,
    /// such as the checksum of the structure that the tag names. The result becomes the live
    /// content, unless a newer transaction has changed that already.
    #[must_use]
    pub fn seal_with(
        &self,
        tid: Tid,
        finish: impl FnOnce(VerifiedAs, &mut [u8]),
    ) -> Option<Sealed> {
        self.seal_by(tid, Some(finish))
    }

    fn seal_by<F>(&self, tid: Tid, finish: Option<F>) -> Option<Sealed>
    where
        F: FnOnce(VerifiedAs, &mut [u8]),
    {
        let mut state = self.lock();
        let older = state.committing.take_if(|content| content.tid == tid);
        let bytes = if let Some(content) = older {
            let mut bytes = content.bytes;
            if let Some(finish) = finish {
                finish(content.verified_as, Arc::make_mut(&mut bytes));
            }
            bytes
        } else {
            state.dirty.take_if(|dirty| *dirty == tid)?;
            let guard = epoch::pin();
            if let Some(finish) = finish {
                self.finish_live(&mut state, &guard, finish);
            }
            Arc::clone(&self.freeze(&mut state, &guard).bytes)
        };
        state.uncheckpointed = Some(tid);
        Some(Sealed {
            block: self.block,
            tid,
            bytes,
            novelty: mem::take(&mut state.novelty),
        })
    }

    /// Applies `finish` to the live content: to a draft in place, to a frozen version on a copy.
    fn finish_live(
        &self,
        state: &mut WriteState,
        guard: &Guard,
        finish: impl FnOnce(VerifiedAs, &mut [u8]),
    ) {
        if let Some(draft) = &mut state.draft {
            let bytes = Arc::make_mut(&mut draft.bytes);
            finish(draft.verified_as, bytes);
            return;
        }
        let version = self.freeze(state, guard);
        let verified_as = version.tag();
        let mut bytes = Arc::clone(&version.bytes);
        finish(verified_as, Arc::make_mut(&mut bytes));
        self.publish(verified_as, bytes);
    }

    /// Whether the live content holds changes of `tid` that are not sealed: then the buffer is on
    /// the list of `tid`, and does not leave the cache.
    #[must_use]
    pub fn is_dirty_in(&self, tid: Tid) -> bool {
        self.lock().dirty == Some(tid)
    }

    /// Whether the buffer holds changes of `tid` that are not sealed yet.
    #[must_use]
    pub fn holds_changes_of(&self, tid: Tid) -> bool {
        let state = self.lock();
        let committing = state.committing.as_ref().map(|content| content.tid);
        state.dirty == Some(tid) || committing == Some(tid)
    }

    /// Notes that the block as `tid` left it is durable at its home location. From then on the
    /// buffer may leave the cache, unless a newer transaction has sealed or changed it meanwhile.
    pub fn checkpointed(&self, tid: Tid) {
        let mut state = self.lock();
        state.uncheckpointed.take_if(|last| *last == tid);
    }

    /// Discards the changes of `tid`, in which the block was freed, and retires the buffer. The
    /// content of an older transaction can still be sealed.
    pub fn forget(&self, tid: Tid) {
        let mut state = self.lock();
        state.dirty.take_if(|dirty| *dirty == tid);
        state.retired = true;
    }

    /// Whether the buffer is retired, and so refuses changes.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.lock().retired
    }

    /// Retires the buffer if all its changes are checkpointed and no caller keeps it. From then on
    /// it refuses changes, so the cache may drop it without losing a concurrent change.
    #[must_use]
    pub fn retire(&self) -> Retire {
        match self.write_state.try_lock() {
            Some(mut state) if state.is_clean() => {
                state.retired = true;
                Retire::Done
            }
            _ => Retire::InUse,
        }
    }
}

/// A buffer that stays in the cache as long as this lives, even over the budget, unless its block
/// is freed. For a caller whose change was refused because the buffer had left the cache: its next
/// attempt finds this one.
#[derive(Debug)]
pub struct Kept(Arc<Buffer>);

impl Kept {
    /// Keeps a buffer, unless it is retired already.
    pub(crate) fn new(buffer: &Arc<Buffer>) -> Option<Self> {
        let mut state = buffer.lock();
        if state.retired {
            return None;
        }
        state.keepers += 1;
        Some(Self(Arc::clone(buffer)))
    }
}

impl Deref for Kept {
    type Target = Arc<Buffer>;

    fn deref(&self) -> &Arc<Buffer> {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.lock().keepers -= 1;
    }
}

/// Whether a buffer was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retire {
    /// It was, and accepts no change any more.
    Done,
    /// It was not: it holds changes that are not checkpointed, is being changed, or is kept.
    InUse,
}

impl WriteState {
    fn is_clean(&self) -> bool {
        let is_checkpointed = self.committing.is_none() && self.uncheckpointed.is_none();
        self.dirty.is_none() && is_checkpointed && self.keepers == 0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Buffer");
        fields.field("block", &self.block.0);
        if let Some(state) = self.write_state.try_lock() {
            fields
                .field("dirty", &state.dirty)
                .field("uncheckpointed", &state.uncheckpointed);
            fields.field("retired", &state.retired);
        }
        fields.finish_non_exhaustive()
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Sealed(block {}, tid {}, {} bytes)",
            self.block,
            self.tid,
            self.bytes.len()
        )
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
