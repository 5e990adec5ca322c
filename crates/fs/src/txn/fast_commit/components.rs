//! **Purpose.** Objects that belong together, and whether they are tainted (union-find).

/// An object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(u32);

/// Sets of objects that belong together.
#[derive(Debug, Default)]
pub(crate) struct Components {
    nodes: Vec<Node>,
}

/// An object in a tree; the roots stand for the sets.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: Object,
    /// An upper bound of the height of the tree below. It has at least 2^rank objects.
    rank: u8,
    /// Of a root: whether the set is tainted.
    is_tainted: bool,
}

impl Components {
    /// Removes all objects.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
    }

    /// Makes space for `more` objects.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.nodes.reserve(more);
    }

    /// Adds an object.
    ///
    /// # Panics
    /// If there are 2^32 already, which no transaction changes.
    pub(crate) fn add(&mut self, is_tainted: bool) -> Object {
        let parent = Object(u32::try_from(self.nodes.len()).expect("fewer than 2^32 objects"));
        self.nodes.push(Node {
            parent,
            rank: 0,
            is_tainted,
        });
        parent
    }

    /// Notes that two objects belong together.
    pub(crate) fn join(&mut self, one: Object, other: Object) {
        let (one, other) = (self.root(one), self.root(other));
        if one == other {
            return;
        }
        let (high, low) = match self.node(one).rank < self.node(other).rank {
            true => (other, one),
            false => (one, other),
        };
        let Node {
            rank, is_tainted, ..
        } = *self.node(low);
        self.node(low).parent = high;
        let root = self.node(high);
        root.rank = root.rank.max(rank + 1);
        root.is_tainted |= is_tainted;
    }

    /// Taints the set of an object.
    pub(crate) fn taint(&mut self, at: Object) {
        let root = self.root(at);
        self.node(root).is_tainted = true;
    }

    /// Whether the set of an object is tainted.
    pub(crate) fn is_tainted(&mut self, at: Object) -> bool {
        let root = self.root(at);
        self.node(root).is_tainted
    }

    fn node(&mut self, at: Object) -> &mut Node {
        &mut self.nodes[at.0 as usize]
    }

    fn root(&mut self, mut at: Object) -> Object {
        while self.node(at).parent != at {
            let parent = self.node(at).parent;
            let above = self.node(parent).parent;
            self.node(at).parent = above;
            at = above;
        }
        at
    }
}
