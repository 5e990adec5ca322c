//! **Purpose.** Compares a mount of the kernel with the model.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use fourscore::FileType;
use rustix::fs::{SeekFrom, ioctl_getflags, lgetxattr, llistxattr, major, minor, seek};
use rustix::io::Errno;

use super::compare::compare_content;
use super::{Id, Kind, Model, Node};

impl Model {
    /// Compares the tree below a directory of the host with the model.
    ///
    /// # Panics
    /// With the path and both sides, if they differ.
    pub fn compare_with_host(&self, root: &Path) {
        let mut numbers = BTreeMap::new();
        let mut pending = vec![(Self::ROOT, root.to_owned())];
        while let Some((id, path)) = pending.pop() {
            let number = compare_inode(&path, self.node(id));
            if let Some(before) = numbers.insert(id, number) {
                assert_eq!(
                    before,
                    number,
                    "{}: names of one inode have different inode numbers",
                    path.display()
                );
                continue;
            }
            if self.node(id).is_dir() {
                pending.extend(self.children_on_host(id, &path, path == root));
            }
        }
        let distinct: BTreeSet<u64> = numbers.values().copied().collect();
        assert_eq!(
            distinct.len(),
            numbers.len(),
            "different inodes of the model have one inode number"
        );
    }

    fn children_on_host(&self, id: Id, path: &Path, is_root: bool) -> Vec<(Id, PathBuf)> {
        let entries = self.node(id).entries().unwrap();
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(path).unwrap() {
            let name = entry.unwrap().file_name().as_bytes().to_vec();
            if !(is_root && name == b"lost+found") {
                found.insert(name);
            }
        }
        assert!(
            found.iter().eq(entries.keys()),
            "names in {}",
            path.display()
        );
        let child = |(name, &id): (&Vec<u8>, &Id)| (id, path.join(OsStr::from_bytes(name)));
        entries.iter().map(child).collect()
    }
}

/// Compares an inode with the model, and returns its number.
fn compare_inode(path: &Path, node: &Node) -> u64 {
    let meta = fs::symlink_metadata(path).unwrap();
    let what = path.display();
    assert_eq!(file_type(meta.file_type()), node.file_type(), "{what}");
    assert_eq!(meta.nlink(), u64::from(node.links), "links of {what}");
    let permissions = meta.mode() & 0o7777;
    assert_eq!(
        permissions,
        u32::from(node.permissions),
        "{what}: octal {permissions:o}"
    );
    assert_eq!(
        (meta.uid(), meta.gid()),
        (node.uid, node.gid),
        "owner of {what}"
    );
    if let Some(mtime) = node.mtime {
        assert_eq!(meta.mtime(), mtime, "mtime of {what}");
    }
    assert_eq!(xattrs(path), node.all_xattrs(), "attributes of {what}");
    match &node.kind {
        Kind::File(content) => {
            let file = File::open(path).unwrap();
            assert_eq!(meta.len(), content.size(), "size of {what}");
            compare_flags(&file, node, path);
            let data = data_ranges(&file);
            let read = |offset, bytes: &mut [u8]| file.read_exact_at(bytes, offset).unwrap();
            compare_content(&what.to_string(), content, &data, read);
        }
        Kind::Directory { .. } => compare_flags(&File::open(path).unwrap(), node, path),
        Kind::Symlink(target) => {
            let found = fs::read_link(path).unwrap();
            assert_eq!(found.as_os_str().as_bytes(), target, "{what}");
        }
        Kind::Device(_, expected_major, expected_minor) => {
            let found = (major(meta.rdev()), minor(meta.rdev()));
            assert_eq!(found, (*expected_major, *expected_minor), "{what}");
        }
        Kind::Endpoint(_) => {}
    }
    meta.ino()
}

fn compare_flags(file: &File, node: &Node, path: &Path) {
    let found = ioctl_getflags(file).unwrap().bits() & Model::FLAGS.bits();
    assert_eq!(found, node.flags.bits(), "flags of {}", path.display());
}

fn data_ranges(file: &File) -> Vec<std::ops::Range<u64>> {
    let mut data = Vec::new();
    let mut at = 0;
    loop {
        match seek(file, SeekFrom::Data(at)) {
            Ok(start) => {
                at = seek(file, SeekFrom::Hole(start)).unwrap();
                data.push(start..at);
            }
            Err(Errno::NXIO) => return data,
            Err(error) => panic!("{error}"),
        }
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let len = llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|&byte| byte == 0);
    let value_of = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let len = lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(len);
        value
    };
    names
        .filter(|name| !name.is_empty())
        .map(|name| (name.to_vec(), value_of(name)))
        .collect()
}

fn file_type(found: fs::FileType) -> FileType {
    match found {
        _ if found.is_dir() => FileType::Directory,
        _ if found.is_file() => FileType::Regular,
        _ if found.is_symlink() => FileType::Symlink,
        _ if found.is_fifo() => FileType::Fifo,
        _ if found.is_socket() => FileType::Socket,
        _ if found.is_block_device() => FileType::BlockDevice,
        _ => FileType::CharDevice,
    }
}
