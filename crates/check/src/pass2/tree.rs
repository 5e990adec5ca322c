//! **Purpose.** The tree of directories: the parent of each by name, and by its `..`.
//!
//! **Model.** Directories are numbered by their position in the sorted list of their inodes; each
//! has two words. If a directory has several names, the one counts whose directory comes first on
//! the device, as for e2fsck. That does not depend on which thread reads it first.
//!
//! **Locking.** None: each word is updated by one atomic operation.

use fourscore_ondisk::InodeNr;
use fourscore_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// No directory has a name of it.
const NAMELESS: u64 = u64::MAX;

/// The directories.
#[derive(Debug)]
pub(crate) struct Tree {
    inodes: Vec<InodeNr>,
    /// The turn of the directory that has its name, with its inode number in the low half.
    parents: Box<[AtomicU64]>,
    dotdots: Box<[AtomicU32]>,
}

/// One directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) inode: InodeNr,
    /// The directory that has its name; 0 for none.
    pub(crate) parent: InodeNr,
    /// The inode that its `..` refers to; 0 without `..`.
    pub(crate) dotdot: InodeNr,
}

impl Tree {
    /// The tree of these directories, without names.
    pub(crate) fn new(mut inodes: Vec<InodeNr>) -> Self {
        inodes.sort_unstable();
        inodes.dedup();
        let each = inodes.iter();
        Self {
            parents: each.clone().map(|_| AtomicU64::new(NAMELESS)).collect(),
            dotdots: each.map(|_| AtomicU32::new(0)).collect(),
            inodes,
        }
    }

    /// The position of a directory in the list.
    pub(crate) fn rank(&self, inode: InodeNr) -> Option<usize> {
        self.inodes.binary_search(&inode).ok()
    }

    /// Adds a name of `inode` in the directory `parent`, which is read in the given turn. If there
    /// are two names now, returns the directory of the one that does not count.
    pub(crate) fn add_name(&self, inode: InodeNr, parent: InodeNr, turn: u32) -> Option<InodeNr> {
        let word = self.parents.get(self.rank(inode)?)?;
        let named = u64::from(turn) << 32 | u64::from(parent.0);
        let before = word.fetch_min(named, Relaxed);
        (before != NAMELESS).then(|| number(before.max(named)))
    }

    /// The directory that has the name of `inode` that counts; 0 for none.
    pub(crate) fn parent(&self, inode: InodeNr) -> InodeNr {
        let word = self.rank(inode).and_then(|rank| self.parents.get(rank));
        word.map_or(InodeNr(0), parent_in)
    }

    /// The inode that `..` of a directory refers to; 0 without `..`.
    pub(crate) fn dotdot(&self, inode: InodeNr) -> InodeNr {
        let word = self.rank(inode).and_then(|rank| self.dotdots.get(rank));
        InodeNr(word.map_or(0, |word| word.load(Relaxed)))
    }

    /// Notes the inode that `..` of a directory refers to.
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
                parent: parent_in(parent),
                dotdot: InodeNr(dotdot.load(Relaxed)),
            })
    }
}

/// The directory in a word that is not [`NAMELESS`].
fn number(named: u64) -> InodeNr {
    InodeNr(u32::try_from(named & u64::from(u32::MAX)).unwrap_or_default())
}

fn parent_in(word: &AtomicU64) -> InodeNr {
    match word.load(Relaxed) {
        NAMELESS => InodeNr(0),
        named => number(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_on_the_device_is_the_parent() {
        const TURNS: [(u32, u32); 3] = [(2, 5), (7, 1), (9, 3)];
        let orders = [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ];
        for order in orders {
            let tree = Tree::new([7, 2, 12].map(InodeNr).to_vec());
            let mut again: Vec<u32> = order
                .into_iter()
                .map(|nth| TURNS[nth])
                .filter_map(|(dir, turn)| tree.add_name(InodeNr(12), InodeNr(dir), turn))
                .map(|other| other.0)
                .collect();
            again.sort_unstable();
            assert_eq!((tree.parent(InodeNr(12)).0, again), (7, vec![2, 9]));
        }
    }

    #[test]
    fn names_and_dotdots_are_kept() {
        let tree = Tree::new([7, 2, 12].map(InodeNr).to_vec());
        assert_eq!(tree.add_name(InodeNr(13), InodeNr(7), 0), None);
        assert_eq!(tree.add_name(InodeNr(12), InodeNr(2), 0), None);
        // Two names in one directory.
        assert_eq!(tree.add_name(InodeNr(12), InodeNr(2), 0), Some(InodeNr(2)));
        tree.set_dotdot(InodeNr(12), InodeNr(7));
        let node = |inode, parent, dotdot| Node {
            inode: InodeNr(inode),
            parent: InodeNr(parent),
            dotdot: InodeNr(dotdot),
        };
        let expected = [node(2, 0, 0), node(7, 0, 0), node(12, 2, 7)];
        assert!(tree.nodes().eq(expected));
    }
}
