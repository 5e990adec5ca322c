//! **Purpose.** The list of inodes whose times are in memory only (`lazytime`).
//!
//! **Not here.** Publishing and writing the times (`crate::inode::lazy_times`).
//!
//! **Model.** Each core has a list in the order of insertion. A list with more than `MOST_PER_CORE`
//! inodes, or with one that is older than `MOST_SECONDS`, hands out its oldest inode to be written.
//!
//! **Locking.** The lock of a list is a leaf. A list keeps its inodes pinned.

use std::collections::VecDeque;

use fourscore_ondisk::InodeNr;
use fourscore_sync::{CoreNr, Mutex, PerCore};

use crate::inode::cell::Pinned;

/// The limit of inodes on the list of each core; beyond it the oldest is written.
pub(crate) const MOST_PER_CORE: usize = 1024;

/// How long times may stay in memory only, in seconds.
pub(crate) const MOST_SECONDS: i64 = 24 * 60 * 60;

/// When times are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// With the operation that changes them.
    #[default]
    AtOnce,
    /// Later, with another change of the inode or after a while.
    Lazily,
}

/// Inodes whose times are in memory only, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct LazyTimes(pub(crate) PerCore<Mutex<VecDeque<Waiting>>>);

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) nr: InodeNr,
    pub(crate) since_seconds: i64,
    /// Keeps the inode in memory.
    pub(crate) pinned: Pinned,
}

impl LazyTimes {
    /// Adds an inode to the list of the current core, and returns the oldest if it is due.
    pub(crate) fn add(&self, waiting: Waiting) -> Option<Waiting> {
        let now = waiting.since_seconds;
        let mut list = self.0.of(CoreNr::current()).lock();
        list.push_back(waiting);
        let is_full = list.len() > MOST_PER_CORE;
        let is_due = |oldest: &Waiting| is_full || now - oldest.since_seconds > MOST_SECONDS;
        list.front().is_some_and(is_due).then(|| list.pop_front())?
    }

    pub(crate) fn take_all(&self) -> Vec<Waiting> {
        let lists = self.0.iter();
        lists
            .flat_map(|list| std::mem::take(&mut *list.lock()))
            .collect()
    }
}
