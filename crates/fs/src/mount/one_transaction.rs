//! **Purpose.** Writes the changes of a file system that were made in memory, such that a crash at
//! any moment leaves all of them or none.
//!
//! **Model.** The changed blocks are those in which the memory differs from the device. The blocks
//! of the journal are left out: the mount in memory used them as any mount does, and its log is not
//! needed. The others are of two kinds.
//!
//! ```text
//! free on the device    written in place first: nothing refers to them yet
//! in use on the device  written to the log, as the only transaction of an empty journal
//! ```
//!
//! The second kind is all metadata that existed before, and data that was overwritten or lies where
//! a removed file had been. It must fit into one transaction: a quarter of the journal. If it does
//! not, nothing is written.
//!
//! **Invariants.** The log holds one transaction at most. Its blocks have their final content: no
//! hook changes them when they are committed.
//!
//! **Crash safety.** The journal was empty, so no older copy of a block can be replayed over a new
//! one, and nothing is revoked.
//!
//! | step | a crash behind it leaves |
//! |---|---|
//! | free blocks, flush | none of the changes |
//! | `needs_recovery` in the superblock, with FUA | the same, with an empty log to replay |
//! | blocks of the transaction, flush, commit block with FUA | all of them, in the log |
//! | all but the superblock in their places, flush | the same, for Linux too: see `commit` |
//! | checkpoint, empty log | all of them, in their places |
//! | superblock without `needs_recovery`, with FUA | the same, unmounted |
//!
//! The transaction has the superblock as well. Its copy in the log says `needs_recovery`. Otherwise
//! a checkpoint that is cut short after the superblock, and before other blocks, would leave a log
//! that the kernel ignores.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::ops::Range;

use fourscore_block::{BlockDevice, Buffer, RamDevice, Structure, VerifiedAs};
use fourscore_journal::{Background, Credits, Journal, JournalOptions, Log, NewChecksums, NoHook};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::superblock::{
    JournalPlace, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, Superblock,
};
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock, RawSuperblock};
use fourscore_sync::Arc;
use zerocopy::IntoBytes as _;

use crate::core::Core;
use crate::group::descriptor::{self, Bitmap};
use crate::mount::mark::{raw_superblock, rewrite_superblock, superblock_part};
use crate::mount::options::MountOptions;
use crate::mount::{open, read_write, replay};
use crate::{Error, OpenOptions, Result, SuperblockCopy};

/// How much is read and compared at once, in bytes; a multiple of every block size.
const PIECE_BYTES: u64 = 1 << 20;

/// How changes are written.
#[derive(Debug)]
pub(crate) struct Plan {
    open: OpenOptions,
    journal: JournalOptions,
    needs_recovery: bool,
}

impl Plan {
    /// Looks at the file system on `device`, and refuses one that cannot be changed at once.
    pub(crate) fn new(device: &Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Self> {
        let superblock = open::read_superblock(&**device, SuperblockCopy::Primary)?;
        let incompat = superblock.features().incompat;
        let refused = |why: &str| Err(Error::Unsupported(why.into()));
        match superblock.journal() {
            None => return refused("it has no journal, so changes cannot be made all at once"),
            Some(JournalPlace::Device { .. }) => {
                return refused(
                    "its journal is on another device, so changes are not made at once",
                );
            }
            Some(JournalPlace::Inode(_)) => {}
        }
        if incompat.contains(Incompat::MMP) {
            return refused("it has the feature mmp, with which changes are not made all at once");
        }
        if device.len_bytes() > RamDevice::MAX_BYTES {
            return refused("it is longer than 1 PiB, so changes are not collected in memory");
        }
        let mut journal = JournalOptions {
            background: Background::None,
            block_numbers: read_write::block_numbers(&superblock),
            ..options.journal_options()
        };
        if !superblock.has_metadata_csum() {
            journal.checksums = NewChecksums::None;
        }
        Ok(Self {
            open: options.open_options(),
            journal,
            needs_recovery: incompat.contains(Incompat::RECOVER),
        })
    }

    /// Whether a journal has to be replayed onto the device before changes are made in memory.
    pub(crate) fn needs_recovery(&self) -> bool {
        self.needs_recovery
    }
}

/// Makes the content of `memory` durable on `device`. `memory` is a copy-on-write snapshot of that
/// device, and the file system in it was unmounted.
///
/// # Errors
/// `NotOneTransaction`, before anything was written; `Corrupt` for a bitmap that cannot be read;
/// `Io`.
pub(crate) fn write(device: &Arc<dyn BlockDevice>, memory: &RamDevice, plan: &Plan) -> Result<()> {
    let superblock = open::read_superblock(&**device, SuperblockCopy::Primary)?;
    let core = open::bare(Arc::clone(device), superblock, &plan.open)?;
    let log = replay::log(&core, &plan.open)?;
    let mut changes = Changes::new(&core, memory);
    changes.find(|block| log.map().contains(block))?;
    let transaction = Transaction::begin(&core, log, plan, changes.logged.len())?;
    changes.write_free()?;
    transaction.commit(changes.contents()?, &raw_superblock(memory)?)
}

/// Replaces blocks of the file system on `device`, which is not mounted. One of them is that of the
/// superblock. Blocks that are free may have been written before; they are flushed.
///
/// # Errors
/// `NotOneTransaction`, before anything was written; `InvalidArgument` without a superblock; `Io`.
pub(crate) fn replace(
    device: &Arc<dyn BlockDevice>,
    blocks: &BTreeMap<PhysBlock, Vec<u8>>,
    plan: &Plan,
) -> Result<()> {
    let superblock = open::read_superblock(&**device, SuperblockCopy::Primary)?;
    let core = open::bare(Arc::clone(device), superblock, &plan.open)?;
    let log = replay::log(&core, &plan.open)?;
    let block_bytes = core.geometry().block_size().bytes();
    let (block, place) = superblock_part(&core, 0..SUPERBLOCK_SIZE_BYTES);
    let changed = blocks.get(&block).and_then(|bytes| bytes.get(place));
    let clean = match changed.map(RawSuperblock::from_bytes) {
        Some(Ok(raw)) if blocks.values().all(|bytes| bytes.len() == block_bytes) => *raw,
        _ => return Err(Error::InvalidArgument("whole blocks with a superblock")),
    };
    let transaction = Transaction::begin(&core, log, plan, blocks.len())?;
    let contents = blocks.iter().map(|(&block, bytes)| (block, bytes.clone()));
    transaction.commit(contents.collect(), &clean)
}

/// The only transaction of an empty journal.
struct Transaction<'a> {
    core: &'a Core,
    journal: Journal,
    credits: Credits,
}

impl<'a> Transaction<'a> {
    /// Opens the journal for a transaction of `blocks` blocks.
    fn begin(core: &'a Core, log: Log, plan: &Plan, blocks: usize) -> Result<Self> {
        let device = Arc::clone(&core.device);
        let journal = Journal::open(log, device, Arc::new(NoHook), plan.journal)?;
        let most = journal.most_credits().0;
        let credits = u32::try_from(blocks).ok().filter(|&blocks| blocks <= most);
        let credits = credits.ok_or(Error::NotOneTransaction {
            blocks: blocks as u64,
            most: most.into(),
        })?;
        Ok(Self {
            core,
            journal,
            credits: Credits(credits),
        })
    }

    /// Writes the blocks. `clean` becomes the superblock when all of them are in their places.
    fn commit(self, contents: Vec<(PhysBlock, Vec<u8>)>, clean: &RawSuperblock) -> Result<()> {
        let (core, device) = (self.core, &*self.core.device);
        device.flush()?;
        rewrite_superblock(device, core.superblock(), mark_dirty)?;
        let (superblock, place) = superblock_part(core, 0..SUPERBLOCK_SIZE_BYTES);
        let block_bytes = core.geometry().block_size().bytes() as u64;
        let mut buffers = Vec::with_capacity(contents.len());
        for (block, mut new) in contents {
            if block == superblock {
                mark_dirty_in(core.superblock(), &mut new[place.clone()])?;
            }
            let start = block.0 * block_bytes;
            let old = bytes_of(device, &(start..start + block_bytes))?;
            buffers.push((Arc::new(Buffer::new(block, old.into())), new));
        }
        let mut handle = self.journal.start(self.credits)?;
        for (buffer, bytes) in &buffers {
            let tag = VerifiedAs::new(Structure::Superblock, InodeNr(0));
            handle
                .modify(buffer, tag, |old| old.copy_from_slice(bytes))
                .map_err(|_| Error::Internal("a block did not fit into its transaction"))?;
        }
        handle.stop();
        self.journal.commit()?;
        for (buffer, bytes) in buffers {
            // Linux reads all descriptors that the superblock names before it replays the log.
            if buffer.block() != superblock {
                device.write_at(&bytes, buffer.block().0 * block_bytes)?;
            }
        }
        device.flush()?;
        self.journal.close()?;
        let slice = IoSlice::new(clean.as_bytes());
        Ok(device.write_fua(&[slice], SUPERBLOCK_OFFSET_BYTES)?)
    }
}

fn mark_dirty(raw: &mut RawSuperblock) {
    let incompat = raw.s_feature_incompat.get() | Incompat::RECOVER.bits();
    raw.s_feature_incompat = incompat.into();
}

/// The blocks in which the memory differs from the device.
struct Changes<'a> {
    core: &'a Core,
    memory: &'a RamDevice,
    block_bytes: u64,
    /// Runs of blocks that are free on the device, in bytes.
    free: Vec<Range<u64>>,
    /// Blocks that are in use on the device.
    logged: Vec<PhysBlock>,
    /// The block bitmaps of the device that were looked at.
    bitmaps: HashMap<GroupNr, Bitmap>,
}

impl<'a> Changes<'a> {
    fn new(core: &'a Core, memory: &'a RamDevice) -> Self {
        Self {
            core,
            memory,
            block_bytes: core.geometry().block_size().bytes() as u64,
            free: Vec::new(),
            logged: Vec::new(),
            bitmaps: HashMap::new(),
        }
    }

    /// Finds all changes, except in blocks that `is_left_out` names.
    fn find(&mut self, is_left_out: impl Fn(PhysBlock) -> bool) -> Result<()> {
        let end_of_fs = self.core.geometry().size_bytes();
        let mut at = 0;
        for range in self.memory.written_ranges() {
            // Pages and blocks are not of one size; whole blocks are looked at, each once.
            at = at.max(range.start - range.start % self.block_bytes);
            let end = range.end.next_multiple_of(self.block_bytes).min(end_of_fs);
            while at < end {
                let stop = end.min(at + PIECE_BYTES);
                self.compare(at..stop, &is_left_out)?;
                at = stop;
            }
        }
        Ok(())
    }

    fn compare(
        &mut self,
        range: Range<u64>,
        is_left_out: &impl Fn(PhysBlock) -> bool,
    ) -> Result<()> {
        let (old, new) = (
            bytes_of(&*self.core.device, &range)?,
            bytes_of(self.memory, &range)?,
        );
        let block_bytes = self.core.geometry().block_size().bytes();
        let pairs = old.chunks(block_bytes).zip(new.chunks(block_bytes));
        for ((old, new), start) in pairs.zip((range.start..).step_by(block_bytes)) {
            let block = PhysBlock(start / self.block_bytes);
            if old == new || is_left_out(block) {
                continue;
            }
            if !self.is_free(block)? {
                self.logged.push(block);
                continue;
            }
            match self.free.last_mut() {
                Some(run) if run.end == start => run.end += self.block_bytes,
                _ => self.free.push(start..start + self.block_bytes),
            }
        }
        Ok(())
    }

    /// Whether nothing on the device refers to `block`.
    fn is_free(&mut self, block: PhysBlock) -> Result<bool> {
        let geometry = self.core.geometry();
        let Some((group, offset)) = geometry.block_group(block) else {
            return Ok(false);
        };
        let cluster = offset.0 >> geometry.blocks_per_cluster_log();
        if !self.bitmaps.contains_key(&group) {
            let bitmap = descriptor::block_bitmap(self.core, group)?;
            self.bitmaps.insert(group, bitmap);
        }
        Ok(self
            .bitmaps
            .get(&group)
            .is_some_and(|found| !found.is_used(cluster)))
    }

    /// Writes the blocks that are free on the device.
    fn write_free(&self) -> Result<()> {
        for run in &self.free {
            let mut at = run.start;
            while at < run.end {
                let stop = run.end.min(at + PIECE_BYTES);
                let bytes = bytes_of(self.memory, &(at..stop))?;
                self.core.device.write_at(&bytes, at)?;
                at = stop;
            }
        }
        Ok(())
    }

    /// Returns the blocks of the transaction, and what they shall hold.
    fn contents(&self) -> Result<Vec<(PhysBlock, Vec<u8>)>> {
        let content = |&block: &PhysBlock| {
            let start = block.0 * self.block_bytes;
            Ok((
                block,
                bytes_of(self.memory, &(start..start + self.block_bytes))?,
            ))
        };
        self.logged.iter().map(content).collect()
    }
}

/// Sets `needs_recovery` in the bytes of a superblock.
fn mark_dirty_in(superblock: &Superblock, bytes: &mut [u8]) -> Result<()> {
    let mut raw = *RawSuperblock::from_bytes(bytes)?;
    mark_dirty(&mut raw);
    if superblock.has_metadata_csum() {
        raw.seal();
    }
    bytes.copy_from_slice(raw.as_bytes());
    Ok(())
}

fn bytes_of(device: &dyn BlockDevice, range: &Range<u64>) -> Result<Vec<u8>> {
    let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len];
    device.read_at(&mut bytes, range.start)?;
    Ok(bytes)
}
