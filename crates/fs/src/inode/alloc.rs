//! **Purpose.** Allocates inodes: finds free inodes and claims them.
//!
//! **Model.** A group's inode bitmap is copied into memory when an inode of the group is first
//! claimed or freed. Claiming sets a bit in the copy; the bitmap on disk changes in the handle of
//! the operation. The blocks of an inode table that were never used are zeroed before the first
//! inode in them is claimed, each in a small handle of its own, or in place where there are fast
//! commits, so that no operation reads or keeps what the device held there.
//!
//! Without a log, a crash may leave a new name together with the old inode that had its number. So
//! a freed number is held back until the transaction that freed it is durable. The same holds with
//! fast commits: a new inode with that number would be tainted as the old one is.
//!
//! **Invariants.** An inode is claimed by one operation at a time. An inode that is free in memory
//! is free in the bitmap on disk too; the reverse holds when nothing is claimed.
//!
//! **Locking.** One lock for each group. Device I/O (the first read of a bitmap) and the handle
//! that zeroes a block happen under it. In the order of locks it comes right before handles.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_journal::Credits;
use fourscore_mballoc::Kinship;
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, PhysBlock, Tid};
use fourscore_sync::CoreNr;
use fourscore_sync::atomic::Ordering;

use crate::inode::free_inodes::{self, InodeClaim};
use crate::mount::state::Mount;
use crate::txn::faults::Sabotage;
use crate::{Error, Result};

/// A core checks which of its held-back numbers can be released whenever their count is a multiple
/// of this.
const HELD_NUMBERS: usize = 64;

/// How many blocks of an inode table are zeroed at once, where they are zeroed in place.
const ZEROED_AHEAD: u32 = 16;

/// The kind of inode to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// For a directory.
    Directory(Kinship),
    /// For anything else.
    File,
}

/// Zeroes the blocks of the inode table that were never used, up to the block that holds inode
/// `index`.
fn make_table_ready(mount: &Mount, group: GroupNr, index: u32) -> Result<()> {
    let Some(state) = mount.groups().get(group).map(|group| group.inodes()) else {
        return Ok(());
    };
    let needed = index / mount.core.geometry().inodes_per_block() + 1;
    let ready = state.table_ready.load(Ordering::Relaxed);
    if ready < needed && mount.fast_commits().is_some() {
        let end = needed.max(ready + ZEROED_AHEAD);
        let end = end.min(mount.core.geometry().inode_table_blocks());
        zero_in_place(
            mount,
            PhysBlock(state.table.0 + u64::from(ready)),
            end - ready,
        )?;
        state.table_ready.store(end, Ordering::Relaxed);
        return Ok(());
    }
    for nth in ready..needed {
        let block = PhysBlock(state.table.0 + u64::from(nth));
        let tag = VerifiedAs::new(Structure::InodeTable, InodeNr(0));
        loop {
            let buffer = mount.core.buffers.create_unused(block);
            let mut handle = mount.start(Credits(1))?;
            if handle.modify(&buffer, tag, |bytes| bytes.fill(0)).is_ok() {
                break;
            }
        }
        state.table_ready.store(nth + 1, Ordering::Relaxed);
    }
    Ok(())
}

/// Zeroes blocks of an inode table that were never used, at their home location. A fast commit
/// records an inode there without its block, so what lies around it must be zeroes already. The
/// flush of that commit, or of the full one, makes them durable.
fn zero_in_place(mount: &Mount, first: PhysBlock, count: u32) -> Result<()> {
    let block_size = mount.core.geometry().block_size();
    let zeroes = vec![0; block_size.bytes() * count as usize];
    mount
        .core
        .device
        .write_at(&zeroes, block_size.offset(first))?;
    let tid = mount.journal().running_tid();
    for nth in 0..count {
        // A reader may have cached what lay there before.
        let block = PhysBlock(first.0 + u64::from(nth));
        mount.core.buffers.forget(block, tid);
    }
    Ok(())
}

/// Claims a free inode for a new file in a directory of the group `parent`.
///
/// # Errors
/// `NoSpace` if there is none.
pub(crate) fn claim(mount: &Mount, parent: GroupNr, want: Want) -> Result<InodeClaim> {
    match claim_free(mount, parent, want) {
        Err(Error::NoSpace)
            if mount
                .inodes()
                .held
                .iter()
                .any(|held| !held.lock().is_empty()) =>
        {
            mount.journal().commit()?;
            let held = mount.inodes().held.iter();
            held.for_each(|held| give_out(mount, &mut held.lock()));
            claim_free(mount, parent, want)
        }
        claimed => claimed,
    }
}

fn claim_free(mount: &Mount, parent: GroupNr, want: Want) -> Result<InodeClaim> {
    let is_directory = want != Want::File;
    let mut failed = None;
    let counts = mount.groups();
    if let Want::Directory(kinship) = want
        && let Some(group) = mount
            .inodes()
            .placement()
            .for_directory(&**counts, parent, kinship)
        && let Some(claim) = claim_in(mount, group, is_directory, &mut failed)?
    {
        return Ok(claim);
    }
    for group in mount
        .inodes()
        .placement()
        .for_file(parent, CoreNr::current())
    {
        if counts.free_inodes(group) == 0 {
            continue;
        }
        if let Some(claim) = claim_in(mount, group, is_directory, &mut failed)? {
            return Ok(claim);
        }
    }
    Err(failed.unwrap_or(Error::NoSpace))
}

/// Claims an inode of a group, if there is one. A group whose bitmap is damaged has none: the
/// damage is noted. If the device fails, the first such error is stored in `failed`.
fn claim_in(
    mount: &Mount,
    group: GroupNr,
    is_directory: bool,
    failed: &mut Option<Error>,
) -> Result<Option<InodeClaim>> {
    let Some(used) = mount.inodes().groups.get(group.0 as usize) else {
        return Ok(None);
    };
    let mut used = free_inodes::locked(used);
    if used.is_damaged() {
        return Ok(None);
    }
    match used.look(&mount.core, group) {
        Ok(()) => {}
        Err(error @ Error::Corrupt(_)) => {
            mount.errors.found.add(error);
            return Ok(None);
        }
        Err(error) => {
            failed.get_or_insert(error);
            return Ok(None);
        }
    }
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
pub(crate) fn take(mount: &Mount, nr: InodeNr, is_directory: bool) -> Result<InodeClaim> {
    let (claim, mut used) = mount.inodes().claim_of(&mount.core, nr, is_directory)?;
    make_table_ready(mount, claim.group, claim.index)?;
    used.set(claim.index, true);
    Ok(claim)
}

/// Makes a freed inode available again. This happens at once if there is a log: then a crash that
/// undoes the freeing also undoes everything that was created with the number since.
pub(crate) fn freed(mount: &Mount, nr: InodeNr) {
    let is_held_for_records =
        mount.fast_commits().is_some() && !mount.core.faults.lacks(Sabotage::FreedNumberReused);
    if mount.journal().has_log() && !is_held_for_records {
        return mount.inodes().give_back(nr, &mount.core);
    }
    let mut held = mount.inodes().held.mine().lock();
    held.push((mount.journal().running_tid(), nr));
    if held.len().is_multiple_of(HELD_NUMBERS) {
        give_out(mount, &mut held);
    }
}

/// Releases the numbers whose freeing is durable.
fn give_out(mount: &Mount, held: &mut Vec<(Tid, InodeNr)>) {
    let durable = mount.journal().committed_tid();
    held.retain(|&(tid, nr)| {
        let stays = tid.is_after(durable);
        if !stays {
            mount.inodes().give_back(nr, &mount.core);
        }
        stays
    });
}
