//! **Purpose.** Visits free runs so that the caller can discard them, while no thread can allocate
//! them: FITRIM and the `discard` mount option.
//!
//! **Not here.** The discard requests to the device.
//!
//! **Model.** Free runs are claimed, visited, and given back, one after the other. A group that was
//! visited completely is marked as trimmed until a cluster is freed in it. On a mount that discards
//! freed clusters ([`Allocator::hold_due`]), pending clusters that are due stay pending until they
//! have been visited; only a request that runs short of space frees them undiscarded.
//!
//! **Locking.** A group's lock, one at a time; none is held during a visit.

use std::ops::Range;

use fourscore_ondisk::{GroupNr, GroupOffset};
use fourscore_sync::CoreNr;
use fourscore_sync::atomic::Ordering;

use crate::allocator::Allocator;
use crate::claim::Claim;
use crate::error::Error;
use crate::geometry::{ClusterCount, Run};
use crate::group::LockedGroup;
use crate::stats::Tally;
use crate::table::Patience;
use crate::tokens::Privilege;

/// After this many pieces of a group that other threads allocated first, the rest of a run is
/// skipped.
const MAX_MISSES: u32 = 16;
/// A piece is at most the free clusters divided by this, because a request that runs short of space
/// meanwhile has to wait for the piece.
const SHARE: u64 = 8;
/// The shortest piece into which a run is cut, in clusters.
const MIN_PIECE: u32 = 256;

/// The result of visiting a run piece by piece.
struct PiecesVisited<E> {
    /// The number of clusters visited.
    clusters: Result<u64, E>,
    /// The offset in the group at which the visit ended.
    end: u32,
}

impl Allocator {
    /// Calls `visit` with the free runs of a group that lie in `within` and have at least `least`
    /// clusters; returns the number of clusters visited. Each run is claimed during its visit and
    /// free again afterwards. Skips a group that was visited completely, until a cluster is freed
    /// in it, and runs whose tokens are reserved.
    ///
    /// # Errors
    /// Those of `visit`; [`Error::Source`] and [`Error::Group`] if the group cannot be loaded.
    pub fn visit_free<E: From<Error>>(
        &self,
        group: GroupNr,
        within: Range<u32>,
        least: ClusterCount,
        mut visit: impl FnMut(&Run) -> Result<(), E>,
    ) -> Result<u64, E> {
        let is_whole = within.start == 0 && within.end >= self.geometry().clusters_in(group);
        {
            let mut locked = self.locked(group)?;
            if locked.trimmed().is_some_and(|trimmed| trimmed <= least) {
                return Ok(0);
            }
            if is_whole {
                // Any free from here on resets it.
                locked.set_trimmed(Some(least));
            }
        }
        let (mut from, mut visited, mut misses) = (within.start, 0, 0);
        while let Some(run) = self.find_free(group, from..within.end, least)? {
            let PiecesVisited { clusters, end } = self.visit_pieces(&run, &mut visit);
            visited += clusters.inspect_err(|_| self.forget_trim(group))?;
            let is_missed = end < run.end();
            misses += u32::from(is_missed);
            from = end;
            if is_missed && misses > MAX_MISSES {
                self.forget_trim(group);
                from = run.end();
            }
        }
        Ok(visited)
    }

    /// Visits a run piece by piece, up to its end or to the first piece that is not free any more.
    fn visit_pieces<E: From<Error>>(
        &self,
        run: &Run,
        visit: &mut impl FnMut(&Run) -> Result<(), E>,
    ) -> PiecesVisited<E> {
        let failed = |error, end| PiecesVisited {
            clusters: Err(error),
            end,
        };
        let mut at = run.start.0;
        while at < run.end() {
            let share = self.free_clusters() / SHARE;
            let most = u32::try_from(share).unwrap_or(u32::MAX).max(MIN_PIECE);
            let piece = Run {
                group: run.group,
                start: GroupOffset(at),
                len: ClusterCount(most.min(run.end() - at)),
            };
            // Before the clusters are claimed, so that a request short of them waits for the end.
            let discards = &self.table().shared.discards;
            discards.begin(piece.len.0.into());
            let visited = self.visit_piece(&piece, visit);
            self.end_discard(piece.len);
            match visited {
                Ok(Some(Ok(()))) => at = piece.end(),
                Ok(Some(Err(error))) => return failed(error, at),
                Ok(None) => break,
                Err(error) => return failed(error.into(), at),
            }
        }
        PiecesVisited {
            clusters: Ok(u64::from(at - run.start.0)),
            end: at,
        }
    }

    /// Visits one piece; `None` if it is not free any more, or its tokens are reserved.
    fn visit_piece<E>(
        &self,
        piece: &Run,
        visit: &mut impl FnMut(&Run) -> Result<(), E>,
    ) -> Result<Option<Result<(), E>>, Error> {
        let Some(claim) = self.claim_found(piece)? else {
            return Ok(None);
        };
        let result = visit(piece);
        self.give_back(claim);
        Ok(Some(result))
    }

    /// Ends what [`Discards::begin`](crate::shortage::Discards::begin) began, after the tokens have
    /// been returned, and wakes the waiter.
    fn end_discard(&self, len: ClusterCount) {
        let shared = &self.table().shared;
        shared.discards.end(len.0.into());
        shared.waiter.wake();
    }

    /// Clears the trimmed mark of a group that was not visited completely.
    fn forget_trim(&self, group: GroupNr) {
        if let Ok(mut locked) = self.locked(group) {
            locked.set_trimmed(None);
        }
    }

    /// Keeps clusters that are freed from now on pending until [`Allocator::release_visited`] has
    /// visited them.
    pub fn hold_due(&self) {
        self.table().shared.holds_due.store(true, Ordering::Relaxed);
    }

    /// Calls `visit` with the pending runs that are due, and frees them afterwards.
    ///
    /// # Errors
    /// The first error of `visit`; the runs are freed all the same.
    pub fn release_visited<E>(
        &self,
        mut visit: impl FnMut(&Run) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut result = Ok(());
        let mut next = self.table().waiting.next_at_or_after(0);
        while let Some(group) = next {
            let mut due = Vec::new();
            if let Some(mut locked) = self.table().lock(GroupNr(group), Patience::Wait) {
                due = locked.claim_due();
                if locked.is_swept() {
                    // Under the lock, which orders it with the setting.
                    self.table().waiting.remove(group);
                }
            }
            for run in due {
                if result.is_ok() {
                    result = visit(&run);
                }
                self.give_back(Claim::new(run));
                self.end_discard(run.len);
            }
            next = self.table().waiting.next_at_or_after(group + 1);
        }
        result
    }

    fn locked(&self, group: GroupNr) -> Result<LockedGroup<'_>, Error> {
        let mut tally = Tally::default();
        let locked = self.table().lock_loaded(group, &mut tally);
        self.table().shared.stats.add(CoreNr::current(), &tally);
        locked
    }

    fn find_free(
        &self,
        group: GroupNr,
        within: Range<u32>,
        least: ClusterCount,
    ) -> Result<Option<Run>, Error> {
        let mut locked = self.locked(group)?;
        let Some(start) = locked.first_fit(within.start, least.0) else {
            return Ok(None);
        };
        let most = within.end.saturating_sub(start);
        let len = locked.buddy().free_run_at(start, most);
        let run = Run {
            group,
            start: GroupOffset(start),
            len: ClusterCount(len),
        };
        Ok(Some(run).filter(|_| len >= least.0.max(1)))
    }

    /// Claims a run that was free a moment ago; `None` if it is not any more, or its tokens are
    /// reserved.
    fn claim_found(&self, run: &Run) -> Result<Option<Claim>, Error> {
        let tokens = &self.table().shared.tokens;
        let reserved = tokens.take(CoreNr::current(), run.len.0.into(), Privilege::Reserved);
        let Ok(mut reservation) = reserved else {
            return Ok(None);
        };
        let claimed = {
            let locked = self.locked(run.group);
            locked.map(|mut locked| {
                let is_free = locked.buddy().is_free(run.start.0, run.len.0);
                is_free.then(|| locked.claim(run.start.0, run.len.0))
            })
        };
        if let Ok(Some(run)) = &claimed {
            reservation.spend(run.len);
        }
        self.unreserve(reservation);
        Ok(claimed?.map(Claim::new))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
