//! **Purpose.** Ctrl-C while an image is written: what was begun is taken away, then the command
//! ends. Where the host has files without names there is nothing to take away; elsewhere the
//! file has a name that must go.

use fourscore_build::Flow;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result};

/// What a shell says of a command that Ctrl-C ended.
const ENDED_BY_SIGINT: i32 = 130;

/// Whether somebody wants the command to end.
pub(crate) struct Interrupt {
    is_asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on the first signal asks; a second one ends the command at once.
    pub(crate) fn install() -> Result<Self> {
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
        let mut signals = signals.map_err(|why| Failure::new("signals", why))?;
        let is_asked = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&is_asked);
        thread::spawn(move || {
            for _ in signals.forever() {
                if of_thread.swap(true, Ordering::Relaxed) {
                    std::process::exit(ENDED_BY_SIGINT);
                }
            }
        });
        Ok(Self { is_asked })
    }

    /// Whether to go on.
    pub(super) fn flow(&self) -> Flow {
        match self.is_asked.load(Ordering::Relaxed) {
            true => Flow::Stop,
            false => Flow::Continue,
        }
    }
}
