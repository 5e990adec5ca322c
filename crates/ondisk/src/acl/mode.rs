//! **Purpose.** The relation between an access control list and the permission bits of a mode, and
//! the access check.
//!
//! **Model.** The bits of owner and others correspond to the entries of owner and others. The bits
//! of the group correspond to the mask if there is one, else to the entry of the owning group. A
//! list without mask and named entries is equivalent to the bits.
//!
//! **References.** acl(5), "Correspondence between ACL entries and file permission bits", "Object
//! creation and default ACLs", "Access check algorithm".

use super::{AclEntry, AclWho};

const OWNER_SHIFT: u16 = 6;
const GROUP_SHIFT: u16 = 3;
const READ_WRITE_EXECUTE: u16 = super::READ_WRITE_EXECUTE;

/// Whether a list expresses more than permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// It is equivalent to the bits.
    NoMore,
    /// It has a mask or names users or groups.
    More,
}

/// The credentials of an access check.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// Whether the user is the file's owner.
    pub owns: bool,
    /// The user.
    pub uid: u32,
    /// The supplementary groups, without [`Self::gid`].
    pub groups: &'a [u32],
    /// The primary group.
    pub gid: u32,
    /// The file's group.
    pub file_gid: u32,
}

impl Asker<'_> {
    /// Whether the user is a member of `group`.
    #[must_use]
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// The nine permission bits that correspond to a list, and whether it expresses more than them.
#[must_use]
pub fn mode_of(entries: &[AclEntry]) -> (u16, Says) {
    let mut mode = 0;
    let mut mask = None;
    let mut says = Says::NoMore;
    for entry in entries {
        match entry.who {
            AclWho::Owner => mode |= entry.permissions << OWNER_SHIFT,
            AclWho::OwningGroup => mode |= entry.permissions << GROUP_SHIFT,
            AclWho::Other => mode |= entry.permissions,
            AclWho::Mask => mask = Some(entry.permissions),
            AclWho::User(_) | AclWho::Group(_) => says = Says::More,
        }
    }
    if let Some(mask) = mask {
        says = Says::More;
        mode = (mode & !(READ_WRITE_EXECUTE << GROUP_SHIFT)) | mask << GROUP_SHIFT;
    }
    (mode, says)
}

/// The shift of the permission bits of an entry in a mode; `None` for entries without such bits. If
/// there is a mask, it has the bits of the group instead of the owning group.
fn shift_of(who: AclWho, has_mask: bool) -> Option<u16> {
    match who {
        AclWho::Owner => Some(OWNER_SHIFT),
        AclWho::Mask => Some(GROUP_SHIFT),
        AclWho::OwningGroup if !has_mask => Some(GROUP_SHIFT),
        AclWho::Other => Some(0),
        AclWho::OwningGroup | AclWho::User(_) | AclWho::Group(_) => None,
    }
}

/// Updates a list after a change of the permission bits to `mode`.
pub fn chmod(entries: &mut [AclEntry], mode: u16) {
    let has_mask = entries.iter().any(|entry| entry.who == AclWho::Mask);
    for entry in entries {
        if let Some(shift) = shift_of(entry.who, has_mask) {
            entry.permissions = (mode >> shift) & READ_WRITE_EXECUTE;
        }
    }
}

/// Turns a directory's default list into the access list of an inode created in it with the
/// permission bits `mode`, which limit all entries. Returns the bits of the new inode.
pub fn inherit(entries: &mut [AclEntry], mode: u16) -> u16 {
    let has_mask = entries.iter().any(|entry| entry.who == AclWho::Mask);
    for entry in entries.iter_mut() {
        if let Some(shift) = shift_of(entry.who, has_mask) {
            entry.permissions &= mode >> shift;
        }
    }
    mode_of(entries).0
}

/// Whether the list grants `asker` all permissions of `wanted`: read 4, write 2, execute 1.
#[must_use]
pub fn grants(entries: &[AclEntry], asker: &Asker<'_>, wanted: u16) -> bool {
    let find = |who: AclWho| entries.iter().find(|entry| entry.who == who);
    let gives = |permissions: u16| permissions & wanted == wanted;
    let mask = find(AclWho::Mask).map_or(READ_WRITE_EXECUTE, |mask| mask.permissions);
    if asker.owns {
        return find(AclWho::Owner).is_some_and(|entry| gives(entry.permissions));
    }
    if let Some(named) = find(AclWho::User(asker.uid)) {
        return gives(named.permissions & mask);
    }
    let mut in_group = false;
    for entry in entries {
        let applies = match entry.who {
            AclWho::OwningGroup => asker.is_in(asker.file_gid),
            AclWho::Group(group) => asker.is_in(group),
            _ => false,
        };
        in_group |= applies;
        // One group must grant all of them; two groups that grant a part each do not suffice.
        if applies && gives(entry.permissions & mask) {
            return true;
        }
    }
    !in_group && find(AclWho::Other).is_some_and(|entry| gives(entry.permissions))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(who: AclWho, permissions: u16) -> AclEntry {
        AclEntry { who, permissions }
    }

    /// `u::rwx,u:1000:rwx,g::r-x,g:7:-w-,m::rwx,o::r--`
    fn full() -> Vec<AclEntry> {
        vec![
            entry(AclWho::Owner, 7),
            entry(AclWho::User(1000), 7),
            entry(AclWho::OwningGroup, 5),
            entry(AclWho::Group(7), 2),
            entry(AclWho::Mask, 7),
            entry(AclWho::Other, 4),
        ]
    }

    fn minimal() -> Vec<AclEntry> {
        vec![
            entry(AclWho::Owner, 7),
            entry(AclWho::OwningGroup, 5),
            entry(AclWho::Other, 4),
        ]
    }

    #[test]
    fn the_group_bits_are_the_mask() {
        assert_eq!(mode_of(&full()), (0o774, Says::More));
        assert_eq!(mode_of(&minimal()), (0o754, Says::NoMore));
    }

    #[test]
    fn changed_bits_change_the_mask_and_not_the_group() {
        let mut list = full();
        chmod(&mut list, 0o640);
        assert_eq!(mode_of(&list), (0o640, Says::More));
        assert_eq!(list[2], entry(AclWho::OwningGroup, 5));
        let mut list = minimal();
        chmod(&mut list, 0o640);
        assert_eq!(list[1], entry(AclWho::OwningGroup, 4));
    }

    #[test]
    fn a_new_inode_has_at_most_the_requested_permissions() {
        let mut list = full();
        assert_eq!(inherit(&mut list, 0o666), 0o664);
        assert_eq!(list[4], entry(AclWho::Mask, 6));
        assert_eq!(list[1], entry(AclWho::User(1000), 7));
        let mut list = minimal();
        assert_eq!(inherit(&mut list, 0o600), 0o600);
        assert_eq!(list[1], entry(AclWho::OwningGroup, 0));
    }

    #[test]
    fn the_first_entry_that_fits_decides_and_groups_add_up_to_nothing() {
        let asker = |uid, groups| Asker {
            owns: uid == 1,
            uid,
            groups,
            gid: 99,
            file_gid: 50,
        };
        let list = full();
        assert!(grants(&list, &asker(1, &[]), 7));
        assert!(grants(&list, &asker(1000, &[]), 7));
        assert!(grants(&list, &asker(2, &[50]), 5));
        assert!(grants(&list, &asker(2, &[7]), 2));
        assert!(!grants(&list, &asker(2, &[7, 50]), 6));
        // A member of a group does not get the permissions of others.
        assert!(!grants(&list, &asker(2, &[7]), 4));
        assert!(grants(&list, &asker(2, &[]), 4));
        let mut masked = full();
        masked[4].permissions = 4;
        assert!(!grants(&masked, &asker(1000, &[]), 2));
        assert!(grants(&masked, &asker(1, &[]), 7));
    }
}
