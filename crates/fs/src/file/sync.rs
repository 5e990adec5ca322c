//! **Purpose.** Makes changes durable: those of one inode (fsync, fdatasync), or all (syncfs).
//!
//! **Model.** An inode in memory knows the last transaction that changed it, and the last that
//! changed what its data is found by: size and map. An inode that was reloaded may have been
//! changed by any transaction up to the one that was running then.
//!
//! **Crash safety.** A transaction is durable with its commit block. Its flush does not cover data
//! that was written in place later. So if the inode's last transaction was durable before the call,
//! and there may be such data, the device is flushed once more. A write that overwrites data and
//! changes nothing of the inode ([`crate::file::write`]) joins no transaction at all. The inode
//! knows that there may be such data, and an inode that was reloaded assumes it.

use fourscore_journal::Flushed;
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::{InodeNr, Tid};
use fourscore_sync::atomic::Ordering;

use crate::Result;
use crate::inode::last_change::LastChange;
use crate::inode::{cache, lazy_times, stat};
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::fast_commit::FastCommits;
use crate::txn::fast_commit::time::Time;

/// See [`Fs::fsync`](crate::Fs::fsync).
pub(crate) fn fsync(mount: &Mount, inode: InodeNr) -> Result<()> {
    errors::noting(mount, make_durable(mount, inode))
}

fn make_durable(mount: &Mount, inode: InodeNr) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let (last, unjoined) = {
        let locked = pinned.lock();
        lazy_times::write_times_of(mount, inode, pinned.held(&locked))?;
        (Last::of(&locked.last), locked.unjoined.unsettled())
    };
    if let Some(fast_commits) = mount.fast_commits() {
        let flushed = commit_fast(mount, fast_commits, inode, last)?;
        // All data that no transaction covers is counted.
        if let Some(count) = unjoined {
            if flushed == Flushed::No {
                mount.core.device.flush()?;
            }
            pinned.lock().unjoined.settle_up_to(count);
        }
        return Ok(());
    }
    if let Some(count) = unjoined {
        // All earlier changes are durable then, as if they had joined a transaction.
        commit_and_flush(mount)?;
        pinned.lock().unjoined.settle_up_to(count);
        return Ok(());
    }
    match commit_if_running(mount, last.tid)? {
        Committed::Now => Ok(()),
        // Data that was written in place since then has changed no metadata.
        Committed::Before => Ok(mount.core.device.flush()?),
    }
}

/// See [`Fs::fdatasync`](crate::Fs::fdatasync).
pub(crate) fn fdatasync(mount: &Mount, inode: InodeNr) -> Result<()> {
    errors::noting(mount, make_content_durable(mount, inode))
}

fn make_content_durable(mount: &Mount, inode: InodeNr) -> Result<()> {
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let (last, last_data, has_lazy_times) = {
        let locked = pinned.lock();
        let has_lazy_times = locked.has_lazy_times.load(Ordering::Relaxed);
        let (last, last_data) = (Last::of(&locked.last), Last::of(&locked.last_data));
        (last, last_data, has_lazy_times)
    };
    if stat::stat(&mount.core, inode)?.file_type != FileType::Regular
        || last.tid == last_data.tid && !has_lazy_times
    {
        return make_durable(mount, inode);
    }
    match mount.fast_commits() {
        Some(fast_commits) => drop(commit_fast(mount, fast_commits, inode, last_data)?),
        None => drop(commit_if_running(mount, last_data.tid)?),
    }
    // Later writes changed no map: the commit does not cover their data.
    Ok(mount.core.device.flush()?)
}

/// See [`Fs::sync`](crate::Fs::sync).
pub(crate) fn sync(mount: &Mount) -> Result<()> {
    errors::noting(mount, make_all_durable(mount))
}

fn make_all_durable(mount: &Mount) -> Result<()> {
    lazy_times::write_times(mount)?;
    commit_and_flush(mount)
}

/// Commits the running transaction. Data in place is durable as well afterwards: the commit flushes
/// the device, and without one the device is flushed here.
fn commit_and_flush(mount: &Mount) -> Result<()> {
    match mount.journal().commit()? {
        Flushed::Yes => Ok(()),
        Flushed::No => Ok(mount.core.device.flush()?),
    }
}

/// Commits the transaction, unless it is committed already.
fn commit_if_running(mount: &Mount, tid: Option<Tid>) -> Result<Committed> {
    let journal = mount.journal();
    match tid {
        Some(tid) if tid.is_after(journal.committed_tid()) => {
            journal.commit_and_wait(tid)?;
            Ok(Committed::Now)
        }
        _ => Ok(Committed::Before),
    }
}

/// Makes the changes of an inode up to `last` durable, by a fast commit if possible.
fn commit_fast(
    mount: &Mount,
    fast_commits: &FastCommits,
    inode: InodeNr,
    last: Last,
) -> Result<Flushed> {
    let journal = mount.journal();
    match last.tid {
        Some(tid) if tid.is_after(journal.committed_tid()) => {
            let covered = || fast_commits.covered(inode, tid, last.time);
            Ok(journal.fast_commit_and_wait(tid, &covered)?)
        }
        _ => Ok(Flushed::No),
    }
}

/// The last change of an inode, as it was at one moment.
#[derive(Clone, Copy, Debug)]
struct Last {
    tid: Option<Tid>,
    time: Time,
}

impl Last {
    fn of(last: &LastChange) -> Self {
        Self {
            tid: last.tid(),
            time: last.time(),
        }
    }
}

/// When a transaction was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Committed {
    Now,
    Before,
}
