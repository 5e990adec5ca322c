//! **Purpose.** Names that enter and leave the name cache.

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

/// A name that departs. Whoever has it depart holds the lock of its directory, alone or shared, so
/// that the directory stays in memory.
#[derive(Debug)]
pub(crate) struct Departure {
    dir: Arc<InodeCell>,
    hash: NameHash,
}

impl Departure {
    /// From here on the name is not known, and nobody gets to know it.
    pub(crate) fn begin(&self, core: &Core) {
        self.dir.departures().begin();
        core.names.forget(self.hash);
    }

    /// What has become of it can be seen by everybody.
    pub(crate) fn end(&self) {
        self.dir.departures().end();
    }
}

/// What a name in `dir` is looked for by; `None` if it is of those that are not kept.
pub(crate) fn name_key<'n>(core: &Core, dir: &CachedInode, name: &'n [u8]) -> Option<NameKey<'n>> {
    let flags = dir.on_disk().flags();
    let is_as_stored = !flags.intersects(InodeFlags::ENCRYPT_FL | InodeFlags::CASEFOLD_FL);
    let is_name = name.len() <= MAX_NAME_BYTES && !matches!(name, b"." | b"..");
    let is_kept = is_as_stored && is_name && dir.layout() != Layout::Inline;
    is_kept.then(|| core.names.key(dir.nr(), name))
}

/// Keeps what a search has found that began at `moment` of the directory.
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

/// A name of the directory `dir`, in blocks, that is to depart.
pub(crate) fn departure(core: &Core, dir: InodeNr, name: &[u8]) -> crate::Result<Departure> {
    Ok(Departure {
        dir: cache::load_cell(core, dir)?,
        hash: core.names.key(dir, name).hash,
    })
}
