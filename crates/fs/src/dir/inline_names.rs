//! **Purpose.** Plans changes of names in an inline directory (`inline_data`), whose entries are
//! inside its inode.
//!
//! **Model.** The entries have two parts: the first is in the block area of the inode (`i_block`),
//! the second in an extended attribute. When neither has space, all names move to a first block.
//!
//! **Locking.** The caller holds the directory's lock exclusively.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::dirent::EntryType;
use fourscore_ondisk::dirent::write::NewEntry;
use fourscore_ondisk::inline::edit::{self, InlineDirMut};
use fourscore_ondisk::inline::{HEAD_BYTES, InlineDir, InlineError};

use crate::dir::changed::ChangedDir;
use crate::dir::{grow, names};
use crate::file::inline_change::{self, Written, begin_inside, inline_capacity};
use crate::inode::cached::CachedInode;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::xattr::format::edit_error;
use crate::{Error, Result};

/// Makes a new directory inside of its inode, if that has the space.
pub(crate) fn init_inline_dir(plan: &mut Plan<'_>, slot: Slot, parent: InodeNr) -> Result<Written> {
    if inline_capacity(plan, slot)? < HEAD_BYTES {
        return Ok(Written::NotYet);
    }
    begin_inside(plan, slot)?;
    let made = slot::edit(plan, slot, |inode| {
        // This cannot fail: a directory can be longer than that.
        let _ = inode.set_size_bytes(HEAD_BYTES as u64);
        edit::init(inode.i_block_mut(), parent)
    })?;
    made.map_err(|error| inline_change::broken(error, slot))?;
    Ok(Written::Inside)
}

/// Calls `look` with an inline directory in its planned state, after checking it.
pub(crate) fn inline_dir<R>(
    plan: &mut Plan<'_>,
    dir: &ChangedDir<'_>,
    look: impl FnOnce(&InlineDir<'_>) -> std::result::Result<R, InlineError>,
) -> Result<R> {
    let (slot, format) = (dir.slot, *dir.format());
    inline_change::content(plan, slot, |content| {
        let looked = content.as_data().and_then(|data| {
            let names = data.directory(&format)?;
            names.check()?;
            look(&names)
        });
        looked.map_err(|error| inline_change::broken(error, slot))
    })
}

/// Calls `change` with an inline directory in its planned state, after
/// [`inline_names::inline_dir`](crate::dir::inline_names::inline_dir) has checked it.
pub(crate) fn change_inline_dir<R>(
    plan: &mut Plan<'_>,
    dir: &ChangedDir<'_>,
    change: impl FnOnce(&mut InlineDirMut<'_>) -> std::result::Result<R, InlineError>,
) -> Result<R> {
    let (slot, format) = (dir.slot, *dir.format());
    inline_change::content(plan, slot, |content| {
        let changed = content.parts_mut().and_then(|(head, value)| {
            let mut names = InlineDirMut::new(&format, head, value)?;
            change(&mut names)
        });
        changed.map_err(|error| inline_change::broken(error, slot))
    })
}

/// Returns the position of the entry of `name`.
pub(crate) fn find_inline(plan: &mut Plan<'_>, dir: &ChangedDir<'_>, name: &[u8]) -> Result<usize> {
    let wanted = names::wanted(&plan.mount.core, dir.inode, name);
    let found = inline_dir(plan, dir, |names| {
        let mut entries = names.entries();
        let found = entries.find(|entry| !matches!(entry, Ok(entry) if !wanted.matches(entry)));
        Ok(found.transpose()?.map(|entry| entry.at))
    })?;
    found.ok_or(Error::NotFound)
}

/// Adds a name. If the inode has no space for it, moves all names to the first block of the
/// directory instead and returns the inode as it is then; the caller adds the name there.
pub(crate) fn add_inline(
    plan: &mut Plan<'_>,
    dir: &ChangedDir<'_>,
    new: &NewEntry<'_>,
) -> Result<Option<CachedInode>> {
    inline_dir(plan, dir, |_| Ok(()))?;
    if insert_inline(plan, dir, new)? || grow_inline(plan, dir)? && insert_inline(plan, dir, new)? {
        return Ok(None);
    }
    move_names_out(plan, dir).map(Some)
}

/// Adds a name if there is space for it; returns whether there was.
pub(crate) fn insert_inline(
    plan: &mut Plan<'_>,
    dir: &ChangedDir<'_>,
    new: &NewEntry<'_>,
) -> Result<bool> {
    let inserted = change_inline_dir(plan, dir, |names| Ok(names.insert(new)?))?;
    Ok(inserted.is_some())
}

/// Adds the second part, with all the space that the inode has; returns whether it was added.
pub(crate) fn grow_inline(plan: &mut Plan<'_>, dir: &ChangedDir<'_>) -> Result<bool> {
    let (slot, format) = (dir.slot, *dir.format());
    let capacity = inline_capacity(plan, slot)?.saturating_sub(HEAD_BYTES) & !3;
    let grown = inline_change::content(plan, slot, |content| {
        let before = content
            .capacity_bytes()
            .map_err(|error| inline_change::broken(error, slot))?;
        if before > HEAD_BYTES || capacity <= SHORTEST_ENTRY_BYTES {
            return Ok(false);
        }
        content
            .resize(HEAD_BYTES + capacity)
            .map_err(|error| edit_error(error, slot.nr))?;
        let grown = content.parts_mut().and_then(|(_, value)| {
            let grown = edit::grow_second(&format, value, 0);
            Ok(grown?)
        });
        grown.map_err(|error| inline_change::broken(error, slot))
    })?;
    if grown {
        let size = (HEAD_BYTES + capacity) as u64;
        let sized = slot::edit(plan, slot, |inode| inode.set_size_bytes(size))?;
        sized.map_err(|_| Error::FileTooLarge)?;
    }
    Ok(grown)
}

/// Moves the names to the first block of the directory. Returns the inode as it is then.
pub(crate) fn move_names_out(plan: &mut Plan<'_>, dir: &ChangedDir<'_>) -> Result<CachedInode> {
    let core = &*plan.mount.core;
    let (own, format) = (dir.inode.nr(), *dir.format());
    let mut block = vec![0; core.geometry().block_size().bytes()];
    inline_dir(plan, dir, |names| {
        Ok(names.move_out(&format, own, &mut block)?)
    })?;
    inline_change::take_content(plan, dir.slot, &mut [])?;
    let empty = CachedInode::new(slot::inode(plan, dir.slot)?, core.superblock())?;
    grow::append_leaf(plan, &mut ChangedDir::new(core, &empty, dir.slot)?, &block)?;
    CachedInode::new(slot::inode(plan, dir.slot)?, core.superblock())
}

pub(crate) fn remove_inline(plan: &mut Plan<'_>, dir: &ChangedDir<'_>, name: &[u8]) -> Result<()> {
    let at = find_inline(plan, dir, name)?;
    change_inline_dir(plan, dir, |names| Ok(names.remove(at)?))
}

pub(crate) fn redirect_inline(
    plan: &mut Plan<'_>,
    dir: &ChangedDir<'_>,
    name: &[u8],
    inode: InodeNr,
    kind: EntryType,
) -> Result<()> {
    let at = find_inline(plan, dir, name)?;
    change_inline_dir(plan, dir, |names| Ok(names.redirect(at, inode, kind)?))
}

pub(crate) fn set_inline_parent(
    plan: &mut Plan<'_>,
    dir: &ChangedDir<'_>,
    parent: InodeNr,
) -> Result<()> {
    change_inline_dir(plan, dir, |names| {
        names.set_parent(parent);
        Ok(())
    })
}

/// The shortest entry; a second part that has no space for more than this is not added.
pub(crate) const SHORTEST_ENTRY_BYTES: usize = 12;
