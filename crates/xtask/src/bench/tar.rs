//! **Purpose.** Writes tar archives of made-up trees, from which benchmarks build images.

use std::io::{self, Write};

/// The block size of a tar archive.
pub(super) const RECORD_BYTES: usize = 512;

/// A ustar header (POSIX.1-1988).
pub(super) fn header(name: &str, kind: u8, size_bytes: usize) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    let mut put = |at: usize, text: &str| {
        for (to, from) in bytes.iter_mut().skip(at).zip(text.bytes()) {
            *to = from;
        }
    };
    put(0, name);
    put(100, if kind == b'5' { "0000755" } else { "0000644" });
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size_bytes:011o}"));
    put(136, "00000000000");
    put(148, "        ");
    put(257, "ustar");
    put(263, "00");
    bytes[156] = kind;
    let sum: u32 = bytes.iter().map(|&byte| u32::from(byte)).sum();
    for (to, from) in bytes
        .iter_mut()
        .skip(148)
        .zip(format!("{sum:06o}\0 ").bytes())
    {
        *to = from;
    }
    bytes
}

/// Writes records of the pax format for the member that follows (POSIX.1-2001). Values may be any
/// bytes.
pub(super) fn write_records(out: &mut impl Write, records: &[(&str, &[u8])]) -> io::Result<()> {
    let mut body = Vec::new();
    for (key, value) in records {
        // The length counts its own digits, a space, the key, `=`, the value and a line feed.
        let rest = key.len() + value.len() + 3;
        let fits = |digits: &usize| (rest + digits).to_string().len() == *digits;
        let digits = (1..=8).find(fits).unwrap_or(8);
        body.extend_from_slice(format!("{} {key}=", rest + digits).as_bytes());
        body.extend_from_slice(value);
        body.push(b'\n');
    }
    out.write_all(&header("records", b'x', body.len()))?;
    body.resize(body.len().next_multiple_of(RECORD_BYTES), 0);
    out.write_all(&body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_begins_with_its_length() {
        for len in [1, 85, 90, 91, 92, 500, 990, 995] {
            let mut out = Vec::new();
            let value = vec![b'v'; len];
            write_records(&mut out, &[("key", &value), ("k2", b"x")]).expect("memory");
            assert!(out.len().is_multiple_of(RECORD_BYTES));
            let body = &out[RECORD_BYTES..];
            let space = body.iter().position(|&byte| byte == b' ').expect("a space");
            let length: usize = std::str::from_utf8(&body[..space])
                .expect("digits")
                .parse()
                .expect("a number");
            assert_eq!(body[length - 1], b'\n', "{len}");
            assert!(body[length..].starts_with(b"7 k2=x\n"), "{len}");
        }
    }
}
