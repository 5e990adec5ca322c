//! **Purpose.** Tests of extended attributes.

use zerocopy::FromBytes;

use crate::inode::RawInode;
use proptest::prelude::*;

use super::*;
use crate::oracle::{Image, number_after};

const AT: PhysBlock = PhysBlock(77);

fn seed() -> ChecksumSeed {
    ChecksumSeed::from_stored(5)
}

type Attribute<'a> = (NameIndex, &'a [u8], &'a [u8]);

/// Stores entries after `header`, and values at the end of `bytes` bytes.
fn area(header: &[u8], values_from: usize, bytes: usize, all: &[Attribute<'_>]) -> Vec<u8> {
    let mut out = header.to_vec();
    out.resize(bytes, 0);
    let (mut at, mut end) = (header.len(), bytes);
    for (index, name, value) in all {
        end -= value.len().next_multiple_of(PAD);
        let raw = RawEntry {
            e_name_len: u8::try_from(name.len()).unwrap(),
            e_name_index: index.0,
            e_value_offs: u16::try_from(end - values_from).unwrap().into(),
            e_value_inum: 0.into(),
            e_value_size: u32::try_from(value.len()).unwrap().into(),
            e_hash: entry_hash(name, HashedValue::Inline(value), CharSign::Unsigned).into(),
        };
        out[at..at + ENTRY_BYTES].copy_from_slice(raw.as_bytes());
        out[at + ENTRY_BYTES..][..name.len()].copy_from_slice(name);
        out[end..end + value.len()].copy_from_slice(value);
        at += ENTRY_BYTES + name.len().next_multiple_of(PAD);
    }
    out
}

fn in_inode(all: &[Attribute<'_>]) -> Vec<u8> {
    area(&MAGIC.to_le_bytes(), MAGIC_BYTES, 100, all)
}

fn in_block(all: &[Attribute<'_>]) -> Vec<u8> {
    let header = RawBlockHeader {
        h_magic: MAGIC.into(),
        h_refcount: 1.into(),
        h_blocks: 1.into(),
        h_hash: 0.into(),
        h_checksum: 0.into(),
        h_reserved: [0.into(); 3],
    };
    let mut block = area(header.as_bytes(), 0, 1024, all);
    seal_block(&mut block, AT, seed()).unwrap();
    block
}

const ALL: &[Attribute<'_>] = &[
    (NameIndex::USER, b"a", b"value"),
    (NameIndex::POSIX_ACL_ACCESS, b"", b""),
    (NameIndex::SECURITY, b"selinux", b"label"),
];

fn check_ours(xattrs: Xattrs<'_>) {
    let found: Vec<_> = xattrs.entries().map(Result::unwrap).collect();
    assert_eq!(found.len(), ALL.len());
    for (entry, (index, name, value)) in found.iter().zip(ALL) {
        assert_eq!((entry.index, entry.name), (*index, *name));
        assert_eq!(entry.value, Value::Inline(value));
        assert_eq!(xattrs.find(*index, name), Ok(Some(*entry)));
    }
    assert_eq!(xattrs.find(NameIndex::TRUSTED, b"a"), Ok(None));
}

#[test]
fn entries_in_inodes_and_blocks() {
    let area = in_inode(ALL);
    check_in_inode(&area, EaInodes::Absent).unwrap();
    check_ours(Xattrs::in_inode(&area));
    let block = in_block(ALL);
    check_block(&block, AT, EaInodes::Absent, Some(seed())).unwrap();
    check_ours(Xattrs::in_block(&block).unwrap());
}

#[test]
fn an_inode_without_magic_has_none() {
    for area in [&[][..], &[0; 3], &[7; 90]] {
        check_in_inode(area, EaInodes::Absent).unwrap();
        assert_eq!(Xattrs::in_inode(area).entries().count(), 0);
    }
}

#[test]
fn prefixes_and_back() {
    let split = |name: &'static str| NameIndex::split(name.as_bytes());
    assert_eq!(split("user.x.y"), Some((NameIndex::USER, &b"x.y"[..])));
    assert_eq!(
        split("gnu.translator"),
        Some((NameIndex::HURD, &b"translator"[..]))
    );
    assert_eq!(
        split("system.posix_acl_access"),
        Some((NameIndex::POSIX_ACL_ACCESS, &b""[..]))
    );
    assert_eq!(
        split("system.data"),
        Some((NameIndex::SYSTEM, &b"data"[..]))
    );
    assert_eq!(
        (split("user."), split("unknown.x"), split("user")),
        (None, None, None)
    );
    for (index, prefix) in NameIndex::PREFIXES {
        assert_eq!(index.prefix(), Some(prefix));
    }
    assert_eq!(NameIndex::ENCRYPTION.prefix(), None);
}

#[test]
fn the_checksum_covers_content_and_place() {
    let mut block = in_block(ALL);
    let check = |block: &[u8], at| check_block(block, at, EaInodes::Absent, Some(seed()));
    assert!(matches!(
        check(&block, PhysBlock(78)),
        Err(XattrError::Checksum(_))
    ));
    block[500] ^= 1;
    assert!(matches!(check(&block, AT), Err(XattrError::Checksum(_))));
}

#[test]
fn corrupt_areas_are_named() {
    let with = |at: usize, bytes: &[u8], inodes| {
        let mut area = in_inode(ALL);
        area[at..at + bytes.len()].copy_from_slice(bytes);
        check_in_inode(&area, inodes).unwrap_err()
    };
    let absent = EaInodes::Absent;
    let between = EaInodes::Between {
        first: InodeNr(11),
        last: InodeNr(99),
    };
    assert_eq!(
        with(4, &[250], absent),
        XattrError::EntryEnd {
            at: 4,
            found: 272,
            expected: 96
        }
    );
    assert_eq!(
        with(20, &[0], absent),
        XattrError::NameByte { at: 4, position: 0 }
    );
    let found = InodeNr(12);
    assert_eq!(
        with(8, &[12], absent),
        XattrError::NoEaInodes { at: 4, found }
    );
    let (found, first, last) = (InodeNr(10), InodeNr(11), InodeNr(99));
    let inode = XattrError::ValueInode {
        at: 4,
        found,
        first,
        last,
    };
    assert_eq!(with(8, &[10], between), inode);
    let size = XattrError::ValueSize {
        at: 4,
        found: (1 << 24) + 5,
        max: MAX_VALUE_BYTES,
    };
    assert_eq!(with(15, &[1], absent), size);
    let offset = |found| XattrError::ValueOffset {
        at: 4,
        found,
        size: 5,
        first: 64,
        end: 96,
    };
    assert_eq!(with(6, &[63], absent), offset(63));
    assert_eq!(with(6, &[90], absent), offset(90));
    let blocks = |at: usize, bytes: &[u8]| {
        let mut block = in_block(ALL);
        block[at..at + bytes.len()].copy_from_slice(bytes);
        check_block(&block, AT, absent, None).unwrap_err()
    };
    assert_eq!(blocks(8, &[2]), XattrError::Blocks { found: 2 });
    assert_eq!(blocks(0, &[1]), XattrError::Magic { found: MAGIC + 1 });
    let short = XattrError::TooShort {
        found: 31,
        expected: 32,
    };
    assert_eq!(check_block(&[0; 31], AT, absent, None), Err(short));
}

#[test]
fn a_value_in_an_inode() {
    let mut area = in_inode(ALL);
    area[8] = 12;
    let inodes = EaInodes::Between {
        first: InodeNr(11),
        last: InodeNr(99),
    };
    check_in_inode(&area, inodes).unwrap();
    let entry = Xattrs::in_inode(&area).entries().next().unwrap().unwrap();
    assert_eq!(
        entry.value,
        Value::Inode {
            inode: InodeNr(12),
            bytes: 5
        }
    );
}

#[test]
fn a_block_with_an_entry_without_hash_is_not_shared() {
    assert_eq!(block_hash([1, 2]), 0x0001_0002);
    assert_eq!(block_hash([1, 0, 2]), 0);
    assert_eq!(block_hash([]), 0);
}

/// Attributes set by debugfs in a block of its own making, with names beyond ASCII.
#[test]
fn agrees_with_debugfs() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("file"), b"x").unwrap();
    let args = ["-b", "4096", "-I", "256", "-O", "metadata_csum"];
    let Some(image) = Image::make(&args, tree.path(), 8) else {
        return;
    };
    let long = "v".repeat(301);
    image.debugfs(&format!(
        "ea_set /file user.long {long}\nea_set /file user.n\u{e4}me {long}x\n\
         ea_set /file security.small abc\n"
    ));
    let (raw, _) = image.inode(image.inode_nr("/file"));
    let i_extra_isize = usize::from(raw[0x80]);
    let area = &raw[128 + i_extra_isize..];
    check_in_inode(area, EaInodes::Absent).unwrap();
    let small = Xattrs::in_inode(area)
        .find(NameIndex::SECURITY, b"small")
        .unwrap()
        .unwrap();
    assert_eq!(small.value, Value::Inline(b"abc"));

    let acl: u64 = number_after(&image.debugfs("stat /file\n"), "File ACL: ");
    let (at, block) = (PhysBlock(acl), image.block(PhysBlock(acl)));
    check_block(&block, at, EaInodes::Absent, Some(image.seed())).unwrap();
    let xattrs = Xattrs::in_block(&block).unwrap();
    let mut hashes = Vec::new();
    for entry in xattrs.entries() {
        let entry = entry.unwrap();
        let Value::Inline(value) = entry.value else {
            panic!("no such inodes here")
        };
        let hash = |chars| entry_hash(entry.name, HashedValue::Inline(value), chars);
        let either = [hash(CharSign::Signed), hash(CharSign::Unsigned)];
        assert!(
            either.contains(&entry.hash),
            "{either:#x?} {:#x}",
            entry.hash
        );
        hashes.push(entry.hash);
    }
    assert_eq!(hashes.len(), 2);
    // e2fsprogs do not write the hash of the block, which only prevents sharing.
    let h_hash = block_header(&block).unwrap().h_hash.get();
    assert!([0, block_hash(hashes)].contains(&h_hash), "{h_hash:#x}");
}

/// Reads a value that debugfs stored in an inode, with its reference count and hashes.
#[test]
fn values_in_inodes_as_debugfs_writes_them() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("file"), b"x").unwrap();
    let value = tree.path().join("value");
    std::fs::write(&value, vec![b'z'; 4096]).unwrap();
    let args = ["-b", "4096", "-I", "256", "-O", "metadata_csum,ea_inode"];
    let Some(image) = Image::make(&args, tree.path(), 8) else {
        return;
    };
    image.debugfs(&format!("ea_set -f {} /file user.big\n", value.display()));
    let (raw, _) = image.inode(image.inode_nr("/file"));
    let acl = u64::from(crate::oracle::le32(&raw, 0x68));
    let inodes = EaInodes::Between {
        first: InodeNr(11),
        last: InodeNr(1000),
    };
    let (area, block);
    let xattrs = if acl == 0 {
        area = raw[128 + usize::from(raw[0x80])..].to_vec();
        check_in_inode(&area, inodes).unwrap();
        Xattrs::in_inode(&area)
    } else {
        block = image.block(PhysBlock(acl));
        check_block(&block, PhysBlock(acl), inodes, Some(image.seed())).unwrap();
        Xattrs::in_block(&block).unwrap()
    };
    let entry = xattrs.find(NameIndex::USER, b"big").unwrap().unwrap();
    let Value::Inode { inode, bytes } = entry.value else {
        panic!("{entry:?}")
    };
    assert_eq!(bytes, 4096);
    let (raw, _) = image.inode(inode);
    let holder = EaInode::of(RawInode::ref_from_prefix(&raw).unwrap().0);
    assert_eq!(holder.refs, 1);
    assert_eq!(
        holder.value_hash,
        EaInode::hash_of(&[b'z'; 4096], image.seed())
    );
    let expected = entry_hash(
        b"big",
        HashedValue::Inode(holder.value_hash),
        CharSign::Unsigned,
    );
    assert_eq!(entry.hash, expected);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        magic: bool,
        small in 0..40u8,
    ) {
        if magic {
            for (byte, good) in bytes.iter_mut().zip(MAGIC.to_le_bytes()) {
                *byte = good;
            }
            for at in [4, 32] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = small;
                }
            }
        }
        let inodes = EaInodes::Between { first: InodeNr(11), last: InodeNr(1000) };
        let _ = check_in_inode(&bytes, inodes);
        let _ = check_block(&bytes, AT, EaInodes::Absent, Some(seed()));
        prop_assert!(Xattrs::in_inode(&bytes).entries().count() <= 13);
        if let Ok(xattrs) = Xattrs::in_block(&bytes) {
            prop_assert!(xattrs.entries().count() <= 13);
        }
        let _ = seal_block(&mut bytes, AT, seed());
    }

    #[test]
    fn inserted_attributes_are_found(
        all in proptest::collection::btree_map(
            proptest::collection::vec(1..=255u8, 1..20),
            proptest::collection::vec(any::<u8>(), 0..50),
            0..8,
        ),
    ) {
        let list: Vec<_> =
            all.iter().map(|(name, value)| (NameIndex::USER, &name[..], &value[..])).collect();
        let block = in_block(&list);
        prop_assert_eq!(check_block(&block, AT, EaInodes::Absent, Some(seed())), Ok(()));
        let xattrs = Xattrs::in_block(&block).unwrap();
        for (index, name, value) in list {
            let entry = xattrs.find(index, name).unwrap().unwrap();
            prop_assert_eq!(entry.value, Value::Inline(value));
        }
    }
}
