//! **Purpose.** The number of cores and the current core, as the operating system reports them.

use std::fs;
use std::sync::OnceLock;
use std::thread;

pub(crate) use crate::host::current_index;

/// More than Linux can be configured for; a guard against nonsense in /sys.
const MAX_CORES: usize = 1 << 15;

/// Without a list of the possible cores (other systems, or /sys is hidden) these are the cores that
/// the process may use now.
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
