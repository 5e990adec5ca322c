//! **Purpose.** The order of all objects: inode numbers, and with them the order on disk.
//!
//! **Model.** Directories are visited depth first, by the bytes of their names; the entries of a
//! directory get numbers in a row when it is visited. So what is listed together lies together,
//! and the same tree gives the same order whoever read it. lost+found comes first.

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::FileType;

use crate::tree::{NodeId, Tree};

/// The order of all objects but the root, and who is whose parent.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// By position; the inode number is the first one plus the position.
    order: Vec<NodeId>,
    /// By object: its position, or `NONE`.
    positions: Vec<u32>,
    /// By the number of a directory's list.
    families: Vec<Family>,
    /// The inode of position 0.
    first: u32,
}

/// Where a directory stands among the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) parent: NodeId,
    pub(crate) subdirectories: u32,
}

const NONE: u32 = u32::MAX;

impl Numbers {
    /// Numbers a sorted tree.
    pub(crate) fn new(tree: &Tree, lost_and_found: Option<NodeId>) -> Self {
        let nobody = Family {
            parent: NodeId::ROOT,
            subdirectories: 0,
        };
        let mut numbers = Self {
            order: Vec::with_capacity(tree.len()),
            positions: vec![NONE; tree.len()],
            families: vec![nobody; tree.directories()],
            first: 0,
        };
        if let Some(lost_and_found) = lost_and_found {
            numbers.add(lost_and_found);
        }
        let mut waiting = vec![NodeId::ROOT];
        while let Some(directory) = waiting.pop() {
            let from = waiting.len();
            for (_, child) in tree.children(directory) {
                numbers.add(child);
                if let Some(list) = tree.list_of(child) {
                    numbers.families[list as usize].parent = directory;
                    waiting.push(child);
                }
            }
            if let Some(list) = tree.list_of(directory) {
                let count = u32::try_from(waiting.len() - from).unwrap_or(u32::MAX);
                numbers.families[list as usize].subdirectories = count;
            }
            waiting[from..].reverse();
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

    /// Says which inode the first object gets.
    pub(crate) fn begin_at(&mut self, first: InodeNr) {
        self.first = first.0;
    }

    /// All objects but the root, in order.
    pub(crate) fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// The inode of an object.
    pub(crate) fn inode(&self, node: NodeId) -> InodeNr {
        if node == NodeId::ROOT {
            return InodeNr::ROOT;
        }
        let position = self.positions.get(node.0 as usize).copied().unwrap_or(NONE);
        InodeNr(self.first.saturating_add(position))
    }

    /// Where an object stands in the order; `None` for the root.
    pub(crate) fn position(&self, node: NodeId) -> Option<usize> {
        let position = self.positions.get(node.0 as usize).copied();
        let position = position.filter(|&position| position != NONE)?;
        usize::try_from(position).ok()
    }

    /// The object of an inode, if it is one of the tree's.
    pub(crate) fn node(&self, inode: InodeNr) -> Option<NodeId> {
        if inode == InodeNr::ROOT {
            return Some(NodeId::ROOT);
        }
        let position = inode.0.checked_sub(self.first)?;
        self.order.get(position as usize).copied()
    }

    pub(crate) fn family(&self, list: u32) -> Family {
        self.families[list as usize]
    }

    /// Directories in order, the root first.
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
    fn siblings_are_numbered_in_a_row_and_links_once() {
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
        numbers.begin_at(InodeNr(11));
        let b = tree.lookup(b"b").unwrap().unwrap();
        assert_eq!(numbers.order(), [found, a, b, file, deep]);
        assert_eq!(numbers.inode(deep), InodeNr(15));
        assert_eq!(numbers.node(InodeNr(15)), Some(deep));
        assert_eq!(numbers.node(InodeNr(10)), None);
        let root = numbers.family(tree.list_of(NodeId::ROOT).unwrap());
        assert_eq!(root.subdirectories, 3);
        let list = tree.list_of(b).unwrap();
        assert_eq!(numbers.family(list).parent, NodeId::ROOT);
        let all: Vec<_> = numbers.directories(&tree).collect();
        assert_eq!(all, [NodeId::ROOT, found, a, b]);
    }
}
