//! **Purpose.** The tree of an image's objects: the overlay of all sources.
//!
//! | module | responsibility |
//! |---|---|
//! | `node` | the representation of one object |
//! | `entries` | the names in each directory |
//! | `paths` | inserts, links and removes objects by path |
//! | `watched` | detects changes of archives while they are read |
//! | `xattrs` | sets of extended attributes, each stored once |
//! | `arena` | stores names and link targets |
//!
//! **Not here.** Reading sources (`source`), inode and block numbers (`layout`).
//!
//! **Model.** Objects ([`NodeId`]) and directory entries are separate, so a hard link is one more
//! entry. Sources are inserted one after another: a later object replaces an earlier one of the
//! same name, except that a directory over a directory keeps the entries and takes the new
//! attributes. A directory that no source contains but a path needs is created with default
//! attributes (`drwxr-xr-x`, root, 1970-01-01).
//!
//! A file costs about 150 bytes: 88 for the object, 8 for its entry, the name itself, and spare
//! capacity of vectors.
//!
//! **Invariants.** The `links` of every object but the root are the number of entries that refer to
//! it; a directory has one. Names are 1 to 255 bytes without `/` and NUL, and neither `.` nor `..`.

mod arena;
mod entries;
mod error;
mod node;
mod paths;
mod watched;
mod xattrs;

use std::fs::File;
use std::io;

use fourscore::Fs;
use fourscore_ondisk::inode::FileType;
use fourscore_sync::Arc;

pub use error::TreeError;
pub use node::{
    Content, DataPlace, FileId, HostDirId, HostPath, ImageId, Kind, Meta, Piece, Sparse,
};
pub use xattrs::{XattrIter, XattrSet, Xattrs};

pub(crate) use entries::Entry;
pub(crate) use node::{HOLE_UNIT_BYTES, Node, Stored};
pub(crate) use xattrs::{XattrSets, is_supported};

use crate::source::Draft;
use arena::{Arena, Text};
use entries::Entries;
use watched::Watched;

/// The longest name of an entry in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// The longest target of a symbolic link in bytes.
pub const MAX_TARGET_BYTES: usize = 4095;

/// The result of this module's calls.
pub type TreeResult<T> = Result<T, TreeError>;

/// An object of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// The root directory.
    pub const ROOT: Self = Self(0);
}

/// A directory of the host, identified by its parent and name.
#[derive(Debug)]
struct HostDir {
    /// `None` for the root of a source.
    place: Option<(HostDirId, Text)>,
    root: Arc<File>,
}

/// The objects of an image.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    entries: Entries,
    xattrs: XattrSets,
    /// The parent of each directory, by the number of its entry list; the root is its own parent.
    parents: Vec<NodeId>,
    files: Vec<Arc<File>>,
    images: Vec<Arc<Fs>>,
    watched: Vec<Watched>,
    host_dirs: Vec<HostDir>,
    /// An image that already contains some file data.
    draft: Option<Draft>,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// An empty root directory.
    #[must_use]
    pub fn new() -> Self {
        let mut entries = Entries::default();
        let root = entries.add_directory().unwrap_or(0);
        let meta = Meta {
            permissions: 0o755,
            ..Meta::default()
        };
        Self {
            nodes: vec![Node::new(&meta, Stored::Directory(root), XattrSet(0))],
            entries,
            xattrs: XattrSets::default(),
            parents: vec![NodeId::ROOT],
            files: Vec::new(),
            images: Vec::new(),
            watched: Vec::new(),
            host_dirs: Vec::new(),
            draft: None,
        }
    }

    /// Number of objects, including replaced ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the tree has only the root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// The root and all objects with at least one name, in no particular order.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        let linked: Vec<bool> = self.nodes.iter().map(|node| node.links > 0).collect();
        (0..)
            .zip(linked)
            .filter(|&(number, linked)| linked || number == 0)
            .map(|(number, _)| NodeId(number))
    }

    /// Owner, permissions and times.
    #[must_use]
    pub fn meta(&self, id: NodeId) -> Meta {
        self.node(id).meta()
    }

    /// Changes owner, permissions and times.
    pub fn set_meta(&mut self, id: NodeId, meta: &Meta) {
        self.node_mut(id).set_meta(meta);
    }

    /// The type of an object.
    #[must_use]
    pub fn file_type(&self, id: NodeId) -> FileType {
        self.node(id).stored.file_type()
    }

    /// The type of an object, with its data, target or device number.
    #[must_use]
    pub fn kind(&self, id: NodeId) -> Kind {
        match &self.node(id).stored {
            Stored::Directory(_) => Kind::Directory,
            Stored::File(content) => Kind::File(content.clone()),
            Stored::Symlink(target) => Kind::Symlink(self.entries.arena.get(*target).to_vec()),
            Stored::CharDevice(number) => Kind::CharDevice(*number),
            Stored::BlockDevice(number) => Kind::BlockDevice(*number),
            Stored::Fifo => Kind::Fifo,
            Stored::Socket => Kind::Socket,
        }
    }

    /// The length of a file in bytes, including holes; 0 for other types.
    #[must_use]
    pub fn len_bytes(&self, id: NodeId) -> u64 {
        match &self.node(id).stored {
            Stored::File(content) => content.len_bytes(),
            _ => 0,
        }
    }

    /// The data of a file in bytes, without holes.
    #[must_use]
    pub fn content_bytes(&self, id: NodeId) -> u64 {
        match &self.node(id).stored {
            Stored::File(Content::Sparse(sparse)) => {
                sparse.pieces.iter().map(|piece| piece.len_bytes).sum()
            }
            _ => self.len_bytes(id),
        }
    }

    /// As [`Tree::content_bytes`], with the ends of data rounded to whole units, so that it does
    /// not depend on how finely a source reports holes.
    pub(crate) fn content_units_bytes(&self, id: NodeId) -> u64 {
        match &self.node(id).stored {
            Stored::File(Content::Sparse(sparse)) => {
                sparse.units().iter().map(|(start, end)| end - start).sum()
            }
            _ => self.len_bytes(id),
        }
    }

    /// Replaces the content of a file by an equal one in another representation.
    pub(crate) fn set_content(&mut self, id: NodeId, content: Content) {
        self.node_mut(id).stored = Stored::File(content);
    }

    /// Number of names. 0 for the root, 1 for any other directory.
    #[must_use]
    pub fn links(&self, id: NodeId) -> u32 {
        self.node(id).links
    }

    /// The number of its set of extended attributes: equal sets have equal numbers.
    #[must_use]
    pub fn xattr_set(&self, id: NodeId) -> XattrSet {
        self.node(id).xattrs
    }

    /// Its extended attributes, sorted by name.
    #[must_use]
    pub fn xattrs(&self, id: NodeId) -> XattrIter<'_> {
        self.xattrs.iter(self.node(id).xattrs)
    }

    /// Replaces its extended attributes.
    ///
    /// # Errors
    /// [`TreeError::Full`].
    pub fn set_xattrs(&mut self, id: NodeId, xattrs: &Xattrs) -> TreeResult<()> {
        let set = self.xattrs.intern(xattrs).ok_or(TreeError::Full)?;
        self.node_mut(id).xattrs = set;
        Ok(())
    }

    /// The entries of a directory; sorted by name after [`Tree::sort`]. Empty for other types.
    pub fn children(&self, directory: NodeId) -> impl ExactSizeIterator<Item = (&[u8], NodeId)> {
        self.entries_of(directory)
            .iter()
            .map(|entry| (self.entries.name(entry), NodeId(entry.node)))
    }

    /// Sorts the entries of all directories by the bytes of their names.
    pub fn sort(&mut self, threads: usize) {
        self.entries.sort(threads);
    }

    /// The path of a name that occurs twice in a directory, if there is one. The tree must be
    /// sorted.
    pub(crate) fn duplicate_name(&self) -> Option<Vec<u8>> {
        let twice = |list: &u32| {
            let entries = self.entries.of(*list);
            let pair = entries.windows(2).find(|pair| match pair {
                [a, b] => self.entry_name(a) == self.entry_name(b),
                _ => false,
            });
            pair.and_then(|pair| pair.first())
        };
        let lists = u32::try_from(self.directories()).unwrap_or(u32::MAX);
        let (list, entry) = (0..lists).find_map(|list| Some((list, twice(&list)?)))?;
        let directory = self.path_of_list(list as usize);
        Some([&*directory, self.entry_name(entry)].join(&b'/'))
    }

    /// Adds an open file whose ranges are file data ([`Content::Range`]).
    ///
    /// # Errors
    /// [`TreeError::Full`].
    pub fn add_file(&mut self, file: Arc<File>) -> TreeResult<FileId> {
        let number = u32::try_from(self.files.len()).map_err(|_| TreeError::Full)?;
        self.files.push(file);
        Ok(FileId(number))
    }

    /// The open file added by [`Tree::add_file`].
    #[must_use]
    pub fn file(&self, id: FileId) -> Option<&Arc<File>> {
        self.files.get(id.0 as usize)
    }

    /// Adds an open file system whose files are file data ([`Content::Image`]).
    ///
    /// # Errors
    /// [`TreeError::Full`].
    pub fn add_image(&mut self, fs: Arc<Fs>) -> TreeResult<ImageId> {
        let number = u32::try_from(self.images.len()).map_err(|_| TreeError::Full)?;
        self.images.push(fs);
        Ok(ImageId(number))
    }

    /// The file system added by [`Tree::add_image`].
    #[must_use]
    pub fn image(&self, id: ImageId) -> Option<&Arc<Fs>> {
        self.images.get(id.0 as usize)
    }

    /// Records length and mtime of an archive, to detect changes by other processes. `place` is its
    /// name in messages.
    pub(crate) fn watch_file(&mut self, file: Arc<File>, place: &str) -> io::Result<()> {
        self.watched.push(Watched::new(file, place)?);
        Ok(())
    }

    /// The name of a watched file that has changed.
    pub(crate) fn changed_file(&self) -> Option<&str> {
        let changed = self.watched.iter().find(|watched| watched.has_changed());
        changed.map(Watched::place)
    }

    /// Adds the image that already contains some file data.
    pub(crate) fn set_draft(&mut self, draft: Draft) {
        self.draft = Some(draft);
    }

    /// Takes the image that already contains some file data, to add more to it or to complete it.
    pub(crate) fn take_draft(&mut self) -> Option<Draft> {
        self.draft.take()
    }

    /// Adds the open root of a source directory.
    ///
    /// # Errors
    /// [`TreeError::Full`].
    pub fn add_host_root(&mut self, root: Arc<File>) -> TreeResult<HostDirId> {
        self.push_host_dir(HostDir { place: None, root })
    }

    /// Adds a directory of the host, by its name in one that was added before.
    ///
    /// # Errors
    /// [`TreeError::Full`].
    pub fn add_host_dir(&mut self, parent: HostDirId, name: &[u8]) -> TreeResult<HostDirId> {
        let root = self
            .host_dirs
            .get(parent.0 as usize)
            .ok_or(TreeError::Full)?;
        let root = Arc::clone(&root.root);
        let name = self.entries.arena.push(name).ok_or(TreeError::Full)?;
        let place = Some((parent, name));
        self.push_host_dir(HostDir { place, root })
    }

    fn push_host_dir(&mut self, directory: HostDir) -> TreeResult<HostDirId> {
        let number = u32::try_from(self.host_dirs.len()).map_err(|_| TreeError::Full)?;
        self.host_dirs.push(directory);
        Ok(HostDirId(number))
    }

    /// Identifies a file in a directory of the host, for [`Content::Host`].
    ///
    /// # Errors
    /// [`TreeError::Full`].
    pub fn host_path(&mut self, directory: HostDirId, name: &[u8]) -> TreeResult<HostPath> {
        let name = self.entries.arena.push(name).ok_or(TreeError::Full)?;
        Ok(HostPath { directory, name })
    }

    /// The root of the source that a directory of the host belongs to, and the path components from
    /// there.
    pub(crate) fn host_dir(&self, mut id: HostDirId) -> Option<(&Arc<File>, Vec<&[u8]>)> {
        let mut names = Vec::new();
        loop {
            let directory = self.host_dirs.get(id.0 as usize)?;
            match directory.place {
                Some((parent, name)) => {
                    names.push(self.entries.arena.get(name));
                    id = parent;
                }
                None => {
                    names.reverse();
                    return Some((&directory.root, names));
                }
            }
        }
    }

    pub(crate) fn host_name(&self, path: HostPath) -> &[u8] {
        self.entries.arena.get(path.name)
    }

    /// The path of an object from the root, for messages. Searches the whole tree.
    #[must_use]
    pub fn path_of(&self, id: NodeId) -> Vec<u8> {
        let mut path = Vec::new();
        let mut wanted = id;
        while wanted != NodeId::ROOT {
            let parent = (0..)
                .map(NodeId)
                .take(self.nodes.len())
                .find_map(|directory| {
                    let found = self.children(directory).find(|(_, child)| *child == wanted);
                    found.map(|(name, _)| (directory, name))
                });
            let Some((parent, name)) = parent else {
                break;
            };
            path.splice(0..0, [b"/", name].concat());
            wanted = parent;
        }
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        // Only this tree creates ids, and nodes are never removed.
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// The number of a directory's entry list, below [`Tree::directories`].
    pub(crate) fn list_of(&self, id: NodeId) -> Option<u32> {
        match self.node(id).stored {
            Stored::Directory(list) => Some(list),
            _ => None,
        }
    }

    /// Number of entry lists, including those of replaced directories.
    pub(crate) fn directories(&self) -> usize {
        self.entries.directories()
    }

    pub(crate) fn lists_mut(&mut self) -> (&mut [Vec<Entry>], &Arena) {
        self.entries.lists_mut()
    }

    /// The path of the directory with this entry list, for messages.
    pub(crate) fn path_of_list(&self, list: usize) -> Vec<u8> {
        let is_it = |id: &NodeId| self.list_of(*id).is_some_and(|own| own as usize == list);
        let found = (0..).map(NodeId).take(self.nodes.len()).find(is_it);
        self.path_of(found.unwrap_or(NodeId::ROOT))
    }

    pub(crate) fn entries_of(&self, id: NodeId) -> &[Entry] {
        self.list_of(id).map_or(&[], |list| self.entries.of(list))
    }

    pub(crate) fn entry_name(&self, entry: &Entry) -> &[u8] {
        self.entries.name(entry)
    }

    pub(crate) fn text(&self, text: Text) -> &[u8] {
        self.entries.arena.get(text)
    }

    /// Memory of names and targets in bytes.
    #[cfg(test)]
    pub(crate) fn names_bytes(&self) -> usize {
        self.entries.arena.len_bytes()
    }
}

#[cfg(test)]
mod tests;
