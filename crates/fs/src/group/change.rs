//! **Purpose.** Reads and plans for the groups of a mounted file system: loads their state,
//! prepares changes of bitmaps, and reads bitmaps for the allocator.
//!
//! **Not here.** The state itself and its changes in a handle ([`crate::group::table`]).

use std::io;
use std::ops::Range;

use fourscore_journal::Credits;
use fourscore_mballoc::{
    BitmapState, ChangeKind, ClusterCount, Descriptor, GroupSource, ReadError,
};
use fourscore_ondisk::group::{GroupDesc, GroupFlags};
use fourscore_ondisk::{Geometry, GroupNr, InodeNr, PhysBlock};
use fourscore_sync::profile::{self, Section};
use fourscore_sync::{Arc, epoch};

use crate::core::Core;
use crate::group::descriptor;
use crate::group::prefetch::Prefetcher;
use crate::group::table::{
    BitmapPlace, BitsChange, Counted, DescriptorBlock, Group, Groups, InodesOfGroup, Map,
    write_bits,
};
use crate::mount::error_policy::Found;
use crate::mount::state::Mount;
use crate::txn::faults::Sabotage;
use crate::{Error, Result};

/// Reads all descriptors, and returns the state of all groups.
pub(crate) fn read(core: &Core) -> Result<Groups> {
    let groups = read_groups(core, 0)?;
    // By now the number of groups is proven.
    let tables = descriptor_blocks(core.geometry());
    let superblock = Arc::clone(&core.superblock);
    let buffers = Arc::clone(&core.buffers);
    Ok(Groups::new(superblock, buffers, groups, tables))
}

/// Returns the blocks of descriptors, in the order of blocks.
pub(crate) fn descriptor_blocks(geometry: &Geometry) -> Vec<DescriptorBlock> {
    let mut tables: Vec<_> = tables_of(geometry, 0..geometry.groups()).collect();
    tables.sort_unstable();
    tables
}

/// Returns the blocks that hold the descriptors of some groups, in the order of groups.
fn tables_of(geometry: &Geometry, groups: Range<u32>) -> impl Iterator<Item = DescriptorBlock> {
    let in_block = geometry.descs_per_block().max(1);
    let start = groups.start / in_block * in_block;
    let firsts = (start..groups.end).step_by(in_block as usize);
    firsts.filter_map(|group| {
        Some(DescriptorBlock {
            block: geometry.desc_place(GroupNr(group))?.block,
            first: GroupNr(group),
        })
    })
}

/// The number of groups whose descriptors are read ahead and get memory together. The superblock of
/// a hostile image may claim some hundred million groups.
const BATCH_GROUPS: u32 = 1 << 15;

/// Reads the descriptors of the groups from `first` on, and returns their state. Memory grows as
/// descriptors turn out to be valid.
pub(crate) fn read_groups(core: &Core, first: u32) -> Result<Vec<Group>> {
    let geometry = core.geometry();
    let all = geometry.groups();
    let mut groups = Vec::new();
    let mut start = first;
    while start < all {
        let batch = start..start.saturating_add(BATCH_GROUPS).min(all);
        start = batch.end;
        let tables = tables_of(geometry, batch.clone());
        core.buffers.read_ahead_all(tables.map(|table| table.block));
        let no_memory = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        groups.try_reserve(batch.len()).map_err(no_memory)?;
        descriptor::for_groups(core, batch, |desc| groups.push(state_of(core, desc)))?;
    }
    Ok(groups)
}

/// Returns the state of a group at the mount.
fn state_of(core: &Core, desc: &GroupDesc) -> Group {
    let geometry = core.geometry();
    let has_uninit = descriptor::has_uninit_groups(core);
    let ready = |unused: u32| {
        let used = geometry.inodes_per_group().saturating_sub(unused);
        used.div_ceil(geometry.inodes_per_block())
    };
    let flag = |flag| has_uninit && desc.flags().contains(flag);
    let is_zeroed = !has_uninit || desc.flags().contains(GroupFlags::INODE_ZEROED);
    let unused = if is_zeroed { 0 } else { desc.itable_unused() };
    let (blocks, inodes) = (desc.block_bitmap(), desc.inode_bitmap());
    let block_uninit = flag(GroupFlags::BLOCK_UNINIT);
    let inode_uninit = flag(GroupFlags::INODE_UNINIT);
    Group::new(
        BitmapPlace::new(blocks, block_uninit, desc.free_clusters()),
        InodesOfGroup::new(
            BitmapPlace::new(inodes, inode_uninit, desc.free_inodes()),
            desc.inode_table(),
            ready(unused),
            desc.used_dirs(),
        ),
    )
}

/// A range of bits of one bitmap of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BitRange {
    pub(crate) group: GroupNr,
    pub(crate) map: Map,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// Loads the buffers for the change of `bits`.
pub(crate) fn prepare(
    mount: &Mount,
    bits: BitRange,
    kind: ChangeKind,
    counted: Counted,
) -> Result<BitsChange> {
    let _section = profile::enter(Section::Bitmap);
    let BitRange {
        group,
        map,
        start,
        len,
    } = bits;
    let core = &*mount.core;
    let Some(state) = mount.groups().get(group) else {
        return Err(Error::Internal(
            "a change in a block group that does not exist",
        ));
    };
    let place = state.place(map);
    let desc_place = core.geometry().desc_place(group);
    let descriptors = desc_place.map_or(PhysBlock(0), |place| place.block);
    let is_uninit = place.is_uninit();
    let implied_bitmap = is_uninit
        .then(|| implied_bitmap(core, group, map))
        .transpose()?;
    let buffer = if is_uninit {
        core.buffers.create_unused(place.block())
    } else {
        core.buffers.load(place.block())?
    };
    let running = mount.journal().running_tid();
    let is_there = counted == Counted::Bits && buffer.is_dirty_in(running);
    let held = match is_there {
        true => None,
        false => Some(core.buffers.load(descriptors)?),
    };
    Ok(BitsChange {
        group,
        map,
        start,
        len,
        kind,
        buffer,
        descriptors,
        held,
        implied_bitmap,
    })
}

/// Whether the cluster that holds `block` is in use, in the running transaction.
pub(crate) fn is_in_use(mount: &Mount, block: PhysBlock) -> Result<bool> {
    match mount.allocator().geometry().locate(block) {
        Some((group, start)) => has_bit(mount, group, Map::Blocks, start.0),
        None => Ok(false),
    }
}

/// Whether the number of an inode is in use, in the running transaction.
pub(crate) fn is_inode_in_use(mount: &Mount, nr: InodeNr) -> Result<bool> {
    match mount.core.geometry().inode_group(nr) {
        Some((group, index)) => has_bit(mount, group, Map::Inodes, index.0),
        None => Ok(false),
    }
}

fn has_bit(mount: &Mount, group: GroupNr, map: Map, bit: u32) -> Result<bool> {
    let Some(group) = mount.groups().get(group) else {
        return Ok(false);
    };
    let bitmap = group.place(map);
    if bitmap.is_uninit() {
        return Ok(false);
    }
    let buffer = mount.core.buffers.load(bitmap.block())?;
    Ok(buffer.look(|bytes| {
        let byte = bytes.get(bit as usize / 8);
        byte.is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
    }))
}

/// Returns the initial bitmap of a group whose bitmap was never written.
fn implied_bitmap(core: &Core, group: GroupNr, map: Map) -> Result<Box<[u8]>> {
    let geometry = core.geometry();
    let mut bytes = vec![0; geometry.block_size().bytes()];
    let end = match map {
        Map::Blocks => {
            let bits = geometry.group_clusters(group);
            let bitmap = descriptor::unused_block_bitmap(core, group, bits)?;
            bytes.copy_from_slice(bitmap.as_bytes());
            bits
        }
        Map::Inodes => geometry.inodes_per_group(),
    };
    // Bits behind the group's end count as used.
    let all = u32::try_from(bytes.len() * 8).unwrap_or(u32::MAX);
    write_bits(&mut bytes, end, all.saturating_sub(end), ChangeKind::Set);
    Ok(bytes.into())
}

/// The allocator's view of the groups.
#[derive(Debug)]
pub(crate) struct Source {
    core: Arc<Core>,
    groups: Arc<Groups>,
    prefetcher: Prefetcher,
    found: Arc<Found>,
}

/// Returns an error as the allocator distinguishes it.
fn read_error(error: Error) -> ReadError {
    match error {
        Error::Corrupt(_) => ReadError::Corrupt(error.into()),
        error => ReadError::Failed(error.into()),
    }
}

impl Source {
    pub(crate) fn new(core: Arc<Core>, groups: Arc<Groups>, found: Arc<Found>) -> Self {
        let prefetcher = Prefetcher::new(Arc::clone(&core.buffers));
        Self {
            core,
            groups,
            prefetcher,
            found,
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Returns the block bitmap of a group.
    fn bitmap(&self, group: GroupNr) -> Option<&BitmapPlace> {
        Some(self.groups.get(group)?.place(Map::Blocks))
    }

    fn is_uninit(&self, group: GroupNr) -> bool {
        self.bitmap(group).is_some_and(BitmapPlace::is_uninit)
    }
}

impl GroupSource for Source {
    fn descriptor(&self, group: GroupNr) -> Descriptor {
        let counts = self
            .groups
            .get(group)
            .map(Group::counts)
            .unwrap_or_default();
        Descriptor {
            free: ClusterCount(counts.free_clusters),
            state: if self.is_uninit(group) {
                BitmapState::Uninit
            } else {
                BitmapState::Written
            },
        }
    }

    fn read_bitmap(&self, group: GroupNr, bitmap: &mut [u8]) -> std::result::Result<(), ReadError> {
        if self.is_uninit(group) {
            let implied_bitmap = implied_bitmap(&self.core, group, Map::Blocks);
            let implied_bitmap = implied_bitmap.map_err(read_error)?;
            let len = bitmap.len().min(implied_bitmap.len());
            bitmap[..len].copy_from_slice(&implied_bitmap[..len]);
            return Ok(());
        }
        descriptor::with_block_bitmap(&self.core, group, |bytes| {
            let len = bitmap.len().min(bytes.len());
            bitmap[..len].copy_from_slice(&bytes[..len]);
        })
        .map_err(read_error)
    }

    fn unusable(&self, group: GroupNr, why: fourscore_mballoc::Error) {
        self.groups.retire(group, Map::Blocks);
        self.found.add(why.into());
    }

    fn prefetch(&self, groups: &[GroupNr]) {
        let places = groups.iter().filter_map(|&group| self.bitmap(group));
        self.prefetcher.want(places.map(BitmapPlace::block));
    }

    fn has_arrived(&self, group: GroupNr) -> bool {
        let guard = epoch::pin();
        self.bitmap(group).is_none_or(|place| {
            place.is_uninit() || self.core.buffers.cached(place.block(), &guard).is_some()
        })
    }
}

/// With the injected fault `MarkAtClaim`: marks bits on disk that are only claimed.
pub(crate) fn mark_early(mount: &Mount, bits: &BitsChange) -> Result<()> {
    if !mount.core.faults.lacks(Sabotage::MarkAtClaim) {
        return Ok(());
    }
    let mut handle = mount.start(Credits(u32::try_from(bits.blocks().len()).unwrap_or(0)))?;
    let groups = mount.groups();
    let marked = groups
        .join(&mut handle, bits)
        .and_then(|()| groups.mark_uncounted(&mut handle, bits));
    handle.stop();
    if marked.is_ok() {
        mount.journal().commit()?;
    }
    Ok(())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
