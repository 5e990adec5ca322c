//! **Purpose.** Names that are led elsewhere while an operation looks at what they led to.
//!
//! **Model.** An operation looks names up without a lock, and locks what they lead to. Somebody may
//! rename over a name in between, and the inode that it led to goes; the name never was missing. So
//! `NotFound` counts only if a name that is needed is missing, and else the operation begins anew.
//!
//! **Locking.** None is held between two attempts.

use fourscore_ondisk::InodeNr;
use fourscore_sync::thread;

use crate::{Error, Fs, Result};

/// How often an operation is begun before a name is taken for broken, which leads to an inode that
/// does not exist. Each time somebody else would have to be just in between.
const MOST_ATTEMPTS: u32 = 64;

impl Fs {
    /// What `attempt` comes to when the names that it needs do not change what they lead to.
    ///
    /// # Errors
    /// `NotFound` if one of them is missing; what `attempt` fails with otherwise.
    pub(super) fn settled<T>(
        &self,
        needed: &[(InodeNr, &[u8])],
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        for _ in 0..MOST_ATTEMPTS {
            match attempt() {
                Err(Error::NotFound) => {}
                answer => return answer,
            }
            for (dir, name) in needed {
                self.lookup_once(*dir, name)?;
            }
            thread::yield_now();
        }
        Err(Error::NotFound)
    }
}
