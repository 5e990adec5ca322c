//! **Purpose.** Inserts names into the name cache (`dir::name_cache`), and removes those that
//! *depart*: that are removed from their directory or made to refer to another inode.
//!
//! **Invariants.** A departure begins before the first block changes, and ends when all readers see
//! the change. Names of inline, encrypted and case-folding directories are not cached.
//!
//! **Locking.** A thread that makes a name depart holds the directory's lock, exclusive or shared.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::dirent::MAX_NAME_BYTES;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::Arc;
use fourscore_sync::epoch::Guard;

use crate::core::Core;
use crate::dir::name_cache::{Moment, NameHash, NameKey};
use crate::inode::cache;
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::cell::InodeCell;

/// A name that departs. The thread that makes it depart holds the lock of its directory, exclusive
/// or shared, so that the directory stays in memory.
#[derive(Debug)]
pub(crate) struct Departure {
    dir: Arc<InodeCell>,
    hash: NameHash,
}

impl Departure {
    /// Removes the name from the name cache. Until `Departure::end` no thread can cache it.
    pub(crate) fn begin(&self, core: &Core) {
        self.dir.departures().begin();
        core.names.forget(self.hash);
    }

    /// Ends the departure: all readers can see the change of the name now.
    pub(crate) fn end(&self) {
        self.dir.departures().end();
    }
}

/// Returns the key of a name of `dir` in the name cache; `None` for a name that is not cached.
pub(crate) fn name_key<'n>(core: &Core, dir: &CachedInode, name: &'n [u8]) -> Option<NameKey<'n>> {
    let flags = dir.on_disk().flags();
    let is_as_stored = !flags.intersects(InodeFlags::ENCRYPT_FL | InodeFlags::CASEFOLD_FL);
    let is_name = name.len() <= MAX_NAME_BYTES && !matches!(name, b"." | b"..");
    let is_kept = is_as_stored && is_name && dir.layout() != Layout::Inline;
    is_kept.then(|| core.names.key(dir.nr(), name))
}

/// Caches the result of a search of the directory that began at `moment`.
pub(crate) fn keep_name(
    core: &Core,
    key: &NameKey<'_>,
    inode: InodeNr,
    moment: Moment,
    guard: &Guard,
) {
    core.names.put(key, inode, || {
        let dir = core.inodes.get(&key.dir, guard);
        dir.is_some_and(|dir| dir.departures().moment() == Some(moment))
    });
}

/// Returns the departure of a name of the directory `dir`, which has blocks.
pub(crate) fn departure(core: &Core, dir: InodeNr, name: &[u8]) -> crate::Result<Departure> {
    Ok(Departure {
        dir: cache::load_cell(core, dir)?,
        hash: core.names.key(dir, name).hash,
    })
}
