//! **Purpose.** The entries of one directory, and the order of their paths.
//!
//! **Model.** Paths are ordered by their bytes over the whole tree. So the entries of `a` come
//! after `a-b`, since `-` is less than `/`:
//!
//! ```text
//! a  <  a-b  <  a/x  <  ab
//! ```
//!
//! The sort key of an object is its name; that of a directory's subtree is the name followed by a
//! slash. Both are sorted together.

use crate::facts::Kind;

/// Entries of one directory, with the names in one buffer, each followed by a slash.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    names: Vec<u8>,
    entries: Vec<Entry>,
}

/// One entry.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    end: usize,
    inode: u64,
    kind: Option<Kind>,
}

/// A step in path order, with the number of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The object itself.
    Object(usize),
    /// Everything below it.
    Subtree(usize),
}

impl Listing {
    pub(crate) fn clear(&mut self) {
        self.names.clear();
        self.entries.clear();
    }

    /// Adds an entry; `kind` is `None` if the directory entry has no file type.
    pub(crate) fn push(&mut self, name: &[u8], inode: u64, kind: Option<Kind>) {
        let start = self.names.len();
        self.names.extend_from_slice(name);
        let end = self.names.len();
        self.names.push(b'/');
        self.entries.push(Entry {
            start,
            end,
            inode,
            kind,
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn name(&self, nr: usize) -> &[u8] {
        self.entries
            .get(nr)
            .and_then(|entry| self.names.get(entry.start..entry.end))
            .unwrap_or_default()
    }

    pub(crate) fn inode(&self, nr: usize) -> u64 {
        self.entries.get(nr).map_or(0, |entry| entry.inode)
    }

    pub(crate) fn kind(&self, nr: usize) -> Option<Kind> {
        self.entries.get(nr).and_then(|entry| entry.kind)
    }

    /// Sets the kind of the object of an entry.
    pub(crate) fn set_kind(&mut self, nr: usize, kind: Kind) {
        if let Some(entry) = self.entries.get_mut(nr) {
            entry.kind = Some(kind);
        }
    }

    /// Writes the steps in path order to `steps`. Entries of unknown kind have no subtree.
    pub(crate) fn steps(&self, steps: &mut Vec<Step>) {
        steps.clear();
        for (nr, entry) in self.entries.iter().enumerate() {
            steps.push(Step::Object(nr));
            if entry.kind == Some(Kind::Directory) {
                steps.push(Step::Subtree(nr));
            }
        }
        steps.sort_unstable_by(|a, b| self.key(*a).cmp(self.key(*b)));
    }

    /// Writes the steps to `steps`: names in the order of their bytes, and each subtree directly
    /// after its directory.
    pub(crate) fn depth_first_steps(&self, steps: &mut Vec<Step>) {
        self.steps(steps);
        steps.sort_by(|a, b| {
            let (Step::Object(first) | Step::Subtree(first)) = a;
            let (Step::Object(second) | Step::Subtree(second)) = b;
            self.name(*first).cmp(self.name(*second)).then(a.cmp(b))
        });
    }

    fn key(&self, step: Step) -> &[u8] {
        let (nr, slash) = match step {
            Step::Object(nr) => (nr, 0),
            Step::Subtree(nr) => (nr, 1),
        };
        self.entries
            .get(nr)
            .and_then(|entry| self.names.get(entry.start..entry.end + slash))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtrees_are_in_path_order() {
        let mut listing = Listing::default();
        for (name, kind) in [
            (&b"ab"[..], Some(Kind::File)),
            (b"a", Some(Kind::Directory)),
            (b"a-b", Some(Kind::Directory)),
            (b"a0", None),
            (b"a\xff", Some(Kind::File)),
        ] {
            listing.push(name, 7, kind);
        }
        let mut steps = Vec::new();
        listing.steps(&mut steps);
        let keys: Vec<&[u8]> = steps.iter().map(|step| listing.key(*step)).collect();
        assert_eq!(
            keys,
            [&b"a"[..], b"a-b", b"a-b/", b"a/", b"a0", b"ab", b"a\xff"]
        );
        listing.set_kind(3, Kind::Directory);
        listing.steps(&mut steps);
        assert!(steps.contains(&Step::Subtree(3)));
        listing.depth_first_steps(&mut steps);
        let first = [
            Step::Object(1),
            Step::Subtree(1),
            Step::Object(2),
            Step::Subtree(2),
        ];
        assert_eq!(steps[..4], first);
        assert_eq!(
            (listing.name(3), listing.inode(3), listing.len()),
            (&b"a0"[..], 7, 5)
        );
    }
}
