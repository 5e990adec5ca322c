//! **Purpose.** Tests of directory blocks.

use proptest::prelude::*;

use super::*;
use crate::checksum::{ChecksumSeed, InodeGeneration};

fn seed() -> InodeSeed {
    ChecksumSeed::from_stored(7).for_inode(InodeNr(2), InodeGeneration(0))
}

fn format(seed: Option<InodeSeed>) -> DirFormat {
    DirFormat {
        names: NameForm::Plain,
        type_byte: TypeByte::Present,
        inodes_count: InodeNr(100),
        seed,
    }
}

/// A block of records (inode, name, type), the last one stretched to the end or the tail.
fn block(format: &DirFormat, bytes: usize, records: &[(u32, &[u8], u8)]) -> Vec<u8> {
    let end = if format.seed.is_some() {
        bytes - TAIL_BYTES
    } else {
        bytes
    };
    let mut out = Vec::new();
    for (nr, &(inode, name, file_type)) in records.iter().enumerate() {
        let start = out.len();
        let last = nr + 1 == records.len();
        let length = if last {
            end - start
        } else {
            format.needed_bytes(name)
        };
        let header = RawDirentHeader {
            inode: inode.into(),
            rec_len: encode_rec_len(length, bytes).unwrap().into(),
            name_len: u8::try_from(name.len()).unwrap(),
            file_type,
        };
        out.extend(header.as_bytes());
        out.extend(name);
        out.resize(start + length, 0);
    }
    if let Some(seed) = format.seed {
        let tail = RawTail {
            det_reserved_zero1: 0.into(),
            det_rec_len: 12.into(),
            det_reserved_zero2: 0,
            det_reserved_ft: TAIL_FILE_TYPE,
            det_checksum: 0.into(),
        };
        out.extend(tail.as_bytes());
        DirFormat::seal(&mut out, seed).unwrap();
    }
    out
}

const RECORDS: &[(u32, &[u8], u8)] = &[
    (2, b".", 2),
    (2, b"..", 2),
    (12, b"file", 1),
    (0, b"gone", 1),
    (13, b"link", 7),
];

fn names(format: &DirFormat, block: &[u8]) -> Vec<Vec<u8>> {
    format
        .entries(block)
        .map(|entry| entry.unwrap().name.to_vec())
        .collect()
}

#[test]
fn entries_skip_free_records_and_the_tail() {
    for seed in [None, Some(seed())] {
        for bytes in [1024, 4096, 65536] {
            let format = format(seed);
            let block = block(&format, bytes, RECORDS);
            assert_eq!(block.len(), bytes);
            format.check_block(&block).unwrap();
            assert_eq!(names(&format, &block), [&b"."[..], b"..", b"file", b"link"]);
            assert_eq!(format.records(&block).count(), 5);
            let link = format.find(&block, b"link").unwrap().unwrap();
            assert_eq!((link.inode, link.kind), (InodeNr(13), EntryType::Symlink));
            assert_eq!(format.find(&block, b"gone"), Ok(None));
            let dots = Dots {
                own: InodeNr(2),
                parent: InodeNr(2),
            };
            assert_eq!(format.dots(&block), Ok(dots));
        }
    }
}

#[test]
fn the_type_byte_counts_only_with_its_feature() {
    let format = DirFormat {
        type_byte: TypeByte::Absent,
        ..format(None)
    };
    let block = block(&format, 1024, RECORDS);
    assert_eq!(
        format.find(&block, b"link").unwrap().unwrap().kind,
        EntryType::Unknown
    );
}

#[test]
fn lengths_of_64_kib_blocks_fit_16_bits() {
    for bytes in (12..=65536).step_by(4) {
        let raw = encode_rec_len(bytes, 65536).unwrap();
        assert_eq!(decode_rec_len(raw, 65536), bytes);
    }
    assert_eq!(decode_rec_len(0, 65536), 65536);
    assert_eq!(decode_rec_len(0, 4096), 0);
    assert_eq!(encode_rec_len(4100, 4096), None);
    assert_eq!(encode_rec_len(13, 4096), None);
}

#[test]
fn a_changed_byte_breaks_the_checksum() {
    let format = format(Some(seed()));
    let mut block = block(&format, 1024, RECORDS);
    block[600] ^= 1;
    assert!(matches!(
        format.check_block(&block),
        Err(DirentError::Checksum(_))
    ));
}

#[test]
fn a_record_over_the_checksum_record_is_refused() {
    let format = format(Some(seed()));
    let mut block = block(&format, 1024, &[(2, b".", 2), (2, b"..", 2)]);
    block[16..18].copy_from_slice(&1012_u16.to_le_bytes());
    DirFormat::seal(&mut block, seed()).unwrap();
    assert_eq!(format.check_block(&block), Err(DirentError::NoTail));
    block[1023 - 4] = 0;
    assert_eq!(format.check_block(&block), Err(DirentError::NoTail));
}

#[test]
fn corrupt_records_are_named() {
    let format = format(None);
    let good = block(&format, 1024, RECORDS);
    let with = |at: usize, bytes: &[u8]| {
        let mut block = good.clone();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        format.check_block(&block).unwrap_err()
    };
    let rec_len = |len: u16| with(28, &len.to_le_bytes());
    assert_eq!(
        rec_len(0),
        DirentError::RecLenShort {
            at: 24,
            found: 0,
            expected: 12
        }
    );
    assert_eq!(rec_len(14), DirentError::RecLenAlign { at: 24, found: 14 });
    assert_eq!(
        rec_len(1004),
        DirentError::RecLenLong {
            at: 24,
            found: 1004,
            expected: 1000
        }
    );
    assert_eq!(
        rec_len(992),
        DirentError::NoRoom {
            at: 1016,
            found: 8,
            expected: 12
        }
    );
    assert_eq!(
        with(30, &[5]),
        DirentError::RecLenShort {
            at: 24,
            found: 12,
            expected: 16
        }
    );
    assert_eq!(with(30, &[0]), DirentError::EmptyName { at: 24 });
    let max = InodeNr(100);
    assert_eq!(
        with(24, &[101]),
        DirentError::Inode {
            at: 24,
            found: InodeNr(101),
            max
        }
    );
    let byte = |found| DirentError::NameByte {
        at: 24,
        found,
        position: 1,
    };
    assert_eq!(with(33, b"/"), byte(b'/'));
    assert_eq!(with(33, b"\0"), byte(0));
    let mut block = good.clone();
    block[8] = b'x';
    assert_eq!(
        format.dots(&block),
        Err(DirentError::Dots {
            at: 0,
            expected: "."
        })
    );
    block[8] = b'.';
    block[21] = b'x';
    assert_eq!(
        format.dots(&block),
        Err(DirentError::Dots {
            at: 12,
            expected: ".."
        })
    );
}

#[test]
fn encrypted_names_may_hold_anything_and_carry_a_hash() {
    let format = DirFormat {
        names: NameForm::EncryptedHashed,
        ..format(None)
    };
    let name = b"/\x00_45678901234567";
    let mut block = block(&format, 1024, &[(2, b".", 2), (2, b"..", 2), (12, name, 1)]);
    let at = 24 + (8 + name.len()).next_multiple_of(4);
    block[at..at + 8].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
    format.check_block(&block).unwrap();
    let found: Vec<_> = format
        .entries(&block)
        .map(|entry| entry.unwrap().hash)
        .collect();
    assert_eq!(
        found,
        [
            None,
            None,
            Some(StoredHash {
                hash: 1,
                minor_hash: 2
            })
        ]
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        rec_len in 0..40u16,
        hashed: bool,
        sealed: bool,
    ) {
        if let Some(field) = bytes.get_mut(4..6) {
            field.copy_from_slice(&rec_len.to_le_bytes());
        }
        let names = if hashed { NameForm::EncryptedHashed } else { NameForm::Plain };
        let format = DirFormat { names, ..format(sealed.then(seed)) };
        let _ = format.check_block(&bytes);
        let _ = format.dots(&bytes);
        let _ = format.find(&bytes, b"x");
        prop_assert!(format.records(&bytes).count() <= 26);
    }

    #[test]
    fn inserted_entries_are_found(
        names in proptest::collection::btree_set(proptest::collection::vec(1..=46u8, 1..30), 1..20),
    ) {
        let format = format(Some(seed()));
        let records: Vec<_> = names.iter().map(|name| (5, name.as_slice(), 1)).collect();
        let block = block(&format, 1024, &records);
        prop_assert_eq!(format.check_block(&block), Ok(()));
        for name in &names {
            prop_assert_eq!(format.find(&block, name).unwrap().unwrap().name, name.as_slice());
        }
    }
}
