//! **Purpose.** Models of shared values in inodes: the same races as with blocks of attributes. The
//! inode of a value is deleted with its last user, and its number is used again.

use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::xattr::{EaInode, Xattrs};

use super::*;
use crate::xattr::ea_inode;

/// Too long for a block.
const VALUE_BYTES: usize = 1500;
/// So many entries of a list do not fit into a block.
const ENTRIES: u32 = 200;

/// Sets a value that gets an inode.
fn set(fs: &Fs, name: &str, byte: u8) {
    let value = vec![byte; VALUE_BYTES];
    fs.set_xattr(at(fs, name), NAME, &value, SetXattr::Any)
        .unwrap();
}

/// Reads the value, or finds that it was removed. It loads the value's inode again, and offers it.
fn read(fs: &Fs, name: &str, byte: u8) {
    match fs.xattr(at(fs, name), NAME) {
        Ok(found) => assert_eq!(found, vec![byte; VALUE_BYTES]),
        Err(error) => assert_eq!(error.errno(), 61, "{error}"),
    }
}

/// The count of users of the value in an inode, and the key of the value; `None` for a free inode.
fn value_in(fs: &Fs, nr: InodeNr) -> Option<(u64, ShareKey)> {
    let mount = fs.writable().unwrap();
    if !change::is_inode_in_use(mount, nr).unwrap() {
        return None;
    }
    // From its table: the count in memory may be an old one.
    let inode = cache::uncached_inode(&fs.core, nr).unwrap();
    assert!(inode.has(InodeFlags::EA_INODE_FL), "it holds no value");
    let facts = EaInode::of(inode.on_disk().raw());
    let sharing = mount.sharing().unwrap();
    let key = sharing.key_of_value(facts.value_hash, inode.size_bytes());
    Some((facts.refs, key))
}

/// Checks that the cache knows values where they are, and that the inode of each value counts the
/// entries that refer to it.
pub(super) fn check(fs: &Fs) {
    for (key, place) in known_places(fs) {
        let found = value_in(fs, InodeNr(u32::try_from(place).unwrap()));
        let (_, found) = found.expect("the cache knows no free inode");
        assert_eq!(found, key, "the cache knows no other value");
    }
    let mut users: BTreeMap<InodeNr, u64> = BTreeMap::new();
    for name in FILES {
        let inode = cache::inode_copy(&fs.core, at(fs, name)).unwrap();
        assert_eq!(inode.on_disk().file_acl(), None);
        let area = inode.on_disk().xattr_area().unwrap();
        for nr in ea_inode::values_of(&Xattrs::in_inode(area), inode.nr()).unwrap() {
            *users.entry(nr).or_default() += 1;
        }
    }
    for (nr, users) in users {
        let (counted, _) = value_in(fs, nr).expect("an inode that is used");
        assert_eq!(counted, users, "the count of users");
    }
}

/// A value gets a user while it loses its last one.
pub(super) const FREE: Scenario = Scenario {
    shared: Shared::Values,
    prepare: |fs| set(fs, "a", 1),
    // It is loaded, so it is known; and it was taken, so no plan looks into the bitmap again.
    begin: |fs| {
        read(fs, "a", 1);
        set(fs, "d", 1);
        remove(fs, "d");
    },
    tasks: &[|fs| set(fs, "b", 1), |fs| remove(fs, "a")],
    end: [&["b"], &[]],
};

/// The number of the inode is given to another value at once.
const REUSE: Scenario = Scenario {
    tasks: &[
        |fs| set(fs, "b", 1),
        |fs| {
            remove(fs, "a");
            set(fs, "c", 2);
        },
        |fs| set(fs, "d", 2),
    ],
    end: [&["b"], &["c", "d"]],
    ..FREE
};

/// A reader loads a value and offers it while its last user leaves.
const OFFER: Scenario = Scenario {
    begin: |_| {},
    tasks: &[
        |fs| read(fs, "a", 1),
        |fs| remove(fs, "a"),
        |fs| set(fs, "b", 1),
    ],
    ..FREE
};

/// A file inherits a list, in a new inode, and another thread removes the list at once.
const CREATE: Scenario = Scenario {
    prepare: |fs| {
        let name = b"system.posix_acl_default";
        fs.set_xattr(ROOT, name, &acl(ENTRIES), SetXattr::Any)
            .unwrap();
    },
    begin: |_| {},
    tasks: super::CREATE.tasks,
    end: [&[], &[]],
    ..FREE
};

tests! {
    an_inode_that_holds_another_value_by_now_is_not_taken: REUSE,
        a_freed_value_that_stays_known_is_found: FreedStaysKnown, "the cache knows no";
    a_value_that_is_offered_while_its_last_user_leaves_is_not_taken: OFFER,
        a_value_that_a_reader_offers_without_its_lock_is_found: OfferedUnlocked, "the cache knows no";
    a_value_of_a_new_inode_is_not_known_after_it_was_freed: CREATE,
        a_value_that_is_offered_without_its_lock_is_found: OfferedUnlocked, "the cache knows no";
}
