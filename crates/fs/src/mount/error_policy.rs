//! **Purpose.** The policy of a mount for a broken file system, and whether the mount has stopped
//! writing.
//!
//! **Not here.** Noting errors and carrying the policy out (`crate::mount::errors`).

use std::fmt;

use fourscore_ondisk::superblock::ErrorPolicy;
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

/// The error state of a mount.
#[derive(Debug)]
pub(crate) struct Errors {
    pub(crate) on_error: OnError,
    pub(crate) hook: Option<PanicHook>,
    /// The reason why nothing is written any more.
    pub(crate) stopped: OnceLock<String>,
    pub(crate) noting: Mutex<()>,
}

impl Errors {
    pub(crate) fn new(on_error: OnError, hook: Option<PanicHook>) -> Self {
        Self {
            on_error,
            hook,
            stopped: OnceLock::new(),
            noting: Mutex::new(()),
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
