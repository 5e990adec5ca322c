//! **Purpose.** Inodes in memory: decoded once, checked once, read by everyone.
//!
//! **Model.** An inode is named by its number and lives in the inode cache. Loading it reads the
//! descriptor of its group and one block of the inode table, verifies the checksum, decides once
//! how its content is laid out, and checks the root of its map. What follows asks only the result.
//!
//! While it is in memory an inode is one [`InodeCell`]: an immutable version that readers find
//! without a lock, and the lock of those who change it. A change publishes a new version; the bytes
//! in the inode table are changed with it, so a cell that leaves the cache can be made anew.
//!
//! **Invariants.** An inode has at most one cell that can be changed: who wants to change it pins
//! the cell, a pinned one is not retired, and a retired one is not pinned. Who reads by a cell when
//! it is retired is told by its sequence count, and looks again.
//!
//! **Locking.** A hit writes nothing. A miss takes the cache shard's lock to insert, never across
//! the read of the table. The lock of a cell is the inode's lock (see the crate's head for the
//! order); it may be held across I/O, and is not taken by readers. Who changes one leaf of a
//! directory shares it with others who do ([`Pinned::share`]); everybody else has it alone.

use fourscore_journal::LastTid;
use fourscore_mballoc::FilePrealloc;
use fourscore_ondisk::checksum::InodeSeed;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::{DeviceNr, FileMode, FileType, Inode, InodeFlags};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::time::Timestamp;
use fourscore_ondisk::xattr::Xattrs;
use fourscore_ondisk::{Corrupt, InodeNr, Tid, blockmap, extent};
use fourscore_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fourscore_sync::epoch::{self, EpochCell, Guard};
use fourscore_sync::rank::{Place, Ranked};
use fourscore_sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Serial};

use crate::dir::name_cache::Departures;
use crate::inode::consistent::{Change, SeqCount};
use crate::inode::orphans::OrphanPlace;
use crate::mount::fast_commit::{InodeChange, InodePatch};
use crate::txn::block_locks::BlockGuard;
use crate::txn::order;
use crate::{Error, Fs, Result};

/// The size from which on a target does not fit `i_block`, with a NUL behind it.
const FAST_SYMLINK_BYTES: u64 = 60;

/// How the content of an inode is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// An extent tree with its root in `i_block`.
    Extents,
    /// Direct and indirect pointers in `i_block`.
    BlockMap,
    /// In `i_block`, going on in the attribute `system.data`.
    Inline,
    /// A symbolic link whose target is in `i_block`.
    FastSymlink,
    /// Nothing: devices, pipes, sockets.
    Nothing,
}

/// A decoded inode.
#[derive(Clone, Debug)]
pub(crate) struct CachedInode {
    inode: Inode,
    file_type: FileType,
    layout: Layout,
    seed: Option<InodeSeed>,
}

impl CachedInode {
    /// Decides the layout of `inode` and checks the root of its map.
    pub(crate) fn new(inode: Inode, fs: &Fs) -> Result<Self> {
        let nr = inode.number();
        // A free inode has no type.
        let Some(file_type) = inode.file_type() else {
            return Err(Error::NotFound);
        };
        let layout = layout(&inode, file_type, fs);
        let physical = fs.data_blocks();
        match layout {
            Layout::Extents => extent::check_root(inode.i_block(), &physical)
                .map_err(|error| Corrupt::from(error).in_inode(nr))?,
            Layout::BlockMap => blockmap::check_root(inode.i_block(), &physical)
                .map_err(|error| Corrupt::from(error).in_inode(nr))?,
            Layout::Inline | Layout::FastSymlink | Layout::Nothing => {}
        }
        let seed = fs
            .superblock()
            .has_metadata_csum()
            .then(|| inode.checksum_seed());
        Ok(Self {
            inode,
            file_type,
            layout,
            seed,
        })
    }

    /// The inode as it is on disk.
    pub(crate) fn on_disk(&self) -> &Inode {
        &self.inode
    }

    pub(crate) fn nr(&self) -> InodeNr {
        self.inode.number()
    }

    pub(crate) fn file_type(&self) -> FileType {
        self.file_type
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// The seed of the checksums of its blocks; `None` without `metadata_csum`.
    pub(crate) fn seed(&self) -> Option<InodeSeed> {
        self.seed
    }

    /// The size of its content.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.inode.size_bytes()
    }

    /// The root of its map, or its content or target.
    pub(crate) fn i_block(&self) -> &[u8] {
        self.inode.i_block()
    }

    /// Whether its content is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.has(InodeFlags::ENCRYPT_FL)
    }

    /// Whether its content or its names are inside of it.
    pub(crate) fn is_inline(&self) -> bool {
        self.layout == Layout::Inline
    }

    pub(crate) fn has(&self, flag: InodeFlags) -> bool {
        self.inode.flags().contains(flag)
    }

    /// The inode, unless it holds the value of an attribute: such an inode is reached through the
    /// attribute only. Its times hold the value's hash and the count of its users, so an access to
    /// it as to a file would destroy them.
    ///
    /// # Errors
    /// `Corrupt`, as the kernel.
    pub(crate) fn not_a_value(&self) -> Result<&Self> {
        if self.has(InodeFlags::EA_INODE_FL) {
            return Err(self.unexpected_value());
        }
        Ok(self)
    }

    #[cold]
    fn unexpected_value(&self) -> Error {
        let error = Corrupt::from(RelationError::UnexpectedEaInode);
        error.in_inode(self.nr()).into()
    }

    /// Bytes of heap and inline memory, for the cache's budget.
    fn weight_bytes(&self) -> usize {
        size_of::<InodeCell>() + size_of::<Self>() + self.inode.heap_bytes()
    }
}

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
    fn new(inode: CachedInode, last: Option<Tid>, lives: &Serial) -> Self {
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
pub(crate) struct Pinned(Arc<InodeCell>);

impl Pinned {
    /// The pin on `cell`; gives it back if it has left the cache.
    fn on(cell: Arc<InodeCell>) -> std::result::Result<Self, Arc<InodeCell>> {
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
    /// [`Fs::enter_pinned`].
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

fn layout(inode: &Inode, file_type: FileType, fs: &Fs) -> Layout {
    match file_type {
        FileType::Regular | FileType::Directory | FileType::Symlink => {}
        _ => return Layout::Nothing,
    }
    let flags = inode.flags();
    let inline_data = fs
        .superblock()
        .features()
        .incompat
        .contains(Incompat::INLINE_DATA);
    if inline_data && flags.contains(InodeFlags::INLINE_DATA_FL) {
        Layout::Inline
    } else if file_type == FileType::Symlink && is_fast_symlink(inode, fs) {
        Layout::FastSymlink
    } else if flags.contains(InodeFlags::EXTENTS_FL) {
        Layout::Extents
    } else {
        Layout::BlockMap
    }
}

/// Whether a symbolic link has its target in `i_block`: if all the space it takes is its xattr
/// block. That, not its size, tells: a short one may have been written as a slow one. Where values
/// of attributes may be in inodes, whose space counts for it too, its size does tell.
fn is_fast_symlink(inode: &Inode, fs: &Fs) -> bool {
    let incompat = fs.superblock().features().incompat;
    if incompat.contains(Incompat::EA_INODE) {
        return (1..FAST_SYMLINK_BYTES).contains(&inode.size_bytes());
    }
    let cluster_sectors = (fs.geometry().cluster_size_bytes() / 512) as u64;
    let xattr_sectors = inode.file_acl().map_or(0, |_| cluster_sectors);
    inode.sectors() <= xattr_sectors
}

/// What is known of an inode without looking at its content: `stat`, and what ext4 adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub inode: InodeNr,
    /// Its type.
    pub file_type: FileType,
    /// Type and permissions.
    pub mode: FileMode,
    /// The user that owns it.
    pub uid: u32,
    /// The group that owns it.
    pub gid: u32,
    /// The project it counts for; 0 without the feature `project`.
    pub project_id: u32,
    /// Names that lead to it; 1 in a directory may mean "too many to count".
    pub links: u16,
    /// The size of its content.
    pub size_bytes: u64,
    /// The space it takes, in units of 512 bytes.
    pub sectors: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation; `None` where the inode has no room for it.
    pub crtime: Option<Timestamp>,
    /// The device number of a device node.
    pub device: Option<DeviceNr>,
    /// Flags, as `lsattr` shows them.
    pub flags: InodeFlags,
    /// Tells lives of the same number apart.
    pub generation: u32,
    /// `i_version`: changes whenever the inode does. Content that is written over content, at the
    /// tick of the clock at which the inode says that it was changed, does not change it, as in
    /// Linux for who does not ask in between.
    pub version: u64,
}

/// What a scan learns of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// What is known of it.
    pub stat: Stat,
    /// Whether it may have extended attributes.
    pub has_xattrs: bool,
}

impl Fs {
    /// What is known of `inode`.
    ///
    /// # Errors
    /// `NotFound` if no such inode is in use; `Corrupt` for one that holds the value of an
    /// attribute ([`Fs::holds_value`]).
    pub fn stat(&self, inode: InodeNr) -> Result<Stat> {
        let guard = epoch::pin();
        let found = self.inode(inode, &guard)?;
        if found.file_type() == FileType::Symlink && found.is_encrypted() {
            // Its size is that of its target, which may be in a block.
            drop(guard);
            return self.read_consistent(inode, |inode, guard| self.stat_of(inode, guard));
        }
        self.stat_of(found, &guard)
    }

    /// As [`Fs::stat`], for whoever asks for many inodes once, such as a walk of the whole tree:
    /// the inode does not enter the cache, which costs more than decoding it. Also tells whether
    /// it is worth asking for extended attributes.
    ///
    /// # Errors
    /// As [`Fs::stat`].
    pub fn scan(&self, inode: InodeNr) -> Result<Scanned> {
        let guard = epoch::pin();
        let loaded;
        let inode = match self.inodes.get(&inode, &guard) {
            Some(cell) => cell.version(&guard)?,
            None => {
                loaded = self.uncached_inode(inode)?;
                &loaded
            }
        };
        let inode = inode.not_a_value()?;
        let area = inode.on_disk().xattr_area().unwrap_or_default();
        let has_xattrs = inode.on_disk().file_acl().is_some()
            || Xattrs::in_inode(area).entries().next().is_some();
        let stat = self.stat_of(inode, &guard)?;
        Ok(Scanned { stat, has_xattrs })
    }

    /// Inode `nr` for a scan that will not come back to it.
    pub(crate) fn uncached_inode(&self, nr: InodeNr) -> Result<CachedInode> {
        let inode = self.load_inode(nr)?;
        // One that was deleted keeps its type, without a link. An orphan looks the same, but is in
        // memory as long as somebody has it open.
        if inode.links_count() == 0 && inode.dtime() != 0 {
            return Err(Error::NotFound);
        }
        CachedInode::new(inode, self)
    }

    fn stat_of(&self, cached: &CachedInode, guard: &Guard) -> Result<Stat> {
        let on_disk = cached.on_disk();
        Ok(Stat {
            inode: cached.nr(),
            file_type: cached.file_type(),
            mode: on_disk.mode(),
            uid: on_disk.uid(),
            gid: on_disk.gid(),
            project_id: on_disk.project_id(),
            links: on_disk.links_count(),
            size_bytes: self.shown_size(cached, guard)?,
            sectors: on_disk.sectors(),
            atime: on_disk.atime(),
            mtime: on_disk.mtime(),
            ctime: on_disk.ctime(),
            crtime: on_disk.crtime(),
            device: on_disk.device(),
            flags: on_disk.flags(),
            generation: on_disk.generation().0,
            version: on_disk.version(),
        })
    }

    /// The size that users see: of an encrypted symbolic link that of its target as it is shown
    /// without the key, as in Linux.
    fn shown_size(&self, inode: &CachedInode, guard: &Guard) -> Result<u64> {
        if inode.file_type() == FileType::Symlink && inode.is_encrypted() {
            return Ok(self.link_target(inode, guard)?.len() as u64);
        }
        Ok(inode.size_bytes())
    }

    /// Whether `inode` holds the value of an attribute (`EA_INODE_FL`). No name may lead to such
    /// an inode, its times are none, and every access to it as to a file is refused.
    ///
    /// # Errors
    /// `NotFound` if no such inode is in use.
    pub fn holds_value(&self, inode: InodeNr) -> Result<bool> {
        let guard = epoch::pin();
        let found = self.any_inode(inode, &guard)?;
        Ok(found.has(InodeFlags::EA_INODE_FL))
    }

    /// The inode with this number, from the cache or the disk; it lives as long as the guard.
    ///
    /// # Errors
    /// `NotFound` if no such inode is in use; `Corrupt` for one that holds the value of an
    /// attribute.
    pub(crate) fn inode<'g>(&self, nr: InodeNr, guard: &'g Guard) -> Result<&'g CachedInode> {
        self.any_inode(nr, guard)?.not_a_value()
    }

    /// The same, also for an inode that holds the value of an attribute.
    pub(crate) fn any_inode<'g>(&self, nr: InodeNr, guard: &'g Guard) -> Result<&'g CachedInode> {
        self.cell(nr, guard)?.version(guard)
    }

    /// A copy of the inode as it is now, for callers that do more than look at it.
    pub(crate) fn inode_copy(&self, nr: InodeNr) -> Result<CachedInode> {
        self.inode(nr, &epoch::pin()).cloned()
    }

    /// The cell of inode `nr`, which lives as long as the guard.
    pub(crate) fn cell<'g>(&self, nr: InodeNr, guard: &'g Guard) -> Result<&'g InodeCell> {
        loop {
            if let Some(cell) = self.inodes.get(&nr, guard) {
                return Ok(cell);
            }
            self.load_cell(nr)?;
            // Found by the next turn, unless the cache was so short of room that it left again.
        }
    }

    pub(crate) fn load_cell(&self, nr: InodeNr) -> Result<Arc<InodeCell>> {
        self.inodes.get_or_try_load(&nr, || {
            let cached = self.uncached_inode(nr)?;
            let weight_bytes = cached.weight_bytes();
            // It may have left memory with changes that are not durable yet.
            let writer = self.writer.as_deref();
            let last = writer.map(|writer| writer.journal().running_tid());
            let cell = InodeCell::new(cached, last, &self.lives);
            Ok((Arc::new(cell), weight_bytes))
        })
    }

    /// Keeps inode `nr` in memory, to change it or to have it open.
    ///
    /// # Errors
    /// As [`Fs::inode`].
    pub(crate) fn pin_inode(&self, nr: InodeNr) -> Result<Pinned> {
        let pinned = self.pin_any_inode(nr)?;
        if let Ok(inode) = pinned.version(&epoch::pin()) {
            inode.not_a_value()?;
        }
        Ok(pinned)
    }

    /// The same, also for an inode that holds the value of an attribute.
    pub(crate) fn pin_any_inode(&self, nr: InodeNr) -> Result<Pinned> {
        loop {
            match Pinned::on(self.load_cell(nr)?) {
                Ok(pinned) => return Ok(pinned),
                Err(cell) => self.drop_cell(nr, &cell),
            }
        }
    }

    /// Keeps the directory `nr` in memory. Its kind is looked at before anybody locks it: the order
    /// of locks depends on it, and a pin keeps the number from leading to something else.
    ///
    /// # Errors
    /// `NotADirectory`; as [`Fs::stat`].
    pub(crate) fn pin_directory(&self, nr: InodeNr) -> Result<Pinned> {
        let pinned = self.pin_inode(nr)?;
        self.directory(pinned.version(&epoch::pin())?)?;
        Ok(pinned)
    }

    /// Lets an inode be found that was just made.
    pub(crate) fn enter_pinned(&self, nr: InodeNr, pinned: &Pinned) {
        let cell = &pinned.0;
        let weight_bytes = cell
            .version(&epoch::pin())
            .map_or(0, CachedInode::weight_bytes);
        loop {
            let there = self.inodes.insert(nr, Arc::clone(cell), weight_bytes);
            if Arc::ptr_eq(&there, cell) {
                return;
            }
            // Left from an earlier life of the number.
            self.drop_cell(nr, &there);
        }
    }

    /// Takes a deleted inode out of the cache.
    pub(crate) fn drop_pinned(&self, nr: InodeNr, pinned: &Pinned) {
        self.drop_cell(nr, &pinned.0);
    }

    /// Takes a retired or deleted inode out of the cache.
    fn drop_cell(&self, nr: InodeNr, cell: &Arc<InodeCell>) {
        self.inodes.remove_if(&nr, |found| Arc::ptr_eq(found, cell));
    }

    /// Inode `nr` as fast commits left it, or from its table.
    pub(crate) fn load_inode(&self, nr: InodeNr) -> Result<Inode> {
        match self.inode_change(nr) {
            None => self.inode_on_disk(nr, None),
            Some(InodeChange::Patched(patch)) => self.inode_on_disk(nr, Some(patch)),
            Some(InodeChange::Deleted) => Err(Error::NotFound),
        }
    }

    /// Reads inode `nr` from its table, and changes it as `patch` says.
    fn inode_on_disk(&self, nr: InodeNr, patch: Option<&InodePatch>) -> Result<Inode> {
        let Some((group, index)) = self.geometry().inode_group(nr) else {
            return Err(Error::NotFound);
        };
        let place = self.geometry().inode_place(self.inode_table(group)?, index);
        let parse = |block: &[u8]| {
            let bytes = block.get(place.offset_bytes..).unwrap_or_default();
            match patch {
                None => Inode::parse(bytes, nr, self.superblock()),
                Some(patch) => patch
                    .apply(bytes, nr, self.superblock())
                    .and_then(|bytes| Inode::parse(&bytes, nr, self.superblock())),
            }
        };
        let inode = self.look_at_inode_table(group, place.block, parse)?;
        Ok(inode.map_err(|error| Corrupt::from(error).in_inode(nr).in_block(place.block))?)
    }
}
