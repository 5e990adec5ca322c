//! **Purpose.** The layout of the device that a history begins with: an empty journal in two
//! pieces, and the blocks that the client changes.
//!
//! ```text
//! block  0      1 ..           .. n   n+1                    n+1+j
//!        unused | slots            |  | journal, second piece first |
//! ```

use anyhow::Result;
use fourscore_block::{BlockDevice, RamDevice};
use fourscore_journal::{JournalMap, JournalRun, Log};
use fourscore_ondisk::jbd2::{
    JournalBlock, JournalIncompat, JournalSuperblock, RawJournalSuperblock,
};
use fourscore_ondisk::{BlockCount, BlockSize, PhysBlock, Tid};
use fourscore_sync::Arc;
use uuid::Uuid;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U32;

use super::model::{Model, Slot};

/// The number of blocks that the client changes.
pub(super) const SLOTS: usize = 20;

/// The format of the journal: checksums and width of block numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// No checksums, block numbers of 32 bits.
    Plain,
    /// A checksum for each transaction.
    V1,
    /// Short checksums in the tags.
    V2,
    /// The default of mke2fs: checksums in the tags, block numbers of 64 bits.
    V3,
}

/// The layout.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The size of a block.
    pub(super) block_size: BlockSize,
    /// The blocks that the client changes, by slot.
    pub(super) slots: Vec<PhysBlock>,
    /// The journal.
    pub(super) journal: Vec<JournalRun>,
    /// The length of the device.
    pub(super) blocks: BlockCount,
}

impl Place {
    /// A device made for `slots` blocks and a journal of `journal_blocks`, its superblock
    /// included.
    #[must_use]
    pub(super) fn new(block_size: BlockSize, slots: usize, journal_blocks: u32) -> Self {
        let slots: Vec<_> = (1..=slots as u64).map(PhysBlock).collect();
        let first = slots.len() as u64 + 1;
        let half = journal_blocks / 2;
        let run = |journal_block, block, blocks| JournalRun {
            journal_block: JournalBlock(journal_block),
            block: PhysBlock(block),
            blocks,
        };
        let rest = journal_blocks - half;
        Self {
            block_size,
            slots,
            journal: vec![
                run(0, first + u64::from(rest), half),
                run(half, first, rest),
            ],
            blocks: BlockCount(first + u64::from(journal_blocks)),
        }
    }

    /// The bytes of the device before the first transaction, `first_tid`.
    #[must_use]
    pub(super) fn format(&self, format: Format, first_tid: Tid, model: &Model) -> Vec<u8> {
        let block_bytes = self.block_size.bytes();
        let at = |block: PhysBlock| usize::try_from(self.block_size.offset(block)).unwrap_or(0);
        let mut bytes = vec![0; at(PhysBlock(self.blocks.0))];
        for (slot, &block) in self.slots.iter().enumerate() {
            if let Some(content) = model.initial(Slot(slot)) {
                bytes[at(block)..at(block) + block_bytes].copy_from_slice(content);
            }
        }
        let raw = self.journal_superblock(format, first_tid);
        let first = at(self.journal[0].block);
        bytes[first..first + raw.as_bytes().len()].copy_from_slice(raw.as_bytes());
        bytes
    }

    fn journal_superblock(&self, format: Format, first_tid: Tid) -> RawJournalSuperblock {
        let blocks = self.journal.iter().map(|run| run.blocks).sum();
        let mut raw = RawJournalSuperblock::new(self.block_size, blocks, Uuid::from_u128(80));
        let incompat = match format {
            Format::Plain | Format::V1 => JournalIncompat::REVOKE,
            Format::V2 => JournalIncompat::REVOKE | JournalIncompat::CSUM_V2,
            Format::V3 => {
                JournalIncompat::REVOKE | JournalIncompat::CSUM_V3 | JournalIncompat::_64BIT
            }
        };
        raw.s_feature_incompat = U32::new(incompat.bits());
        if format == Format::V1 {
            raw.s_feature_compat = U32::new(fourscore_ondisk::jbd2::JournalCompat::CHECKSUM.bits());
        }
        if matches!(format, Format::V2 | Format::V3) {
            // The only kind of checksum there is: crc32c.
            raw.s_checksum_type = 4;
        }
        // In an empty journal this is the last number that was used.
        raw.s_sequence = U32::new(first_tid.0.wrapping_sub(1));
        let mut sealed = raw;
        if let Err(fourscore_ondisk::jbd2::JournalError::SuperblockChecksum { mismatch }) =
            JournalSuperblock::try_from(&raw)
        {
            sealed.s_checksum = U32::new(mismatch.expected);
        }
        sealed
    }

    /// Opens the journal on a device.
    ///
    /// # Errors
    /// Its superblock is invalid.
    pub(super) fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Log> {
        let map = JournalMap::from_runs(self.journal.iter().copied(), self.blocks)?;
        Ok(Log::open(device, self.block_size, map)?)
    }

    /// The first transaction that will be written to the empty journal on the device `bytes`, and
    /// what the slots hold, one after the other.
    ///
    /// # Errors
    /// The journal's superblock is invalid.
    pub(super) fn look(&self, bytes: &[u8]) -> Result<(Tid, Vec<u8>)> {
        let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::from_bytes(bytes));
        let log = self.open(Arc::clone(&device))?;
        Ok((log.superblock().sequence().next(), self.read(&*device)?))
    }

    /// Whether the block belongs to the journal.
    pub(super) fn is_of_the_journal(&self, block: PhysBlock) -> bool {
        let is_in = |run: &JournalRun| {
            (run.block.0..run.block.0 + u64::from(run.blocks)).contains(&block.0)
        };
        self.journal.iter().any(is_in)
    }

    /// The slots' blocks, one after the other.
    ///
    /// # Errors
    /// The device fails.
    pub(super) fn read(&self, device: &dyn BlockDevice) -> Result<Vec<u8>> {
        let block_bytes = self.block_size.bytes();
        let mut bytes = vec![0; self.slots.len() * block_bytes];
        for (block, place) in self.slots.iter().zip(bytes.chunks_mut(block_bytes)) {
            device.read_at(place, self.block_size.offset(*block))?;
        }
        Ok(bytes)
    }
}
