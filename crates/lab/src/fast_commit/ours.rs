//! **Purpose.** Our fast commits: lists of units, one for each core, of which a commit takes a
//! consistent part.
//!
//! **Locking.** That of [`fourscore::lab::FastCommitsAlone`].

use fourscore::lab::{ChangeTime, FastCommitsAlone};
use fourscore_ondisk::InodeNr;
use fourscore_sync::Arc;
use fourscore_sync::atomic::Ordering;

use super::{FastCommit, Inode};

/// The fast commits of a mount.
#[derive(Debug, Default)]
pub struct Ours {
    commits: FastCommitsAlone,
}

impl FastCommit for Ours {
    fn name(&self) -> &'static str {
        "fourscore"
    }

    fn list(&self, inode: &Arc<Inode>, dir: InodeNr, name: &str) {
        let change = self
            .commits
            .create(dir, inode.nr, name.as_bytes(), &inode.raw);
        inode.word.store(change.time, Ordering::Relaxed);
        inode
            .transaction
            .store(change.transaction, Ordering::Relaxed);
    }

    fn sync(&self, inode: &Inode) -> u64 {
        let change = ChangeTime {
            transaction: inode.transaction.load(Ordering::Relaxed),
            time: inode.word.load(Ordering::Relaxed),
        };
        self.commits.sync(inode.nr, change)
    }

    fn full_commit(&self) {
        self.commits.full_commit();
    }
}
