//! **Purpose.** Ctrl-C while an image is written: the unfinished image is removed and the command
//! ends. On a host with files without names (`O_TMPFILE`) there is nothing to remove.

use fourscore_build::Flow;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result};
use crate::signals;

/// Exit status for a command that Ctrl-C has ended, as shells report it.
const ENDED_BY_SIGINT: i32 = 130;

/// Whether a signal has requested the end of the command.
pub(crate) struct Interrupt {
    is_requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the handler: the first signal requests the end, a second one ends the command at
    /// once.
    pub(crate) fn install() -> Result<Self> {
        let signals = Signals::new(signals::ending());
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
