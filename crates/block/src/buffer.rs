//! **Purpose.** One metadata block in memory: read without a lock, changed by copy, sealed for
//! a transaction.
//!
//! **Model.** The live content of a buffer is in one of two states:
//!
//! ```text
//!             modify: copy                    modify: in place
//!   FROZEN ----------------------> DRAFT ------------.
//!     ^   an immutable version,      |  ^____________|
//!     |   read lock-free             |   bytes that only the holder
//!     |                              |   of the lock may look at
//!     '------------------------------'
//!        a reader comes, or the transaction is sealed: moved, not copied
//! ```
//!
//! A writer copies a frozen version because somebody may be reading it; it goes on in its draft
//! without copying until a reader wants the bytes. So a block that is changed a thousand times
//! in a transaction and not read is copied once, and a reader never sees half of a change.
//!
//! Beside the live content a buffer may hold one older content *aside*: that of a transaction
//! which is committing and was not sealed yet when a newer one began to change the block. Which
//! of the two a change belongs to is decided by its tid under the lock, never by counting
//! references.
//!
//! **Invariants.**
//! - Live content = the frozen version if there is one, else the draft; never both.
//! - `dirty` is the one transaction whose changes the live content holds and that is not sealed;
//!   `aside` belongs to the transaction before it.
//! - The bytes of a version, of `aside` after sealing and of a [`Sealed`] never change.
//! - A buffer that is dirty, has content aside or is not checkpointed is not retired, and a
//!   retired one is never changed again: whoever wants to must fetch the block anew.
//!
//! **Locking.** Reading a frozen version takes no lock and writes nothing. The lock is held for
//! memory operations only, never across I/O, and no other lock of a buffer is taken under it
//! (asserted in debug builds). The tag of a version is a relaxed atomic: it speaks about bytes that
//! reached the reader together with the version itself.
//!
//! **Crash safety.** [`Sealed`] is exactly what a transaction left, whatever runs meanwhile.
//! Checksums written while sealing go into the live content as well, unless it has moved on, so
//! a stale checksum is neither logged nor checkpointed.

use std::fmt;

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
    /// Content of a file that goes through the journal.
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

/// What the bytes of a buffer were found to be: a kind of structure, and the inode it belongs
/// to (0 for structures of the file system itself).
///
/// A writer adds the seed of the owner's checksums, so that whoever seals the block needs nothing
/// but the tag. The seed is no part of what is compared.
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

    /// The kind of structure; `None` for the tag of bytes that nobody has looked at.
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

/// The rank of the locks of buffers: behind all locks of operations and the handle; one at a time.
pub const BUFFER: Rank = Rank::new(90, "buffer");

/// So many may look at a draft between two changes under the lock. A name is looked for and its
/// room found before it is made, by a few at a time; who come more often do not come to change.
const MOST_LOOKS: u8 = 16;

/// The tag of bytes that nobody has looked at yet.
const UNVERIFIED: VerifiedAs = VerifiedAs { key: 0, seed: 0 };

/// A block of metadata in memory.
///
/// On cache lines of its own, its reference counts too: buffers are made one after the other, and
/// used by different cores.
#[repr(align(64))]
pub struct Buffer {
    block: PhysBlock,
    frozen: EpochCell<Version>,
    writing: Mutex<Writing>,
}

/// Immutable bytes, and what they were found to be.
struct Version {
    verified_as: AtomicU64,
    /// The seed that the writer gave.
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

/// What is guarded by the buffer's lock.
#[derive(Default)]
struct Writing {
    draft: Option<Draft>,
    dirty: Option<Tid>,
    aside: Option<Aside>,
    /// The last transaction that was sealed here and is not checkpointed yet.
    unsettled: Option<Tid>,
    /// Whether the block was made up in memory and has not been in its place since.
    is_new: bool,
    retired: bool,
}

/// Bytes that are visible under the lock only; nobody else holds them.
struct Draft {
    verified_as: VerifiedAs,
    bytes: Arc<[u8]>,
    /// How many have looked at it since it was changed.
    looks: u8,
}

/// The content that a committing transaction left and that was not sealed yet.
struct Aside {
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
    /// Whether the place of the block holds nothing yet that belongs to it.
    pub is_new: bool,
}

/// Whether a change was the first of its transaction in this buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// The buffer belongs on the transaction's list from now on.
    First,
    /// It is on the list already.
    Again,
}

/// The buffer has left the cache; the block must be fetched anew.
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
            writing: Mutex::new(Writing::default()),
        }
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> PhysBlock {
        self.block
    }

    /// The live bytes. They do not change while the guard lives; changes made meanwhile are seen
    /// by the next call.
    #[must_use]
    pub fn bytes<'g>(&self, guard: &'g Guard) -> &'g [u8] {
        &self.version(guard).bytes
    }

    /// The live bytes, after `check` has accepted them as what `tag` says. The check is skipped
    /// if these very bytes have passed it before, and is made anew after they changed, except
    /// where the writer vouched for them.
    ///
    /// # Errors
    /// What `check` returns; nothing is remembered then.
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

    /// What `look` makes of the live bytes, after `check` has accepted them as [`verified`] says.
    /// For who is going to change them, or looks before somebody does: unlike a reader, it leaves
    /// a draft as it is, so that the change needs no copy; unless so many look between two changes
    /// that they had better be readers. Both run under the buffer's lock if there is a draft.
    ///
    /// # Errors
    /// What `check` returns.
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
            let mut writing = self.lock_writing();
            if let Some(draft) = &mut writing.draft
                && draft.looks < MOST_LOOKS
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

    /// The same for bytes of which each user checks a part.
    pub fn look<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let guard = epoch::pin();
        if self.frozen.load(&guard).is_none() {
            let writing = self.lock_writing();
            if let Some(draft) = &writing.draft {
                return look(&draft.bytes);
            }
        }
        look(self.bytes(&guard))
    }

    fn lock_writing(&self) -> Ranked<MutexGuard<'_, Writing>> {
        BUFFER
            .only()
            .lock(|| self.writing.try_lock(), || self.writing.lock())
    }

    /// The live content as a version, frozen first if it is a draft.
    fn version<'g>(&self, guard: &'g Guard) -> &'g Version {
        match self.frozen.load(guard) {
            Some(version) => version,
            None => self.frozen_under(&mut self.lock_writing(), guard),
        }
    }

    /// The live content as a version; while the lock is held it stays the live one.
    fn frozen_under<'g>(&self, writing: &mut Writing, guard: &'g Guard) -> &'g Version {
        if let Some(draft) = writing.draft.take() {
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

    /// Changes the bytes within the transaction `tid`, which is running, and vouches that the
    /// result is what `tag` says but for its checksum.
    ///
    /// # Errors
    /// [`Retired`] if the buffer has left the cache.
    ///
    /// # Panics
    /// If two older transactions are not sealed yet: a journal commits one at a time.
    pub fn modify<R>(
        &self,
        tid: Tid,
        tag: VerifiedAs,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<(R, Joined), Retired> {
        self.try_modify(tid, tag, change).map_err(|_| Retired)
    }

    /// As [`Buffer::modify`], but a retired buffer gives the change back to be made elsewhere.
    pub(crate) fn try_modify<R, F>(
        &self,
        tid: Tid,
        tag: VerifiedAs,
        change: F,
    ) -> Result<(R, Joined), F>
    where
        F: FnOnce(&mut [u8]) -> R,
    {
        let mut writing = self.lock_writing();
        if writing.retired {
            return Err(change);
        }
        let joined = if writing.dirty == Some(tid) {
            Joined::Again
        } else {
            Joined::First
        };
        let draft = self.draft_of(&mut writing, tid);
        let bytes = Arc::get_mut(&mut draft.bytes).expect("a draft is held by nobody else");
        let result = change(bytes);
        (draft.verified_as, draft.looks) = (tag, 0);
        Ok((result, joined))
    }

    /// The draft for `tid`: the one there is, or a copy of the live content if that may be being
    /// read or belongs to an older transaction, for which it is then put aside.
    fn draft_of<'w>(&self, writing: &'w mut Writing, tid: Tid) -> &'w mut Draft {
        let older = writing.dirty.replace(tid).filter(|&older| older != tid);
        let is_own = older.is_none() && writing.draft.is_some();
        if is_own {
            return writing.draft.as_mut().expect("just seen");
        }
        let (verified_as, live) = match writing.draft.take() {
            Some(draft) => (draft.verified_as, draft.bytes),
            None => {
                let guard = epoch::pin();
                let version = self.frozen_under(writing, &guard);
                (version.tag(), Arc::clone(&version.bytes))
            }
        };
        let copy = Draft {
            verified_as: UNVERIFIED,
            bytes: Arc::from(&*live),
            looks: 0,
        };
        if let Some(older) = older {
            assert!(
                writing.aside.is_none(),
                "block {}: two unsealed transactions",
                self.block
            );
            writing.aside = Some(Aside {
                tid: older,
                verified_as,
                bytes: live,
            });
        }
        self.frozen.store(None);
        writing.draft.insert(copy)
    }

    /// Hands out the block as the transaction `tid` left it, and ends `tid`'s part in it: the
    /// next change, whichever transaction makes it, copies. `None` if `tid` changed nothing
    /// here, or was sealed before.
    ///
    /// No handle of `tid` may be open any more.
    #[must_use]
    pub fn seal(&self, tid: Tid) -> Option<Sealed> {
        self.seal_by(tid, None::<fn(VerifiedAs, &mut [u8])>)
    }

    /// As [`Buffer::seal`], after `finish` has written what is written once per commit, such as
    /// the checksum of what the block was vouched to be. The result becomes the live content,
    /// unless a newer transaction has changed that already.
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
        let mut writing = self.lock_writing();
        let bytes = if let Some(aside) = writing.aside.take_if(|aside| aside.tid == tid) {
            let mut bytes = aside.bytes;
            if let Some(finish) = finish {
                finish(aside.verified_as, Arc::make_mut(&mut bytes));
            }
            bytes
        } else {
            writing.dirty.take_if(|dirty| *dirty == tid)?;
            let guard = epoch::pin();
            if let Some(finish) = finish {
                self.finish_live(&mut writing, &guard, finish);
            }
            Arc::clone(&self.frozen_under(&mut writing, &guard).bytes)
        };
        writing.unsettled = Some(tid);
        Some(Sealed {
            block: self.block,
            tid,
            bytes,
            is_new: writing.is_new,
        })
    }

    /// Applies `finish` to the live content: in place to a draft, to a copy of what may be being
    /// read.
    fn finish_live(
        &self,
        writing: &mut Writing,
        guard: &Guard,
        finish: impl FnOnce(VerifiedAs, &mut [u8]),
    ) {
        if let Some(draft) = &mut writing.draft {
            let bytes = Arc::make_mut(&mut draft.bytes);
            finish(draft.verified_as, bytes);
            return;
        }
        let version = self.frozen_under(writing, guard);
        let verified_as = version.tag();
        let mut bytes = Arc::clone(&version.bytes);
        finish(verified_as, Arc::make_mut(&mut bytes));
        self.publish(verified_as, bytes);
    }

    /// Whether the live content holds changes of `tid`, so that another change by it joins
    /// nothing. Such a buffer does not leave the cache.
    #[must_use]
    pub fn is_dirty_in(&self, tid: Tid) -> bool {
        self.lock_writing().dirty == Some(tid)
    }

    /// Whether there are changes of `tid` here that are not sealed yet.
    #[must_use]
    pub fn holds_changes_of(&self, tid: Tid) -> bool {
        let writing = self.lock_writing();
        let aside = writing.aside.as_ref().map(|aside| aside.tid);
        writing.dirty == Some(tid) || aside == Some(tid)
    }

    /// Notes that what `tid` left is in its place on the device, durably. From then on the buffer
    /// may leave the cache, unless a newer transaction has sealed or changed it meanwhile.
    pub fn checkpointed(&self, tid: Tid) {
        let mut writing = self.lock_writing();
        writing.unsettled.take_if(|unsettled| *unsettled == tid);
        writing.is_new = false;
    }

    /// Notes that the block is made up in memory: what its place holds is nothing of it.
    pub(crate) fn set_new(&self) {
        self.lock_writing().is_new = true;
    }

    /// Gives up the changes of `tid`, in which the block was freed, and retires the buffer. What
    /// an older transaction left can still be sealed.
    pub fn forget(&self, tid: Tid) {
        let mut writing = self.lock_writing();
        writing.dirty.take_if(|dirty| *dirty == tid);
        writing.retired = true;
    }

    /// Whether changes are refused.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.lock_writing().retired
    }

    /// Retires the buffer if everything in it is on the device. From then on nobody can change
    /// it, so that the cache may drop it without losing a change that comes at the last moment.
    #[must_use]
    pub fn retire(&self) -> Retire {
        match self.writing.try_lock() {
            Some(mut writing) if writing.is_clean() => {
                writing.retired = true;
                Retire::Done
            }
            _ => Retire::InUse,
        }
    }
}

/// Whether a buffer may leave the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retire {
    /// It may, and accepts no change any more.
    Done,
    /// It holds changes that are not on the device, or is being changed.
    InUse,
}

impl Writing {
    fn is_clean(&self) -> bool {
        self.dirty.is_none() && self.aside.is_none() && self.unsettled.is_none()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Buffer");
        fields.field("block", &self.block.0);
        if let Some(writing) = self.writing.try_lock() {
            fields
                .field("dirty", &writing.dirty)
                .field("unsettled", &writing.unsettled);
            fields.field("retired", &writing.retired);
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
