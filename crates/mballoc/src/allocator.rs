//! **Purpose.** The allocator's interface: reserve, allocate, mark or give back, free.
//!
//! **Model.** A request is answered by the first of these that can: the inode's preallocation, the
//! locality group of this core, a search. The caller holds tokens, so if a search finds nothing,
//! the space is in preallocations, or concurrent requests move it. The preallocations are
//! discarded, and the search is repeated until it succeeds or has failed `MAX_ATTEMPTS` times.
//!
//! **Locking.** An inode's list, a core's list and group locks, one at a time and never two.

use fourscore_ondisk::{GroupNr, GroupOffset, PhysBlock, Tid};
use fourscore_sync::profile::{self, Section};
use fourscore_sync::{Arc, CoreNr, Mutex, thread};

use crate::claim::{Claim, Freeing};
use crate::error::{Error, RequestProblem};
use crate::geometry::{ClusterCount, Geometry, Run};
use crate::group::{LockedGroup, NotInUse};
use crate::pending::{Stamp, Waiting};
use crate::prealloc::{Coverage, FilePrealloc, LocalityGroups, Registry};
use crate::prefetch::{self, Started};
use crate::request::{Provider, Reach, Request, Sizing, Window, normalize, provider};
use crate::search::{Search, Want};
use crate::source::GroupSource;
use crate::stats::{Count, Hit, Quick, Stats, Tally};
use crate::stream::{BY_CORE, StreamGoals};
use crate::table::{GroupTable, Patience};
use crate::tokens::{Privilege, Reservation};
use crate::tunables::{Tunable, Tunables};

/// Parameters of an allocator, beside the geometry and the source.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The last transaction whose commit is durable.
    pub durable: Tid,
    /// Clusters that only [`Privilege::Root`] and above may use (`s_r_blocks_count`).
    pub root_clusters: u64,
    /// Clusters that only [`Privilege::Reserved`] may use (`reserved_clusters`).
    pub reserved_clusters: u64,
    /// Whether a fast commit may refer to any cluster that was marked in the running transaction:
    /// then clusters that are freed in the transaction that marked them wait for its commit, as all
    /// others do.
    pub fast_commits: bool,
}

/// The allocator of a file system.
#[derive(Debug)]
pub struct Allocator {
    table: GroupTable,
    streams: StreamGoals,
    started: Started,
    registry: Registry,
    locality: LocalityGroups,
    /// See [`Options::fast_commits`].
    fast_commits: bool,
    /// Held while all preallocations are discarded, before all other locks of the allocator.
    discarding: Mutex<()>,
}

/// Attempts at one request, the first included; preallocations are discarded between them.
const MAX_ATTEMPTS: u32 = 16;

/// The parameters of one attempt's search, and how its result is to be used.
struct Attempt {
    provider: Provider,
    /// The clusters that the caller can use.
    asked: u32,
    want: Want,
    /// The part of the file that the run is for, if the request is normalized.
    window: Option<Window>,
}

impl Allocator {
    /// Makes an allocator with no bitmap in memory; reads every descriptor once.
    #[must_use]
    pub fn new(geometry: Geometry, source: Box<dyn GroupSource>, options: Options) -> Self {
        let groups = geometry.groups();
        Self::with_room(geometry, source, options, groups)
    }

    /// As [`Allocator::new`], with space for `room` groups, to which the file system can
    /// [grow](Allocator::grow). A group that does not exist takes some 20 bytes.
    #[must_use]
    pub fn with_room(
        geometry: Geometry,
        source: Box<dyn GroupSource>,
        options: Options,
        room: u32,
    ) -> Self {
        let table = GroupTable::new(geometry, source, &options, room);
        let streams = StreamGoals::new(geometry.groups(), CoreNr::count());
        for slot in streams.slots() {
            table.set_stream(streams.get(slot).0, slot);
        }
        Self {
            table,
            streams,
            started: Started::new(),
            registry: Registry::new(),
            locality: LocalityGroups::new(),
            fast_commits: options.fast_commits,
            discarding: Mutex::new(()),
        }
    }

    /// The division into groups.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.table.geometry()
    }

    /// The tunables; a change applies to every request that begins after it.
    #[must_use]
    pub fn tunables(&self) -> &Tunables {
        &self.table.shared.tunables
    }

    /// The counts since the allocator was made; exact while no request is in progress.
    #[must_use]
    pub fn mb_stats(&self) -> Tally {
        let mut sum = self.table.shared.stats.sum();
        self.table.add_hits(&mut sum);
        sum[Count::Groups] = self.table.geometry().groups().into();
        sum
    }

    /// The histograms.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.table.shared.stats
    }

    /// Makes the counting build assign the words of a group to cache lines as ext4 does: its state
    /// to the line of its free counts, its lock to another one.
    #[cfg(feature = "count")]
    pub fn lay_out_as_ext4(&self, cores: &fourscore_sync::count::Cores) {
        self.table.lay_out_as_ext4(cores);
    }

    pub(crate) fn table(&self) -> &GroupTable {
        &self.table
    }

    /// Clusters that are free and not reserved, the pools included; exact while no thread
    /// allocates.
    #[must_use]
    pub fn free_clusters(&self) -> u64 {
        self.table.shared.tokens.total()
    }

    /// Reserves clusters, so that later requests for them cannot fail for lack of space.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or [`Error::CommitFirst`] if freed clusters are pending.
    pub fn reserve(&self, clusters: u64, privilege: Privilege) -> Result<Reservation, Error> {
        let core = CoreNr::current();
        let taken = self.table.shared.tokens.take(core, clusters, privilege);
        taken.or_else(|_| self.reserve_slow(clusters, privilege))
    }

    /// Reserves clusters whether there are as many or not, for comparison with ext4: its counter
    /// includes freed clusters that still wait for the commit, so that a reservation succeeds and
    /// the search finds nothing. A request with such a reservation then fails with
    /// [`Error::CommitFirst`].
    pub fn reserve_ahead(&self, clusters: u64) -> Reservation {
        let core = CoreNr::current();
        self.table.shared.tokens.take_ahead(core, clusters)
    }

    /// Returns what is left of a reservation.
    pub fn unreserve(&self, reservation: Reservation) {
        if reservation.clusters() > 0 {
            let core = CoreNr::current();
            self.table.shared.tokens.give_back(core, reservation);
        }
    }

    /// Finds clusters for a request and claims them, at least `min_len` and at most `len`. Takes
    /// their tokens from `reservation`. Data requests that are normalized should pass the inode's
    /// preallocation.
    ///
    /// # Errors
    /// [`Error::BadRequest`]; [`Error::NotContiguous`] if no free run is as long, aligned or low as
    /// the request needs; [`Error::NoSpace`] and [`Error::CommitFirst`] only if clusters were lost
    /// to a group that turned out to be unusable, or with [`Allocator::reserve_ahead`];
    /// [`Error::Source`] if a bitmap could not be read.
    pub fn allocate(
        &self,
        request: &Request,
        file: Option<&Arc<FilePrealloc>>,
        reservation: &mut Reservation,
    ) -> Result<Claim, Error> {
        let _section = profile::enter(Section::GroupChoice);
        request.check().map_err(Error::BadRequest)?;
        if reservation.clusters() < u64::from(request.len.0) {
            return Err(Error::BadRequest(RequestProblem::NotReserved));
        }
        let core = CoreNr::current();
        let mut tally = Tally::default();
        let mut hit = None;
        let pending_is_free = reservation.is_ahead();
        let result = self.attempts(request, file, core, pending_is_free, &mut tally, &mut hit);
        let len = result.as_ref().map_or(ClusterCount(0), |run| run.len);
        reservation.spend(len);
        if self.table.absent() > 0 {
            prefetch::finish(&self.table, &self.started, core, &mut tally);
        }
        let is_whole = len >= request.len;
        let shared = &self.table.shared;
        shared
            .stats
            .end(&shared.tunables, core, hit, is_whole, &mut tally);
        result.map(Claim::new)
    }

    fn attempts(
        &self,
        request: &Request,
        file: Option<&Arc<FilePrealloc>>,
        core: CoreNr,
        pending_is_free: bool,
        tally: &mut Tally,
        hit: &mut Option<Hit>,
    ) -> Result<Run, Error> {
        if let Some(run) = self.attempt(request, file, core, tally, hit)? {
            return Ok(run);
        }
        if !pending_is_free {
            return self.retry_after_discard(request, file, core, tally, hit);
        }
        self.expect_none_pending(request)?;
        match self.retry_after_discard(request, file, core, tally, hit) {
            Err(Error::CommitFirst {
                wanted,
                available,
                waiting: 0,
                ..
            }) => Err(Error::NoSpace { wanted, available }),
            result => result,
        }
    }

    /// Checks that no clusters are pending, for a request that was reserved ahead and has found
    /// nothing.
    ///
    /// # Errors
    /// [`Error::CommitFirst`] if clusters are pending.
    #[cold]
    fn expect_none_pending(&self, request: &Request) -> Result<(), Error> {
        let waiting = self.table.becoming_free();
        if waiting.clusters == 0 {
            // They have become free since, or other requests hold them.
            return Ok(());
        }
        Err(Error::CommitFirst {
            wanted: u64::from(request.len.0),
            available: 0,
            waiting: waiting.clusters,
            tid: waiting.newest,
        })
    }

    /// Discards preallocations and tries again, as long as that frees any cluster. Separate from
    /// the first attempt, which nearly always succeeds and is faster without a loop around it.
    #[cold]
    fn retry_after_discard(
        &self,
        request: &Request,
        file: Option<&Arc<FilePrealloc>>,
        core: CoreNr,
        tally: &mut Tally,
        hit: &mut Option<Hit>,
    ) -> Result<Run, Error> {
        if request.sizing == Sizing::GoalOnly {
            return Err(Error::NotContiguous {
                min_len: request.min_len,
            });
        }
        let constrained =
            request.min_len.0 > 1 || request.align.0 > 1 || request.reach == Reach::Bits32;
        let tokens = &self.table.shared.tokens;
        let mut waiting = Waiting::default();
        for _ in 1..MAX_ATTEMPTS {
            let free_before = tokens.total();
            let discarded = self.discard_all(tally);
            waiting = self.release_due();
            let has_more = discarded > 0 || tokens.total() > free_before;
            if !has_more && (constrained || tokens.is_overdrawn()) {
                break;
            }
            if let Some(run) = self.attempt(request, file, core, tally, hit)? {
                return Ok(run);
            }
            // There are free clusters for these tokens; let the threads that move them run.
            thread::yield_now();
        }
        if waiting.clusters == 0 && constrained {
            return Err(Error::NotContiguous {
                min_len: request.min_len,
            });
        }
        let (wanted, available) = (u64::from(request.len.0), tokens.total());
        if waiting.clusters == 0 && tokens.is_overdrawn() {
            return Err(Error::NoSpace { wanted, available });
        }
        Err(Error::CommitFirst {
            wanted,
            available,
            waiting: waiting.clusters,
            tid: waiting.newest,
        })
    }

    /// Tries preallocation, locality group and search once; `None` if none of them has clusters.
    fn attempt(
        &self,
        request: &Request,
        file: Option<&Arc<FilePrealloc>>,
        core: CoreNr,
        tally: &mut Tally,
        hit: &mut Option<Hit>,
    ) -> Result<Option<Run>, Error> {
        let limit = self.limit(request.reach);
        let mut provider = provider(request, &self.table.shared.tunables);
        let mut gap = 0..u32::MAX;
        if let Some(file) = file
            && request.align.0 == 1
            && request.sizing != Sizing::GoalOnly
        {
            match file.take(request.logical.0, request.len.0, request.min_len.0, limit) {
                Ok(run) => {
                    *hit = Some(Quick::InodePrealloc.into());
                    return Ok(Some(run));
                }
                Err(Coverage::Covered) => provider = Provider::Direct,
                Err(Coverage::Gap(range)) => gap = range,
            }
        }
        // Clusters of the file after the gap are preallocated already.
        let asked = request
            .len
            .0
            .min(gap.end - request.logical.0)
            .max(request.min_len.0);
        if provider == Provider::Locality
            && let Some(run) = self.locality.take(core, asked, limit)
        {
            *hit = Some(Quick::GroupPrealloc.into());
            return Ok(Some(run));
        }
        let is_normalized =
            request.sizing == Sizing::Normalize && provider == Provider::Stream && file.is_some();
        let window = is_normalized.then(|| normalize(request, self.table.geometry(), gap));
        let attempt = self.parameters(request, provider, asked, window, limit, core);
        let mut search = Search {
            table: &self.table,
            streams: &self.streams,
            started: &self.started,
            core,
            want: attempt.want,
            tally,
            looks: 0,
            misses: 0,
            hit: None,
            failed: None,
        };
        let found = search.run()?;
        *hit = search.hit;
        let Some(run) = found else { return Ok(None) };
        Ok(Some(
            self.keep_surplus(request, file, &attempt, run, core, tally),
        ))
    }

    /// The first group whose block numbers the file cannot hold.
    fn limit(&self, reach: Reach) -> u32 {
        let groups = self.table.geometry().groups();
        match reach {
            Reach::Full => groups,
            // The group that holds block 2^32 is left out as a whole.
            Reach::Bits32 => {
                let located = self.table.geometry().locate(PhysBlock(1 << 32));
                located.map_or(groups, |(group, _)| group.0)
            }
        }
    }

    /// Sets up the search of one attempt.
    fn parameters(
        &self,
        request: &Request,
        provider: Provider,
        asked: u32,
        window: Option<Window>,
        limit: u32,
        core: CoreNr,
    ) -> Attempt {
        let tunables = &self.table.shared.tunables;
        let locality = provider == Provider::Locality && request.sizing == Sizing::Normalize;
        let len = match window {
            Some(window) => window.len,
            None if locality => tunables.get(Tunable::MbGroupPrealloc).max(asked),
            None => asked,
        };
        let start = window.map_or(request.logical.0, |window| window.start);
        let continued = self
            .continued_goal(request, start, len)
            .filter(|_| !locality);
        let hint = continued.or_else(|| self.table.geometry().locate(request.goal));
        let (group, offset) = hint.unwrap_or((GroupNr(0), GroupOffset(0)));
        let sharing = tunables.get(Tunable::MbStreamGoals);
        let is_data = request.content == crate::request::Content::Data;
        let stripe = tunables.get(Tunable::Stripe);
        let whole_stripes =
            is_data && stripe > 1 && request.align.0 == 1 && len.is_multiple_of(stripe);
        let want = Want {
            len,
            asked: asked.min(len),
            is_request: len == asked && len == request.len.0,
            min_len: request.min_len.0,
            align: request.align.0,
            stripe: if whole_stripes { stripe } else { 1 },
            limit,
            is_data,
            goal: (group, offset.0),
            try_goal: continued.is_some() || request.sizing == Sizing::GoalOnly,
            goal_only: request.sizing == Sizing::GoalOnly,
            shares_goal: sharing != BY_CORE && provider == Provider::Stream,
            stream: match provider {
                Provider::Direct => None,
                Provider::Stream => Some(self.streams.slot(sharing, request.inode, core)),
                // In ext4 a locality group begins at the file's own goal.
                Provider::Locality => (sharing == BY_CORE).then(|| self.streams.of_core(core)),
            },
        };
        Attempt {
            provider,
            asked,
            want,
            window,
        }
    }

    /// The goal at which the file's `len` clusters from `start` on would extend an existing extent:
    /// right after the left neighbour, or else right before the right one.
    fn continued_goal(
        &self,
        request: &Request,
        start: u32,
        len: u32,
    ) -> Option<(GroupNr, GroupOffset)> {
        let geometry = self.table.geometry();
        let blocks = |clusters: u32| u64::from(clusters) << geometry.layout().cluster_bits;
        let behind = request
            .left
            .filter(|left| left.logical.0.checked_add(1) == Some(start));
        let behind = behind
            .and_then(|left| geometry.locate(PhysBlock(left.block.0.checked_add(blocks(1))?)));
        behind.or_else(|| {
            let right = request
                .right
                .filter(|right| start.checked_add(len) == Some(right.logical.0))?;
            geometry.locate(PhysBlock(right.block.0.checked_sub(blocks(len))?))
        })
    }

    /// Splits off the part of a run that the request is for, and adds the rest to the inode's
    /// preallocation or to the locality group.
    fn keep_surplus(
        &self,
        request: &Request,
        file: Option<&Arc<FilePrealloc>>,
        attempt: &Attempt,
        run: Run,
        core: CoreNr,
        tally: &mut Tally,
    ) -> Run {
        if run.len.0 <= attempt.asked {
            return run;
        }
        if let (Some(window), Some(file)) = (attempt.window, file) {
            let logical = request.logical.0;
            let start = best_start(window, request, attempt.asked, run.len.0);
            let used = attempt.asked.min(start + run.len.0 - logical);
            if let Some(front) = file.add(start, run, logical, used) {
                tally[Count::Preallocated] += u64::from(run.len.0 - used);
                let left = self.registry.register(core, file);
                self.unclaim_all(&left, tally);
                return front;
            }
        }
        let (front, rest) = run.split_at(ClusterCount(attempt.asked));
        let unwanted = if attempt.provider == Provider::Locality {
            tally[Count::Preallocated] += u64::from(rest.len.0);
            self.locality.insert(core, rest)
        } else {
            Some(rest)
        };
        self.unclaim_all(unwanted.as_slice(), tally);
        front
    }

    /// Returns claimed runs that hold no tokens to their groups.
    fn unclaim_all(&self, runs: &[Run], tally: &mut Tally) {
        let _section = profile::enter(Section::Bitmap);
        for run in runs {
            tally[Count::Discarded] += u64::from(run.len.0);
            // A group with a claim in it cannot have been evicted.
            if let Some(mut locked) = self.table.lock(run.group, Patience::Wait) {
                locked.unclaim(run);
            }
        }
    }

    /// Discards every preallocation of the file system; returns the number of clusters.
    fn discard_all(&self, tally: &mut Tally) -> u64 {
        // A thread that finds nothing to discard must find all that others have discarded as free.
        let _alone = self.discarding.lock();
        let mut runs = self.registry.drain();
        runs.extend(self.locality.drain());
        self.unclaim_all(&runs, tally);
        runs.iter().map(|run| u64::from(run.len.0)).sum()
    }

    /// Discards the preallocations of an inode.
    pub fn discard(&self, file: &FilePrealloc) {
        let runs = file.drain();
        if runs.is_empty() {
            return;
        }
        let core = CoreNr::current();
        let mut tally = Tally::default();
        self.unclaim_all(&runs, &mut tally);
        self.table.shared.stats.add(core, &tally);
    }

    /// Discards all preallocations of inodes and locality groups, as when space runs short or
    /// before an unmount; returns the number of clusters.
    pub fn discard_preallocations(&self) -> u64 {
        let core = CoreNr::current();
        let mut tally = Tally::default();
        let discarded = self.discard_all(&mut tally);
        self.table.shared.stats.add(core, &tally);
        discarded
    }

    /// Ends a claim whose [`Claim::change`] has been applied in transaction `tid`: the clusters are
    /// in use.
    pub fn mark(&self, claim: Claim, tid: Tid) {
        let _section = profile::enter(Section::Bitmap);
        let run = claim.end();
        if run.len.0 == 0 {
            return;
        }
        // A group with a claim in it cannot have been evicted.
        if let Some(mut locked) = self.table.lock(run.group, Patience::Wait) {
            locked.mark(&run, (!self.fast_commits).then_some(tid));
        }
    }

    /// Ends a claim of clusters that are not needed; they are free again at once.
    pub fn give_back(&self, claim: Claim) {
        let _section = profile::enter(Section::Bitmap);
        let run = claim.end();
        if run.len.0 == 0 {
            return;
        }
        let core = CoreNr::current();
        if let Some(mut locked) = self.table.lock(run.group, Patience::Wait) {
            locked.unclaim(&run);
        }
        self.table.shared.tokens.add(core, u64::from(run.len.0));
    }

    /// Begins to free marked clusters. Until [`Allocator::finish_free`] they are in use, and the
    /// bits of [`Freeing::change`] may be cleared.
    ///
    /// # Errors
    /// [`Error::NotInUse`] if some of them are free or being freed; [`Error::Source`] and
    /// [`Error::Group`] if the group cannot be loaded.
    pub fn begin_free(&self, run: Run) -> Result<Freeing, Error> {
        let _section = profile::enter(Section::Bitmap);
        let inside = run.len.0 > 0
            && run
                .start
                .0
                .checked_add(run.len.0)
                .is_some_and(|end| end <= self.table.geometry().clusters_in(run.group));
        if !inside {
            let block = self.table.geometry().first_block(&run);
            return Err(Error::Outside {
                block,
                clusters: u64::from(run.len.0),
            });
        }
        let begun = match self.table.lock(run.group, Patience::Wait) {
            Some(mut locked) => locked.begin_free(&run),
            None => self.load_and_lock(run.group)?.begin_free(&run),
        };
        match begun {
            Ok(()) => Ok(Freeing::new(run)),
            Err(NotInUse) => Err(Error::NotInUse { run }),
        }
    }

    /// Locks a group that was not loaded a moment ago.
    #[cold]
    fn load_and_lock(&self, group: GroupNr) -> Result<LockedGroup<'_>, Error> {
        let mut tally = Tally::default();
        let result = self.table.lock_loaded(group, &mut tally);
        self.table.shared.stats.add(CoreNr::current(), &tally);
        result
    }

    /// Ends a free whose change has been applied in transaction `tid`. The clusters can be
    /// allocated again once that transaction's full commit is durable and grace period `stamp` has
    /// ended. Without [`Options::fast_commits`], clusters that were marked in the same transaction
    /// wait for the grace period only.
    pub fn finish_free(&self, freeing: Freeing, tid: Tid, stamp: Stamp) {
        let _section = profile::enter(Section::Bitmap);
        let run = freeing.end();
        // A group with a free under way cannot have been evicted.
        if let Some(mut locked) = self.table.lock(run.group, Patience::Wait) {
            locked.finish_free(&run, tid, stamp);
            if locked.has_pending() {
                self.table.waiting.insert(run.group.0);
            }
        }
    }

    /// Ends a free whose change was not applied.
    pub fn cancel_free(&self, freeing: Freeing) {
        let _section = profile::enter(Section::Bitmap);
        let run = freeing.end();
        if let Some(mut locked) = self.table.lock(run.group, Patience::Wait) {
            locked.cancel_free(&run);
        }
    }

    /// Notes that the full commit of `tid` is durable. Clusters that waited for it become free when
    /// their group is locked next, or by [`Allocator::sweep`].
    pub fn set_durable(&self, tid: Tid) {
        self.table.shared.clocks.set_durable(tid);
    }

    /// Notes that grace period `stamp` has ended: every read and write that was under way when a
    /// free was stamped `stamp` is over. Takes no lock, so destructors may call it.
    pub fn end_grace_period(&self, stamp: Stamp) {
        self.table.shared.clocks.end_grace_period(stamp);
        self.table.shared.waiter.wake();
    }

    /// Visits the groups with pending clusters, and frees those that need not wait any longer;
    /// returns how many are still pending. To be called after each commit.
    pub fn sweep(&self) -> u64 {
        self.release_due().clusters
    }

    pub(crate) fn release_due(&self) -> Waiting {
        let _section = profile::enter(Section::Bitmap);
        let mut waiting = Waiting::default();
        let mut next = self.table.waiting.next_at_or_after(0);
        while let Some(group) = next {
            if let Some(mut locked) = self.table.lock(GroupNr(group), Patience::Wait) {
                locked.release_due();
                waiting.add(&locked.waiting());
                if locked.is_swept() {
                    // Under the lock, which orders it with the setting.
                    self.table.waiting.remove(group);
                }
            }
            next = self.table.waiting.next_at_or_after(group + 1);
        }
        waiting
    }

    /// Loads one group, so that no later request has to wait for its bitmap.
    ///
    /// # Errors
    /// [`Error::Source`] and [`Error::Group`].
    pub fn load(&self, group: GroupNr) -> Result<(), Error> {
        let core = CoreNr::current();
        let mut tally = Tally::default();
        let result = self.table.load(group, Patience::Wait, &mut tally);
        self.table.shared.stats.add(core, &tally);
        result
    }

    /// Groups that are not loaded.
    #[must_use]
    pub fn absent_groups(&self) -> u32 {
        self.table.not_loaded()
    }

    /// Evicts up to `most` buddies in which nothing is claimed or pending and that were not used
    /// since the last call; returns how many.
    pub fn evict_idle(&self, most: u32) -> u32 {
        self.table.evict_idle(most)
    }
}

/// The cluster of the file at which a run begins that is shorter than its window. The run ends with
/// the window if it then covers enough of the request. Else it begins with the window if it then
/// covers the whole request, else with the request.
fn best_start(window: Window, request: &Request, asked: u32, len: u32) -> u32 {
    let logical = request.logical.0;
    let end = window.start + window.len;
    let at_end = window.start + window.len.saturating_sub(len);
    let enough = asked.min(request.min_len.0);
    if at_end <= logical && end - logical >= enough {
        at_end
    } else if logical + asked <= window.start + len {
        window.start
    } else {
        logical
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
