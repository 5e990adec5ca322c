//! **Purpose.** The policy of a mount for a broken file system, and whether the mount has stopped
//! writing.
//!
//! **Not here.** Noting errors and carrying the policy out (`crate::mount::errors`).

use std::fmt;

use fourscore_ondisk::superblock::ErrorPolicy;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, Mutex, OnceLock};

use crate::{Error, Result};

/// What to do when the file system is found to be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// Note the error and go on.
    Continue,
    /// Note the error, and write nothing any more.
    RemountReadOnly,
    /// As `RemountReadOnly`, and call the hook of the program
    /// ([`on_panic`](crate::MountOptions::on_panic)).
    Panic,
}

impl From<ErrorPolicy> for OnError {
    /// Converts as Linux does.
    fn from(policy: ErrorPolicy) -> Self {
        match policy {
            ErrorPolicy::Continue => Self::Continue,
            ErrorPolicy::Panic => Self::Panic,
            ErrorPolicy::RemountReadOnly | ErrorPolicy::Unknown(_) => Self::RemountReadOnly,
        }
    }
}

/// The program's hook, called with the cause instead of a panic of the machine.
#[derive(Clone)]
pub(crate) struct PanicHook(pub(crate) Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for PanicHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PanicHook")
    }
}

/// Damage that failed no operation, because the thread that found it could do without what is
/// damaged; each piece once. It is noted by the next operation that changes something, at its end
/// ([`crate::mount::errors`]).
#[derive(Debug, Default)]
pub(crate) struct Found {
    is_any: AtomicBool,
    errors: Mutex<Vec<Error>>,
}

impl Found {
    /// Takes note of damage. Opens no handle, so it may be called inside of any operation.
    pub(crate) fn add(&self, error: Error) {
        let mut errors = self.errors.lock();
        errors.push(error);
        self.is_any.store(true, Ordering::Release);
    }

    /// Whether there is damage to be noted: one plain load.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Returns the damage, which the caller notes.
    pub(crate) fn take(&self) -> Vec<Error> {
        let mut errors = self.errors.lock();
        self.is_any.store(false, Ordering::Release);
        std::mem::take(&mut errors)
    }
}

/// The error state of a mount.
#[derive(Debug)]
pub(crate) struct Errors {
    pub(crate) on_error: OnError,
    pub(crate) hook: Option<PanicHook>,
    /// The reason why nothing is written any more.
    pub(crate) stopped: OnceLock<String>,
    pub(crate) noting: Mutex<()>,
    /// Damage that is not noted yet.
    pub(crate) found: Arc<Found>,
}

impl Errors {
    pub(crate) fn new(on_error: OnError, hook: Option<PanicHook>, found: Arc<Found>) -> Self {
        Self {
            on_error,
            hook,
            stopped: OnceLock::new(),
            noting: Mutex::new(()),
            found,
        }
    }

    /// Refuses to write after an error.
    pub(crate) fn check(&self) -> Result<()> {
        match self.stopped.get() {
            None => Ok(()),
            Some(why) => Err(Error::ReadOnly(why.clone())),
        }
    }
}
