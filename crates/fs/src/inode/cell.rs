//! **Purpose.** An inode in memory: the version that readers find, and the lock under which it
//! changes.
//!
//! **Model.** While an inode is in memory it has one [`InodeCell`]: an immutable version that
//! readers
//! find without a lock, and the lock of the threads that change it. A change publishes a new
//! version; the bytes in the inode table change with it, so a cell that leaves the cache can be
//! made
//! anew.
//!
//! **Invariants.** An inode has at most one cell that can be changed: a thread pins the cell before
//! it changes the inode, a pinned cell is not retired, and a retired one is not pinned. A reader of
//! a
//! cell that is retired meanwhile notices it by the sequence count, and looks again.
//!
//! **Locking.** The lock of a cell is the inode's lock (see [`crate::txn::order`]); it may be held
//! across I/O, and readers do not take it. Threads that change one leaf of a directory share it
//! ([`Pinned::share`]); all others take it exclusively.

use fourscore_journal::LastTid;
use fourscore_mballoc::FilePrealloc;
use fourscore_ondisk::Tid;
use fourscore_ondisk::checksum::InodeSeed;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fourscore_sync::epoch::{self, EpochCell, Guard};
use fourscore_sync::rank::{Place, Ranked};
use fourscore_sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Serial};

use crate::dir::name_cache::Departures;
use crate::inode::cached::CachedInode;
use crate::inode::orphans::OrphanPlace;
use crate::inode::sequence::{Change, SeqCount};
use crate::txn::block_locks::BlockGuard;
use crate::txn::order;
use crate::{Error, Result};

/// An inode in memory, on cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct InodeCell {
    /// `None` once the inode is deleted.
    version: EpochCell<CachedInode>,
    /// Who holds it beside the cache, to change it or to have it open.
    pins: AtomicU32,
    /// Odd while a change of several objects is made visible (see [`crate::inode::consistent`]).
    sequence: SeqCount,
    /// Of names, if it is a directory.
    departures: Departures,
    changing: RwLock<Changing>,
    /// The lock of its leaf, if it is a directory that has only one.
    only_leaf: Mutex<()>,
    /// Where its lock stands in the order.
    place: Place,
}

/// What is guarded by the inode's lock.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    retired: bool,
    /// What was claimed for the file and not used yet; made when it is first written.
    pub(crate) prealloc: Option<Arc<FilePrealloc>>,
    /// The last transaction that changed it, or may have before it was loaded.
    pub(crate) last: LastTid,
    /// The last of them that changed what its content is read by: size and map.
    pub(crate) last_data: LastTid,
    /// How many have it open.
    pub(crate) opens: u32,
    /// Where it is on record, while it has no name or is being truncated.
    pub(crate) orphan: Option<OrphanPlace>,
    /// Whether it was made without a name and may be given one.
    pub(crate) is_linkable: bool,
    /// Whether it has times that are in memory only, and is on a list for that.
    pub(crate) has_lazy_times: AtomicBool,
    /// Writes that `last` does not vouch for.
    pub(crate) unjoined: UnjoinedWrites,
}

/// Writes over content that changed nothing of the inode, and so joined no transaction: fsync must
/// vouch for them in another way. For who holds the inode's lock: alone, or to write beside others.
#[derive(Debug, Default)]
pub(crate) struct UnjoinedWrites {
    /// How many there were, or may have been before the inode was loaded.
    count: AtomicU64,
    /// How many of these somebody vouches for.
    settled: AtomicU64,
}

impl UnjoinedWrites {
    /// Notes one that is about to be made.
    pub(crate) fn note(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there are, if not all of them are vouched for.
    pub(crate) fn unsettled(&self) -> Option<u64> {
        let count = self.count.load(Ordering::Relaxed);
        (count != self.settled.load(Ordering::Relaxed)).then_some(count)
    }

    /// The first `count` of them are vouched for.
    pub(crate) fn settle_up_to(&self, count: u64) {
        self.settled.fetch_max(count, Ordering::Relaxed);
    }

    /// All of them are.
    pub(crate) fn settle(&self) {
        self.settle_up_to(self.count.load(Ordering::Relaxed));
    }
}

impl Changing {
    /// It has one more name: if it was made without, it is off the record, and like any other.
    pub(crate) fn note_gained_name(&mut self) {
        if self.is_linkable {
            (self.orphan, self.is_linkable) = (None, false);
        }
    }
}

impl InodeCell {
    /// A cell for `inode`, which transactions up to `last` may have changed. `lives` has the number
    /// of a directory's life.
    pub(crate) fn new(inode: CachedInode, last: Option<Tid>, lives: &Serial) -> Self {
        let changing = Changing {
            last: LastTid::of(last),
            last_data: LastTid::of(last),
            ..Changing::default()
        };
        if last.is_some() && inode.file_type() == FileType::Regular {
            changing.unjoined.note();
        }
        let rank = match inode.file_type() {
            FileType::Directory => order::DIRECTORY,
            _ if inode.has(InodeFlags::EA_INODE_FL) => order::VALUE,
            _ => order::FILE,
        };
        let departures = match inode.file_type() {
            FileType::Directory => Departures::of_life(lives.next()),
            _ => Departures::default(),
        };
        Self {
            place: rank.place(inode.nr().0.into()),
            version: EpochCell::new(Some(Box::new(inode))),
            pins: AtomicU32::new(0),
            sequence: SeqCount::default(),
            departures,
            changing: RwLock::new(changing),
            only_leaf: Mutex::default(),
        }
    }

    pub(crate) fn version<'g>(&self, guard: &'g Guard) -> Result<&'g CachedInode> {
        match self.version.load(guard) {
            Some(version) => Ok(version),
            None => Err(Error::NotFound),
        }
    }

    fn share(&self) -> Shared<'_> {
        // The holder of the lock may wait until all guards are gone.
        epoch::assert_not_pinned();
        let lock = &self.changing;
        self.place.lock(|| lock.try_read(), || lock.read())
    }

    /// The sequence count that readers compare.
    pub(crate) fn sequence(&self) -> &SeqCount {
        &self.sequence
    }

    /// Tells whether a name of the directory has gone meanwhile.
    pub(crate) fn departures(&self) -> &Departures {
        &self.departures
    }

    /// Whether the cell has left the cache, or is about to.
    pub(crate) fn is_retired(&self) -> bool {
        self.changing
            .try_read()
            .is_some_and(|changing| changing.retired)
    }

    /// Lets the cell go, unless somebody needs it. What was claimed ahead for the file is found by
    /// the allocator when space is short.
    pub(crate) fn retire(&self) -> bool {
        let Some(mut changing) = self.changing.try_write() else {
            return false;
        };
        let idle = self.pins.load(Ordering::Acquire) == 0;
        if idle && !changing.retired {
            changing.retired = true;
            self.sequence.close();
        }
        idle
    }
}

/// The lock of an inode, held alone.
pub(crate) type Locked<'c> = Ranked<RwLockWriteGuard<'c, Changing>>;
/// The lock of an inode, shared with others.
pub(crate) type Shared<'c> = Ranked<RwLockReadGuard<'c, Changing>>;

/// An inode that stays in memory as long as this lives.
#[derive(Debug)]
pub(crate) struct Pinned(pub(crate) Arc<InodeCell>);

impl Pinned {
    /// The pin on `cell`; gives it back if it has left the cache.
    pub(crate) fn on(cell: Arc<InodeCell>) -> std::result::Result<Self, Arc<InodeCell>> {
        let changing = cell.share();
        let has_left = changing.retired;
        if !has_left {
            // Under the lock, so that the cell is not retired at the same time.
            cell.pins.fetch_add(1, Ordering::AcqRel);
        }
        drop(changing);
        if has_left { Err(cell) } else { Ok(Self(cell)) }
    }

    /// A pin on an inode that is just being made and that nobody finds before
    /// [`cache::enter_pinned`](crate::inode::cache::enter_pinned).
    pub(crate) fn unseen(inode: CachedInode, lives: &Serial) -> Self {
        let cell = InodeCell::new(inode, None, lives);
        cell.pins.fetch_add(1, Ordering::AcqRel);
        Self(Arc::new(cell))
    }

    /// The lock of an inode that nobody else knows of. It is not waited for, so it has no place in
    /// the order.
    pub(crate) fn lock_unseen(&self) -> RwLockWriteGuard<'_, Changing> {
        let lock = self.0.changing.try_write();
        lock.expect("nobody else knows it")
    }

    /// Another pin on the same inode.
    pub(crate) fn again(&self) -> Self {
        self.0.pins.fetch_add(1, Ordering::AcqRel);
        Self(fourscore_sync::clone_arc(&self.0))
    }

    /// Takes the inode's lock, if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<RwLockWriteGuard<'_, Changing>> {
        self.0.changing.try_write()
    }

    /// Takes the inode's lock.
    pub(crate) fn lock(&self) -> Locked<'_> {
        epoch::assert_not_pinned();
        let lock = &self.0.changing;
        self.0.place.lock(|| lock.try_write(), || lock.write())
    }

    /// Keeps out who takes the lock alone, and lets others in who share it: who does not change
    /// the inode, or changes names of a directory each in a leaf of its own.
    pub(crate) fn share(&self) -> Shared<'_> {
        self.0.share()
    }

    /// Takes the lock of the leaf of a directory that has only one: directories of their own have
    /// nothing in common.
    pub(crate) fn lock_only_leaf(&self) -> BlockGuard<'_> {
        let lock = &self.0.only_leaf;
        order::LEAF.only().lock(|| lock.try_lock(), || lock.lock())
    }

    /// The inode as it is; does not change under the lock.
    ///
    /// # Errors
    /// `NotFound` once it is deleted.
    pub(crate) fn version<'g>(&self, guard: &'g Guard) -> Result<&'g CachedInode> {
        self.0.version(guard)
    }

    /// The seed of its checksums, as of the version that is shown.
    ///
    /// # Errors
    /// `NotFound` once it is deleted.
    pub(crate) fn checksum_seed(&self) -> Result<InodeSeed> {
        let guard = epoch::pin();
        Ok(self.0.version(&guard)?.on_disk().checksum_seed())
    }

    /// Begins a change of several objects, for the holder of the inode's lock: until the result is
    /// dropped readers look again.
    pub(crate) fn change_sequence(&self) -> Change<'_> {
        self.0.sequence.change()
    }

    /// Its type.
    ///
    /// # Errors
    /// `NotFound` once it is deleted or has lost its last name.
    pub(crate) fn type_while_named(&self) -> Result<FileType> {
        let guard = epoch::pin();
        let inode = self.0.version(&guard)?;
        match inode.on_disk().links_count() {
            0 => Err(Error::NotFound),
            _ => Ok(inode.file_type()),
        }
    }

    /// A copy of the version that is shown, for the holder of the inode's lock: it stays true
    /// without an epoch guard, under which nobody should wait.
    ///
    /// # Errors
    /// `NotFound` once it is deleted.
    pub(crate) fn copy(&self) -> Result<CachedInode> {
        self.copy_if(|_| Ok(()))
    }

    /// The same, if `check` lets it pass.
    ///
    /// # Errors
    /// `NotFound` once it is deleted; what `check` refuses it with.
    pub(crate) fn copy_if(
        &self,
        check: impl FnOnce(&CachedInode) -> Result<()>,
    ) -> Result<CachedInode> {
        let guard = epoch::pin();
        let inode = self.0.version(&guard)?;
        check(inode)?;
        Ok(inode.clone())
    }

    /// Its type, for the holder of the inode's lock.
    ///
    /// # Errors
    /// `NotFound` once it is deleted.
    pub(crate) fn file_type(&self) -> Result<FileType> {
        Ok(self.0.version(&epoch::pin())?.file_type())
    }

    /// Shows `version` from now on; `None` if the inode was deleted. For the holder of the lock.
    pub(crate) fn publish(&self, version: Option<CachedInode>) {
        self.0.version.store(version.map(Box::new));
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::AcqRel);
    }
}
