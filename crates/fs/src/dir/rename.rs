//! **Purpose.** Rename: moves a name, and replaces what the new name referred to before, if
//! anything.
//!
//! **Not here.** The exchange of two names ([`crate::dir::exchange`]).
//!
//! **Model.** The names are looked up without a lock. The inodes that they refer to are pinned, so
//! that their numbers are not reused; then their types and the ancestors of directories are
//! examined. All of these inodes are locked, and the names are looked up again. If they refer to
//! other inodes by then, the operation restarts. Only after this second lookup does the operation
//! decide whether the rename is refused or changes nothing: the first lookups of the two names did
//! not happen at one moment.
//!
//! **Locking.** An operation in which directories change their parent takes the lock of directory
//! renames first; it keeps other threads from changing the ancestors of any directory. Then it
//! locks the directories by number, then the files by number.

use std::collections::HashSet;

use fourscore_ondisk::dirent::EntryType;
use fourscore_ondisk::dirent::write::NewEntry;
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr};
use fourscore_sync::rank::Ranked;
use fourscore_sync::{MutexGuard, epoch};

use crate::core::Core;
use crate::dir::changed::ChangedDir;
use crate::dir::find::Keep;
use crate::dir::new_inode::{self, NewAttributes, check_key, check_name, entry_type};
use crate::dir::{create, entries, find, lost_name, path, remove};
use crate::file::sync;
use crate::guard::with_guard;
use crate::inode::cached::CachedInode;
use crate::inode::cell::Pinned;
use crate::inode::immutable::{check_is_no_value, check_name_may_go, check_project};
use crate::inode::{cache, stat};
use crate::mount::clock::now;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::apply::Publication;
use crate::txn::faults::{self, Sabotage};
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, Result};

/// What a rename does if the new name exists already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replace {
    /// The name is replaced, as rename(2) says.
    #[default]
    Yes,
    /// The rename fails (`RENAME_NOREPLACE`).
    No,
}

/// A rename, with the inodes that the names refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renaming<'n> {
    pub(crate) from: (InodeNr, &'n [u8]),
    pub(crate) to: (InodeNr, &'n [u8]),
    pub(crate) nr: InodeNr,
    pub(crate) victim: Option<InodeNr>,
    pub(crate) replace: Replace,
    /// The owner of the whiteout that the old name refers to afterwards, if one is left.
    pub(crate) whiteout: Option<&'n NewAttributes>,
}

impl Renaming<'_> {
    pub(crate) fn is_across(&self) -> bool {
        self.from.0 != self.to.0
    }

    /// Whether both names refer to the same inode, so that there is nothing to do.
    pub(crate) fn is_of_one_inode(&self) -> bool {
        self.victim == Some(self.nr)
    }
}

/// The inodes that take part, in the order in which they are locked.
pub(crate) struct Taking(pub(crate) Vec<(InodeNr, Pinned)>);

impl Taking {
    pub(crate) fn get(&self, nr: InodeNr) -> Result<&Pinned> {
        Ok(&self.0[self.position(nr)?].1)
    }

    fn position(&self, nr: InodeNr) -> Result<usize> {
        let found = self.0.iter().position(|(found, _)| *found == nr);
        found.ok_or(Error::NotFound)
    }

    /// Publishes the new versions of the inodes to readers.
    pub(crate) fn publish(&self, versions: Versions) {
        for (nr, version) in versions {
            if let Ok(pinned) = self.get(nr) {
                pinned.publish(Some(version));
            }
        }
    }
}

/// The effects of a rename on the directory tree.
#[derive(Default)]
pub(crate) struct Moves<'w> {
    /// A directory would be moved below itself.
    pub(crate) is_into_itself: bool,
    /// The new name refers to a directory that is an ancestor of the old name.
    pub(crate) is_out_of_victim: bool,
    /// Keeps other threads from moving directories, if this rename moves one.
    lock: Option<Ranked<MutexGuard<'w, ()>>>,
}

/// The versions of inodes after a rename, but for the inode that lost its name.
pub(crate) type Versions = Vec<(InodeNr, CachedInode)>;

/// See [`Fs::rename`](crate::Fs::rename).
pub(crate) fn rename(
    mount: &Mount,
    from: (InodeNr, &[u8]),
    to: (InodeNr, &[u8]),
    replace: Replace,
) -> Result<()> {
    rename_revalidated(mount, from, to, replace, None)
}

/// See [`Fs::rename_leaving_whiteout`](crate::Fs::rename_leaving_whiteout).
pub(crate) fn rename_leaving_whiteout(
    mount: &Mount,
    from: (InodeNr, &[u8]),
    to: (InodeNr, &[u8]),
    replace: Replace,
    owner: &NewAttributes,
) -> Result<()> {
    rename_revalidated(mount, from, to, replace, Some(owner))
}

/// As [`rename_and`], but `NotFound` is returned only if the old name is missing; otherwise the
/// rename is restarted. Before that the new name is looked up: `Corrupt` if it refers to the value
/// of an attribute.
fn rename_revalidated(
    mount: &Mount,
    from: (InodeNr, &[u8]),
    to: (InodeNr, &[u8]),
    replace: Replace,
    whiteout: Option<&NewAttributes>,
) -> Result<()> {
    let rename_once = || {
        let renamed = rename_and(mount, from, to, replace, whiteout);
        if matches!(renamed, Err(Error::NotFound)) && check_name(to.1).is_ok() {
            found(find::find_name(&mount.core, to.0, to.1, Keep::Found))?;
        }
        renamed
    };
    let rename = || path::revalidated(&mount.core, &[from], rename_once);
    errors::noting(mount, mount.space.retried(rename))
}

fn rename_and(
    mount: &Mount,
    from: (InodeNr, &[u8]),
    to: (InodeNr, &[u8]),
    replace: Replace,
    whiteout: Option<&NewAttributes>,
) -> Result<()> {
    check_names(from.1, to.1)?;
    loop {
        let nr = find::lookup_once(&mount.core, from.0, from.1)?;
        check_name(to.1)?;
        let victim = found(find::lookup_once(&mount.core, to.0, to.1))?;
        if mount.core.faults.lacks(Sabotage::HalfRename)
            && rename_in_halves(mount, from, to, victim)?
        {
            return Ok(());
        }
        let names = Renaming {
            from,
            to,
            nr,
            victim,
            replace,
            whiteout,
        };
        if try_rename(mount, &names)? {
            return Ok(());
        }
    }
}

/// Injected fault: gives a file its new name and removes the old one, in two transactions. Returns
/// `false` for a rename that this does not cover.
fn rename_in_halves(
    mount: &Mount,
    from: (InodeNr, &[u8]),
    to: (InodeNr, &[u8]),
    victim: Option<InodeNr>,
) -> Result<bool> {
    let nr = find::lookup_once(&mount.core, from.0, from.1)?;
    if victim.is_some() || stat::stat(&mount.core, nr)?.file_type == FileType::Directory {
        return Ok(false);
    }
    create::link(mount, nr, to.0, to.1)?;
    sync::sync(mount)?;
    remove::unlink(mount, from.0, from.1)?;
    Ok(true)
}

/// Renames, if the names still refer to the same inodes; returns `false` if not.
fn try_rename(mount: &Mount, names: &Renaming<'_>) -> Result<bool> {
    let (taking, moves) = take_for(mount, names)?;
    let mut locked: Vec<_> = taking.0.iter().map(|(_, pinned)| pinned.lock()).collect();
    if !names_still_refer(&mount.core, names, &taking)? {
        return Ok(false);
    }
    if names.victim.is_some() && names.replace == Replace::No {
        return Err(Error::Exists);
    }
    if names.is_of_one_inode() {
        return Ok(true);
    }
    if moves.is_into_itself {
        return Err(Error::InvalidArgument(
            "a directory cannot be moved below itself",
        ));
    }
    if moves.is_out_of_victim {
        // The victim is an ancestor of the moved inode, whatever its type, so it is not empty.
        return Err(Error::NotEmpty);
    }
    let mut plan = Plan::new(mount);
    let versions = plan_rename(mount, &mut plan, names, &taking)?;
    let lost = match names.victim {
        Some(victim) => {
            let at = taking.position(victim)?;
            let inode = taking.get(victim)?.copy()?;
            Some((
                at,
                lost_name::plan_lost_name(mount, &mut plan, &inode, &locked[at])?,
            ))
        }
        None => None,
    };
    let last: Vec<_> = locked.iter().map(|locked| &locked.last).collect();
    let mut changes = Vec::with_capacity(3);
    changes.push(taking.get(names.from.0)?);
    if names.is_across() {
        changes.push(taking.get(names.to.0)?);
    }
    if let Some((at, _)) = &lost {
        changes.push(&taking.0[*at].1);
    }
    // Within one directory the name may move into a block that a reader has read already.
    plan.raise_sequence();
    plan.apply_publishing(&last, Publication::of(&changes), || {
        taking.publish(versions);
        if let Some((at, lost)) = &lost {
            lost.publish(&taking.0[*at].1);
        }
    })?;
    if let Some((at, lost)) = lost {
        let (nr, pinned) = &taking.0[at];
        let victim = locked.swap_remove(at);
        drop(locked);
        lost_name::finish_lost(mount, *nr, pinned, victim, lost)?;
    }
    Ok(true)
}

/// Pins the inodes that take part. If directories change their parent, also keeps other threads
/// from moving directories and examines the ancestors. The order matters: without a pin the number
/// of an inode may belong to an inode of another type by the time it is locked.
pub(crate) fn take_for<'w>(mount: &'w Mount, names: &Renaming<'_>) -> Result<(Taking, Moves<'w>)> {
    if mount.core.faults.lacks(Sabotage::RenameByNumber) {
        let moves = moves_of(
            mount,
            names,
            |nr| Ok(stat::stat(&mount.core, nr)?.file_type),
        )?;
        if moves.lock.is_none() {
            faults::pass_time();
        }
        return Ok((pin_for(&mount.core, names)?, moves));
    }
    let taking = pin_for(&mount.core, names)?;
    let file_type = |nr| taking.get(nr)?.type_while_named();
    let moves = moves_of(mount, names, file_type)?;
    Ok((taking, moves))
}

/// Determines which directories change their parent, and examines their ancestors. `file_type`
/// fails with `NotFound` for an inode that was removed.
fn moves_of<'w>(
    mount: &'w Mount,
    names: &Renaming<'_>,
    file_type: impl Fn(InodeNr) -> Result<FileType>,
) -> Result<Moves<'w>> {
    let is_dir = |nr| Ok::<_, Error>(file_type(nr)? == FileType::Directory);
    let (moved_is_dir, victim_is_dir) =
        (is_dir(names.nr)?, names.victim.map_or(Ok(false), is_dir)?);
    // Within one directory no inode gets other ancestors.
    let moves_directory = moved_is_dir || victim_is_dir;
    if !moves_directory || !names.is_across() || names.is_of_one_inode() {
        return Ok(Moves::default());
    }
    let lock = mount.lock_renames();
    let is_below = |dir, ancestor| {
        let is_below = is_below(&mount.core, dir, ancestor);
        // The ancestors of a directory stay as long as it exists. So if it was removed in the
        // meantime, the result is not reliable.
        file_type(dir)?;
        is_below
    };
    let is_out_of_victim = match names.victim {
        Some(victim) if victim_is_dir => is_below(names.from.0, victim)?,
        _ => false,
    };
    Ok(Moves {
        is_into_itself: moved_is_dir && is_below(names.to.0, names.nr)?,
        is_out_of_victim,
        lock: Some(lock),
    })
}

/// Whether the names of a rename still refer to the same inodes. The directories are locked.
pub(crate) fn names_still_refer(
    core: &Core,
    names: &Renaming<'_>,
    taking: &Taking,
) -> Result<bool> {
    let leads = |(dir, name): (InodeNr, &[u8])| {
        let dir = taking.get(dir)?;
        found(with_guard(core, |guard| {
            find::look_up_pinned(core, dir.version(guard)?, name, guard)
        }))
    };
    Ok(leads(names.from)? == Some(names.nr) && leads(names.to)? == names.victim)
}

/// Pins the inodes that take part, each once, in the order in which they are locked.
fn pin_for(core: &Core, names: &Renaming<'_>) -> Result<Taking> {
    let mut all = Vec::with_capacity(4);
    for nr in [
        Some(names.from.0),
        Some(names.to.0),
        Some(names.nr),
        names.victim,
    ] {
        let Some(nr) = nr else { continue };
        let pinned = cache::pin_inode(core, nr)?;
        let is_file = {
            let guard = epoch::pin();
            let inode = pinned.version(&guard)?;
            check_is_no_value(inode)?;
            inode.file_type() != FileType::Directory
        };
        all.push(((is_file, nr), pinned));
    }
    all.sort_unstable_by_key(|(place, _)| *place);
    all.dedup_by_key(|(place, _)| *place);
    let pinned = all.into_iter().map(|((_, nr), pinned)| (nr, pinned));
    Ok(Taking(pinned.collect()))
}

fn plan_rename(
    mount: &Mount,
    plan: &mut Plan<'_>,
    names: &Renaming<'_>,
    taking: &Taking,
) -> Result<Versions> {
    let (from, to, across) = (names.from, names.to, names.is_across());
    let old_dir = &new_inode::directory_to_change(taking.get(from.0)?)?;
    let new_dir = &new_inode::directory_to_change(taking.get(to.0)?)?;
    let inode = &taking.get(names.nr)?.copy()?;
    let victim = match names.victim {
        Some(victim) => Some(taking.get(victim)?.copy()?),
        None => None,
    };
    check_key(old_dir)?;
    check_key(new_dir)?;
    check_name_may_go(old_dir, inode)?;
    check_project(new_dir, inode)?;
    if let Some(victim) = &victim {
        check_name_may_go(new_dir, victim)?;
        check_replacing(&mount.core, inode, victim)?;
    }
    let is_dir = inode.file_type() == FileType::Directory;
    let arrives = i32::from(across && is_dir);
    let mut versions = Vec::with_capacity(4);

    // The old name first: the new one may use its space.
    let new_slot = slot::slot(plan, to.0)?;
    let mut changed = ChangedDir::new(&mount.core, new_dir, new_slot)?;
    if across {
        let old_slot = slot::slot(plan, from.0)?;
        let old_changed = ChangedDir::new(&mount.core, old_dir, old_slot)?;
        plan_old_name(mount, plan, names, old_dir, &old_changed)?;
        let old = new_inode::touch_dir(&mount.core, plan, old_dir, old_slot, -arrives)?;
        versions.push((from.0, old));
    } else {
        plan_old_name(mount, plan, names, old_dir, &changed)?;
    }
    let kind = entry_type(inode.file_type());
    let mut links = arrives;
    if let Some(victim) = &victim {
        entries::redirect_name(plan, &changed, to.1, names.nr, kind)?;
        links -= i32::from(victim.file_type() == FileType::Directory);
    } else {
        if arrives > 0 {
            new_inode::check_subdirectory(&mount.core, new_dir)?;
        }
        let entry = NewEntry::new(names.nr, to.1, kind).ok_or(Error::NameTooLong)?;
        entries::add_name(plan, &mut changed, &entry)?;
    }
    let new = new_inode::touch_dir(&mount.core, plan, new_dir, new_slot, links)?;
    versions.push((to.0, new));

    let slot = slot::slot(plan, names.nr)?;
    slot::edit(plan, slot, |inode| inode.set_ctime(now()))?;
    if is_dir && across {
        let moved = ChangedDir::new(&mount.core, inode, slot)?;
        entries::set_parent(plan, &moved, to.0)?;
    }
    versions.push((names.nr, slot::version(plan, slot)?));
    Ok(versions)
}

/// Removes the old name, or makes it refer to a whiteout.
fn plan_old_name(
    mount: &Mount,
    plan: &mut Plan<'_>,
    names: &Renaming<'_>,
    dir: &CachedInode,
    changed: &ChangedDir,
) -> Result<()> {
    let Some(owner) = names.whiteout else {
        return entries::remove_name(plan, changed, names.from.1);
    };
    let nr = create::plan_whiteout(mount, plan, dir, owner)?;
    entries::redirect_name(plan, changed, names.from.1, nr, EntryType::CharDevice)
}

/// Checks whether `inode` may replace `victim`.
fn check_replacing(core: &Core, inode: &CachedInode, victim: &CachedInode) -> Result<()> {
    let is_dir = |inode: &CachedInode| inode.file_type() == FileType::Directory;
    match (is_dir(inode), is_dir(victim)) {
        (true, false) => Err(Error::NotADirectory),
        (false, true) => Err(Error::IsADirectory),
        (true, true) if !entries::is_empty_dir(core, victim)? => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}

/// Whether `dir` is `ancestor` or lies below it. The caller holds the lock of directory renames;
/// without it a walk up could meet a directory twice.
fn is_below(core: &Core, dir: InodeNr, ancestor: InodeNr) -> Result<bool> {
    let mut seen = HashSet::new();
    let mut at = dir;
    loop {
        if at == ancestor {
            return Ok(true);
        }
        let parent = find::lookup_once(core, at, b"..")?;
        if parent == at {
            return Ok(false);
        }
        if !seen.insert(at) {
            let twice = Corrupt::from(RelationError::DirectoryLoop);
            return Err(twice.in_inode(at).into());
        }
        at = parent;
    }
}

/// Checks the two names of a rename. Whether the second one is too long is to be checked when the
/// first one was found, as Linux looks the names up in that order.
pub(crate) fn check_names(from: &[u8], to: &[u8]) -> Result<()> {
    let is_dots = |name: &[u8]| matches!(name, b"." | b"..");
    if is_dots(from) || is_dots(to) {
        return Err(Error::Busy);
    }
    check_name(from)?;
    match check_name(to) {
        Err(Error::NameTooLong) => Ok(()),
        checked => checked,
    }
}

/// Returns the inode that a lookup found, or `None` for `NotFound`.
pub(crate) fn found(lookup: Result<InodeNr>) -> Result<Option<InodeNr>> {
    match lookup {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}
