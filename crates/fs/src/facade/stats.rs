//! **Purpose.** The statistics of a file system, all in one structure.
//!
//! **Not here.** How full the file system is ([`Fs::statfs`]); waits for locks, which are counted
//! for the whole process ([`Fs::lock_waits`]).
//!
//! **Locking.** Counters are kept per core and summed here, so they are not those of one moment.

use std::time::Duration;

use fourscore_block::CacheStats;
use fourscore_cache::Stats as CacheCounts;
use fourscore_journal::JournalStats;
use fourscore_mballoc::stats::Tally;
use fourscore_sync::profile::{self, Totals};

use crate::Fs;
use crate::mount::state::Mount;
use crate::txn::fast_commit::FastCommits;
use crate::xattr::share::{Sharing, XattrSharingStats};

/// Statistics of a file system since it was opened. They only grow, unless a field says otherwise.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The cache of metadata blocks: lookups, insertions and evictions, and blocks read, each a
    /// number of blocks.
    pub buffers: CacheStats,
    /// The inode cache, in inodes.
    pub inodes: CacheCounts,
    /// The name cache, in names. Hits and misses are not counted.
    pub names: CacheCounts,
    /// The sections in which operations spent their time, while a profile was on
    /// ([`crate::profile`]). Like the waits for locks, these are sums over all file systems of the
    /// process.
    pub profile: Totals,
    /// The statistics of a read-write mount; `None` if the file system was opened for reading.
    pub mount: Option<MountStats>,
}

/// Statistics of a read-write mount.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MountStats {
    /// The journal: transactions, blocks of the log, and how long the gate was closed.
    pub journal: JournalStats,
    /// The allocator, under the names of the kernel's `mb_stats`: requests, clusters, groups.
    pub allocator: Tally,
    /// The number of groups that have their buddy in memory now; see
    /// [`MountOptions::buddy_bytes`](crate::MountOptions::buddy_bytes).
    pub groups_loaded: u32,
    /// How many plans were restarted, because a block that they change had left the cache when they
    /// were applied, or because a new transaction had begun. A plan restarts at most once for each
    /// of its blocks.
    pub plan_restarts: u64,
    /// The cache of attributes to share; `None` in a mount that shares none (`no_mbcache`).
    pub xattr_sharing: Option<XattrSharingStats>,
    /// Fast commits; `None` in a mount that makes none.
    pub fast_commits: Option<FastCommitStats>,
}

/// Statistics of fast commits, as Linux shows them in `fc_info`, and some more.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FastCommitStats {
    /// Fast commits that were written.
    pub commits: u64,
    /// How often a full commit was made, or waited for, in place of a fast one.
    pub ineligible: u64,
    /// The mean time of a fast commit.
    pub commit_time: Duration,
    /// Blocks that were written for fast commits.
    pub blocks: u64,
    /// Records that were written.
    pub records: u64,
    /// Operations whose changes were written; each is in one fast commit.
    pub operations: u64,
    /// Operations that no record expresses, by reason. Where Linux has the same reason, it has
    /// Linux's name.
    pub reasons: Vec<(&'static str, u64)>,
}

impl Fs {
    /// Returns the statistics of the file system since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            buffers: self.core.buffers.stats(),
            inodes: self.core.inodes.stats(),
            names: self.core.names.stats(),
            profile: profile::totals(),
            mount: self.mount.as_deref().map(mount_stats),
        }
    }
}

fn mount_stats(mount: &Mount) -> MountStats {
    let groups = mount.allocator().geometry().groups();
    MountStats {
        journal: mount.journal().stats(),
        allocator: mount.allocator().mb_stats(),
        groups_loaded: groups.saturating_sub(mount.allocator().absent_groups()),
        plan_restarts: mount.retries.sum(),
        xattr_sharing: mount.sharing().map(Sharing::stats),
        fast_commits: mount
            .fast_commits()
            .map(|made| fast_commit_stats(mount, made)),
    }
}

fn fast_commit_stats(mount: &Mount, made: &FastCommits) -> FastCommitStats {
    let (journal, counts) = (mount.journal().stats(), made.counts());
    let commits = u32::try_from(journal.fast_commits.max(1)).unwrap_or(u32::MAX);
    FastCommitStats {
        commits: journal.fast_commits,
        ineligible: journal.full_in_place_of_fast,
        commit_time: journal.fast_commit_time / commits,
        blocks: journal.fast_commit_blocks,
        records: counts.records,
        operations: counts.units,
        reasons: counts.reasons.all(),
    }
}
