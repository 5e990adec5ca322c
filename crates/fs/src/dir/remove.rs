//! **Purpose.** The operations that take names away, and what becomes of an inode that loses its
//! last one.
//!
//! **Model.** An inode that nobody has open goes with its last name, in the same handle if what it
//! holds can be freed there. Else it is put on record in that handle, and freed piece by piece in
//! further ones; the last one takes it off the record and frees the inode. An inode that is open
//! stays, on record, until the last who has it open closes it.
//!
//! ```text
//! last name -> not open, small:  gone
//!           -> not open, large:  on record -> a piece freed -> .. -> gone
//!           -> open:             on record -> used -> closed -> (as above)
//! ```
//!
//! **Locking.** The directories in the order of their numbers, then the inode that the name leads
//! to; a directory that is removed is locked as a directory. A name is looked up before its inode
//! is known, so it is looked up again when all locks are held, and the operation begins anew if it
//! leads elsewhere now. The name of a file takes only its leaf, where it can
//! ([`crate::dir::leaf`]). While an inode is freed piece by piece only its own lock is held.
//!
//! **Crash safety.** What is on record is finished by whoever mounts the file system next.

use fourscore_journal::LastTid;
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::{InodeNr, LogicalBlock};
use fourscore_sync::epoch;

use crate::dir::changed::ChangedDir;
use crate::dir::create::{self, check_name};
use crate::dir::{entries, find, leaf, path};
use crate::inode::cached::CachedInode;
use crate::inode::cell::{Changing, Locked, Pinned};
use crate::inode::immutable::check_name_may_go;
use crate::inode::orphans::OrphanPlace;
use crate::inode::{cache, end, forget, orphan_plan};
use crate::map::update::{self, Freed};
use crate::mount::clock::now;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::apply::Show;
use crate::txn::plan::Plan;
use crate::txn::slot::{self, Slot};
use crate::xattr::set;
use crate::{Error, Result};

/// What a removal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    File,
    Directory,
}

/// What becomes of an inode that loses a name.
#[derive(Debug)]
pub(crate) enum Lost {
    /// It has others.
    Name(CachedInode),
    /// It has none and is open: it stays, on record.
    LastName(CachedInode, OrphanPlace),
    /// It is gone.
    Everything,
    /// It goes: this is what is left to be freed.
    Part(CachedInode, OrphanPlace),
}

impl Lost {
    /// Shows readers what has become of the inode: its new version, or that it is gone.
    pub(crate) fn publish(&self, pinned: &Pinned) {
        let version = match self {
            Self::Name(version) | Self::LastName(version, _) => Some(version.clone()),
            Self::Everything | Self::Part(..) => None,
        };
        pinned.publish(version);
    }
}

/// See [`Fs::unlink`](crate::Fs::unlink).
pub(crate) fn unlink(mount: &Mount, dir: InodeNr, name: &[u8]) -> Result<()> {
    let removed = path::revalidated(&mount.core, &[(dir, name)], || {
        remove(mount, dir, name, Victim::File)
    });
    errors::noting(mount, removed)
}

/// See [`Fs::rmdir`](crate::Fs::rmdir).
pub(crate) fn rmdir(mount: &Mount, dir: InodeNr, name: &[u8]) -> Result<()> {
    if name == b"." {
        return Err(Error::InvalidArgument("the last component is a dot"));
    }
    if name == b".." {
        return Err(Error::NotEmpty);
    }
    let remove = || remove(mount, dir, name, Victim::Directory);
    errors::noting(
        mount,
        path::revalidated(&mount.core, &[(dir, name)], remove),
    )
}

fn remove(mount: &Mount, dir: InodeNr, name: &[u8], victim: Victim) -> Result<()> {
    check_name(name)?;
    let pinned_dir = cache::pin_directory(&mount.core, dir)?;
    if victim == Victim::File && leaf::unlink_in_leaf(mount, (dir, &pinned_dir), name)?.is_some() {
        return Ok(());
    }
    loop {
        let nr = find::lookup_once(&mount.core, dir, name)?;
        if nr == dir {
            return Err(Error::InvalidArgument("a directory does not hold itself"));
        }
        let pinned = cache::pin_inode(&mount.core, nr)?;
        let is_directory = pinned.file_type()? == FileType::Directory;
        // Directories by their numbers, files behind directories.
        let (locked_dir, locked) = if is_directory && nr < dir {
            let locked = pinned.lock();
            (pinned_dir.lock(), locked)
        } else {
            let locked_dir = pinned_dir.lock();
            (locked_dir, pinned.lock())
        };
        let parent = &create::directory_to_change(&mount.core, &pinned_dir)?;
        if find::look_up_locked(&mount.core, parent, name, &epoch::pin())? != nr {
            continue;
        }
        let inode = &pinned.copy()?;
        check_name_may_go(parent, inode)?;
        match (victim, is_directory) {
            (Victim::File, true) => return Err(Error::IsADirectory),
            (Victim::Directory, false) => return Err(Error::NotADirectory),
            _ => {}
        }
        if is_directory && !entries::is_empty_dir(&mount.core, inode, &epoch::pin())? {
            return Err(Error::NotEmpty);
        }
        let mut plan = Plan::new(mount);
        let slot = slot::slot(&mut plan, dir)?;
        let changed = ChangedDir::new(&mount.core, parent, slot)?;
        entries::remove_name(&mut plan, &changed, name)?;
        let links = -i32::from(is_directory);
        let parent_version = create::touch_dir(&mount.core, &mut plan, parent, slot, links)?;
        let lost = plan_lost_name(mount, &mut plan, inode, &locked)?;
        let last = [&locked_dir.last, &locked.last];
        plan.carry_out_showing(&last, Show::of(&[&pinned]), || {
            pinned_dir.publish(Some(parent_version));
            lost.publish(&pinned);
        })?;
        drop(locked_dir);
        return finish_lost(mount, (nr, &pinned), locked, lost);
    }
}

/// Plans that `inode` has lost a name.
pub(crate) fn plan_lost_name(
    mount: &Mount,
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    locked: &Changing,
) -> Result<Lost> {
    let slot = slot::slot(plan, inode.nr())?;
    let is_directory = inode.file_type() == FileType::Directory;
    let links = inode.on_disk().links_count();
    let left = if is_directory {
        0
    } else {
        links.saturating_sub(1)
    };
    slot::edit(plan, slot, |inode| {
        inode.set_links_count(left);
        inode.set_ctime(now());
    })?;
    if left > 0 {
        return Ok(Lost::Name(slot::version(plan, slot)?));
    }
    let is_open = locked.opens > 0;
    if !is_open {
        if let Some(file) = &locked.prealloc {
            plan.mount.allocator().discard(file);
        }
        if update::free_map(plan, inode, slot, LogicalBlock(0))? == Freed::All {
            plan_end(mount, plan, inode, slot, locked.orphan)?;
            plan.raise_sequence();
            return Ok(Lost::Everything);
        }
    } else if is_directory {
        // Nothing is found in it any more, not even itself.
        let _ = slot::edit(plan, slot, |inode| inode.set_size_bytes(0))?;
    }
    let place = match locked.orphan {
        Some(place) => place,
        None => orphan_plan::add_orphan(plan, slot)?,
    };
    let version = slot::version(plan, slot)?;
    if is_open {
        return Ok(Lost::LastName(version, place));
    }
    plan.raise_sequence();
    Ok(Lost::Part(version, place))
}

/// Plans the end of an inode whose data blocks are free: its attributes, its place on the orphan
/// list and the inode itself.
pub(crate) fn plan_end(
    mount: &Mount,
    plan: &mut Plan<'_>,
    inode: &CachedInode,
    slot: Slot,
    orphan: Option<OrphanPlace>,
) -> Result<()> {
    set::free_xattrs(plan, inode)?;
    end::end_inode(mount, plan, inode, slot, orphan)
}

/// Ends the removal of a name after it was published: frees the rest of an inode that goes.
/// Only the inode's own lock is held.
pub(crate) fn finish_lost(
    mount: &Mount,
    (nr, pinned): (InodeNr, &Pinned),
    mut locked: Locked<'_>,
    lost: Lost,
) -> Result<()> {
    match lost {
        Lost::Name(_) => {}
        Lost::LastName(_, place) => locked.orphan = Some(place),
        Lost::Everything => forget::forget_inode(mount, nr, pinned),
        Lost::Part(version, place) => {
            locked.orphan = Some(place);
            free_orphan(mount, version, &locked.last, place)?;
            forget::forget_inode(mount, nr, pinned);
        }
    }
    Ok(())
}

/// Frees an inode that is on record and that nobody uses, in as many transactions as it takes.
/// Readers were shown that it is gone.
/// It can be given out again when [`Fs::forget_inode`] says so.
pub(crate) fn free_orphan(
    mount: &Mount,
    mut inode: CachedInode,
    last: &LastTid,
    place: OrphanPlace,
) -> Result<()> {
    loop {
        let mut plan = Plan::new(mount);
        let slot = slot::slot(&mut plan, inode.nr())?;
        if update::free_map(&mut plan, &inode, slot, LogicalBlock(0))? == Freed::All {
            plan_end(mount, &mut plan, &inode, slot, Some(place))?;
            plan.carry_out(&[last])?;
            return Ok(());
        }
        inode = slot::version(&mut plan, slot)?;
        plan.carry_out(&[last])?;
    }
}
/// Frees an inode that was closed last and has no name, and notes an error.
pub(crate) fn close_nameless(
    mount: &Mount,
    inode: (InodeNr, &Pinned),
    locked: &Changing,
) -> Result<()> {
    errors::noting(mount, free_closed(mount, inode, locked))
}

/// Frees an inode without a name that the last user has closed.
fn free_closed(mount: &Mount, (nr, pinned): (InodeNr, &Pinned), locked: &Changing) -> Result<()> {
    let Some(place) = locked.orphan else {
        return Ok(());
    };
    if let Some(file) = &locked.prealloc {
        mount.allocator().discard(file);
    }
    // What its table holds is what was shown last.
    let inode = CachedInode::new(cache::load_inode(&mount.core, nr)?, mount.core.superblock())?;
    let change = pinned.change_sequence();
    pinned.publish(None);
    drop(change);
    free_orphan(mount, inode, &locked.last, place)?;
    forget::forget_inode(mount, nr, pinned);
    Ok(())
}
