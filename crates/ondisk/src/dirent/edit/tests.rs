//! **Purpose.** Tests of block changes against a map of names.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Dots, NameForm, TAIL_BYTES, TypeByte};
use super::*;
use crate::testing::dirs::{formats, has_capacity, name, seed, stored};

const DOTS: Dots = Dots {
    own: InodeNr(12),
    parent: InodeNr(2),
};

fn entry(inode: u32, name: &[u8], kind: EntryType) -> NewEntry<'_> {
    let new = NewEntry::new(InodeNr(inode), name, kind).unwrap();
    new.with_hash(stored(name))
}

/// The type of an entry, as the format can store it.
fn stored_type(format: &DirFormat, kind: EntryType) -> EntryType {
    match format.type_byte {
        TypeByte::Present => kind,
        TypeByte::Absent => EntryType::Unknown,
    }
}

fn sealed(format: &DirFormat, block: &[u8]) -> Vec<u8> {
    let mut block = block.to_vec();
    if let Some(seed) = format.seed {
        DirFormat::seal(&mut block, seed).unwrap();
    }
    block
}

type Model = BTreeMap<Vec<u8>, (InodeNr, EntryType)>;

/// Checks that the block is valid and holds exactly the names of the model.
fn assert_holds(format: &DirFormat, block: &[u8], model: &Model) {
    let block = sealed(format, block);
    assert_eq!(format.check_block(&block), Ok(()));
    let mut found = 0;
    for entry in format.entries(&block) {
        let entry = entry.unwrap();
        let (inode, kind) = model[entry.name];
        assert_eq!(
            (entry.inode, entry.kind),
            (inode, stored_type(format, kind)),
            "{:?}",
            entry.name
        );
        let hash = format.names == NameForm::EncryptedHashed && !entry.is_dots();
        assert_eq!(entry.hash, hash.then(|| stored(entry.name)));
        assert_eq!(format.find(&block, entry.name), Ok(Some(entry)));
        found += 1;
    }
    assert_eq!(found, model.len());
    assert_eq!(
        format.has_names(&block),
        Ok(model.keys().any(|name| !matches!(&name[..], b"." | b"..")))
    );
}

/// A directory's first block, and a later one.
fn new_block(format: &DirFormat, bytes: usize, first: bool) -> (Vec<u8>, Model) {
    // The former content of the block must not appear.
    let mut block = vec![0xa5; bytes];
    let mut model = Model::new();
    if first {
        format.init_directory(&mut block, &DOTS);
        model.insert(b".".to_vec(), (DOTS.own, EntryType::Directory));
        model.insert(b"..".to_vec(), (DOTS.parent, EntryType::Directory));
        assert_eq!(format.dots(&block), Ok(DOTS));
    } else {
        format.init_leaf(&mut block);
    }
    assert!(!sealed(format, &block)[..bytes - 4].contains(&0xa5));
    (block, model)
}

#[derive(Clone, Debug)]
enum Change {
    Insert { id: u16, bytes: usize },
    Remove { nr: usize },
    Redirect { nr: usize, inode: u32 },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0..500u16, 1..=255usize).prop_map(|(id, bytes)| Change::Insert { id, bytes }),
        2 => (0..500u16, 1..20usize).prop_map(|(id, bytes)| Change::Insert { id, bytes }),
        3 => (0..1000usize).prop_map(|nr| Change::Remove { nr }),
        1 => (0..1000usize, 1..100_000u32).prop_map(|(nr, inode)| Change::Redirect { nr, inode }),
    ]
}

fn apply(format: &DirFormat, block: &mut [u8], model: &mut Model, change: &Change) {
    let chosen = |nr: usize, model: &Model| {
        let names = model.keys().filter(|name| !super::super::is_dots(name));
        let names: Vec<_> = names.cloned().collect();
        (!names.is_empty()).then(|| names[nr % names.len()].clone())
    };
    match *change {
        Change::Insert { id, bytes } => {
            let name = name(id, bytes);
            if model.contains_key(&name) {
                assert_eq!(format.find(block, &name).unwrap().unwrap().name, name);
                assert_eq!(format.vacancy(block, &name), Ok(Vacancy::Taken));
                return;
            }
            let before = block.to_vec();
            let new = entry(u32::from(id) + 1, &name, EntryType::Fifo);
            let needed = format.needed_bytes(&name);
            let has_capacity =
                |record: &Entry<'_>| record.rec_len - format.used_bytes(record) >= needed;
            let mut records = format.records(block).map(Result::unwrap);
            let first = records.find(has_capacity).map(|record| record.at);
            let found = format.room(block, needed).unwrap();
            assert_eq!(found.map(|room| room.at), first);
            let vacancy = found.map_or(Vacancy::Full, Vacancy::Room);
            assert_eq!(format.vacancy(block, &name), Ok(vacancy));
            let room = first.is_some();
            match format.insert(block, &new).unwrap() {
                Some(at) => {
                    assert_eq!(format.find(block, &name).unwrap().unwrap().at, at);
                    model.insert(name.clone(), (new.inode, new.kind));
                    assert!(room);
                }
                None => assert!(!room && before == block, "a full block was changed"),
            }
        }
        Change::Remove { nr } => {
            let Some(name) = chosen(nr, model) else {
                return;
            };
            let (at, inode) = {
                let entry = format.find(block, &name).unwrap().unwrap();
                (entry.at, entry.inode)
            };
            let removal = format.removal(block, &name).unwrap().unwrap();
            assert_eq!((removal.at, removal.inode), (at, inode));
            format.remove(block, at).unwrap();
            assert_eq!(format.removal(block, &name), Ok(None));
            model.remove(&name);
            let place = &block[at + HEADER_BYTES..][..name.len()];
            assert!(place.iter().all(|&byte| byte == 0), "a name survives");
        }
        Change::Redirect { nr, inode } => {
            let Some(name) = chosen(nr, model) else {
                return;
            };
            let at = format.find(block, &name).unwrap().unwrap().at;
            let to = (InodeNr(inode), EntryType::Symlink);
            format.redirect(block, at, to.0, to.1).unwrap();
            model.insert(name, to);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn changes_of_a_block_are_those_of_a_map(
        format in proptest::sample::select(formats()),
        size in prop_oneof![4 => Just(1024), 3 => Just(4096), 1 => Just(65536)],
        first: bool,
        changes in proptest::collection::vec(change(), 1..150),
    ) {
        let (mut block, mut model) = new_block(&format, size, first);
        for change in &changes {
            apply(&format, &mut block, &mut model, change);
            assert_holds(&format, &block, &model);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(0..24u8, 12..300),
        at in 0..300usize,
        long in 1..=255usize,
        format in proptest::sample::select(formats()),
    ) {
        let name = name(1, long);
        let new = entry(1, &name, EntryType::Regular);
        type Edit = fn(&DirFormat, &mut [u8], &NewEntry<'_>, usize);
        let edits: [Edit; 7] = [
            |format, block, new, _| drop(format.insert(block, new)),
            |format, block, new, _| {
                if let Ok(Vacancy::Room(room)) = format.vacancy(block, new.name()) {
                    let part = block.get_mut(room.range()).unwrap();
                    format.insert_into_part(part, room, new).unwrap();
                }
            },
            |format, block, _, at| drop(format.remove(block, at)),
            |format, block, new, _| {
                if let Ok(Some(removal)) = format.removal(block, new.name()) {
                    removal.apply(&mut block[removal.range()]).unwrap();
                }
            },
            |format, block, _, at| drop(format.redirect(block, at, InodeNr(3), EntryType::Fifo)),
            |format, block, _, _| drop(format.set_parent(block, InodeNr(3))),
            |format, block, _, _| drop(format.has_names(block)),
        ];
        for edit in edits {
            let mut block = bytes.clone();
            edit(&format, &mut block, &new, at);
            prop_assert_eq!(block.len(), bytes.len());
        }
    }
}

#[test]
fn a_block_fills_to_its_last_byte() {
    for format in formats() {
        for bytes in [1024, 4096, 65536] {
            let (mut block, mut model) = new_block(&format, bytes, false);
            let name_bytes = 12 - 8;
            for id in 0.. {
                let name = format!("{id:04x}").into_bytes();
                let new = entry(1, &name, EntryType::Regular);
                if format.insert(&mut block, &new).unwrap().is_none() {
                    break;
                }
                model.insert(name.clone(), (new.inode, new.kind));
            }
            let each = format.needed_bytes(&vec![b'x'; name_bytes]);
            assert_eq!(model.len(), format.room_bytes(bytes) / each);
            assert_holds(&format, &block, &model);
            // Then the entries are removed, from the front.
            for name in model.into_keys() {
                let at = format.find(&block, &name).unwrap().unwrap().at;
                format.remove(&mut block, at).unwrap();
            }
            assert_holds(&format, &block, &Model::new());
            assert!(has_capacity(&format, &block, 12));
        }
    }
}

#[test]
fn the_first_space_is_used_and_removal_joins_records() {
    let format = formats()[1];
    assert_eq!(format.seed, Some(seed()));
    let (mut block, _) = new_block(&format, 1024, true);
    let mut put = |name: &[u8]| format.insert(&mut block, &entry(20, name, EntryType::Regular));
    assert_eq!(put(b"a"), Ok(Some(24)));
    assert_eq!(put(b"bbbbb"), Ok(Some(36)));
    assert_eq!(put(b"c"), Ok(Some(52)));
    format.remove(&mut block, 36).unwrap();
    let mut put = |name: &[u8]| format.insert(&mut block, &entry(20, name, EntryType::Regular));
    // 16 bytes after `a`: too few for this name, enough for the next.
    assert_eq!(put(b"ddddddddd"), Ok(Some(64)));
    assert_eq!(put(b"e"), Ok(Some(36)));
    let lengths: Vec<_> = format
        .records(&block)
        .map(|record| record.unwrap().rec_len)
        .collect();
    assert_eq!(lengths, [12, 12, 12, 16, 12, 1024 - TAIL_BYTES - 64]);
}

#[test]
fn an_entry_that_does_not_exist_cannot_be_changed() {
    for format in formats() {
        let (mut block, _) = new_block(&format, 1024, true);
        let good = entry(20, b"name", EntryType::Regular);
        let at = format.insert(&mut block, &good).unwrap().unwrap();
        let before = block.clone();
        let none = |at| DirentError::NoEntry { at };
        assert_eq!(format.remove(&mut block, at + 4).unwrap_err(), none(at + 4));
        assert_eq!(format.remove(&mut block, 2000).unwrap_err(), none(2000));
        let room = format.room(&block, 12).unwrap().unwrap();
        let longer = entry(20, b"a longer name", EntryType::Regular);
        let error = format.insert_into(&mut block, room, &longer).unwrap_err();
        assert!(matches!(error, DirentError::NoRoom { found: 12, .. }));
        let short = &mut block[room.range()][1..];
        let error = format.insert_into_part(short, room, &good).unwrap_err();
        assert!(matches!(error, DirentError::NoRoom { found: 11, .. }));
        let removal = format.removal(&block, b"name").unwrap().unwrap();
        let short = &mut block[removal.range()][1..];
        let error = removal.apply(short).unwrap_err();
        assert!(matches!(error, DirentError::NoRoom { .. }));
        assert_eq!(block, before);
        format.init_leaf(&mut block);
        assert_eq!(format.remove(&mut block, 0).unwrap_err(), none(0));
        let to = EntryType::Regular;
        assert_eq!(
            format.redirect(&mut block, 0, InodeNr(9), to).unwrap_err(),
            none(0)
        );
        let error = format.set_parent(&mut block, InodeNr(9)).unwrap_err();
        assert!(matches!(error, DirentError::Dots { at: 0, .. }));
    }
}

#[test]
fn the_parent_changes() {
    for format in formats() {
        let (mut block, mut model) = new_block(&format, 4096, true);
        format.set_parent(&mut block, InodeNr(99)).unwrap();
        model.insert(b"..".to_vec(), (InodeNr(99), EntryType::Directory));
        assert_holds(&format, &block, &model);
    }
}

#[test]
fn names_no_record_can_hold() {
    let new = |name: &'static [u8]| NewEntry::new(InodeNr(5), name, EntryType::Regular);
    assert!(new(b"").is_none() && new(&[b'x'; 256]).is_none());
    assert!(new(&[b'x'; 255]).is_some());
}
