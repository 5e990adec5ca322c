//! **Purpose.** The free inodes of each group, in memory.
//!
//! **Not here.** Choosing and claiming one (`crate::inode::alloc`).
//!
//! **Invariants.** A bit is set if the inode is used on disk, reserved, or claimed. The copy of a
//! group's bitmap is made when the group is first needed.
//!
//! **Locking.** One lock for each group; reading the bitmap happens under it.

use fourscore_mballoc::{Geometry, Placement};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, GroupNr, GroupOffset, InodeNr, Tid};
use fourscore_sync::rank::Ranked;
use fourscore_sync::{Mutex, MutexGuard, PerCore, Sparse, Versions};

use crate::core::Core;
use crate::group::descriptor;
use crate::group::table::Map;
use crate::txn::order;
use crate::{Error, Result};

/// An inode that is being allocated or freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeClaim {
    pub(crate) nr: InodeNr,
    pub(crate) group: GroupNr,
    /// Its number within the group, from 0.
    pub(crate) index: u32,
    pub(crate) is_directory: bool,
}

/// The inodes of one group: bit set = used or claimed.
#[derive(Debug, Default)]
pub(crate) struct Used {
    /// `None` until it is first needed.
    words: Option<Box<[u64]>>,
    /// No free inode lies before this word.
    first_free_word: usize,
    /// Whether the bitmap was found corrupt: no inode of the group is allocated or freed.
    is_damaged: bool,
}

/// The inodes of all groups.
#[derive(Debug)]
pub(crate) struct Inodes {
    placement: Versions<Placement>,
    pub(crate) groups: Sparse<Mutex<Used>>,
    /// Numbers that are held back, each with a transaction that may not be durable yet.
    pub(crate) held: PerCore<Mutex<Vec<(Tid, InodeNr)>>>,
}

impl Inodes {
    /// Returns the inodes of a file system that can grow to `room` groups.
    pub(crate) fn new(core: &Core, geometry: &Geometry, room: u32) -> Self {
        Self {
            placement: Versions::new(placement_in(core, geometry)),
            groups: Sparse::new(room as usize),
            held: PerCore::default(),
        }
    }

    pub(crate) fn placement(&self) -> &Placement {
        self.placement.get()
    }

    /// Lets new inodes be placed in all groups of `geometry`.
    pub(crate) fn grow(&self, core: &Core, geometry: &Geometry) {
        self.placement.publish(placement_in(core, geometry));
    }

    /// Returns the claim of an inode that is in use, to free it. The inode stays used in memory
    /// until [`alloc::freed`](crate::inode::alloc::freed), whatever happens to its bit on disk
    /// before.
    pub(crate) fn of(&self, core: &Core, nr: InodeNr, is_directory: bool) -> Result<InodeClaim> {
        let (claim, mut used) = self.claim_of(core, nr, is_directory)?;
        // A thread that first copied the bitmap after the bit was cleared would see the inode as
        // free.
        used.look(core, claim.group)?;
        Ok(claim)
    }

    /// Returns the claim of the inode `nr`, and the locked state of its group.
    pub(crate) fn claim_of(
        &self,
        core: &Core,
        nr: InodeNr,
        is_directory: bool,
    ) -> Result<(InodeClaim, Ranked<MutexGuard<'_, Used>>)> {
        let Some((group, index)) = core.geometry().inode_group(nr) else {
            return Err(Error::NotFound);
        };
        let Some(used) = self.groups.get(group.0 as usize) else {
            return Err(Error::NotFound);
        };
        let claim = InodeClaim {
            nr,
            group,
            index: index.0,
            is_directory,
        };
        Ok((claim, locked(used)))
    }

    /// Makes an inode available again.
    pub(crate) fn give_back(&self, nr: InodeNr, core: &Core) {
        if let Some((group, index)) = core.geometry().inode_group(nr)
            && let Some(used) = self.groups.get(group.0 as usize)
        {
            locked(used).set(index.0, false);
        }
    }
}

fn placement_in(core: &Core, geometry: &Geometry) -> Placement {
    Placement::new(geometry, core.geometry().inodes_per_group())
}

/// Locks the inodes of a group.
pub(crate) fn locked(used: &Mutex<Used>) -> Ranked<MutexGuard<'_, Used>> {
    order::INODE_GROUP
        .only()
        .lock(|| used.try_lock(), || used.lock())
}

impl Used {
    /// Copies the bitmap of `group`, to which these inodes belong, unless that was done before.
    ///
    /// # Errors
    /// `Corrupt`: the first caller gets what is wrong with the bitmap, later ones only that the
    /// group's inodes are not used; `Io`.
    pub(crate) fn look(&mut self, core: &Core, group: GroupNr) -> Result<()> {
        if self.is_damaged {
            let damaged = Corrupt::from(RelationError::InodesOutOfUse);
            return Err(damaged.in_group(group).into());
        }
        if self.words.is_none() {
            let words = words(core, group).inspect_err(|error| {
                if let (Error::Corrupt(_), Some(live)) = (error, &core.live) {
                    self.is_damaged = true;
                    live.groups.retire(group, Map::Inodes);
                }
            })?;
            self.words = Some(words);
        }
        Ok(())
    }

    /// Whether the bitmap was found corrupt.
    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    pub(crate) fn first_free(&mut self) -> Option<u32> {
        let words = self.words.as_ref()?;
        let rest = words.get(self.first_free_word..)?;
        let found = rest.iter().position(|&word| word != u64::MAX)?;
        self.first_free_word += found;
        let bit = words.get(self.first_free_word)?.trailing_ones();
        u32::try_from(self.first_free_word * 64)
            .ok()
            .map(|first| first + bit)
    }

    pub(crate) fn set(&mut self, index: u32, is_used: bool) {
        let at = index as usize / 64;
        let Some(word) = self.words.as_mut().and_then(|words| words.get_mut(at)) else {
            return;
        };
        let bit = 1 << (index % 64);
        if is_used {
            *word |= bit;
        } else {
            *word &= !bit;
            self.first_free_word = self.first_free_word.min(at);
        }
    }
}

/// Reads the inode bitmap of a group; inodes that may not be allocated count as used.
pub(crate) fn words(core: &Core, group: GroupNr) -> Result<Box<[u64]>> {
    let bitmap = descriptor::inode_bitmap(core, group)?;
    let bits = core.geometry().inodes_per_group();
    let first = core.superblock().first_inode();
    let is_taken = |index: u32| {
        let nr = core.geometry().inode_at(group, GroupOffset(index));
        index >= bits || nr.is_none_or(|nr| nr < first)
    };
    let bytes = bitmap.as_bytes().chunks(8);
    let on_disk = bytes.map(|bytes| {
        let mut word = [0xff; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    let mut on_disk = on_disk.chain(std::iter::repeat(u64::MAX));
    let word = |at: u32| {
        let used = on_disk.next().unwrap_or(u64::MAX);
        // Reserved and nonexistent numbers lie at one end of the bitmap.
        if !is_taken(at * 64) && !is_taken(at * 64 + 63) {
            return used;
        }
        let taken = (0..64).filter(|bit| is_taken(at * 64 + bit));
        taken.fold(used, |word, bit| word | 1 << bit)
    };
    Ok((0..bits.div_ceil(64)).map(word).collect())
}
