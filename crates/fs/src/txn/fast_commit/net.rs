//! **Purpose.** The records of a fast commit: the net effect of its units, without those that
//! records do not express, and what must not be separated from them.
//!
//! **Model.** Units change *objects*: inodes, and names (a directory and a name in it). Objects
//! that a unit changes are in one *component*, and so are all objects that are connected in this
//! way. A component is recorded as a whole or not at all: it is *tainted* if a unit in it changes
//! something that no record expresses, or an object that was tainted before in this transaction, or
//! a name in a directory whose own inode is tainted. Its objects stay tainted until the full
//! commit.
//!
//! ```text
//! new inodes:       INODE  ADD_RANGE*  (INODE, which counts the blocks of the ranges)
//! names:            CREAT or LINK of names that are new
//!                   UNLINK
//!                   CREAT or LINK of names that referred to another inode before
//! other inodes:     ADD_RANGE*  INODE
//! ```
//!
//! In this order Linux, e2fsck and fourscore replay the records to the same state: an inode exists
//! before a name refers to it; it has a name at every moment, since Linux would delete it without
//! one; and its link count is that of its last INODE record.
//!
//! **Why any state between is consistent.** The records of a component take its objects from the
//! state of the last commit, full or fast, to the state at the cut, and units outside of it have
//! changed none of these objects since. A directory that a name is added to exists in both states,
//! or is tainted. Blocks that were freed since the last full commit are not reused before the
//! next one, so what a record refers to holds nothing else; an inode number that was freed is
//! tainted. Without the tainted
//! components the file system is as if their operations had not happened yet.
//!
//! **The first record.** e2fsck reads the inode of the journal before it replays the log, and
//! keeps the block of the inode table. Inodes in that block look as they were before the log, until
//! an inode of another block is read. So the first record of a transaction is the INODE record of
//! an inode in another block that loses no name; it follows again where it belongs. Without such an
//! inode the commit is a full one.
//!
//! **Space in directories.** Replay puts names wherever there is space: in any block, or with an
//! index in the leaf of their hash. Linux does not count the blocks of a directory that becomes
//! longer in replay, and e2fsck makes none longer that has no index. So a name is recorded only if
//! a free space of the last full commit is large enough for it and for all names added there since,
//! whatever was removed ([`FreeSpace`]), and a directory that grows is tainted.

use std::collections::{HashMap, HashSet};

use fourscore_cache::Seed;
use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::fast_commit::{AddRange, Dentry, RangeState, Record};
use fourscore_ondisk::{InodeNr, LogicalBlock};
use hashbrown::HashTable;

use crate::txn::fast_commit::components::{Components, Object};
use crate::txn::fast_commit::note::{Life, Note, Room, Space, Unit};
use crate::txn::fast_commit::ranges::Ranges;
use crate::txn::fast_commit::reason::{Reason, Reasons};
use crate::txn::faults::{Faults, Sabotage};

/// What the fast commits of a transaction leave out.
#[derive(Debug, Default)]
pub(crate) struct Taints {
    inodes: HashSet<InodeNr, Seed>,
    names: HashMap<InodeNr, HashSet<Box<[u8]>, Seed>, Seed>,
    spaces: HashMap<(InodeNr, Space), FreeSpace, Seed>,
}

impl Taints {
    /// Forgets everything, for a new transaction.
    pub(crate) fn clear(&mut self) {
        self.inodes.clear();
        self.names.clear();
        self.spaces.clear();
    }

    /// Whether only a full commit makes the changes of inode `nr` durable: its own, and those of
    /// names in it.
    pub(crate) fn include(&self, nr: InodeNr) -> bool {
        self.inodes.contains(&nr) || self.names.contains_key(&nr)
    }

    /// Whether nothing is tainted.
    pub(crate) fn are_none(&self) -> bool {
        self.inodes.is_empty() && self.names.is_empty()
    }

    fn has_name(&self, dir: InodeNr, name: &[u8]) -> bool {
        self.names
            .get(&dir)
            .is_some_and(|names| names.contains(name))
    }
}

/// The free space of blocks of a directory, in one transaction.
#[derive(Clone, Copy, Debug, Default)]
struct FreeSpace {
    /// A lower bound of the largest free space at the last full commit, in bytes.
    largest: u32,
    freed: u32,
    added: u32,
}

impl FreeSpace {
    /// Notes that a name was added. Returns whether it has space when its record is replayed.
    fn add(&mut self, room: Room) -> bool {
        self.largest = self.largest.max(room.gap.saturating_sub(self.freed));
        self.added = self.added.saturating_add(room.needed);
        self.added <= self.largest
    }
}

/// An inode that units change.
#[derive(Debug)]
struct InodeState<'u> {
    nr: InodeNr,
    object: Object,
    is_new: bool,
    image: Option<&'u [u8]>,
    ranges: Ranges,
    /// Whether a record removes a name of it.
    loses_name: bool,
    /// Whether a record gives it a name that referred to another inode before.
    takes_name: bool,
    /// Whether its first name was recorded.
    is_created: bool,
    /// Whether it is in a tainted component.
    is_left_out: bool,
}

/// A name that units change.
#[derive(Debug)]
struct NameState<'u> {
    dir: InodeNr,
    name: &'u [u8],
    object: Object,
    before: Option<Place>,
    now: Option<Place>,
}

impl<'u> NameState<'u> {
    fn dentry(&self, inode: InodeNr) -> Dentry<'u> {
        Dentry {
            parent: self.dir,
            inode,
            name: self.name,
        }
    }
}

/// The place of an inode or a name in the list of all.
type Place = u32;

/// The net effect of units.
#[derive(Debug, Default)]
pub(crate) struct Net<'u> {
    inodes: Vec<InodeState<'u>>,
    inode_index: HashTable<Place>,
    names: Vec<NameState<'u>>,
    name_index: HashTable<Place>,
    components: Components,
    seed: Seed,
    faults: Faults,
}

impl<'u> Net<'u> {
    /// No effect, with memory for that of `units` units; the records will have the injected fault,
    /// if there is one.
    pub(crate) fn new(units: usize, faults: Faults) -> Self {
        let mut net = Self {
            faults,
            ..Self::default()
        };
        // Most units change one inode, and perhaps a name.
        net.inodes.reserve(units);
        net.names.reserve(units);
        net.components.reserve(2 * units);
        net
    }

    /// Adds a unit; it is later than those before. Returns why it is tainted, if it is.
    pub(crate) fn add(&mut self, unit: Unit<'u>, taints: &mut Taints) -> Option<Reason> {
        let (mut first, mut why) = (None, None);
        for note in unit.notes {
            let (objects, tainted) = self.note(note, unit.bytes, taints);
            why = why.or(tainted);
            for object in objects.into_iter().flatten() {
                match first {
                    None => first = Some(object),
                    Some(first) => self.components.join(first, object),
                }
            }
        }
        if let (Some(first), Some(_)) = (first, why) {
            self.components.taint(first);
        }
        why
    }

    /// Adds a note. Returns its objects, and why it is tainted, if it is.
    fn note(
        &mut self,
        note: &Note,
        bytes: &'u [u8],
        taints: &mut Taints,
    ) -> ([Option<Object>; 2], Option<Reason>) {
        match *note {
            Note::Image {
                nr,
                life,
                bytes: image,
            } => {
                let inode = self.inode(nr, taints);
                inode.image = Some(image.of(bytes));
                inode.is_new |= life == Life::New;
                ([Some(inode.object), None], None)
            }
            Note::Range { nr, extent } => {
                let inode = self.inode(nr, taints);
                inode.ranges.put(extent);
                ([Some(inode.object), None], None)
            }
            Note::Added {
                dir,
                nr,
                name,
                room,
            } => {
                let has_space = taints
                    .spaces
                    .entry((dir, room.space))
                    .or_default()
                    .add(room);
                let (at, object) = self.place(nr, taints);
                let name = self.name(dir, name.of(bytes), None, taints);
                name.now = Some(at);
                let why = dir_reason(dir, taints);
                let why = why.or((!has_space).then_some(Reason::NoSpace));
                ([Some(object), Some(name.object)], why)
            }
            Note::Removed {
                dir,
                nr,
                name,
                space,
                freed,
            } => {
                let space = taints.spaces.entry((dir, space)).or_default();
                space.freed = space.freed.saturating_add(freed);
                let (at, object) = self.place(nr, taints);
                let name = self.name(dir, name.of(bytes), Some(at), taints);
                name.now = None;
                ([Some(object), Some(name.object)], dir_reason(dir, taints))
            }
            Note::Taint { nr, why } => {
                taints.inodes.insert(nr);
                let (_, object) = self.place(nr, taints);
                ([Some(object), None], Some(why))
            }
            Note::TaintAll { why } => ([None, None], Some(why)),
        }
    }

    fn inode(&mut self, nr: InodeNr, taints: &Taints) -> &mut InodeState<'u> {
        let (at, _) = self.place(nr, taints);
        &mut self.inodes[at as usize]
    }

    /// Returns the place of an inode, which is added if it is not there.
    fn place(&mut self, nr: InodeNr, taints: &Taints) -> (Place, Object) {
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
            is_created: false,
            is_left_out: false,
        });
        let rehash = |&at: &Place| seed.hash(&inodes[at as usize].nr);
        self.inode_index.insert_unique(hash, at, rehash);
        (at, object)
    }

    fn name(
        &mut self,
        dir: InodeNr,
        name: &'u [u8],
        before: Option<Place>,
        taints: &Taints,
    ) -> &mut NameState<'u> {
        let (seed, names) = (&self.seed, &mut self.names);
        let hash = seed.hash(&(dir, name));
        let known = self.name_index.find(hash, |&at| {
            let known = &names[at as usize];
            known.dir == dir && known.name == name
        });
        let at = if let Some(&at) = known {
            at
        } else {
            let at = place(names.len());
            names.push(NameState {
                dir,
                name,
                object: self.components.add(taints.has_name(dir, name)),
                before,
                now: before,
            });
            let rehash = |&at: &Place| {
                let known = &names[at as usize];
                seed.hash(&(known.dir, known.name))
            };
            self.name_index.insert_unique(hash, at, rehash);
            at
        };
        &mut self.names[at as usize]
    }

    /// Ends the additions: taints what the order of the records does not allow, and notes the
    /// objects of all tainted components.
    pub(crate) fn settle(&mut self, taints: &mut Taints, reasons: &mut Reasons) {
        for name in self.names.iter().filter(|name| name.before != name.now) {
            if let Some(at) = name.before {
                self.inodes[at as usize].loses_name = true;
                if let Some(at) = name.now {
                    self.inodes[at as usize].takes_name = true;
                }
            }
        }
        for inode in &self.inodes {
            // It could be without a name in between.
            let is_in_between = inode.loses_name && inode.takes_name;
            // Its unit noted a name or a range, and no image.
            let lacks_image = inode.image.is_none();
            if (is_in_between || lacks_image) && !self.components.is_tainted(inode.object) {
                reasons.count(Reason::CrossRename);
                self.components.taint(inode.object);
            }
        }
        for inode in &self.inodes {
            if self.components.is_tainted(inode.object) {
                taints.inodes.insert(inode.nr);
            }
        }
        for name in &self.names {
            if self.components.is_tainted(name.object) {
                let names = taints.names.entry(name.dir).or_default();
                names.insert(name.name.into());
            }
        }
    }

    /// Leaves out the tainted components.
    fn leave_out_tainted(&mut self) {
        let components = &mut self.components;
        for inode in &mut self.inodes {
            inode.is_left_out = components.is_tainted(inode.object);
        }
        self.names
            .retain(|name| name.before != name.now && !components.is_tainted(name.object));
    }

    /// Returns the inodes that are not left out, with whether they are new.
    fn kept(&self, is_new: bool) -> impl Iterator<Item = &InodeState<'u>> {
        let inodes = self.inodes.iter();
        inodes.filter(move |inode| inode.is_new == is_new && !inode.is_left_out)
    }

    /// Calls `write` with the records of all components that are not tainted, in order. If there is
    /// a condition in `first`, the first record is of an inode that satisfies it. Returns whether
    /// that was possible.
    pub(crate) fn records(
        mut self,
        first: Option<&dyn Fn(InodeNr) -> bool>,
        mut write: impl FnMut(&Record<'_>),
    ) -> bool {
        self.leave_out_tainted();
        if let Some(may_be_first) = first {
            let mut kept = self.kept(true).chain(self.kept(false)).peekable();
            let is_empty = kept.peek().is_none();
            // The link count in its image does not include names that are removed later.
            match kept.find(|inode| may_be_first(inode.nr) && !inode.loses_name) {
                Some(inode) => write_image(inode, &mut write),
                None => return is_empty,
            }
        }
        if !self.faults.lacks(Sabotage::NameWithoutInode) {
            for inode in self.kept(true) {
                write_image(inode, &mut write);
                if !inode.ranges.is_empty() {
                    write_ranges(inode, &mut write);
                    write_image(inode, &mut write);
                }
            }
        }
        let is_unordered = self.faults.lacks(Sabotage::UnorderedRecords);
        if !is_unordered {
            self.names_that(|name| name.before.is_none(), &mut write);
        }
        for name in &self.names {
            if let Some(at) = name.before {
                write(&Record::Unlink(name.dentry(self.inodes[at as usize].nr)));
            }
        }
        self.names_that(|name| is_unordered || name.before.is_some(), &mut write);
        for inode in self.kept(false) {
            write_ranges(inode, &mut write);
            write_image(inode, &mut write);
        }
        true
    }

    /// Writes the records of names that were added and satisfy `choose`.
    fn names_that(
        &mut self,
        choose: impl Fn(&NameState<'_>) -> bool,
        write: &mut impl FnMut(&Record<'_>),
    ) {
        for name in self.names.iter().filter(|name| choose(name)) {
            let Some(at) = name.now else { continue };
            let inode = &mut self.inodes[at as usize];
            let is_first = inode.is_new && !inode.is_created;
            inode.is_created = true;
            let dentry = name.dentry(inode.nr);
            write(&match is_first {
                true => Record::Creat(dentry),
                false => Record::Link(dentry),
            });
        }
    }
}

/// The place of the next object in a list of `len`.
fn place(len: usize) -> Place {
    u32::try_from(len).expect("a transaction changes fewer than 2^32 objects")
}

/// Returns why no name of `dir` is recorded, if its own inode is tainted.
fn dir_reason(dir: InodeNr, taints: &Taints) -> Option<Reason> {
    taints.inodes.contains(&dir).then_some(Reason::Directory)
}

fn write_image(inode: &InodeState<'_>, write: &mut impl FnMut(&Record<'_>)) {
    if let Some(raw) = inode.image {
        write(&Record::Inode {
            inode: inode.nr,
            raw,
        });
    }
}

fn write_ranges(inode: &InodeState<'_>, write: &mut impl FnMut(&Record<'_>)) {
    for extent in inode.ranges.iter() {
        let Extent {
            logical: LogicalBlock(_),
            physical,
            blocks,
            state,
        } = *extent;
        write(&Record::AddRange(AddRange {
            inode: inode.nr,
            logical: extent.logical,
            physical,
            blocks,
            state: match state {
                ExtentState::Written => RangeState::Written,
                ExtentState::Unwritten => RangeState::Unwritten,
            },
        }));
    }
}

#[cfg(test)]
mod tests;
