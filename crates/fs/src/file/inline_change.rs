//! **Purpose.** Changes data that is kept inside inodes (feature `inline_data`), as part of a plan,
//! and moves it out to a block. It belongs to small files and directories.
//!
//! **Not here.** The bytes (`fourscore_ondisk::inline`), reading them ([`crate::file::inline`]).
//!
//! **Model.** As in Linux, a directory begins in its inode, and a file goes there with its first
//! bytes. Both stay as long as the inode has space beside its other attributes. Attributes never
//! push data out: an attribute that does not fit beside the data goes to the block of attributes.
//! Data moves to a block if it is too long, or if the file is made longer by its size alone,
//! preallocated or punched. It comes back only after all blocks of the file were cut off.
//!
//! ```text
//! file       empty -> inside -> (too long, fallocate) a block -> cut to nothing, the map empty
//! directory  56 bytes -> all that the inode has space for -> a block, later an index
//! ```
//!
//! Whether a file may go inside depends on its map, which has to be empty. Linux keeps that fact in
//! memory from the file's creation on and loses it with the inode.
//!
//! **Invariants.** Bytes behind the end of the data, as far as the inode keeps them, are zero when
//! they become visible.
//!
//! **Locking.** The inode's lock is held. Readers have a version of the inode, with its data, that
//! does not change.
//!
//! **Crash safety.** Data is written to its block before the transaction that makes the block part
//! of the file. Until that transaction the data is in the inode.

use fourscore_mballoc::Sizing;
use fourscore_ondisk::extent::{self, LOGICAL_END};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inline::{HEAD_BYTES, InlineError, InlineMut, InlineRoom};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{Corrupt, LogicalBlock};

use crate::core::Core;
use crate::file::claim::Claimer;
use crate::file::data::Data;
use crate::file::finish::{Ending, WrittenAt, finish};
use crate::file::journal_data::{BlockPart, Novelty};
use crate::file::prepare::index;
use crate::file::{claim, inline, journal_data, journaled};
use crate::inode::attributes::{self, LostPrivileges};
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::cell::LockedInode;
use crate::map::form::MapForm;
use crate::map::mapping::Target;
use crate::map::run::BlockRun;
use crate::map::{lookup, update};
use crate::mount::state::Mount;
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::xattr::format::edit_error;
use crate::xattr::set::MIN_AREA_BYTES;
use crate::{Error, Result};

/// Where a write went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// All of it went into the inode.
    Inside,
    /// Nothing was written: the data is in blocks.
    NotYet,
}

pub(crate) fn has_inline_data(core: &Core) -> bool {
    let features = core.superblock().features();
    features.incompat.contains(Incompat::INLINE_DATA)
}

/// Writes into the inode, if the file's data is there or may go there, and if there is space. Moves
/// data out that no longer has space. A file that is written to loses the privileges `lost`.
pub(crate) fn write_inside(
    mount: &Mount,
    file: LockedInode<'_>,
    data: Data<'_>,
    written_at: WrittenAt,
    lost: Option<LostPrivileges>,
) -> Result<Written> {
    if !has_inline_data(&mount.core) {
        return Ok(Written::NotYet);
    }
    let inode = &file.pinned.copy()?;
    let is_inside = inode.layout() == Layout::Inline;
    if !is_inside && !may_go_inside(&mount.core, inode)? {
        return Ok(Written::NotYet);
    }
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, inode.nr())?;
    if let Some(lost) = lost {
        attributes::plan_loss(&mut plan, slot, lost)?;
    }
    let end = data.end();
    if end > inline_capacity(&mut plan, slot)? as u64 {
        drop(plan);
        if is_inside {
            move_out(mount, file)?;
        }
        return Ok(Written::NotYet);
    }
    if !is_inside {
        begin_inside(&mut plan, slot)?;
    }
    put_content(&mut plan, slot, inode.size_bytes(), data)?;
    let size = inode.size_bytes().max(end);
    finish(plan, slot, Ending { size, written_at }, file.held())?;
    Ok(Written::Inside)
}

/// Whether a regular file has nothing mapped: it is empty, or one hole.
fn may_go_inside(core: &Core, inode: &CachedInode) -> Result<bool> {
    if inode.layout() == Layout::BlockMap {
        return Ok(inode.i_block().iter().all(|&byte| byte == 0));
    }
    let mapping = lookup::map_locked(core, inode, LogicalBlock(0))?;
    Ok(mapping.target == Target::Hole && mapping.end() == LOGICAL_END)
}

/// Whether `size` bytes are more than an inode keeps, if the inode keeps its data inside. As in
/// Linux, a file that is given such a size moves out even if the inode has more space.
pub(crate) fn is_longer_than_inside(core: &Core, inode: &CachedInode, size: u64) -> Result<bool> {
    let is_inside = inode.layout() == Layout::Inline;
    Ok(is_inside && size > inline::inline_data(core, inode)?.capacity_bytes() as u64)
}

/// Moves the data of a regular file to a block, if it is in the inode.
pub(crate) fn move_out(mount: &Mount, file: LockedInode<'_>) -> Result<()> {
    let LockedInode { pinned, locked } = file;
    let inode = &pinned.copy()?;
    if inode.layout() != Layout::Inline {
        return Ok(());
    }
    let block_size = mount.core.geometry().block_size();
    let mut plan = Plan::new(mount);
    let slot = slot::slot(&mut plan, inode.nr())?;
    let mut content = vec![0; block_size.bytes()];
    take_content(&mut plan, slot, &mut content)?;
    let size = inode.size_bytes();
    let shown = usize::try_from(size).unwrap_or(usize::MAX);
    content.get_mut(shown..).unwrap_or_default().fill(0);
    let outside = CachedInode::new(slot::inode(&mut plan, slot)?, mount.core.superblock())?;
    let first = LogicalBlock(0);
    let claimer = &mut Claimer {
        inode: &outside,
        slot,
        locked,
        sizing: Sizing::Normalize,
        hole_end: first,
    };
    let hole = BlockRun {
        at: first,
        blocks: 1,
    };
    let (block, _) = claim::claim(&mount.core, &mut plan, claimer, hole, size)?;
    match journaled::journals_content(&mount.core, &outside) {
        true => {
            let place = BlockPart {
                block,
                offset: 0,
                novelty: Novelty::New,
            };
            journal_data::write_content(&mut plan, &outside, place, &content)?;
        }
        false => mount
            .core
            .device
            .write_at(&content, block_size.offset(block))?,
    }
    update::map_block(&mut plan, &outside, slot, first, block)?;
    let version = slot::version(&mut plan, slot)?;
    // What a read of the data depends on changes, so fdatasync has to cover it.
    let last = [&locked.last, &locked.last_data];
    plan.apply_publishing(&last, Publication::of(&[pinned]), || {
        pinned.publish(Some(version));
    })?;
    Ok(())
}

/// Calls `change` with the data of an inode that keeps it inside.
pub(crate) fn content<R>(
    plan: &mut Plan<'_>,
    slot: Slot,
    change: impl FnOnce(&mut InlineMut<'_>) -> Result<R>,
) -> Result<R> {
    slot::edit(plan, slot, |inode| {
        let (i_block, area) = inode.parts_mut();
        let content = InlineMut::of(i_block, area.unwrap_or_default());
        change(&mut content.map_err(|error| broken(error, slot))?)
    })?
}

/// Returns the most bytes of data for which the inode has space, if it keeps its data inside or may
/// begin to. As in Linux, that is none where no part of the data could be among the attributes.
pub(crate) fn inline_capacity(plan: &mut Plan<'_>, slot: Slot) -> Result<usize> {
    let most = slot::edit(plan, slot, |inode| {
        let is_inside = inode.flags().contains(InodeFlags::INLINE_DATA_FL);
        let (i_block, area) = inode.parts_mut();
        let area = area.unwrap_or_default();
        if is_inside {
            return InlineMut::of(i_block, area).and_then(|content| Ok(content.most_bytes()?));
        }
        if area.len() <= MIN_AREA_BYTES {
            return Ok(0);
        }
        Ok(InlineRoom::of(area)?.map_or(0, |space| space.most_bytes))
    })?;
    let most = most.map_err(|error| broken(error, slot))?;
    Ok(if most > HEAD_BYTES { most } else { 0 })
}

/// Makes an inode that maps nothing keep its data inside. The data is empty at first.
pub(crate) fn begin_inside(plan: &mut Plan<'_>, slot: Slot) -> Result<()> {
    slot::edit(plan, slot, |inode| {
        let (i_block, area) = inode.parts_mut();
        InlineMut::init(i_block, area.unwrap_or_default())
            .map_err(|error| edit_error(error, slot.nr))?;
        let flags = inode.flags() - InodeFlags::EXTENTS_FL;
        inode.set_flags(flags | InodeFlags::INLINE_DATA_FL);
        Ok(())
    })?
}

/// Writes into data of which `size` bytes are visible so far, and for which there is space.
fn put_content(plan: &mut Plan<'_>, slot: Slot, size: u64, data: Data<'_>) -> Result<()> {
    let Data { bytes, offset } = data;
    content(plan, slot, |content| {
        let kept = content
            .capacity_bytes()
            .map_err(|error| broken(error, slot))?;
        let shown = kept.min(index(size));
        let end = index(offset).saturating_add(bytes.len()).max(shown);
        // Bytes that were not visible so far are zero then, whatever wrote them.
        content
            .resize(shown)
            .and_then(|()| content.resize(end))
            .map_err(|error| edit_error(error, slot.nr))?;
        match content.write_at(index(offset), bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::NoSpace),
            Err(error) => Err(broken(error, slot)),
        }
    })
}

/// Cuts data off behind `size` bytes.
pub(crate) fn cut_content(plan: &mut Plan<'_>, slot: Slot, size: u64) -> Result<()> {
    content(plan, slot, |content| {
        let kept = content
            .capacity_bytes()
            .map_err(|error| broken(error, slot))?;
        match usize::try_from(size) {
            Ok(size) if size < kept => content
                .resize(size)
                .map_err(|error| edit_error(error, slot.nr)),
            _ => Ok(()),
        }
    })
}

/// Copies the data to `to`, which is zero behind it, and takes it out of the inode, which maps
/// nothing then.
pub(crate) fn take_content(plan: &mut Plan<'_>, slot: Slot, to: &mut [u8]) -> Result<()> {
    let form = MapForm::of_new(plan.mount.core.superblock());
    slot::edit(plan, slot, |inode| {
        let (i_block, area) = inode.parts_mut();
        InlineMut::of(i_block, area.unwrap_or_default())
            .map_err(|error| broken(error, slot))?
            .take(to)
            .map_err(|error| edit_error(error, slot.nr))?;
        if form == MapForm::Tree {
            extent::init_root(inode.i_block_mut());
        }
        let flags = inode.flags() - InodeFlags::INLINE_DATA_FL;
        inode.set_flags(flags | form.flags());
        Ok(())
    })?
}

pub(crate) fn broken(error: InlineError, slot: Slot) -> Error {
    Corrupt::from(error).in_inode(slot.nr).into()
}
