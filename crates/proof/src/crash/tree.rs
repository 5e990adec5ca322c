//! **Purpose.** Names, inodes and data below a directory: as the model expects them, and as they
//! are found on a recovered file system.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use fourscore::{FileType, Fs, InodeNr};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::Arc;

use crate::model::{Content, Id, Kind, Model, Node};

/// The largest file that is read, in bytes.
const MOST_BYTES: u64 = 4 << 20;

/// The attributes of an inode, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    file_type: FileType,
    permissions: u16,
    owner: (u32, u32),
    project: u32,
    links: u32,
    flags: InodeFlags,
    /// In seconds; `None` if not known.
    atime: Option<i64>,
    mtime: Option<i64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a regular file, in bytes.
    pub(super) size: Option<u64>,
    /// Of a symbolic link.
    target: Option<Vec<u8>>,
    /// Of a device.
    device: Option<(u32, u32)>,
}

/// An inode of a tree.
#[derive(Clone, Debug)]
pub(super) struct Entry<K> {
    /// The inode number, on the file system or in the model.
    pub(super) key: K,
    pub(super) facts: Facts,
    /// The data of a regular file.
    pub(super) content: Option<Arc<[u8]>>,
}

/// A file that a call writes in several pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growing {
    pub(super) id: Id,
    /// Its size before the call, in bytes.
    pub(super) from: u64,
}

/// A tree. The root has the empty path.
#[derive(Clone, Debug)]
pub(super) struct Tree<K> {
    /// By path, the index into `inodes`.
    pub(super) names: BTreeMap<Vec<u8>, usize>,
    /// Inodes with names; in an expected tree, open inodes without a name follow.
    pub(super) inodes: Vec<Entry<K>>,
}

impl<K: Copy + Ord> Tree<K> {
    fn new() -> Self {
        Self {
            names: BTreeMap::new(),
            inodes: Vec::new(),
        }
    }
}

fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    [path, b"/", name].concat()
}

/// The data of each inode: unchanged data of several versions shares memory.
pub(super) type Contents = BTreeMap<Id, (Content, Arc<[u8]>)>;

impl Tree<Id> {
    /// The tree after a crash. Inodes without a name are gone; but data that is written to them
    /// reaches its home location, and is found under the name that the inode has in an older
    /// version.
    pub(super) fn expected(living: &Model, contents: &mut Contents) -> Self {
        let model = living.after_crash();
        let mut tree = Self::new();
        let mut places = BTreeMap::new();
        let mut pending = vec![(Model::ROOT, Vec::new())];
        while let Some((id, path)) = pending.pop() {
            let node = model.node(id);
            let place = *places.entry(id).or_insert_with(|| {
                tree.inodes.push(Entry::expected(id, node, contents));
                tree.inodes.len() - 1
            });
            let children = node.entries().into_iter().flatten();
            pending.extend(children.map(|(name, &child)| (child, below(&path, name))));
            tree.names.insert(path, place);
        }
        let nameless = living.nodes().filter(|(id, _)| !places.contains_key(id));
        let nameless = nameless.map(|(id, node)| Entry::expected(id, node, contents));
        tree.inodes.extend(nameless);
        tree
    }
}

impl<K> Entry<K> {
    pub(super) fn is_directory(&self) -> bool {
        self.facts.file_type == FileType::Directory
    }

    /// Whether it has a name; an inode without one is gone after a crash.
    pub(super) fn has_name(&self) -> bool {
        self.facts.links > 0
    }

    pub(super) fn links(&self) -> u32 {
        self.facts.links
    }
}

impl Entry<Id> {
    fn expected(id: Id, node: &Node, contents: &mut Contents) -> Self {
        Self {
            key: id,
            facts: Facts::expected(node),
            content: node.content().map(|content| bytes(id, content, contents)),
        }
    }
}

fn bytes(id: Id, content: &Content, contents: &mut Contents) -> Arc<[u8]> {
    if let Some((known, bytes)) = contents.get(&id)
        && known == content
    {
        return Arc::clone(bytes);
    }
    let mut bytes = vec![0; usize::try_from(content.size()).unwrap_or(0)];
    content.fill(0, &mut bytes);
    let bytes: Arc<[u8]> = bytes.into();
    contents.insert(id, (content.clone(), Arc::clone(&bytes)));
    bytes
}

impl Facts {
    fn expected(node: &Node) -> Self {
        Self {
            file_type: node.file_type(),
            permissions: node.permissions,
            owner: (node.uid, node.gid),
            project: node.project,
            links: node.links,
            flags: node.flags,
            atime: node.atime,
            mtime: node.mtime,
            xattrs: node.all_xattrs(),
            size: node.content().map(Content::size),
            target: match &node.kind {
                Kind::Symlink(target) => Some(target.clone()),
                _ => None,
            },
            device: match node.kind {
                Kind::Device(_, major, minor) => Some((major, minor)),
                _ => None,
            },
        }
    }

    fn found(fs: &Fs, nr: InodeNr) -> Result<Self> {
        let stat = fs.stat(nr)?;
        let file_type = stat.file_type;
        let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        let xattrs = fs.xattrs(nr)?.into_iter();
        Ok(Self {
            file_type,
            permissions: stat.mode.0 & 0o7777,
            owner: (stat.uid, stat.gid),
            project: stat.project_id,
            links: stat.links.into(),
            flags: stat.flags & Model::FLAGS,
            atime: Some(stat.atime.seconds()),
            mtime: Some(stat.mtime.seconds()),
            xattrs: xattrs.map(|xattr| (xattr.name, xattr.value)).collect(),
            size: (file_type == FileType::Regular).then_some(stat.size_bytes),
            target: match file_type {
                FileType::Symlink => Some(fs.read_link(nr)?),
                _ => None,
            },
            device: stat
                .device
                .filter(|_| is_device)
                .map(|device| (device.major, device.minor)),
        })
    }

    /// Whether `found` has all known attributes of this.
    pub(super) fn allows(&self, found: &Self) -> bool {
        let known = |expected: Option<i64>, found| expected.and(found);
        let found = Self {
            atime: known(self.atime, found.atime),
            mtime: known(self.mtime, found.mtime),
            ..found.clone()
        };
        *self == found
    }

    /// As [`Self::allows`], for a file that grows from `size` bytes to the expected size.
    pub(super) fn allows_from(&self, size: u64, found: &Self) -> bool {
        let sizes = Some(size)..=self.size;
        let there = Self {
            size: found.size,
            ..self.clone()
        };
        sizes.contains(&found.size) && there.allows(found)
    }

    /// As [`Self::allows`], for a directory whose names and inode are logged apart: its link count
    /// follows from the names, and each of its times may be that of one of the forms `others`.
    pub(super) fn allows_directory(&self, found: &Self, others: &[&Self]) -> bool {
        let is_known = |time: fn(&Self) -> Option<i64>| {
            let is_found = |form: &Self| time(form).is_none_or(|own| Some(own) == time(found));
            is_found(self) || others.iter().any(|form| is_found(form))
        };
        let found_otherwise = Self {
            links: self.links,
            atime: self.atime,
            mtime: self.mtime,
            ..found.clone()
        };
        is_known(|facts| facts.atime)
            && is_known(|facts| facts.mtime)
            && self.allows(&found_otherwise)
    }

    /// These attributes, with those that system calls set taken from `other`.
    fn with_settings_of(&self, other: &Self) -> Self {
        Self {
            permissions: other.permissions,
            owner: other.owner,
            project: other.project,
            flags: other.flags,
            atime: other.atime,
            mtime: other.mtime,
            ..self.clone()
        }
    }
}

impl Tree<InodeNr> {
    /// Reads the tree below a directory.
    ///
    /// # Errors
    /// If something cannot be read, or names contradict each other.
    pub(super) fn found(fs: &Fs, root: InodeNr) -> Result<Self> {
        let mut tree = Self::new();
        let mut places = BTreeMap::new();
        let mut pending = vec![(root, Vec::new())];
        while let Some((nr, path)) = pending.pop() {
            let shown = || format!("{}, inode {nr}", path.escape_ascii());
            if let Some(&place) = places.get(&nr) {
                tree.names.insert(path, place);
                continue;
            }
            let facts = Facts::found(fs, nr).with_context(shown)?;
            if facts.file_type == FileType::Directory {
                for (name, child) in names(fs, nr, nr == root).with_context(shown)? {
                    pending.push((child, below(&path, &name)));
                }
            }
            let content = match facts.size {
                Some(size) => Some(read(fs, nr, size).with_context(shown)?),
                None => None,
            };
            places.insert(nr, tree.inodes.len());
            tree.names.insert(path, tree.inodes.len());
            tree.inodes.push(Entry {
                key: nr,
                facts,
                content,
            });
        }
        Ok(tree)
    }
}

/// The names in a directory. Checks that a lookup finds each, and that `..` refers to the parent.
pub(super) fn names(fs: &Fs, dir: InodeNr, is_root: bool) -> Result<BTreeMap<Vec<u8>, InodeNr>> {
    let mut names = BTreeMap::new();
    for entry in fs.read_dir(dir)? {
        let shown = entry.name.escape_ascii().to_string();
        match &entry.name[..] {
            b"." => ensure!(entry.inode == dir, ". refers to inode {}", entry.inode),
            b".." => {}
            name => {
                let found = fs.lookup(dir, name).with_context(|| shown.clone())?;
                ensure!(found == entry.inode, "{shown} is found as {found}");
                let file_type = fs.stat(found).with_context(|| shown.clone())?.file_type;
                if entry.file_type.is_some_and(|listed| listed != file_type) {
                    bail!("{shown} is listed as {:?}", entry.file_type);
                }
                if file_type == FileType::Directory && !is_root {
                    let parent = fs.lookup(found, b"..")?;
                    ensure!(parent == dir, "{shown}/.. refers to inode {parent}");
                }
                let twice = names.insert(entry.name, found);
                ensure!(twice.is_none(), "{shown} is listed twice");
            }
        }
    }
    Ok(names)
}

fn read(fs: &Fs, nr: InodeNr, size: u64) -> Result<Arc<[u8]>> {
    ensure!(size <= MOST_BYTES, "{size} bytes");
    let mut bytes = vec![0xee; usize::try_from(size)?];
    let read = fs.read_at(nr, &mut bytes, 0)?;
    ensure!(read == bytes.len(), "{read} of {size} bytes were read");
    Ok(bytes.into())
}

impl Tree<Id> {
    /// Whether `path` refers to the inode of `entry`, with the same attributes and data.
    pub(super) fn has(&self, path: &[u8], entry: &Entry<Id>) -> bool {
        self.names.get(path).is_some_and(|&place| {
            let own = &self.inodes[place];
            own.key == entry.key && own.facts == entry.facts && own.content == entry.content
        })
    }

    /// Whether the directories above `path` are the same as in `other`, with the same names.
    pub(super) fn has_same_parents(&self, other: &Self, path: &[u8]) -> bool {
        let ends = (0..path.len()).filter(|&at| path[at] == b'/');
        ends.map(|end| &path[..end]).all(|dir| {
            let Some(&place) = other.names.get(dir) else {
                return false;
            };
            self.has(dir, &other.inodes[place]) && self.children(dir).eq(other.children(dir))
        })
    }

    /// The names in a directory.
    fn children<'t>(&'t self, dir: &'t [u8]) -> impl Iterator<Item = &'t Vec<u8>> {
        self.names.keys().filter(move |path| {
            let name = path
                .strip_prefix(dir)
                .and_then(|rest| rest.strip_prefix(b"/"));
            name.is_some_and(|name| !name.contains(&b'/'))
        })
    }

    /// The entry of an inode of the model, if it existed.
    pub(super) fn of(&self, id: Id) -> Option<&Entry<Id>> {
        self.inodes.iter().find(|entry| entry.key == id)
    }

    /// Describes the first difference of `found` in names and inodes; data is not compared. A file
    /// that is growing may have any size up to the expected one, and attributes of a directory may
    /// be those of one of the versions `older`.
    pub(super) fn difference(
        &self,
        found: &Tree<InodeNr>,
        growing: Option<&Growing>,
        older: &[Self],
    ) -> Option<String> {
        let paths = |names: &BTreeMap<Vec<u8>, usize>, others: &BTreeMap<Vec<u8>, usize>| {
            let odd = names.keys().find(|path| !others.contains_key(*path))?;
            Some(odd.escape_ascii().to_string())
        };
        if let Some(path) = paths(&self.names, &found.names) {
            return Some(format!("{path} is missing"));
        }
        if let Some(path) = paths(&found.names, &self.names) {
            return Some(format!("{path} exists"));
        }
        let mut counterparts = BTreeMap::new();
        for (path, &place) in &self.names {
            let (ours, theirs) = (place, found.names[path]);
            let shown = path.escape_ascii();
            if *counterparts.entry(ours).or_insert(theirs) != theirs {
                return Some(format!("{shown} refers to another inode"));
            }
            let (key, expected) = (self.inodes[ours].key, &self.inodes[ours].facts);
            let found = &found.inodes[theirs].facts;
            let is_on_its_way = growing
                .filter(|growing| growing.id == key)
                .is_some_and(|growing| expected.allows_from(growing.from, found));
            let was_unset = |tree: &Self| {
                let form = tree.of(key);
                form.is_some_and(|form| expected.with_settings_of(&form.facts).allows(found))
            };
            let is_older =
                || expected.file_type == FileType::Directory && older.iter().any(was_unset);
            if !expected.allows(found) && !is_on_its_way && !is_older() {
                return Some(format!("{shown} is {found:?}, not {expected:?}"));
            }
        }
        let distinct: std::collections::BTreeSet<_> = counterparts.values().collect();
        (distinct.len() != counterparts.len()).then(|| "two files have one inode".to_owned())
    }
}
