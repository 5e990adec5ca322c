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
use fourscore_ondisk::{InodeNr, LogicalBlock};
use fourscore_sync::epoch;

use crate::dir::create::check_name;
use crate::dir::entries::ChangedDir;
use crate::inode::cache::{CachedInode, Changing, Locked, Pinned};
use crate::inode::flags::check_name_may_go;
use crate::inode::orphans::OrphanPlace;
use crate::map::update::Freed;
use crate::mount::writer::{Writer, now};
use crate::txn::apply::Show;
use crate::txn::plan::Plan;
use crate::txn::slot::Slot;
use crate::{Error, FileType, Fs, Result};

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

impl Fs {
    /// Takes a name away. The inode goes with its last one, or if it is open
    /// ([`OpenInode`](crate::OpenInode)) when it is closed.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `ReadOnly`; `NotPermitted` for what flags keep.
    pub fn unlink(&self, dir: InodeNr, name: &[u8]) -> Result<()> {
        let removed = self.revalidated(&[(dir, name)], || self.remove(dir, name, Victim::File));
        self.noting(removed)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NotEmpty`, `InvalidArgument` for `.`, `ReadOnly`;
    /// `NotPermitted` for what flags keep.
    pub fn rmdir(&self, dir: InodeNr, name: &[u8]) -> Result<()> {
        if name == b"." {
            return Err(Error::InvalidArgument("the last component is a dot"));
        }
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        let remove = || self.remove(dir, name, Victim::Directory);
        self.noting(self.revalidated(&[(dir, name)], remove))
    }

    fn remove(&self, dir: InodeNr, name: &[u8], victim: Victim) -> Result<()> {
        let writer = self.writer()?;
        check_name(name)?;
        let pinned_dir = self.pin_directory(dir)?;
        if victim == Victim::File && self.unlink_in_leaf((dir, &pinned_dir), name)?.is_some() {
            return Ok(());
        }
        loop {
            let nr = self.lookup_once(dir, name)?;
            if nr == dir {
                return Err(Error::InvalidArgument("a directory does not hold itself"));
            }
            let pinned = self.pin_inode(nr)?;
            let is_directory = pinned.file_type()? == FileType::Directory;
            // Directories by their numbers, files behind directories.
            let (locked_dir, locked) = if is_directory && nr < dir {
                let locked = pinned.lock();
                (pinned_dir.lock(), locked)
            } else {
                let locked_dir = pinned_dir.lock();
                (locked_dir, pinned.lock())
            };
            let parent = &self.directory_to_change(&pinned_dir)?;
            if self.look_up_locked(parent, name, &epoch::pin())? != nr {
                continue;
            }
            let inode = &pinned.copy()?;
            check_name_may_go(parent, inode)?;
            match (victim, is_directory) {
                (Victim::File, true) => return Err(Error::IsADirectory),
                (Victim::Directory, false) => return Err(Error::NotADirectory),
                _ => {}
            }
            if is_directory && !self.is_empty_dir(inode, &epoch::pin())? {
                return Err(Error::NotEmpty);
            }
            let mut plan = Plan::new(self, writer);
            let slot = plan.slot(dir)?;
            let changed = ChangedDir::new(self, parent, slot)?;
            plan.remove_name(&changed, name)?;
            let links = -i32::from(is_directory);
            let parent_version = self.touch_dir(&mut plan, parent, slot, links)?;
            let lost = self.plan_lost_name(&mut plan, inode, &locked)?;
            let last = [&locked_dir.last, &locked.last];
            plan.carry_out_showing(&last, Show::of(&[&pinned]), || {
                pinned_dir.publish(Some(parent_version));
                lost.publish(&pinned);
            })?;
            drop(locked_dir);
            return self.finish_lost(writer, (nr, &pinned), locked, lost);
        }
    }

    /// Plans that `inode` has lost a name.
    pub(crate) fn plan_lost_name(
        &self,
        plan: &mut Plan<'_>,
        inode: &CachedInode,
        locked: &Changing,
    ) -> Result<Lost> {
        let slot = plan.slot(inode.nr())?;
        let is_directory = inode.file_type() == FileType::Directory;
        let links = inode.on_disk().links_count();
        let left = if is_directory {
            0
        } else {
            links.saturating_sub(1)
        };
        plan.edit(slot, |inode| {
            inode.set_links_count(left);
            inode.set_ctime(now());
        })?;
        if left > 0 {
            return Ok(Lost::Name(plan.version(slot)?));
        }
        let is_open = locked.opens > 0;
        if !is_open {
            if let Some(file) = &locked.prealloc {
                plan.writer().allocator().discard(file);
            }
            if plan.free_map(inode, slot, LogicalBlock(0))? == Freed::All {
                self.plan_end(plan, inode, slot, locked.orphan)?;
                plan.raise_sequence();
                return Ok(Lost::Everything);
            }
        } else if is_directory {
            // Nothing is found in it any more, not even itself.
            let _ = plan.edit(slot, |inode| inode.set_size_bytes(0))?;
        }
        let place = match locked.orphan {
            Some(place) => place,
            None => plan.add_orphan(slot)?,
        };
        let version = plan.version(slot)?;
        if is_open {
            return Ok(Lost::LastName(version, place));
        }
        plan.raise_sequence();
        Ok(Lost::Part(version, place))
    }

    /// Plans that an inode goes whose blocks are free: all else of it, and its place on record.
    pub(crate) fn plan_end(
        &self,
        plan: &mut Plan<'_>,
        inode: &CachedInode,
        slot: Slot,
        orphan: Option<OrphanPlace>,
    ) -> Result<()> {
        plan.free_xattrs(inode)?;
        if let Some(place) = orphan {
            plan.remove_orphan(slot, place)?;
        }
        plan.edit(slot, |inode| {
            // It cannot be larger than what it was.
            let _ = inode.set_size_bytes(0);
            let _ = inode.set_sectors(0);
            let _ = inode.set_file_acl(None);
        })?;
        plan.set_deleted(slot, now())?;
        plan.end(slot)?;
        let is_directory = inode.file_type() == FileType::Directory;
        let claim = self.writer()?.inodes().of(self, inode.nr(), is_directory)?;
        plan.free_inode(claim)
    }

    /// Ends the removal of a name after it was published: frees the rest of an inode that goes.
    /// Only the inode's own lock is held.
    pub(crate) fn finish_lost(
        &self,
        writer: &Writer,
        (nr, pinned): (InodeNr, &Pinned),
        mut locked: Locked<'_>,
        lost: Lost,
    ) -> Result<()> {
        match lost {
            Lost::Name(_) => {}
            Lost::LastName(_, place) => locked.orphan = Some(place),
            Lost::Everything => self.forget_inode(writer, nr, pinned),
            Lost::Part(version, place) => {
                locked.orphan = Some(place);
                self.free_orphan(writer, version, &locked.last, place)?;
                self.forget_inode(writer, nr, pinned);
            }
        }
        Ok(())
    }

    /// Frees an inode that is on record and that nobody uses, in as many transactions as it takes.
    /// Readers were shown that it is gone.
    /// It can be given out again when [`Fs::forget_inode`] says so.
    pub(crate) fn free_orphan(
        &self,
        writer: &Writer,
        mut inode: CachedInode,
        last: &LastTid,
        place: OrphanPlace,
    ) -> Result<()> {
        loop {
            let mut plan = Plan::new(self, writer);
            let slot = plan.slot(inode.nr())?;
            if plan.free_map(&inode, slot, LogicalBlock(0))? == Freed::All {
                self.plan_end(&mut plan, &inode, slot, Some(place))?;
                plan.carry_out(&[last])?;
                return Ok(());
            }
            inode = plan.version(slot)?;
            plan.carry_out(&[last])?;
        }
    }

    /// Frees an inode without a name that the last user has closed.
    pub(crate) fn free_closed(
        &self,
        (nr, pinned): (InodeNr, &Pinned),
        locked: &Changing,
    ) -> Result<()> {
        let Some(place) = locked.orphan else {
            return Ok(());
        };
        let writer = self.writer()?;
        if let Some(file) = &locked.prealloc {
            writer.allocator().discard(file);
        }
        // What its table holds is what was shown last.
        let inode = CachedInode::new(self.load_inode(nr)?, self)?;
        let change = pinned.change_sequence();
        pinned.publish(None);
        drop(change);
        self.free_orphan(writer, inode, &locked.last, place)?;
        self.forget_inode(writer, nr, pinned);
        Ok(())
    }

    /// Forgets an inode that is gone. It can be given out again after that.
    pub(crate) fn forget_inode(&self, writer: &Writer, nr: InodeNr, pinned: &Pinned) {
        pinned.publish(None);
        self.drop_pinned(nr, pinned);
        writer.inodes().freed(nr, self, writer);
    }
}
