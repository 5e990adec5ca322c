//! **Purpose.** Finds the valid records of the fast-commit area: those that a fast commit of the
//! transaction running at the crash made durable.
//!
//! **Not here.** Applying them to inodes and directories (crate `fs`).
//!
//! # Model
//! ```text
//! valid = the records up to the last TAIL of this tid with the right checksum, if the area
//!         begins with a HEAD of this tid; everything after that TAIL is void
//! ```
//! The area is read block by block until something does not match: another tid, a bad tag or
//! length, a wrong TAIL. The area is never cleared, so it ends like that after every crash, and
//! that is no error. (The kernel refuses the mount if there is no valid TAIL before that point. In
//! that case no fast commit was ever completed, so there are no records to replay.)
//!
//! # Invariants
//! Memory is bounded by the blocks that hold well-formed records of this tid.

use fourscore_ondisk::Tid;
use fourscore_ondisk::fast_commit::{FastCommitChecksum, Record, records};
use fourscore_ondisk::jbd2::{JournalBlock, JournalError};

use crate::Error;
use crate::log::{Log, LogReader, ReadAhead};

/// The valid records of the fast-commit area.
#[derive(Clone, Debug, Default)]
pub struct FastCommits {
    /// Whole blocks of the area, concatenated.
    blocks: Vec<u8>,
    block_bytes: usize,
    inode_bytes: usize,
    /// The number of valid records, from the area's start.
    count: usize,
    commits: u32,
}

impl FastCommits {
    /// Reads the area for the transaction `tid`, which is [`crate::Recovered::end_tid`].
    /// `inode_bytes` is the file system's inode size.
    ///
    /// # Errors
    /// The device fails, or the area needs unknown features.
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

    /// The number of complete fast commits.
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
    /// Records up to the last valid TAIL.
    count: usize,
    commits: u32,
    has_head: bool,
}

impl Scan {
    /// Scans the records of the next block.
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

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use fourscore_block::{BlockDevice, RamDevice};
    use fourscore_ondisk::jbd2::{JournalIncompat, RawJournalSuperblock};
    use fourscore_ondisk::{BlockCount, BlockSize, InodeNr, PhysBlock};
    use fourscore_sync::Arc;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;
    use zerocopy::byteorder::big_endian::U32;

    use super::*;
    use crate::log::{JournalMap, JournalRun};

    const BLOCK: usize = 1024;
    const TID: Tid = Tid(70);
    const MAXLEN: u32 = 1280;

    /// Writes a fast-commit area, block after block.
    struct Area {
        blocks: Vec<Vec<u8>>,
        pending: Vec<u8>,
        checksum: Vec<u8>,
    }

    impl Area {
        /// An area that begins with a HEAD.
        fn new(features: u32, tid: Tid) -> Self {
            let mut area = Self {
                blocks: Vec::new(),
                pending: Vec::new(),
                checksum: Vec::new(),
            };
            area.record(9, &[features.to_le_bytes(), tid.0.to_le_bytes()].concat());
            area
        }

        fn record(&mut self, tag: u16, value: &[u8]) {
            let len = u16::try_from(value.len()).unwrap();
            let bytes = [&tag.to_le_bytes()[..], &len.to_le_bytes(), value].concat();
            assert!(self.pending.len() + bytes.len() <= BLOCK);
            self.checksum.extend(&bytes);
            self.pending.extend(bytes);
        }

        fn unlink(&mut self, inode: u32) {
            let value = [&2_u32.to_le_bytes()[..], &inode.to_le_bytes(), b"name"].concat();
            self.record(5, &value);
        }

        /// Fills the block and begins the next.
        fn pad(&mut self) {
            let left = BLOCK - self.pending.len() - 4;
            self.record(7, &vec![0xee; left]);
            self.blocks.push(std::mem::take(&mut self.pending));
        }

        /// Ends the fast commit; its TAIL takes the rest of the block.
        fn tail(&mut self, tid: Tid) {
            let len = u16::try_from(BLOCK - self.pending.len() - 4).unwrap();
            let covered = [
                &8_u16.to_le_bytes()[..],
                &len.to_le_bytes(),
                &tid.0.to_le_bytes(),
            ]
            .concat();
            self.checksum.extend(&covered);
            let checksum = fourscore_ondisk::Crc32c::from_state(0).update(&self.checksum);
            self.checksum.clear();
            self.pending.extend(covered);
            self.pending.extend(checksum.value().to_le_bytes());
            self.pending.resize(BLOCK, 0);
            self.blocks.push(std::mem::take(&mut self.pending));
        }

        /// Writes the area, with the pending records, after a log.
        fn log(&self) -> Log {
            let block_size = BlockSize::from_log(0).unwrap();
            let mut raw = RawJournalSuperblock::new(block_size, MAXLEN, uuid::Uuid::nil());
            raw.s_feature_incompat = U32::new(JournalIncompat::FAST_COMMIT.bits());
            raw.s_num_fc_blks = U32::new(16);
            let device = RamDevice::new(2000 * BLOCK as u64);
            let at = |journal_block: u32| u64::from(journal_block + 500) * BLOCK as u64;
            device.write_at(raw.as_bytes(), at(0)).unwrap();
            let blocks = self.blocks.iter().chain([&self.pending]);
            for (index, block) in (MAXLEN - 15..).zip(blocks) {
                device.write_at(block, at(index)).unwrap();
            }
            let run = JournalRun {
                journal_block: JournalBlock(0),
                block: PhysBlock(500),
                blocks: MAXLEN,
            };
            let map = JournalMap::from_runs([run], BlockCount(2000)).unwrap();
            Log::open(Arc::new(device), block_size, map).unwrap()
        }

        fn read(&self) -> FastCommits {
            FastCommits::read(&self.log(), TID, 256).unwrap()
        }
    }

    fn unlinked(commits: &FastCommits) -> Vec<InodeNr> {
        let inodes = commits.records().filter_map(|record| match record {
            Record::Unlink(dentry) => Some(dentry.inode),
            _ => None,
        });
        inodes.collect()
    }

    /// Two fast commits, the second over two blocks.
    fn two_commits() -> Area {
        let mut area = Area::new(0, TID);
        area.unlink(12);
        area.tail(TID);
        area.unlink(13);
        area.pad();
        area.unlink(14);
        area.tail(TID);
        area
    }

    #[test]
    fn records_up_to_the_last_valid_tail_are_read() {
        let mut area = two_commits();
        area.unlink(15);
        area.pad();
        area.unlink(16);
        let commits = area.read();
        assert_eq!(unlinked(&commits), [InodeNr(12), InodeNr(13), InodeNr(14)]);
        assert_eq!((commits.commits(), commits.is_empty()), (2, false));
        assert_eq!(commits.records().count(), 7, "HEAD, 3 UNLINK, PAD, 2 TAIL");
    }

    #[test]
    fn an_incomplete_fast_commit_is_ignored() {
        // Block 2 holds the end of the second commit.
        for damage in 0..BLOCK - 1000 {
            let mut area = two_commits();
            area.blocks[2][damage] ^= 0x40;
            let commits = area.read();
            assert_eq!(unlinked(&commits), [InodeNr(12)], "byte {damage}");
        }
        let mut area = two_commits();
        area.blocks.truncate(2);
        assert_eq!(unlinked(&area.read()), [InodeNr(12)]);
    }

    #[test]
    fn an_area_of_another_transaction_is_empty() {
        let mut area = Area::new(0, Tid(69));
        area.unlink(12);
        area.tail(Tid(69));
        assert!(area.read().is_empty());
        // Only the HEAD is ours.
        let mut area = Area::new(0, TID);
        area.unlink(12);
        area.tail(Tid(69));
        assert!(area.read().is_empty());
        // No HEAD.
        let mut area = two_commits();
        area.blocks.remove(0);
        assert!(area.read().is_empty());
    }

    #[test]
    fn unknown_features_are_refused_unless_the_area_is_stale() {
        let mut area = Area::new(4, TID);
        area.unlink(12);
        area.tail(TID);
        let error = FastCommits::read(&area.log(), TID, 256).unwrap_err();
        let expected = JournalError::FastCommitFeatures { found: 4 };
        assert!(matches!(error, Error::Corrupt(error) if error == expected));
        assert!(
            FastCommits::read(&area.log(), Tid(71), 256)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_full_area_ends_at_its_last_block() {
        let mut area = Area::new(0, TID);
        for inode in 0..15 {
            area.unlink(inode);
            area.tail(TID);
        }
        assert_eq!(area.read().commits(), 15);
    }

    proptest! {
        #[test]
        fn mutated_areas_are_read_without_a_panic(
            mutations in prop::collection::vec((0_usize..3, 0..BLOCK, any::<u8>()), 1..8),
        ) {
            let mut area = two_commits();
            for (block, byte, value) in mutations {
                area.blocks[block][byte] = value;
            }
            let log = area.log();
            if let Ok(commits) = FastCommits::read(&log, TID, 256) {
                prop_assert!(commits.records().count() <= 7);
                prop_assert!(commits.commits() <= 2);
            }
        }
    }
}
