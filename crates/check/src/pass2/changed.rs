//! **Purpose.** The names of a directory after the replay of fast commits, laid over the entries
//! of its blocks.
//!
//! **Model.** An entry whose name the fast commits changed counts as what the name is afterwards.
//! Names that no block holds are added when all blocks are read. See [`crate::replay`].

use fourscore_ondisk::dirent::{Entry, EntryType, TypeByte};
use fourscore_ondisk::{InodeNr, LogicalBlock};

use super::{Dir, Reader};
use crate::replay::Change;

impl Reader<'_> {
    /// An entry of a block that is neither `.` nor `..`.
    pub(super) fn stored_entry(
        &mut self,
        dir: &mut Dir,
        block: LogicalBlock,
        entry: &Entry<'_>,
        found: u8,
    ) {
        let Some(changes) = self.volume.changes.dirs.get(&dir.nr) else {
            self.entry(dir, block, entry, found);
            return;
        };
        let key: Box<[u8]> = dir.with_folded(entry.name, |name| name.into());
        let Some(change) = changes.of(&key) else {
            self.entry(dir, block, entry, found);
            return;
        };
        dir.overruled.insert(key);
        match change {
            Change::Removed => {}
            Change::Added { inode, .. } if *inode == entry.inode => {
                self.entry(dir, block, entry, found);
            }
            Change::Added { inode, name } => self.added_name(dir, block, *inode, name),
        }
    }

    /// The names of a directory that fast commits added and no block holds.
    pub(super) fn added_names(&mut self, dir: &Dir) {
        let Some(changes) = self.volume.changes.dirs.get(&dir.nr) else {
            return;
        };
        for (key, change) in changes.all() {
            if let Change::Added { inode, name } = change
                && !dir.overruled.contains(key)
            {
                self.added_name(dir, dir.end, *inode, name);
            }
        }
    }

    fn added_name(&mut self, dir: &Dir, block: LogicalBlock, inode: InodeNr, name: &[u8]) {
        let kind = match dir.format.type_byte {
            TypeByte::Absent => 0,
            TypeByte::Present => self.type_of(inode),
        };
        let entry = Entry {
            at: 0,
            rec_len: 0,
            inode,
            name,
            kind: EntryType::from_byte(kind),
            hash: None,
        };
        self.entry(dir, block, &entry, kind);
    }

    /// The `.` and `..` of a directory that fast commits made in `parent`.
    pub(super) fn made_dots(&mut self, dir: &Dir, parent: InodeNr) {
        self.entries += 1;
        self.state.names.add(dir.nr, 1);
        self.dotdot(dir, parent);
    }
}
