//! **Purpose.** Assigns inode numbers, which also determine the order of allocation on disk.
//!
//! **Model.** Directories are visited depth first, in the byte order of their names; when a
//! directory is visited, its entries get consecutive numbers. So objects of one directory are close
//! on disk, and the order does not depend on how the tree was read. lost+found comes first.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;

use crate::tree::{NodeId, Tree};

/// The order of all objects except the root, and the parents of directories.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// By position; the inode number is `first` plus the position.
    order: Vec<NodeId>,
    /// The position of each object, or `NONE`.
    positions: Vec<u32>,
    /// By number of the entry list.
    directory_infos: Vec<DirectoryInfo>,
    /// The inode number of position 0.
    first: u32,
}

/// Parent and number of subdirectories of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectoryInfo {
    pub(crate) parent: NodeId,
    pub(crate) subdirectories: u32,
}

const NONE: u32 = u32::MAX;

impl Numbers {
    /// Assigns positions to the objects of a sorted tree.
    pub(crate) fn new(tree: &Tree, lost_and_found: Option<NodeId>) -> Self {
        let no_owner = DirectoryInfo {
            parent: NodeId::ROOT,
            subdirectories: 0,
        };
        let mut numbers = Self {
            order: Vec::with_capacity(tree.len()),
            positions: vec![NONE; tree.len()],
            directory_infos: vec![no_owner; tree.directories()],
            first: 0,
        };
        if let Some(lost_and_found) = lost_and_found {
            numbers.add(lost_and_found);
        }
        let mut stack = vec![NodeId::ROOT];
        while let Some(directory) = stack.pop() {
            let from = stack.len();
            for (_, child) in tree.children(directory) {
                numbers.add(child);
                if let Some(list) = tree.list_of(child) {
                    numbers.directory_infos[list as usize].parent = directory;
                    stack.push(child);
                }
            }
            if let Some(list) = tree.list_of(directory) {
                let count = u32::try_from(stack.len() - from).unwrap_or(u32::MAX);
                numbers.directory_infos[list as usize].subdirectories = count;
            }
            stack[from..].reverse();
        }
        numbers
    }

    fn add(&mut self, node: NodeId) {
        let Ok(position) = u32::try_from(self.order.len()) else {
            return;
        };
        let place = &mut self.positions[node.0 as usize];
        if *place == NONE {
            *place = position;
            self.order.push(node);
        }
    }

    /// Sets the inode number of the first object.
    pub(crate) fn set_first_inode(&mut self, first: InodeNr) {
        self.first = first.0;
    }

    /// All objects except the root, in order.
    pub(crate) fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// The inode number of an object.
    pub(crate) fn inode(&self, node: NodeId) -> InodeNr {
        if node == NodeId::ROOT {
            return InodeNr::ROOT;
        }
        let position = self.positions.get(node.0 as usize).copied().unwrap_or(NONE);
        InodeNr(self.first.saturating_add(position))
    }

    /// The position of an object in the order; `None` for the root.
    pub(crate) fn position(&self, node: NodeId) -> Option<usize> {
        let position = self.positions.get(node.0 as usize).copied();
        let position = position.filter(|&position| position != NONE)?;
        usize::try_from(position).ok()
    }

    /// The object with this inode number, if it is in the tree.
    pub(crate) fn node(&self, inode: InodeNr) -> Option<NodeId> {
        if inode == InodeNr::ROOT {
            return Some(NodeId::ROOT);
        }
        let position = inode.0.checked_sub(self.first)?;
        self.order.get(position as usize).copied()
    }

    pub(crate) fn directory_info(&self, list: u32) -> DirectoryInfo {
        self.directory_infos[list as usize]
    }

    /// All directories in order, beginning with the root.
    pub(crate) fn directories<'a>(&'a self, tree: &'a Tree) -> impl Iterator<Item = NodeId> + 'a {
        let others = self.order.iter().copied();
        std::iter::once(NodeId::ROOT)
            .chain(others.filter(|&node| tree.file_type(node) == FileType::Directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Kind, Meta, Xattrs};

    #[test]
    fn siblings_have_consecutive_numbers_and_links_one() {
        let mut tree = Tree::new();
        let mut put = |path: &[u8], kind| {
            tree.insert(path, &Meta::default(), kind, &Xattrs::new())
                .unwrap()
        };
        let found = put(b"lost+found", Kind::Directory);
        let deep = put(b"b/x", Kind::Fifo);
        let file = put(b"c", Kind::Fifo);
        let a = put(b"a", Kind::Directory);
        tree.link(b"a/link", b"c").unwrap();
        tree.sort(1);
        let mut numbers = Numbers::new(&tree, Some(found));
        numbers.set_first_inode(InodeNr(11));
        let b = tree.lookup(b"b").unwrap().unwrap();
        assert_eq!(numbers.order(), [found, a, b, file, deep]);
        assert_eq!(numbers.inode(deep), InodeNr(15));
        assert_eq!(numbers.node(InodeNr(15)), Some(deep));
        assert_eq!(numbers.node(InodeNr(10)), None);
        let root = numbers.directory_info(tree.list_of(NodeId::ROOT).unwrap());
        assert_eq!(root.subdirectories, 3);
        let list = tree.list_of(b).unwrap();
        assert_eq!(numbers.directory_info(list).parent, NodeId::ROOT);
        let all: Vec<_> = numbers.directories(&tree).collect();
        assert_eq!(all, [NodeId::ROOT, found, a, b]);
    }
}
