//! **Purpose.** Limits: the exact usage of identifiers that have some, grace times, and callers
//! that are exempt.
//!
//! **Model.** As in the kernel (`dquot_add_space`, `dquot_add_inodes`): a change that would exceed
//! a hard limit is refused. One that exceeds a soft limit begins the grace time, after whose end it
//! is refused as well; the grace time ends when the usage is within the limit again. Shrinking is
//! never refused.
//!
//! **Invariants.** `counts` has what plans have taken before their handles, and what they have
//! given back in them. So it is never less than what the transactions up to now use, and no more
//! than a hard limit allows, unless a caller was exempt or the limit was set below the usage.
//!
//! **Locking.** One lock for each identifier, a leaf.

use std::cell::Cell;

use fourscore_ondisk::quota::{GraceTimes, QuotaEntry};
use fourscore_sync::{Mutex, thread};

use crate::mount::clock::now;
use crate::quota::usage::Usage;
use crate::{Error, Result};

thread::thread_local! {
    /// Whether the operations of this thread are exempt from limits.
    static EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// Calls `operation`, whose changes on this thread are exempt from limits of quota, as those of a
/// caller with `CAP_SYS_RESOURCE` are in Linux. They are counted.
pub fn exempt_from_quota<R>(operation: impl FnOnce() -> R) -> R {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            // A thread that is ending makes no further changes.
            let _ = EXEMPT.try_with(|exempt| exempt.set(self.0));
        }
    }
    let before = EXEMPT.try_with(|exempt| exempt.replace(true));
    let _back = Back(before.unwrap_or(false));
    operation()
}

fn is_exempt() -> bool {
    EXEMPT.try_with(Cell::get).unwrap_or(false)
}

/// The exact usage of an identifier, and its limits.
#[derive(Debug)]
pub(super) struct Exact {
    entry: Mutex<QuotaEntry>,
}

impl Exact {
    pub(super) fn new(entry: QuotaEntry) -> Self {
        Self {
            entry: Mutex::new(entry),
        }
    }

    /// Replaces usage, limits and grace times, while no plan is being made.
    pub(super) fn set(&self, entry: QuotaEntry) {
        *self.entry.lock() = entry;
    }

    /// Returns usage, limits and grace times.
    pub(super) fn entry(&self) -> QuotaEntry {
        *self.entry.lock()
    }

    /// Returns the ends of the grace times of space and of inodes.
    pub(super) fn grace_ends(&self) -> (u64, u64) {
        let entry = self.entry.lock();
        (entry.bytes_grace_end, entry.inodes_grace_end)
    }

    /// Adds `usage`, which has grown, if the limits allow it.
    ///
    /// # Errors
    /// `QuotaExceeded`; nothing was added then.
    pub(super) fn take(&self, usage: Usage, grace: GraceTimes) -> Result<()> {
        let now = u64::try_from(now().seconds()).unwrap_or(0);
        let mut entry = self.entry.lock();
        let limits = entry.limits;
        let space = Measure {
            used: entry.counts.bytes.saturating_add_signed(usage.bytes),
            soft: limits.soft_bytes,
            hard: limits.hard_bytes,
            grace_end: entry.bytes_grace_end,
            grace: grace.space,
        };
        let inodes = Measure {
            used: entry.counts.inodes.saturating_add_signed(usage.inodes),
            soft: limits.soft_inodes,
            hard: limits.hard_inodes,
            grace_end: entry.inodes_grace_end,
            grace: grace.inodes,
        };
        let space_end = match usage.bytes > 0 {
            true => space.admitted(now)?,
            false => entry.bytes_grace_end,
        };
        let inodes_end = match usage.inodes > 0 {
            true => inodes.admitted(now)?,
            false => entry.inodes_grace_end,
        };
        (entry.counts.bytes, entry.counts.inodes) = (space.used, inodes.used);
        (entry.bytes_grace_end, entry.inodes_grace_end) = (space_end, inodes_end);
        Ok(())
    }

    /// Adds `usage`, which has shrunk.
    pub(super) fn give_back(&self, usage: Usage) {
        let mut entry = self.entry.lock();
        let counts = &mut entry.counts;
        counts.bytes = counts.bytes.saturating_add_signed(usage.bytes);
        counts.inodes = counts.inodes.saturating_add_signed(usage.inodes);
        if entry.counts.bytes <= entry.limits.soft_bytes {
            entry.bytes_grace_end = 0;
        }
        if entry.counts.inodes <= entry.limits.soft_inodes {
            entry.inodes_grace_end = 0;
        }
    }
}

/// What would be used of one resource, and its limits.
struct Measure {
    used: u64,
    soft: u64,
    hard: u64,
    grace_end: u64,
    grace: u32,
}

impl Measure {
    /// Returns the end of the grace time if the usage is allowed.
    fn admitted(&self, now: u64) -> Result<u64> {
        let is_over = |limit: u64| limit != 0 && self.used > limit;
        let is_too_late = self.grace_end != 0 && now >= self.grace_end;
        let is_refused = is_over(self.hard) || is_over(self.soft) && is_too_late;
        if is_refused && !is_exempt() {
            return Err(Error::QuotaExceeded);
        }
        Ok(match is_over(self.soft) && self.grace_end == 0 {
            true => now.saturating_add(self.grace.into()),
            false => self.grace_end,
        })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use fourscore_ondisk::quota::{QuotaCounts, QuotaLimits};

    use super::*;

    const GRACE: GraceTimes = GraceTimes {
        space: 100,
        inodes: 100,
    };

    fn exact(limits: QuotaLimits) -> Exact {
        Exact::new(QuotaEntry {
            limits,
            ..QuotaEntry::default()
        })
    }

    fn bytes(bytes: i64) -> Usage {
        Usage { bytes, inodes: 0 }
    }

    #[test]
    fn a_hard_limit_is_reached_and_not_exceeded() {
        let exact = exact(QuotaLimits {
            hard_bytes: 10_240,
            hard_inodes: 2,
            ..QuotaLimits::default()
        });
        exact.take(bytes(10_240), GRACE).unwrap();
        let refused = exact.take(bytes(1), GRACE);
        assert!(matches!(refused, Err(Error::QuotaExceeded)));
        let inodes = |inodes| Usage { bytes: 0, inodes };
        exact.take(inodes(2), GRACE).unwrap();
        assert!(exact.take(inodes(1), GRACE).is_err());
        exempt_from_quota(|| exact.take(bytes(1), GRACE)).unwrap();
        assert!(exact.take(bytes(1), GRACE).is_err(), "no longer exempt");
        exact.give_back(bytes(-2));
        exact.take(bytes(1), GRACE).unwrap();
        let counts = QuotaCounts {
            inodes: 2,
            bytes: 10_240,
        };
        assert_eq!(exact.entry.lock().counts, counts);
    }

    #[test]
    fn a_soft_limit_is_exceeded_until_its_grace_time_ends() {
        let exact = exact(QuotaLimits {
            soft_bytes: 1024,
            ..QuotaLimits::default()
        });
        exact.take(bytes(1024), GRACE).unwrap();
        assert_eq!(exact.grace_ends().0, 0);
        exact.take(bytes(1), GRACE).unwrap();
        let end = exact.grace_ends().0;
        assert!(end > 100);
        exact.take(bytes(1), GRACE).unwrap();
        assert_eq!(exact.grace_ends().0, end, "it began once");
        let mut late = *exact.entry.lock();
        late.bytes_grace_end = 1;
        exact.set(late);
        assert!(exact.take(bytes(1), GRACE).is_err());
        exact.give_back(bytes(-2));
        assert_eq!(exact.grace_ends().0, 0);
        exact.take(bytes(1), GRACE).unwrap();
    }
}
