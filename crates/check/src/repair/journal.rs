//! **Purpose.** Patches of the journal: replays a log, and makes a journal whose superblock or
//! inode cannot be used again, empty.

use fourscore_ondisk::features::{Compat, Incompat};
use fourscore_ondisk::inode::{FileMode, FileType, InodeFlags};
use fourscore_ondisk::jbd2::{JournalSuperblock, RawJournalSuperblock};
use fourscore_ondisk::superblock::JournalPlace;
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock, extent};
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::editor::{Editor, Left, Patch};
use crate::inode::InodeView;

/// The length of a new journal in blocks, as mke2fs makes it for file systems of its size.
const SIZES: [(u64, u64); 4] = [
    (32_768, 1024),
    (256 << 10, 4096),
    (512 << 10, 8192),
    (u64::MAX, 16_384),
];
const SECTOR_BYTES: u64 = 512;
/// `s_jnl_backup_type` of a copy of the journal's inode.
const COPY_OF_INODE: u8 = 1;

/// The first block of a journal.
struct LogHead {
    block: PhysBlock,
    bytes: Vec<u8>,
    log: JournalSuperblock,
}

impl Editor<'_> {
    /// Whether the superblock names an inode that holds no journal, while the usual one holds one:
    /// then the number is what is damaged.
    pub(super) fn is_journal_elsewhere(&self, nr: InodeNr) -> bool {
        let has_log = |nr| {
            let is_file = |inode: &InodeView<'_>| {
                inode.links() > 0 && inode.file_type() == Some(FileType::Regular)
            };
            self.with_inode(nr, is_file).unwrap_or(false) && self.log_head(nr).is_ok()
        };
        nr != InodeNr::JOURNAL && has_log(InodeNr::JOURNAL) && !has_log(nr)
    }

    /// Makes the usual inode the journal's.
    pub(super) fn use_usual_journal(&self) -> Patch {
        self.edit_super(|raw| raw.s_journal_inum = InodeNr::JOURNAL.0.into())
    }

    /// Writes the copy of the journal's inode over the inode.
    pub(super) fn restore_journal_inode(&self, nr: InodeNr) -> Patch {
        let copy = self.volume.sb.journal_inode_copy();
        let copy = copy.filter(|(number, _)| *number == nr);
        let (_, mut bytes) = copy.ok_or_else(|| Left::because("the superblock has no copy"))?;
        self.write_inode(nr, &mut bytes)
    }

    /// Whether the journal's inode has the map and the size of its copy.
    pub(super) fn is_journal_copied(&self, nr: InodeNr) -> bool {
        let copy = self.volume.sb.journal_inode_copy();
        let copy = copy
            .as_ref()
            .and_then(|(_, bytes)| InodeView::new(bytes, nr));
        let same = |own: &InodeView<'_>| {
            copy.is_some_and(|copy| {
                copy.base.i_block == own.base.i_block
                    && copy.size_bytes() == own.size_bytes()
                    && copy.file_type() == own.file_type()
                    && copy.flags() == own.flags()
                    && own.links() > 0
            })
        };
        self.with_inode(nr, same).unwrap_or(false)
    }

    /// Mends a journal whose inode cannot be used, and of which there is no copy: a new one of the
    /// usual size, or none if there is no space.
    pub(super) fn recreate_journal(&self, nr: InodeNr) -> Patch {
        if !self.volume.compat(Compat::HAS_JOURNAL) {
            return self.edit_super(|raw| raw.s_journal_inum = 0.into());
        }
        self.zero_inode(nr)?;
        let blocks = self.volume.geometry().blocks().0;
        let usual = SIZES.iter().find(|(most, _)| blocks <= *most);
        let length = usual.map_or(1024, |(_, length)| *length);
        let start = match self.take_run(length) {
            Ok(start) => start,
            Err(_) => return self.drop_journal(),
        };
        let log = self.volume.geometry().blocks_per_cluster_log();
        let length = length.next_multiple_of(1 << log);
        self.make_journal_inode(nr, start, length)?;
        let zeroes = vec![0; self.volume.block_bytes()];
        for block in start.0 + 1..start.0 + length {
            self.write_block(PhysBlock(block), &zeroes)?;
        }
        self.write_log_head(start, length)?;
        self.copy_journal_inode(nr)
    }

    fn make_journal_inode(&self, nr: InodeNr, start: PhysBlock, length: u64) -> Patch {
        let volume = self.volume;
        let has_extents = volume.incompat(Incompat::EXTENTS);
        let now = self.now;
        self.edit_base(nr, |base| {
            base.i_mode = FileMode::new(FileType::Regular, 0o600).0.into();
            base.i_links_count = 1.into();
            base.i_mtime = now.into();
            base.i_ctime = now.into();
            if has_extents {
                base.i_flags = InodeFlags::EXTENTS_FL.bits().into();
                extent::init_root(&mut base.i_block);
            }
        })?;
        let mut extents = Vec::new();
        for nth in 0..length {
            let state = extent::ExtentState::Written;
            super::map::push_block(&mut extents, nth, start.0 + nth, state);
        }
        self.write_map(nr, &extents)?;
        self.set_size(nr, length * volume.block_bytes() as u64)?;
        let bytes = length * volume.block_bytes() as u64;
        self.set_blocks(nr, bytes / SECTOR_BYTES)
    }

    /// Writes the superblock of an empty journal.
    fn write_log_head(&self, block: PhysBlock, length: u64) -> Patch {
        let size = self.volume.geometry().block_size();
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let raw = RawJournalSuperblock::new(size, length, Uuid::from_bytes([0; 16]));
        let mut bytes = vec![0; size.bytes()];
        if let Some(place) = bytes.get_mut(..size_of::<RawJournalSuperblock>()) {
            place.copy_from_slice(raw.as_bytes());
        }
        self.write_block(block, &bytes)
    }

    /// Makes the superblock of the journal again, in the blocks that it has.
    pub(super) fn reset_journal(&self) -> Patch {
        let Some(JournalPlace::Inode(nr)) = self.volume.sb.journal() else {
            return Err(Left::because("it is on another device"));
        };
        let extents = self.extents_of(nr)?;
        let first = extents
            .first()
            .filter(|extent| extent.logical == LogicalBlock(0));
        let start = first
            .ok_or_else(|| Left::because("it has no first block"))?
            .physical;
        let size = self.with_inode(nr, |inode| inode.size_bytes())?;
        let blocks = size >> self.volume.geometry().block_size().bits();
        self.write_log_head(start, blocks)?;
        // What is in the log must not be taken for a transaction of the new journal.
        let zeroes = vec![0; self.volume.block_bytes()];
        for extent in &extents {
            let places = extent.physical.0..extent.physical.0 + u64::from(extent.blocks);
            for block in places.filter(|&block| block != start.0) {
                self.write_block(PhysBlock(block), &zeroes)?;
            }
        }
        self.edit_super(|raw| {
            let features = raw.s_feature_incompat.get() & !Incompat::RECOVER.bits();
            raw.s_feature_incompat = features.into();
        })
    }

    /// Marks a log as empty that no recovery was due for.
    pub(super) fn empty_log(&self) -> Patch {
        self.edit_log(|log| {
            let next = log.sequence().next();
            log.set_tail(None, next);
        })
    }

    /// Clears the error that aborted the journal. What it left behind is what the check finds.
    pub(super) fn clear_journal_errno(&self) -> Patch {
        self.edit_log(|log| log.set_errno(0))
    }

    /// Changes the superblock of the journal.
    fn edit_log(&self, edit: impl FnOnce(&mut JournalSuperblock)) -> Patch {
        let Some(JournalPlace::Inode(nr)) = self.volume.sb.journal() else {
            return Err(Left::because("it is on another device"));
        };
        let LogHead {
            block,
            mut bytes,
            mut log,
        } = self.log_head(nr)?;
        edit(&mut log);
        log.seal();
        let head = log.raw().as_bytes();
        if let Some(place) = bytes.get_mut(..head.len()) {
            place.copy_from_slice(head);
        }
        self.write_block(block, &bytes)
    }

    /// Reads the superblock of the journal that an inode holds.
    fn log_head(&self, nr: InodeNr) -> Patch<LogHead> {
        let extents = self.extents_of(nr)?;
        let first = extents
            .first()
            .ok_or_else(|| Left::because("it has no block"))?;
        let block = first.physical;
        let bytes = self.read_block(block)?;
        let raw = RawJournalSuperblock::ref_from_prefix(&bytes);
        let (raw, _) = raw.map_err(|_| Left::because("too short"))?;
        let log = JournalSuperblock::try_from(raw);
        let log = log.map_err(|error| Left(error.to_string()))?;
        Ok(LogHead { block, bytes, log })
    }

    /// Has the file system work without a journal.
    fn drop_journal(&self) -> Patch {
        self.edit_super(|raw| {
            let features = raw.s_feature_compat.get() & !Compat::HAS_JOURNAL.bits();
            raw.s_feature_compat = features.into();
            let features = raw.s_feature_incompat.get() & !Incompat::RECOVER.bits();
            raw.s_feature_incompat = features.into();
            raw.s_journal_inum = 0.into();
            raw.s_jnl_backup_type = 0;
        })
    }

    /// Copies the journal's inode into the superblock.
    pub(super) fn copy_journal_inode(&self, nr: InodeNr) -> Patch {
        let (i_block, low, high) = self.with_inode(nr, |inode| {
            let base = inode.base;
            (base.i_block, base.i_size_lo, base.i_size_high)
        })?;
        self.edit_super(|raw| {
            raw.s_journal_inum = nr.0.into();
            raw.s_jnl_backup_type = COPY_OF_INODE;
            for (word, bytes) in raw.s_jnl_blocks.iter_mut().zip(i_block.chunks_exact(4)) {
                *word = u32::from_le_bytes(bytes.try_into().unwrap_or_default()).into();
            }
            raw.s_jnl_blocks[15] = high;
            raw.s_jnl_blocks[16] = low;
        })
    }
}
