//! **Purpose.** Compares an object of the image with its source, except for its data.

use std::fmt::Debug;
use std::ops::ControlFlow;

use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, Timestamp};

use super::Checker;
use crate::error::BuildResult;
use crate::tree::{Entry, Kind, NodeId};

/// A difference between an image and its sources.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// The file system reader reports an error.
    #[error("{0}")]
    Unreadable(fourscore::Error),
    /// A field of the inode differs.
    #[error("{field} is {found} instead of {expected}")]
    Field {
        /// The name of the field.
        field: &'static str,
        /// The value in the image.
        found: String,
        /// The value in the sources.
        expected: String,
    },
    /// An extended attribute is missing, unexpected, or has another value.
    #[error("the attribute {} differs", name.escape_ascii())]
    Xattr {
        /// The name of the attribute.
        name: Vec<u8>,
    },
    /// The target of a symbolic link differs.
    #[error("the link target differs")]
    Target,
    /// A name is missing, unexpected, or refers to another object.
    #[error("the name {} differs", name.escape_ascii())]
    Name {
        /// The name.
        name: Vec<u8>,
    },
    /// The data of a file differs.
    #[error("the content differs at byte {at}")]
    Content {
        /// Offset of the first different byte.
        at: u64,
    },
}

type Compared = Result<(), Difference>;

impl Checker<'_> {
    /// Compares everything except file data.
    pub(super) fn compare(&self, node: NodeId) -> BuildResult<()> {
        let compared = self.compare_inode(node).and_then(|()| {
            self.compare_xattrs(node)?;
            match self.tree().kind(node) {
                Kind::Directory => self.compare_names(node),
                Kind::Symlink(target) => {
                    let found = self.fs.read_link(self.inode(node));
                    match found.map_err(Difference::Unreadable)? == target {
                        true => Ok(()),
                        false => Err(Difference::Target),
                    }
                }
                _ => Ok(()),
            }
        });
        compared.map_err(|what| self.differs(node, what))
    }

    fn inode(&self, node: NodeId) -> InodeNr {
        self.layout.forms.numbers.inode(node)
    }

    fn compare_inode(&self, node: NodeId) -> Compared {
        let forms = &self.layout.forms;
        let meta = self.options.clamped(self.tree().meta(node));
        let scanned = self.fs.scan(self.inode(node));
        let stat = scanned.map_err(Difference::Unreadable)?.stat;
        field("type", stat.file_type, self.tree().file_type(node))?;
        field("mode", stat.mode.0 & 0o7777, meta.permissions)?;
        field("uid", stat.uid, meta.uid)?;
        field("gid", stat.gid, meta.gid)?;
        field("size", stat.size_bytes, forms.size_bytes(node))?;
        if forms.facts.project {
            field("project", stat.project_id, meta.project)?;
        }
        let as_stored = |time: Timestamp| match forms.facts.has_extra() {
            true => {
                let (word, extra) = time.to_inode_words();
                Timestamp::from_inode(word, Some(extra))
            }
            false => Timestamp::from_inode(time.to_inode_word(), None),
        };
        field("atime", stat.atime, as_stored(meta.atime))?;
        field("mtime", stat.mtime, as_stored(meta.mtime))?;
        field("ctime", stat.ctime, as_stored(meta.ctime))?;
        match self.tree().kind(node) {
            // The link count is 1 if it exceeds the limit.
            Kind::Directory if stat.links == 1 => Ok(()),
            Kind::Directory => {
                let list = self.tree().list_of(node).unwrap_or_default();
                let subdirectories = forms.numbers.directory_info(list).subdirectories;
                field("links", stat.links.into(), subdirectories.saturating_add(2))
            }
            kind => {
                if let Kind::CharDevice(number) | Kind::BlockDevice(number) = kind {
                    field("device", stat.device, Some(number))?;
                }
                field("links", stat.links.into(), self.tree().links(node))
            }
        }
    }

    fn compare_xattrs(&self, node: NodeId) -> Compared {
        let found = self.fs.xattrs(self.inode(node));
        let mut found = found.map_err(Difference::Unreadable)?;
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut found = found
            .iter()
            .map(|xattr| (xattr.name.as_slice(), xattr.value.as_slice()));
        let mut expected = self.tree().xattrs(node);
        loop {
            match (found.next(), expected.next()) {
                (None, None) => return Ok(()),
                (a, b) if a == b => {}
                (a, b) => {
                    let name = a.or(b).map_or(&b""[..], |(name, _)| name).to_vec();
                    return Err(Difference::Xattr { name });
                }
            }
        }
    }

    /// Compares the list of names with the expected one, and looks up each name if the directory
    /// has an index. (Without an index, a lookup reads the whole directory.)
    fn compare_names(&self, node: NodeId) -> Compared {
        let directory = self.inode(node);
        let tree = self.tree();
        // A copy takes eight bytes for each name.
        let mut expected = tree.entries_of(node).to_vec();
        expected.sort_unstable_by_key(|entry| tree.entry_name(entry));
        let inode = |entry: &Entry| self.inode(NodeId(entry.node));
        let mut seen = vec![false; expected.len()];
        let mut foreign = None;
        let visited = self.fs.for_each_entry(directory, |listed| {
            if matches!(listed.name, b"." | b"..") {
                return ControlFlow::Continue(());
            }
            let at = expected.binary_search_by_key(&listed.name, |entry| tree.entry_name(entry));
            let matches = |&at: &usize| inode(&expected[at]) == listed.inode && !seen[at];
            match at.ok().filter(matches) {
                Some(at) => {
                    seen[at] = true;
                    ControlFlow::Continue(())
                }
                None => {
                    foreign = Some(listed.name.to_vec());
                    ControlFlow::Break(())
                }
            }
        });
        visited.map_err(Difference::Unreadable)?;
        let missing = || {
            let at = seen.iter().position(|is_seen| !is_seen)?;
            expected
                .get(at)
                .map(|entry| tree.entry_name(entry).to_vec())
        };
        if let Some(name) = foreign.or_else(missing) {
            return Err(Difference::Name { name });
        }
        let scanned = self.fs.scan(directory).map_err(Difference::Unreadable)?;
        if !scanned.stat.flags.contains(InodeFlags::INDEX_FL) {
            return Ok(());
        }
        for entry in &expected {
            let name = tree.entry_name(entry);
            match self.fs.lookup_once(directory, name) {
                Ok(found) if found == inode(entry) => {}
                Ok(_) | Err(fourscore::Error::NotFound) => {
                    let name = name.to_vec();
                    return Err(Difference::Name { name });
                }
                Err(error) => return Err(Difference::Unreadable(error)),
            }
        }
        Ok(())
    }
}

fn field<T: Copy + PartialEq + Debug>(field: &'static str, found: T, expected: T) -> Compared {
    if found == expected {
        return Ok(());
    }
    Err(Difference::Field {
        field,
        found: format!("{found:?}"),
        expected: format!("{expected:?}"),
    })
}
