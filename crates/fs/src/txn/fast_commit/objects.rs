//! **Purpose.** The objects that the units of a fast commit change: inodes and names, found by
//! number and by directory and name.
//!
//! **Model.** Objects refer to each other by their place in the list of all inodes or names, and to
//! bytes by their place in the lists of units. So they have no lifetime, and their memory serves
//! the next fast commit: on many machines memory that is used for the first time costs more than
//! all else that is done here.

use fourscore_cache::Seed;
use fourscore_ondisk::InodeNr;
use hashbrown::HashTable;

use crate::txn::fast_commit::components::{Components, Object};
use crate::txn::fast_commit::list::{Bytes, Units};
use crate::txn::fast_commit::ranges::Ranges;
use crate::txn::fast_commit::taints::Taints;

/// The place of an inode or a name in the list of all.
pub(crate) type Place = u32;

/// A name or an inode in the bytes of one of the lists of units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    pub(crate) list: u32,
    pub(crate) bytes: Bytes,
}

impl Text {
    /// Returns the bytes.
    pub(crate) fn of(self, lists: &[Units]) -> &[u8] {
        let list = lists.get(self.list as usize);
        list.map_or(&[], |list| list.bytes(self.bytes))
    }
}

/// An inode that units change.
#[derive(Debug)]
pub(crate) struct InodeState {
    pub(crate) nr: InodeNr,
    pub(crate) object: Object,
    pub(crate) is_new: bool,
    pub(crate) image: Option<Text>,
    pub(crate) ranges: Ranges,
    /// Whether a record removes a name of it.
    pub(crate) loses_name: bool,
    /// Whether a record gives it a name that referred to another inode before.
    pub(crate) takes_name: bool,
    /// Whether one of its names was chosen to be the first, if it is new.
    pub(crate) has_first_name: bool,
    /// Whether it is in a tainted component.
    pub(crate) is_left_out: bool,
}

/// A name that units change.
#[derive(Debug)]
pub(crate) struct NameState {
    pub(crate) dir: InodeNr,
    pub(crate) name: Text,
    pub(crate) object: Object,
    /// The inode that it referred to before the units, and the one that it refers to now.
    pub(crate) before: Option<Place>,
    pub(crate) now: Option<Place>,
    /// Whether it is the first name of a new inode.
    pub(crate) is_first: bool,
}

/// All objects of a fast commit.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) inodes: Vec<InodeState>,
    inode_index: HashTable<Place>,
    pub(crate) names: Vec<NameState>,
    name_index: HashTable<Place>,
    pub(crate) components: Components,
    seed: Seed,
}

impl Objects {
    /// Removes all objects, and makes space for those of `units` units.
    pub(crate) fn begin(&mut self, units: usize) {
        self.inodes.clear();
        self.inode_index.clear();
        self.names.clear();
        self.name_index.clear();
        self.components.clear();
        // Most units change one inode, and perhaps a name.
        self.inodes.reserve(units);
        self.names.reserve(units);
        self.components.reserve(2 * units);
    }

    /// For how many units there is memory.
    pub(crate) fn capacity(&self) -> usize {
        self.inodes.capacity()
    }

    /// Returns an inode, which is added if it is not there.
    pub(crate) fn inode(&mut self, nr: InodeNr, taints: &Taints) -> &mut InodeState {
        let (at, _) = self.place(nr, taints);
        &mut self.inodes[at as usize]
    }

    /// Returns the place of an inode, which is added if it is not there.
    pub(crate) fn place(&mut self, nr: InodeNr, taints: &Taints) -> (Place, Object) {
        let (seed, inodes) = (&self.seed, &mut self.inodes);
        let hash = seed.hash(&nr);
        let known = self
            .inode_index
            .find(hash, |&at| inodes[at as usize].nr == nr);
        if let Some(&at) = known {
            return (at, inodes[at as usize].object);
        }
        let object = self.components.add(taints.inodes.contains(&nr));
        let at = place(inodes.len());
        inodes.push(InodeState {
            nr,
            object,
            is_new: false,
            image: None,
            ranges: Ranges::default(),
            loses_name: false,
            takes_name: false,
            has_first_name: false,
            is_left_out: false,
        });
        let rehash = |&at: &Place| seed.hash(&inodes[at as usize].nr);
        self.inode_index.insert_unique(hash, at, rehash);
        (at, object)
    }

    /// Forgets the number `nr`: an inode with it that is added later is another object.
    pub(crate) fn forget(&mut self, nr: InodeNr) {
        let inodes = &self.inodes;
        let is_known = |&at: &Place| inodes[at as usize].nr == nr;
        if let Ok(known) = self.inode_index.find_entry(self.seed.hash(&nr), is_known) {
            known.remove();
        }
    }

    /// Returns a name, which is added if it is not there; it referred to `before` then. `lists` are
    /// those of the units.
    pub(crate) fn name(
        &mut self,
        lists: &[Units],
        dir: InodeNr,
        name: Text,
        before: Option<Place>,
        taints: &Taints,
    ) -> &mut NameState {
        let (seed, names) = (&self.seed, &mut self.names);
        let bytes = name.of(lists);
        let hash = seed.hash(&(dir, bytes));
        let known = self.name_index.find(hash, |&at| {
            let known = &names[at as usize];
            known.dir == dir && known.name.of(lists) == bytes
        });
        let at = if let Some(&at) = known {
            at
        } else {
            let at = place(names.len());
            names.push(NameState {
                dir,
                name,
                object: self.components.add(taints.has_name(dir, bytes)),
                before,
                now: before,
                is_first: false,
            });
            let rehash = |&at: &Place| {
                let known = &names[at as usize];
                seed.hash(&(known.dir, known.name.of(lists)))
            };
            self.name_index.insert_unique(hash, at, rehash);
            at
        };
        &mut self.names[at as usize]
    }
}

/// The place of the next object in a list of `len`.
fn place(len: usize) -> Place {
    u32::try_from(len).expect("a transaction changes fewer than 2^32 objects")
}
