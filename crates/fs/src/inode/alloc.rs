//! **Purpose.** Which inodes are free, and who gets them.
//!
//! **Model.** A group's inode bitmap is copied into memory when an inode of the group is first
//! asked for or freed. Claiming sets a bit there; the bitmap on disk changes in the handle of the
//! operation. The blocks of an inode table that were never used are zeroed before the first inode
//! in them is handed out, each in a small handle of its own, so that no operation reads or keeps
//! what the device held there.
//!
//! Where there is no log, a crash may leave a new name and the old inode of its number. So a number
//! that was freed is held back there until the transaction that freed it is durable.
//!
//! **Invariants.** An inode is claimed by one operation at a time. Where the memory says free, the
//! bitmap on disk does too; the reverse holds when nothing is claimed.
//!
//! **Locking.** One lock for each group; device I/O (the first look at a bitmap) and the handle
//! that zeroes a block happen under it. It comes right before handles.

use crate::core::Core;
use crate::group::descriptor;
use crate::mount::state::Mount;
use crate::txn::order;
use crate::{Error, Result};
use fourscore_block::{Structure, VerifiedAs};
use fourscore_journal::Credits;
use fourscore_mballoc::{Geometry, Kinship, Placement};
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, PhysBlock, Tid};
use fourscore_sync::atomic::Ordering;
use fourscore_sync::rank::Ranked;
use fourscore_sync::{CoreNr, Mutex, MutexGuard, PerCore, Sparse};

/// A core looks after so many numbers that it holds back whether they can be given out.
const HELD_NUMBERS: usize = 64;

/// An inode that is being taken or given back.
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
struct Used {
    /// `None` until somebody asks.
    words: Option<Box<[u64]>>,
    /// No free inode lies in front of this word.
    first_free_word: usize,
}

/// The inodes of all groups.
#[derive(Debug)]
pub(crate) struct Inodes {
    placement: Placement,
    groups: Sparse<Mutex<Used>>,
    /// Numbers that are held back, each with a transaction that may not be durable yet.
    held: PerCore<Mutex<Vec<(Tid, InodeNr)>>>,
}

/// For what an inode is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// For a directory.
    Directory(Kinship),
    /// For anything else.
    File,
}

impl Inodes {
    pub(crate) fn new(core: &Core, geometry: &Geometry) -> Self {
        let groups = core.geometry().groups();
        Self {
            placement: Placement::new(geometry, core.geometry().inodes_per_group()),
            groups: Sparse::new(groups as usize),
            held: PerCore::default(),
        }
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Claims a free inode for what is made in a directory of the group `parent`.
    ///
    /// # Errors
    /// `NoSpace` if there is none.
    pub(crate) fn claim(&self, mount: &Mount, parent: GroupNr, want: Want) -> Result<InodeClaim> {
        match self.claim_free(mount, parent, want) {
            Err(Error::NoSpace) if self.held.iter().any(|held| !held.lock().is_empty()) => {
                mount.journal().commit()?;
                let held = self.held.iter();
                held.for_each(|held| self.give_out(mount, &mut held.lock()));
                self.claim_free(mount, parent, want)
            }
            claimed => claimed,
        }
    }

    fn claim_free(&self, mount: &Mount, parent: GroupNr, want: Want) -> Result<InodeClaim> {
        let is_directory = want != Want::File;
        let counts = mount.groups();
        if let Want::Directory(kinship) = want
            && let Some(group) = self.placement.for_directory(&**counts, parent, kinship)
            && let Some(claim) = self.claim_in(mount, group, is_directory)?
        {
            return Ok(claim);
        }
        for group in self.placement.for_file(parent, CoreNr::current()) {
            if counts.free_inodes(group) == 0 {
                continue;
            }
            if let Some(claim) = self.claim_in(mount, group, is_directory)? {
                return Ok(claim);
            }
        }
        Err(Error::NoSpace)
    }

    fn claim_in(
        &self,
        mount: &Mount,
        group: GroupNr,
        is_directory: bool,
    ) -> Result<Option<InodeClaim>> {
        let Some(used) = self.groups.get(group.0 as usize) else {
            return Ok(None);
        };
        let mut used = locked(used);
        used.look(&mount.core, group)?;
        let Some(index) = used.first_free() else {
            return Ok(None);
        };
        let Some(nr) = mount.core.geometry().inode_at(group, GroupOffset(index)) else {
            return Ok(None);
        };
        make_table_ready(mount, group, index)?;
        used.set(index, true);
        Ok(Some(InodeClaim {
            nr,
            group,
            index,
            is_directory,
        }))
    }

    /// Claims the inode `nr`, which is free.
    pub(crate) fn take(
        &self,
        mount: &Mount,
        nr: InodeNr,
        is_directory: bool,
    ) -> Result<InodeClaim> {
        let (claim, mut used) = self.claim_of(&mount.core, nr, is_directory)?;
        make_table_ready(mount, claim.group, claim.index)?;
        used.set(claim.index, true);
        Ok(claim)
    }

    /// The claim of an inode that is in use, to free it. It stays used in memory until
    /// [`Inodes::freed`], whatever becomes of its bit on disk before.
    pub(crate) fn of(&self, core: &Core, nr: InodeNr, is_directory: bool) -> Result<InodeClaim> {
        let (claim, mut used) = self.claim_of(core, nr, is_directory)?;
        // Who looks at the bitmap first after the bit was cleared would take the inode for free.
        used.look(core, claim.group)?;
        Ok(claim)
    }

    /// The claim of the inode `nr`, and the inodes of its group, locked.
    fn claim_of(
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

    /// Lets an inode be claimed again that was freed: at once, if a crash takes it back with
    /// whatever is made of its number.
    pub(crate) fn freed(&self, nr: InodeNr, mount: &Mount) {
        if mount.journal().has_log() {
            return self.give_back(nr, &mount.core);
        }
        let mut held = self.held.mine().lock();
        held.push((mount.journal().running_tid(), nr));
        if held.len().is_multiple_of(HELD_NUMBERS) {
            self.give_out(mount, &mut held);
        }
    }

    /// Lets those be claimed that were held back long enough.
    fn give_out(&self, mount: &Mount, held: &mut Vec<(Tid, InodeNr)>) {
        let durable = mount.journal().committed_tid();
        held.retain(|&(tid, nr)| {
            let stays = tid.is_after(durable);
            if !stays {
                self.give_back(nr, &mount.core);
            }
            stays
        });
    }

    /// Lets an inode be claimed again.
    pub(crate) fn give_back(&self, nr: InodeNr, core: &Core) {
        if let Some((group, index)) = core.geometry().inode_group(nr)
            && let Some(used) = self.groups.get(group.0 as usize)
        {
            locked(used).set(index.0, false);
        }
    }
}

/// The inodes of a group, for nobody else.
fn locked(used: &Mutex<Used>) -> Ranked<MutexGuard<'_, Used>> {
    order::INODE_GROUP
        .only()
        .lock(|| used.try_lock(), || used.lock())
}

impl Used {
    /// Copies the bitmap of `group`, whose inodes these are, unless that was done.
    fn look(&mut self, core: &Core, group: GroupNr) -> Result<()> {
        if self.words.is_none() {
            self.words = Some(words(core, group)?);
        }
        Ok(())
    }

    fn first_free(&mut self) -> Option<u32> {
        let words = self.words.as_ref()?;
        let rest = words.get(self.first_free_word..)?;
        let found = rest.iter().position(|&word| word != u64::MAX)?;
        self.first_free_word += found;
        let bit = words.get(self.first_free_word)?.trailing_ones();
        u32::try_from(self.first_free_word * 64)
            .ok()
            .map(|first| first + bit)
    }

    fn set(&mut self, index: u32, is_used: bool) {
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

/// The inode bitmap of a group, with what may not be handed out as used.
fn words(core: &Core, group: GroupNr) -> Result<Box<[u64]>> {
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
        // Reserved numbers and those that there are not lie at an end.
        if !is_taken(at * 64) && !is_taken(at * 64 + 63) {
            return used;
        }
        let taken = (0..64).filter(|bit| is_taken(at * 64 + bit));
        taken.fold(used, |word, bit| word | 1 << bit)
    };
    Ok((0..bits.div_ceil(64)).map(word).collect())
}

/// Zeroes the blocks of the inode table up to the one that holds inode `index`, as far as they were
/// never used.
fn make_table_ready(mount: &Mount, group: GroupNr, index: u32) -> Result<()> {
    let Some(state) = mount.groups().get(group).map(|group| group.inodes()) else {
        return Ok(());
    };
    let needed = index / mount.core.geometry().inodes_per_block() + 1;
    let ready = state.table_ready.load(Ordering::Relaxed);
    for nth in ready..needed {
        let block = PhysBlock(state.table.0 + u64::from(nth));
        let tag = VerifiedAs::new(Structure::InodeTable, InodeNr(0));
        loop {
            let buffer = mount.core.buffers.create(block);
            let mut handle = mount.start(Credits(1))?;
            if handle.modify(&buffer, tag, |bytes| bytes.fill(0)).is_ok() {
                break;
            }
        }
        state.table_ready.store(nth + 1, Ordering::Relaxed);
    }
    Ok(())
}
