//! **Purpose.** The inode cache: finds inodes by number, loads them on a miss, and pins them.
//!
//! **Model.** Loading an inode reads the descriptor of its group and one block of the inode table,
//! verifies the checksum, and decodes the inode ([`crate::inode::cached`]).
//!
//! **Locking.** A hit writes nothing. A miss takes the lock of the cache's shard to insert; the
//! lock is never held while the table is read, and neither is the guard of a reader
//! ([`crate::guard`]).

use fourscore_ondisk::inode::{Inode, InodeFlags};
use fourscore_ondisk::{Corrupt, InodeNr};
use fourscore_sync::Arc;
use fourscore_sync::epoch;

use crate::core::Core;
use crate::group::descriptor;
use crate::guard::{Guard, Missed, with_guard};
use crate::inode::cached::CachedInode;
use crate::inode::cell::{InodeCell, Pinned};
use crate::mount::fast_commit::{InodeChange, InodePatch};
use crate::txn::fast_commit::FastCommits;
use crate::txn::fast_commit::time::Time;
use crate::{Error, Result};

/// Returns inode `nr` for a scan, which reads each inode once; does not insert it into the cache.
pub(crate) fn uncached_inode(core: &Core, nr: InodeNr) -> Result<CachedInode> {
    let inode = load_inode(core, nr)?;
    // A deleted inode keeps its type and has no link. An orphan looks the same, but it is in memory
    // as long as it is open.
    if inode.links_count() == 0 && inode.dtime() != 0 {
        return Err(Error::NotFound);
    }
    CachedInode::new(inode, core.superblock())
}
/// See [`Fs::holds_value`](crate::Fs::holds_value).
pub(crate) fn holds_value(core: &Core, inode: InodeNr) -> Result<bool> {
    with_guard(core, |guard| {
        let found = any_inode(core, inode, guard)?;
        Ok(found.has(InodeFlags::EA_INODE_FL))
    })
}

/// Returns the inode with this number, from the cache or the disk; it lives as long as the guard.
///
/// # Errors
/// `NotFound` if no such inode is in use, or if it holds the value of an attribute.
pub(crate) fn inode<'g>(core: &Core, nr: InodeNr, guard: &'g Guard) -> Result<&'g CachedInode> {
    any_inode(core, nr, guard)?.not_a_value()
}

/// Like `inode`, but also accepts an inode that holds the value of an attribute.
pub(crate) fn any_inode<'g>(core: &Core, nr: InodeNr, guard: &'g Guard) -> Result<&'g CachedInode> {
    cell(core, nr, guard)?.version(guard)
}

/// Returns a copy of the current version, for callers that use the inode without a guard.
pub(crate) fn inode_copy(core: &Core, nr: InodeNr) -> Result<CachedInode> {
    with_guard(core, |guard| inode(core, nr, guard).cloned())
}

/// Returns the cell of inode `nr`, which lives as long as the guard.
///
/// # Errors
/// The inode is not in memory and was noted as missed; `NotFound`, `Corrupt`, `Io`.
pub(crate) fn cell<'g>(core: &Core, nr: InodeNr, guard: &'g Guard) -> Result<&'g InodeCell> {
    loop {
        if let Some(cell) = core.inodes.get(&nr, guard) {
            return Ok(cell);
        }
        guard.miss(Missed::Inode(nr, |core, nr| load_cell(core, nr).map(drop)))?;
        // The next iteration finds it, unless the cache was so short of space that it was evicted
        // again.
        epoch::knowingly_pinned(|| load_cell(core, nr))?;
    }
}

pub(crate) fn load_cell(core: &Core, nr: InodeNr) -> Result<Arc<InodeCell>> {
    core.inodes.get_or_try_load(&nr, || {
        let cached = uncached_inode(core, nr)?;
        let weight_bytes = cached.weight_bytes();
        // It may have left memory with changes that are not durable yet.
        let live = core.live.as_ref();
        let last = live.map(|live| live.journal.running_tid());
        let fast_commits = live.and_then(|live| live.fast_commits.as_deref());
        let time = fast_commits.map_or_else(Time::default, FastCommits::now);
        let cell = InodeCell::new(cached, last, time, &core.lives);
        Ok((Arc::new(cell), weight_bytes))
    })
}

/// Pins inode `nr` in memory, to change it or to keep it open.
///
/// # Errors
/// As `inode`.
pub(crate) fn pin_inode(core: &Core, nr: InodeNr) -> Result<Pinned> {
    let pinned = pin_any_inode(core, nr)?;
    if let Ok(inode) = pinned.version(&epoch::pin()) {
        inode.not_a_value()?;
    }
    Ok(pinned)
}

/// Like `pin_inode`, but also accepts an inode that holds the value of an attribute.
pub(crate) fn pin_any_inode(core: &Core, nr: InodeNr) -> Result<Pinned> {
    loop {
        match Pinned::on(load_cell(core, nr)?) {
            Ok(pinned) => return Ok(pinned),
            Err(cell) => drop_cell(core, nr, &cell),
        }
    }
}

/// Pins the directory `nr` in memory. The inode's type is checked before any thread takes its lock,
/// since the lock order depends on the type; a pin keeps the number from being reused for another
/// inode.
///
/// # Errors
/// `NotADirectory`; as [`Fs::stat`](crate::Fs::stat).
pub(crate) fn pin_directory(core: &Core, nr: InodeNr) -> Result<Pinned> {
    let pinned = pin_inode(core, nr)?;
    pinned.version(&epoch::pin())?.as_directory()?;
    Ok(pinned)
}

/// Inserts an inode that was just created into the cache.
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
        // A cell left from an earlier inode with this number.
        drop_cell(core, nr, &there);
    }
}

/// Removes a deleted inode from the cache.
pub(crate) fn drop_pinned(core: &Core, nr: InodeNr, pinned: &Pinned) {
    drop_cell(core, nr, &pinned.0);
}

/// Removes a retired or deleted inode from the cache.
fn drop_cell(core: &Core, nr: InodeNr, cell: &Arc<InodeCell>) {
    core.inodes.remove_if(&nr, |found| Arc::ptr_eq(found, cell));
}

/// Loads inode `nr` as fast commits left it, or from its table.
pub(crate) fn load_inode(core: &Core, nr: InodeNr) -> Result<Inode> {
    match core.inode_change(nr) {
        None => inode_on_disk(core, nr, None),
        Some(InodeChange::Patched(patch)) => inode_on_disk(core, nr, Some(patch)),
        Some(InodeChange::Deleted) => Err(Error::NotFound),
    }
}

/// Reads inode `nr` from its table, and applies `patch`.
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
