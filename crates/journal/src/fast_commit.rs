//! **Purpose.** Finds which records of the fast-commit area count: those that a fast commit of
//! the transaction running at the crash made durable.
//!
//! **Not here.** What they do to inodes and directories (crate `fs`).
//!
//! # Model
//! ```text
//! counts = the records up to the last TAIL of this tid with the right checksum, if the area
//!          begins with a HEAD of this tid; everything after that TAIL is void
//! ```
//! The area is read block by block until something is not as it must be: another tid, a bad tag
//! or length, a TAIL that does not match. That is how each crash ends the area, since it is never
//! cleared, so it is no error. (The kernel refuses the mount when no TAIL was good before that
//! point; then no fast commit was ever finished, and reading without one is right.)
//!
//! # Invariants
//! Memory is bounded by the blocks that hold well-formed records of this tid.

use fourscore_ondisk::Tid;
use fourscore_ondisk::fast_commit::{FastCommitChecksum, Record, records};
use fourscore_ondisk::jbd2::{JournalBlock, JournalError};

use crate::Error;
use crate::log::{Log, LogReader, ReadAhead};

/// The records of the fast-commit area that count.
#[derive(Clone, Debug, Default)]
pub struct FastCommits {
    /// Whole blocks of the area, one after the other.
    blocks: Vec<u8>,
    block_bytes: usize,
    inode_bytes: usize,
    /// How many records count, from the area's start.
    count: usize,
    commits: u32,
}

impl FastCommits {
    /// Reads the area for the transaction `tid`, which is [`crate::Recovered::end_tid`].
    /// `inode_bytes` is the file system's inode size.
    ///
    /// # Errors
    /// The device fails, or the area needs features that do not exist yet.
    pub fn read(log: &Log, tid: Tid, inode_bytes: usize) -> Result<Self, Error> {
        let area = log.superblock().fast_commit_area();
        let block_bytes = log.block_size().bytes();
        let mut scan = Scan {
            tid,
            checksum: FastCommitChecksum::default(),
            seen: 0,
            count: 0,
            commits: 0,
            has_head: false,
        };
        let mut blocks = Vec::new();
        let mut needed_bytes = 0;
        let mut reader = LogReader::new(log, ReadAhead::Window);
        for nr in area.start.0..area.end.0 {
            let block = reader.read(JournalBlock(nr))?;
            let counted = scan.count;
            let go_on = scan.block(block, inode_bytes)?;
            blocks.extend_from_slice(block);
            if scan.count > counted {
                needed_bytes = blocks.len();
            }
            if go_on == GoOn::No {
                break;
            }
        }
        blocks.truncate(needed_bytes);
        let Scan { count, commits, .. } = scan;
        Ok(Self {
            blocks,
            block_bytes,
            inode_bytes,
            count,
            commits,
        })
    }

    /// How many fast commits are complete.
    #[must_use]
    pub fn commits(&self) -> u32 {
        self.commits
    }

    /// Whether there is nothing to replay.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The records, in the order in which they must be replayed.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.blocks
            .chunks(self.block_bytes.max(1))
            .flat_map(|block| records(block, self.inode_bytes).flatten())
            .take(self.count)
            .map(|found| found.record)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoOn {
    Yes,
    No,
}

struct Scan {
    tid: Tid,
    checksum: FastCommitChecksum,
    /// Records so far.
    seen: usize,
    /// Records up to the last good TAIL.
    count: usize,
    commits: u32,
    has_head: bool,
}

impl Scan {
    /// Goes through the records of the next block.
    fn block(&mut self, block: &[u8], inode_bytes: usize) -> Result<GoOn, Error> {
        for found in records(block, inode_bytes) {
            let Ok(found) = found else {
                return Ok(GoOn::No);
            };
            match found.record {
                Record::Head { tid, .. } if tid != self.tid => return Ok(GoOn::No),
                Record::Head { features: 0, .. } => self.has_head = true,
                Record::Head { features, .. } => {
                    return Err(JournalError::FastCommitFeatures { found: features }.into());
                }
                _ if !self.has_head => return Ok(GoOn::No),
                _ => {}
            }
            self.seen += 1;
            if let Record::Tail { tid, checksum } = found.record {
                if tid != self.tid || checksum != self.checksum.at_tail(&found) {
                    return Ok(GoOn::No);
                }
                self.checksum = FastCommitChecksum::default();
                self.count = self.seen;
                self.commits += 1;
            } else {
                self.checksum.update(&found);
            }
        }
        Ok(GoOn::Yes)
    }
}
