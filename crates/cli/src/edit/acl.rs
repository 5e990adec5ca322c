//! **Purpose.** The verb setfacl of `fourscore edit`: changes access control lists.
//!
//! **Model.** A list is read, or made from the permissions; its entries are changed; the mask is
//! computed again, unless it was given: it grants what any entry of the group class grants. The
//! file system stores a list that says no more than permissions as permissions.
//!
//! **References.** setfacl(1), acl(5).

use std::collections::BTreeMap;

use fourscore::ondisk::acl::{AclEntry, AclWho, disk_to_xattr, from_xattr, to_disk};
use fourscore::{Error, FileType, Follow, Fs, InodeNr, SetXattr, Stat};

use super::attributes::{Depth, for_each};
use super::ids::Database;
use super::verbs::Setfacl;
use super::{Failing, at_each};
use crate::failure::{Failure, Result};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// A list, by the order of its entries on disk.
type List = BTreeMap<(u8, u32), AclEntry>;

/// Whether a list decides about access, or is what new entries of a directory get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Access,
    Default,
}

/// A change of one list.
#[derive(Debug, Default)]
struct Change {
    set: Vec<AclEntry>,
    removed: Vec<AclWho>,
}

pub(super) fn setfacl(fs: &Fs, args: &Setfacl, failing: Failing<'_>) -> Result<()> {
    let (mut access, mut default) = (Change::default(), Change::default());
    for text in &args.modify {
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let (which, who, permissions) = parse(fs, entry, args.default)?;
            let permissions = permissions.ok_or_else(|| invalid(entry))?;
            let change = change_of(which, &mut access, &mut default);
            change.set.push(AclEntry { who, permissions });
        }
    }
    for text in &args.remove {
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let (which, who, _) = parse(fs, entry, args.default)?;
            change_of(which, &mut access, &mut default)
                .removed
                .push(who);
        }
    }
    at_each(fs, &args.paths, failing, |path| {
        for_each(
            fs,
            path,
            Depth::of(args.recursive),
            Follow::Yes,
            failing,
            |inode, stat| {
                let is_directory = stat.file_type == FileType::Directory;
                if stat.file_type == FileType::Symlink {
                    return Ok(());
                }
                if args.remove_all {
                    let list = list_of(fs, inode, stat, Which::Access)?;
                    let base = list.into_values().filter(is_base).collect::<Vec<_>>();
                    store(fs, inode, Which::Access, &base)?;
                }
                if is_directory && (args.remove_all || args.remove_default) {
                    fs.remove_xattr(inode, DEFAULT).or_else(missing_is_fine)?;
                }
                // Without a list, the permissions of the group are no longer its mask.
                let stat = &fs.stat(inode)?;
                apply(fs, inode, stat, Which::Access, &access)?;
                // As setfacl does, which complains about a file that was named itself.
                if args.recursive && !is_directory {
                    return Ok(());
                }
                apply(fs, inode, stat, Which::Default, &default)
            },
        )
    })
}

fn change_of<'c>(which: Which, access: &'c mut Change, default: &'c mut Change) -> &'c mut Change {
    match which {
        Which::Access => access,
        Which::Default => default,
    }
}

fn missing_is_fine(why: Error) -> fourscore::Result<()> {
    match why {
        Error::NoAttribute => Ok(()),
        why => Err(why),
    }
}

fn apply(
    fs: &Fs,
    inode: InodeNr,
    stat: &Stat,
    which: Which,
    change: &Change,
) -> fourscore::Result<()> {
    if change.set.is_empty() && change.removed.is_empty() {
        return Ok(());
    }
    let mut list = list_of(fs, inode, stat, which)?;
    if list.is_empty() {
        // A default list begins with the permissions of the directory.
        let access = list_of(fs, inode, stat, Which::Access)?;
        list.extend(access.into_iter().filter(|(_, entry)| is_base(entry)));
    }
    for who in &change.removed {
        list.remove(&key(*who));
    }
    for entry in &change.set {
        list.insert(key(entry.who), *entry);
    }
    let has_mask_of_user = { change.set.iter() }.any(|entry| entry.who == AclWho::Mask);
    let named = |entry: &AclEntry| matches!(entry.who, AclWho::User(_) | AclWho::Group(_));
    let has_mask = list.contains_key(&key(AclWho::Mask));
    if !has_mask_of_user && (has_mask || list.values().any(named)) {
        let in_class = |entry: &&AclEntry| named(entry) || entry.who == AclWho::OwningGroup;
        let class = list.values().filter(in_class);
        let permissions = class.fold(0, |all, entry| all | entry.permissions);
        let mask = AclEntry {
            who: AclWho::Mask,
            permissions,
        };
        list.insert(key(AclWho::Mask), mask);
    }
    let list: Vec<AclEntry> = list.into_values().collect();
    store(fs, inode, which, &list)
}

fn is_base(entry: &AclEntry) -> bool {
    matches!(
        entry.who,
        AclWho::Owner | AclWho::OwningGroup | AclWho::Other
    )
}

/// The list of an inode. If it has none, the access list is made of its permissions, and the
/// default list is empty.
fn list_of(fs: &Fs, inode: InodeNr, stat: &Stat, which: Which) -> fourscore::Result<List> {
    let name = match which {
        Which::Access => ACCESS,
        Which::Default => DEFAULT,
    };
    match fs.xattr(inode, name) {
        Ok(value) => {
            let broken = |_| Error::InvalidArgument("the access control list cannot be read");
            let entries = from_xattr(&value).map_err(broken)?;
            let entries = entries.map(|entry| entry.map(|entry| (key(entry.who), entry)));
            entries
                .collect::<std::result::Result<_, _>>()
                .map_err(broken)
        }
        Err(Error::NoAttribute) if which == Which::Access => {
            let mode = stat.mode.permissions();
            let class = |who, shift: u16| AclEntry {
                who,
                permissions: mode >> shift & 7,
            };
            let base = [
                class(AclWho::Owner, 6),
                class(AclWho::OwningGroup, 3),
                class(AclWho::Other, 0),
            ];
            Ok(base.map(|entry| (key(entry.who), entry)).into())
        }
        Err(Error::NoAttribute) => Ok(List::new()),
        Err(why) => Err(why),
    }
}

fn store(fs: &Fs, inode: InodeNr, which: Which, list: &[AclEntry]) -> fourscore::Result<()> {
    let name = match which {
        Which::Access => ACCESS,
        Which::Default => DEFAULT,
    };
    let invalid = |_| Error::InvalidArgument("the entries make no access control list");
    let value = disk_to_xattr(&to_disk(list)).map_err(invalid)?;
    fs.set_xattr(inode, name, &value, SetXattr::Any)
}

/// The order on disk.
fn key(who: AclWho) -> (u8, u32) {
    match who {
        AclWho::Owner => (0, 0),
        AclWho::User(id) => (1, id),
        AclWho::OwningGroup => (2, 0),
        AclWho::Group(id) => (3, id),
        AclWho::Mask => (4, 0),
        AclWho::Other => (5, 0),
    }
}

/// Parses `[d:]u|g|m|o:[NAME][:PERMISSIONS]`.
fn parse(fs: &Fs, text: &str, is_default: bool) -> Result<(Which, AclWho, Option<u16>)> {
    let body = text.strip_prefix("default:").or(text.strip_prefix("d:"));
    let which = match body.is_some() || is_default {
        true => Which::Default,
        false => Which::Access,
    };
    let fields: Vec<&str> = body.unwrap_or(text).split(':').collect();
    let (tag, name, permissions) = match fields[..] {
        // mask:rwx and other:rwx, as in setfacl.
        [tag @ ("m" | "mask" | "o" | "other"), permissions] if !permissions.is_empty() => {
            (tag, "", Some(permissions))
        }
        [tag] => (tag, "", None),
        [tag, name] => (tag, name, None),
        [tag, name, permissions] => (tag, name, Some(permissions)),
        _ => return Err(invalid(text)),
    };
    let who = match (tag, name) {
        ("u" | "user", "") => AclWho::Owner,
        ("u" | "user", name) => AclWho::User(Database::Users.id(fs, name)?),
        ("g" | "group", "") => AclWho::OwningGroup,
        ("g" | "group", name) => AclWho::Group(Database::Groups.id(fs, name)?),
        ("m" | "mask", "") => AclWho::Mask,
        ("o" | "other", "") => AclWho::Other,
        _ => return Err(invalid(text)),
    };
    let bits = permissions.map(|text_of| bits(text_of).ok_or_else(|| invalid(text)));
    Ok((which, who, bits.transpose()?))
}

fn bits(text: &str) -> Option<u16> {
    if let [digit @ b'0'..=b'7'] = text.as_bytes() {
        return Some(u16::from(digit - b'0'));
    }
    text.bytes().try_fold(0, |bits, letter| match letter {
        b'r' => Some(bits | 4),
        b'w' => Some(bits | 2),
        b'x' => Some(bits | 1),
        b'-' => Some(bits),
        _ => None,
    })
}

fn invalid(text: &str) -> Failure {
    let why =
        "is no entry of an access control list; give [d:]u:NAME:rwx, g:NAME:rx, m::rw or o::r";
    Failure::usage(format!("'{text}'"), why)
}
