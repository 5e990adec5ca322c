//! **Purpose.** Headers of a tar archive in the pax format, as bytes.
//!
//! **Model.** A member is a ustar block. Values that do not fit there (nanoseconds, times before
//! 1970, long names, large numbers, extended attributes, the map of a sparse file) are in a pax
//! header before it: a member of type `x` whose data are records `LENGTH key=value\n`. The length
//! includes its own digits.
//!
//! **References.** POSIX.1-2017, pax, "pax Interchange Format"; the GNU tar manual, "Storing
//! Sparse Files" (PAX format 1.0); star(5) for `SCHILY.xattr`.

use crate::facts::{Facts, Kind, Time};
use crate::tar::acl;
use crate::text::{push_i64, push_nanoseconds, push_u64};
use crate::walk::line::Attributes;

/// Block size of an archive.
pub(crate) const BLOCK_BYTES: usize = 512;
/// The length of an archive is a multiple of this.
pub(crate) const RECORD_BYTES: u64 = 10_240;

const NAME: std::ops::Range<usize> = 0..100;
const LINK_NAME: std::ops::Range<usize> = 157..257;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const TYPE: usize = 156;

/// The target of a member that is a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link<'a> {
    /// No link.
    No,
    /// The target of a symbolic link.
    Symbolic(&'a [u8]),
    /// The path of an earlier member that is the same file.
    Hard(&'a [u8]),
}

/// The data after a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Nothing.
    Nothing,
    /// All bytes of the file: their number.
    Whole(u64),
    /// The map and the data of a sparse file.
    Sparse {
        /// Bytes of map and data.
        stored_bytes: u64,
        /// The file's size.
        real_bytes: u64,
    },
}

/// One object of the archive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    /// The path; that of a directory ends with a slash.
    pub(crate) path: &'a [u8],
    pub(crate) facts: &'a Facts,
    pub(crate) link: Link<'a>,
    pub(crate) attributes: &'a Attributes,
    pub(crate) payload: Payload,
}

/// Appends the headers of `member`. `records` is a buffer that is reused.
pub(crate) fn push_member(out: &mut Vec<u8>, member: &Member<'_>, records: &mut Vec<u8>) {
    records.clear();
    push_records(records, member);
    if !records.is_empty() {
        let mut block = Block::new(pax_name(member.path));
        block.octal(100..108, 0o644);
        block.octal(124..136, records.len() as u64);
        block.bytes[TYPE] = b'x';
        out.extend_from_slice(&block.with_checksum());
        out.extend_from_slice(records);
        pad(out, records.len() as u64);
    }
    out.extend_from_slice(&ustar(member));
}

/// Appends zeros up to the end of the last block of `len_bytes` bytes of data.
pub(crate) fn pad(out: &mut Vec<u8>, len_bytes: u64) {
    out.resize(out.len() + padding(len_bytes), 0);
}

/// Bytes that are missing in the last block of `len_bytes` bytes of data.
pub(crate) fn padding(len_bytes: u64) -> usize {
    let used = usize::try_from(len_bytes % BLOCK_BYTES as u64).unwrap_or(0);
    (BLOCK_BYTES - used) % BLOCK_BYTES
}

/// Appends the map of a sparse file, padded: the number of runs, and offset and length of each.
pub(crate) fn push_sparse_map(out: &mut Vec<u8>, runs: &[(u64, u64)]) {
    let start = out.len();
    push_u64(out, runs.len() as u64);
    out.push(b'\n');
    for &(offset, len) in runs {
        push_u64(out, offset);
        out.push(b'\n');
        push_u64(out, len);
        out.push(b'\n');
    }
    let len = out.len() - start;
    pad(out, len as u64);
}

/// The block of the member itself.
fn ustar(member: &Member<'_>) -> [u8; BLOCK_BYTES] {
    let facts = member.facts;
    let (size, sparse) = match member.payload {
        Payload::Nothing => (0, false),
        Payload::Whole(bytes) => (bytes, false),
        Payload::Sparse { stored_bytes, .. } => (stored_bytes, true),
    };
    // A program that does not support sparse files must not overwrite the file with its map.
    let sparse_name = sparse.then(|| sparse_member_name(member.path));
    let mut block = Block::new(sparse_name.as_deref().unwrap_or(member.path));
    let permissions = match facts.kind {
        // Nothing looks at them, and Linux shows these for a link that it makes, so GNU tar
        // writes them.
        Kind::Symlink => 0o777,
        _ => facts.permissions,
    };
    block.octal(100..108, u64::from(permissions));
    block.octal(108..116, facts.uid.into());
    block.octal(116..124, facts.gid.into());
    block.octal(124..136, size);
    block.octal(136..148, u64::try_from(facts.mtime.seconds).unwrap_or(0));
    block.bytes[TYPE] = match (member.link, facts.kind) {
        (Link::Hard(_), _) => b'1',
        (_, Kind::Symlink) => b'2',
        (_, Kind::CharDevice) => b'3',
        (_, Kind::BlockDevice) => b'4',
        (_, Kind::Directory) => b'5',
        (_, Kind::Fifo) => b'6',
        _ => b'0',
    };
    if let Link::Symbolic(target) | Link::Hard(target) = member.link {
        block.text(LINK_NAME, target);
    }
    if facts.kind.is_device() {
        block.octal(329..337, facts.rdev_major.into());
        block.octal(337..345, facts.rdev_minor.into());
    }
    block.with_checksum()
}

fn push_records(out: &mut Vec<u8>, member: &Member<'_>) {
    let facts = member.facts;
    let sparse = matches!(member.payload, Payload::Sparse { .. });
    if let Payload::Sparse { real_bytes, .. } = member.payload {
        push_record(out, b"GNU.sparse.major", b"1");
        push_record(out, b"GNU.sparse.minor", b"0");
        push_record(out, b"GNU.sparse.name", member.path);
        push_number_record(out, b"GNU.sparse.realsize", real_bytes);
    }
    if member.path.len() > NAME.len() && !sparse {
        push_record(out, b"path", member.path);
    }
    if let Link::Symbolic(target) | Link::Hard(target) = member.link
        && target.len() > LINK_NAME.len()
    {
        push_record(out, b"linkpath", target);
    }
    for (key, value, digits) in [(&b"uid"[..], facts.uid, 7), (b"gid", facts.gid, 7)] {
        if !fits_octal(value.into(), digits) {
            push_number_record(out, key, value.into());
        }
    }
    if let Payload::Whole(bytes)
    | Payload::Sparse {
        stored_bytes: bytes,
        ..
    } = member.payload
        && !fits_octal(bytes, 11)
    {
        push_number_record(out, b"size", bytes);
    }
    let Time {
        seconds,
        nanoseconds,
    } = facts.mtime;
    if nanoseconds != 0 || !u64::try_from(seconds).is_ok_and(|s| fits_octal(s, 11)) {
        let mut text = Vec::with_capacity(24);
        push_decimal_time(&mut text, facts.mtime);
        push_record(out, b"mtime", &text);
    }
    // The member of the first name has them, since they belong to the inode.
    if !matches!(member.link, Link::Hard(_)) {
        for (name, value) in member.attributes.iter() {
            if let Some((key, text)) = acl::record(name, value) {
                push_record(out, key, &text);
                continue;
            }
            push_record(out, &xattr_key(name), value);
        }
    }
}

/// The record key of an attribute. A key ends at its first `=`, so GNU tar writes `=` in a name as
/// `%3D`, and `%` as `%25`.
fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for &byte in name {
        match byte {
            b'%' => key.extend_from_slice(b"%25"),
            b'=' => key.extend_from_slice(b"%3D"),
            byte => key.push(byte),
        }
    }
    key
}

/// Appends a time as a decimal number. For times before 1970 that is not seconds followed by
/// nanoseconds: -2 s and 250 000 000 ns are -1.75.
fn push_decimal_time(out: &mut Vec<u8>, time: Time) {
    let Time {
        seconds,
        nanoseconds,
    } = time;
    if seconds < 0 && nanoseconds > 0 {
        out.push(b'-');
        push_u64(out, (seconds + 1).unsigned_abs());
        out.push(b'.');
        push_nanoseconds(out, 1_000_000_000_u32.saturating_sub(nanoseconds));
    } else {
        push_i64(out, seconds);
        if nanoseconds > 0 {
            out.push(b'.');
            push_nanoseconds(out, nanoseconds);
        }
    }
}

fn push_number_record(out: &mut Vec<u8>, key: &[u8], value: u64) {
    let mut text = Vec::with_capacity(20);
    push_u64(&mut text, value);
    push_record(out, key, &text);
}

fn push_record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let digits_of = |len: usize| len.checked_ilog10().map_or(1, |log| log as usize + 1);
    // The length counts its own digits, which can make it one digit longer.
    let mut len = rest + digits_of(rest);
    len = rest + digits_of(len);
    push_u64(out, len as u64);
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

fn fits_octal(value: u64, digits: u32) -> bool {
    value >> (3 * digits) == 0
}

/// The name of the pax header itself, which matters only to programs that do not support pax.
fn pax_name(path: &[u8]) -> &'static [u8] {
    if path.ends_with(b"/") {
        b"./PaxHeaders/directory"
    } else {
        b"./PaxHeaders/file"
    }
}

/// The name for programs that do not support sparse files: in a directory beside the file.
fn sparse_member_name(path: &[u8]) -> Vec<u8> {
    let slash = path
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or(0, |at| at + 1);
    [&path[..slash], b"GNUSparseFile.0/", &path[slash..]].concat()
}

struct Block {
    bytes: [u8; BLOCK_BYTES],
}

impl Block {
    fn new(name: &[u8]) -> Self {
        let mut block = Self {
            bytes: [0; BLOCK_BYTES],
        };
        block.text(NAME, name);
        block.bytes[257..265].copy_from_slice(b"ustar\x0000");
        for field in [108..116, 116..124, 136..148, 329..337, 337..345] {
            block.octal(field, 0);
        }
        block
    }

    /// Writes as much of `text` as fits. If that is not all, the pax header has it.
    fn text(&mut self, field: std::ops::Range<usize>, text: &[u8]) {
        for (place, &byte) in self.bytes[field].iter_mut().zip(text) {
            *place = byte;
        }
    }

    /// Writes octal digits and a NUL; 0 for a number that does not fit, which the pax header has.
    fn octal(&mut self, field: std::ops::Range<usize>, value: u64) {
        let digits = field.len() - 1;
        let fits = fits_octal(value, u32::try_from(digits).unwrap_or(0));
        let mut rest = if fits { value } else { 0 };
        for place in self.bytes[field][..digits].iter_mut().rev() {
            *place = b'0' + u8::try_from(rest & 7).unwrap_or(0);
            rest >>= 3;
        }
    }

    fn with_checksum(mut self) -> [u8; BLOCK_BYTES] {
        self.bytes[CHECKSUM].copy_from_slice(b"        ");
        let sum = self.bytes.iter().map(|&byte| u64::from(byte)).sum();
        self.octal(148..155, sum);
        self.bytes[154] = 0;
        self.bytes
    }
}

#[cfg(test)]
mod tests;
