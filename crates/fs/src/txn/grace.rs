//! **Purpose.** Grace periods (as in RCU): finds out when the readers that were active at a point
//! in time have ended, so that blocks that were freed then can be allocated again.
//!
//! **Model.** The grace-period clock ticks with a commit, if something that readers may have found
//! was freed since the last tick, and when a core has cut much off files. Such a free is stamped
//! with the time. A tick retires a marker through the epochs. When the last reader that was active
//! before the tick has ended, the marker is dropped and notifies the allocator that the grace
//! period of everything stamped so far has ended. The notification wakes the threads that wait for
//! space ([`crate::txn::space`]). Just before it the reuse clock advances, for readers that hold no
//! guard ([`crate::inode::reuse`]).
//!
//! A commit also evicts buddies that were not used since the previous commit, if more of them are
//! in memory than the mount allows.
//!
//! **Locking.** None. The clock is one atomic word that is written once per tick, and a flag that
//! the first free after a tick sets. What was cut off is counted per core. A tick costs system
//! calls that interrupt other cores ([`epoch::flush`]), so a commit in which nothing was freed
//! makes none.

use fourscore_mballoc::{Allocator, Stamp};
use fourscore_ondisk::Tid;
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fourscore_sync::epoch::{self, EpochCell};
use fourscore_sync::{Arc, CoreNr, OnceLock, PerCore, Weak};

use crate::inode::reuse::ReuseClock;
use crate::mount::discards::Discards;

/// The most buddies that one commit evicts, so that it does not take long.
const EVICTED_PER_COMMIT: u32 = 1024;

/// If a core has cut this many bytes off files, it ticks. Blocks that were written and freed in one
/// transaction can then be reused while they are in the caches of the CPU and of the host. A tick
/// takes some microseconds, far less than writing this much.
const MUCH_BYTES: u64 = 4 << 20;

/// The grace-period clock of one file system.
#[derive(Debug)]
pub(crate) struct GracePeriod {
    now: AtomicU64,
    /// Whether a free may have been stamped since the last tick of a commit.
    is_awaited: AtomicBool,
    /// How many bytes each core has cut off files since it last ticked for that. Not exact where a
    /// thread moves to another core meanwhile.
    cut_off_bytes: PerCore<AtomicU64>,
    current: EpochCell<Marker>,
    allocator: OnceLock<Weak<Allocator>>,
    /// Advances whenever a grace period ends.
    reuse: Arc<ReuseClock>,
    most_loaded: u32,
    /// Reports freed blocks to the device, if the mount does that.
    discards: Option<Discards>,
}

/// Dropped when all readers have ended that were active when it was retired.
#[derive(Debug)]
struct Marker {
    stamp: Stamp,
    allocator: Weak<Allocator>,
    reuse: Arc<ReuseClock>,
}

impl Drop for Marker {
    fn drop(&mut self) {
        if let Some(allocator) = self.allocator.upgrade() {
            self.reuse.advance();
            allocator.end_grace_period(self.stamp);
        }
    }
}

impl GracePeriod {
    /// Returns the clock of a file system of which `most_loaded` groups may have unused buddies in
    /// memory.
    pub(crate) fn new(
        most_loaded: u32,
        discards: Option<Discards>,
        reuse: Arc<ReuseClock>,
    ) -> Self {
        Self {
            now: AtomicU64::new(1),
            is_awaited: AtomicBool::new(false),
            cut_off_bytes: PerCore::default(),
            current: EpochCell::new(None),
            allocator: OnceLock::new(),
            reuse,
            most_loaded,
            discards,
        }
    }

    /// Sets the allocator that the clock notifies from now on.
    pub(crate) fn serve(&self, allocator: &Arc<Allocator>) {
        if self.discards.is_some() {
            allocator.hold_due();
        }
        // The caller has just made the clock, so no allocator was set before.
        let _ = self.allocator.set(Arc::downgrade(allocator));
    }

    /// Returns the stamp that a free made now has to wait for.
    pub(crate) fn stamp(&self) -> Stamp {
        // A tick clears the flag before it advances the clock. So a stamp of the time after a tick
        // finds the flag cleared, and sets it for the next one.
        let stamp = Stamp(self.now.load(Ordering::Acquire));
        if !self.is_awaited.load(Ordering::Acquire) {
            self.is_awaited.store(true, Ordering::Release);
        }
        stamp
    }

    /// Called when the commit of `tid` is durable: ticks if something was freed, and frees what
    /// need not wait any longer.
    pub(crate) fn committed(&self, tid: Tid) {
        let Some(allocator) = self.allocator.get().and_then(Weak::upgrade) else {
            return;
        };
        allocator.set_durable(tid);
        if self.is_awaited.swap(false, Ordering::AcqRel) {
            self.expedite();
        }
        self.release(&allocator);
        let loaded = allocator
            .geometry()
            .groups()
            .saturating_sub(allocator.absent_groups());
        let too_many = loaded.saturating_sub(self.most_loaded);
        if too_many > 0 {
            allocator.evict_idle(too_many.min(EVICTED_PER_COMMIT));
        }
    }

    /// Frees what need not wait any longer, after it was reported to the device.
    pub(crate) fn release(&self, allocator: &Allocator) {
        match &self.discards {
            Some(discards) => discards.release(allocator),
            None => {
                allocator.sweep();
            }
        }
    }

    /// Notes that `bytes` were cut off a file. Ticks if this core has cut off [`MUCH_BYTES`] since
    /// it last did.
    pub(crate) fn note_cut_off(&self, bytes: u64) {
        let cut_off = self.cut_off_bytes.of(CoreNr::current());
        let sum_bytes = cut_off.load(Ordering::Relaxed).saturating_add(bytes);
        if sum_bytes < MUCH_BYTES {
            return cut_off.store(sum_bytes, Ordering::Relaxed);
        }
        cut_off.store(0, Ordering::Relaxed);
        self.expedite();
    }

    /// Ticks. Returns a stamp: when the allocator's clock has reached it, the grace periods of
    /// everything that was stamped before have ended.
    pub(crate) fn expedite(&self) -> Stamp {
        let Some(allocator) = self.allocator.get() else {
            return Stamp::default();
        };
        let stamp = Stamp(self.now.fetch_add(1, Ordering::AcqRel));
        self.current.store(Some(Box::new(Marker {
            stamp,
            allocator: Weak::clone(allocator),
            reuse: Arc::clone(&self.reuse),
        })));
        // Retires the marker.
        self.current.store(None);
        epoch::flush();
        stamp
    }
}
