//! **Purpose.** What a directory says of itself when names in several of its leaves change at once.
//!
//! **Model.** Who changes a name alone plans what the directory's inode will be. Who does it beside
//! others ([`crate::dir::leaf`]) cannot, since others change that inode too: so it is done when the
//! plan is carried out, in the slot as it is by then. Times go forward, the version goes up, the
//! count of links changes; nothing else of a directory is changed beside others.
//!
//! **Invariants.** Readers are shown versions in the order in which the slot took them.
//!
//! **Locking.** The lock of the block of the inode table, under which the slot changes, is held
//! until the new version is shown.

use fourscore_ondisk::features::RoCompat;
use fourscore_ondisk::inode::{InodeMut, RawInode};
use fourscore_ondisk::{Inode, InodeNr};
use zerocopy::FromBytes;

use crate::core::Core;
use crate::inode::cached::CachedInode;
use crate::inode::cell::Pinned;
use crate::mount::clock::now;

/// A directory in which a name changes beside others.
#[derive(Debug)]
pub(crate) struct Touch<'p> {
    pub(crate) nr: InodeNr,
    pub(crate) dir: &'p Pinned,
    /// How many more names lead to it.
    pub(crate) links: i32,
}

impl Touch<'_> {
    /// Changes the slot at the start of `bytes`, and shows what has become of it.
    pub(crate) fn make(&self, bytes: &mut [u8], core: &Core) {
        // Shared, the directory is neither removed nor given another generation.
        let Ok(seed) = self.dir.checksum_seed() else {
            return;
        };
        let before = RawInode::ref_from_prefix(bytes);
        let before = before.map_or(0, |(raw, _)| raw.i_links_count.get());
        // The directory was read from this slot, and nobody else changes its length or its form.
        let Ok(mut slot) = InodeMut::of(bytes, core.superblock()) else {
            return;
        };
        let now = now();
        slot.set_mtime(now);
        slot.set_ctime(now);
        slot.set_links_count(links_after(core, before, self.links));
        // Where there is no room, Linux leaves it as it is, too.
        let _ = slot.expand_extra_isize();
        slot.raise_version();
        if let Ok(inode) = Inode::sealed_by(bytes, (self.nr, seed), core.superblock())
            && let Ok(version) = CachedInode::new(inode, core.superblock())
        {
            self.dir.publish(Some(version));
        }
    }
}

/// A directory's link count after a change; 1 means "too many to count".
pub(crate) fn links_after(core: &Core, before: u16, change: i32) -> u16 {
    if before == 1 && has_dir_nlink(core) {
        return 1;
    }
    let after = i32::from(before).saturating_add(change);
    if after > i32::from(LINKS_MAX) && has_dir_nlink(core) {
        return 1;
    }
    u16::try_from(after).unwrap_or(u16::MAX)
}

pub(crate) fn has_dir_nlink(core: &Core) -> bool {
    let features = core.superblock().features();
    features.ro_compat.contains(RoCompat::DIR_NLINK)
}

/// The most names an inode can have.
pub(crate) const LINKS_MAX: u16 = 65_000;
