//! **Purpose.** The number of cores and the current core, as the operating system reports them.

use std::fs;
use std::sync::OnceLock;
use std::thread;

/// More than Linux can be configured for; a guard against nonsense in /sys.
const MAX_CORES: usize = 1 << 15;

#[inline]
pub(crate) fn core_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        fs::read_to_string("/sys/devices/system/cpu/possible")
            .ok()
            .and_then(|list| count_of_possible(&list))
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
            .clamp(1, MAX_CORES)
    })
}

/// One more than the highest number in a CPU list such as `0-3,8-11`.
pub(super) fn count_of_possible(list: &str) -> Option<usize> {
    let last = list.trim().rsplit([',', '-']).next()?;
    last.parse::<usize>().ok()?.checked_add(1)
}

/// The number of the CPU this thread runs on, not yet checked against the count.
#[inline]
pub(crate) fn current_index() -> usize {
    // SAFETY: the call has no preconditions. It fails (-1) only on kernels without getcpu.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}
