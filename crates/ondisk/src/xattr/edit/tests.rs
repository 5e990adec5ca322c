//! **Purpose.** Tests of changes against a map of names to values; after each step the area passes
//! the checks of a reader and has the layout that the kernel makes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{check_block, check_in_inode};
use super::*;
use crate::checksum::ChecksumSeed;
use crate::oracle::Image;
use crate::types::PhysBlock;
use crate::xattr::{Value, block_header, seal_block};

const AT: PhysBlock = PhysBlock(77);

/// A name as it is stored, in the order of blocks.
type Key = (u8, usize, Vec<u8>);

/// A value of the model: its bytes, or the inode with its length and hash.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kept {
    Inline(Vec<u8>),
    Inode(u32, u32, u32),
}

impl Kept {
    fn new_value(&self) -> NewValue<'_> {
        match self {
            Self::Inline(bytes) => NewValue::Inline(bytes),
            &Self::Inode(inode, bytes, hash) => NewValue::Inode {
                inode: InodeNr(inode),
                bytes,
                hash,
            },
        }
    }

    fn stored(&self) -> usize {
        self.new_value().inline().len().next_multiple_of(4)
    }
}

fn open(area: &mut [u8], home: Home) -> XattrsMut<'_> {
    match home {
        Home::Inode => XattrsMut::in_inode(area).unwrap(),
        Home::Block => XattrsMut::in_block(area).unwrap(),
    }
}

/// The bytes that the attributes of a model need, with the header of the area and its terminator.
fn taken(model: &BTreeMap<Key, Kept>, home: Home) -> usize {
    let head = if home == Home::Block { 32 } else { 4 };
    let each = |(key, kept): (&Key, &Kept)| 16 + key.1.next_multiple_of(4) + kept.stored();
    head + 4 + model.iter().map(each).sum::<usize>()
}

/// Checks that the area holds exactly the attributes of the model.
fn agrees(area: &mut [u8], home: Home, model: &BTreeMap<Key, Kept>, order: &[Key]) {
    let seed = ChecksumSeed::from_stored(5);
    let xattrs = match home {
        Home::Inode => {
            check_in_inode(area, ANY_INODE).unwrap();
            assert_eq!(
                model.is_empty(),
                area[..4] == [0; 4],
                "the magic goes with the last"
            );
            Xattrs::in_inode(area)
        }
        Home::Block => {
            seal_block(area, AT, seed).unwrap();
            check_block(area, AT, ANY_INODE, Some(seed)).unwrap();
            Xattrs::in_block(area).unwrap()
        }
    };
    let entries: Vec<_> = xattrs.entries().map(Result::unwrap).collect();
    let key =
        |entry: &super::super::Entry<'_>| (entry.index.0, entry.name.len(), entry.name.to_vec());
    let keys: Vec<_> = entries.iter().map(key).collect();
    match home {
        Home::Inode => assert_eq!(keys, order, "in the order in which they came"),
        Home::Block => assert!(keys.iter().eq(model.keys()), "sorted"),
    }
    for (entry, key) in entries.iter().zip(&keys) {
        let (kept, hashed) = match entry.value {
            Value::Inline(bytes) => (Kept::Inline(bytes.to_vec()), HashedValue::Inline(bytes)),
            Value::Inode { inode, bytes } => {
                let &Kept::Inode(.., hash) = &model[key] else {
                    panic!("not in an inode");
                };
                (Kept::Inode(inode.0, bytes, hash), HashedValue::Inode(hash))
            }
        };
        assert_eq!(kept, model[key]);
        let hash = match (home, hashed) {
            (Home::Inode, HashedValue::Inline(_)) => 0,
            _ => entry_hash(entry.name, hashed, CharSign::Unsigned),
        };
        assert_eq!(entry.hash, hash);
    }
    if home == Home::Block {
        let expected = block_hash(entries.iter().map(|entry| entry.hash));
        assert_eq!(block_header(area).unwrap().h_hash.get(), expected);
        assert_eq!(block_header(area).unwrap().h_refcount.get(), 1);
    }
    // Unused bytes are zero, so equal sets with the same history are equal bytes.
    let used: usize = area.len() - taken(model, home);
    let editable = open(area, home);
    assert_eq!(editable.free_bytes(), used);
    let layout = editable.layout;
    assert!(
        area[layout.entries_end..layout.values_at]
            .iter()
            .all(|&byte| byte == 0)
    );
}

#[derive(Clone, Debug)]
enum Step {
    Set(Key, Kept),
    Remove(Key),
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let key = (
        prop_oneof![Just(1_u8), Just(2), Just(6)],
        "[ab]{0,2}|[a-z]{9,12}",
    )
        .prop_map(|(index, name)| (index, name.len(), name.into_bytes()));
    let value = prop_oneof![
        6 => proptest::collection::vec(any::<u8>(), 0..24).prop_map(Kept::Inline),
        2 => proptest::collection::vec(any::<u8>(), 0..most).prop_map(Kept::Inline),
        1 => (1..99_u32, 0..70_000_u32, any::<u32>())
            .prop_map(|(inode, bytes, hash)| Kept::Inode(inode, bytes, hash)),
    ];
    let step = prop_oneof![
        3 => (key.clone(), value).prop_map(|(key, value)| Step::Set(key, value)),
        1 => key.prop_map(Step::Remove),
    ];
    proptest::collection::vec(step, 1..40)
}

fn follow(mut area: Vec<u8>, home: Home, steps: Vec<Step>) {
    let (mut model, mut order) = (BTreeMap::<Key, Kept>::new(), Vec::new());
    assert!(open(&mut area, home).is_empty());
    agrees(&mut area, home, &model, &order);
    for step in steps {
        let before = area.clone();
        let mut xattrs = open(&mut area, home);
        let was = |kept: Option<&Kept>| match kept {
            None => Was::Absent,
            Some(Kept::Inline(_)) => Was::Inline,
            Some(Kept::Inode(inode, ..)) => Was::Inode(InodeNr(*inode)),
        };
        match step {
            Step::Set(key, kept) => {
                let (index, value) = (NameIndex(key.0), kept.new_value());
                let mut after = model.clone();
                after.insert(key.clone(), kept.clone());
                let fits = taken(&after, home) <= before.len();
                let planned = xattrs.fits(index, &key.2, value.inline().len());
                assert_eq!(planned, Ok(fits), "the prediction is exact");
                let result = xattrs.set(index, &key.2, &value);
                if fits {
                    assert_eq!(result, Ok(was(model.get(&key))));
                    if !model.contains_key(&key) {
                        order.push(key);
                    }
                    model = after;
                } else {
                    assert!(
                        matches!(result, Err(XattrEditError::NoSpace { .. })),
                        "{result:?}"
                    );
                    assert_eq!(area, before, "a refused change changes nothing");
                }
            }
            Step::Remove(key) => {
                let result = xattrs.remove(NameIndex(key.0), &key.2);
                assert_eq!(result, Ok(was(model.get(&key))));
                model.remove(&key);
                order.retain(|other| *other != key);
            }
        }
        agrees(&mut area, home, &model, &order);
    }
}

proptest! {
    #[test]
    fn inodes_follow_the_model(
        area_bytes in prop_oneof![Just(8_usize), Just(96), Just(864), Just(3936)],
        steps in steps(300),
    ) {
        // Without the magic number the other bytes do not matter.
        follow(vec![0x5a; area_bytes], Home::Inode, steps);
    }

    #[test]
    fn blocks_follow_the_model(log in 0..7_u32, steps in steps(900)) {
        let mut block = vec![0x5a; 1024 << log];
        prop_assert!(XattrsMut::init_block(&mut block).unwrap().is_empty());
        follow(block, Home::Block, steps);
    }

    #[test]
    fn resizing_keeps_the_bytes(
        values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 3),
        which in 0..3_usize,
        sizes in proptest::collection::vec(0..90_usize, 1..8),
    ) {
        let mut area = vec![0; 160];
        let names = [b"a", b"b", b"c"];
        let mut values = values;
        let mut xattrs = XattrsMut::in_inode(&mut area).unwrap();
        for (name, value) in names.iter().zip(&values) {
            xattrs.set(NameIndex::USER, *name, &NewValue::Inline(value)).unwrap();
        }
        for size in sizes {
            let mut xattrs = XattrsMut::in_inode(&mut area).unwrap();
            let fits = xattrs.fits(NameIndex::USER, names[which], size).unwrap();
            prop_assert_eq!(xattrs.resize(NameIndex::USER, names[which], size).is_ok(), fits);
            if fits {
                values[which].resize(size, 0);
            }
            check_in_inode(&area, ANY_INODE).unwrap();
            let xattrs = Xattrs::in_inode(&area);
            let mut used = 8 + 3 * 20;
            for (name, value) in names.iter().zip(&values) {
                let found = xattrs.find(NameIndex::USER, *name).unwrap().unwrap();
                prop_assert_eq!(found.value, Value::Inline(value));
                used += value.len().next_multiple_of(4);
            }
            prop_assert_eq!(XattrsMut::in_inode(&mut area).unwrap().free_bytes(), 160 - used);
        }
    }

    #[test]
    fn arbitrary_areas_never_panic(
        mut area in proptest::collection::vec(prop_oneof![Just(0_u8), 0..90_u8], 0..120),
        bytes in 0..60_usize,
        index in 0..3_u8,
        from in 0..40_usize,
    ) {
        if let Some(magic) = area.get_mut(..4) {
            magic.copy_from_slice(&MAGIC.to_le_bytes());
        }
        let name = area.get(20..24).unwrap_or(b"x").to_vec();
        let value = vec![1; bytes];
        let _ = shift_start(&mut area.clone(), from, from + 4);
        if let Ok(mut xattrs) = XattrsMut::in_inode(&mut area) {
            let _ = xattrs.set(NameIndex(index), &name, &NewValue::Inline(&value));
            let _ = xattrs.resize(NameIndex(index), &name, bytes / 2);
            let _ = xattrs.value_mut(NameIndex(index), &name);
            let _ = xattrs.remove(NameIndex(index), &name);
            prop_assert_eq!(check_in_inode(&area, ANY_INODE), Ok(()));
        }
        let mut block = area.clone();
        block.resize(1024, 0);
        if let Ok(mut xattrs) = XattrsMut::in_block(&mut block) {
            let _ = xattrs.set(NameIndex(index), &name, &NewValue::Inline(&value));
        }
    }
}

#[test]
fn invalid_names_are_refused() {
    let mut area = vec![0; 96];
    let mut xattrs = XattrsMut::in_inode(&mut area).unwrap();
    let value = NewValue::Inline(b"");
    for (index, name) in [(1, &b"a\0b"[..]), (1, &[b'x'; 256]), (0, b"")] {
        let result = xattrs.set(NameIndex(index), name, &value);
        assert_eq!(result, Err(XattrEditError::Name));
    }
    assert!(xattrs.is_empty());
}

#[test]
fn values_with_bytes_in_common_are_not_moved() {
    let mut area = vec![0; 96];
    let mut xattrs = XattrsMut::in_inode(&mut area).unwrap();
    xattrs
        .set(NameIndex::USER, b"a", &NewValue::Inline(b"12345678"))
        .unwrap();
    xattrs
        .set(NameIndex::USER, b"b", &NewValue::Inline(b"abcdefgh"))
        .unwrap();
    // Moves the second value into the first one.
    let offset = area[4 + 2];
    area[24 + 2] = offset - 4;
    check_in_inode(&area, EaInodes::Absent).unwrap();
    let before = area.clone();
    let mut xattrs = XattrsMut::in_inode(&mut area).unwrap();
    let shared = XattrError::SharedValue { at: 4, other: 24 };
    assert_eq!(xattrs.remove(NameIndex::USER, b"a"), Err(shared.into()));
    assert_eq!(area, before);
}

#[test]
fn the_inode_comes_first_then_the_block() {
    fn user(area: Option<&[u8]>, block: Option<&[u8]>, value: &[u8]) -> Placement {
        let value = NewValue::Inline(value);
        let room = BlockRoom::new(1024, EaInodes::Absent);
        place(area, block, room, NameIndex::USER, b"name", &value).unwrap()
    }
    let area = [0; 96];
    let mut block = vec![0; 1024];
    XattrsMut::init_block(&mut block).unwrap();
    let (inode, none) = (Some(&area[..]), None);
    assert_eq!(user(inode, none, &[0; 96 - 8 - 20]), Placement::Inode);
    assert_eq!(user(inode, none, &[0; 96 - 8 - 19]), Placement::NewBlock);
    assert_eq!(user(none, none, b""), Placement::NewBlock);
    assert_eq!(user(none, none, &[0; 1024 - 36 - 20]), Placement::NewBlock);
    assert_eq!(user(inode, none, &[0; 1024 - 36 - 19]), Placement::Nowhere);
    assert_eq!(user(inode, Some(&block), &[0; 100]), Placement::Block);
    assert_eq!(user(inode, Some(&block), &[0; 1000]), Placement::Nowhere);
    let outside = NewValue::Inode {
        inode: InodeNr(12),
        bytes: 60_000,
        hash: 1,
    };
    let room = BlockRoom::new(1024, ANY_INODE);
    let placed = place(inode, none, room, NameIndex::USER, b"name", &outside).unwrap();
    assert_eq!(placed, Placement::Inode);
    // With such inodes a block reserves 128 bytes for entries.
    let kept = |block, len| {
        let value = vec![0; len];
        let value = NewValue::Inline(&value);
        place(none, block, room, NameIndex::USER, b"name", &value).unwrap()
    };
    assert_eq!(kept(None, 896), Placement::NewBlock);
    assert_eq!(kept(None, 897), Placement::Nowhere);
    assert_eq!(kept(Some(&block[..]), 897), Placement::Nowhere);
    // The space of a replaced value is freed.
    let mut xattrs = XattrsMut::in_block(&mut block).unwrap();
    xattrs
        .set(NameIndex::USER, b"name", &NewValue::Inline(&[1; 900]))
        .unwrap();
    assert_eq!(user(none, Some(&block), &[0; 968]), Placement::Block);
    assert_eq!(user(none, Some(&block), &[0; 969]), Placement::Nowhere);
}

#[test]
fn the_area_moves_back_for_more_fields() {
    let mut tail = vec![0; 128];
    let mut xattrs = XattrsMut::in_inode(&mut tail[4..]).unwrap();
    xattrs
        .set(NameIndex::USER, b"a", &NewValue::Inline(b"12345"))
        .unwrap();
    xattrs
        .set(NameIndex::USER, b"b", &NewValue::Inline(b""))
        .unwrap();
    let free_bytes = xattrs.free_bytes();
    let before = tail.clone();
    let needed_bytes = free_bytes + 4;
    let error = shift_start(&mut tail, 4, 4 + needed_bytes).unwrap_err();
    assert_eq!(
        error,
        XattrEditError::NoSpace {
            needed_bytes,
            free_bytes
        }
    );
    assert_eq!(tail, before);
    shift_start(&mut tail, 4, 4 + free_bytes).unwrap();
    assert!(tail[4..4 + free_bytes].iter().all(|&byte| byte == 0));
    let area = &tail[4 + free_bytes..];
    check_in_inode(area, EaInodes::Absent).unwrap();
    let value = Xattrs::in_inode(area)
        .find(NameIndex::USER, b"a")
        .unwrap()
        .unwrap()
        .value;
    assert_eq!(value, Value::Inline(b"12345"));
    let mut garbage = vec![0x5a; 96];
    shift_start(&mut garbage, 4, 32).unwrap();
    assert_eq!(garbage[4..], [0; 92]);
}

/// debugfs lists attributes that were set here, inside an inode and in a block, and e2fsck finds no
/// problems.
#[test]
fn e2fsprogs_read_the_attributes_that_were_set() {
    let Some(image) = Image::of_file(1024, "metadata_csum,ext_attr", &[7; 1024]) else {
        return;
    };
    let nr = image.inode_nr("/file");
    // debugfs allocates a block for an attribute that does not fit; it is then set again.
    let big = "x".repeat(300);
    image.debugfs(&format!("ea_set /file user.big {big}\n"));
    let sb = image.superblock();
    let (mut bytes, _) = image.inode(nr);
    let inode = crate::Inode::parse(&bytes, nr, &sb).unwrap();
    let at = inode.file_acl().expect("a block");
    let mut block = image.block(at);
    let mut xattrs = XattrsMut::in_block(&mut block).unwrap();
    let sets: [(_, &[u8], &[u8]); 4] = [
        (NameIndex::USER, b"zz", b"last"),
        (NameIndex::USER, b"a", b"first"),
        (NameIndex::TRUSTED, b"t", &[0xfe; 77]),
        (NameIndex::USER, b"big", b"is small now"),
    ];
    for (index, name, value) in sets {
        xattrs.set(index, name, &NewValue::Inline(value)).unwrap();
    }
    assert_eq!(xattrs.remove(NameIndex::USER, b"zz"), Ok(Was::Inline));
    seal_block(&mut block, at, image.seed()).unwrap();
    image.write_block(at, &block);

    let mut slot = crate::inode::InodeMut::of(&mut bytes, &sb).unwrap();
    let mut xattrs = XattrsMut::in_inode(slot.xattr_area_mut().unwrap()).unwrap();
    xattrs
        .set(
            NameIndex::SECURITY,
            b"label",
            &NewValue::Inline(b"in the inode"),
        )
        .unwrap();
    xattrs
        .set(NameIndex::USER, b"empty", &NewValue::Inline(b""))
        .unwrap();
    crate::inode::seal(&mut bytes, nr, &sb).unwrap();
    image.write_inode(nr, &bytes);

    let listed = image.debugfs("ea_list /file\n");
    for part in [
        "security.label (12) = \"in the inode\"",
        "user.empty (0)",
        "user.a (5) = \"first\"",
        "user.big (12) = \"is small now\"",
        "trusted.t (77)",
    ] {
        assert!(listed.contains(part), "{part:?} in {listed}");
    }
    assert!(!listed.contains("user.zz"), "{listed}");
    assert_eq!(image.fsck_problems(), "");
}
