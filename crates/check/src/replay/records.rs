//! **Purpose.** Applies the records of fast commits, one after the other, to what the device holds
//! after the transactions are replayed.
//!
//! **Model.** Records set states, so applying one twice does no harm:
//! ```text
//! INODE                n is in use with these bytes; with i_links_count 0 it is deleted
//! ADD_RANGE, DEL_RANGE a range of n's map, if n has extents
//! CREAT, LINK          adds a name unless it exists; CREAT of a directory makes an empty one
//! UNLINK               removes a name; the inode is deleted with its last link
//! ```
//! A record about an inode that is not in use is ignored, but for LINK and ranges in front of the
//! INODE record in the same commit: Linux writes them in this order for a file that was made
//! without a name. Link counts of directories are counted as directories come and go, which the
//! kernel's replay omits.
//!
//! **Invariants.** Memory follows the records.

use std::collections::{BTreeMap, HashMap, HashSet};

use fourscore_journal::FastCommits;
use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::fast_commit::{AddRange, DelRange, Dentry, RangeState, Record};
use fourscore_ondisk::inode::{self, FileMode, FileType, InodeFlags, RawInode};
use fourscore_ondisk::jbd2::JournalError;
use fourscore_ondisk::{BlockCount, InodeNr};
use zerocopy::FromBytes;

use super::edits::{MapEdits, Target};
use super::image::Base;
use super::names::{Change, DirChanges, StoredNames, key};
use crate::inode::InodeView;
use crate::volume::Volume;

/// Everything that the records change.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) inodes: BTreeMap<InodeNr, InodeChange>,
    pub(super) dirs: HashMap<InodeNr, DirChanges>,
}

/// What the records make of an inode.
#[derive(Debug)]
pub(super) enum InodeChange {
    Deleted,
    Changed {
        base: Base,
        record: Option<Box<[u8]>>,
        links: u16,
        edits: MapEdits,
    },
}

/// Applies the records of `commits`. `orphans` are the inodes on the orphan list.
///
/// # Errors
/// A record maps blocks outside the file system, or adds a name that no entry can have.
pub(super) fn apply(
    commits: &FastCommits,
    volume: &Volume,
    orphans: &HashSet<InodeNr>,
) -> Result<Outcome, JournalError> {
    let mut state = Apply {
        volume,
        orphans,
        stored_names: StoredNames::new(volume, commits.records()),
        inodes: HashMap::new(),
        dirs: HashMap::new(),
        early: HashMap::new(),
    };
    for record in commits.records() {
        if !state.defer(record) {
            state.record(record)?;
        }
    }
    Ok(state.finish())
}

/// What is known of an inode that a record is about.
#[derive(Debug)]
struct Known {
    /// Its type; `None` while it is not in use.
    file_type: Option<FileType>,
    links: u16,
    flags: InodeFlags,
    base: Base,
    /// `i_generation` of an inode on the orphan list, which a link can bring back.
    orphan_generation: Option<u32>,
    record: Option<Box<[u8]>>,
    edits: MapEdits,
    is_changed: bool,
}

impl Known {
    fn not_in_use() -> Self {
        Self {
            file_type: None,
            links: 0,
            flags: InodeFlags::empty(),
            base: Base::Zeroes,
            orphan_generation: None,
            record: None,
            edits: MapEdits::default(),
            is_changed: false,
        }
    }

    fn delete(&mut self) {
        *self = Self {
            is_changed: true,
            ..Self::not_in_use()
        };
    }

    fn has_extents(&self) -> bool {
        self.file_type.is_some() && self.flags.contains(InodeFlags::EXTENTS_FL)
    }

    fn set_links(&mut self, links: u16) {
        self.links = links;
        self.is_changed = true;
    }
}

struct Apply<'a, 'r> {
    volume: &'a Volume,
    orphans: &'a HashSet<InodeNr>,
    stored_names: StoredNames<'a>,
    inodes: HashMap<InodeNr, Known>,
    dirs: HashMap<InodeNr, DirChanges>,
    /// Records in front of the INODE record of their inode.
    early: HashMap<InodeNr, Vec<Record<'r>>>,
}

impl<'r> Apply<'_, 'r> {
    /// What is known of inode `nr`, at first what the device holds. Reserved inodes are never in
    /// use here, so records about them are ignored.
    fn known(&mut self, nr: InodeNr) -> &mut Known {
        let (volume, orphans) = (self.volume, self.orphans);
        self.inodes
            .entry(nr)
            .or_insert_with(|| stored(volume, nr, orphans.contains(&nr)))
    }

    /// Keeps a record that precedes the INODE record of its inode; `false` if it does not.
    fn defer(&mut self, record: Record<'r>) -> bool {
        let inode = match record {
            Record::AddRange(range) => range.inode,
            Record::DelRange(range) => range.inode,
            Record::Link(dentry) => dentry.inode,
            _ => return false,
        };
        let is_early = self.known(inode).file_type.is_none();
        if is_early {
            self.early.entry(inode).or_default().push(record);
        }
        is_early
    }

    fn record(&mut self, record: Record<'r>) -> Result<(), JournalError> {
        match record {
            Record::AddRange(range) => self.add_range(&range)?,
            Record::DelRange(range) => self.delete_range(&range),
            Record::Creat(dentry) => self.creat(&dentry)?,
            Record::Link(dentry) => self.link(&dentry)?,
            Record::Unlink(dentry) => self.unlink(&dentry),
            Record::Inode { inode, raw } => self.inode(inode, raw)?,
            Record::Tail { .. } => self.early.clear(),
            Record::Pad | Record::Head { .. } => {}
        }
        Ok(())
    }

    fn inode(&mut self, nr: InodeNr, raw: &[u8]) -> Result<(), JournalError> {
        let Ok((fields, _)) = RawInode::ref_from_prefix(raw) else {
            return Ok(());
        };
        if !self.volume.sb.may_be_named(nr) {
            return Ok(());
        }
        let early = self.early.remove(&nr).unwrap_or_default();
        let file_type = FileType::from_mode(FileMode(fields.i_mode.get()));
        let links = fields.i_links_count.get();
        let known = self.known(nr);
        if file_type.is_none() || links == 0 {
            known.delete();
            return Ok(());
        }
        if known.orphan_generation.take() == Some(fields.i_generation.get()) {
            known.base = Base::Table;
        }
        known.file_type = file_type;
        known.flags = InodeFlags::from_bits_retain(fields.i_flags.get());
        known.record = Some(raw.into());
        known.set_links(links);
        for record in early {
            match record {
                // The record of the inode has counted the link.
                Record::Link(dentry) if self.can_be_linked(&dentry).is_some() => {
                    self.add_name(&dentry)?;
                }
                Record::Link(_) => {}
                other => self.record(other)?,
            }
        }
        Ok(())
    }

    fn add_range(&mut self, range: &AddRange) -> Result<(), JournalError> {
        let (block, blocks) = (range.physical, range.blocks);
        let geometry = self.volume.geometry();
        let is_inside = geometry.contains(block, BlockCount(blocks.into()));
        let known = self.known(range.inode);
        if !known.has_extents() || blocks == 0 {
            return Ok(());
        }
        if !is_inside {
            return Err(JournalError::FastCommitRange { block, blocks });
        }
        let state = match range.state {
            RangeState::Written => ExtentState::Written,
            RangeState::Unwritten => ExtentState::Unwritten,
        };
        let target = Target::Blocks(block, state);
        known.edits.set(range.logical, blocks, target);
        Ok(())
    }

    fn delete_range(&mut self, range: &DelRange) {
        let known = self.known(range.inode);
        if known.has_extents() {
            known.edits.set(range.logical, range.blocks, Target::Hole);
        }
    }

    /// The type of the inode, if it and the directory are in use. Names of encrypted directories
    /// are never in fast commits.
    fn can_be_linked(&mut self, dentry: &Dentry<'_>) -> Option<FileType> {
        let file_type = self.known(dentry.inode).file_type?;
        let parent = self.known(dentry.parent);
        let is_open = parent.file_type == Some(FileType::Directory)
            && !parent.flags.contains(InodeFlags::ENCRYPT_FL);
        is_open.then_some(file_type)
    }

    /// The key of the name, and the inode that it refers to now.
    fn find(&mut self, dentry: &Dentry<'_>) -> (Vec<u8>, Option<InodeNr>) {
        let flags = self.known(dentry.parent).flags;
        let key = key(self.volume, flags, dentry.name);
        let dir = self.dirs.get(&dentry.parent);
        let inode = match dir.and_then(|dir| dir.of(&key)) {
            Some(Change::Removed) => None,
            Some(Change::Added { inode, .. }) => Some(*inode),
            None if dir.is_some_and(|dir| dir.made_in.is_some()) => None,
            None => self.stored_names.find(dentry.parent, &key),
        };
        (key, inode)
    }

    /// Adds the name unless it exists; whether it was added.
    fn add_name(&mut self, dentry: &Dentry<'_>) -> Result<Added, JournalError> {
        let name = dentry.name;
        if name.iter().any(|byte| matches!(byte, b'/' | 0)) || matches!(name, b"." | b"..") {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(JournalError::FastCommitName { name });
        }
        let (key, found) = self.find(dentry);
        if found.is_some() {
            return Ok(Added::No);
        }
        let change = Change::Added {
            name: name.into(),
            inode: dentry.inode,
        };
        let dir = self.dirs.entry(dentry.parent).or_default();
        dir.set(key, change);
        Ok(Added::Yes)
    }

    fn creat(&mut self, dentry: &Dentry<'_>) -> Result<(), JournalError> {
        let Some(file_type) = self.can_be_linked(dentry) else {
            return Ok(());
        };
        let added = self.add_name(dentry)?;
        if file_type != FileType::Directory {
            self.known(dentry.inode).set_links(1);
        } else if added == Added::Yes {
            self.count_subdirectory(dentry.parent, 1);
            self.dirs
                .insert(dentry.inode, DirChanges::made_in(dentry.parent));
            // Its name and its `.`; directories made in it follow.
            self.known(dentry.inode).set_links(2);
        }
        Ok(())
    }

    fn link(&mut self, dentry: &Dentry<'_>) -> Result<(), JournalError> {
        if self.can_be_linked(dentry).is_some() && self.add_name(dentry)? == Added::Yes {
            let known = self.known(dentry.inode);
            known.set_links(known.links.saturating_add(1));
        }
        Ok(())
    }

    fn unlink(&mut self, dentry: &Dentry<'_>) {
        let Some(file_type) = self.can_be_linked(dentry) else {
            if let Some(early) = self.early.get_mut(&dentry.inode) {
                early.retain(|record| *record != Record::Link(*dentry));
            }
            return;
        };
        let (key, Some(found)) = self.find(dentry) else {
            return;
        };
        let is_directory = file_type == FileType::Directory;
        // Also where the name refers to another inode by now, this one loses a link.
        let is_its_name = found == dentry.inode;
        if is_its_name {
            let dir = self.dirs.entry(dentry.parent).or_default();
            dir.set(key, Change::Removed);
            if is_directory {
                self.count_subdirectory(dentry.parent, -1);
            }
        }
        let known = self.known(dentry.inode);
        let links = known.links.saturating_sub(1);
        if links == 0 || (is_directory && is_its_name) {
            known.delete();
            self.dirs.remove(&dentry.inode);
        } else {
            known.set_links(links);
        }
    }

    /// Counts the `..` of a subdirectory in its parent. A count of 1 stands for more links than
    /// can be counted.
    fn count_subdirectory(&mut self, dir: InodeNr, change: i16) {
        let known = self.known(dir);
        if known.links > 1 {
            known.set_links(known.links.saturating_add_signed(change).max(2));
        }
    }

    fn finish(self) -> Outcome {
        let mut inodes = BTreeMap::new();
        for (nr, known) in self.inodes {
            let is_in_use = known.file_type.is_some();
            if is_in_use && (known.is_changed || !known.edits.is_empty()) {
                let change = InodeChange::Changed {
                    base: known.base,
                    record: known.record,
                    links: known.links,
                    edits: known.edits,
                };
                inodes.insert(nr, change);
            } else if known.is_changed {
                inodes.insert(nr, InodeChange::Deleted);
            }
        }
        Outcome {
            inodes,
            dirs: self.dirs,
        }
    }
}

/// Whether a name was added.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    Yes,
    No,
}

/// An inode as the device holds it.
fn stored(volume: &Volume, nr: InodeNr, is_orphan: bool) -> Known {
    let mut known = Known::not_in_use();
    let mut bytes = Vec::new();
    if !volume.sb.may_be_named(nr) || read_used(volume, nr, &mut bytes).is_none() {
        return known;
    }
    let Some(inode) = InodeView::new(&bytes, nr) else {
        return known;
    };
    if inode.links() == 0 {
        known.orphan_generation = is_orphan.then(|| inode.base.i_generation.get());
        return known;
    }
    Known {
        file_type: inode.file_type(),
        links: inode.base.i_links_count.get(),
        flags: inode.flags(),
        base: Base::Table,
        ..known
    }
}

/// Reads an inode that may be in use: it lies in the used part of its table, its checksum is right
/// and it has a type.
pub(super) fn read_used(volume: &Volume, nr: InodeNr, bytes: &mut Vec<u8>) -> Option<()> {
    let (group, index) = volume.geometry().inode_group(nr)?;
    if index.0 >= volume.inodes_to_read(volume.group(group)?) {
        return None;
    }
    volume.read_inode(nr, bytes)?;
    inode::verify(bytes, nr, &volume.sb).ok()?;
    InodeView::new(bytes, nr)?.file_type().map(drop)
}
