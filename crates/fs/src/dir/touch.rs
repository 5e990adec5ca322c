//! **Purpose.** Updates the inode of a directory (times, version, link count) when names in several
//! of its leaves change concurrently.
//!
//! **Model.** An operation that holds a directory exclusively plans the new state of the
//! directory's inode. An operation that shares the directory ([`crate::dir::leaf`]) cannot plan it,
//! since other threads change that inode too. So the inode is updated when the plan is applied, in
//! the slot as it is by then. The times advance, the version is raised, the link count changes;
//! nothing else of a directory is changed while it is shared.
//!
//! **Invariants.** Versions are published to readers in the order in which the slot changed. A
//! directory that has a name has a link count other than 0, however many subdirectories leave it.
//!
//! **Locking.** The lock of the block of the inode table, under which the slot changes, is held
//! until the new version is published.

use fourscore_ondisk::features::RoCompat;
use fourscore_ondisk::inode::{InodeMut, RawInode};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{Inode, InodeNr};
use zerocopy::FromBytes;

use crate::core::Core;
use crate::inode::cached::CachedInode;
use crate::inode::cell::Pinned;
use crate::mount::clock::now;

/// A directory in which a name changes while other threads change other names.
#[derive(Debug)]
pub(crate) struct Touch<'p> {
    pub(crate) nr: InodeNr,
    pub(crate) dir: &'p Pinned,
    /// How many more names refer to it; negative for fewer.
    pub(crate) links: i32,
}

impl Touch<'_> {
    /// Changes the slot at the start of `bytes`, and publishes the new version of the directory.
    pub(crate) fn make(&self, bytes: &mut [u8], core: &Core) {
        // While it is shared, the directory is neither removed nor given another generation.
        let Ok(seed) = self.dir.checksum_seed() else {
            return;
        };
        let before = RawInode::ref_from_prefix(bytes);
        let before = before.map_or(0, |(raw, _)| raw.i_links_count.get());
        // The directory was read from this slot, and no other thread changes its length or its
        // layout.
        let Ok(mut slot) = InodeMut::of(bytes, core.superblock()) else {
            return;
        };
        let now = now();
        slot.set_mtime(now);
        slot.set_ctime(now);
        slot.set_links_count(links_after(core.superblock(), before, self.links));
        // If there is no space, Linux leaves it as it is, too.
        let _ = slot.expand_extra_isize();
        slot.raise_version();
        if let Ok(inode) = Inode::sealed_by(bytes, self.nr, seed, core.superblock())
            && let Ok(version) = CachedInode::new(inode, core.superblock())
        {
            self.dir.publish(Some(version));
        }
    }
}

/// Returns the link count after `change` of a directory that keeps its name. It is never 0, which
/// would delete the directory:
/// - 1 means "too many to count" and stays, also if the feature `dir_nlink` was switched off since.
/// - A count that is too low, as other programs may have left it, is not lowered below 2.
pub(crate) fn links_after(superblock: &Superblock, before: u16, change: i32) -> u16 {
    if before == 1 || (change < 0 && before <= 2) {
        return before;
    }
    let after = i32::from(before).saturating_add(change);
    if after > i32::from(LINKS_MAX) && has_dir_nlink(superblock) {
        return 1;
    }
    u16::try_from(after.max(2)).unwrap_or(u16::MAX)
}

pub(crate) fn has_dir_nlink(superblock: &Superblock) -> bool {
    let features = superblock.features();
    features.ro_compat.contains(RoCompat::DIR_NLINK)
}

/// The most names an inode can have.
pub(crate) const LINKS_MAX: u16 = 65_000;
