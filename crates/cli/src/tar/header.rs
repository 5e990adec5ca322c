//! **Purpose.** Headers of a tar archive in the pax format, as bytes.
//!
//! **Model.** A member is a ustar block. What does not fit there (nanoseconds, times before 1970,
//! long names, big numbers, extended attributes, the map of a sparse file) is in a pax header in
//! front of it: a member of type `x` whose content are records `LENGTH key=value\n`, the length
//! counting itself.
//!
//! **References.** POSIX.1-2017, pax, "pax Interchange Format"; the GNU tar manual, "Storing
//! Sparse Files" (PAX format 1.0); star(5) for `SCHILY.xattr`.

use crate::facts::{Facts, Kind, Time};
use crate::tar::acl;
use crate::text::{push_i64, push_nanoseconds, push_u64};
use crate::walk::line::Attributes;

/// The unit of an archive.
pub(crate) const BLOCK_BYTES: usize = 512;
/// An archive ends on a multiple of this.
pub(crate) const RECORD_BYTES: u64 = 10_240;

const NAME: std::ops::Range<usize> = 0..100;
const LINK_NAME: std::ops::Range<usize> = 157..257;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const TYPE: usize = 156;

/// What a member leads to besides itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link<'a> {
    /// Nothing.
    No,
    /// The target of a symbolic link.
    Symbolic(&'a [u8]),
    /// The path of an earlier member that is the same file.
    Hard(&'a [u8]),
}

/// What is in the archive behind the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Nothing.
    Nothing,
    /// This many bytes of content.
    Whole(u64),
    /// This many bytes, which are the map and the data of a file of another size.
    Sparse {
        /// Map and data.
        stored_bytes: u64,
        /// The file's size.
        real_bytes: u64,
    },
}

/// One object of the archive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    /// The path; a directory's ends with a slash.
    pub(crate) path: &'a [u8],
    pub(crate) facts: &'a Facts,
    pub(crate) link: Link<'a>,
    pub(crate) attributes: &'a Attributes,
    pub(crate) payload: Payload,
}

/// Appends the headers of `member`. `records` is a buffer of the caller.
pub(crate) fn push_member(out: &mut Vec<u8>, member: &Member<'_>, records: &mut Vec<u8>) {
    records.clear();
    push_records(records, member);
    if !records.is_empty() {
        let mut block = Block::new(pax_name(member.path));
        block.octal(100..108, 0o644);
        block.octal(124..136, records.len() as u64);
        block.bytes[TYPE] = b'x';
        out.extend_from_slice(&block.sealed());
        out.extend_from_slice(records);
        pad(out, records.len() as u64);
    }
    out.extend_from_slice(&ustar(member));
}

/// Appends zeros up to the end of the block that `len_bytes` bytes of content end in.
pub(crate) fn pad(out: &mut Vec<u8>, len_bytes: u64) {
    out.resize(out.len() + padding(len_bytes), 0);
}

/// How many bytes fill up the block that `len_bytes` bytes of content end in.
pub(crate) fn padding(len_bytes: u64) -> usize {
    let used = usize::try_from(len_bytes % BLOCK_BYTES as u64).unwrap_or(0);
    (BLOCK_BYTES - used) % BLOCK_BYTES
}

/// The map of a sparse file, padded: the number of runs and the start and length of each.
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
    // A reader that knows nothing of sparse files must not overwrite the file with its map.
    let sparse_name = sparse.then(|| sparse_member_name(member.path));
    let mut block = Block::new(sparse_name.as_deref().unwrap_or(member.path));
    block.octal(100..108, u64::from(facts.permissions));
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
    block.sealed()
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
    // The name of the first member has them; they belong to the inode.
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

/// The key of the record of an attribute. A key ends at its first `=`, so GNU tar writes one in a
/// name as `%3D`, and the `%` of that as `%25`.
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

/// Appends a time as a decimal number. Before 1970 that is not seconds and nanoseconds side by
/// side: 2 seconds before and 250 ms after that is -1.75.
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

/// The name of the pax header itself, which only a reader that does not know pax ever sees.
fn pax_name(path: &[u8]) -> &'static [u8] {
    if path.ends_with(b"/") {
        b"./PaxHeaders/directory"
    } else {
        b"./PaxHeaders/file"
    }
}

/// The name for readers that do not know sparse files: a directory beside the file.
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

    /// As much of `text` as fits; the whole of it is in the pax header otherwise.
    fn text(&mut self, field: std::ops::Range<usize>, text: &[u8]) {
        for (place, &byte) in self.bytes[field].iter_mut().zip(text) {
            *place = byte;
        }
    }

    /// Octal digits and a NUL; 0 for what does not fit, since the pax header has it then.
    fn octal(&mut self, field: std::ops::Range<usize>, value: u64) {
        let digits = field.len() - 1;
        let fits = fits_octal(value, u32::try_from(digits).unwrap_or(0));
        let mut rest = if fits { value } else { 0 };
        for place in self.bytes[field][..digits].iter_mut().rev() {
            *place = b'0' + u8::try_from(rest & 7).unwrap_or(0);
            rest >>= 3;
        }
    }

    fn sealed(mut self) -> [u8; BLOCK_BYTES] {
        self.bytes[CHECKSUM].copy_from_slice(b"        ");
        let sum = self.bytes.iter().map(|&byte| u64::from(byte)).sum();
        self.octal(148..155, sum);
        self.bytes[154] = 0;
        self.bytes
    }
}

#[cfg(test)]
mod tests;
