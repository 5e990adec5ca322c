//! **Purpose.** Ctrl-C while an image is written: the unfinished image is removed and the command
//! ends. On a host with files without names (`O_TMPFILE`) there is nothing to remove.

use fourscore_build::Flow;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result};

/// Exit status for a command that Ctrl-C has ended, as shells report it.
const ENDED_BY_SIGINT: i32 = 130;

/// Whether a signal has requested the end of the command.
pub(crate) struct Interrupt {
    is_requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the handler: the first signal requests the end, a second one ends the command at
    /// once. SIGHUP stays ignored if it was, as it is under nohup.
    pub(crate) fn install() -> Result<Self> {
        let hang_up = (!ignores(SIGHUP)).then_some(SIGHUP);
        let signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hang_up));
        let mut signals = signals.map_err(|why| Failure::new("signals", why))?;
        let is_requested = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&is_requested);
        thread::spawn(move || {
            for _ in signals.forever() {
                if of_thread.swap(true, Ordering::Relaxed) {
                    std::process::exit(ENDED_BY_SIGINT);
                }
            }
        });
        Ok(Self { is_requested })
    }

    /// Whether the build continues.
    pub(super) fn flow(&self) -> Flow {
        match self.is_requested.load(Ordering::Relaxed) {
            true => Flow::Stop,
            false => Flow::Continue,
        }
    }
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
