//! **Purpose.** Access control lists of the model. Each names one user besides owner, group and
//! others, which is enough to cover the relation between lists and permission bits.
//!
//! **References.** acl(5); the form of `system.posix_acl_access` is that of Linux's system calls.

/// The user that lists name.
const NAMED_USER: u32 = 1234;

/// A list; each part is three permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    pub(crate) owner: u16,
    pub(crate) named: u16,
    pub(crate) group: u16,
    pub(crate) mask: u16,
    pub(crate) others: u16,
}

impl Acl {
    /// The list in the format of the system calls.
    pub(crate) fn bytes(self) -> Vec<u8> {
        const VERSION: u32 = 2;
        const NO_ID: u32 = u32::MAX;
        let entries = [
            (0x01_u16, self.owner, NO_ID),
            (0x02, self.named, NAMED_USER),
            (0x04, self.group, NO_ID),
            (0x10, self.mask, NO_ID),
            (0x20, self.others, NO_ID),
        ];
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// The equivalent permission bits: those of the group are the mask.
    pub(crate) fn bits(self) -> u16 {
        self.owner << 6 | self.mask << 3 | self.others
    }

    /// The list after chmod.
    pub(crate) fn after_chmod(self, permissions: u16) -> Self {
        Self {
            owner: permissions >> 6 & 7,
            mask: permissions >> 3 & 7,
            others: permissions & 7,
            ..self
        }
    }

    /// The list of an inode that is created with `permissions` in a directory with this default
    /// list.
    pub(crate) fn inherited(self, permissions: u16) -> Self {
        self.after_chmod(self.bits() & permissions)
    }
}
