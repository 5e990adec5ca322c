//! **Purpose.** Waits of a few microseconds for another core, shorter than it takes to put a thread
//! to sleep and wake it.
//!
//! **Model.** A thread looks again and again whether what it waits for has happened. The other
//! thread may be waiting for this very core, so after the first looks the thread gives the core
//! away between two of them. In a model (shuttle) no time passes, and a thread never looks twice;
//! nor does a virtual core with a clock, for which the time of the host means nothing.

use std::time::{Duration, Instant};

/// About as long as it takes to wake a thread that sleeps: a wait that may last longer is better
/// slept through.
pub const WAKE_UP: Duration = Duration::from_micros(20);

/// For so many looks a thread does not give the core away.
const LOOKS_ON_CORE: u32 = 128;

/// Calls `look` until it returns something, for `longest` at most.
pub fn spin<T>(longest: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    if cfg!(feature = "shuttle") {
        return None;
    }
    #[cfg(feature = "count")]
    if crate::count::has_clock() {
        return None;
    }
    for _ in 0..LOOKS_ON_CORE {
        std::hint::spin_loop();
        if let Some(seen) = look() {
            return Some(seen);
        }
    }
    let began = Instant::now();
    while began.elapsed() < longest {
        std::thread::yield_now();
        if let Some(seen) = look() {
            return Some(seen);
        }
    }
    None
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_it_sees_something_or_when_the_time_is_up() {
        let mut looks = 0;
        let third = spin(Duration::ZERO, || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(third, Some(3));
        let began = Instant::now();
        assert_eq!(spin(Duration::from_millis(2), || None::<()>), None);
        assert!(began.elapsed() >= Duration::from_millis(2));
    }
}
