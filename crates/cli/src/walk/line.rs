//! **Purpose.** The canonical line of an object. It is the same for an image and for a directory of
//! the host, so that trees can be compared with `diff`.
//!
//! **Model.** Fields are separated by one space; a field that does not apply is `-`:
//!
//! ```text
//! path type mode uid gid links size mtime rdev target xattrs
//!     [inode blocks atime ctime btime] [sha256]
//! ```
//!
//! In names, targets and attribute names every byte that is not visible ASCII, and the
//! backslash, is `\ooo`; attribute names escape `=` and `,` as well. A target of just `-`
//! is written `\055`. Attributes are `name=hex`, joined by commas, sorted by name.
//!
//! Two file systems with the same tree differ in the size and link count of directories and in all
//! fields that `--full` adds, so these are left out by default. Hard links have equal link counts
//! and, with `--full`, equal inode numbers.

use crate::facts::{Facts, Kind, Time};
use crate::text::{push_escaped, push_hex, push_octal4, push_u64};

/// The fields of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The fields that any two file systems with the same tree share.
    Portable,
    /// All fields, which two readers of one file system share.
    Full,
}

/// Names and values of one object's extended attributes, in one reused buffer.
#[derive(Debug, Default)]
pub(crate) struct Attributes {
    bytes: Vec<u8>,
    /// Start of the name, start of the value, end of the value.
    ranges: Vec<[usize; 3]>,
}

impl Attributes {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
    }

    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ranges.push([start, middle, self.bytes.len()]);
    }

    /// Sorts the attributes by name.
    pub(crate) fn sort(&mut self) {
        let bytes = &self.bytes;
        self.ranges
            .sort_by(|a, b| bytes[a[0]..a[1]].cmp(&bytes[b[0]..b[1]]));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.ranges
            .iter()
            .map(|&[start, middle, end]| (&self.bytes[start..middle], &self.bytes[middle..end]))
    }
}

/// Appends the escaped path of an object: `/` for the root, else with a leading slash.
pub(crate) fn push_path(out: &mut Vec<u8>, escaped_directory: &[u8], name: &[u8]) {
    out.extend_from_slice(escaped_directory);
    out.push(b'/');
    push_escaped(out, name, b"");
}

/// Appends the fields after the path up to the attributes, or to the times with
/// [`Detail::Full`]; neither the hash nor the newline.
pub(crate) fn push_fields(
    out: &mut Vec<u8>,
    facts: &Facts,
    target: &[u8],
    attributes: &Attributes,
    detail: Detail,
) {
    let portable_directory = facts.kind == Kind::Directory && detail == Detail::Portable;
    out.extend_from_slice(&[b' ', facts.kind.letter(), b' ']);
    push_octal4(out, facts.permissions);
    out.push(b' ');
    push_u64(out, facts.uid.into());
    out.push(b' ');
    push_u64(out, facts.gid.into());
    out.push(b' ');
    if portable_directory {
        out.extend_from_slice(b"- - ");
    } else {
        push_u64(out, facts.links);
        out.push(b' ');
        push_u64(out, facts.size_bytes);
        out.push(b' ');
    }
    facts.mtime.push(out);
    out.push(b' ');
    if facts.kind.is_device() {
        push_u64(out, facts.rdev_major.into());
        out.push(b':');
        push_u64(out, facts.rdev_minor.into());
    } else {
        out.push(b'-');
    }
    out.push(b' ');
    push_target(out, facts.kind, target);
    out.push(b' ');
    push_attributes(out, attributes);
    if detail == Detail::Full {
        push_full(out, facts);
    }
}

fn push_target(out: &mut Vec<u8>, kind: Kind, target: &[u8]) {
    match (kind, target) {
        (Kind::Symlink, b"-") => out.extend_from_slice(b"\\055"),
        (Kind::Symlink, target) => push_escaped(out, target, b""),
        _ => out.push(b'-'),
    }
}

fn push_attributes(out: &mut Vec<u8>, attributes: &Attributes) {
    if attributes.ranges.is_empty() {
        out.push(b'-');
    }
    for (position, (name, value)) in attributes.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        push_escaped(out, name, b"=,");
        out.push(b'=');
        push_hex(out, value);
    }
}

fn push_full(out: &mut Vec<u8>, facts: &Facts) {
    let push_time = |out: &mut Vec<u8>, time: Option<Time>| {
        out.push(b' ');
        match time {
            Some(time) => time.push(out),
            None => out.push(b'-'),
        }
    };
    out.push(b' ');
    push_u64(out, facts.inode);
    out.push(b' ');
    push_u64(out, facts.blocks_512);
    push_time(out, Some(facts.atime));
    push_time(out, Some(facts.ctime));
    push_time(out, facts.btime);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kind: Kind) -> Facts {
        let time = |seconds| Time {
            seconds,
            nanoseconds: 7,
        };
        Facts {
            inode: 12,
            kind,
            permissions: 0o4755,
            uid: 1000,
            gid: 100_000,
            links: 2,
            size_bytes: 4096,
            blocks_512: 8,
            rdev_major: 259,
            rdev_minor: 65_536,
            atime: time(1),
            mtime: time(-2),
            ctime: time(3),
            btime: None,
            may_have_attributes: true,
        }
    }

    fn line(kind: Kind, target: &[u8], detail: Detail) -> String {
        let mut attributes = Attributes::default();
        attributes.push(b"user.b=c", b"\x00\xff");
        attributes.push(b"user.a", b"");
        attributes.sort();
        let mut out = Vec::new();
        push_path(&mut out, b"/d", b"a b");
        push_fields(&mut out, &facts(kind), target, &attributes, detail);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn every_kind_of_field() {
        assert_eq!(
            line(Kind::File, b"", Detail::Portable),
            r"/d/a\040b f 4755 1000 100000 2 4096 -2.000000007 - - user.a=,user.b\075c=00ff"
        );
        assert_eq!(
            line(Kind::Directory, b"", Detail::Portable),
            r"/d/a\040b d 4755 1000 100000 - - -2.000000007 - - user.a=,user.b\075c=00ff"
        );
        let device = line(Kind::CharDevice, b"", Detail::Portable);
        assert!(device.contains(" 259:65536 - "), "{device}");
        let full = line(Kind::Directory, b"", Detail::Full);
        assert!(full.contains(" d 4755 1000 100000 2 4096 "), "{full}");
        assert!(full.ends_with(" 12 8 1.000000007 3.000000007 -"), "{full}");
    }

    #[test]
    fn targets_are_unambiguous() {
        assert!(line(Kind::Symlink, b"-", Detail::Portable).contains(r" - \055 user"));
        assert!(line(Kind::Symlink, b"x y", Detail::Portable).contains(r" - x\040y user"));
    }

    #[test]
    fn no_attributes() {
        let mut out = Vec::new();
        let attributes = Attributes::default();
        push_fields(
            &mut out,
            &facts(Kind::Fifo),
            b"",
            &attributes,
            Detail::Portable,
        );
        assert!(out.ends_with(b" - - -"));
    }
}
