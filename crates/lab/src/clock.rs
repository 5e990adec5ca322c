//! **Purpose.** The source of times. Everything that measures takes a [`Clock`], so that tests of
//! the statistics can advance a clock of their own and compare exact figures.

use std::time::{Duration, Instant};

/// A source of times that never goes back.
pub trait Clock: Sync {
    /// The time since an arbitrary fixed moment.
    fn now(&self) -> Duration;
}

/// The monotonic clock of the system, counted from the creation of the value.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// A clock that stands still until a test advances it.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct FakeClock {
    nanoseconds: fourscore_sync::atomic::AtomicU64,
}

#[cfg(test)]
impl FakeClock {
    pub(crate) fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).expect("a test's duration fits");
        self.nanoseconds
            .fetch_add(by, fourscore_sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(test)]
impl Clock for FakeClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(
            self.nanoseconds
                .load(fourscore_sync::atomic::Ordering::SeqCst),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_moves_forward() {
        let clock = MonotonicClock::default();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.now() >= before + Duration::from_millis(2));
    }
}
