//! **Purpose.** The signals that end a command: SIGINT, SIGTERM and SIGHUP.
//!
//! **Model.** A command under nohup(1) ignores SIGHUP, so that it outlives its terminal. A handler
//! would undo that, so it is not installed. SIGINT is handled even if it is ignored, as it is in a
//! command that a shell has started in the background.
//!
//! A command that has claimed a file system (feature `mmp`) ends on a signal as without a handler,
//! but releases it before. What it was writing is cut off. A signal that is ignored stays so.

use fourscore_block::mmp;
use fourscore_sync::thread;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::failure::{Failure, Result};

/// The signals that end this command.
pub(crate) fn ending() -> impl Iterator<Item = i32> {
    let hang_up = (!ignores(SIGHUP)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hang_up)
}

/// Installs the handler of a command that claims a file system.
pub(crate) fn release_at_end() -> Result<()> {
    let signals = [SIGINT, SIGTERM, SIGHUP];
    let signals = Signals::new(signals.into_iter().filter(|&signal| !ignores(signal)));
    let mut signals = signals.map_err(|why| Failure::new("signals", why))?;
    thread::spawn(move || {
        for signal in signals.forever() {
            mmp::release_all();
            // The process ends here, with the status that belongs to the signal.
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
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
