//! **Purpose.** Opens a file system for reading.
//!
//! **Model.** The superblock is read and checked, and its features are compared with the table of
//! supported ones. If it says that the journal must be replayed, a bare file system is made first,
//! only to find the journal's blocks. The log is recovered into a replay plan, the device is
//! wrapped so that reads see the replayed blocks, and opening restarts on that device, beginning
//! with the superblock.
//!
//! ```text
//! device -> superblock -> clean ----------------------------------> Fs
//!                      \-> dirty -> journal inode -> plan -> overlay -> superblock -> Fs
//! ```
//!
//! **Crash safety.** Nothing is written. A crashed image can be opened any number of times and
//! reads the same each time.

use fourscore_block::{BlockDevice, BufferCache, CacheOptions, HitCounting};
use fourscore_cache::{ClockCache, Config};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, Superblock};
use fourscore_ondisk::{Corrupt, InodeNr, RawSuperblock};
use fourscore_sync::{Arc, Serial, Versions};

use crate::Result;
use crate::core::Core;
use crate::dir::name_cache::NameCache;
use crate::inode::cell::InodeCell;
use crate::mount::damage::FoundBy;
use crate::mount::fast_commit::apply;
use crate::mount::open_options::{OpenOptions, Replay, SuperblockCopy};
use crate::mount::replay;
use crate::mount::tune::InodeReadahead;
use crate::txn::faults::Faults;

/// The memory for decoded inodes: the cache budget divided by this.
const INODE_SHARE: usize = 4;
/// The memory for the name cache: the cache budget divided by this.
const NAME_SHARE: usize = 8;
/// The memory that a decoded inode typically takes.
const TYPICAL_INODE_BYTES: usize = 640;

/// See [`Fs::open`](crate::Fs::open).
pub(crate) fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Core> {
    let superblock = read_superblock(&*device, options.superblock)?;
    options.check_journal_device(&superblock)?;
    let dirty = superblock.features().incompat.contains(Incompat::RECOVER);
    let in_place = bare(device, superblock, options)?;
    if !dirty || options.replay == Replay::Ignore {
        return Ok(in_place);
    }
    let replayed = replay::replay(&in_place, options)?;
    let superblock = read_superblock(&*replayed.device, SuperblockCopy::Primary)?;
    let mut core = bare(replayed.device, superblock, options)?;
    if let Some(overlay) = apply::build(&replayed.records, &core, core.superblock())? {
        // The caches hold the state before the fast commits.
        let superblock = core.superblock().clone();
        core = bare(core.device, superblock, options)?;
        core.fast_commit = Some(overlay);
    }
    core.journal_damage = replayed.damage;
    core.journal_found_by = replayed.found_by;
    Ok(core)
}

/// Returns a file system that reads the device as it is, without a replay.
pub(crate) fn bare(
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    options: &OpenOptions,
) -> Result<Core> {
    let geometry = superblock.geometry();
    let (found_bytes, expected_bytes) = (device.len_bytes(), geometry.size_bytes());
    if found_bytes < expected_bytes {
        return Err(Corrupt::from(RelationError::DeviceSize {
            found_bytes,
            expected_bytes,
        })
        .into());
    }
    let inode_bytes = options.cache_bytes / INODE_SHARE;
    let name_bytes = options.cache_bytes / NAME_SHARE;
    let buffer_options = CacheOptions {
        budget_bytes: options.cache_bytes - inode_bytes - name_bytes,
        hits: HitCounting::Off,
    };
    let buffers = Arc::new(BufferCache::new(
        Arc::clone(&device),
        geometry.block_size(),
        buffer_options,
    ));
    let inodes = ClockCache::new(&Config {
        number: |nr: &InodeNr| nr.0.into(),
        budget_bytes: inode_bytes,
        expected_weight_bytes: TYPICAL_INODE_BYTES,
        evictable: InodeCell::retire,
        hits: HitCounting::Off,
    });
    Ok(Core {
        device,
        superblock: Arc::new(Versions::new(superblock)),
        buffers,
        inodes,
        lives: Serial::default(),
        names: NameCache::new(name_bytes),
        fast_commit: None,
        journal_damage: None,
        journal_found_by: FoundBy::default(),
        live: None,
        faults: Faults::default(),
        inode_readahead: InodeReadahead::default(),
    })
}

pub(crate) fn read_superblock(
    device: &dyn BlockDevice,
    copy: SuperblockCopy,
) -> Result<Superblock> {
    let offset = match copy {
        SuperblockCopy::Primary => SUPERBLOCK_OFFSET_BYTES,
        SuperblockCopy::Backup { block, block_size } => block_size.offset(block),
    };
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    let there = device
        .len_bytes()
        .saturating_sub(offset)
        .min(SUPERBLOCK_SIZE_BYTES as u64);
    let part = &mut bytes[..usize::try_from(there).unwrap_or(0)];
    if !part.is_empty() {
        device.read_at(part, offset)?;
    }
    Ok(Superblock::try_from(RawSuperblock::from_bytes(part)?)?)
}
