//! **Purpose.** The inodes whose times are in memory only (`lazytime`).

use std::collections::VecDeque;

use fourscore_ondisk::InodeNr;
use fourscore_sync::{CoreNr, Mutex, PerCore};

use crate::inode::cell::Pinned;

/// How many inodes of each core have times in memory only; then the oldest is written.
pub(crate) const MOST_PER_CORE: usize = 1024;

/// How long they have, in seconds.
pub(crate) const MOST_SECONDS: i64 = 24 * 60 * 60;

/// When times are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// With the operation that changes them.
    #[default]
    AtOnce,
    /// Later, if nothing else is changed.
    Lazily,
}

/// Inodes whose times are in memory only, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct LazyTimes(pub(crate) PerCore<Mutex<VecDeque<Waiting>>>);

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) nr: InodeNr,
    pub(crate) since_seconds: i64,
    /// Keeps it in memory.
    pub(crate) pinned: Pinned,
}

impl LazyTimes {
    /// Puts an inode on the list of this core, and gives one that has waited long enough.
    pub(crate) fn add(&self, waiting: Waiting) -> Option<Waiting> {
        let now = waiting.since_seconds;
        let mut list = self.0.of(CoreNr::current()).lock();
        list.push_back(waiting);
        let is_full = list.len() > MOST_PER_CORE;
        list.pop_front_if(|oldest| is_full || now - oldest.since_seconds > MOST_SECONDS)
    }

    pub(crate) fn take_all(&self) -> Vec<Waiting> {
        let lists = self.0.iter();
        lists
            .flat_map(|list| std::mem::take(&mut *list.lock()))
            .collect()
    }
}
