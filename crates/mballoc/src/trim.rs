//! **Purpose.** Showing free clusters to somebody who tells the device of them, such that nobody
//! allocates them meanwhile.
//!
//! **Not here.** The device.
//!
//! **Model.** Free runs are claimed, shown, and given back, one after the other. A group remembers
//! that all it has was shown until something is freed in it. For a mount that shows what is freed
//! ([`Allocator::hold_due`]), what need not wait any longer goes on waiting until it was shown;
//! only who runs short of space takes it unseen.
//!
//! **Locking.** A group's lock, one at a time; none is held while somebody looks.

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

/// How often others may be quicker in a group before a run is left to them.
const MOST_MISSES: u32 = 16;
/// A piece is at most this share of what is free, since whoever runs short of space meanwhile has
/// to wait for it,
const SHARE: u64 = 8;
/// but not shorter than so many clusters.
const LEAST_PIECE: u32 = 256;

impl Allocator {
    /// Shows `visit` the free runs of a group that lie in `within` and have `least` clusters, and
    /// returns how many clusters that were. Each is claimed meanwhile and free again afterwards. A
    /// group of which everything was shown is passed by, until something is freed in it. So are
    /// runs for which others hold the tokens.
    ///
    /// # Errors
    /// What `visit` says; [`Error::Source`] and [`Error::Group`] if the group cannot be loaded.
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
                // Whatever is freed from here on takes it back.
                locked.set_trimmed(Some(least));
            }
        }
        let (mut from, mut visited, mut misses) = (within.start, 0, 0);
        while let Some(run) = self.find_free(group, from..within.end, least)? {
            let (seen, end) = self.visit_pieces(&run, &mut visit);
            let (seen, is_missed) = (
                seen.inspect_err(|_| self.forget_trim(group))?,
                end < run.end(),
            );
            visited += seen;
            misses += u32::from(is_missed);
            from = end;
            if is_missed && misses > MOST_MISSES {
                self.forget_trim(group);
                from = run.end();
            }
        }
        Ok(visited)
    }

    /// Shows a run piece by piece, up to its end or to the first piece that is not free any more.
    /// Gives the number of clusters, and where it stopped.
    fn visit_pieces<E: From<Error>>(
        &self,
        run: &Run,
        visit: &mut impl FnMut(&Run) -> Result<(), E>,
    ) -> (Result<u64, E>, u32) {
        let mut at = run.start.0;
        while at < run.end() {
            let share = self.free_clusters() / SHARE;
            let most = u32::try_from(share).unwrap_or(u32::MAX).max(LEAST_PIECE);
            let piece = Run {
                group: run.group,
                start: GroupOffset(at),
                len: ClusterCount(most.min(run.end() - at)),
            };
            // Before the clusters are claimed: who is short of them waits for the end of it.
            let telling = &self.table().shared.telling;
            telling.begin(piece.len.0.into());
            let seen = self.visit_piece(&piece, visit);
            self.end_telling(piece.len);
            let seen = match seen {
                Ok(Some(seen)) => seen,
                Ok(None) => break,
                Err(error) => return (Err(error.into()), at),
            };
            if let Err(error) = seen {
                return (Err(error), at);
            }
            at = piece.end();
        }
        (Ok(u64::from(at - run.start.0)), at)
    }

    /// Shows one piece; `None` if it is not free any more, or belongs to who holds tokens.
    fn visit_piece<E>(
        &self,
        piece: &Run,
        visit: &mut impl FnMut(&Run) -> Result<(), E>,
    ) -> Result<Option<Result<(), E>>, Error> {
        let Some(claim) = self.claim_found(piece)? else {
            return Ok(None);
        };
        let seen = visit(piece);
        self.give_back(claim);
        Ok(Some(seen))
    }

    /// Ends what [`Telling::begin`](crate::shortage::Telling::begin) began, when the tokens are
    /// back.
    fn end_telling(&self, len: ClusterCount) {
        let shared = &self.table().shared;
        shared.telling.end(len.0.into());
        shared.bell.ring();
    }

    /// The device does not know of everything in the group after all.
    fn forget_trim(&self, group: GroupNr) {
        if let Ok(mut locked) = self.locked(group) {
            locked.set_trimmed(None);
        }
    }

    /// Lets what is freed from now on wait until [`Allocator::release_visited`] has shown it.
    pub fn hold_due(&self) {
        self.table().shared.holds_due.store(true, Ordering::Relaxed);
    }

    /// Shows `visit` what need not wait any longer, and frees it then.
    ///
    /// # Errors
    /// The first that `visit` gives; all is free then, too.
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
                self.end_telling(run.len);
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

    /// Claims a run that was free a moment ago; `None` if it is not any more, or belongs to who
    /// holds tokens.
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
