//! **Purpose.** A file system in memory, on which the same operations are done as on a real one: it
//! predicts the result of each, and the state afterwards.
//!
//! **Model.** Inodes have numbers of the model's own, directories have names, files have runs of
//! data. A call that may fail for several reasons may fail with any of their error numbers;
//! `crates/proof/tests/it/errno.rs` checks which one comes first.
//!
//! | module | responsibility |
//! |---|---|
//! | `call` | the operations, and how a random one is chosen |
//! | `apply` | derives and does a call |
//! | `content` | data of files |
//! | `acl` | access control lists |
//! | `names` | operations on names |
//! | `inodes` | operations on inodes |
//! | `pair` | does the same calls on the model and on a file system |
//! | `compare` | compares a file system of ours with the model |
//! | `host` | compares a mount of the kernel with the model |
//! | `syscalls` | does the same calls on the model and, by system calls, on a mount of the kernel |

mod acl;
mod apply;
mod call;
mod compare;
mod content;
mod host;
mod inodes;
mod names;
mod pair;
mod syscalls;

use std::collections::BTreeMap;

use fourscore::{FileType, Fs};
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::inode::InodeFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub(crate) use self::acl::Acl;

pub(crate) use self::call::{Call, FALLOCATE, How, NewKind, Owner, Place, Which, Whole};
pub(crate) use self::content::Content;
#[cfg(test)]
pub(crate) use self::content::bytes_to_write;
pub use self::pair::{Numbers, Pair};
pub(crate) use self::syscalls::HostPair;

/// An inode of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id(u32);

/// The type of an inode, with its data.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    File(Content),
    Directory {
        parent: Id,
        entries: BTreeMap<Vec<u8>, Id>,
    },
    Symlink(Vec<u8>),
    /// Of a type, with a major and a minor number.
    Device(FileType, u32, u32),
    Endpoint(FileType),
}

/// An inode.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) project: u32,
    pub(crate) links: u32,
    pub(crate) flags: InodeFlags,
    /// In seconds, if it was set explicitly and nothing has changed it since.
    pub(crate) atime: Option<i64>,
    /// As `atime`.
    pub(crate) mtime: Option<i64>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) access: Option<Acl>,
    pub(crate) default: Option<Acl>,
    pub(crate) opens: u32,
    /// Whether it was created without a name and never had one, so that it may be linked.
    pub(crate) is_linkable: bool,
}

impl Node {
    /// An inode with one name, without attributes.
    fn new(kind: Kind, permissions: u16, uid: u32, gid: u32) -> Self {
        Self {
            kind,
            permissions,
            uid,
            gid,
            project: 0,
            links: 1,
            flags: InodeFlags::empty(),
            atime: None,
            mtime: None,
            xattrs: BTreeMap::new(),
            access: None,
            default: None,
            opens: 0,
            is_linkable: false,
        }
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.kind, Kind::File(_))
    }

    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.kind, Kind::Directory { .. })
    }

    pub(crate) fn file_type(&self) -> FileType {
        match &self.kind {
            Kind::File(_) => FileType::Regular,
            Kind::Directory { .. } => FileType::Directory,
            Kind::Symlink(_) => FileType::Symlink,
            Kind::Device(file_type, ..) | Kind::Endpoint(file_type) => *file_type,
        }
    }

    pub(crate) fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Id>> {
        match &self.kind {
            Kind::Directory { entries, .. } => Some(entries),
            _ => None,
        }
    }

    pub(crate) fn content(&self) -> Option<&Content> {
        match &self.kind {
            Kind::File(content) => Some(content),
            _ => None,
        }
    }

    /// All attributes with their full names, as they are listed.
    pub(crate) fn all_xattrs(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all = self.xattrs.clone();
        for (name, list) in [("access", self.access), ("default", self.default)] {
            if let Some(list) = list {
                let name = format!("system.posix_acl_{name}").into_bytes();
                all.insert(name, list.bytes());
            }
        }
        all
    }

    /// An upper estimate of the space that attributes take, in bytes.
    fn xattr_bytes(&self) -> usize {
        let all = self.all_xattrs();
        all.iter()
            .map(|(name, value)| 24 + name.len() + value.len())
            .sum()
    }
}

/// Properties of the file system that calls depend on.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The size of a block in bytes.
    pub block_bytes: u64,
    /// The unit in which ranges are moved: a block or a cluster, in bytes.
    pub unit_bytes: u64,
    /// Whether inodes have projects.
    pub has_projects: bool,
    /// Whether names that differ in case are equal. Names of the model are in lower case.
    pub ignores_case: bool,
    /// Whether files have extents. Without them, ranges can be punched, but not preallocated or
    /// moved.
    pub has_extents: bool,
    /// The offset below which calls write, in bytes.
    pub far_bytes: u64,
    /// The most that a call writes, allocates or moves, in bytes, plus one unit.
    pub most_bytes: u64,
}

/// Beyond 4 GiB, and within the reach of every kind of mapping.
const FAR_BYTES: u64 = 5 << 30;

impl Rules {
    /// The rules of a file system.
    #[must_use]
    pub fn of(fs: &Fs) -> Self {
        let (geometry, features) = (fs.geometry(), fs.superblock().features());
        Self {
            block_bytes: geometry.block_size().bytes() as u64,
            unit_bytes: geometry.cluster_size_bytes() as u64,
            ignores_case: false,
            has_projects: features.ro_compat.contains(RoCompat::PROJECT),
            has_extents: features.incompat.contains(Incompat::EXTENTS),
            far_bytes: FAR_BYTES,
            most_bytes: u64::MAX,
        }
    }
}

/// The error numbers that a call may fail with. If there are none, it must succeed.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<Errno>);

impl Refusals {
    fn when(&mut self, is_so: bool, errno: Errno) {
        if is_so {
            self.0.push(errno);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, errno: Errno) -> bool {
        self.0.contains(&errno)
    }
}

/// The expected result of a call.
#[derive(Debug)]
pub(crate) enum Expected {
    /// It succeeds; with the inode that it created, if any.
    Done(Option<Id>),
    /// It fails and changes nothing.
    Refused(Refusals),
}

impl Expected {
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}

/// The model of a tree.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: BTreeMap<Id, Node>,
    next: u32,
    pub(crate) rules: Rules,
}

impl Model {
    /// The root of the tree.
    pub const ROOT: Id = Id(0);
    /// The flags that the model sets and compares.
    pub(crate) const FLAGS: InodeFlags = InodeFlags::NODUMP_FL
        .union(InodeFlags::NOATIME_FL)
        .union(InodeFlags::TOPDIR_FL)
        .union(InodeFlags::PROJINHERIT_FL);

    /// A tree of an empty root directory that belongs to root. `links` is its link count: 2 plus
    /// the number of directories that are not part of the model, such as lost+found.
    #[must_use]
    pub fn new(rules: Rules, links: u32) -> Self {
        let mut model = Self {
            nodes: BTreeMap::new(),
            next: 0,
            rules,
        };
        let kind = Kind::Directory {
            parent: Self::ROOT,
            entries: BTreeMap::new(),
        };
        let root = Node {
            links,
            ..Node::new(kind, 0o755, 0, 0)
        };
        model.add(root);
        model
    }

    fn add(&mut self, node: Node) -> Id {
        let id = Id(self.next);
        self.next += 1;
        self.nodes.insert(id, node);
        id
    }

    /// Gives the next new inode the number that it has in `other`.
    #[cfg(test)]
    pub(crate) fn continue_numbers_of(&mut self, other: &Self) {
        self.next = other.next;
    }

    /// The number of inodes, including those without names.
    #[must_use]
    pub fn inodes(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (Id, &Node)> {
        self.nodes.iter().map(|(&id, node)| (id, node))
    }

    /// Whether an inode exists, with a name or open.
    pub(crate) fn has(&self, id: Id) -> bool {
        self.nodes.contains_key(&id)
    }

    pub(crate) fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }

    /// The inode that a name refers to.
    pub(crate) fn lookup(&self, place: &Place) -> Option<Id> {
        self.node(place.dir).entries()?.get(&place.name).copied()
    }

    /// The inodes that are open.
    pub(crate) fn opened(&self) -> Vec<Id> {
        let open = self.nodes().filter(|(_, node)| node.opens > 0);
        open.map(|(id, _)| id).collect()
    }

    /// The state after the process has died: nothing is open.
    #[must_use]
    pub fn after_crash(&self) -> Self {
        let mut model = self.clone();
        for id in model.opened() {
            model.node_mut(id).opens = 0;
            model.drop_if_unused(id);
        }
        model
    }

    /// Removes an inode that has no name and is not open.
    fn drop_if_unused(&mut self, id: Id) {
        let node = self.node(id);
        if node.links == 0 && node.opens == 0 {
            self.nodes.remove(&id);
        }
    }
}
