//! **Purpose.** Begins and ends a read-write mount.
//!
//! **Model.** A mount replays a dirty journal onto the device, applies the changes of fast commits,
//! marks the superblock as mounted, opens the journal and finishes the orphans. An unmount commits
//! and checkpoints everything, empties the journal and marks the superblock as unmounted.
//!
//! **Crash safety.** From before the first change until after the last checkpoint, the superblock
//! says that the journal must be replayed. A file system without a journal has to be checked after
//! a crash; crate `journal` (`in_place`) describes the damage that such a check does not have to
//! expect.

use fourscore_block::{BlockDevice, UnorderedDevice};
use fourscore_journal::{Background, FastCommitArea, Journal, JournalOptions, Log, NewChecksums};
use fourscore_mballoc::{Allocator, Geometry, Layout, Options, Tunables};
use fourscore_ondisk::Tid;
use fourscore_ondisk::features::{Compat, Incompat};
use fourscore_ondisk::jbd2::BlockNumbers;
use fourscore_ondisk::superblock::Superblock;
use fourscore_sync::{Arc, Counter, Mutex, OnceLock};

use crate::core::{Core, Live};
use crate::group::change::{self, Source};
use crate::group::load_all::LoadAll;
use crate::group::table::Groups;
use crate::inode::free_inodes::Inodes;
use crate::inode::lazy_list::LazyTimes;
use crate::inode::reuse::ReuseClock;
use crate::inode::{lazy_times, orphan_list};
use crate::mount::error_policy::{Errors, Found};
use crate::mount::fast_commit::FastCommitOverlay;
use crate::mount::freezer::Freezer;
use crate::mount::mark::{self, Mounted, check_unmounted};
use crate::mount::mmp::Mmp;
use crate::mount::modes::DataMode;
use crate::mount::options::{Barriers, BitmapLoading, MountOptions};
use crate::mount::state::Mount;
use crate::mount::tune::InodeReadahead;
use crate::mount::{errors, fast_commit_replay, metadata_reserve, open, recovery, replay, stripe};
use crate::quota::state::Quota;
use crate::txn::fast_commit::FastCommits;
use crate::txn::faults::Sabotage;
use crate::txn::grace::GracePeriod;
use crate::txn::order;
use crate::txn::seal::Seal;
use crate::txn::space::SpaceQueue;
use crate::txn::striped::StripedLocks;
use crate::xattr::shared::SharedXattrs;
use crate::{Error, Result, SuperblockCopy};

/// Opens the file system on `device` for reading and writing; see [`Fs::mount`](crate::Fs::mount).
pub(crate) fn mount(device: &Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Box<Mount>> {
    let superblock = open::read_superblock(&**device, SuperblockCopy::Primary)?;
    check_writable(&superblock)?;
    options.check_journal_device(&superblock)?;
    check_unmounted(&superblock)?;
    let options = &options.over(&superblock);
    options.check(&superblock)?;
    // These options are refused before anything is written.
    options.tune(
        &Tunables::new(geometry(&superblock, options)?),
        &InodeReadahead::default(),
    )?;
    let mmp = Mmp::take(device, &superblock)?;
    match (mount_taken(device, options), mmp) {
        (Ok(mount), Some(mmp)) => {
            mmp.guard(&mount.journal);
            *mount.mmp.lock() = Some(mmp);
            Ok(mount)
        }
        (Err(error), Some(mmp)) => {
            mmp.end()?;
            Err(error)
        }
        (mounted, None) => mounted,
    }
}

/// Mounts a file system that no other host has mounted.
fn mount_taken(device: &Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Box<Mount>> {
    let bare = || {
        let superblock = open::read_superblock(&**device, SuperblockCopy::Primary)?;
        open::bare(Arc::clone(device), superblock, &options.open_options())
    };
    let mut core = bare()?;
    if core
        .superblock()
        .features()
        .incompat
        .contains(Incompat::RECOVER)
    {
        let before = mark::raw_superblock(&*core.device)?;
        if let Some((log, overlay)) = recovery::replay_onto_device(&core, &options.open_options())?
        {
            write_fast_commits(bare()?, log, &overlay)?;
        }
        errors::keep_errors(&core, &before)?;
        core = bare()?;
    }
    orphan_list::read_orphans(&core)?;
    errors::take_over_error(&core, &options.open_options())?;
    let unmarked = mark::raw_superblock(&*core.device)?;
    let began = mark::mark(&*core.device, core.superblock(), Mounted::Yes, None)
        .and_then(|()| begin_marked(bare()?, device, options));
    let mount = match began {
        Ok(mount) => mount,
        Err(error) => {
            // No transaction has begun: the file system is as it was before the mark.
            if let Err(error) = mark::restore(&*core.device, &unmarked) {
                tracing::error!(%error, "the superblock says that the file system is mounted");
            }
            return Err(error);
        }
    };
    finish_recovery(mount, options)
}

/// Begins writing on `core`, whose superblock on `device` is marked as mounted.
fn begin_marked(
    mut core: Core,
    device: &Arc<dyn BlockDevice>,
    options: &MountOptions,
) -> Result<Box<Mount>> {
    if options.barriers_of(core.superblock()) == Barriers::Off {
        let superblock = Superblock::clone(core.superblock());
        let unordered = Arc::new(UnorderedDevice::new(Arc::clone(device)));
        core = open::bare(unordered, superblock, &options.open_options())?;
    }
    let log = core
        .superblock()
        .journal()
        .map(|_| replay::log(&core, &options.open_options()));
    let device = Arc::clone(device);
    begin(core, log.transpose()?, options, device, Scope::All)
}

/// Sets the tunables that the options name, and finishes the orphans.
fn finish_recovery(mut mount: Box<Mount>, options: &MountOptions) -> Result<Box<Mount>> {
    let tuned = options.tune(mount.allocator().tunables(), &mount.core.inode_readahead);
    match tuned.and_then(|()| recovery::finish_orphans(&mount)) {
        Ok(()) => {
            let at_mount = options.loading() == BitmapLoading::AtMount;
            mount.load_all = at_mount.then(|| load_all(&mount, options));
            Ok(mount)
        }
        Err(error) => {
            // All orphans that could be finished are finished; no transaction is left in the
            // journal.
            unmount(mount)?;
            Err(error)
        }
    }
}

/// Starts loading all bitmaps.
fn load_all(mount: &Mount, options: &MountOptions) -> LoadAll {
    let block_bytes = mount.core.geometry().block_size().bytes();
    LoadAll::start(
        Arc::clone(&mount.allocator),
        Arc::clone(mount.groups()),
        Arc::clone(&mount.core.buffers),
        options.most_groups_loaded(block_bytes),
    )
}

/// Makes the changes of `overlay` on `core`, whose log was replayed without the fast commits, and
/// leaves the journal empty.
///
/// # Errors
/// As [`fast_commit_replay::make_changes`]. In these cases nothing was changed.
fn write_fast_commits(core: Core, log: Log, overlay: &FastCommitOverlay) -> Result<()> {
    // Nothing is committed before all changes are made.
    let journal = JournalOptions {
        background: Background::None,
        ..JournalOptions::default()
    };
    // Linux claims these blocks without a check of the free ones left.
    let options = MountOptions::new().journal(journal).use_reserve();
    let device = Arc::clone(&core.device);
    let mount = begin(core, Some(log), &options, device, Scope::OneTransaction)?;
    fast_commit_replay::make_changes(&mount, overlay)?;
    unmount(mount)
}

/// Begins writing on `core`, whose device is `device` itself, or `device` without barriers.
fn begin(
    mut core: Core,
    log: Option<Log>,
    options: &MountOptions,
    device: Arc<dyn BlockDevice>,
    scope: Scope,
) -> Result<Box<Mount>> {
    let groups = Arc::new(change::read(&core)?);
    let geometry = geometry(core.superblock(), options)?;
    let reuse = Arc::new(ReuseClock::default());
    let grace = Arc::new(grace_period(&core, options, &reuse));
    let quota = Quota::open(&core, options.enforced_quota())?.map(Arc::new);
    let (journal, fast_commits) =
        begin_journal(&core, log, options, scope, &groups, &grace, quota.as_ref())?;
    let only = (scope == Scope::OneTransaction).then(|| journal.running_tid());
    let allocator_options = allocator_options(
        &core,
        options,
        &journal,
        only,
        geometry.layout(),
        fast_commits.is_some() && !options.faults.lacks(Sabotage::RecordedBlockReused),
    );
    let superblock = core.superblock().clone();
    let on_error = options.on_error.unwrap_or(superblock.error_policy().into());
    let inodes = Inodes::new(&core, &geometry, room(&core));
    let orphans = orphan_list::load(&core)?;
    let xattrs = Arc::new(SharedXattrs::new(options.sharing()));
    core.live = Some(Live {
        journal: Arc::clone(&journal),
        groups: Arc::clone(&groups),
        data: options.data_mode(&superblock),
        fast_commits: fast_commits.clone(),
        xattrs: Arc::clone(&xattrs),
        reuse: only.is_none().then_some(reuse),
        kept_clusters: allocator_options.reserved_clusters,
    });
    core.faults = options.faults;
    let core = Arc::new(core);
    let found = Arc::new(Found::default());
    let source = Source::new(Arc::clone(&core), Arc::clone(&groups), Arc::clone(&found));
    let allocator = allocator(geometry, source, allocator_options);
    grace.serve(&allocator);
    let space = SpaceQueue::new(
        Arc::clone(&journal),
        Arc::clone(&allocator),
        Arc::clone(&grace),
        only,
    );
    Ok(Box::new(Mount {
        revokes_per_credit: revokes_per_credit(&core),
        core,
        device,
        journal,
        allocator,
        groups,
        inodes,
        orphans,
        grace,
        space,
        renames: Mutex::new(()),
        leaves: StripedLocks::new(order::LEAF),
        errors: Errors::new(on_error, options.panic_hook.clone(), found),
        xattrs,
        access_times: options.access_times.unwrap_or_default(),
        nodiratime: options.nodiratime.unwrap_or_default(),
        lazy_times: options.has_lazy_times().then(LazyTimes::default),
        data: options.data_mode(&superblock),
        fast_commits,
        quota,
        bsd_groups: options.gives_group(&superblock),
        retries: Counter::default(),
        privilege: options.privilege(),
        only,
        freezer: Freezer::default(),
        mmp: Mutex::new(None),
        load_all: None,
    }))
}

/// Returns the allocator, with space for as many groups as the mount has.
fn allocator(geometry: Geometry, source: Source, options: Options) -> Arc<Allocator> {
    let room = room(source.core());
    let source = Box::new(source);
    Arc::new(Allocator::with_room(geometry, source, options, room))
}

/// Returns the number of groups that a mount has space for: twice those that there are, those that
/// the device is long enough for, and some thousand at least. See `docs/internals/allocator.md`.
fn room(core: &Core) -> u32 {
    /// With blocks of 4 KiB, 512 GiB.
    const LEAST: u32 = 4096;
    /// With blocks of 4 KiB, 32 TiB. A device may be longer by far than what is ever used of it.
    const MOST_BY_DEVICE: u32 = 1 << 18;
    let geometry = core.geometry();
    let (groups, inodes) = (geometry.groups(), geometry.inodes_per_group());
    let group_bytes = u64::from(geometry.blocks_per_group()) << geometry.block_size().bits();
    let by_device = core.device.len_bytes().div_ceil(group_bytes.max(1));
    let by_device = u32::try_from(by_device).unwrap_or(u32::MAX);
    let wanted = groups.saturating_mul(2).max(LEAST);
    let wanted = wanted.max(by_device.min(MOST_BY_DEVICE));
    wanted.min(u32::MAX / inodes.max(1)).max(groups)
}

/// Returns the least number of blocks that one credit revokes.
fn revokes_per_credit(core: &Core) -> usize {
    // A header and a checksum are less than 32 bytes, a record is at most 8.
    (core.geometry().block_size().bytes() - 32) / 8
}

/// Returns the grace periods, which advance the clock `reuse`.
fn grace_period(core: &Core, options: &MountOptions, reuse: &Arc<ReuseClock>) -> GracePeriod {
    let block_bytes = core.geometry().block_size().bytes();
    GracePeriod::new(
        options.most_groups_loaded(block_bytes),
        options.discards(core),
        match options.faults.lacks(Sabotage::UnnoticedReuse) {
            true => Arc::default(),
            false => Arc::clone(reuse),
        },
    )
}

/// Returns the allocator's options. `only` is the transaction of a mount that has just one.
fn allocator_options(
    core: &Core,
    options: &MountOptions,
    journal: &Journal,
    only: Option<Tid>,
    layout: &Layout,
    fast_commits: bool,
) -> Options {
    let reserved = core.superblock().reserved_blocks().0;
    Options {
        // Blocks that the only transaction frees need not wait for it: nothing but the journal is
        // written before its commit.
        durable: only.unwrap_or_else(|| journal.committed_tid()),
        root_clusters: reserved >> layout.cluster_bits,
        reserved_clusters: metadata_reserve::clusters(core.superblock(), options.privilege()),
        fast_commits,
    }
}

/// Opens the journal in `log`, or the substitute for a file system without a journal, and begins
/// fast commits if the mount makes any.
fn begin_journal(
    core: &Core,
    log: Option<Log>,
    options: &MountOptions,
    scope: Scope,
    groups: &Arc<Groups>,
    grace: &Arc<GracePeriod>,
    quota: Option<&Arc<Quota>>,
) -> Result<(Arc<Journal>, Option<Arc<FastCommits>>)> {
    let mut journal_options = options.journal_options();
    if has_fast_commits(core.superblock()) && scope == Scope::All {
        journal_options.fast_commits = FastCommitArea::Reserved;
    }
    if !core.superblock().has_metadata_csum() {
        journal_options.checksums = NewChecksums::None;
    }
    journal_options.block_numbers = block_numbers(core.superblock());
    let hooked = Arc::new(OnceLock::new());
    let hook = Arc::new(Seal::new(
        Arc::clone(&core.superblock),
        Arc::clone(groups),
        Arc::clone(grace),
        Arc::clone(&hooked),
        quota.cloned(),
        options.faults,
    ));
    let home = Arc::clone(&core.device);
    let journal = match log {
        Some(log) => Journal::open(log, home, hook, journal_options)?,
        None => Journal::without_log(home, core.geometry().block_size(), hook, journal_options)?,
    };
    let fast_commits = match quota {
        // Records have no usage.
        Some(_) => None,
        None => fast_commits(core, &journal, options, scope),
    };
    if let Some(fast_commits) = &fast_commits {
        hooked.get_or_init(|| Arc::clone(fast_commits));
    }
    Ok((Arc::new(journal), fast_commits))
}

/// Returns the width of block numbers in the log. A file system with the feature `64bit` may grow
/// to any size while it is mounted.
pub(crate) fn block_numbers(superblock: &Superblock) -> BlockNumbers {
    match superblock.features().incompat.contains(Incompat::BIT64) {
        true => BlockNumbers::Wide,
        false => BlockNumbers::Narrow,
    }
}

/// Whether the file system has the feature `fast_commit`.
fn has_fast_commits(superblock: &Superblock) -> bool {
    superblock.features().compat.contains(Compat::FAST_COMMIT)
}

/// Returns the fast commits of a mount; `None` if it makes none. Where clusters have several
/// blocks, replay by Linux leaves clusters of recorded ranges free in their bitmap
/// (docs/FINDINGS.md, 29). Data that goes through the journal is in no record.
fn fast_commits(
    core: &Core,
    journal: &Journal,
    options: &MountOptions,
    scope: Scope,
) -> Option<Arc<FastCommits>> {
    let has_clusters = core.geometry().blocks_per_cluster_log() > 0;
    let blocks = journal.fast_commit_blocks();
    let is_possible = scope == Scope::All
        && has_fast_commits(core.superblock())
        && options.data_mode(core.superblock()) != DataMode::Journal;
    if blocks == 0 || has_clusters || !is_possible {
        return None;
    }
    Some(Arc::new(FastCommits::new(
        core.geometry(),
        blocks,
        options.faults,
    )))
}

/// Ends writing: everything is checkpointed, and the journal, if there is one, is left empty.
///
/// # Errors
/// `Io` if the device fails; the image then needs recovery.
pub(crate) fn unmount(mut mount: Box<Mount>) -> Result<()> {
    mount.load_all = None;
    let written = mount
        .errors
        .check()
        .and_then(|()| lazy_times::write_times(&mount));
    let committed = written.and_then(|()| Ok(mount.journal.commit()?));
    let removed = committed.and_then(|_| match &mount.quota {
        Some(quota) => quota.remove_all_idle(&mount),
        None => Ok(()),
    });
    errors::noting(&mount, removed)?;
    mount.allocator.discard_preallocations();
    mount.journal.close()?;
    // Even if it was mounted without barriers, the file system is durable from here on.
    mount.device.flush()?;
    // Pending frees are free on disk already.
    mount.grace.expedite();
    mount.grace.release(&mount.allocator);
    mount.allocator.sweep();
    let left = Mounted::left_behind(&mount.orphans);
    let free = mount.free_on_disk();
    mark::mark(&*mount.device, mount.core.superblock(), left, Some(free))?;
    match mount.mmp.into_inner() {
        Some(mmp) => mmp.end(),
        None => Ok(()),
    }
}

/// The scope of what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All changes that users make.
    All,
    /// One transaction, which has to hold all changes.
    OneTransaction,
}

/// Refuses file systems that can be read but not written. The error names the reason.
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

/// Returns the allocator's view of the layout.
fn geometry(superblock: &Superblock, options: &MountOptions) -> Result<Geometry> {
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
        stripe: stripe::stripe_clusters(superblock, options.stripe),
    };
    Geometry::new(layout).map_err(|error| Error::Unsupported(error.to_string()))
}
