//! **Purpose.** POSIX ACLs as text, their form in archives.
//!
//! **References.** acl(5), "ACL TEXT FORMS"; star(5), `SCHILY.acl.access`.

use crate::text::push_u64;

/// The pax key and the text of an ACL; `None` for another attribute or an invalid value.
pub(crate) fn record(name: &[u8], value: &[u8]) -> Option<(&'static [u8], Vec<u8>)> {
    let key: &[u8] = match name {
        b"system.posix_acl_access" => b"SCHILY.acl.access",
        b"system.posix_acl_default" => b"SCHILY.acl.default",
        _ => return None,
    };
    text(value).map(|text| (key, text))
}

/// The entries of an attribute value of version 2 (the format of the system calls), separated by
/// commas, with numeric ids.
fn text(value: &[u8]) -> Option<Vec<u8>> {
    let entries = value.strip_prefix(&2_u32.to_le_bytes())?;
    let (entries, rest) = entries.as_chunks::<8>();
    if entries.is_empty() || !rest.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    for &[tag_low, tag_high, permissions, _, id @ ..] in entries {
        let (kind, has_id): (&[u8], bool) = match u16::from_le_bytes([tag_low, tag_high]) {
            0x01 => (b"user:", false),
            0x02 => (b"user:", true),
            0x04 => (b"group:", false),
            0x08 => (b"group:", true),
            0x10 => (b"mask:", false),
            0x20 => (b"other:", false),
            _ => return None,
        };
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(kind);
        if has_id {
            push_u64(&mut out, u32::from_le_bytes(id).into());
        }
        out.push(b':');
        for (bit, letter) in [(4, b'r'), (2, b'w'), (1, b'x')] {
            out.push(if permissions & bit == 0 { b'-' } else { letter });
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_entry() {
        let mut value = 2_u32.to_le_bytes().to_vec();
        let none = u32::MAX;
        let entries: [(u16, u16, u32); 6] = [
            (0x01, 6, none),
            (0x02, 7, 1000),
            (0x04, 4, none),
            (0x08, 1, 3_000_000_000),
            (0x10, 7, none),
            (0x20, 0, none),
        ];
        for (tag, permissions, id) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&permissions.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        let (key, text) = record(b"system.posix_acl_default", &value).expect("an ACL");
        assert_eq!(key, b"SCHILY.acl.default");
        let expected =
            "user::rw-,user:1000:rwx,group::r--,group:3000000000:--x,mask::rwx,other::---";
        assert_eq!(std::str::from_utf8(&text), Ok(expected));
        value.pop();
        assert_eq!(record(b"system.posix_acl_access", &value), None);
        assert_eq!(record(b"user.x", b""), None);
    }
}
