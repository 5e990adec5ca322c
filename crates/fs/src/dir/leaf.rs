//! **Purpose.** Adds and removes names in one leaf of a directory, while other threads change its
//! other leaves.
//!
//! **Not here.** Changes that need the directory's lock exclusively: a leaf that must be split,
//! several blocks without an index, rename, removal of directories ([`crate::dir::create`],
//! [`crate::dir::remove`]).
//!
//! **Model.** The index says in which leaf a name is, if it exists at all; a directory of one block
//! has no other leaf. The holder of that leaf's lock therefore has exclusive access to the name. It
//! checks whether the name exists and whether there is space for it, and changes the leaf: one
//! search serves both, and only the bytes of the leaf that change are planned. The change of the
//! directory's own inode is not planned but made at the end ([`crate::dir::touch`]). If the
//! operation needs anything else, nothing has changed yet, and the caller restarts it with the
//! directory's lock held exclusively:
//!
//! ```text
//! share the directory -> lock the leaf -> is the name there? is there space? -> plan -> apply
//!                                            | no space, no such leaf, equal hashes in two leaves
//!                                            '-> release all, lock the directory exclusively
//! ```
//!
//! **Invariants.** While the directory's lock is shared, its index, its length and its map do not
//! change, so a leaf stays the leaf of its names. Two threads that change the same name lock the
//! same leaf.
//!
//! **Locking.** The directory, shared; the inode that gains or loses a name; one leaf. Readers take
//! no lock. A name is added or removed with one version of its leaf, so readers need not retry.

use std::ops::Range;

use fourscore_block::Structure;
use fourscore_ondisk::dirent::edit::{Removal, Room, Vacancy};
use fourscore_ondisk::dirent::write::NewEntry;
use fourscore_ondisk::dirent::{DirFormat, DirentError, EntryType};
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock};
use fourscore_sync::epoch;

use crate::core::Core;
use crate::dir::changed::tag;
use crate::dir::new_inode::{self, Kind, Made, NewAttributes, Opening, check_link, entry_type};
use crate::dir::structure::{self, DirBlock};
use crate::dir::touch::{self, LINKS_MAX, Touch};
use crate::dir::wanted::Wanted;
use crate::dir::{entries, find, index, lost_name, names};
use crate::file::truncate;
use crate::guard::with_guard;
use crate::inode::cache;
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::cell::Pinned;
use crate::inode::immutable::check_name_may_go;
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::mount::state::Mount;
use crate::txn::apply::Publication;
use crate::txn::fast_commit::note::{Room as NotedRoom, Space};
use crate::txn::fast_commit::reason::Reason;
use crate::txn::plan::{Plan, RegionId};
use crate::txn::slot;
use crate::txn::striped::StripeGuard;
use crate::{Error, Result};

/// A locked leaf of a directory.
struct Leaf<'w> {
    block: PhysBlock,
    format: DirFormat,
    is_indexed: bool,
    _lock: StripeGuard<'w>,
}

/// Space for an entry, in a plan.
#[derive(Clone, Copy)]
struct Place {
    room: Room,
    /// What a fast commit needs to know about the space.
    noted: NotedRoom,
    region: RegionId,
}

/// Makes an inode with a name in a leaf that has space for it. Returns `None` if the operation
/// needs the directory exclusively.
pub(crate) fn make_in_leaf(
    mount: &Mount,
    dir: InodeNr,
    pinned: &Pinned,
    name: &[u8],
    new: &NewAttributes,
    kind: Kind<'_>,
    opening: Opening,
) -> Result<Option<Made>> {
    let shared = pinned.share();
    let parent = &new_inode::directory_to_change(pinned)?;
    let links = i32::from(kind.file_type() == FileType::Directory);
    let is_at_limit = parent.on_disk().links_count() >= LINKS_MAX;
    if links > 0 && (is_at_limit || !touch::has_dir_nlink(mount.core.superblock())) {
        // The number of links decides whether there may be another.
        return Ok(None);
    }
    let Some(leaf) = lock_leaf(mount, pinned, parent, name)? else {
        return Ok(None);
    };
    let mut plan = Plan::new(mount);
    let Some(place) = leaf.place(&mut plan, parent, name)? else {
        return Ok(None);
    };
    let made = new_inode::plan_inode(mount, &mut plan, parent, new, kind)?;
    let entry = NewEntry::new(made.nr, name, entry_type(kind.file_type()));
    leaf.insert(&mut plan, parent, place, entry)?;
    touch(&mut plan, dir)?;
    let touch = Touch {
        nr: dir,
        dir: pinned,
        links,
    };
    let publication = Publication::nothing().touching(Some(&touch));
    let (core, last) = (&mount.core, &shared.last);
    let made = new_inode::apply_creating(core, plan, made, opening, last, publication, || ())?;
    Ok(Some(made))
}

/// Gives an inode a name in a leaf that has space for it. Returns `None` if the operation needs the
/// directory exclusively.
pub(crate) fn link_in_leaf(
    mount: &Mount,
    dir: InodeNr,
    pinned_dir: &Pinned,
    name: &[u8],
    inode: InodeNr,
    pinned: &Pinned,
) -> Result<Option<()>> {
    let shared = pinned_dir.share();
    let mut locked = pinned.lock();
    truncate::end_truncation(mount, pinned.locked(&mut locked))?;
    let parent = &new_inode::directory_to_change(pinned_dir)?;
    let target = &pinned.copy()?;
    let Some(leaf) = lock_leaf(mount, pinned_dir, parent, name)? else {
        return Ok(None);
    };
    let mut plan = Plan::new(mount);
    let Some(place) = leaf.place(&mut plan, parent, name)? else {
        return Ok(None);
    };
    // A name that is taken is the first reason to refuse, as in Linux.
    check_link(parent, target, &locked)?;
    let entry = NewEntry::new(inode, name, entry_type(target.file_type()));
    leaf.insert(&mut plan, parent, place, entry)?;
    touch(&mut plan, dir)?;
    let version = new_inode::gain_name(&mut plan, target, &locked)?;
    let touch = Touch {
        nr: dir,
        dir: pinned_dir,
        links: 0,
    };
    let changes = [pinned];
    let publication = Publication::of(&changes).touching(Some(&touch));
    plan.apply_publishing(&[&shared.last, &locked.last], publication, || {
        pinned.publish(Some(version));
    })?;
    locked.note_gained_name();
    Ok(Some(()))
}

/// Removes the name of a file. Returns `None` if the operation needs the directory exclusively, or
/// if the name has changed in the meantime.
pub(crate) fn unlink_in_leaf(
    mount: &Mount,
    dir: InodeNr,
    pinned_dir: &Pinned,
    name: &[u8],
) -> Result<Option<()>> {
    if !has_leaves(&mount.core, pinned_dir.version(&epoch::pin())?) {
        return Ok(None);
    }
    let nr = find::lookup_once(&mount.core, dir, name)?;
    let pinned = cache::pin_inode(&mount.core, nr)?;
    if pinned.version(&epoch::pin())?.file_type() == FileType::Directory {
        return Ok(None);
    }
    let shared = pinned_dir.share();
    let locked = pinned.lock();
    let parent = &new_inode::directory_to_change(pinned_dir)?;
    let Ok(inode) = &pinned.copy() else {
        return Ok(None);
    };
    let Some(leaf) = lock_leaf(mount, pinned_dir, parent, name)? else {
        return Ok(None);
    };
    let mut plan = Plan::new(mount);
    let Some((removal, region)) = leaf.removal(&mut plan, parent, name, nr)? else {
        return Ok(None);
    };
    check_name_may_go(parent, inode)?;
    entries::lose_name(&mut plan, dir, name)?;
    removal
        .apply(plan.bytes_mut(region))
        .map_err(|error| broken(parent, error))?;
    plan.note_removed(parent, name, leaf.space(), &removal);
    touch(&mut plan, dir)?;
    let lost = lost_name::plan_lost_name(mount, &mut plan, inode, &locked)?;
    let touch = Touch {
        nr: dir,
        dir: pinned_dir,
        links: 0,
    };
    let changes = [&pinned];
    let publication = Publication::of(&changes).touching(Some(&touch));
    plan.apply_publishing(&[&shared.last, &locked.last], publication, || {
        lost.publish(&pinned);
    })?;
    drop((leaf, shared));
    lost_name::finish_lost(mount, nr, &pinned, locked, lost)?;
    Ok(Some(()))
}

/// Locks the only leaf of `dir` in which `name` can be. Returns `None` if the operation needs the
/// directory exclusively. The caller holds the directory's lock, shared.
fn lock_leaf<'w>(
    mount: &'w Mount,
    pinned: &'w Pinned,
    dir: &CachedInode,
    name: &[u8],
) -> Result<Option<Leaf<'w>>> {
    let is_by_its_bytes = matches!(names::wanted(&mount.core, dir, name), Wanted::Exact(_));
    if !is_by_its_bytes || matches!(name, b"." | b"..") || !has_leaves(&mount.core, dir) {
        return Ok(None);
    }
    let is_indexed = structure::is_indexed(&mount.core, dir);
    // Taking the leaf's lock may wait, so no epoch guard is held then.
    let target = with_guard(&mount.core, |guard| {
        let at = match is_indexed {
            true => index::only_leaf(&mount.core, dir, name, guard)?,
            false => Some(LogicalBlock(0)),
        };
        let map = |at| lookup::map(&mount.core, dir, at, guard);
        at.map(map).transpose()
    })?;
    let Some(target) = target.map(|mapping| mapping.target) else {
        return Ok(None);
    };
    let Target::Written(block) = target else {
        return Ok(None);
    };
    let lock = match is_indexed {
        true => mount.leaves().lock(block.0),
        false => pinned.lock_only_leaf(),
    };
    Ok(Some(Leaf {
        block,
        // Behind the lock: the file system may have grown during the wait, and the thread that
        // held the lock may have added the number of a new inode.
        format: structure::dir_format(&mount.core, dir),
        is_indexed,
        _lock: lock,
    }))
}

/// Whether each name belongs to exactly one leaf: because there is an index, or only one leaf.
fn has_leaves(core: &Core, dir: &CachedInode) -> bool {
    let block_bytes = core.geometry().block_size().bytes() as u64;
    let is_a_leaf = dir.size_bytes() == block_bytes
        && dir.layout() != Layout::Inline
        && !dir.has(InodeFlags::INDEX_FL);
    is_a_leaf || structure::is_indexed(core, dir)
}

impl Leaf<'_> {
    /// Returns where a fast commit's replay puts names of this leaf.
    fn space(&self) -> Space {
        match self.is_indexed {
            true => Space::Leaf(self.block),
            false => Space::All,
        }
    }

    /// Looks for a name in the leaf and, if it is missing, adds the space for it to the plan.
    /// Returns `None` if the leaf is too full; `Exists` is the error for a name that is there.
    fn place(&self, plan: &mut Plan<'_>, dir: &CachedInode, name: &[u8]) -> Result<Option<Place>> {
        let is_noted = plan.is_noted();
        let place = self.chosen(plan, dir, |bytes| {
            let vacancy = self.format.vacancy(bytes, name);
            match vacancy.map_err(|error| broken(dir, error))? {
                Vacancy::Taken => Err(Error::Exists),
                Vacancy::Room(room) => {
                    let noted = match is_noted {
                        true => NotedRoom::of(self.space(), &self.format, bytes, name),
                        false => Ok(NotedRoom::none()),
                    };
                    let noted = noted.map_err(|error| broken(dir, error))?;
                    Ok(Some(((room, noted), room.range())))
                }
                Vacancy::Full => Ok(None),
            }
        })?;
        Ok(place.map(|((room, noted), region)| Place {
            room,
            noted,
            region,
        }))
    }

    /// Writes an entry to its space; `entry` is `None` for a name that is too long.
    fn insert(
        &self,
        plan: &mut Plan<'_>,
        dir: &CachedInode,
        place: Place,
        entry: Option<NewEntry<'_>>,
    ) -> Result<()> {
        let entry = entry.ok_or(Error::NameTooLong)?;
        plan.note_added(dir, entry.name(), entry.inode, place.noted);
        if entry.kind == EntryType::Directory {
            plan.taint(entry.inode, Reason::Directory);
        }
        self.format
            .insert_into_part(plan.bytes_mut(place.region), place.room, &entry)
            .map_err(|error| broken(dir, error))
    }

    /// Adds the bytes that change with the removal of a name of the inode `nr` to the plan. Returns
    /// `None` if there is no such name.
    fn removal(
        &self,
        plan: &mut Plan<'_>,
        dir: &CachedInode,
        name: &[u8],
        nr: InodeNr,
    ) -> Result<Option<(Removal, RegionId)>> {
        self.chosen(plan, dir, |bytes| {
            let removal = self.format.removal(bytes, name);
            let removal = removal.map_err(|error| broken(dir, error))?;
            let removal = removal.filter(|removal| removal.inode == nr);
            Ok(removal.map(|removal| (removal, removal.range())))
        })
    }

    /// Adds the part of the leaf that `choose` selects to the plan.
    fn chosen<T>(
        &self,
        plan: &mut Plan<'_>,
        dir: &CachedInode,
        choose: impl FnOnce(&[u8]) -> Result<Option<(T, Range<usize>)>>,
    ) -> Result<Option<(T, RegionId)>> {
        let core = &*plan.mount.core;
        let check =
            |bytes: &[u8]| structure::check_bytes(core, dir, &self.format, DirBlock::Leaf, bytes);
        plan.chosen_part(
            self.block,
            tag(Structure::DirectoryLeaf, dir),
            check,
            choose,
        )
    }
}

fn broken(dir: &CachedInode, error: DirentError) -> Error {
    Error::Corrupt(Corrupt::from(error).in_inode(dir.nr()))
}

/// Notes in the plan that the slot of the directory `nr` is to be touched.
pub(crate) fn touch(plan: &mut Plan<'_>, nr: InodeNr) -> Result<()> {
    let place = slot::slot_place(plan, nr)?;
    plan.note_touched(place)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
