//! **Purpose.** Fixtures for the tests of this crate: a small disk with a journal on it.

use fourscore_block::{BlockDevice, Buffer, RamDevice, Structure, VerifiedAs};
use fourscore_ondisk::jbd2::{
    JournalBlock, JournalCompat, JournalError, JournalIncompat, JournalSuperblock,
    RawJournalSuperblock,
};
use fourscore_ondisk::{BlockCount, BlockSize, InodeNr, PhysBlock};
use fourscore_sync::Arc;
use uuid::Uuid;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U32;

use crate::{
    Background, Batching, Error, Journal, JournalMap, JournalOptions, JournalRun, Log,
    NewChecksums, NoHook, Recovered, recover, replay,
};
#[cfg(not(feature = "shuttle"))]
use crate::{Credits, Extended, Handle};

pub(crate) const BLOCK_BYTES: usize = 1024;
/// The block at which the journal begins, after the blocks that tests change. Its first blocks are
/// after the others, so it is fragmented.
const JOURNAL_AT: u64 = 2048;
/// The length of the journal's first run.
const FIRST_RUN: u32 = 9;

/// A device with a journal among its blocks.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) device: Arc<dyn BlockDevice>,
    journal_blocks: u32,
}

pub(crate) fn block_size() -> BlockSize {
    BlockSize::from_log(0).expect("1 KiB")
}

pub(crate) fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::DirectoryLeaf, InodeNr(12))
}

/// Options without background threads and batching, so that tests control the order of events.
pub(crate) fn without_threads() -> JournalOptions {
    JournalOptions {
        background: Background::None,
        batching: Batching::Off,
        checksums: NewChecksums::None,
        ..JournalOptions::default()
    }
}

impl Disk {
    /// A disk in memory whose journal has `journal_blocks` and checksums of version 3.
    pub(crate) fn new(journal_blocks: u32) -> Self {
        let v3 = JournalIncompat::CSUM_V3 | JournalIncompat::_64BIT;
        Self::with_features(journal_blocks, JournalCompat::empty(), v3)
    }

    pub(crate) fn with_features(
        journal_blocks: u32,
        compat: JournalCompat,
        incompat: JournalIncompat,
    ) -> Self {
        Self::make(journal_blocks, |raw| {
            raw.s_feature_compat = U32::new(compat.bits());
            raw.s_feature_incompat = U32::new(incompat.bits());
        })
    }

    /// As [`Disk::new`]; the last `area_blocks` of the journal are for fast commits.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn with_area(journal_blocks: u32, area_blocks: u32) -> Self {
        let incompat =
            JournalIncompat::CSUM_V3 | JournalIncompat::_64BIT | JournalIncompat::FAST_COMMIT;
        Self::make(journal_blocks, |raw| {
            raw.s_feature_incompat = U32::new(incompat.bits());
            raw.s_num_fc_blks = U32::new(area_blocks);
        })
    }

    fn make(journal_blocks: u32, set: impl FnOnce(&mut RawJournalSuperblock)) -> Self {
        let blocks = JOURNAL_AT + u64::from(journal_blocks + FIRST_RUN);
        let device = Arc::new(RamDevice::new(blocks * BLOCK_BYTES as u64));
        let disk = Self {
            device,
            journal_blocks,
        };
        let uuid = Uuid::from_bytes([3; 16]);
        let mut raw = RawJournalSuperblock::new(block_size(), journal_blocks, uuid);
        set(&mut raw);
        raw.s_checksum_type = 4;
        // The tids wrap around soon.
        raw.s_sequence = U32::new(u32::MAX - 3);
        if let Err(JournalError::SuperblockChecksum { mismatch }) =
            JournalSuperblock::try_from(&raw)
        {
            raw.s_checksum = U32::new(mismatch.expected);
        }
        let (at, _) = disk.map().locate(JournalBlock(0)).expect("mapped");
        disk.device
            .write_at(raw.as_bytes(), block_size().offset(at))
            .expect("in memory");
        disk
    }

    /// The same disk, accessed through another device.
    pub(crate) fn behind(&self, device: Arc<dyn BlockDevice>) -> Self {
        Self {
            device,
            journal_blocks: self.journal_blocks,
        }
    }

    /// A copy of the disk's current contents, as another disk.
    pub(crate) fn copy(&self) -> Self {
        self.behind(Arc::new(RamDevice::from_bytes(&self.content())))
    }

    fn blocks(&self) -> BlockCount {
        BlockCount(self.device.len_bytes() >> block_size().bits())
    }

    pub(crate) fn map(&self) -> JournalMap {
        let first = JournalRun {
            journal_block: JournalBlock(0),
            block: PhysBlock(JOURNAL_AT + u64::from(self.journal_blocks)),
            blocks: FIRST_RUN,
        };
        let rest = JournalRun {
            journal_block: JournalBlock(FIRST_RUN),
            block: PhysBlock(JOURNAL_AT),
            blocks: self.journal_blocks - FIRST_RUN,
        };
        JournalMap::from_runs([first, rest], self.blocks()).expect("disjoint")
    }

    pub(crate) fn log(&self) -> Log {
        Log::open(Arc::clone(&self.device), block_size(), self.map()).expect("a sound journal")
    }

    pub(crate) fn open(&self, options: JournalOptions) -> Journal {
        self.open_with(Arc::new(NoHook), options)
    }

    pub(crate) fn open_with(
        &self,
        hook: Arc<dyn crate::SealHook>,
        options: JournalOptions,
    ) -> Journal {
        let home = Arc::clone(&self.device);
        Journal::open(self.log(), home, hook, options).expect("an empty journal")
    }

    pub(crate) fn recover(&self) -> Result<Recovered, Error> {
        recover(&self.log(), self.blocks())
    }

    /// Recovers and replays the log.
    pub(crate) fn replay(&self) -> Recovered {
        let recovered = self.recover().expect("a sound log");
        let mut log = self.log();
        replay(&mut log, &recovered, &*self.device).expect("in memory");
        assert_eq!(self.log().superblock().start(), None, "not marked empty");
        recovered
    }

    pub(crate) fn read(&self, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        let offset = block_size().offset(PhysBlock(block));
        self.device.read_at(&mut bytes, offset).expect("in memory");
        bytes
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        let len = usize::try_from(self.device.len_bytes()).expect("small");
        let mut bytes = vec![0; len];
        self.device.read_at(&mut bytes, 0).expect("in memory");
        bytes
    }

    /// The buffer of a block.
    pub(crate) fn buffer(&self, block: u64) -> Arc<Buffer> {
        Arc::new(Buffer::new(PhysBlock(block), Arc::from(self.read(block))))
    }
}

#[cfg(not(feature = "shuttle"))]
pub(crate) fn fill(handle: &mut Handle<'_>, buffer: &Arc<Buffer>, byte: u8) {
    handle
        .modify(buffer, tag(), |bytes| bytes.fill(byte))
        .expect("credits, and a buffer in no cache");
}

/// The work of one of many threads: changes four blocks in each round, using every way to get
/// credits.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn crowded(journal: &Journal, disk: &Disk, nr: u64, rounds: u8) {
    let buffers: Vec<_> = (4 * nr..4 * nr + 4)
        .map(|block| disk.buffer(block))
        .collect();
    for round in 1..=rounds {
        let mut handle = journal.start(Credits(2)).expect("not aborted");
        fill(&mut handle, &buffers[0], round);
        fill(&mut handle, &buffers[1], round);
        if handle.extend(Credits(1)) == Extended::No {
            handle = handle.restart(Credits(20)).expect("not aborted");
        }
        fill(&mut handle, &buffers[2], round);
        let mut handle = handle.restart(Credits(40)).expect("not aborted");
        fill(&mut handle, &buffers[3], round);
        let tid = handle.stop();
        if (nr + u64::from(round)).is_multiple_of(4) {
            journal.commit_and_wait(tid).expect("in memory");
        }
    }
}
