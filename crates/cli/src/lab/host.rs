//! **Purpose.** The folder for scratch file systems, and what a signal undoes.
//!
//! **Model.** The first signal unmounts and removes everything, in a thread of its own, and ends
//! the command with the status that shells report for Ctrl-C. The thread that measures may fail
//! meanwhile, because its file system goes away: it waits for the end then and prints nothing.

use std::path::{Path, PathBuf};

use fourscore_lab::scratch::{Cleanup, Scratch};
use fourscore_sync::{Arc, thread};
use rustix::fs::StatVfs;
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result};

/// Exit status for a command that Ctrl-C has ended, as shells report it.
const ENDED_BY_SIGINT: i32 = 130;
/// Where images are in memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// The folder, until it is dropped.
#[derive(Debug)]
pub(super) struct Host {
    scratch: Scratch,
    cleanup: Arc<Cleanup>,
}

impl Host {
    /// Makes the folder in `base`, or where there is space for `bytes` bytes.
    pub(super) fn open(base: Option<&Path>, bytes: u64) -> Result<Self> {
        let base = base.map_or_else(|| default_base(bytes), Path::to_owned);
        let name = base.display().to_string();
        let failed = |why| Failure::new(name.as_str(), why);
        let place = rustix::fs::statvfs(&base).map_err(|why| failed(why.into()))?;
        let free = free_bytes(&place);
        if free < bytes {
            let why = format!(
                "the images take up to {} MiB, and {} MiB are free",
                bytes >> 20,
                free >> 20
            );
            let failure = Failure::new(name.as_str(), why);
            return Err(failure.advise("--scratch takes another directory"));
        }
        let fourscore = std::env::current_exe().map_err(failed)?;
        let cleanup = Arc::new(Cleanup::default());
        end_on_signals(Arc::clone(&cleanup))?;
        let scratch = Scratch::new(&base, fourscore, Arc::clone(&cleanup)).map_err(failed)?;
        Ok(Self { scratch, cleanup })
    }

    pub(super) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Returns if no signal has come; otherwise the command ends here.
    pub(super) fn wait_if_interrupted(&self) {
        while self.cleanup.has_ended() {
            thread::park();
        }
    }
}

fn free_bytes(place: &StatVfs) -> u64 {
    place.f_bavail.saturating_mul(place.f_frsize)
}

/// The shared memory if it has the space, or the directory for temporary files.
fn default_base(bytes: u64) -> PathBuf {
    let place = rustix::fs::statvfs(SHARED_MEMORY);
    match place.is_ok_and(|place| free_bytes(&place) >= bytes) {
        true => SHARED_MEMORY.into(),
        false => std::env::temp_dir(),
    }
}

/// Undoes everything at the first signal, and ends the command.
fn end_on_signals(cleanup: Arc<Cleanup>) -> Result<()> {
    let signals = Signals::new(crate::signals::ending());
    let mut signals = signals.map_err(|why| Failure::new("signals", why))?;
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            cleanup.end();
            std::process::exit(ENDED_BY_SIGINT);
        }
    });
    Ok(())
}
