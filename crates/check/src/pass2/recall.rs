//! **Purpose.** Adds what an earlier check remembers of the names in a directory
//! ([`crate::memory`]), instead of reading it.
//!
//! **Invariants.** What is added is what reading the directory would add: its names to the counts,
//! the names of directories in it and its `..` to the tree, and the number of its entries.

use fourscore_ondisk::InodeNr;

use super::Reader;
use crate::memory::{Kind, Names};
use crate::state::{Directories, Directory};

/// The entries `.` and `..`.
const DOTS: u64 = 2;

impl Reader<'_> {
    /// Adds a remembered directory, or reads it and remembers it if nothing is wrong with it.
    pub(super) fn look_at(
        &mut self,
        list: &Directories,
        directory: &Directory,
        turn: u32,
        buffer: &mut Vec<u8>,
    ) {
        let runs = list.runs_of(directory);
        let known = self.memory.and_then(|memory| memory.names(directory, runs));
        if let Some(names) = known.filter(|names| names.hold(self.state)) {
            self.recall(names, directory.inode, turn);
            return;
        }
        let (found, entries) = (self.findings.pushed(), self.entries);
        self.named.clear();
        self.directory(list, directory, turn, buffer);
        // A damaged map may lead to the block with `.` and `..` more than once.
        let has_dots_once = self.entries - entries == self.named.len() as u64 + DOTS;
        if self.memory.is_some() && self.findings.pushed() == found && has_dots_once {
            let dotdot = self.tree.dotdot(directory.inode);
            let names = Names::of(directory, runs, dotdot, &mut self.named, self.state);
            self.learned.extend(names);
        }
    }

    fn recall(&mut self, names: &Names, dir: InodeNr, turn: u32) {
        self.state.names.add(dir, 1);
        self.state.names.add(names.dotdot, 1);
        self.tree.set_dotdot(dir, names.dotdot);
        self.entries += names.inodes() + DOTS;
        for named in names.named() {
            if named.kind == Kind::Directory {
                for nr in named.inodes() {
                    self.directory_name(InodeNr(u32::try_from(nr).unwrap_or(u32::MAX)), dir, turn);
                }
            }
            self.state.names.add_one_each(named.inodes());
        }
    }
}
