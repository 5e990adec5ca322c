//! **Purpose.** Converts the text form of an ACL in an archive to the value of an extended
//! attribute.
//!
//! **Model.** Entries `[default:]TAG:[NAME]:PERMISSIONS[:ID]`, separated by commas or line breaks.
//! GNU tar writes names unless run with `--numeric-owner`, star adds the number as a fourth field.
//! The names of the file's own user and group are resolved to its ids; others are looked up on this
//! machine, as GNU tar does when it extracts.
//!
//! **References.** acl(5), "ACL TEXT FORMS"; star(5), `SCHILY.acl.access`.

use fourscore_ondisk::acl::{AclEntries, AclWho, check, from_xattr};

use crate::source::fault::{Fault, Parsed};

/// Lookup of ids by name.
pub(super) trait Names {
    /// The id of a user.
    fn user(&self, name: &[u8]) -> Option<u32>;
    /// The id of a group.
    fn group(&self, name: &[u8]) -> Option<u32>;
}

/// The value of the attribute `system.posix_acl_*` for the text; empty for an empty text.
pub(super) fn parse(text: &[u8], names: &impl Names) -> Parsed<Vec<u8>> {
    let mut entries = Vec::new();
    for entry in text.split(|byte| matches!(byte, b',' | b'\n')) {
        let comment = entry.iter().position(|&byte| byte == b'#');
        let entry = entry[..comment.unwrap_or(entry.len())].trim_ascii();
        if !entry.is_empty() {
            entries.push(parse_entry(entry, names)?);
        }
    }
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    entries.sort_unstable();
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    list(&value).ok_or_else(|| Fault::Acl {
        text: text.to_vec(),
    })?;
    Ok(value)
}

/// The entries of a value, if it is a valid ACL.
pub(super) fn list(value: &[u8]) -> Option<AclEntries<'_>> {
    let entries = from_xattr(value).ok()?;
    check(entries.clone()).ok()?;
    Some(entries)
}

/// The permission bits that an access ACL implies, and whether the ACL has no other information, in
/// which case it is not stored.
pub(super) fn mode_bits(entries: AclEntries<'_>) -> (u16, bool) {
    let (mut owner, mut group, mut other, mut mask) = (0, 0, 0, None);
    let mut is_minimal = true;
    for entry in entries.flatten() {
        match entry.who {
            AclWho::Owner => owner = entry.permissions,
            AclWho::OwningGroup => group = entry.permissions,
            AclWho::Other => other = entry.permissions,
            AclWho::Mask => mask = Some(entry.permissions),
            AclWho::User(_) | AclWho::Group(_) => is_minimal = false,
        }
    }
    let group_class = mask.unwrap_or(group);
    (
        owner << 6 | group_class << 3 | other,
        is_minimal && mask.is_none(),
    )
}

/// Parses an entry to tag, id and permissions, in the order of the attribute.
fn parse_entry(entry: &[u8], names: &impl Names) -> Parsed<(u16, u32, u16)> {
    let wrong = || Fault::Acl {
        text: entry.to_vec(),
    };
    let entry_of = |text: &'static [u8]| entry.strip_prefix(text);
    let body = entry_of(b"default:").or(entry_of(b"d:")).unwrap_or(entry);
    let fields: Vec<&[u8]> = body.split(|&byte| byte == b':').collect();
    let (tag, name, permissions, id) = match fields[..] {
        [tag @ (b"mask" | b"m" | b"other" | b"o"), permissions] => {
            (tag, &b""[..], permissions, None)
        }
        [tag, name, permissions] => (tag, name, permissions, None),
        [tag, name, permissions, id] => (tag, name, permissions, Some(id)),
        _ => return Err(wrong()),
    };
    let permissions = permission_bits(permissions).ok_or_else(wrong)?;
    let number = |name: &[u8], look_up: &dyn Fn(&[u8]) -> Option<u32>| {
        let digits = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
        let found = id.map_or_else(|| digits(name).or_else(|| look_up(name)), digits);
        found.ok_or_else(|| Fault::AclName {
            name: name.to_vec(),
        })
    };
    let (tag, id) = match (tag, name) {
        (b"user" | b"u", b"") => (0x01, u32::MAX),
        (b"user" | b"u", name) => (0x02, number(name, &|name| names.user(name))?),
        (b"group" | b"g", b"") => (0x04, u32::MAX),
        (b"group" | b"g", name) => (0x08, number(name, &|name| names.group(name))?),
        (b"mask" | b"m", b"") => (0x10, u32::MAX),
        (b"other" | b"o", b"") => (0x20, u32::MAX),
        _ => return Err(wrong()),
    };
    Ok((tag, id, permissions))
}

fn permission_bits(text: &[u8]) -> Option<u16> {
    text.iter().try_fold(0, |bits, letter| match letter {
        b'r' => Some(bits | 4),
        b'w' => Some(bits | 2),
        b'x' => Some(bits | 1),
        b'-' => Some(bits),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Known;

    impl Names for Known {
        fn user(&self, name: &[u8]) -> Option<u32> {
            (name == b"anna").then_some(1000)
        }

        fn group(&self, name: &[u8]) -> Option<u32> {
            (name == b"staff").then_some(50)
        }
    }

    fn ids(text: &str) -> Parsed<Vec<(u16, u32)>> {
        let value = parse(text.as_bytes(), &Known)?;
        let entries = value[4..].as_chunks::<8>().0.iter();
        let parts = entries.map(|&[tag, _, permissions, _, id @ ..]| {
            (
                u16::from(tag) << 8 | u16::from(permissions),
                u32::from_le_bytes(id),
            )
        });
        Ok(parts.collect())
    }

    #[test]
    fn all_text_forms_are_parsed() {
        let expected = [
            (0x0107, u32::MAX),
            (0x0206, 1000),
            (0x0405, u32::MAX),
            (0x0804, 50),
            (0x1007, u32::MAX),
            (0x2000, u32::MAX),
        ];
        for text in [
            "user::rwx,user:anna:rw-,group::r-x,group:staff:r--,mask::rwx,other::---",
            "u::rwx\ng::rx\nu:1000:rw\nm:rwx\ng:50:r\no:-",
            "user::rwx # me\nuser:berta:rw-:1000\ngroup::r-x\ngroup:x:r--:50\nmask:rwx\nother:---\n",
            "default:user::rwx,default:user:anna:rw-,default:group::r-x,d:group:staff:r--,\
             default:mask::rwx,default:other::---",
        ] {
            assert_eq!(ids(text).expect(text), expected, "{text}");
        }
        assert_eq!(parse(b"", &Known).expect("no list"), b"");
    }

    #[test]
    fn invalid_lists_are_refused() {
        for text in [
            "user::rwx",
            "user::rwx,group::rwx,other::rwx,user:anna:r",
            "user::rwz,group::r,other::r",
            "u::r,g::r,o::r,x::r",
            "u::r,g::r,o::r,o::r",
            "u",
        ] {
            assert!(matches!(ids(text), Err(Fault::Acl { .. })), "{text}");
        }
        let unknown = ids("u::r,g::r,o::r,m::r,u:no-such-user:r");
        assert!(matches!(unknown, Err(Fault::AclName { .. })));
    }

    #[test]
    fn an_access_list_determines_the_mode() {
        let bits = |text: &str| {
            let value = parse(text.as_bytes(), &Known).expect(text);
            mode_bits(list(&value).expect(text))
        };
        assert_eq!(bits("u::rwx,g::r-x,o::--x"), (0o751, true));
        assert_eq!(bits("u::rwx,g::r-x,m::rw-,o::---"), (0o760, false));
        assert_eq!(bits("u::rwx,u:anna:r,g::---,m::r--,o::r"), (0o744, false));
    }
}
