//! **Purpose.** Extended attributes: the public calls of [`Fs`].
//!
//! **Not here.** The work itself: each call passes the core or the mount to a module of `xattr`.
//!
//! **Invariants.** Calls that change something fail with `ReadOnly` if the file system was opened
//! for reading.

use fourscore_ondisk::InodeNr;

use crate::inode::caller::Caller;
use crate::xattr::change;
use crate::xattr::get::{self, Xattr, XattrPlace};
use crate::xattr::set::SetXattr;
use crate::{Fs, Result};

impl Fs {
    /// Returns where the attributes of an inode are stored (`FIEMAP_FLAG_XATTR`); `None` if it has
    /// none.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub fn xattr_place(&self, inode: InodeNr) -> Result<Option<XattrPlace>> {
        get::xattr_place(&self.core, inode)
    }

    /// Returns the extended attributes of an inode that users can see, in the order they have on
    /// disk.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`.
    pub fn xattrs(&self, inode: InodeNr) -> Result<Vec<Xattr>> {
        get::xattrs(&self.core, inode)
    }

    /// Returns the value of the attribute with the full name `name`.
    ///
    /// # Errors
    /// `NoAttribute` if there is none; `Unsupported` for a name outside the namespaces `user.`,
    /// `trusted.`, `security.`, `gnu.` and the two ACLs; `InvalidArgument` for a prefix alone.
    pub fn xattr(&self, inode: InodeNr, name: &[u8]) -> Result<Vec<u8>> {
        get::xattr(&self.core, inode, name)
    }

    /// Sets the attribute with the full name `name`. The two access control lists are given in the
    /// form of the system calls (version 2) and set the permission bits that they correspond to; an
    /// empty value removes the list.
    ///
    /// # Errors
    /// As setxattr(2): `Exists` and `NoAttribute` as `how` says; `NoSpace` if neither the inode nor
    /// the attribute block has space; `OutOfRange` for a name that is empty or longer than 255
    /// bytes; `TooBig` for a value of more than
    /// [`MAX_VALUE_BYTES`](crate::xattr::get::MAX_VALUE_BYTES); `Unsupported` for a namespace that
    /// is not `user.`, `trusted.`, `security.`, `gnu.` or that of the lists; `NotPermitted` for
    /// `user.` on anything but files and directories, and for inodes that must not change;
    /// `InvalidArgument` for a list that breaks the format; `AccessDenied` for a default list on
    /// anything but a directory; `ReadOnly`.
    pub fn set_xattr(
        &self,
        inode: InodeNr,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        change::set_xattr(self.writable()?, inode, name, value, how)
    }

    /// Sets an attribute as [`Fs::set_xattr`] does if `caller` may ([`Fs::check_xattr_change`]). An
    /// access control list clears the set-group bit if the caller is not in the group and does not
    /// have `FSETID`.
    ///
    /// # Errors
    /// As those two.
    pub fn set_xattr_as(
        &self,
        caller: &Caller<'_>,
        inode: InodeNr,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        change::set_xattr_as(self.writable()?, caller, inode, name, value, how)
    }

    /// Removes the attribute with the full name `name`.
    ///
    /// # Errors
    /// `NoAttribute` if there is none, but not for the access control lists; else as
    /// [`Fs::set_xattr`].
    pub fn remove_xattr(&self, inode: InodeNr, name: &[u8]) -> Result<()> {
        change::remove_xattr(self.writable()?, inode, name)
    }
}
