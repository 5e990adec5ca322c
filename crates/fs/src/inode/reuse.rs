//! **Purpose.** The reuse clock. A reader may have found where the data of a file lies; the clock
//! advances before that place can hold other data.
//!
//! **Model.** A reader of data finds the places of the data under an epoch guard, drops the guard,
//! and reads the device. If the clock has not advanced in between, what it read was data of the
//! file:
//!
//! - Blocks that were freed meanwhile cannot have been allocated again. That needs the end of a
//!   grace period that began after the free, and the clock advances at the end of each grace
//!   period. A period that ends while the reader holds its guard began before the free. Blocks that
//!   wait for no grace period have never been places of data.
//! - Blocks that moved to other offsets of the file (collapse, insert) cannot have been written
//!   there. The clock advances when the move has been published, while the inode is still locked.
//!
//! A reader that finds that the clock has advanced compares the inode's counts
//! ([`crate::inode::consistent`]).
//!
//! **Locking.** None. The clock is one word, which is written once per commit and per move.

use fourscore_sync::CachePadded;
use fourscore_sync::atomic::{AtomicU64, Ordering, fence};

/// The reuse clock of one file system.
#[derive(Debug, Default)]
pub(crate) struct ReuseClock(CachePadded<AtomicU64>);

/// A time on the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReuseTime(u64);

impl ReuseClock {
    /// Returns the time. What the caller reads afterwards is not moved before the call.
    #[inline]
    pub(crate) fn now(&self) -> ReuseTime {
        ReuseTime(self.0.load(Ordering::Acquire))
    }

    /// Whether the time is still `time`. What the caller has read is not moved behind the call.
    #[inline]
    pub(crate) fn is_still(&self, time: ReuseTime) -> bool {
        fence(Ordering::Acquire);
        self.now() == time
    }

    /// Advances the clock. To be called before places are reused.
    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
