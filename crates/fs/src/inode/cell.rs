//! **Purpose.** An inode in memory: the version that readers find, and the lock under which it
//! changes.
//!
//! **Model.** While an inode is in memory it has one [`InodeCell`], which holds an immutable
//! version and a lock. Readers find the version without a lock; threads that change the inode take
//! the lock. A change publishes a new version. The bytes in the inode table change with it, so a
//! cell that has left the cache can be loaded again.
//!
//! **Invariants.** An inode has at most one cell that can be changed: a thread pins the cell before
//! it changes the inode, a pinned cell is not retired, and a retired one is not pinned. If a cell
//! is retired while a reader uses it, the reader notices by the sequence count, and retries. The
//! cell of an inode on the orphan list is not retired either: nothing but the cell says where on
//! the list the inode is. Such an inode is open, or its deletion or truncation has failed midway.
//!
//! **Locking.** The lock of a cell is the inode's lock (see [`crate::txn::order`]). It may be held
//! across I/O. It is shared by threads that pin the inode, by writers that only overwrite mapped
//! data, by threads that change one leaf of a directory, and by readers after several attempts
//! without a lock; all others take it exclusively.

use fourscore_mballoc::{FilePrealloc, Writers};
use fourscore_ondisk::Tid;
use fourscore_ondisk::checksum::InodeSeed;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fourscore_sync::epoch::{self, EpochCell, Guard};
use fourscore_sync::rank::{Place, Ranked};
use fourscore_sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Serial};

use crate::dir::name_cache::Departures;
use crate::inode::cached::CachedInode;
use crate::inode::last_change::LastChange;
use crate::inode::orphans::OrphanPlace;
use crate::inode::sequence::{Change, SeqCount};
use crate::txn::fast_commit::time::Time;
use crate::txn::order;
use crate::txn::striped::StripeGuard;
use crate::{Error, Result};

/// An inode in memory, on cache lines of its own. What readers load is on the first line, and no
/// word that each write changes is there.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct InodeCell {
    /// `None` once the inode is deleted.
    version: EpochCell<CachedInode>,
    /// Odd while a change of several objects is published (see [`crate::inode::consistent`]).
    sequence: SeqCount,
    /// Counts the departures of names, if the inode is a directory ([`crate::dir::name_cache`]).
    departures: Departures,
    /// The position of its lock in the lock order.
    place: Place,
    locks: Locks,
}

/// The part of a cell that is written by threads that use the inode, on cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Locks {
    changing: RwLock<Changing>,
    /// The number of pins besides the cache's reference: changes in progress and open files.
    pins: AtomicU32,
    /// The lock of its leaf, if it is a directory that has only one.
    only_leaf: Mutex<()>,
}

/// The state that the inode's lock guards.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    retired: bool,
    /// Space that is preallocated for the file and unused so far; created when the file is first
    /// written.
    pub(crate) prealloc: Option<Arc<FilePrealloc>>,
    /// The last transaction that changed the inode, or may have changed it before it was loaded.
    pub(crate) last: LastChange,
    /// The last transaction that changed what a read of its data depends on: size and map.
    pub(crate) last_data: LastChange,
    /// The open count.
    pub(crate) opens: u32,
    /// Whether it was open and no longer is, so that no writer keeps it open.
    is_closed: bool,
    /// Its place on the orphan list, while it has no name or is being truncated.
    pub(crate) orphan: Option<OrphanPlace>,
    /// Whether a truncation has changed its size and not freed all blocks behind the new end yet.
    pub(crate) is_cut: bool,
    /// Whether it was created without a name and may be given one.
    pub(crate) is_linkable: bool,
    /// Whether it has times that are in memory only, and so is on the list of such inodes.
    pub(crate) has_lazy_times: AtomicBool,
    /// Writes that `last` does not cover.
    pub(crate) unjoined: UnjoinedWrites,
}

/// Writes that overwrote data and changed nothing of the inode, and so joined no transaction. fsync
/// must make them durable in another way. To be used under the inode's lock, exclusive or shared:
/// writers that overwrite data run in parallel.
#[derive(Debug, Default)]
pub(crate) struct UnjoinedWrites {
    /// The number of such writes, including one that may have happened before the inode was loaded.
    count: AtomicU64,
    /// How many of these are covered in another way.
    settled: AtomicU64,
}

impl UnjoinedWrites {
    /// Counts a write that is about to begin.
    pub(crate) fn note(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of writes, if not all of them are covered.
    pub(crate) fn unsettled(&self) -> Option<u64> {
        let count = self.count.load(Ordering::Relaxed);
        (count != self.settled.load(Ordering::Relaxed)).then_some(count)
    }

    /// Marks the first `count` writes as covered.
    pub(crate) fn settle_up_to(&self, count: u64) {
        self.settled.fetch_max(count, Ordering::Relaxed);
    }

    /// Marks all writes as covered.
    pub(crate) fn settle(&self) {
        self.settle_up_to(self.count.load(Ordering::Relaxed));
    }
}

impl Changing {
    /// Counts an open.
    pub(crate) fn open(&mut self) {
        self.opens += 1;
        self.is_closed = false;
    }

    /// Counts a close. Returns whether the inode is not open any more.
    pub(crate) fn close(&mut self) -> bool {
        self.opens = self.opens.saturating_sub(1);
        self.is_closed = self.opens == 0;
        self.is_closed
    }

    /// Whether the file is likely to grow. A file that is written by its number alone, without
    /// being opened, counts as open: nothing says when its writer is done.
    pub(crate) fn writers(&self) -> Writers {
        match self.is_closed {
            true => Writers::Closed,
            false => Writers::Open,
        }
    }

    /// Notes that the inode has one more name. If it was created without a name, it is off the
    /// orphan list and like any other inode now.
    pub(crate) fn note_gained_name(&mut self) {
        if self.is_linkable {
            (self.orphan, self.is_linkable) = (None, false);
        }
    }
}

impl InodeCell {
    /// Creates a cell for `inode`. Transactions up to `last`, and units of fast commits up to
    /// `time`, may have changed it. `lives` numbers the loads of inodes.
    pub(crate) fn new(inode: CachedInode, last: Option<Tid>, time: Time, lives: &Serial) -> Self {
        let changing = Changing {
            last: LastChange::of(last, time),
            last_data: LastChange::of(last, time),
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
        let life = lives.next();
        let departures = match inode.file_type() {
            FileType::Directory => Departures::of_life(life),
            _ => Departures::default(),
        };
        Self {
            place: rank.place(inode.nr().0.into()),
            version: EpochCell::new(Some(Box::new(inode))),
            sequence: SeqCount::of_life(life),
            departures,
            locks: Locks {
                changing: RwLock::new(changing),
                pins: AtomicU32::new(0),
                only_leaf: Mutex::default(),
            },
        }
    }

    pub(crate) fn version<'g>(&self, guard: &'g Guard) -> Result<&'g CachedInode> {
        match self.version.load(guard) {
            Some(version) => Ok(version),
            None => Err(Error::NotFound),
        }
    }

    /// Publishes a version of a quota file, for the holder of the lock of insertion: that lock
    /// stands for the inode's.
    pub(crate) fn replace_hidden(&self, version: CachedInode) {
        self.version.store(Some(Box::new(version)));
    }

    fn share(&self) -> Shared<'_> {
        // The holder of the lock may wait until all guards are dropped.
        epoch::assert_not_pinned();
        let lock = &self.locks.changing;
        self.place.lock(|| lock.try_read(), || lock.read())
    }

    /// Returns the sequence count that readers compare.
    pub(crate) fn sequence(&self) -> &SeqCount {
        &self.sequence
    }

    /// Returns the count that says whether a name has departed from the directory since a moment.
    pub(crate) fn departures(&self) -> &Departures {
        &self.departures
    }

    /// Whether the cell has left the cache, or is about to.
    pub(crate) fn is_retired(&self) -> bool {
        self.locks
            .changing
            .try_read()
            .is_some_and(|changing| changing.retired)
    }

    /// Retires the cell, unless it is in use, or the inode is on the orphan list. The allocator
    /// finds the file's preallocated space when space is short.
    pub(crate) fn retire(&self) -> bool {
        let Some(mut changing) = self.locks.changing.try_write() else {
            return false;
        };
        let idle = self.locks.pins.load(Ordering::Acquire) == 0 && changing.orphan.is_none();
        if idle && !changing.retired {
            changing.retired = true;
            self.sequence.close();
        }
        idle
    }
}

/// The exclusive lock of an inode.
pub(crate) type Locked<'c> = Ranked<RwLockWriteGuard<'c, Changing>>;
/// The shared lock of an inode.
pub(crate) type Shared<'c> = Ranked<RwLockReadGuard<'c, Changing>>;

/// An inode that stays in memory as long as this value lives.
#[derive(Debug)]
pub(crate) struct Pinned(pub(crate) Arc<InodeCell>);

impl Pinned {
    /// Pins `cell`; returns `cell` if it has left the cache.
    pub(crate) fn on(cell: Arc<InodeCell>) -> std::result::Result<Self, Arc<InodeCell>> {
        let changing = cell.share();
        let has_left = changing.retired;
        if !has_left {
            // Under the lock, so that the cell is not retired at the same time.
            cell.locks.pins.fetch_add(1, Ordering::AcqRel);
        }
        drop(changing);
        if has_left { Err(cell) } else { Ok(Self(cell)) }
    }

    /// Pins an inode that is being created and that no other thread finds before
    /// [`cache::enter_pinned`](crate::inode::cache::enter_pinned).
    pub(crate) fn unseen(inode: CachedInode, lives: &Serial) -> Self {
        let cell = InodeCell::new(inode, None, Time::default(), lives);
        cell.locks.pins.fetch_add(1, Ordering::AcqRel);
        Self(Arc::new(cell))
    }

    /// Takes the lock of an inode that no other thread can reach. The call never waits, so the lock
    /// has no position in the lock order.
    pub(crate) fn lock_unseen(&self) -> RwLockWriteGuard<'_, Changing> {
        let lock = self.0.locks.changing.try_write();
        lock.expect("no other thread can reach it")
    }

    /// Returns another pin on the same inode.
    pub(crate) fn again(&self) -> Self {
        self.0.locks.pins.fetch_add(1, Ordering::AcqRel);
        Self(fourscore_sync::clone_arc(&self.0))
    }

    /// Takes the inode's lock exclusively, if it is free.
    pub(crate) fn try_lock(&self) -> Option<RwLockWriteGuard<'_, Changing>> {
        self.0.locks.changing.try_write()
    }

    /// Takes the inode's lock exclusively.
    pub(crate) fn lock(&self) -> Locked<'_> {
        epoch::assert_not_pinned();
        let lock = &self.0.locks.changing;
        self.0.place.lock(|| lock.try_write(), || lock.write())
    }

    /// Takes the inode's lock shared. For callers that do not change the inode, and for callers
    /// that change names of a directory, each in a leaf of its own.
    pub(crate) fn share(&self) -> Shared<'_> {
        self.0.share()
    }

    /// Takes the lock of the leaf of a directory that has only one. Two such directories share no
    /// lock.
    pub(crate) fn lock_only_leaf(&self) -> StripeGuard<'_> {
        let lock = &self.0.locks.only_leaf;
        order::LEAF.only().lock(|| lock.try_lock(), || lock.lock())
    }

    /// Returns the current version of the inode; it does not change under the lock.
    ///
    /// # Errors
    /// `NotFound` once it is deleted.
    pub(crate) fn version<'g>(&self, guard: &'g Guard) -> Result<&'g CachedInode> {
        self.0.version(guard)
    }

    /// Returns the seed of its checksums, from the published version.
    ///
    /// # Errors
    /// `NotFound` once it is deleted.
    pub(crate) fn checksum_seed(&self) -> Result<InodeSeed> {
        let guard = epoch::pin();
        Ok(self.0.version(&guard)?.on_disk().checksum_seed())
    }

    /// Begins a change of several objects, for the holder of the inode's lock. Readers retry until
    /// the result is dropped.
    pub(crate) fn change_sequence(&self) -> Change<'_> {
        self.0.sequence.change()
    }

    /// Counts a change that unmapped or freed blocks ([`SeqCount::count_free`]).
    pub(crate) fn count_free(&self) {
        self.0.sequence.count_free();
    }

    /// Returns its type.
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

    /// Returns a copy of the published version, for the holder of the inode's lock. The copy stays
    /// valid without an epoch guard; a thread should not wait while it holds such a guard.
    ///
    /// # Errors
    /// `NotFound` once it is deleted.
    pub(crate) fn copy(&self) -> Result<CachedInode> {
        self.copy_if(|_| Ok(()))
    }

    /// Returns the same copy, if `check` accepts it.
    ///
    /// # Errors
    /// `NotFound` once it is deleted; the error of `check`.
    pub(crate) fn copy_if(
        &self,
        check: impl FnOnce(&CachedInode) -> Result<()>,
    ) -> Result<CachedInode> {
        let guard = epoch::pin();
        let inode = self.0.version(&guard)?;
        check(inode)?;
        Ok(inode.clone())
    }

    /// Returns its type, for the holder of the inode's lock.
    ///
    /// # Errors
    /// `NotFound` once it is deleted.
    pub(crate) fn file_type(&self) -> Result<FileType> {
        Ok(self.0.version(&epoch::pin())?.file_type())
    }

    /// Returns the inode with the state that its lock guards.
    pub(crate) fn held<'a>(&'a self, locked: &'a Changing) -> HeldInode<'a> {
        HeldInode {
            pinned: self,
            locked,
        }
    }

    /// Returns the inode with the state that its lock guards, to be changed.
    pub(crate) fn locked<'a>(&'a self, locked: &'a mut Changing) -> LockedInode<'a> {
        LockedInode {
            pinned: self,
            locked,
        }
    }

    /// Publishes `version`; `None` if the inode was deleted. For the holder of the lock.
    pub(crate) fn publish(&self, version: Option<CachedInode>) {
        self.0.version.store(version.map(Box::new));
    }
}

/// An inode whose lock the caller holds exclusively.
#[derive(Debug)]
pub(crate) struct LockedInode<'a> {
    pub(crate) pinned: &'a Pinned,
    pub(crate) locked: &'a mut Changing,
}

impl LockedInode<'_> {
    /// Returns the same inode, to be passed on for a while.
    pub(crate) fn reborrow(&mut self) -> LockedInode<'_> {
        self.pinned.locked(self.locked)
    }

    /// Returns the same inode, for callees that do not change what the lock guards.
    pub(crate) fn held(&self) -> HeldInode<'_> {
        self.pinned.held(self.locked)
    }
}

/// An inode whose lock the caller holds, exclusively or shared, with read access to the state that
/// the lock guards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldInode<'a> {
    pub(crate) pinned: &'a Pinned,
    pub(crate) locked: &'a Changing,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.locks.pins.fetch_sub(1, Ordering::AcqRel);
    }
}
