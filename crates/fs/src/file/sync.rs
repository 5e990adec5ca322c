//! **Purpose.** Making durable what was done: to one inode (fsync, fdatasync), or to all (syncfs).
//!
//! **Model.** An inode in memory knows the last transaction that changed it, and the last that
//! changed what its content is read by: size and map. An inode that was loaded anew may have been
//! changed by any transaction up to the one that ran then.
//!
//! **Crash safety.** A transaction is durable with its commit block. Data that was written in place
//! since is not part of it; so where the commit may have flushed the device too early for that, the
//! device is flushed once more. What is written over by a write that changes nothing of the inode
//! ([`crate::file::write`]) joins no transaction at all: the inode knows that there may be some, and an
//! inode that was loaded anew takes it for granted.

use fourscore_ondisk::{InodeNr, Tid};
use fourscore_sync::atomic::Ordering;

use crate::{FileType, Fs, Result};

impl Fs {
    /// Makes everything durable that was done to `inode`, data and metadata.
    ///
    /// # Errors
    /// `Io` if the device fails.
    pub fn fsync(&self, inode: InodeNr) -> Result<()> {
        self.noting(self.make_durable(inode))
    }

    fn make_durable(&self, inode: InodeNr) -> Result<()> {
        let pinned = self.pin_inode(inode)?;
        let (tid, unjoined) = {
            let locked = pinned.lock();
            self.write_times_of((inode, &pinned), &locked)?;
            (locked.last.get(), locked.unjoined.unsettled())
        };
        if let Some(count) = unjoined {
            // Whatever was done before that is durable then, as if it had joined a transaction.
            self.writer()?.journal().commit()?;
            self.device().flush()?;
            pinned.lock().unjoined.settle_up_to(count);
            return Ok(());
        }
        match self.commit_if_running(tid)? {
            Committed::Now => Ok(()),
            // What was written in place since then has changed no metadata.
            Committed::Before => Ok(self.device().flush()?),
        }
    }

    /// Makes the content of a regular file durable, with as much of its metadata as it takes to
    /// read that: size and map, but not times, owner and permissions. Of anything else, all.
    ///
    /// # Errors
    /// `Io` if the device fails.
    pub fn fdatasync(&self, inode: InodeNr) -> Result<()> {
        self.noting(self.make_content_durable(inode))
    }

    fn make_content_durable(&self, inode: InodeNr) -> Result<()> {
        let pinned = self.pin_inode(inode)?;
        let (last, last_data, has_lazy_times) = {
            let locked = pinned.lock();
            let has_lazy_times = locked.has_lazy_times.load(Ordering::Relaxed);
            (locked.last.get(), locked.last_data.get(), has_lazy_times)
        };
        if self.stat(inode)?.file_type != FileType::Regular || last == last_data && !has_lazy_times
        {
            return self.make_durable(inode);
        }
        self.commit_if_running(last_data)?;
        // Later writes changed no map: the commit does not vouch for their data.
        Ok(self.device().flush()?)
    }

    /// Makes everything durable that was done so far.
    ///
    /// # Errors
    /// `Io` if the device fails; the journal is aborted then.
    pub fn sync(&self) -> Result<()> {
        self.noting(self.make_all_durable())
    }

    fn make_all_durable(&self) -> Result<()> {
        self.write_times()?;
        self.writer()?.journal().commit()?;
        Ok(self.device().flush()?)
    }

    /// Commits the transaction, unless that was done already.
    fn commit_if_running(&self, tid: Option<Tid>) -> Result<Committed> {
        let journal = self.writer()?.journal();
        match tid {
            Some(tid) if tid.is_after(journal.committed_tid()) => {
                journal.commit_and_wait(tid)?;
                Ok(Committed::Now)
            }
            _ => Ok(Committed::Before),
        }
    }
}

/// When a transaction was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Committed {
    Now,
    Before,
}
