//! **Purpose.** The identity and the capabilities of a caller, for permission checks.
//!
//! **Not here.** The rules of each operation (`crate::inode::permission`).
//!
//! **Model.** A caller has the ids of a program as file systems see them (fsuid, fsgid), further
//! groups, and capabilities.

use bitflags::bitflags;
use fourscore_ondisk::Timestamp;
use fourscore_ondisk::acl::{self, AclEntry, AclWho, Asker};

use crate::inode::cached::CachedInode;

/// The caller of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The user, for the file system.
    pub uid: u32,
    /// The group, for the file system.
    pub gid: u32,
    /// Further groups.
    pub groups: &'a [u32],
    /// Its capabilities.
    pub capabilities: Capabilities,
}

impl Caller<'_> {
    /// A caller to which nothing is denied.
    pub const ROOT: Caller<'static> = Caller {
        uid: 0,
        gid: 0,
        groups: &[],
        capabilities: Capabilities::all(),
    };

    pub(crate) fn has(&self, capability: Capabilities) -> bool {
        self.capabilities.contains(capability)
    }

    pub(crate) fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Whether the caller is the owner, or counts as the owner.
    pub(crate) fn owns(&self, inode: &CachedInode) -> bool {
        self.uid == inode.on_disk().uid() || self.has(Capabilities::FOWNER)
    }

    /// Whether the permission bits, or the list, grant all of `wish`.
    pub(crate) fn is_given(
        &self,
        inode: &CachedInode,
        list: Option<&[AclEntry]>,
        wish: Wish,
    ) -> bool {
        let (on_disk, mode) = (inode.on_disk(), inode.on_disk().mode().0);
        let asker = Asker {
            owns: self.uid == on_disk.uid(),
            uid: self.uid,
            gid: self.gid,
            groups: self.groups,
            file_gid: on_disk.gid(),
        };
        let bits = [
            (AclWho::Owner, 6),
            (AclWho::OwningGroup, 3),
            (AclWho::Other, 0),
        ];
        let bits = bits.map(|(who, shift)| AclEntry {
            who,
            permissions: (mode >> shift) & 7,
        });
        // If the mode has no bit for the group, no entry of the list can grant anything.
        let list = list.filter(|_| mode & GROUP_BITS != 0).unwrap_or(&bits);
        acl::grants(list, &asker, wish.bits())
    }
}

/// A change of attributes; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttributeChange {
    /// Permissions, set-id bits and the sticky bit.
    pub permissions: Option<u16>,
    /// The user that owns it.
    pub uid: Option<u32>,
    /// The group that owns it.
    pub gid: Option<u32>,
    /// The time of the last access.
    pub atime: Option<Timestamp>,
    /// The time of the last change of the data.
    pub mtime: Option<Timestamp>,
}

/// What happens to the set-group bit when an access list is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetGid {
    Stays,
    Goes,
}

bitflags! {
    /// Privileges beyond permissions, as in capabilities(7).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// Change the owner of files.
        const CHOWN = 1;
        /// Read, write and search regardless of the permission bits.
        const DAC_OVERRIDE = 1 << 1;
        /// Read files and search directories regardless of the permission bits.
        const DAC_READ_SEARCH = 1 << 2;
        /// Do the other things that only the owner may do.
        const FOWNER = 1 << 3;
        /// Keep the set-group bit of a file whose group the caller is not in.
        const FSETID = 1 << 4;
        /// Set and clear `IMMUTABLE_FL` and `APPEND_FL`.
        const LINUX_IMMUTABLE = 1 << 5;
        /// See and change `trusted.` attributes.
        const SYS_ADMIN = 1 << 6;
        /// Set and clear `JOURNAL_DATA_FL`.
        const SYS_RESOURCE = 1 << 7;
        /// Set `security.capability`.
        const SETFCAP = 1 << 8;
    }
}

bitflags! {
    /// Requested access to an inode, with the values of a permission's three bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Wish: u16 {
        /// Execute a file, search a directory.
        const EXECUTE = 1;
        /// Write a file, change the names in a directory.
        const WRITE = 2;
        /// Read a file, list a directory.
        const READ = 4;
    }
}

pub(crate) const GROUP_BITS: u16 = 0o070;
