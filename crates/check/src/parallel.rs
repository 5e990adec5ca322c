//! **Purpose.** Divides work among threads: each takes the next piece when it has finished one.

use std::num::NonZeroUsize;
use std::ops::Range;

use fourscore_sync::atomic::{AtomicU64, Ordering::Relaxed};
use fourscore_sync::thread;

/// Pieces of a range of numbers, handed out in order, each once.
#[derive(Debug)]
pub(crate) struct Pieces {
    next: AtomicU64,
    end: u64,
    step: u64,
}

impl Pieces {
    /// The numbers below `end`, `step` at a time.
    pub(crate) fn new(end: u64, step: u64) -> Self {
        Self {
            next: AtomicU64::new(0),
            end,
            step: step.max(1),
        }
    }

    /// The next piece.
    pub(crate) fn take(&self) -> Option<Range<u64>> {
        let start = self.next.fetch_add(self.step, Relaxed);
        let end = start.saturating_add(self.step).min(self.end);
        (start < end).then_some(start..end)
    }
}

/// Runs `work` on `threads` threads, including the calling one, and collects the results.
pub(crate) fn on_threads<W: Send>(threads: NonZeroUsize, work: impl Fn() -> W + Sync) -> Vec<W> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads.get()).map(|_| scope.spawn(&work)).collect();
        let own = work();
        let mut all = vec![own];
        for other in others {
            match other.join() {
                Ok(result) => all.push(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_handed_out_once() {
        let pieces = Pieces::new(1003, 10);
        let threads = NonZeroUsize::new(3).unwrap_or(NonZeroUsize::MIN);
        let sums = on_threads(threads, || {
            std::iter::from_fn(|| pieces.take()).flatten().sum::<u64>()
        });
        assert_eq!(sums.len(), 3);
        assert_eq!(sums.into_iter().sum::<u64>(), 1003 * 1002 / 2);
    }
}
