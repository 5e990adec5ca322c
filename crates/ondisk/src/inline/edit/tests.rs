//! **Purpose.** Tests of changes of inline directories against a map of names.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::InlineData;
use super::*;
use crate::testing::dirs::{formats, name, stored};

const OWN: InodeNr = InodeNr(12);

/// A directory with the value's bytes and its maximum length.
struct Inode {
    format: DirFormat,
    i_block: [u8; HEAD_BYTES],
    value: Vec<u8>,
    max: usize,
}

type Model = BTreeMap<Vec<u8>, InodeNr>;

impl Inode {
    fn new(format: DirFormat, max: usize) -> Self {
        let mut i_block = [0xa5; HEAD_BYTES];
        init(&mut i_block, InodeNr(2)).unwrap();
        Self {
            format,
            i_block,
            value: Vec::new(),
            max,
        }
    }

    fn dir(&self) -> InlineDir<'_> {
        let data = InlineData {
            head: &self.i_block,
            tail: &self.value,
        };
        data.directory(&self.format).unwrap()
    }

    fn dir_mut(&mut self) -> InlineDirMut<'_> {
        InlineDirMut::new(&self.format, &mut self.i_block, &mut self.value).unwrap()
    }

    /// Grows the value to its maximum length; `false` if it has it already.
    fn grow(&mut self) -> bool {
        let old = self.value.len();
        self.value.resize(self.max, 0xa5);
        grow_second(&self.format, &mut self.value, old).unwrap() && old < self.max
    }

    /// Adds a name; `false` if there is no space in the inode.
    fn insert(&mut self, name: &[u8], inode: InodeNr) -> bool {
        let new = NewEntry::new(inode, name, EntryType::Regular).unwrap();
        let new = new.with_hash(stored(name));
        let needed = self.format.needed_bytes(name);
        let has_capacity = self.dir().has_capacity(needed).unwrap();
        match self.dir_mut().insert(&new).unwrap() {
            Some(at) => {
                assert_eq!(self.dir().find(name).unwrap().unwrap().at, at);
                assert!(has_capacity);
                true
            }
            None => {
                assert!(!has_capacity);
                self.grow() && self.insert(name, inode)
            }
        }
    }

    fn assert_holds(&self, model: &Model) {
        let dir = self.dir();
        assert_eq!(dir.check(), Ok(()));
        assert_eq!(dir.has_names(), Ok(!model.is_empty()));
        let found = dir.entries().map(|entry| entry.unwrap());
        let found: Vec<_> = found
            .map(|entry| (entry.name.to_vec(), entry.inode))
            .collect();
        assert_eq!(found.len(), model.len());
        assert_eq!(found.into_iter().collect::<Model>(), *model);
    }

    /// Checks that moving out gives a block with the same names.
    fn assert_moves_out(&self, model: &Model) {
        let mut block = vec![0xa5; 1024];
        self.dir().move_out(&self.format, OWN, &mut block).unwrap();
        let parent = self.dir().parent;
        assert_eq!(self.format.dots(&block), Ok(Dots { own: OWN, parent }));
        if let Some(seed) = self.format.seed {
            DirFormat::seal(&mut block, seed).unwrap();
        }
        assert_eq!(self.format.check_block(&block), Ok(()));
        let found: Vec<_> = self
            .format
            .entries(&block)
            .map(|entry| entry.unwrap())
            .collect();
        assert_eq!(found.len(), model.len() + 2);
        for entry in &found[2..] {
            assert_eq!(model.get(entry.name), Some(&entry.inode));
            assert_eq!(entry.hash, entry.hash.map(|_| stored(entry.name)));
        }
    }
}

#[derive(Clone, Debug)]
enum Change {
    Insert { id: u16, bytes: usize },
    Remove { nr: usize },
    Redirect { nr: usize, inode: u32 },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0..60u16, 1..60usize).prop_map(|(id, bytes)| Change::Insert { id, bytes }),
        2 => (0..60usize).prop_map(|nr| Change::Remove { nr }),
        1 => (0..60usize, 1..1000u32).prop_map(|(nr, inode)| Change::Redirect { nr, inode }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn changes_of_an_inode_are_those_of_a_map(
        // The maximum length of a value is 92 bytes in an inode of 256 bytes, and 800 in one of 1
        // KiB.
        max in prop_oneof![Just(0), Just(20), Just(92), Just(800)],
        changes in proptest::collection::vec(change(), 1..80),
    ) {
        for format in formats() {
            let (mut inode, mut model) = (Inode::new(format, max), Model::new());
            for change in &changes {
                let chosen = |nr: usize| model.keys().nth(nr % model.len().max(1)).cloned();
                match *change {
                    Change::Insert { id, bytes } => {
                        let name = name(id, bytes);
                        let to = InodeNr(u32::from(id) + 1);
                        if !model.contains_key(&name) && inode.insert(&name, to) {
                            model.insert(name, to);
                        }
                    }
                    Change::Remove { nr } => if let Some(name) = chosen(nr) {
                        let at = inode.dir().find(&name).unwrap().unwrap().at;
                        inode.dir_mut().remove(at).unwrap();
                        model.remove(&name);
                    },
                    Change::Redirect { nr, inode: to } => if let Some(name) = chosen(nr) {
                        let at = inode.dir().find(&name).unwrap().unwrap().at;
                        let to = InodeNr(to);
                        inode.dir_mut().redirect(at, to, EntryType::Fifo).unwrap();
                        model.insert(name, to);
                    },
                }
                inode.assert_holds(&model);
            }
            inode.assert_moves_out(&model);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        head in proptest::collection::vec(0..20u8, 60),
        value in proptest::collection::vec(0..20u8, 0..80),
        (at, old) in (0..160usize, 0..100usize),
        format in proptest::sample::select(formats()),
    ) {
        let (mut i_block, mut value) = (head.clone(), value);
        let new = NewEntry::new(OWN, b"name", EntryType::Regular).unwrap();
        let new = new.with_hash(stored(b"name"));
        let length = value.len();
        let _ = grow_second(&format, &mut value, old);
        let mut dir = InlineDirMut::new(&format, &mut i_block, &mut value).unwrap();
        let _ = dir.insert(&new);
        let _ = dir.remove(at);
        let _ = dir.redirect(at, OWN, EntryType::Fifo);
        prop_assert_eq!(value.len(), length);
        let data = InlineData { head: &i_block, tail: &value };
        if let Ok(dir) = data.directory(&format) {
            let _ = dir.has_names();
            let _ = dir.has_capacity(12);
            let _ = dir.move_out(&format, OWN, &mut [0; 100]);
        }
    }
}

#[test]
fn the_parent_is_the_first_word() {
    let mut inode = Inode::new(formats()[0], 92);
    inode.insert(b"name", InodeNr(20));
    inode.dir_mut().set_parent(InodeNr(0x0001_0203));
    assert_eq!(inode.i_block[..4], [3, 2, 1, 0]);
    inode.assert_holds(&Model::from([(b"name".to_vec(), InodeNr(20))]));
    let error = init(&mut [0; 59], OWN);
    assert_eq!(error, Err(InlineError::TooShort { found: 59 }));
}

#[test]
fn a_value_grows_only_to_a_length_records_can_have() {
    let format = formats()[0];
    for (bytes, old, grows) in [
        (12, 0, true),
        (8, 0, false),
        (14, 0, false),
        (16, 20, false),
    ] {
        let mut value = vec![0; bytes];
        assert_eq!(grow_second(&format, &mut value, old), Ok(grows), "{bytes}");
    }
}

#[test]
fn a_block_too_short_for_all_names_is_said_to_be() {
    let mut inode = Inode::new(formats()[0], 800);
    let names = (0..30).map(|id| name(id, 16));
    assert!(names.into_iter().all(|name| inode.insert(&name, OWN)));
    let error = inode.dir().move_out(&inode.format, OWN, &mut [0; 256]);
    assert!(matches!(error, Err(DirentError::NoRoom { .. })));
}

#[test]
fn a_record_of_a_length_that_no_record_has_is_not_removed() {
    let format = formats()[0];
    let mut value = [0; 17];
    // Its inode is not 0, and its length is 13.
    (value[3], value[4]) = (1, 13);
    let before = value;
    let mut i_block = [0; 60];
    let mut dir = InlineDirMut::new(&format, &mut i_block, &mut value).unwrap();
    let removed = dir.remove(InlineDir::SECOND_AT);
    assert_eq!(removed, Err(DirentError::RecLenAlign { at: 0, found: 13 }));
    assert_eq!(value, before);
}
