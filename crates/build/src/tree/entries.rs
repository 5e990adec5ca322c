//! **Purpose.** Stores the entries of all directories.
//!
//! **Model.** An entry is 8 bytes: the offset of its name, and the number of its object. A
//! directory is an unsorted vector of entries. Sources that list directories append without
//! lookups; the first lookup of a name builds one hash table over all entries, which is kept up to
//! date from then on.

use std::hash::{BuildHasher, RandomState};

use fourscore_sync::thread;
use hashbrown::HashTable;

use super::arena::{Arena, Text};

/// A name and the object it refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Text,
    pub(crate) node: u32,
}

/// The entries of all directories.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    pub(crate) arena: Arena,
    directories: Vec<Vec<Entry>>,
    index: Option<Index>,
}

/// The position of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    directory: u32,
    position: u32,
}

#[derive(Debug, Default)]
struct Index {
    slots: HashTable<Slot>,
    hasher: RandomState,
}

impl Entries {
    /// Adds an empty directory; `None` if there are 2^32.
    pub(crate) fn add_directory(&mut self) -> Option<u32> {
        let number = u32::try_from(self.directories.len()).ok()?;
        self.directories.push(Vec::new());
        Some(number)
    }

    pub(crate) fn of(&self, directory: u32) -> &[Entry] {
        self.directories
            .get(directory as usize)
            .map_or(&[], Vec::as_slice)
    }

    /// The entries of all directories, to be reordered, and the arena of their names.
    pub(crate) fn lists_mut(&mut self) -> (&mut [Vec<Entry>], &Arena) {
        self.index = None;
        (&mut self.directories, &self.arena)
    }

    pub(crate) fn directories(&self) -> usize {
        self.directories.len()
    }

    pub(crate) fn name(&self, entry: &Entry) -> &[u8] {
        self.arena.get(entry.name)
    }

    /// Looks up a name in a directory.
    pub(crate) fn find(&mut self, directory: u32, name: &[u8]) -> Option<u32> {
        let slot = self.slot(directory, name)?;
        Some(self.entry(slot)?.node)
    }

    /// Adds a name that the directory does not have yet. `None` if a number overflows.
    pub(crate) fn push(&mut self, directory: u32, name: &[u8], node: u32) -> Option<()> {
        let name = self.arena.push(name)?;
        let entries = self.directories.get_mut(directory as usize)?;
        let position = u32::try_from(entries.len()).ok()?;
        entries.push(Entry { name, node });
        if let Some(mut index) = self.index.take() {
            index.insert(
                self,
                Slot {
                    directory,
                    position,
                },
            );
            self.index = Some(index);
        }
        Some(())
    }

    /// Makes an existing name refer to another object.
    pub(crate) fn replace(&mut self, directory: u32, name: &[u8], node: u32) {
        if let Some(slot) = self.slot(directory, name)
            && let Some(entry) = self.entry_mut(slot)
        {
            entry.node = node;
        }
    }

    /// Removes a name; returns the object it referred to.
    pub(crate) fn remove(&mut self, directory: u32, name: &[u8]) -> Option<u32> {
        let slot = self.slot(directory, name)?;
        let last = u32::try_from(self.of(directory).len())
            .ok()?
            .checked_sub(1)?;
        let last = Slot {
            directory,
            position: last,
        };
        let mut index = self.index.take()?;
        index.remove(self, slot);
        if last != slot {
            index.remove(self, last);
        }
        let entries = self.directories.get_mut(directory as usize)?;
        let removed = entries.swap_remove(slot.position as usize);
        if last != slot {
            index.insert(self, slot);
        }
        self.index = Some(index);
        Some(removed.node)
    }

    /// Removes all names of a directory; returns the objects they referred to.
    pub(crate) fn clear(&mut self, directory: u32) -> Vec<u32> {
        // Removes the names one by one: a layer may clear thousands of directories in a tree of a
        // million names, and rebuilding the index each time would cost as much as the whole tree.
        if let Some(mut index) = self.index.take() {
            for position in (0..).take(self.of(directory).len()) {
                let slot = Slot {
                    directory,
                    position,
                };
                index.remove(self, slot);
            }
            self.index = Some(index);
        }
        let entries = self.directories.get_mut(directory as usize);
        let removed = entries.map(std::mem::take).unwrap_or_default();
        removed.iter().map(|entry| entry.node).collect()
    }

    /// Sorts every directory by name, on all cores.
    pub(crate) fn sort(&mut self, threads: usize) {
        self.index = None;
        let arena = &self.arena;
        let part = self.directories.len().div_ceil(threads.max(1)).max(1);
        thread::scope(|scope| {
            for directories in self.directories.chunks_mut(part) {
                scope.spawn(move || {
                    for entries in directories {
                        entries.sort_unstable_by(|a, b| arena.get(a.name).cmp(arena.get(b.name)));
                    }
                });
            }
        });
    }

    /// Memory of lists and index in bytes, with their spare capacity.
    #[cfg(test)]
    pub(crate) fn index_and_lists_bytes(&self) -> usize {
        let lists: usize = self.directories.iter().map(Vec::capacity).sum();
        let slots = self
            .index
            .as_ref()
            .map_or(0, |index| index.slots.capacity());
        lists * size_of::<Entry>() + slots * (size_of::<Slot>() + 1) * 8 / 7
    }

    fn entry(&self, slot: Slot) -> Option<&Entry> {
        self.of(slot.directory).get(slot.position as usize)
    }

    fn entry_mut(&mut self, slot: Slot) -> Option<&mut Entry> {
        self.directories
            .get_mut(slot.directory as usize)?
            .get_mut(slot.position as usize)
    }

    fn slot(&mut self, directory: u32, name: &[u8]) -> Option<Slot> {
        if self.index.is_none() {
            self.index = Some(Index::new(self));
        }
        let index = self.index.as_ref()?;
        let hash = index.hasher.hash_one((directory, name));
        let found = index.slots.find(hash, |&slot| {
            slot.directory == directory
                && self
                    .entry(slot)
                    .is_some_and(|entry| self.name(entry) == name)
        });
        found.copied()
    }
}

impl Index {
    fn new(entries: &Entries) -> Self {
        let mut index = Self::default();
        for (directory, list) in (0..).zip(&entries.directories) {
            for position in (0..).take(list.len()) {
                index.insert(
                    entries,
                    Slot {
                        directory,
                        position,
                    },
                );
            }
        }
        index
    }

    fn insert(&mut self, entries: &Entries, slot: Slot) {
        let hasher = &self.hasher;
        let hash = |slot: &Slot| hash_of(hasher, entries, *slot);
        self.slots.insert_unique(hash(&slot), slot, hash);
    }

    fn remove(&mut self, entries: &Entries, slot: Slot) {
        let hash = hash_of(&self.hasher, entries, slot);
        if let Ok(found) = self.slots.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
    }
}

fn hash_of(hasher: &RandomState, entries: &Entries, slot: Slot) -> u64 {
    let name = entries
        .entry(slot)
        .map_or(&[][..], |entry| entries.name(entry));
    hasher.hash_one((slot.directory, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_found_replaced_and_removed() {
        let mut entries = Entries::default();
        let (a, b) = (
            entries.add_directory().unwrap(),
            entries.add_directory().unwrap(),
        );
        entries.push(a, b"one", 1).unwrap();
        entries.push(b, b"one", 2).unwrap();
        assert_eq!(entries.find(a, b"one"), Some(1));
        entries.push(a, b"two", 3).unwrap();
        entries.replace(a, b"one", 4);
        assert_eq!(entries.remove(a, b"one"), Some(4));
        assert_eq!(entries.remove(a, b"one"), None);
        assert_eq!(entries.find(a, b"two"), Some(3));
        assert_eq!(entries.clear(a), [3]);
        assert_eq!(
            (entries.find(a, b"two"), entries.find(b, b"one")),
            (None, Some(2))
        );
    }

    proptest! {
        #[test]
        fn any_sequence_of_operations_matches_a_map(
            steps in proptest::collection::vec((0u8..40, 0u32..1000, 0u8..16), 1..300),
        ) {
            let mut entries = Entries::default();
            let directory = entries.add_directory().unwrap();
            let mut map = std::collections::BTreeMap::new();
            for (name, node, step) in steps {
                let name = vec![b'n', name];
                if step == 15 {
                    let mut cleared = entries.clear(directory);
                    cleared.sort_unstable();
                    let mut nodes: Vec<u32> = std::mem::take(&mut map).into_values().collect();
                    nodes.sort_unstable();
                    prop_assert_eq!(cleared, nodes);
                } else if step < 7 {
                    prop_assert_eq!(entries.remove(directory, &name), map.remove(&name));
                } else if map.insert(name.clone(), node).is_some() {
                    entries.replace(directory, &name, node);
                } else {
                    entries.push(directory, &name, node).unwrap();
                }
            }
            entries.sort(3);
            let found: Vec<_> = entries
                .of(directory)
                .iter()
                .map(|entry| (entries.name(entry).to_vec(), entry.node))
                .collect();
            prop_assert_eq!(found, map.into_iter().collect::<Vec<_>>());
        }
    }
}
