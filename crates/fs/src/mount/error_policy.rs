//! **Purpose.** What a mount does when it finds the file system broken, and whether it has stopped
//! writing.

use std::fmt;

use fourscore_ondisk::superblock::ErrorPolicy;
use fourscore_sync::{Arc, Mutex, OnceLock};

use crate::{Error, Result};

/// What to do when the file system is found to be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Note it and go on.
    Continue,
    /// Note it, and write nothing any more.
    RemountReadOnly,
    /// The same, and call the hook of the program
    /// ([`on_panic`](crate::MountOptions::on_panic)).
    Panic,
}

impl From<ErrorPolicy> for OnError {
    /// As Linux reads it.
    fn from(policy: ErrorPolicy) -> Self {
        match policy {
            ErrorPolicy::Continue => Self::Continue,
            ErrorPolicy::Panic => Self::Panic,
            ErrorPolicy::RemountReadOnly | ErrorPolicy::Unknown(_) => Self::RemountReadOnly,
        }
    }
}

/// What a program wants called instead of a panic of the machine; it is told why.
#[derive(Clone)]
pub(crate) struct PanicHook(pub(crate) Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for PanicHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PanicHook")
    }
}

/// What becomes of errors.
#[derive(Debug)]
pub(crate) struct Errors {
    pub(crate) on_error: OnError,
    pub(crate) hook: Option<PanicHook>,
    /// Why nothing is written any more.
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

    /// Refuses to write, after an error.
    pub(crate) fn check(&self) -> Result<()> {
        match self.stopped.get() {
            None => Ok(()),
            Some(why) => Err(Error::ReadOnly(why.clone())),
        }
    }
}
