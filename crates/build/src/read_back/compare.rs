//! **Purpose.** One object of the image beside what it was made from: all but the content.

use std::fmt::Debug;
use std::ops::ControlFlow;

use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, Timestamp};

use super::Reading;
use crate::error::BuildResult;
use crate::tree::{Entry, Kind, NodeId};

/// In what an image is not what it was made from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// The reader refuses it.
    #[error("{0}")]
    Unreadable(fourscore::Error),
    /// A field of the inode.
    #[error("{field} is {found} instead of {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// In the image.
        found: String,
        /// In the sources.
        expected: String,
    },
    /// An extended attribute that is missing, too many, or has another value.
    #[error("the attribute {} differs", name.escape_ascii())]
    Xattr {
        /// Its name.
        name: Vec<u8>,
    },
    /// The target of a symbolic link.
    #[error("the link target differs")]
    Target,
    /// A name of a directory that is missing, too many, or leads elsewhere.
    #[error("the name {} differs", name.escape_ascii())]
    Name {
        /// The name.
        name: Vec<u8>,
    },
    /// The content of a file.
    #[error("the content differs at byte {at}")]
    Content {
        /// The first byte that does.
        at: u64,
    },
}

type Compared = Result<(), Difference>;

impl Reading<'_> {
    /// Compares everything but the content.
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
        self.settled.forms.numbers.inode(node)
    }

    fn compare_inode(&self, node: NodeId) -> Compared {
        let forms = &self.settled.forms;
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
        let kept = |time: Timestamp| match forms.facts.has_extra() {
            true => {
                let (word, extra) = time.to_inode_words();
                Timestamp::from_inode(word, Some(extra))
            }
            false => Timestamp::from_inode(time.to_inode_word(), None),
        };
        field("atime", stat.atime, kept(meta.atime))?;
        field("mtime", stat.mtime, kept(meta.mtime))?;
        field("ctime", stat.ctime, kept(meta.ctime))?;
        match self.tree().kind(node) {
            // Beyond what can be counted it is 1.
            Kind::Directory if stat.links == 1 => Ok(()),
            Kind::Directory => {
                let list = self.tree().list_of(node).unwrap_or_default();
                let subdirectories = forms.numbers.family(list).subdirectories;
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

    /// The names that are listed are those that were to be, and where there is an index it leads
    /// to each of them. (Without one, asking for each name would read the directory each time.)
    fn compare_names(&self, node: NodeId) -> Compared {
        let directory = self.inode(node);
        let tree = self.tree();
        // Eight bytes for a name, however many there are.
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
            let fits = |&at: &usize| inode(&expected[at]) == listed.inode && !seen[at];
            match at.ok().filter(fits) {
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
                Ok(led_to) if led_to == inode(entry) => {}
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
