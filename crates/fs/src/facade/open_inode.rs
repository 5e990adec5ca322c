//! **Purpose.** Open inodes: as long as an inode is open it can be used, with a name or without.
//!
//! **Model.** All calls take inode numbers, and the number of an open inode stays valid. A caller
//! that keeps a number across calls, while other threads may remove names, opens the inode. When
//! the open count of an inode without a name falls to zero, it is freed.
//!
//! **Locking.** Opening and closing take the inode's lock.
//!
//! **Crash safety.** An inode without a name is on the orphan list, so the next mount frees it if
//! the program ends without closing it.

use std::fmt;
use std::ops::Deref;

use fourscore_ondisk::InodeNr;
use fourscore_sync::{Arc, epoch};

use crate::dir::new_inode::NewAttributes;
use crate::dir::{create, path, remove};
use crate::file::preallocation;
use crate::inode::cache;
use crate::inode::cell::Pinned;
use crate::{Fs, Result};

/// An open inode. It is closed when this is dropped; [`OpenInode::close`] also returns whether that
/// succeeded.
///
/// `F` is the reference to the file system: an `Arc<Fs>`, or a plain reference, which writes no
/// count that all cores share. A file system cannot be unmounted while inodes of it are open.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use fourscore::{Fs, InodeNr, NewAttributes, OpenInode, Result};
/// # fn temporary(fs: &Arc<Fs>, new: &NewAttributes) -> Result<()> {
/// let file = OpenInode::unnamed(&**fs, InodeNr::ROOT, new)?;
/// fs.write_at(file.inode(), b"a file without a name", 0)?;
/// file.close()
/// # }
/// ```
pub struct OpenInode<F: Deref<Target = Fs> = Arc<Fs>> {
    fs: F,
    nr: InodeNr,
    pinned: Pinned,
    is_closed: bool,
}

impl<F: Deref<Target = Fs>> OpenInode<F> {
    /// Opens an inode by its number.
    ///
    /// # Errors
    /// `NotFound` if no such inode is in use; `Corrupt`, `Io`.
    pub fn new(fs: F, inode: InodeNr) -> Result<Self> {
        let pinned = cache::pin_inode(&fs.core, inode)?;
        {
            let mut locked = pinned.lock();
            pinned.version(&epoch::pin())?;
            locked.open();
        }
        Ok(Self::opened(fs, inode, pinned))
    }

    /// Opens the inode that `name` refers to in `dir`, whatever other threads do to names
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Fs::lookup`].
    pub fn named(fs: F, dir: InodeNr, name: &[u8]) -> Result<Self> {
        let (inode, pinned) = path::revalidated(&fs.core, &[(dir, name)], || {
            loop {
                let inode = fs.lookup(dir, name)?;
                let pinned = cache::pin_inode(&fs.core, inode)?;
                // The number is not reused while it is pinned. So if the name refers to it now, and
                // the pinned inode is not gone, the name referred to this inode.
                if fs.lookup(dir, name)? != inode {
                    continue;
                }
                let mut locked = pinned.lock();
                pinned.version(&epoch::pin())?;
                locked.open();
                drop(locked);
                return Ok((inode, pinned));
            }
        })?;
        Ok(Self::opened(fs, inode, pinned))
    }

    /// Makes an empty regular file and opens it, whatever other threads do to names meanwhile.
    ///
    /// # Errors
    /// As [`Fs::create`].
    pub fn created(fs: F, dir: InodeNr, name: &[u8], new: &NewAttributes) -> Result<Self> {
        let (nr, pinned) = create::create_open(fs.writable()?, dir, name, new)?;
        Ok(Self::opened(fs, nr, pinned))
    }

    /// Makes a regular file without a name, as `O_TMPFILE` does, near the directory `dir`.
    /// [`Fs::link`] gives it a name; without one it is freed when it is closed.
    ///
    /// # Errors
    /// `NotADirectory`, `NotFound`, `NoSpace`, `ReadOnly`.
    pub fn unnamed(fs: F, dir: InodeNr, new: &NewAttributes) -> Result<Self> {
        let (nr, pinned) = create::unnamed(fs.writable()?, dir, new)?;
        Ok(Self::opened(fs, nr, pinned))
    }

    fn opened(fs: F, nr: InodeNr, pinned: Pinned) -> Self {
        Self {
            fs,
            nr,
            pinned,
            is_closed: false,
        }
    }

    /// Returns the inode's number.
    #[must_use]
    pub fn inode(&self) -> InodeNr {
        self.nr
    }

    /// Returns the file system.
    pub(crate) fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Closes the inode. When its open count falls to zero, space that was preallocated for it is
    /// given back; if it has no name, its blocks and the inode are freed when this returns.
    ///
    /// # Errors
    /// `Io` if the device fails; then the next mount frees the inode.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        let mut locked = self.pinned.lock();
        if !locked.close() {
            return Ok(());
        }
        if let Some(mount) = &self.fs.mount {
            preallocation::give_back(mount, &locked);
        }
        let is_nameless = {
            let guard = epoch::pin();
            match self.pinned.version(&guard) {
                Ok(inode) => inode.on_disk().links_count() == 0,
                Err(_) => false,
            }
        };
        if !is_nameless {
            return Ok(());
        }
        // An inode without a name exists only in a file system that is mounted for writing.
        let mount = self.fs.writable()?;
        remove::close_nameless(mount, self.nr, self.pinned.held(&locked))
    }
}

impl<F: Deref<Target = Fs>> Drop for OpenInode<F> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(inode = self.nr.0, %error, "what is left is freed at the next mount");
        }
    }
}

impl<F: Deref<Target = Fs>> fmt::Debug for OpenInode<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenInode").field(&self.nr).finish()
    }
}
