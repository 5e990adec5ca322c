//! **Purpose.** Which directory has the name of which, and where `..` of each leads.
//!
//! **Model.** Directories are numbered by their place in the sorted list of their inodes; for each
//! there are two words. 0 stands for "not known".
//!
//! **Locking.** None: a word is set by one atomic step.

use fourscore_ondisk::InodeNr;
use fourscore_sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The directories.
#[derive(Debug)]
pub(crate) struct Tree {
    inodes: Vec<InodeNr>,
    parents: Box<[AtomicU32]>,
    dotdots: Box<[AtomicU32]>,
}

/// What is known of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) inode: InodeNr,
    /// Who has its name; 0 for nobody.
    pub(crate) parent: InodeNr,
    /// Where its `..` leads; 0 for nowhere.
    pub(crate) dotdot: InodeNr,
}

impl Tree {
    /// Of these directories nothing is known yet.
    pub(crate) fn new(mut inodes: Vec<InodeNr>) -> Self {
        inodes.sort_unstable();
        inodes.dedup();
        let words = || inodes.iter().map(|_| AtomicU32::new(0)).collect();
        Self {
            parents: words(),
            dotdots: words(),
            inodes,
        }
    }

    /// The place of a directory in the list.
    pub(crate) fn rank(&self, inode: InodeNr) -> Option<usize> {
        self.inodes.binary_search(&inode).ok()
    }

    /// Notes that `parent` has a name of `inode`. Whose name was noted before, if there was one.
    pub(crate) fn set_parent(&self, inode: InodeNr, parent: InodeNr) -> Option<InodeNr> {
        let word = self.parents.get(self.rank(inode)?)?;
        let set = word.compare_exchange(0, parent.0, Relaxed, Relaxed);
        set.err().map(InodeNr)
    }

    /// Notes where `..` of a directory leads.
    pub(crate) fn set_dotdot(&self, inode: InodeNr, to: InodeNr) {
        if let Some(word) = self.rank(inode).and_then(|rank| self.dotdots.get(rank)) {
            word.store(to.0, Relaxed);
        }
    }

    /// All directories, by inode.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node> {
        let words = self.parents.iter().zip(&self.dotdots);
        self.inodes
            .iter()
            .zip(words)
            .map(|(&inode, (parent, dotdot))| Node {
                inode,
                parent: InodeNr(parent.load(Relaxed)),
                dotdot: InodeNr(dotdot.load(Relaxed)),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_parent() {
        let tree = Tree::new([7, 2, 12].map(InodeNr).to_vec());
        assert_eq!(tree.set_parent(InodeNr(12), InodeNr(2)), None);
        assert_eq!(tree.set_parent(InodeNr(12), InodeNr(7)), Some(InodeNr(2)));
        assert_eq!(tree.set_parent(InodeNr(13), InodeNr(7)), None);
        tree.set_dotdot(InodeNr(12), InodeNr(7));
        let node = tree.nodes().last();
        let expected = Node {
            inode: InodeNr(12),
            parent: InodeNr(2),
            dotdot: InodeNr(7),
        };
        assert_eq!(node, Some(expected));
    }
}
