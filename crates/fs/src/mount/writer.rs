//! **Purpose.** Writing: what a file system that is mounted for writing has beside one that is
//! read, its beginning and its end.
//!
//! **Model.** An operation takes the locks of the inodes it changes, plans against the state they
//! protect, and carries the plan out in one handle of the journal ([`plan`]). Inodes, their maps
//! and directories are then shown in their new form. Data is written to its blocks before the plan
//! that makes them part of a file.
//!
//! ```text
//! inode locks -> plan: read, claim, compute -> data to its place -> handle: memory only -> show
//! ```
//!
//! | module | responsibility |
//! |---|---|
//! | `options` | how a file system is opened for writing |
//! | `plan` | an operation's changes, before they are made |
//! | `carry_out` | making them in one handle, and visible in order |
//! | `memory` | the memory of plans |
//! | `order` | the order of locks |
//! | `block_locks` | locks for blocks of one kind |
//! | `groups` | bitmaps and descriptors |
//! | `prefetch` | bitmaps read ahead |
//! | `journaled` | content that goes through the journal |
//! | `inodes` | which inodes are free |
//! | `seal` | what is written once per commit: checksums, descriptors |
//! | `quiet` | when readers of freed blocks are gone |
//! | `room` | waiting for space that is coming |
//! | `slot` | an inode's bytes in its table |
//! | `superblock` | words of the superblock that change with something else |
//! | `map` | changing the map of a file, whatever form it has |
//! | `tree` | changing a tree of extents |
//! | `block_map` | changing direct and indirect pointers |
//! | `clusters` | blocks of a file that share a cluster |
//! | `entries` | changing the names in a directory |
//! | `leaves` | changing names in one leaf beside others |
//! | `touch` | what a directory says of itself then |
//! | `names` | create, link |
//! | `removal` | unlink, and what becomes of an inode without a name |
//! | `rename`, `exchange` | rename |
//! | `fallocate` | preallocating, punching, zeroing, moving ranges |
//! | `content` | write, truncate |
//! | `copy` | writes of several buffers, copies between files |
//! | `sync` | making durable what was done |
//! | `freeze` | standing still, for a copy of the device |
//! | `trim` | telling the device what is free |
//! | `mmp` | keeping other hosts away |
//! | `inline` | content that is kept inside of inodes |
//! | `attributes` | permissions, owner, times |
//! | `access_times` | times of the last access |
//! | `lazy_times` | times that are written later |
//! | `flags` | flags, project, generation, and what flags forbid |
//! | `xattrs` | extended attributes |
//! | `values` | values of attributes in inodes of their own |
//! | `acls` | access control lists |
//! | `opened` | inodes that are open |
//! | `orphans` | the record of inodes that are not whole |
//! | `slots` | the slots of the orphan file |
//! | `errors` | what happens when the file system is found to be broken |
//! | `state` | what the superblock says of a mount |
//! | `sabotage` | steps left out on purpose, for the crash harness |
//! | `recovery` | what a crash left, finished when mounting |
//! | `fast_commits` | what fast commits changed, written when mounting |
//!
//! **Locking.** Rename lock -> directories by inode number -> files by inode number -> a leaf of a
//! directory -> a block of attributes -> values that attributes share -> a value -> slots of the
//! orphan file, chain of orphans -> inodes of a group -> handle -> buffers, groups ([`order`],
//! asserted in debug builds). Readers take none of these.
//!
//! **Crash safety.** What one call of `Plan::carry_out` changes is durable as a whole or
//! not at all. A file system without a journal has to be checked after a crash; what a check does
//! not have to fear is said by crate `journal` (`in_place`). The superblock says what has to be
//! done ([`state`]).

use fourscore_block::{BlockDevice, UnorderedDevice};
use fourscore_journal::{Credits, Handle, Journal, JournalStats, Log, NewChecksums};
use fourscore_mballoc::stats::Tally;
use fourscore_mballoc::{Allocator, Geometry, Layout, Options, Privilege, Stamp, Tunables};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::time::Timestamp;
use fourscore_ondisk::{GroupNr, PhysBlock, Tid};
use fourscore_sync::rank::{Ranked, Waits};
use fourscore_sync::{Arc, Counter, Mutex, MutexGuard, Weak};

use crate::file::journaled::DataMode;
use crate::group::table::{Groups, Source};
use crate::inode::access_times::AccessTimes;
use crate::inode::alloc::Inodes;
use crate::inode::lazy_times::LazyTimes;
use crate::inode::orphans::Orphans;
use crate::mount::errors::Errors;
use crate::mount::freeze::{Freezer, Rest};
use crate::mount::mmp::Mmp;
use crate::mount::options::{Barriers, MountOptions};
use crate::mount::state::{Mounted, check_unmounted};
use crate::txn::block_locks::BlockLocks;
use crate::txn::faults::Breaking;
use crate::txn::grace::Quiet;
use crate::txn::order;
use crate::txn::seal::Seal;
use crate::txn::space::Room;
use crate::{Error, Fs, Result};

/// What writing takes.
#[derive(Debug)]
pub(crate) struct Writer {
    /// What the file system lies on, with flushes that count.
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) journal: Journal,
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) inodes: Inodes,
    pub(crate) orphans: Orphans,
    pub(crate) quiet: Arc<Quiet>,
    pub(crate) room: Room,
    /// Renames of directories, so that none becomes its own ancestor.
    pub(crate) renames: Mutex<()>,
    pub(crate) leaves: BlockLocks,
    pub(crate) errors: Errors,
    pub(crate) xattr_blocks: BlockLocks,
    /// Inodes of values that several attributes have.
    pub(crate) values: Mutex<()>,
    pub(crate) access_times: AccessTimes,
    pub(crate) nodiratime: bool,
    /// `None` if times are written at once.
    pub(crate) lazy_times: Option<LazyTimes>,
    pub(crate) data: DataMode,
    /// Whether every directory gives its group to what is made in it.
    pub(crate) bsd_groups: bool,
    pub(crate) retries: Counter,
    pub(crate) privilege: Privilege,
    pub(crate) revokes_per_credit: usize,
    /// What is done wrong on purpose.
    pub(crate) breaking: Breaking,
    /// The transaction in which everything has to be, if that is so.
    pub(crate) only: Option<Tid>,
    pub(crate) freezer: Freezer,
    /// Keeps other hosts away, with the feature `mmp`; set when the file system is mounted.
    pub(crate) mmp: Mutex<Option<Mmp>>,
}

impl Writer {
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Opens a handle.
    pub(crate) fn start(&self, credits: Credits) -> Result<Handle<'_>> {
        use fourscore_journal::Error as Refusal;
        let Some(tid) = self.only else {
            return Ok(self.journal.start(credits)?);
        };
        self.journal
            .start_in(tid, credits)
            .map_err(|error| match error {
                Refusal::TooManyCredits { .. } => Error::ReadOnly(
                    "the fast commits in the journal are more than one transaction has room for"
                        .into(),
                ),
                other => other.into(),
            })
    }

    pub(crate) fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    pub(crate) fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    /// Where the inode table of `group` begins.
    pub(crate) fn inode_table(&self, group: GroupNr) -> Option<PhysBlock> {
        Some(self.groups.get(group)?.inodes().table)
    }

    pub(crate) fn inodes(&self) -> &Inodes {
        &self.inodes
    }

    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// How many blocks a plan should come to that frees what is mapped: a fraction of a
    /// transaction, so that many can be in one, and at most what is quickly done.
    pub(crate) fn room_of_a_step(&self) -> usize {
        (self.journal.most_credits().0 as usize / 4).clamp(8, 512)
    }

    /// Lets nobody in while the file system is frozen.
    pub(crate) fn freezer(&self) -> &Freezer {
        &self.freezer
    }

    pub(crate) fn rest_mmp(&self, rest: Rest) {
        if let Some(mmp) = &*self.mmp.lock() {
            match rest {
                Rest::Begins => mmp.rest(),
                Rest::Ends => mmp.go_on(),
            }
        }
    }

    /// Keeps others from moving directories.
    pub(crate) fn lock_renames(&self) -> Ranked<MutexGuard<'_, ()>> {
        order::RENAMES
            .only()
            .lock(|| self.renames.try_lock(), || self.renames.lock())
    }

    pub(crate) fn access_times(&self) -> AccessTimes {
        self.access_times
    }

    /// Whether accesses of directories are not noted.
    pub(crate) fn skips_directories(&self) -> bool {
        self.nodiratime
    }

    /// The locks of leaves of directories.
    pub(crate) fn leaves(&self) -> &BlockLocks {
        &self.leaves
    }

    /// Whether every directory gives its group to what is made in it.
    pub(crate) fn gives_group(&self) -> bool {
        self.bsd_groups
    }

    /// The locks of blocks of attributes.
    pub(crate) fn xattr_blocks(&self) -> &BlockLocks {
        &self.xattr_blocks
    }

    /// Keeps others out of the inodes of values that several attributes have.
    pub(crate) fn lock_values(&self) -> Ranked<MutexGuard<'_, ()>> {
        order::VALUES
            .only()
            .lock(|| self.values.try_lock(), || self.values.lock())
    }

    /// Whether the blocks that are kept for the super-user may be used.
    pub(crate) fn privilege(&self) -> Privilege {
        self.privilege
    }

    /// What a free has to wait for, beside its commit. While there is only one transaction nobody
    /// else reads.
    pub(crate) fn stamp(&self) -> Stamp {
        match self.only {
            None => self.quiet.stamp(),
            Some(_) => Stamp::default(),
        }
    }

    /// Has it seen whether those who read what was freed so far are gone.
    pub(crate) fn hurry_readers(&self) {
        self.quiet.hurry();
    }

    /// How many blocks one credit revokes, at the least.
    pub(crate) fn revokes_per_credit(&self) -> usize {
        self.revokes_per_credit
    }

    /// Counts a plan that was begun anew.
    pub(crate) fn count_retry(&self) {
        self.retries.add(1);
    }
}

impl Fs {
    /// As [`Writer::retried`], for who does all of an operation.
    pub(crate) fn retried<T>(&self, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        self.writer()?.retried(attempt)
    }

    /// Opens the file system on `device` for reading and writing. A dirty journal is replayed
    /// first. Nobody else may write to the device meanwhile.
    ///
    /// A file system without a journal is written as well. What is durable and what is not is the
    /// same; but after a crash it has to be checked (`e2fsck`) before it is mounted again.
    ///
    /// # Errors
    /// As [`Fs::open`]; `ReadOnly` for a file system with a feature that is read but not written,
    /// which is named, and for one without a journal that has to be checked first; `InUse` if
    /// another host has it mounted (feature `mmp`). Where the last one did not unmount it, this
    /// waits for some twenty seconds to see whether it still lives.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "as `open`: the file system keeps it"
    )]
    pub fn mount(device: Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Arc<Self>> {
        let superblock =
            crate::mount::open::read_superblock(&*device, crate::SuperblockCopy::Primary)?;
        check_writable(&superblock)?;
        options.check_journal_device(&superblock)?;
        check_unmounted(&superblock)?;
        let options = &options.over(&superblock);
        options.check(&superblock)?;
        // Refused before anything is written.
        options.tune(&Tunables::new(geometry(&superblock)?))?;
        let mmp = Mmp::take(&device, &superblock)?;
        match (Self::mount_taken(&device, options), mmp) {
            (Ok(fs), Some(mmp)) => {
                mmp.guard(&fs);
                *fs.writer()?.mmp.lock() = Some(mmp);
                Ok(fs)
            }
            (Err(error), Some(mmp)) => {
                mmp.end()?;
                Err(error)
            }
            (mounted, None) => mounted,
        }
    }

    /// Mounts what nobody else has.
    pub(crate) fn mount_taken(
        device: &Arc<dyn BlockDevice>,
        options: &MountOptions,
    ) -> Result<Arc<Self>> {
        let bare = || {
            let superblock =
                crate::mount::open::read_superblock(&**device, crate::SuperblockCopy::Primary)?;
            Self::bare(Arc::clone(device), superblock, &options.open)
        };
        let mut fs = bare()?;
        if fs
            .superblock()
            .features()
            .incompat
            .contains(Incompat::RECOVER)
        {
            let before = fs.raw_superblock()?;
            if let Some((log, overlay)) = fs.replay_onto_device(&options.open)? {
                Self::write_fast_commits(bare()?, log, &overlay)?;
            }
            fs.keep_errors(&before)?;
            fs = bare()?;
        }
        fs.read_orphans()?;
        fs.take_over_error(&options.open)?;
        fs.mark(Mounted::Yes, None)?;
        let mut fs = bare()?;
        if options.barriers_of(fs.superblock()) == Barriers::Off {
            let superblock = Superblock::clone(fs.superblock());
            let unordered = Arc::new(UnorderedDevice::new(Arc::clone(device)));
            fs = Self::bare(unordered, superblock, &options.open)?;
        }
        let log = fs.superblock().journal().map(|_| fs.log(&options.open));
        let fs = Self::with_writer(
            fs,
            log.transpose()?,
            (options, Arc::clone(device)),
            Scope::All,
        )?;
        options.tune(fs.writer()?.allocator().tunables())?;
        match fs.finish_orphans() {
            Ok(()) => Ok(fs),
            Err(error) => {
                // What could be finished is; no transaction is left in the journal.
                fs.unmount()?;
                Err(error)
            }
        }
    }

    pub(crate) fn with_writer(
        mut fs: Self,
        log: Option<Log>,
        (mount, device): (&MountOptions, Arc<dyn BlockDevice>),
        scope: Scope,
    ) -> Result<Arc<Self>> {
        let groups = Arc::new(Groups::read(&fs)?);
        let geometry = geometry(fs.superblock())?;
        let block_bytes = fs.geometry().block_size().bytes();
        let most_loaded = mount.most_groups_loaded(block_bytes);
        let quiet = Arc::new(Quiet::new(
            geometry.groups(),
            most_loaded,
            mount.discards(&fs),
        ));
        let journal = fs.begin_journal(log, mount, (&groups, &quiet))?;
        let reserved = fs.superblock().reserved_blocks().0;
        let only = match scope {
            Scope::All => None,
            Scope::OneTransaction => Some(journal.running_tid()),
        };
        let options = Options {
            // What the only transaction frees need not wait for it: nothing but the journal is
            // written before its commit.
            durable: only.unwrap_or_else(|| journal.committed_tid()),
            root_clusters: reserved >> geometry.layout().cluster_bits,
            reserved_clusters: 0,
        };
        let superblock = Arc::clone(&fs.superblock);
        let superblock = &*superblock;
        let on_error = mount.on_error.unwrap_or(superblock.error_policy().into());
        let errors = Errors::new(on_error, mount.panic_hook.clone());
        let inodes = Inodes::new(&fs, &geometry);
        let orphans = Orphans::read(&fs)?;
        let fs = Arc::new_cyclic(|weak: &Weak<Self>| {
            let source = Source::new(Arc::clone(&groups), weak.clone());
            let allocator = Arc::new(Allocator::new(geometry, Box::new(source), options));
            quiet.serve(&allocator);
            fs.writer = Some(Box::new(Writer {
                device,
                journal,
                allocator,
                groups,
                inodes,
                orphans,
                quiet,
                room: Room::default(),
                renames: Mutex::new(()),
                leaves: BlockLocks::new(order::LEAF),
                errors,
                xattr_blocks: BlockLocks::new(order::XATTR_BLOCK),
                values: Mutex::new(()),
                access_times: mount.access_times.unwrap_or_default(),
                nodiratime: mount.nodiratime.unwrap_or_default(),
                lazy_times: mount.has_lazy_times().then(LazyTimes::default),
                data: mount.data_mode(superblock),
                bsd_groups: mount.gives_group(superblock),
                retries: Counter::default(),
                privilege: mount.privilege(),
                // A header and a checksum are less than 32 bytes, a record is at most 8.
                revokes_per_credit: (block_bytes - 32) / 8,
                breaking: mount.breaking,
                only,
                freezer: Freezer::default(),
                mmp: Mutex::new(None),
            }));
            fs
        });
        Ok(fs)
    }

    /// The journal in `log`, or what stands for one.
    pub(crate) fn begin_journal(
        &self,
        log: Option<Log>,
        mount: &MountOptions,
        (groups, quiet): (&Arc<Groups>, &Arc<Quiet>),
    ) -> Result<Journal> {
        let mut options = mount.journal_options();
        if !self.superblock().has_metadata_csum() {
            options.checksums = NewChecksums::None;
        }
        let hook = Arc::new(Seal::new(
            Arc::clone(&self.superblock),
            Arc::clone(groups),
            Arc::clone(quiet),
            mount.breaking,
        ));
        let home = Arc::clone(&self.device);
        Ok(match log {
            Some(log) => Journal::open(log, home, hook, options)?,
            None => Journal::without_log(home, self.geometry().block_size(), hook, options)?,
        })
    }

    /// The allocator's tunables, which can be changed while the file system is mounted: a change
    /// counts for every request that begins after it.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn tunables(&self) -> Result<&Tunables> {
        Ok(self.writer()?.allocator().tunables())
    }

    /// How many groups have their buddy in memory; see [`MountOptions::buddy_bytes`].
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn groups_loaded(&self) -> Result<u32> {
        let absent = self.writer()?.allocator().absent_groups();
        Ok(self.geometry().groups().saturating_sub(absent))
    }

    /// What the journal did since the mount.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn journal_stats(&self) -> Result<JournalStats> {
        Ok(self.writer()?.journal().stats())
    }

    /// The allocator's figures so far, under the names of `mb_stats`.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn mb_stats(&self) -> Result<Tally> {
        Ok(self.writer()?.allocator().mb_stats())
    }

    /// What writing takes.
    ///
    /// # Errors
    /// `ReadOnly` if it was opened for reading, or may not be written any more after an error.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        let opened_for_reading = || Error::ReadOnly("opened for reading".into());
        let writer = self.mounted().ok_or_else(opened_for_reading)?;
        writer.errors.check()?;
        Ok(writer)
    }

    /// The same for who only asks, also after an error; `None` if it was opened for reading.
    pub(crate) fn mounted(&self) -> Option<&Writer> {
        self.writer.as_deref()
    }

    /// How many plans were begun anew so far, because a block that they change had left the cache
    /// when they were carried out, or because a new transaction had begun. No operation begins
    /// anew more than 64 times.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn plans_begun_anew(&self) -> Result<u64> {
        Ok(self.writer()?.retries.sum())
    }

    /// How often and how long locks of each kind were waited for, by their names: in this process,
    /// of all its file systems together. Who does not wait is not counted.
    pub fn lock_waits() -> impl Iterator<Item = (&'static str, Waits)> {
        order::ALL
            .into_iter()
            .map(|rank| (rank.name(), rank.waits()))
    }

    /// Ends writing: everything is brought to its place, and the journal, if there is one, is left
    /// empty.
    ///
    /// # Errors
    /// `InvalidArgument` while somebody else holds the file system; `Io` if the device fails; the
    /// image is left to be recovered then.
    pub fn unmount(self: Arc<Self>) -> Result<()> {
        let mut fs = Arc::try_unwrap(self)
            .map_err(|_| Error::InvalidArgument("the file system is in use"))?;
        if let Some(writer) = fs.mounted() {
            let written = fs.write_times();
            fs.noting(written.and_then(|()| Ok(writer.journal.commit()?)))?;
        }
        let Some(writer) = fs.writer.take() else {
            return Ok(());
        };
        writer.allocator.discard_preallocations();
        let Writer {
            device,
            journal,
            groups,
            allocator,
            orphans,
            quiet,
            mmp,
            ..
        } = *writer;
        journal.close()?;
        // Also if it was mounted without barriers, it is whole from here on.
        device.flush()?;
        fs.device = device;
        // Frees that waited are free on disk already.
        quiet.hurry();
        quiet.release(&allocator);
        allocator.sweep();
        let left = Mounted::left_behind(&orphans);
        fs.mark(left, Some(fs.free_on_disk(&groups)))?;
        match mmp.into_inner() {
            Some(mmp) => mmp.end(),
            None => Ok(()),
        }
    }

    /// Blocks and inodes that are free.
    pub(crate) fn free_on_disk(&self, groups: &Groups) -> (u64, u64) {
        let sums = groups.sums();
        let blocks = sums.free_clusters << self.geometry().blocks_per_cluster_log();
        (blocks, sums.free_inodes)
    }
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Whatever users want.
    All,
    /// One transaction, which has to hold everything.
    OneTransaction,
}

/// The time now, as Linux stamps inodes: that of the clock's last tick, some milliseconds ago at
/// most. All stamps are from it, so what was changed later never says that it was changed before.
pub(crate) fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
    Timestamp::new(now.tv_sec, nanoseconds).unwrap_or_default()
}

/// Refuses, by name, what is read but not written.
pub(crate) fn check_writable(superblock: &Superblock) -> Result<()> {
    if let Some(fault) = superblock.faults().first() {
        return Err(Error::ReadOnly(format!(
            "{fault}; open it for reading (ro), or let e2fsck repair it first"
        )));
    }
    let features = superblock.features();
    if let Err(refused) = features.check_writing()
        && let Some(feature) = refused.features().first()
    {
        return Err(Error::ReadOnly(format!("it has the feature {feature}")));
    }
    let cluster_blocks = 1 << superblock.geometry().blocks_per_cluster_log();
    if !superblock
        .geometry()
        .blocks()
        .0
        .is_multiple_of(cluster_blocks)
    {
        return Err(Error::ReadOnly("its last cluster is not whole".into()));
    }
    if superblock.revision().0 == 0 {
        return Err(Error::ReadOnly("it has revision 0".into()));
    }
    Ok(())
}

/// The allocator's view of the layout.
pub(crate) fn geometry(superblock: &Superblock) -> Result<Geometry> {
    let geometry = superblock.geometry();
    let first = u32::try_from(geometry.first_data_block().0).unwrap_or(u32::MAX);
    let layout = Layout {
        s_blocks_count: geometry.blocks().0,
        s_first_data_block: first,
        block_size: geometry.block_size(),
        s_clusters_per_group: geometry.clusters_per_group(),
        cluster_bits: geometry.blocks_per_cluster_log(),
        s_log_groups_per_flex: Some(superblock.groups_per_flex())
            .filter(|&flex| flex > 1)
            .map(u32::ilog2),
        stripe: superblock.raid_stripe_width_blocks(),
    };
    Geometry::new(layout).map_err(|error| Error::Unsupported(error.to_string()))
}
