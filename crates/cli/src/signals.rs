//! **Purpose.** The signals that end a command: SIGINT, SIGTERM and SIGHUP.
//!
//! **Model.** A command under nohup(1) ignores SIGHUP, so that it outlives its terminal. A handler
//! would undo that, so it is not installed. SIGINT is handled even if it is ignored, as it is in a
//! command that a shell has started in the background.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that end this command.
pub(crate) fn ending() -> impl Iterator<Item = i32> {
    let hang_up = (!ignores(SIGHUP)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hang_up)
}

/// Whether this process ignores a signal; `false` where the system does not say.
fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
