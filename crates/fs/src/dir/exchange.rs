//! **Purpose.** The exchange of two names (`RENAME_EXCHANGE`).
//!
//! **Model.** As a rename ([`crate::dir::rename`]), but no name is removed: each name refers to the
//! inode that the other one referred to. Directories that change their parent get a new `..`.
//!
//! **Locking.** That of rename.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;

use crate::core::Core;
use crate::dir::changed::ChangedDir;
use crate::dir::new_inode::{self, check_key, check_name, entry_type};
use crate::dir::rename::{self, Renaming, Replace, Taking, Versions, check_names};
use crate::dir::{entries, find, path};
use crate::inode::immutable::{check_name_may_go, check_project};
use crate::mount::clock::now;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, Result};

/// See [`Fs::exchange`](crate::Fs::exchange).
pub(crate) fn exchange(
    mount: &Mount,
    one: (InodeNr, &[u8]),
    other: (InodeNr, &[u8]),
) -> Result<()> {
    errors::noting(
        mount,
        path::revalidated(&mount.core, &[one, other], || {
            exchange_names(mount, one, other)
        }),
    )
}

fn exchange_names(mount: &Mount, one: (InodeNr, &[u8]), other: (InodeNr, &[u8])) -> Result<()> {
    check_names(one.1, other.1)?;
    loop {
        let nr = find::lookup_once(&mount.core, one.0, one.1)?;
        check_name(other.1)?;
        let second = find::lookup_once(&mount.core, other.0, other.1)?;
        let names = Renaming {
            from: one,
            to: other,
            nr,
            victim: Some(second),
            replace: Replace::Yes,
            whiteout: None,
        };
        if try_exchange(mount, &names, second)? {
            return Ok(());
        }
    }
}

/// Exchanges the names, if they still refer to the same inodes; returns `false` if not.
fn try_exchange(mount: &Mount, names: &Renaming<'_>, second: InodeNr) -> Result<bool> {
    let (taking, moves) = rename::take_for(mount, names)?;
    let locked: Vec<_> = taking.0.iter().map(|(_, pinned)| pinned.lock()).collect();
    if !rename::names_still_refer(&mount.core, names, &taking)? {
        return Ok(false);
    }
    if names.is_of_one_inode() {
        return Ok(true);
    }
    if moves.is_into_itself || moves.is_out_of_victim {
        return Err(Error::InvalidArgument(
            "a directory cannot be moved below itself",
        ));
    }
    let mut plan = Plan::new(mount);
    let versions = plan_exchange(&mount.core, &mut plan, names, second, &taking)?;
    let last: Vec<_> = locked.iter().map(|locked| &locked.last).collect();
    let dirs = [taking.get(names.from.0)?, taking.get(names.to.0)?];
    let changes = if names.is_across() {
        &dirs[..]
    } else {
        &dirs[..1]
    };
    // A reader must not find one inode under both names.
    plan.raise_sequence();
    plan.apply_publishing(&last, Publication::of(changes), || taking.publish(versions))?;
    Ok(true)
}

fn plan_exchange(
    core: &Core,
    plan: &mut Plan<'_>,
    names: &Renaming<'_>,
    second: InodeNr,
    taking: &Taking,
) -> Result<Versions> {
    let dirs = [names.from.0, names.to.0];
    let inodes = [names.nr, second];
    let entries = [names.from.1, names.to.1];
    let is_dir = |nr| -> Result<bool> { Ok(taking.get(nr)?.file_type()? == FileType::Directory) };
    let mut versions = Vec::with_capacity(4);
    for (here, there) in [(0, 1), (1, 0)] {
        let dir = &new_inode::directory_to_change(taking.get(dirs[here])?)?;
        let goes = &taking.get(inodes[here])?.copy()?;
        let comes = &taking.get(inodes[there])?.copy()?;
        check_key(dir)?;
        check_name_may_go(dir, goes)?;
        check_project(dir, comes)?;
        let slot = slot::slot(plan, dirs[here])?;
        let changed = ChangedDir::new(core, dir, slot)?;
        let kind = entry_type(comes.file_type());
        entries::redirect_name(plan, &changed, entries[here], inodes[there], kind)?;
        let mut links = 0;
        if names.is_across() {
            links = i32::from(is_dir(inodes[there])?) - i32::from(is_dir(inodes[here])?);
            if links > 0 {
                new_inode::check_subdirectory(core, dir)?;
            }
        }
        let version = new_inode::touch_dir(core, plan, dir, slot, links)?;
        // Both names may be in one directory: then the later version has both changes.
        versions.retain(|(nr, _)| *nr != dirs[here]);
        versions.push((dirs[here], version));
    }
    for (here, there) in [(0, 1), (1, 0)] {
        let slot = slot::slot(plan, inodes[here])?;
        slot::edit(plan, slot, |inode| inode.set_ctime(now()))?;
        if names.is_across() && is_dir(inodes[here])? {
            let inode = &taking.get(inodes[here])?.copy()?;
            let moved = ChangedDir::new(core, inode, slot)?;
            entries::set_parent(plan, &moved, dirs[there])?;
        }
        versions.push((inodes[here], slot::version(plan, slot)?));
    }
    Ok(versions)
}
