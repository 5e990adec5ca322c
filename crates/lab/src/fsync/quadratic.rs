//! **Purpose.** A reference for the commit of many new files: it makes their records as ext4 did
//! before Linux 5.18 (b3998b3bc658), which looked for the inode of each name by a walk over all
//! inodes that are to be committed.
//!
//! **Not here.** The commit of fourscore, whose work is linear in the records.

use std::time::Duration;

use fourscore_ondisk::fast_commit::{Dentry, FastCommitBlocks, Record};
use fourscore_ondisk::{InodeNr, Tid};

use crate::clock::Clock;

/// Bytes of an inode with the usual extra fields.
const INODE_BYTES: usize = 160;
const BLOCK_BYTES: usize = 4096;

/// A new inode in the queue of those to be committed.
struct Queued {
    inode: InodeNr,
    raw: [u8; INODE_BYTES],
}

/// A new name, with its inode's number only.
struct QueuedName {
    inode: InodeNr,
    name: String,
}

/// The records that were made, and the time that they took.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Number of records: an inode and a name for each file.
    pub records: u64,
    /// Bytes of all records, in whole blocks.
    pub bytes: u64,
    /// The time to make them.
    pub time: Duration,
}

/// Makes the records of `files` new files.
#[must_use]
pub fn commit(files: u32, clock: &dyn Clock) -> Reference {
    // Each inode has an allocation of its own, as in the kernel.
    let queued = |nr| Queued {
        inode: InodeNr(nr),
        raw: [7; INODE_BYTES],
    };
    let numbers = 12..files.saturating_add(12);
    let inodes: Vec<Box<Queued>> = numbers.clone().map(|nr| Box::new(queued(nr))).collect();
    let name = |nr| QueuedName {
        inode: InodeNr(nr),
        name: format!("f{nr}"),
    };
    let names: Vec<QueuedName> = numbers.map(name).collect();
    let began = clock.now();
    let (mut blocks, mut records) = (FastCommitBlocks::new(BLOCK_BYTES), 0);
    for name in &names {
        let Some(found) = inodes.iter().find(|queued| queued.inode == name.inode) else {
            continue;
        };
        let (inode, raw) = (found.inode, &found.raw[..]);
        blocks.push(&Record::Inode { inode, raw });
        blocks.push(&Record::Creat(Dentry {
            parent: InodeNr::ROOT,
            inode,
            name: name.name.as_bytes(),
        }));
        records += 2;
    }
    let bytes = blocks.end(Tid(1)).len() as u64;
    Reference {
        records,
        bytes,
        time: clock.now().saturating_sub(began),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonotonicClock;

    #[test]
    fn every_file_has_two_records() {
        let made = commit(1000, &MonotonicClock::default());
        assert_eq!(made.records, 2000);
        assert!(made.bytes > 1000 * INODE_BYTES as u64);
        assert!(made.bytes.is_multiple_of(BLOCK_BYTES as u64));
    }
}
