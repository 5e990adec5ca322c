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
//! or is tainted. Blocks that were freed since the last full commit are not reused before the next
//! one, so what a record refers to holds nothing else; an inode number that was freed is tainted.
//! Without the tainted components the file system is as if their operations had not happened yet.
//!
//! **The first record.** e2fsck reads the inode of the journal before it replays the log, and keeps
//! the block of the inode table. Inodes in that block look as they were before the log, until an
//! inode of another block is read. So the first record of a transaction is the INODE record of an
//! inode in another block that loses no name; it follows again where it belongs. Without such an
//! inode the commit is a full one.
//!
//! **Space in directories.** Replay puts names wherever there is space: in any block, or with an
//! index in the leaf of their hash. Linux does not count the blocks of a directory that becomes
//! longer in replay, and e2fsck makes none longer that has no index. So a name is recorded only if
//! a free space of the last full commit is large enough for it and for all names added there since,
//! whatever was removed (`taints`), and a directory that grows is tainted.

use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::fast_commit::{AddRange, Dentry, RangeState, Record};
use fourscore_ondisk::{InodeNr, LogicalBlock};

use crate::txn::fast_commit::components::Object;
use crate::txn::fast_commit::list::{Bytes, Units};
use crate::txn::fast_commit::note::{Life, Note, Piece, Place as UnitPlace, new_inodes};
use crate::txn::fast_commit::objects::{InodeState, NameState, Objects, Place, Text};
use crate::txn::fast_commit::reason::{Reason, Reasons};
use crate::txn::fast_commit::taints::Taints;
use crate::txn::faults::{Faults, Sabotage};

/// The net effect of units.
#[derive(Debug)]
pub(crate) struct Net<'u> {
    lists: &'u [Units],
    objects: &'u mut Objects,
    faults: Faults,
}

impl<'u> Net<'u> {
    /// No effect yet. Units of `lists` will be added, `units` of them or a few more or less. The
    /// records will have the injected fault, if there is one.
    pub(crate) fn new(
        lists: &'u [Units],
        units: usize,
        objects: &'u mut Objects,
        faults: Faults,
    ) -> Self {
        objects.begin(units);
        Self {
            lists,
            objects,
            faults,
        }
    }

    /// Adds the unit at `place` of a list; it is later than those before. Returns why it is
    /// tainted, if it is.
    pub(crate) fn add(
        &mut self,
        list: usize,
        place: &UnitPlace,
        taints: &mut Taints,
    ) -> Option<Reason> {
        let (mut first, mut why) = (None, None);
        let lists = self.lists;
        let nr = u32::try_from(list).unwrap_or(u32::MAX);
        let text = |piece| Text {
            list: nr,
            bytes: Bytes::of(piece, place),
        };
        if self.faults.lacks(Sabotage::FreedNumberReused) {
            for nr in new_inodes(lists[list].notes(place)) {
                taints.inodes.remove(&nr);
                self.objects.forget(nr);
            }
        }
        for note in lists[list].notes(place) {
            let (objects, tainted) = self.note(note, text, taints);
            why = why.or(tainted);
            for object in objects.into_iter().flatten() {
                match first {
                    None => first = Some(object),
                    Some(first) => self.objects.components.join(first, object),
                }
            }
        }
        if let (Some(first), Some(_)) = (first, why) {
            self.objects.components.taint(first);
        }
        why
    }

    /// Adds a note. Returns its objects, and why it is tainted, if it is.
    fn note(
        &mut self,
        note: &Note,
        text: impl Fn(Piece) -> Text,
        taints: &mut Taints,
    ) -> ([Option<Object>; 2], Option<Reason>) {
        let objects = &mut *self.objects;
        match *note {
            Note::Image {
                nr,
                life,
                bytes: image,
            } => {
                let inode = objects.inode(nr, taints);
                inode.image = Some(text(image));
                inode.is_new |= life == Life::New;
                ([Some(inode.object), None], None)
            }
            Note::Range { nr, extent } => {
                let inode = objects.inode(nr, taints);
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
                let (at, object) = objects.place(nr, taints);
                let name = objects.name(self.lists, dir, text(name), None, taints);
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
                let (at, object) = objects.place(nr, taints);
                let name = objects.name(self.lists, dir, text(name), Some(at), taints);
                name.now = None;
                ([Some(object), Some(name.object)], dir_reason(dir, taints))
            }
            Note::Taint { nr, why } => {
                taints.inodes.insert(nr);
                let (_, object) = objects.place(nr, taints);
                ([Some(object), None], Some(why))
            }
            Note::TaintAll { why } => ([None, None], Some(why)),
        }
    }

    /// Ends the additions: taints what the order of the records does not allow, and notes the
    /// objects of all tainted components.
    pub(crate) fn settle(&mut self, taints: &mut Taints, reasons: &mut Reasons) {
        let Objects {
            inodes,
            names,
            components,
            ..
        } = &mut *self.objects;
        for name in names.iter().filter(|name| name.before != name.now) {
            if let Some(at) = name.before {
                inodes[at as usize].loses_name = true;
                if let Some(at) = name.now {
                    inodes[at as usize].takes_name = true;
                }
            }
        }
        for inode in &*inodes {
            // It could be without a name in between.
            let is_in_between = inode.loses_name && inode.takes_name;
            // Its unit noted a name or a range, and no image.
            let lacks_image = inode.image.is_none();
            if (is_in_between || lacks_image) && !components.is_tainted(inode.object) {
                reasons.count(Reason::CrossRename);
                components.taint(inode.object);
            }
        }
        for inode in inodes {
            inode.is_left_out = components.is_tainted(inode.object);
            if inode.is_left_out {
                taints.inodes.insert(inode.nr);
            }
        }
        names.retain(|name| {
            let is_tainted = components.is_tainted(name.object);
            if is_tainted {
                let names = taints.names.entry(name.dir).or_default();
                names.insert(name.name.of(self.lists).into());
            }
            !is_tainted && name.before != name.now
        });
        if self.faults.lacks(Sabotage::FreedNumberReused) {
            for inode in self.kept(true) {
                taints.inodes.remove(&inode.nr);
            }
        }
        self.choose_first_names();
    }

    /// Chooses the first name of each new inode, in the order in which records name it.
    fn choose_first_names(&mut self) {
        let Objects { inodes, names, .. } = &mut *self.objects;
        for was_free in [true, false] {
            for name in names.iter_mut() {
                let Some(at) = name.now.filter(|_| name.before.is_none() == was_free) else {
                    continue;
                };
                let inode = &mut inodes[at as usize];
                name.is_first = inode.is_new && !inode.has_first_name;
                inode.has_first_name = true;
            }
        }
    }

    /// Returns the inodes that are not left out: those that are new, or the others.
    fn kept(&self, is_new: bool) -> impl Iterator<Item = &InodeState> {
        let inodes = self.objects.inodes.iter();
        inodes.filter(move |inode| inode.is_new == is_new && !inode.is_left_out)
    }

    /// Calls `write` with the records of all components that are not tainted, in order; not before
    /// [`Net::settle`]. If there is a condition in `first`, the first record is of an inode that
    /// satisfies it. Returns whether that was possible.
    pub(crate) fn records(
        self,
        first: Option<&dyn Fn(InodeNr) -> bool>,
        mut write: impl FnMut(&Record<'_>),
    ) -> bool {
        if let Some(may_be_first) = first {
            let mut kept = self.kept(true).chain(self.kept(false)).peekable();
            let is_empty = kept.peek().is_none();
            // The link count in its image does not include names that are removed later.
            match kept.find(|inode| may_be_first(inode.nr) && !inode.loses_name) {
                Some(inode) => self.write_image(inode, &mut write),
                None => return is_empty,
            }
        }
        if !self.faults.lacks(Sabotage::NameWithoutInode) {
            for inode in self.kept(true) {
                self.write_image(inode, &mut write);
                if !inode.ranges.is_empty() {
                    write_ranges(inode, &mut write);
                    self.write_image(inode, &mut write);
                }
            }
        }
        let is_unordered = self.faults.lacks(Sabotage::UnorderedRecords);
        if !is_unordered {
            self.write_names(|name| name.before.is_none(), &mut write);
        }
        for name in &self.objects.names {
            if let Some(at) = name.before {
                write(&Record::Unlink(self.dentry(name, at)));
            }
        }
        self.write_names(|name| is_unordered || name.before.is_some(), &mut write);
        for inode in self.kept(false) {
            write_ranges(inode, &mut write);
            self.write_image(inode, &mut write);
        }
        true
    }

    /// Writes the records of names that were added and satisfy `choose`.
    fn write_names(
        &self,
        choose: impl Fn(&NameState) -> bool,
        write: &mut impl FnMut(&Record<'_>),
    ) {
        for name in self.objects.names.iter().filter(|name| choose(name)) {
            let Some(at) = name.now else { continue };
            let dentry = self.dentry(name, at);
            write(&match name.is_first {
                true => Record::Creat(dentry),
                false => Record::Link(dentry),
            });
        }
    }

    fn dentry(&self, name: &NameState, at: Place) -> Dentry<'u> {
        Dentry {
            parent: name.dir,
            inode: self.objects.inodes[at as usize].nr,
            name: name.name.of(self.lists),
        }
    }

    fn write_image(&self, inode: &InodeState, write: &mut impl FnMut(&Record<'_>)) {
        if let Some(image) = inode.image {
            write(&Record::Inode {
                inode: inode.nr,
                raw: image.of(self.lists),
            });
        }
    }
}

/// Returns why no name of `dir` is recorded, if its own inode is tainted.
fn dir_reason(dir: InodeNr, taints: &Taints) -> Option<Reason> {
    taints.inodes.contains(&dir).then_some(Reason::Directory)
}

fn write_ranges(inode: &InodeState, write: &mut impl FnMut(&Record<'_>)) {
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
