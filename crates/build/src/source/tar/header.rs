//! **Purpose.** Parses the header block of a tar archive: fields, numbers and checksum.
//!
//! **Not here.** Combining several headers of one entry: [`member`](super::member).
//!
//! **Model.** One block of 512 bytes describes an entry. Four dialects differ in the bytes from 257
//! on: none (V7), `ustar\0` (POSIX: 155 more bytes of the path), the same with `tar\0` at the end
//! (star: 131 more bytes), `ustar  \0` (GNU: the map of a sparse file).
//!
//! **References.** POSIX.1-2017, pax, "ustar Interchange Format"; the GNU tar manual, "Basic Tar
//! Format"; star(5).

use crate::source::fault::{Fault, Parsed};

/// The block size of an archive.
pub(crate) const BLOCK_BYTES: usize = 512;

const CHECKSUM: std::ops::Range<usize> = 148..156;

/// A header block with a valid checksum.
#[derive(Clone)]
pub(super) struct Header {
    bytes: [u8; BLOCK_BYTES],
}

/// Interpretation of the bytes after the common fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    V7,
    Posix,
    Star,
    Gnu,
}

impl Header {
    /// Checks the block at byte `at`. `None` is the block of zeroes that ends an archive.
    pub(super) fn parse(bytes: [u8; BLOCK_BYTES], at: u64) -> Parsed<Option<Self>> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let found = octal(&bytes[CHECKSUM]).and_then(|sum| u64::try_from(sum).ok());
        let (mut unsigned, mut signed) = (0_u64, 0_i64);
        for (nr, &byte) in bytes.iter().enumerate() {
            let byte = if CHECKSUM.contains(&nr) { b' ' } else { byte };
            unsigned += u64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        // Some old programs summed up signed bytes.
        match found {
            Some(sum) if sum == unsigned || i64::try_from(sum) == Ok(signed) => {
                Ok(Some(Self { bytes }))
            }
            Some(found) => Err(Fault::Checksum {
                at,
                found,
                expected: unsigned,
            }),
            None if at == 0 => Err(Fault::NotTar),
            None => Err(Fault::Number {
                field: "the checksum",
            }),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match (&self.bytes[257..263], &self.bytes[508..512]) {
            (b"ustar\0", b"tar\0") => Dialect::Star,
            (b"ustar\0", _) => Dialect::Posix,
            (b"ustar ", _) => Dialect::Gnu,
            _ => Dialect::V7,
        }
    }

    /// The type of the entry: a letter or digit.
    pub(super) fn flag(&self) -> u8 {
        self.bytes[156]
    }

    /// The path in this header.
    pub(super) fn path(&self) -> Vec<u8> {
        let prefix = match self.dialect() {
            Dialect::Posix => text(&self.bytes[345..500]),
            Dialect::Star => text(&self.bytes[345..476]),
            Dialect::V7 | Dialect::Gnu => b"",
        };
        let name = text(&self.bytes[..100]);
        if prefix.is_empty() {
            name.to_vec()
        } else {
            [prefix, b"/", name].concat()
        }
    }

    pub(super) fn link(&self) -> &[u8] {
        text(&self.bytes[157..257])
    }

    pub(super) fn mode(&self) -> Parsed<i128> {
        number(&self.bytes[100..108], "the mode")
    }

    pub(super) fn uid(&self) -> Parsed<i128> {
        number(&self.bytes[108..116], "the user id")
    }

    pub(super) fn gid(&self) -> Parsed<i128> {
        number(&self.bytes[116..124], "the group id")
    }

    pub(super) fn size(&self) -> Parsed<i128> {
        number(&self.bytes[124..136], "the size")
    }

    pub(super) fn mtime(&self) -> Parsed<i128> {
        number(&self.bytes[136..148], "the time")
    }

    pub(super) fn user_name(&self) -> &[u8] {
        match self.dialect() {
            Dialect::V7 => b"",
            _ => text(&self.bytes[265..297]),
        }
    }

    pub(super) fn group_name(&self) -> &[u8] {
        match self.dialect() {
            Dialect::V7 => b"",
            _ => text(&self.bytes[297..329]),
        }
    }

    /// Major and minor number of a device, as stored.
    pub(super) fn device(&self) -> Parsed<(i128, i128)> {
        Ok((
            number(&self.bytes[329..337], "the major number")?,
            number(&self.bytes[337..345], "the minor number")?,
        ))
    }

    /// The map of an old GNU sparse file in this header.
    pub(super) fn gnu_sparse(&self) -> Parsed<GnuSparse> {
        let mut runs = Vec::new();
        push_gnu_runs(&self.bytes[386..482], &mut runs)?;
        Ok(GnuSparse {
            runs,
            is_continued: self.bytes[482] != 0,
            size: number(&self.bytes[483..495], "the size of the sparse file")?,
        })
    }
}

/// The map of an old GNU sparse file in the header.
pub(super) struct GnuSparse {
    /// Offsets and lengths.
    pub(super) runs: Vec<(i128, i128)>,
    /// Whether blocks with more runs follow.
    pub(super) is_continued: bool,
    /// The length of the file.
    pub(super) size: i128,
}

/// Appends the runs in a continuation block of the map of an old GNU sparse file; returns whether
/// another such block follows.
pub(super) fn gnu_sparse_continued(
    block: &[u8; BLOCK_BYTES],
    runs: &mut Vec<(i128, i128)>,
) -> Parsed<bool> {
    push_gnu_runs(&block[..504], runs)?;
    Ok(block[504] != 0)
}

/// Each run has an offset and a length of 12 bytes each; one without a length ends the list.
fn push_gnu_runs(bytes: &[u8], runs: &mut Vec<(i128, i128)>) -> Parsed<()> {
    for entry in bytes.as_chunks::<24>().0 {
        if entry[12] == 0 {
            break;
        }
        let offset = number(&entry[..12], "an offset in the sparse map")?;
        let len = number(&entry[12..], "a length in the sparse map")?;
        runs.push((offset, len));
    }
    Ok(())
}

/// The bytes of a field up to its first NUL.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// Parses a number: octal digits, or base 256 if the highest bit is set. The value of at most 12
/// bytes fits into an `i128`.
fn number(field: &[u8], name: &'static str) -> Parsed<i128> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => Ok(base_256(field)),
        _ => octal(field).ok_or(Fault::Number { field: name }),
    }
}

/// Parses octal digits, preceded by blanks and ended by a blank or NUL. An empty field is 0.
fn octal(field: &[u8]) -> Option<i128> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !is_blank(byte));
    let digits = &field[start.unwrap_or(field.len())..];
    let end = digits.iter().position(is_blank).unwrap_or(digits.len());
    let mut value = 0;
    for &digit in &digits[..end] {
        if !(b'0'..=b'7').contains(&digit) {
            return None;
        }
        value = value << 3 | i128::from(digit - b'0');
    }
    digits[end..].iter().all(is_blank).then_some(value)
}

/// Parses a big-endian two's complement number, ignoring its highest bit.
fn base_256(field: &[u8]) -> i128 {
    let first = i128::from(field[0] & 0x7f);
    let start = if first & 0x40 == 0 {
        first
    } else {
        first - 0x80
    };
    field[1..]
        .iter()
        .fold(start, |value, &byte| value << 8 | i128::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with the given parts and a valid checksum.
    fn header_block(parts: &[(usize, &[u8])]) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        for &(at, part) in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
        }
        bytes[CHECKSUM].copy_from_slice(b"        ");
        let sum: u32 = bytes.iter().map(|&byte| u32::from(byte)).sum();
        bytes[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes
    }

    #[test]
    fn octal_and_binary_numbers_are_parsed() {
        assert_eq!(octal(b"0000644\0"), Some(0o644));
        assert_eq!(octal(b"   644 \0"), Some(0o644));
        assert_eq!(octal(b"\0\0\0\0"), Some(0));
        assert_eq!(octal(b"77777777"), Some(0o77_777_777));
        for wrong in [&b"12x"[..], b"8", b"-1", b"1 2"] {
            assert_eq!(octal(wrong), None, "{}", wrong.escape_ascii());
        }
        assert_eq!(base_256(b"\x80\0\0\0\0\x30\0\0"), 0x30_0000);
        assert_eq!(base_256(b"\xff\xff\xff\xff\xff\xff\xff\xfe"), -2);
        assert_eq!(base_256(&[0xbf; 12]) >> 88, 0x3f);
    }

    #[test]
    fn a_wrong_checksum_is_reported() {
        let mut bytes = header_block(&[(0, b"name"), (156, b"0")]);
        assert!(Header::parse(bytes, 512).is_ok_and(|header| header.is_some()));
        bytes[3] = b'f';
        assert!(matches!(
            Header::parse(bytes, 512),
            Err(Fault::Checksum { at: 512, .. })
        ));
        assert!(matches!(Header::parse([b'x'; 512], 0), Err(Fault::NotTar)));
        assert!(Header::parse([0; 512], 0).is_ok_and(|header| header.is_none()));
    }

    #[test]
    fn a_checksum_of_signed_bytes_is_accepted() {
        let mut bytes = header_block(&[(0, b"n\xe4me")]);
        let sum: i32 = bytes
            .iter()
            .enumerate()
            .map(|(nr, &byte)| match CHECKSUM.contains(&nr) {
                true => i32::from(b' '),
                false => i32::from(byte.cast_signed()),
            })
            .sum();
        bytes[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert!(Header::parse(bytes, 0).is_ok_and(|header| header.is_some()));
    }

    #[test]
    fn the_length_of_the_path_prefix_depends_on_the_dialect() {
        let path = |parts: &[(usize, &[u8])]| {
            let header = Header::parse(header_block(parts), 0).expect("a header");
            header.expect("not empty").path()
        };
        let name: (usize, &[u8]) = (0, b"name");
        let prefix: (usize, &[u8]) = (345, b"prefix");
        assert_eq!(path(&[name, prefix]), b"name");
        assert_eq!(path(&[name, prefix, (257, b"ustar\x0000")]), b"prefix/name");
        assert_eq!(path(&[name, prefix, (257, b"ustar  \0")]), b"name");
        let star: [(usize, &[u8]); 4] = [
            name,
            (257, b"ustar\x0000"),
            (345, &[b'p'; 155]),
            (508, b"tar\0"),
        ];
        assert_eq!(path(&star).len(), 131 + 1 + 4);
    }
}
