//! **Purpose.** The primitives of patches: changes of one structure on the overlay, with its
//! checksum renewed, and free blocks and inodes.
//!
//! **Model.** An editor works with what one check found. What it writes is seen by later reads of
//! the same round, but the state of the check is not brought up to date: the next round's check
//! does that. Blocks and inodes that are taken are marked in the state, so that none is taken
//! twice.
//!
//! **Invariants.** A block is taken only if the check found no owner of it. So a file that is sound
//! keeps its blocks, whatever the bitmaps say.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::features::RoCompat;
use fourscore_ondisk::group::{self, GroupFlags, RawGroupDesc, RawGroupDescHigh};
use fourscore_ondisk::inode::{self, RawInode};
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, PhysBlock, RawSuperblock};
use zerocopy::{FromBytes, IntoBytes};

use super::overlay::Overlay;
use crate::Examined;
use crate::inode::InodeView;
use crate::state::State;
use crate::volume::Volume;

/// Why a finding is left.
#[derive(Clone, Debug)]
pub(super) struct Left(pub(super) String);

impl Left {
    pub(super) fn because(why: &str) -> Self {
        Self(why.to_owned())
    }
}

impl From<io::Error> for Left {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// The outcome of a patch.
pub(super) type Patch<T = ()> = Result<T, Left>;

/// Patches the file system of one check.
pub(super) struct Editor<'a> {
    pub(super) found: &'a Examined,
    pub(super) volume: &'a Volume,
    pub(super) state: &'a State,
    disk: &'a Overlay,
    /// The time of the repair, in seconds since 1970.
    pub(super) now: u32,
    next_cluster: Cell<u64>,
    taken: RefCell<Vec<Range<u64>>>,
    /// Inodes that were cleared: later patches of the round do not change them.
    cleared: RefCell<BTreeSet<InodeNr>>,
    /// Directories that lost their index.
    unindexed: RefCell<BTreeSet<InodeNr>>,
    /// The directory for what has no name, once it is known.
    pub(super) lost_and_found: Cell<Option<InodeNr>>,
}

impl<'a> Editor<'a> {
    pub(super) fn new(found: &'a Examined, disk: &'a Overlay, now: u32) -> Self {
        Self {
            found,
            volume: &found.volume,
            state: &found.state,
            disk,
            now,
            next_cluster: Cell::new(0),
            taken: RefCell::new(Vec::new()),
            cleared: RefCell::new(BTreeSet::new()),
            unindexed: RefCell::new(BTreeSet::new()),
            lost_and_found: Cell::new(None),
        }
    }

    /// The blocks that were taken.
    pub(super) fn taken(&self) -> Vec<Range<u64>> {
        self.taken.take()
    }

    /// The directories that lost their index.
    pub(super) fn unindexed(&self) -> BTreeSet<InodeNr> {
        self.unindexed.take()
    }

    /// Notes that a directory has lost its index.
    pub(super) fn note_unindexed(&self, dir: InodeNr) {
        self.unindexed.borrow_mut().insert(dir);
    }

    /// Reads a block.
    pub(super) fn read_block(&self, block: PhysBlock) -> Patch<Vec<u8>> {
        let mut bytes = vec![0; self.volume.block_bytes()];
        self.volume.read(block, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes a block.
    pub(super) fn write_block(&self, block: PhysBlock, bytes: &[u8]) -> Patch {
        let offset = self.volume.geometry().block_size().offset(block);
        Ok(self.disk.write_at(bytes, offset)?)
    }

    /// Writes bytes at an offset in bytes.
    pub(super) fn write_at(&self, offset: u64, bytes: &[u8]) -> Patch {
        Ok(self.disk.write_at(bytes, offset)?)
    }

    /// The bytes of an inode, which is mostly written next.
    pub(super) fn inode_bytes(&self, nr: InodeNr) -> Patch<Vec<u8>> {
        let offset = self.inode_offset(nr)?;
        let size = self.volume.geometry().inode_size_bytes();
        let loaded = self.disk.load(offset, size);
        let mut bytes = Vec::new();
        let read = loaded
            .ok()
            .and_then(|()| self.volume.read_inode(nr, &mut bytes));
        read.ok_or_else(|| Left(format!("inode {nr} cannot be read")))?;
        Ok(bytes)
    }

    pub(super) fn inode_offset(&self, nr: InodeNr) -> Patch<u64> {
        let geometry = self.volume.geometry();
        let place = geometry.inode_group(nr).and_then(|(group, index)| {
            let table = self.volume.group(group)?.inode_table?;
            Some(geometry.inode_place(table, GroupOffset(index.0)))
        });
        let place = place.ok_or_else(|| Left(format!("inode {nr} has no place")))?;
        Ok(geometry.block_size().offset(place.block) + place.offset_bytes as u64)
    }

    /// Writes an inode, with its checksum.
    pub(super) fn write_inode(&self, nr: InodeNr, bytes: &mut [u8]) -> Patch {
        if self.cleared.borrow().contains(&nr) {
            return Ok(());
        }
        inode::seal(bytes, nr, &self.volume.sb).map_err(|error| Left(error.to_string()))?;
        Ok(self.disk.write_at(bytes, self.inode_offset(nr)?)?)
    }

    /// Changes an inode.
    pub(super) fn edit_inode(&self, nr: InodeNr, edit: impl FnOnce(&mut [u8])) -> Patch {
        let mut bytes = self.inode_bytes(nr)?;
        edit(&mut bytes);
        self.write_inode(nr, &mut bytes)
    }

    /// Changes the first 128 bytes of an inode.
    pub(super) fn edit_base(&self, nr: InodeNr, edit: impl FnOnce(&mut RawInode)) -> Patch {
        self.edit_inode(nr, |bytes| {
            if let Ok((base, _)) = RawInode::mut_from_prefix(bytes) {
                edit(base);
            }
        })
    }

    /// Makes an inode as if it had never been used, and keeps it so for the rest of the round.
    pub(super) fn clear_inode(&self, nr: InodeNr) -> Patch {
        self.zero_inode(nr)?;
        self.cleared.borrow_mut().insert(nr);
        Ok(())
    }

    /// Makes an inode as if it had never been used.
    pub(super) fn zero_inode(&self, nr: InodeNr) -> Patch {
        let bytes = vec![0; self.volume.geometry().inode_size_bytes()];
        Ok(self.disk.write_at(&bytes, self.inode_offset(nr)?)?)
    }

    /// Calls `then` with an inode as it is now.
    pub(super) fn with_inode<R>(
        &self,
        nr: InodeNr,
        then: impl FnOnce(&InodeView<'_>) -> R,
    ) -> Patch<R> {
        let bytes = self.inode_bytes(nr)?;
        let view = InodeView::new(&bytes, nr).ok_or_else(|| Left::because("too short"))?;
        Ok(then(&view))
    }

    /// Changes the primary superblock.
    pub(super) fn edit_super(&self, edit: impl FnOnce(&mut RawSuperblock)) -> Patch {
        let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
        self.disk.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
        if let Ok(raw) = RawSuperblock::mut_from_bytes(&mut bytes) {
            edit(raw);
        }
        self.write_super(&mut bytes)
    }

    /// Writes the primary superblock, with its checksum.
    pub(super) fn write_super(&self, bytes: &mut [u8; SUPERBLOCK_SIZE_BYTES]) -> Patch {
        let raw = RawSuperblock::mut_from_bytes(bytes).map_err(|_| Left::because("too short"))?;
        if raw.features().ro_compat.contains(RoCompat::METADATA_CSUM) {
            raw.seal();
        }
        let bytes = raw.as_bytes();
        Ok(self.disk.write_at(bytes, SUPERBLOCK_OFFSET_BYTES)?)
    }

    /// The bytes of a group descriptor of the primary table.
    pub(super) fn descriptor(&self, nr: GroupNr) -> Patch<Vec<u8>> {
        let mut bytes = vec![0; self.volume.geometry().desc_size_bytes()];
        self.disk.read_at(&mut bytes, self.descriptor_offset(nr)?)?;
        Ok(bytes)
    }

    pub(super) fn descriptor_offset(&self, nr: GroupNr) -> Patch<u64> {
        let geometry = self.volume.geometry();
        let place = geometry.desc_place(nr);
        let place = place.ok_or_else(|| Left(format!("group {nr} has no descriptor")))?;
        Ok(geometry.block_size().offset(place.block) + place.offset_bytes as u64)
    }

    /// Writes a group descriptor, with its checksum.
    pub(super) fn write_descriptor(&self, nr: GroupNr, bytes: &mut [u8]) -> Patch {
        group::seal(bytes, nr, &self.volume.sb).map_err(|error| Left(error.to_string()))?;
        Ok(self.disk.write_at(bytes, self.descriptor_offset(nr)?)?)
    }

    /// Changes a group descriptor.
    pub(super) fn edit_descriptor(
        &self,
        nr: GroupNr,
        edit: impl FnOnce(&mut RawGroupDesc, Option<&mut RawGroupDescHigh>),
    ) -> Patch {
        let mut bytes = self.descriptor(nr)?;
        if let Ok((low, rest)) = RawGroupDesc::mut_from_prefix(&mut bytes) {
            let high = RawGroupDescHigh::mut_from_prefix(rest).ok();
            edit(low, high.map(|(high, _)| high));
        }
        self.write_descriptor(nr, &mut bytes)
    }

    /// Takes a free cluster; returns its first block.
    pub(super) fn take_cluster(&self) -> Patch<PhysBlock> {
        let volume = self.volume;
        let clusters = volume.clusters();
        let mut at = self.next_cluster.get();
        while at < clusters {
            let word = self.state.found.bits_at(at);
            if word == u64::MAX {
                at += 64;
                continue;
            }
            at += u64::from(word.trailing_ones());
            let start = volume.cluster_start(at);
            let last = start.0 + (1 << volume.geometry().blocks_per_cluster_log());
            if at < clusters && last <= volume.geometry().blocks().0 && start.0 > 0 {
                self.next_cluster.set(at + 1);
                self.state.found.insert(at);
                self.taken.borrow_mut().push(start.0..last);
                return Ok(start);
            }
            at += 1;
        }
        Err(Left::because("no free block is left"))
    }

    /// Takes so many free blocks, each in a cluster of its own.
    pub(super) fn take_blocks(&self, count: usize) -> Patch<Vec<PhysBlock>> {
        (0..count).map(|_| self.take_cluster()).collect()
    }

    /// Takes a run of adjacent free blocks; returns the first one.
    pub(super) fn take_run(&self, blocks: u64) -> Patch<PhysBlock> {
        self.take_run_in(blocks, 0..self.volume.clusters())
    }

    /// As [`take_run`](Self::take_run), among some clusters.
    pub(super) fn take_run_in(&self, blocks: u64, clusters: Range<u64>) -> Patch<PhysBlock> {
        let volume = self.volume;
        let log = volume.geometry().blocks_per_cluster_log();
        let needed = blocks.div_ceil(1 << log);
        let (mut first, mut at) = (clusters.start, clusters.start);
        while at < clusters.end {
            if self.state.found.contains(at) || volume.cluster_start(at).0 == 0 {
                first = at + 1;
            } else if at + 1 - first == needed {
                let start = volume.cluster_start(first);
                if start.0 + (needed << log) > volume.geometry().blocks().0 {
                    break;
                }
                self.state.found.insert_run(first..at + 1, |_| {});
                let end = start.0 + (needed << log);
                self.taken.borrow_mut().push(start.0..end);
                return Ok(start);
            }
            at += 1;
        }
        Err(Left::because("no run of free blocks is long enough"))
    }

    /// Takes a free inode number for a new inode: one in the used part of a table, or the first
    /// behind it, whose group then counts one inode less as unused.
    pub(super) fn take_inode(&self) -> Patch<InodeNr> {
        let volume = self.volume;
        let geometry = volume.geometry();
        let groups = || (0..).map(GroupNr).zip(&volume.groups);
        let is_free =
            |nr: InodeNr| nr >= volume.sb.first_inode() && !self.state.used.contains(nr.0.into());
        for (nr, group) in groups().filter(|(_, group)| group.inode_table.is_some()) {
            let indices = (0..volume.inodes_to_read(group)).map(GroupOffset);
            let mut inodes = indices.filter_map(|index| geometry.inode_at(nr, index));
            if let Some(free) = inodes.find(|&nr| is_free(nr)) {
                self.state.used.insert(free.0.into());
                return Ok(free);
            }
        }
        for (nr, group) in groups().filter(|(_, group)| group.inode_table.is_some()) {
            let end = volume.inodes_to_read(group);
            let free = geometry.inode_at(nr, GroupOffset(end));
            if let Some(free) = free.filter(|&nr| is_free(nr)) {
                self.state.used.insert(free.0.into());
                self.set_unused(nr, geometry.inodes_per_group() - end - 1)?;
                return Ok(free);
            }
        }
        Err(Left::because("no free inode is left"))
    }

    /// Sets the number of inodes at the end of a table that were never used.
    pub(super) fn set_unused(&self, nr: GroupNr, unused: u32) -> Patch {
        self.edit_descriptor(nr, |low, high| {
            let [a, b, c, d] = unused.to_le_bytes();
            low.bg_itable_unused_lo = u16::from_le_bytes([a, b]).into();
            if let Some(high) = high {
                high.bg_itable_unused_hi = u16::from_le_bytes([c, d]).into();
            }
            let flags = low.bg_flags.get() & !GroupFlags::INODE_UNINIT.bits();
            low.bg_flags = flags.into();
        })
    }
}
