//! **Purpose.** The source of times. Everything that measures takes a [`Clock`], so that tests of
//! the statistics can advance a clock of their own and compare exact figures.

use std::time::{Duration, Instant};

/// A source of times that never goes back.
pub trait Clock: Sync {
    /// The time since an arbitrary fixed moment.
    fn now(&self) -> Duration;

    /// The processor time that the calling thread has used.
    fn thread_time(&self) -> Duration;
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

    fn thread_time(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        // The kernel's times are not negative, and the nanoseconds are less than a second.
        Duration::try_from(time).unwrap_or_default()
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

    fn thread_time(&self) -> Duration {
        self.now()
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

    #[test]
    fn a_thread_that_works_uses_time() {
        let clock = MonotonicClock::default();
        let before = clock.thread_time();
        while clock.thread_time() < before + Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        assert!(clock.now() >= Duration::from_millis(2));
    }
}
