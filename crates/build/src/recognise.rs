//! **Purpose.** Describes a file by its signature, for messages about files of an unexpected type.
//!
//! **Not here.** The detection of a source's format (`source::recognise`).

/// A description, the offset of a signature, and the signature.
type Signature = (&'static str, usize, &'static [u8]);

const SIGNATURES: [Signature; 17] = [
    ("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    ("a disk with a partition table (GPT)", 512, b"EFI PART"),
    ("a squashfs image", 0, b"hsqs"),
    ("an erofs image", 1024, b"\xe2\xe1\xf5\xe0"),
    ("an xfs file system", 0, b"XFSB"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("a VMDK image", 0, b"KDMV"),
    ("an Android sparse image", 0, b"\x3a\xff\x26\xed"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("a cpio archive", 0, b"07070"),
    ("a zip archive", 0, b"PK\x03\x04"),
    ("an ar archive", 0, b"!<arch>\n"),
    ("a program (ELF)", 0, b"\x7fELF"),
    ("a tar archive", 257, b"ustar"),
    ("a gzip file", 0, b"\x1f\x8b"),
    ("a zstd file", 0, b"\x28\xb5\x2f\xfd"),
    ("a disk with a partition table", 510, b"\x55\xaa"),
];

/// Describes a file by its first bytes.
pub(crate) fn describe(start: &[u8]) -> &'static str {
    let matches = |signature: &&Signature| {
        let (_, at, bytes) = **signature;
        start.get(at..).is_some_and(|rest| rest.starts_with(bytes))
    };
    if let Some((words, ..)) = SIGNATURES.iter().find(matches) {
        return words;
    }
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e | 0x80..);
    match start {
        [] => "an empty file",
        all if all.iter().all(|&byte| byte == 0) => "a file of zeroes",
        all if all.iter().all(is_text)
            && std::str::from_utf8(without_partial_character(all)).is_ok() =>
        {
            "text"
        }
        _ => "data of an unknown kind",
    }
}

/// The text without an incomplete UTF-8 character at its end.
fn without_partial_character(text: &[u8]) -> &[u8] {
    match std::str::from_utf8(text) {
        Err(error) if error.error_len().is_none() => &text[..error.valid_up_to()],
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_signatures_are_described() {
        for (words, at, bytes) in SIGNATURES {
            let start = [&vec![0; at][..], bytes, &[0; 100]].concat();
            assert_eq!(describe(&start), words);
        }
        assert_eq!(describe(b""), "an empty file");
        assert_eq!(describe(&[0; 4096]), "a file of zeroes");
        assert_eq!(describe("gr\u{fc}n\n".as_bytes()), "text");
        assert_eq!(describe(&"\u{fc}".as_bytes()[..1]), "text");
        assert_eq!(describe(b"\xff\xfe\x01"), "data of an unknown kind");
    }
}
