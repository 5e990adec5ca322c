//! The objects of a tree, as read through the kernel and through us.

pub(crate) mod recovered;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::{fmt, fs};

use fourscore::{FileType, Fs, InodeNr, Stat};
use fourscore_ondisk::inode::InodeFlags;

/// The compared fields of each object: everything but the sizes, link counts and times that the
/// kernel does not fast-commit for directories.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) inode: u32,
    pub(crate) kind: FileType,
    pub(crate) mode: u16,
    pub(crate) links: Option<u16>,
    pub(crate) size_bytes: u64,
    pub(crate) sectors: u64,
    pub(crate) mtime: Option<i64>,
    pub(crate) content: Vec<u8>,
}

impl fmt::Debug for Object {
    /// Everything but the data, which is too long to read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("inode", &self.inode)
            .field("kind", &self.kind)
            .field("mode", &self.mode)
            .field("links", &self.links)
            .field("size_bytes", &self.size_bytes)
            .field("sectors", &self.sectors)
            .field("mtime", &self.mtime)
            .finish_non_exhaustive()
    }
}

pub(crate) type Tree = BTreeMap<Vec<u8>, Object>;

pub(crate) fn host_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let (kind, content) = if meta.is_dir() {
            pending.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            (FileType::Directory, Vec::new())
        } else if meta.is_symlink() {
            (
                FileType::Symlink,
                fs::read_link(&path)
                    .unwrap()
                    .as_os_str()
                    .as_bytes()
                    .to_vec(),
            )
        } else if meta.is_file() {
            (FileType::Regular, fs::read(&path).unwrap())
        } else {
            (special(meta.file_type()), Vec::new())
        };
        let is_dir = kind == FileType::Directory;
        let object = Object {
            inode: u32::try_from(meta.ino()).unwrap(),
            kind,
            mode: u16::try_from(meta.mode()).unwrap(),
            links: Some(u16::try_from(meta.nlink()).unwrap()),
            size_bytes: if is_dir { 0 } else { meta.size() },
            sectors: if is_dir { 0 } else { meta.blocks() },
            mtime: (!is_dir).then(|| meta.mtime()),
            content,
        };
        tree.insert(
            path.strip_prefix(root)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec(),
            object,
        );
    }
    tree
}

pub(crate) fn our_tree(fs: &Fs) -> Tree {
    let mut tree = Tree::new();
    let mut pending = vec![(Vec::new(), InodeNr::ROOT)];
    let mut room = Vec::new();
    while let Some((path, inode)) = pending.pop() {
        let stat = fs.stat(inode).unwrap();
        let is_dir = stat.file_type == FileType::Directory;
        let mut content = Vec::new();
        match stat.file_type {
            FileType::Directory => {
                let mut scanned = Vec::new();
                fs.scan_entries(inode, &mut room, |entry| {
                    scanned.push(entry.to_owned());
                    ControlFlow::Continue(())
                })
                .unwrap();
                let listed = fs.read_dir(inode).unwrap();
                assert_eq!(scanned, listed, "a scan of {inode}, and its list");
                for entry in listed {
                    assert_eq!(fs.lookup(inode, &entry.name).unwrap(), entry.inode);
                    if entry.name == b"." || entry.name == b".." {
                        continue;
                    }
                    let mut below = path.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend(&entry.name);
                    pending.push((below, entry.inode));
                }
            }
            FileType::Symlink => content = fs.read_link(inode).unwrap(),
            FileType::Regular => {
                content = vec![0; usize::try_from(stat.size_bytes).unwrap()];
                assert_eq!(fs.read_at(inode, &mut content, 0).unwrap(), content.len());
            }
            _ => {}
        }
        let object = Object {
            inode: inode.0,
            kind: stat.file_type,
            mode: stat.mode.0,
            links: Some(stat.links),
            size_bytes: if is_dir { 0 } else { stat.size_bytes },
            sectors: if is_dir { 0 } else { shown_sectors(&stat) },
            mtime: (!is_dir).then(|| stat.mtime.seconds()),
            content,
        };
        assert!(tree.insert(path, object).is_none());
    }
    tree
}

/// The kernel counts data in the inode as space, so that programs do not take the file for a hole.
fn shown_sectors(stat: &Stat) -> u64 {
    let is_inline =
        stat.file_type == FileType::Regular && stat.flags.contains(InodeFlags::INLINE_DATA_FL);
    let inline = if is_inline {
        stat.size_bytes.div_ceil(512)
    } else {
        0
    };
    stat.sectors + inline
}

/// Asserts that two trees are equal.
///
/// # Panics
/// With the first path at which they differ.
pub(crate) fn assert_same(found: &Tree, expected: &Tree, what: &str) {
    for (path, object) in expected {
        let shown = path.escape_ascii();
        assert_eq!(found.get(path), Some(object), "{what}: {shown}");
    }
    assert!(found.keys().eq(expected.keys()), "{what}: names");
}

fn special(kind: fs::FileType) -> FileType {
    if kind.is_fifo() {
        FileType::Fifo
    } else if kind.is_socket() {
        FileType::Socket
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else {
        FileType::CharDevice
    }
}
