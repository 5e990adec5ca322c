//! **Purpose.** Keeps operations out while the file system is frozen.
//!
//! **Not here.** The steps of freezing and thawing, and the protocol between entering and freezing
//! (`crate::mount::freeze`).
//!
//! **Locking.** Entering and leaving write the word of the core. They and closing are the two sides
//! of Dekker's protocol: each writes its own word, then reads the other's. All these accesses are
//! sequentially consistent, so at least one side sees the other. On x86 a read-modify-write is that
//! already, and needs no fence behind it.

use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fourscore_sync::{CachePadded, Condvar, CoreNr, Mutex, PerCore};

use crate::{Error, Result};

/// The count of threads inside, and whether threads may enter.
#[derive(Debug, Default)]
pub(crate) struct Freezer {
    inside: PerCore<AtomicU64>,
    /// Whether no thread may enter.
    closed: CachePadded<AtomicBool>,
    phase: Mutex<Phase>,
    /// Signalled when a thread has left while it was closed, and when it was thawed.
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Thawed,
    Freezing,
    Frozen,
}

/// The thread is inside as long as this lives.
#[derive(Debug)]
pub(crate) struct Inside<'f> {
    freezer: &'f Freezer,
    core: CoreNr,
}

impl Freezer {
    /// Enters. Waits while the file system is frozen.
    pub(crate) fn enter(&self) -> Inside<'_> {
        loop {
            let core = CoreNr::current();
            self.inside.of(core).fetch_add(1, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) {
                return Inside {
                    freezer: self,
                    core,
                };
            }
            self.leave(core);
            self.wait_until_thawed();
        }
    }

    fn leave(&self, core: CoreNr) {
        self.inside.of(core).fetch_sub(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            // The freezing thread checks the counts under this lock, so no wakeup is lost.
            drop(self.phase.lock());
            self.changed.notify_all();
        }
    }

    #[cold]
    fn wait_until_thawed(&self) {
        let mut phase = self.phase.lock();
        while *phase != Phase::Thawed {
            self.changed.wait(&mut phase);
        }
    }

    /// Admits no thread any more, and waits until all have left.
    pub(crate) fn close(&self) -> Result<()> {
        let mut phase = self.phase.lock();
        if *phase != Phase::Thawed {
            return Err(Error::Busy);
        }
        *phase = Phase::Freezing;
        self.closed.store(true, Ordering::SeqCst);
        while self
            .inside
            .iter()
            .any(|core| core.load(Ordering::SeqCst) > 0)
        {
            self.changed.wait(&mut phase);
        }
        Ok(())
    }

    pub(crate) fn set_frozen(&self) {
        *self.phase.lock() = Phase::Frozen;
    }

    /// Begins to thaw. Only one thread can do so.
    pub(crate) fn begin_thaw(&self) -> Result<()> {
        let mut phase = self.phase.lock();
        if *phase != Phase::Frozen {
            return Err(Error::InvalidArgument("the file system is not frozen"));
        }
        *phase = Phase::Freezing;
        Ok(())
    }

    /// Admits all threads again.
    pub(crate) fn open(&self) {
        let mut phase = self.phase.lock();
        *phase = Phase::Thawed;
        self.closed.store(false, Ordering::Release);
        drop(phase);
        self.changed.notify_all();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.freezer.leave(self.core);
    }
}

/// Whether the updates of the `mmp` block are suspended or resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Begins,
    Ends,
}

#[cfg(all(test, not(feature = "shuttle"), not(feature = "count")))]
mod tests {
    use fourscore_sync::atomic::AtomicBool;
    use std::time::Duration;

    use fourscore_sync::thread;

    use super::*;

    #[test]
    fn a_closed_gate_has_no_entrants_and_all_enter_after_it_opens() {
        let freezer = Freezer::default();
        let (entered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let inside = freezer.enter();
                        entered.fetch_add(1, Ordering::Relaxed);
                        drop(inside);
                    }
                });
            }
            for _ in 0..20 {
                freezer.close().unwrap();
                assert!(matches!(freezer.close(), Err(Error::Busy)));
                let before = entered.load(Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
                assert_eq!(entered.load(Ordering::Relaxed), before);
                freezer.set_frozen();
                freezer.begin_thaw().unwrap();
                freezer.open();
                assert!(freezer.begin_thaw().is_err());
                while entered.load(Ordering::Relaxed) == before {
                    thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(
            freezer
                .inside
                .iter()
                .all(|core| core.load(Ordering::Relaxed) == 0)
        );
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod model_tests {
    use fourscore_sync::{Arc, model, thread};

    use super::*;

    #[test]
    fn two_entrants_and_one_freeze_in_any_order() {
        model::check(2_000, || {
            let freezer = Arc::new(Freezer::default());
            let halves = Arc::new(AtomicU64::new(0));
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let (freezer, halves) = (Arc::clone(&freezer), Arc::clone(&halves));
                    thread::spawn(move || {
                        let _inside = freezer.enter();
                        halves.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        halves.fetch_add(1, Ordering::SeqCst);
                    })
                })
                .collect();
            freezer.close().unwrap();
            let seen = halves.load(Ordering::SeqCst);
            assert_eq!(seen % 2, 0, "an operation is inside");
            thread::yield_now();
            assert_eq!(halves.load(Ordering::SeqCst), seen, "an operation entered");
            freezer.open();
            for writer in writers {
                writer.join().unwrap();
            }
            assert_eq!(halves.load(Ordering::SeqCst), 4);
        });
    }
}
