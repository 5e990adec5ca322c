//! **Purpose.** Explores the crash states of one change that is found whole or not at all.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use fourscore_sync::Arc;
use fourscore_testkit::explore::rng::mix;
use fourscore_testkit::explore::{self, CrashDisk, Effort, Failure, History};

use super::external;
use super::session::SUPERBLOCK;

/// A recorded change.
pub(super) struct Change<'r> {
    pub(super) history: &'r History,
    /// The number of events when its call returned.
    pub(super) done: usize,
    /// One state of this many is given to e2fsck and to the kernel as well.
    pub(super) external_every: u64,
    /// Chooses the crash states of each cut.
    pub(super) seed: u64,
    /// The number of states of each cut that are chosen.
    pub(super) samples: usize,
    /// The size of the file system's blocks, in bytes.
    pub(super) block_bytes: u64,
}

/// How often the change was found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) none: u64,
    pub(super) all: u64,
    pub(super) external: u64,
}

impl Seen {
    pub(super) fn add(&mut self, more: &Self) {
        self.none += more.none;
        self.all += more.all;
        self.external += more.external;
    }
}

/// Recovers every crash state by `check`, which gets whether e2fsck and the kernel are asked as
/// well and returns whether the change is there. After the call returned it must be.
pub(super) fn explore(
    change: &Change<'_>,
    check: impl Fn(&Arc<CrashDisk>, bool) -> Result<bool>,
) -> Result<Seen, Box<Failure>> {
    let effort = Effort {
        seed: mix(change.seed),
        samples: change.samples,
        block_bytes: change.block_bytes,
        only: None,
        whole: Some(SUPERBLOCK),
    };
    let mut seen = Seen::default();
    let mut checked = HashMap::new();
    explore::explore(change.history, effort, |crash, disk| {
        let is_external =
            external::is_possible() && crash.number.is_multiple_of(change.external_every);
        let fingerprint = disk.fingerprint();
        let has_all = match checked.get(&fingerprint) {
            Some(&has_all) if !is_external => has_all,
            _ => check(disk, is_external)?,
        };
        checked.insert(fingerprint, has_all);
        ensure!(
            has_all || crash.cut < change.done,
            "the call returned, and its change is not there"
        );
        match has_all {
            true => seen.all += 1,
            false => seen.none += 1,
        }
        seen.external += u64::from(is_external);
        Ok(())
    })?;
    Ok(seen)
}
