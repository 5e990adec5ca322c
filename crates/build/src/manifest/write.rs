//! **Purpose.** Writes the list of an image's objects: an mtree with a SHA-256 of each file, or
//! checksums in the format of `sha256sum`.
//!
//! **Model.** One line for each name, with full paths and without `/set`, so each line stands alone
//! and two lists can be compared with diff. Names of one object have the same `inode=`.

use std::io::Write as _;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;

use super::keyword::kind_word;
use super::vis::push_escaped;
use crate::source::push_base64;
use crate::tree::{Kind, Meta, XattrIter};

/// SHA-256 of the data of a file.
pub(crate) type Sha256Sum = [u8; 32];

/// The attributes of an object for its line.
pub(crate) struct ListedObject<'a> {
    pub(crate) meta: Meta,
    pub(crate) kind: &'a Kind,
    pub(crate) links: u32,
    pub(crate) inode: InodeNr,
    pub(crate) xattrs: XattrIter<'a>,
    /// Only for a regular file.
    pub(crate) sum: Option<Sha256Sum>,
}

/// Formats the mtree line of the object at `path`, which begins with `.`.
pub(crate) fn manifest_line(path: &[u8], object: &ListedObject<'_>) -> Vec<u8> {
    let mut line = Vec::with_capacity(path.len() + 160);
    let kind = file_type(object.kind);
    let Meta {
        permissions,
        uid,
        gid,
        mtime,
        ..
    } = object.meta;
    push_escaped(&mut line, path);
    // Writing to a `Vec` cannot fail.
    let _ = write!(
        line,
        " type={} mode={permissions:04o} uid={uid} gid={gid} time={}.{:09}",
        kind_word(kind),
        mtime.seconds(),
        mtime.nanoseconds(),
    );
    if object.links > 1 {
        let _ = write!(line, " nlink={} inode={}", object.links, object.inode.0);
    }
    match object.kind {
        Kind::File(content) => {
            let _ = write!(line, " size={}", content.len_bytes());
        }
        Kind::Symlink(target) => {
            line.extend_from_slice(b" link=");
            push_escaped(&mut line, target);
        }
        Kind::CharDevice(number) | Kind::BlockDevice(number) => {
            let _ = write!(line, " device=native,{},{}", number.major, number.minor);
        }
        Kind::Directory | Kind::Fifo | Kind::Socket => {}
    }
    for (name, value) in object.xattrs.clone() {
        line.extend_from_slice(b" xattr.");
        push_escaped(&mut line, name);
        line.push(b'=');
        push_base64(&mut line, value);
    }
    if let Some(sum) = &object.sum {
        line.extend_from_slice(b" sha256digest=");
        push_hex(&mut line, sum);
    }
    line.push(b'\n');
    line
}

/// Formats the line of `sha256sum` for a file. If the name contains a backslash or line break,
/// these are escaped and the line begins with a backslash.
pub(crate) fn sums_line(path: &[u8], sum: &Sha256Sum) -> Vec<u8> {
    let mut line = Vec::with_capacity(path.len() + 70);
    let is_special = |byte: &u8| matches!(byte, b'\\' | b'\n' | b'\r');
    if path.iter().any(is_special) {
        line.push(b'\\');
    }
    push_hex(&mut line, sum);
    line.extend_from_slice(b"  ");
    for &byte in path {
        match byte {
            b'\\' => line.extend_from_slice(br"\\"),
            b'\n' => line.extend_from_slice(br"\n"),
            b'\r' => line.extend_from_slice(br"\r"),
            byte => line.push(byte),
        }
    }
    line.push(b'\n');
    line
}

fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a `Vec` cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
}

fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File(_) => FileType::Regular,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::CharDevice(_) => FileType::CharDevice,
        Kind::BlockDevice(_) => FileType::BlockDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_sha256sum_does() {
        let sum = [0xab; 32];
        let hex = "ab".repeat(32);
        assert_eq!(
            sums_line(b"./a b", &sum),
            format!("{hex}  ./a b\n").as_bytes()
        );
        let odd = sums_line(b"./a\\b\nc", &sum);
        assert_eq!(odd, format!("\\{hex}  ./a\\\\b\\nc\n").as_bytes());
    }
}
