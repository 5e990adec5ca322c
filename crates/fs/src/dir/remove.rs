//! **Purpose.** Removes names (unlink, rmdir), and inodes that lose their last name.
//!
//! **Model.** An inode that is not open is freed with its last name, in the same handle if all its
//! blocks can be freed there. Otherwise that handle puts it on the orphan list ("orphan" below),
//! and further handles free it piece by piece; the last of them removes it from the orphan list and
//! frees the inode. An inode that is open stays, on the orphan list, until its open count falls to
//! zero.
//!
//! ```text
//! last name -> not open, small:  gone
//!           -> not open, large:  orphan -> a piece freed -> .. -> gone
//!           -> open:             orphan -> used -> closed -> (as above)
//! ```
//!
//! **Locking.** The directories in the order of their numbers, then the inode that the name refers
//! to; a directory that is removed is locked as a directory. A name is looked up before its inode
//! is known. So it is looked up again when all locks are held, and the operation restarts if the
//! name refers to another inode by then. The removal of a file's name locks only its leaf, where
//! possible ([`crate::dir::leaf`]). While an inode is freed piece by piece only its own lock is
//! held.
//!
//! **Crash safety.** The next mount frees the inodes that are on the orphan list.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;

use crate::dir::changed::ChangedDir;
use crate::dir::new_inode::{self, check_name};
use crate::dir::{entries, find, leaf, lost_name, path};
use crate::inode::cached::CachedInode;
use crate::inode::cell::HeldInode;
use crate::inode::immutable::check_name_may_go;
use crate::inode::{cache, forget};
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, Result};

/// Which type of inode an operation removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    File,
    Directory,
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
    if victim == Victim::File && leaf::unlink_in_leaf(mount, dir, &pinned_dir, name)?.is_some() {
        return Ok(());
    }
    loop {
        let nr = find::lookup_once(&mount.core, dir, name)?;
        if nr == dir {
            return Err(Error::InvalidArgument("a directory does not hold itself"));
        }
        let pinned = cache::pin_inode(&mount.core, nr)?;
        let is_directory = pinned.file_type()? == FileType::Directory;
        // Directories by number, then files.
        let (locked_dir, locked) = if is_directory && nr < dir {
            let locked = pinned.lock();
            (pinned_dir.lock(), locked)
        } else {
            let locked_dir = pinned_dir.lock();
            (locked_dir, pinned.lock())
        };
        let parent = &new_inode::directory_to_change(&pinned_dir)?;
        if find::look_up_locked(&mount.core, parent, name)? != nr {
            continue;
        }
        let inode = &pinned.copy()?;
        check_name_may_go(parent, inode)?;
        match (victim, is_directory) {
            (Victim::File, true) => return Err(Error::IsADirectory),
            (Victim::Directory, false) => return Err(Error::NotADirectory),
            _ => {}
        }
        if is_directory && !entries::is_empty_dir(&mount.core, inode)? {
            return Err(Error::NotEmpty);
        }
        let mut plan = Plan::new(mount);
        let slot = slot::slot(&mut plan, dir)?;
        let changed = ChangedDir::new(&mount.core, parent, slot)?;
        entries::remove_name(&mut plan, &changed, name)?;
        let links = -i32::from(is_directory);
        let parent_version = new_inode::touch_dir(&mount.core, &mut plan, parent, slot, links)?;
        let lost = lost_name::plan_lost_name(mount, &mut plan, inode, &locked)?;
        let last = [&locked_dir.last, &locked.last];
        plan.apply_publishing(&last, Publication::of(&[&pinned]), || {
            pinned_dir.publish(Some(parent_version));
            lost.publish(&pinned);
        })?;
        drop(locked_dir);
        return lost_name::finish_lost(mount, nr, &pinned, locked, lost);
    }
}

/// Frees an inode without a name whose open count has fallen to zero, and notes an error.
pub(crate) fn close_nameless(mount: &Mount, nr: InodeNr, inode: HeldInode<'_>) -> Result<()> {
    errors::noting(mount, free_closed(mount, nr, inode))
}

/// Frees an inode without a name whose open count has fallen to zero.
fn free_closed(mount: &Mount, nr: InodeNr, inode: HeldInode<'_>) -> Result<()> {
    let HeldInode { pinned, locked } = inode;
    let Some(place) = locked.orphan else {
        return Ok(());
    };
    if let Some(file) = &locked.prealloc {
        mount.allocator().discard(file);
    }
    // Its slot in the inode table holds the version that was published last.
    let inode = CachedInode::new(cache::load_inode(&mount.core, nr)?, mount.core.superblock())?;
    let change = pinned.change_sequence();
    pinned.publish(None);
    drop(change);
    lost_name::free_orphan(mount, inode, &locked.last, place)?;
    forget::forget_inode(mount, nr, pinned);
    Ok(())
}
