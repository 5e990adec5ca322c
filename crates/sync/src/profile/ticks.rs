//! **Purpose.** A clock that is cheap to read: the time-stamp counter of the processor, or the
//! clock of the operating system where there is none that all cores count alike.
//!
//! **Model.** The counter is used if the processor says that it advances at one rate in all states
//! (*invariant*). Its rate is not asked for: it is the quotient of the ticks and the time since the
//! first reading, and gets more precise as time passes.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The shortest time between the first reading and one that the rate is taken from: the error of
/// reading both clocks is a thousandth of it.
const SHORTEST_BASE: Duration = Duration::from_millis(1);

/// Both clocks at the first reading.
struct Anchor {
    ticks: u64,
    time: Instant,
    has_counter: bool,
}

static ANCHOR: OnceLock<Anchor> = OnceLock::new();

fn anchor() -> &'static Anchor {
    ANCHOR.get_or_init(|| {
        let has_counter = has_invariant_counter();
        Anchor {
            ticks: if has_counter { counter() } else { 0 },
            time: Instant::now(),
            has_counter,
        }
    })
}

/// The time in ticks. Readings of two cores may differ by some ticks, so a difference must saturate
/// at zero.
#[inline]
pub(super) fn now() -> u64 {
    let anchor = anchor();
    match anchor.has_counter {
        true => counter(),
        false => nanoseconds(anchor.time.elapsed()),
    }
}

/// The length of a tick in nanoseconds. Waits until the rate is known to a thousandth.
pub(super) fn nanoseconds_per_tick() -> f64 {
    let anchor = anchor();
    if !anchor.has_counter {
        return 1.0;
    }
    let missing = SHORTEST_BASE.saturating_sub(anchor.time.elapsed());
    if !missing.is_zero() {
        std::thread::sleep(missing);
    }
    let (ticks, time) = (counter(), anchor.time.elapsed());
    let ticks = ticks.saturating_sub(anchor.ticks).max(1);
    nanoseconds(time) as f64 / ticks as f64
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: the instruction has no preconditions; Linux permits it to all processes, and a
    // process that forbade it to itself (PR_SET_TSC) gets a signal.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn counter() -> u64 {
    0
}

/// Whether the time-stamp counter advances at one rate.
#[cfg(target_arch = "x86_64")]
#[allow(
    unused_unsafe,
    reason = "the intrinsics are safe in later versions of the standard library"
)]
fn has_invariant_counter() -> bool {
    use core::arch::x86_64::__cpuid;
    const LAST_LEAF: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    // SAFETY: every processor of 64 bits has the instruction, and the second leaf is asked for only
    // if the first says that it exists.
    unsafe { __cpuid(LAST_LEAF).eax >= POWER && __cpuid(POWER).edx & INVARIANT != 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn has_invariant_counter() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_as_long_as_the_clock_says() {
        let (from, began) = (now(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (ticks, time) = (now() - from, nanoseconds(began.elapsed()) as f64);
        let measured = ticks as f64 * nanoseconds_per_tick();
        assert!((0.9..1.1).contains(&(measured / time)), "{measured} {time}");
    }
}
