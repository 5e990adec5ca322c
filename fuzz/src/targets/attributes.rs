//! **Purpose.** Extended attributes, ACLs, encryption contexts and names, verity descriptors,
//! inline directories.
//!
//! **Input.** A byte of switches, a byte that chooses the structure, a number, its bytes.

use fourscore_ondisk::checksum::ChecksumSeed;
use fourscore_ondisk::crypt::{self, Context, NoKeyName};
use fourscore_ondisk::dirent::{DirFormat, NameForm, StoredHash, TypeByte};
use fourscore_ondisk::dirhash::CharSign;
use fourscore_ondisk::inline::InlineData;
use fourscore_ondisk::verity::{self, VerityLayout};
use fourscore_ondisk::xattr::{self, EaInodes, HashedValue, Value, Xattrs};
use fourscore_ondisk::{BlockSize, InodeNr, LogicalBlock, PhysBlock, acl};

use crate::device::BLOCK_BYTES;
use crate::input::Input;
use crate::targets::SEAL;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let [switches, what] = input.array();
    let number = input.u32();
    let ea_inodes = if switches & 4 == 0 {
        EaInodes::Absent
    } else {
        EaInodes::Between {
            first: InodeNr(11),
            last: InodeNr(1 << 16),
        }
    };
    match what % 6 {
        0 => in_inode(input.rest(), ea_inodes),
        1 => in_block(input.padded(BLOCK_BYTES), ea_inodes, switches),
        2 => access_control(input.rest()),
        3 => encryption(input.rest(), number),
        4 => verity(input.rest(), number),
        _ => inline(input.rest(), switches),
    }
}

fn in_inode(area: &[u8], ea_inodes: EaInodes) {
    let bounded = Xattrs::in_inode(area)
        .entries()
        .take(area.len() + 1)
        .count();
    assert!(bounded <= area.len(), "entries do not end");
    if xattr::check_in_inode(area, ea_inodes).is_ok() {
        entries(&Xattrs::in_inode(area));
    }
}

fn in_block(mut block: Vec<u8>, ea_inodes: EaInodes, switches: u8) {
    let (at, seed) = (PhysBlock(77), ChecksumSeed::from_stored(9));
    let has_checksums = switches & 2 != 0;
    if switches & SEAL != 0 {
        xattr::seal_block(&mut block, at, seed).expect("a header fits");
    }
    if xattr::check_block(&block, at, ea_inodes, has_checksums.then_some(seed)).is_ok() {
        entries(&Xattrs::in_block(&block).expect("checked"));
    }
}

fn entries(xattrs: &Xattrs<'_>) {
    let mut hashes = Vec::new();
    for entry in xattrs.entries() {
        let entry = entry.expect("checked");
        let found = xattrs.find(entry.index, entry.name).expect("checked");
        assert!(found.is_some_and(|found| found.name == entry.name));
        let value = match entry.value {
            Value::Inline(value) => {
                access_control(value);
                HashedValue::Inline(value)
            }
            Value::Inode { inode, bytes } => {
                assert!(inode.0 >= 11 && bytes <= xattr::MAX_VALUE_BYTES);
                HashedValue::Inode(bytes)
            }
        };
        hashes.push(xattr::entry_hash(entry.name, value, CharSign::Signed));
    }
    let _shared = xattr::block_hash(hashes);
}

fn access_control(value: &[u8]) {
    if let Ok(list) = acl::disk_to_xattr(value) {
        let again = acl::xattr_to_disk(&list).expect("made a moment ago");
        assert_eq!(acl::disk_to_xattr(&again).as_ref(), Ok(&list));
    }
    if let Ok(list) = acl::from_xattr(value) {
        let _sound = acl::check(list);
    }
    if let Ok(list) = acl::from_disk(value) {
        let _sound = acl::check(list);
    }
}

fn encryption(bytes: &[u8], number: u32) {
    let _context = Context::parse(bytes);
    let _target = crypt::symlink_target(bytes);
    let name = &bytes[..bytes.len().min(255)];
    let hash = StoredHash {
        hash: number,
        minor_hash: !number,
    };
    if let Ok(shown) = crypt::no_key_name(name, hash)
        && !matches!(name, b"." | b"..")
    {
        assert!(
            shown.len() <= 255,
            "{} bytes are shown as {}",
            name.len(),
            shown.len()
        );
        let parsed = NoKeyName::parse(shown.as_bytes()).expect("made a moment ago");
        assert!(parsed.matches(name) && parsed.hash == hash);
    }
    if let Some(parsed) = NoKeyName::parse(bytes) {
        let _same = parsed.matches(name);
    }
}

fn verity(bytes: &[u8], number: u32) {
    let mut input = Input::new(bytes);
    let size_bytes = u64::from_le_bytes(input.array());
    let block_size = BlockSize::from_log(u32::from(input.u8()) % 7).expect("0 to 6");
    if let Ok(layout) = VerityLayout::new(size_bytes, LogicalBlock(number), block_size) {
        assert!(layout.tree_at >= size_bytes && layout.size_field_at > layout.tree_at);
        if let Ok(range) = layout.descriptor(input.array()) {
            assert!(range.start >= layout.tree_at && range.end <= layout.size_field_at);
        }
    }
    let _fields = verity::descriptor(input.rest(), size_bytes);
}

fn inline(bytes: &[u8], switches: u8) {
    let (i_block, area) = bytes.split_at(bytes.len().min(60));
    let format = DirFormat {
        names: NameForm::Plain,
        type_byte: if switches & 8 == 0 {
            TypeByte::Present
        } else {
            TypeByte::Absent
        },
        inodes_count: InodeNr(1 << 16),
        seed: None,
    };
    if xattr::check_in_inode(area, EaInodes::Absent).is_err() {
        return;
    }
    let Ok(data) = InlineData::find(i_block, &Xattrs::in_inode(area)) else {
        return;
    };
    let Ok(directory) = data.directory(&format) else {
        return;
    };
    if directory.check().is_ok() {
        for entry in directory.entries() {
            let entry = entry.expect("checked");
            assert!(directory.find(entry.name).expect("checked").is_some());
        }
    }
}
