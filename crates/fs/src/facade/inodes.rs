//! **Purpose.** Inodes and their attributes: the public calls of [`Fs`].
//!
//! **Not here.** The work itself: each call passes the core or the mount to a module of `inode`.
//!
//! **Invariants.** Calls that change something fail with `ReadOnly` if the file system was opened
//! for reading. Permissions of users are checked only by calls that take a caller.

use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeGeneration, InodeNr};

use crate::inode::attributes::{self, Noted, NotedTimes, Privileges};
use crate::inode::caller::{AttributeChange, Caller, Wish};
use crate::inode::stat::{self, Scanned, Stat};
use crate::inode::{access_times, cache, flags, permission};
use crate::{Fs, Result};

impl Fs {
    /// Notes that the data of `inode` was read: its time of last access becomes now, if the mount
    /// options and the inode require that. Otherwise the call only reads the inode.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `Io`.
    pub fn accessed(&self, inode: InodeNr) -> Result<()> {
        access_times::accessed(self.writable()?, inode)
    }

    /// Changes attributes of an inode. The access control list changes with the permissions. A new
    /// owner or group removes the set-user bit, the set-group bit (where the group may execute) and
    /// `security.capability` from anything but a directory, as in Linux, for any caller.
    ///
    /// # Errors
    /// `NotFound`; `NotPermitted` for an immutable or append-only inode; `ReadOnly`.
    pub fn set_attributes(&self, inode: InodeNr, change: &AttributeChange) -> Result<()> {
        attributes::set_attributes(self.writable()?, inode, change)
    }

    /// Sets times as [`Fs::set_attributes`] does, but `why` decides what the inode's flags forbid.
    ///
    /// # Errors
    /// As `set_attributes`; `NotPermitted` as `why` says.
    pub fn note_times(&self, inode: InodeNr, times: &NotedTimes, why: Noted) -> Result<()> {
        attributes::note_times(self.writable()?, inode, times, why)
    }

    /// Removes the privileges that a file must not keep when `caller` changes its data: what Linux
    /// does before each write, truncation and preallocation. A caller that acts for users calls
    /// this before those operations. If there is nothing to remove, the call only reads the inode.
    ///
    /// From regular files it removes `security.capability`, for any caller. Unless the caller has
    /// `FSETID` it also removes the set-user bit, and the set-group bit where the group may execute
    /// or the caller is not in it.
    ///
    /// # Errors
    /// `NotFound`, `NotPermitted` for an immutable inode with something to remove, `ReadOnly`.
    pub fn remove_privileges(&self, inode: InodeNr, caller: &Caller<'_>) -> Result<Privileges> {
        attributes::remove_privileges(self.writable()?, inode, caller)
    }

    /// Returns the attributes of `inode`.
    ///
    /// # Errors
    /// `NotFound` if no such inode is in use, or if it holds the value of an attribute
    /// ([`Fs::holds_value`]).
    pub fn stat(&self, inode: InodeNr) -> Result<Stat> {
        stat::stat(&self.core, inode)
    }

    /// As [`Fs::stat`], for callers that read many inodes once, such as a walk of the whole tree:
    /// the inode does not enter the cache, which costs more than decoding it. Also returns whether
    /// the inode may have extended attributes to query.
    ///
    /// # Errors
    /// As [`Fs::stat`].
    pub fn scan(&self, inode: InodeNr) -> Result<Scanned> {
        stat::scan(&self.core, inode)
    }

    /// Whether `inode` holds the value of an attribute (`EA_INODE_FL`). No name may refer to such
    /// an inode, its time fields hold no times, and as a file it is not found by its number.
    ///
    /// # Errors
    /// `NotFound` if no such inode is in use.
    pub fn holds_value(&self, inode: InodeNr) -> Result<bool> {
        cache::holds_value(&self.core, inode)
    }

    /// Sets the flags of an inode (`FS_IOC_SETFLAGS`). Flags that only the file system changes keep
    /// their values, whatever `flags` has for them.
    ///
    /// # Errors
    /// `Unsupported` for flags that users do not see or that the inode's type does not have, and
    /// for `CASEFOLD_FL` without the feature; `NotEmpty` for `CASEFOLD_FL` of a directory with
    /// entries; `NotPermitted` if the inode is immutable and stays so; `NotFound`, `ReadOnly`.
    /// `Unsupported` for `EXTENTS_FL`, too, which would change how the data is mapped; as in Linux,
    /// the other flags have changed then.
    pub fn set_flags(&self, inode: InodeNr, flags: InodeFlags) -> Result<()> {
        flags::set_flags(self.writable()?, inode, flags)
    }

    /// Sets the project that an inode counts for (`FS_IOC_FSSETXATTR`).
    ///
    /// # Errors
    /// `Unsupported` without the feature `project`, or if the inode has no space for it;
    /// `NotPermitted` for an immutable inode; `NotFound`, `ReadOnly`.
    pub fn set_project(&self, inode: InodeNr, project_id: u32) -> Result<()> {
        flags::set_project(self.writable()?, inode, project_id)
    }

    /// Sets the generation, which distinguishes the uses of an inode number (`FS_IOC_SETVERSION`).
    ///
    /// # Errors
    /// `Unsupported` with the feature `metadata_csum`: the checksums of all blocks of the inode
    /// depend on it; `NotPermitted` for an immutable inode; `NotFound`, `ReadOnly`.
    pub fn set_generation(&self, inode: InodeNr, generation: InodeGeneration) -> Result<()> {
        flags::set_generation(self.writable()?, inode, generation)
    }

    /// Checks whether `caller` may do all of `wish` with `inode`.
    ///
    /// # Errors
    /// `AccessDenied` if not; `NotPermitted` for writing to an immutable inode; `NotFound`.
    pub fn check_access(&self, inode: InodeNr, wish: Wish, caller: &Caller<'_>) -> Result<()> {
        permission::check_access(&self.core, inode, wish, caller)
    }

    /// Checks whether `caller` may remove the name of `inode` from `dir`, or replace it.
    ///
    /// # Errors
    /// `AccessDenied` without the permission to write to and search the directory; `NotPermitted`
    /// where it is sticky and neither belongs to the caller; `NotFound`.
    pub fn check_removal(&self, dir: InodeNr, inode: InodeNr, caller: &Caller<'_>) -> Result<()> {
        permission::check_removal(&self.core, dir, inode, caller)
    }

    /// Checks whether `caller` may read the attribute `name` of `inode`.
    ///
    /// # Errors
    /// `NoAttribute` for `trusted.` attributes, which do not exist for most callers; `AccessDenied`
    /// without the permission to read; `NotFound`.
    pub fn check_xattr_read(&self, inode: InodeNr, name: &[u8], caller: &Caller<'_>) -> Result<()> {
        permission::check_xattr_read(&self.core, inode, name, caller)
    }

    /// Checks whether `caller` may set or remove the attribute `name` of `inode`.
    ///
    /// # Errors
    /// `NotPermitted` for `trusted.` and `security.` attributes, for access control lists of
    /// others, and for `user.` attributes of a sticky directory of others; `AccessDenied` without
    /// the permission to write; `NotFound`.
    pub fn check_xattr_change(
        &self,
        inode: InodeNr,
        name: &[u8],
        caller: &Caller<'_>,
    ) -> Result<()> {
        permission::check_xattr_change(&self.core, inode, name, caller)
    }

    /// Returns the part of `change` that `caller` may make: all of it, but for the set-group bit of
    /// a group that the caller is not in. A change of owner also removes that bit where it would
    /// stay otherwise, since the group may not execute.
    ///
    /// # Errors
    /// `NotPermitted` if no part of it is permitted; `NotFound`.
    pub fn permitted_change(
        &self,
        inode: InodeNr,
        change: &AttributeChange,
        caller: &Caller<'_>,
    ) -> Result<AttributeChange> {
        permission::permitted_change(&self.core, inode, change, caller)
    }

    /// Checks whether `caller` may give `inode` these flags.
    ///
    /// # Errors
    /// `NotPermitted` if the caller is not the owner, or changes flags that require a capability;
    /// `NotFound`.
    pub fn check_flags_change(
        &self,
        inode: InodeNr,
        flags: InodeFlags,
        caller: &Caller<'_>,
    ) -> Result<()> {
        permission::check_flags_change(&self.core, inode, flags, caller)
    }
}
