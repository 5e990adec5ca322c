//! **Purpose.** A value that is replaced now and then by a new version, and is read without a
//! guard.
//!
//! **Model.** Old versions are kept until the cell is dropped, so a reference to any of them lives
//! as long as the cell. That is for values that are read everywhere and replaced a few times in the
//! life of a cell: the size of a file system that grows. Values that are replaced often belong into
//! an [`EpochCell`](crate::epoch::EpochCell), which reclaims the old ones.
//!
//! **Invariants.** A reader that sees something which was stored after a version was published,
//! with release and acquire order, sees that version or a later one.
//!
//! **Locking.** Reading is one load of a word that only a publication writes. Publications take a
//! lock, which is a leaf.

use std::fmt;
use std::ptr::NonNull;

use crate::Mutex;
use crate::atomic::{AtomicPtr, Ordering};

/// A value, and all its earlier versions.
pub struct Versions<T> {
    current: AtomicPtr<T>,
    /// All versions, each of which this owns.
    all: Mutex<Vec<NonNull<T>>>,
}

// SAFETY: the cell owns its versions and gives out only shared references to them, from any thread;
// it may be dropped, with all of them, on another thread than that which made them.
unsafe impl<T: Send + Sync> Send for Versions<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Versions<T> {}

impl<T> Versions<T> {
    /// A cell with a first version.
    #[must_use]
    pub fn new(first: T) -> Self {
        let first = NonNull::from(Box::leak(Box::new(first)));
        Self {
            current: AtomicPtr::new(first.as_ptr()),
            all: Mutex::new(vec![first]),
        }
    }

    /// The current version.
    #[inline]
    #[cfg_attr(feature = "count", track_caller)]
    pub fn get(&self) -> &T {
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: the pointer is one of `all`, which were leaked boxes, are never changed, and
        // are freed only when the cell is dropped, which `&self` outlives. The release store of
        // `publish` orders the making of the value before this.
        unsafe { &*current }
    }

    /// Publishes another version.
    pub fn publish(&self, next: T) {
        let next = NonNull::from(Box::leak(Box::new(next)));
        let mut all = self.all.lock();
        all.push(next);
        self.current.store(next.as_ptr(), Ordering::Release);
    }
}

impl<T> Drop for Versions<T> {
    fn drop(&mut self) {
        for version in self.all.lock().drain(..) {
            // SAFETY: each was leaked from a box once, and no reference outlives the cell.
            drop(unsafe { Box::from_raw(version.as_ptr()) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Versions<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::{Arc, thread};

    #[test]
    fn old_versions_live_as_long_as_the_cell() {
        let counted = Arc::new(());
        let versions = Versions::new(Arc::clone(&counted));
        let first = versions.get();
        for _ in 0..10 {
            versions.publish(Arc::clone(&counted));
        }
        assert!(Arc::ptr_eq(first, versions.get()));
        assert_eq!(Arc::strong_count(&counted), 12);
        drop(versions);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn readers_see_whole_versions_that_never_go_back() {
        let versions = Versions::new([0_u64; 4]);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 1000 {
                        let [first, rest @ ..] = *versions.get();
                        assert_eq!(rest, [first; 3]);
                        assert!(first >= last);
                        last = first;
                    }
                });
            }
            (1..=1000).for_each(|number| versions.publish([number; 4]));
        });
    }
}
