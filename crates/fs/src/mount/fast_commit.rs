//! **Purpose.** Fast commits, read as if they had been replayed: an overlay in memory of the
//! changes that the records of the journal's fast-commit area make to inodes, to the maps of files
//! and to directories.
//!
//! **Not here.** Which records count (crate `journal`). Replaying them onto a device, which also
//! has to mark blocks and inodes as used.
//!
//! **Model.** Reads combine the disk with the overlay:
//! ```text
//! inode n   = bytes in its table, laid over with the last INODE record, and its link count
//! map of n  = its tree on disk, laid over with ADD_RANGE and DEL_RANGE in log order
//! names in d = entries on disk, laid over with CREAT, LINK and UNLINK in log order
//! ```
//! `Core::inode_change` is queried when an inode is loaded, `Core::range_edits` when a block is
//! mapped, and `Core::dir_changes` when a directory is searched or listed.
//!
//! **How records are applied.** As in the kernel (`ext4_fc_replay_*`): each record sets a state, so
//! applying it twice does no harm. A record about an inode that is not in use is ignored. INODE
//! leaves the block map alone, unless the content is inline. LINK and CREAT leave an existing name
//! alone. UNLINK does nothing without the name, and removes one link from its inode even if the
//! name now refers to another inode. CREAT of a directory makes an empty one. An inode without
//! links is deleted. Names in encrypted directories are never fast-committed; records about such
//! names are ignored.
//!
//! Where the kernel's own replay is wrong, the overlay gives the state before the crash:
//! - The kernel leaves link counts of parents alone when directories are made and removed, and
//!   gives a new directory one link. e2fsck then finds errors. Here these links are counted.
//! - The kernel refuses to mount when a file that was unlinked but open has an INODE record. Here
//!   that file is deleted.
//! - The kernel loses the target of a short symbolic link and the number of a device, which are in
//!   the block map. Here they are taken from the record. (Current kernels log no such inodes.)
//! - The kernel sets times of directories and links to the time of the mount. Here they stay.
//!
//! **Invariants.** Memory is proportional to the records. Ranges lie inside the file system.
//!
//! **Locking.** None: an overlay never changes once it is built.
//!
//! **References.** Kernel `fs/ext4/fast_commit.c`; documentation, `filesystems/ext4/journal.rst`.

pub(crate) mod apply;
mod patch;
mod ranges;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

use std::collections::{BTreeMap, HashMap};

use fourscore_ondisk::dirent::{Entry as DirRecord, EntryType};
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::{Inode, InodeNr};

use crate::Result;
use crate::dir::wanted::Wanted;

pub(crate) use patch::{Base, InodePatch};
pub(crate) use ranges::RangeEdits;

/// The state before the fast commits, as far as applying the records needs it.
pub(crate) trait Before {
    /// Returns the inodes on the orphan list.
    fn orphans(&self) -> Result<Vec<InodeNr>>;

    /// Returns an inode as its table has it; `None` if it is not in use, or broken.
    fn inode(&self, nr: InodeNr) -> Result<Option<Inode>>;

    /// Returns the inode that `name` refers to in directory `dir`.
    fn find(&self, dir: InodeNr, name: &[u8]) -> Result<Option<InodeNr>>;

    /// Returns the key of a name: the same for all names that `dir` treats as equal; the name
    /// itself if `dir` is new.
    fn key(&self, dir: InodeNr, name: &[u8]) -> Result<Vec<u8>>;
}

/// Everything that fast commits change.
#[derive(Debug, Default)]
pub(crate) struct FastCommitOverlay {
    inodes: HashMap<InodeNr, InodeChange>,
    ranges: HashMap<InodeNr, RangeEdits>,
    dirs: HashMap<InodeNr, DirChanges>,
}

/// How an inode differs from its bytes on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InodeChange {
    /// The inode is not in use any more.
    Deleted,
    /// Some bytes of the inode differ.
    Patched(InodePatch),
}

/// How the names in a directory differ from those on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirChanges {
    /// The parent of a directory that the fast commits made.
    made_in: Option<InodeNr>,
    /// The changed names, by [`Before::key`]. Entries on disk with one of these keys do not count.
    names: BTreeMap<Vec<u8>, Option<NewName>>,
}

/// A name that was added.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NewName {
    name: Box<[u8]>,
    inode: InodeNr,
    file_type: FileType,
}

impl NewName {
    /// Returns the name as an entry of a directory. The fields for its position are zero.
    fn entry(&self) -> DirRecord<'_> {
        let kind = EntryType::Unknown;
        DirRecord {
            at: 0,
            rec_len: 0,
            inode: self.inode,
            name: &self.name,
            kind,
            hash: None,
        }
    }
}

/// Queries for writing the changes to disk.
impl FastCommitOverlay {
    /// Returns every inode that differs from its bytes on disk, in ascending order.
    pub(crate) fn changed_inodes(&self) -> Vec<(InodeNr, &InodeChange)> {
        sorted(&self.inodes)
    }

    /// Returns how the bytes of inode `nr` differ, if they do.
    pub(crate) fn change_of(&self, nr: InodeNr) -> Option<&InodeChange> {
        self.inodes.get(&nr)
    }

    /// Returns how the names in directory `dir` differ from those on disk.
    pub(crate) fn names_of(&self, dir: InodeNr) -> Option<&DirChanges> {
        self.dirs.get(&dir)
    }

    /// Returns how the map of inode `nr` differs.
    pub(crate) fn ranges_of(&self, nr: InodeNr) -> Option<&RangeEdits> {
        self.ranges.get(&nr)
    }

    /// Returns every inode whose map differs, in ascending order.
    pub(crate) fn changed_maps(&self) -> Vec<(InodeNr, &RangeEdits)> {
        sorted(&self.ranges)
    }

    /// Returns every directory in which names differ, in ascending order.
    pub(crate) fn changed_dirs(&self) -> Vec<(InodeNr, &DirChanges)> {
        sorted(&self.dirs)
    }

    /// Returns the parent of a directory that the fast commits made.
    pub(crate) fn made_in(&self, dir: InodeNr) -> Option<InodeNr> {
        self.dirs.get(&dir)?.made_in
    }
}

fn sorted<T>(map: &HashMap<InodeNr, T>) -> Vec<(InodeNr, &T)> {
    let mut all: Vec<_> = map.iter().map(|(&nr, change)| (nr, change)).collect();
    all.sort_unstable_by_key(|&(nr, _)| nr);
    all
}

impl DirChanges {
    /// Returns the inode that the name with this key refers to now: `None` if the entry on disk
    /// counts, `Some(None)` if there is no such name.
    fn get(&self, key: &[u8]) -> Option<Option<InodeNr>> {
        match self.names.get(key) {
            Some(now) => Some(now.as_ref().map(|new| new.inode)),
            // A directory that was just made has no entries on disk.
            None => self.made_in.map(|_| None),
        }
    }

    /// Looks a name up as [`get`](Self::get) does.
    pub(crate) fn find(&self, wanted: &Wanted<'_>, name: &[u8]) -> Option<Option<InodeNr>> {
        if name == b".." && self.made_in.is_some() {
            return Some(self.made_in);
        }
        match self.get(wanted.hash_input()?) {
            // The names of a new directory are their own keys: how they compare was not known.
            Some(None) if self.made_in.is_some() && wanted.hash_may_mislead() => {
                let same = |new: &&NewName| wanted.matches(&new.entry());
                Some(self.added().find(same).map(|new| new.inode))
            }
            now => now,
        }
    }

    /// Returns the parent of a directory that fast commits made: nothing on disk counts for it.
    pub(crate) fn made_in(&self) -> Option<InodeNr> {
        self.made_in
    }

    /// Returns every entry of the directory `dir` that is not on disk.
    pub(crate) fn entries(&self, dir: InodeNr) -> impl Iterator<Item = (&[u8], InodeNr, FileType)> {
        let dots = self
            .made_in
            .map(|parent| [(&b"."[..], dir), (b"..", parent)]);
        let dots = dots.into_iter().flatten();
        dots.map(|(name, inode)| (name, inode, FileType::Directory))
            .chain(
                self.added()
                    .map(|new| (&*new.name, new.inode, new.file_type)),
            )
    }

    /// Returns every name that differs, with the inode that it refers to now; `None` if it was
    /// removed. A removed name is its own key: no system writes fast commits about a directory that
    /// does not compare names byte by byte.
    pub(crate) fn changed_names(
        &self,
    ) -> impl Iterator<Item = (&[u8], Option<(InodeNr, FileType)>)> {
        let names = self.names.iter();
        names.map(|(key, now)| match now {
            Some(new) => (&*new.name, Some((new.inode, new.file_type))),
            None => (&**key, None),
        })
    }

    /// Returns the names that were added, by key.
    fn added(&self) -> impl Iterator<Item = &NewName> {
        self.names.values().flatten()
    }
}
