//! **Purpose.** The inode cache: inodes are found by number, loaded on a miss, and pinned.
//!
//! **Model.** Loading an inode reads the descriptor of its group and one block of the inode table,
//! verifies the checksum, and decodes it ([`crate::inode::cached`]).
//!
//! **Locking.** A hit writes nothing. A miss takes the lock of the cache's shard to insert, never
//! across the read of the table.

use fourscore_ondisk::inode::{Inode, InodeFlags};
use fourscore_ondisk::{Corrupt, InodeNr};
use fourscore_sync::Arc;
use fourscore_sync::epoch::{self, Guard};

use crate::core::Core;
use crate::group::descriptor;
use crate::inode::cached::CachedInode;
use crate::inode::cell::{InodeCell, Pinned};
use crate::mount::fast_commit::{InodeChange, InodePatch};
use crate::{Error, Result};

/// Inode `nr` for a scan that will not come back to it.
pub(crate) fn uncached_inode(core: &Core, nr: InodeNr) -> Result<CachedInode> {
    let inode = load_inode(core, nr)?;
    // One that was deleted keeps its type, without a link. An orphan looks the same, but is in
    // memory as long as somebody has it open.
    if inode.links_count() == 0 && inode.dtime() != 0 {
        return Err(Error::NotFound);
    }
    CachedInode::new(inode, core.superblock())
}
/// See [`Fs::holds_value`](crate::Fs::holds_value).
pub(crate) fn holds_value(core: &Core, inode: InodeNr) -> Result<bool> {
    let guard = epoch::pin();
    let found = any_inode(core, inode, &guard)?;
    Ok(found.has(InodeFlags::EA_INODE_FL))
}

/// The inode with this number, from the cache or the disk; it lives as long as the guard.
///
/// # Errors
/// `NotFound` if no such inode is in use; `Corrupt` for one that holds the value of an
/// attribute.
pub(crate) fn inode<'g>(core: &Core, nr: InodeNr, guard: &'g Guard) -> Result<&'g CachedInode> {
    any_inode(core, nr, guard)?.not_a_value()
}

/// The same, also for an inode that holds the value of an attribute.
pub(crate) fn any_inode<'g>(core: &Core, nr: InodeNr, guard: &'g Guard) -> Result<&'g CachedInode> {
    cell(core, nr, guard)?.version(guard)
}

/// A copy of the inode as it is now, for callers that do more than look at it.
pub(crate) fn inode_copy(core: &Core, nr: InodeNr) -> Result<CachedInode> {
    inode(core, nr, &epoch::pin()).cloned()
}

/// The cell of inode `nr`, which lives as long as the guard.
pub(crate) fn cell<'g>(core: &Core, nr: InodeNr, guard: &'g Guard) -> Result<&'g InodeCell> {
    loop {
        if let Some(cell) = core.inodes.get(&nr, guard) {
            return Ok(cell);
        }
        load_cell(core, nr)?;
        // Found by the next turn, unless the cache was so short of room that it left again.
    }
}

pub(crate) fn load_cell(core: &Core, nr: InodeNr) -> Result<Arc<InodeCell>> {
    core.inodes.get_or_try_load(&nr, || {
        let cached = uncached_inode(core, nr)?;
        let weight_bytes = cached.weight_bytes();
        // It may have left memory with changes that are not durable yet.
        let live = core.live.as_ref();
        let last = live.map(|live| live.journal.running_tid());
        let cell = InodeCell::new(cached, last, &core.lives);
        Ok((Arc::new(cell), weight_bytes))
    })
}

/// Keeps inode `nr` in memory, to change it or to have it open.
///
/// # Errors
/// As `Fs::inode`.
pub(crate) fn pin_inode(core: &Core, nr: InodeNr) -> Result<Pinned> {
    let pinned = pin_any_inode(core, nr)?;
    if let Ok(inode) = pinned.version(&epoch::pin()) {
        inode.not_a_value()?;
    }
    Ok(pinned)
}

/// The same, also for an inode that holds the value of an attribute.
pub(crate) fn pin_any_inode(core: &Core, nr: InodeNr) -> Result<Pinned> {
    loop {
        match Pinned::on(load_cell(core, nr)?) {
            Ok(pinned) => return Ok(pinned),
            Err(cell) => drop_cell(core, nr, &cell),
        }
    }
}

/// Keeps the directory `nr` in memory. Its kind is looked at before anybody locks it: the order
/// of locks depends on it, and a pin keeps the number from leading to something else.
///
/// # Errors
/// `NotADirectory`; as [`Fs::stat`](crate::Fs::stat).
pub(crate) fn pin_directory(core: &Core, nr: InodeNr) -> Result<Pinned> {
    let pinned = pin_inode(core, nr)?;
    pinned.version(&epoch::pin())?.as_directory()?;
    Ok(pinned)
}

/// Lets an inode be found that was just made.
pub(crate) fn enter_pinned(core: &Core, nr: InodeNr, pinned: &Pinned) {
    let cell = &pinned.0;
    let weight_bytes = cell
        .version(&epoch::pin())
        .map_or(0, CachedInode::weight_bytes);
    loop {
        let there = core.inodes.insert(nr, Arc::clone(cell), weight_bytes);
        if Arc::ptr_eq(&there, cell) {
            return;
        }
        // Left from an earlier life of the number.
        drop_cell(core, nr, &there);
    }
}

/// Takes a deleted inode out of the cache.
pub(crate) fn drop_pinned(core: &Core, nr: InodeNr, pinned: &Pinned) {
    drop_cell(core, nr, &pinned.0);
}

/// Takes a retired or deleted inode out of the cache.
fn drop_cell(core: &Core, nr: InodeNr, cell: &Arc<InodeCell>) {
    core.inodes.remove_if(&nr, |found| Arc::ptr_eq(found, cell));
}

/// Inode `nr` as fast commits left it, or from its table.
pub(crate) fn load_inode(core: &Core, nr: InodeNr) -> Result<Inode> {
    match core.inode_change(nr) {
        None => inode_on_disk(core, nr, None),
        Some(InodeChange::Patched(patch)) => inode_on_disk(core, nr, Some(patch)),
        Some(InodeChange::Deleted) => Err(Error::NotFound),
    }
}

/// Reads inode `nr` from its table, and changes it as `patch` says.
fn inode_on_disk(core: &Core, nr: InodeNr, patch: Option<&InodePatch>) -> Result<Inode> {
    let Some((group, index)) = core.geometry().inode_group(nr) else {
        return Err(Error::NotFound);
    };
    let place = core
        .geometry()
        .inode_place(descriptor::inode_table(core, group)?, index);
    let parse = |block: &[u8]| {
        let bytes = block.get(place.offset_bytes..).unwrap_or_default();
        match patch {
            None => Inode::parse(bytes, nr, core.superblock()),
            Some(patch) => patch
                .apply(bytes, nr, core.superblock())
                .and_then(|bytes| Inode::parse(&bytes, nr, core.superblock())),
        }
    };
    let inode = descriptor::look_at_inode_table(core, group, place.block, parse)?;
    Ok(inode.map_err(|error| Corrupt::from(error).in_inode(nr).in_block(place.block))?)
}
