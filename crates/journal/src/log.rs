//! **Purpose.** Maps the journal's blocks to their device, and reads them.
//!
//! # Model
//! ```text
//! internal: the blocks of inode 8, in extents; block 0 is the journal's superblock
//! external: a device of its own. An ext4 superblock with JOURNAL_DEV at byte 1024, the
//!           journal's superblock in the next block; journal block n is block n of the device
//! ```
//!
//! # Invariants
//! A [`JournalMap`] maps every block from 0 to its length, each to a different block inside the
//! device. So walking the log never reads more than the size of the image, even if it is malicious.

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::jbd2::{JournalBlock, JournalError, JournalSuperblock, RawJournalSuperblock};
use fourscore_ondisk::superblock::RawSuperblock;
use fourscore_ondisk::{BlockCount, BlockSize, PhysBlock};
use fourscore_sync::Arc;
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::Error;

/// The offset of the ext4 superblock on every device, in bytes.
const SUPERBLOCK_OFFSET: u64 = 1024;
/// Its `s_magic`.
const EXT4_MAGIC: u32 = 0xef53;
/// Bytes read at once when most blocks of the log will be read.
const WINDOW_BYTES: usize = 256 << 10;

/// Journal blocks that are contiguous on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalRun {
    /// The first block of the run, in the journal's numbering.
    pub journal_block: JournalBlock,
    /// The first block of the run, in the device's numbering.
    pub block: PhysBlock,
    /// The length in blocks.
    pub blocks: u32,
}

impl JournalRun {
    fn end(&self) -> u64 {
        u64::from(self.journal_block.0) + u64::from(self.blocks)
    }

    fn block_end(&self) -> u64 {
        self.block.0.saturating_add(u64::from(self.blocks))
    }
}

/// The mapping of journal blocks to device blocks.
#[derive(Clone, Debug)]
pub struct JournalMap {
    /// In journal order, without gaps.
    runs: Vec<JournalRun>,
    /// The same in device order.
    by_block: Vec<JournalRun>,
}

impl JournalMap {
    /// Makes a map from the extents of the journal's inode, in any order. `blocks` is the length of
    /// the device.
    ///
    /// # Errors
    /// A block before the last one is not mapped, or is mapped outside the device, or two are
    /// mapped to the same device block.
    pub fn from_runs(
        runs: impl IntoIterator<Item = JournalRun>,
        blocks: BlockCount,
    ) -> Result<Self, JournalError> {
        let BlockCount(blocks) = blocks;
        let mut runs: Vec<JournalRun> = runs.into_iter().filter(|run| run.blocks != 0).collect();
        runs.sort_unstable_by_key(|run| run.journal_block);
        let mut next = 0_u64;
        for run in &runs {
            let JournalRun {
                journal_block,
                block,
                ..
            } = *run;
            if u64::from(journal_block.0) != next {
                let hole = u32::try_from(next).unwrap_or(u32::MAX).min(journal_block.0);
                return Err(JournalError::Hole {
                    journal_block: JournalBlock(hole),
                });
            }
            if block.0 == 0 || run.block_end() > blocks {
                return Err(JournalError::MappedOutside {
                    journal_block,
                    block,
                    blocks,
                });
            }
            next = run.end();
        }
        let mut by_block = runs.clone();
        by_block.sort_unstable_by_key(|run| run.block);
        for pair in by_block.windows(2) {
            if let [one, two] = pair
                && one.block_end() > two.block.0
            {
                return Err(JournalError::MappedTwice { block: two.block });
            }
        }
        Ok(Self { runs, by_block })
    }

    /// The map of an external journal: block n is block n of the device.
    fn whole_device(blocks: u32) -> Self {
        let run = JournalRun {
            journal_block: JournalBlock(0),
            block: PhysBlock(0),
            blocks,
        };
        Self {
            runs: vec![run],
            by_block: Vec::new(),
        }
    }

    /// The number of mapped blocks.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.runs
            .last()
            .map_or(0, |run| u32::try_from(run.end()).unwrap_or(u32::MAX))
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The device block of `journal_block`, and the number of contiguous blocks from there.
    #[must_use]
    pub fn locate(&self, journal_block: JournalBlock) -> Option<(PhysBlock, u32)> {
        let after = self
            .runs
            .partition_point(|run| run.journal_block <= journal_block);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let offset = journal_block.0 - run.journal_block.0;
        let left = run.blocks.checked_sub(offset).filter(|&left| left > 0)?;
        Some((PhysBlock(run.block.0 + u64::from(offset)), left))
    }

    /// Whether the journal is inside its file system.
    pub(crate) fn is_internal(&self) -> bool {
        !self.by_block.is_empty()
    }

    /// Whether a block of the file system belongs to the journal; always `false` for an external
    /// journal.
    #[must_use]
    pub fn contains(&self, block: PhysBlock) -> bool {
        let after = self.by_block.partition_point(|run| run.block <= block);
        let run = after
            .checked_sub(1)
            .and_then(|index| self.by_block.get(index));
        run.is_some_and(|run| block.0 < run.block_end())
    }
}

/// A journal whose superblock has been read and checked.
#[derive(Clone, Debug)]
pub struct Log {
    device: Arc<dyn BlockDevice>,
    block_size: BlockSize,
    map: JournalMap,
    superblock: JournalSuperblock,
    superblock_at: JournalBlock,
    /// Whether the log was replayed although `s_start` is not 0
    /// ([`replay_before_fast_commits`](crate::replay_before_fast_commits)).
    is_replayed: bool,
}

impl Log {
    /// Opens an internal journal of the file system on `device`.
    ///
    /// # Errors
    /// The device fails, or the journal's superblock is invalid.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        block_size: BlockSize,
        map: JournalMap,
    ) -> Result<Self, Error> {
        Self::read_superblock(device, block_size, map, JournalBlock(0))
    }

    /// Opens an external journal. `uuid` is `s_journal_uuid` of the file system's superblock.
    ///
    /// # Errors
    /// The device fails, is not a journal or has another UUID, is shared by several file systems,
    /// or its superblocks are invalid.
    pub fn open_external(
        device: Arc<dyn BlockDevice>,
        uuid: Uuid,
        block_size: BlockSize,
    ) -> Result<Self, Error> {
        let mut bytes = [0; size_of::<RawSuperblock>()];
        device
            .read_at(&mut bytes, SUPERBLOCK_OFFSET)
            .map_err(|source| Error::Io {
                journal_block: JournalBlock(0),
                source,
            })?;
        let found = bytes.len();
        let raw = RawSuperblock::ref_from_bytes(&bytes).map_err(|_| JournalError::Short {
            found,
            expected: size_of::<RawSuperblock>(),
        })?;
        check_journal_device(raw, uuid, block_size)?;
        let blocks = device.len_bytes() >> block_size.bits();
        let blocks = u32::try_from(blocks)
            .unwrap_or(u32::MAX)
            .min(raw.s_blocks_count_lo.get());
        // The block after the one with the ext4 superblock.
        let at = SUPERBLOCK_OFFSET >> block_size.bits();
        let at = JournalBlock(u32::try_from(at).unwrap_or(0) + 1);
        let log = Self::read_superblock(device, block_size, JournalMap::whole_device(blocks), at)?;
        match log.superblock.nr_users() {
            1 => Ok(log),
            found => Err(JournalError::Users { found }.into()),
        }
    }

    fn read_superblock(
        device: Arc<dyn BlockDevice>,
        block_size: BlockSize,
        map: JournalMap,
        at: JournalBlock,
    ) -> Result<Self, Error> {
        let (block, _) = map
            .locate(at)
            .ok_or(JournalError::Hole { journal_block: at })?;
        let mut bytes = [0; size_of::<RawJournalSuperblock>()];
        device
            .read_at(&mut bytes, block_size.offset(block))
            .map_err(|source| Error::Io {
                journal_block: at,
                source,
            })?;
        let raw =
            RawJournalSuperblock::ref_from_bytes(&bytes).map_err(|_| JournalError::Short {
                found: bytes.len(),
                expected: size_of::<RawJournalSuperblock>(),
            })?;
        let superblock = JournalSuperblock::try_from(raw)?;
        let (found, expected) = (superblock.block_size_bytes(), 1 << block_size.bits());
        if found != expected {
            return Err(JournalError::BlockSize { found, expected }.into());
        }
        let (found, mapped) = (superblock.maxlen(), map.len());
        if found > mapped {
            return Err(JournalError::Maxlen { found, mapped }.into());
        }
        let first = superblock.log().start;
        if first <= at {
            return Err(JournalError::First {
                found: first.0,
                maxlen: found,
            }
            .into());
        }
        Ok(Self {
            device,
            block_size,
            map,
            superblock,
            superblock_at: at,
            is_replayed: false,
        })
    }

    /// The journal's superblock.
    #[must_use]
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// The journal block of the superblock.
    pub(crate) fn superblock_at(&self) -> JournalBlock {
        self.superblock_at
    }

    /// The byte offset of the superblock on the device.
    pub(crate) fn superblock_offset(&self) -> u64 {
        // It was read from there, so it is mapped.
        self.offset(self.superblock_at).unwrap_or(u64::MAX)
    }

    /// Whether the log was replayed although `s_start` is not 0.
    pub(crate) fn is_replayed(&self) -> bool {
        self.is_replayed
    }

    /// Notes that the log was replayed although `s_start` is not 0.
    pub(crate) fn set_replayed(&mut self) {
        self.is_replayed = true;
    }

    /// Replaces the superblock in memory by one that has been written.
    pub(crate) fn set_superblock(&mut self, written: JournalSuperblock) {
        self.superblock = written;
    }

    /// Clears `s_errno`, after the file system has recorded the error in its own superblock.
    /// Durable when the call returns.
    ///
    /// # Errors
    /// The device fails.
    pub fn clear_errno(&mut self) -> Result<(), Error> {
        let mut cleared = self.superblock.clone();
        cleared.set_errno(0);
        self.replace_superblock(cleared)
    }

    /// The device of the journal.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// The mapping of the journal's blocks to that device.
    #[must_use]
    pub fn map(&self) -> &JournalMap {
        &self.map
    }

    /// The block size.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The byte offset of `journal_block` on the device.
    #[must_use]
    pub fn offset(&self, journal_block: JournalBlock) -> Option<u64> {
        self.map
            .locate(journal_block)
            .map(|(block, _)| self.block_size.offset(block))
    }
}

/// Checks the ext4 superblock of an external journal: its type, block size, UUID and checksum.
fn check_journal_device(
    raw: &RawSuperblock,
    uuid: Uuid,
    block_size: BlockSize,
) -> Result<(), JournalError> {
    let is = |field, found, expected| match found == expected {
        true => Ok(()),
        false => Err(JournalError::NotAJournalDevice {
            field,
            found,
            expected,
        }),
    };
    let journal_dev = Incompat::JOURNAL_DEV.bits();
    is("s_magic", u32::from(raw.s_magic.get()), EXT4_MAGIC)?;
    is(
        "s_feature_incompat",
        raw.s_feature_incompat.get() & journal_dev,
        journal_dev,
    )?;
    is(
        "s_log_block_size",
        raw.s_log_block_size.get(),
        block_size.bits() - 10,
    )?;
    let (found, expected) = (Uuid::from_bytes(raw.s_uuid), uuid);
    if found != expected {
        return Err(JournalError::WrongDevice { found, expected });
    }
    let has_checksum = raw.s_feature_ro_compat.get() & RoCompat::METADATA_CSUM.bits() != 0;
    if has_checksum {
        is("s_checksum", raw.s_checksum.get(), raw.checksum())?;
    }
    Ok(())
}

/// How many blocks a reader of the log reads at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    /// A window, because nearly every block will be read.
    Window,
    /// Single blocks, because few will be read.
    None,
}

/// Reads the log block by block, in windows if that saves calls.
#[derive(Debug)]
pub(crate) struct LogReader<'a> {
    log: &'a Log,
    window_blocks: u32,
    bytes: Vec<u8>,
    first: JournalBlock,
    blocks: u32,
}

impl<'a> LogReader<'a> {
    pub(crate) fn new(log: &'a Log, read_ahead: ReadAhead) -> Self {
        let window_blocks = match read_ahead {
            ReadAhead::Window => WINDOW_BYTES >> log.block_size.bits(),
            ReadAhead::None => 1,
        };
        let window_blocks = u32::try_from(window_blocks).unwrap_or(1).max(1);
        Self {
            log,
            window_blocks,
            bytes: Vec::new(),
            first: JournalBlock(0),
            blocks: 0,
        }
    }

    /// The bytes of `journal_block`.
    pub(crate) fn read(&mut self, journal_block: JournalBlock) -> Result<&[u8], Error> {
        let held = journal_block
            .0
            .checked_sub(self.first.0)
            .filter(|&at| at < self.blocks);
        let index = match held {
            Some(index) => index,
            None => {
                self.fill(journal_block)?;
                0
            }
        };
        let block_bytes = self.log.block_size.bytes();
        let at = usize::try_from(index)
            .unwrap_or(usize::MAX)
            .saturating_mul(block_bytes);
        let block = self
            .bytes
            .get(at..)
            .and_then(|rest| rest.get(..block_bytes));
        block.ok_or(Error::Corrupt(JournalError::Hole { journal_block }))
    }

    /// Reads a window from `journal_block` on. If that fails, reads the one block alone: the rest
    /// may lie past the end of a truncated image.
    fn fill(&mut self, journal_block: JournalBlock) -> Result<(), Error> {
        let (block, run) = self
            .log
            .map
            .locate(journal_block)
            .ok_or(JournalError::Hole { journal_block })?;
        let offset = self.log.block_size.offset(block);
        let wanted = run.min(self.window_blocks);
        self.blocks = 0;
        if wanted == 1 || self.read_blocks(wanted, offset).is_err() {
            self.read_blocks(1, offset).map_err(|source| Error::Io {
                journal_block,
                source,
            })?;
        }
        self.first = journal_block;
        Ok(())
    }

    fn read_blocks(&mut self, blocks: u32, offset: u64) -> std::io::Result<()> {
        let len = usize::try_from(blocks).unwrap_or(1) << self.log.block_size.bits();
        self.bytes.resize(len, 0);
        self.log.device.read_at(&mut self.bytes, offset)?;
        self.blocks = blocks;
        Ok(())
    }
}
