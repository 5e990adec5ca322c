//! **Purpose.** Compares a file system of ours with the model: each name, inode, attribute and
//! byte.
//!
//! **Model.** Both trees are walked together, which gives each inode of the model its number. All
//! data is read; ranges that are holes must be holes in the model as well.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fourscore::{ExtentState, FileType, Fs, InodeNr, Seek, Stat};
use fourscore_ondisk::inode::InodeFlags;

use super::content::Content;
use super::pair::Numbers;
use super::{Id, Kind, Model};

/// The most bytes that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

impl Model {
    /// Compares the tree below `root` with the model, and returns the inode numbers.
    ///
    /// # Panics
    /// With the path and both sides, if they differ.
    pub fn compare(&self, fs: &Fs, root: InodeNr) -> Numbers {
        let mut numbers = Numbers::from([(Self::ROOT, root)]);
        let mut pending = vec![(Self::ROOT, root, String::new())];
        while let Some((id, dir, path)) = pending.pop() {
            for (child, number, name) in self.compare_entries(fs, id, dir, root, &path) {
                let path = format!("{path}/{name}");
                match numbers.insert(child, number) {
                    Some(before) => assert_eq!(
                        before, number,
                        "{path}: names of one inode have different inode numbers"
                    ),
                    None if self.node(child).is_dir() => pending.push((child, number, path)),
                    None => {}
                }
            }
        }
        let distinct: BTreeSet<InodeNr> = numbers.values().copied().collect();
        assert_eq!(
            distinct.len(),
            numbers.len(),
            "different inodes of the model have one inode number"
        );
        for (&id, &number) in &numbers {
            self.compare_inode(fs, id, number);
        }
        numbers
    }

    /// Compares the names in a directory, and returns their inodes.
    fn compare_entries(
        &self,
        fs: &Fs,
        id: Id,
        dir: InodeNr,
        root: InodeNr,
        path: &str,
    ) -> Vec<(Id, InodeNr, String)> {
        let entries = self.node(id).entries().unwrap();
        let mut found = BTreeMap::new();
        for mut entry in fs.read_dir(dir).unwrap() {
            if self.rules.ignores_case {
                entry.name.make_ascii_lowercase();
            }
            let is_own = matches!(entry.name.as_slice(), b"." | b"..");
            if is_own || (dir == root && entry.name == b"lost+found") {
                continue;
            }
            let twice = found.insert(entry.name.clone(), entry);
            assert!(twice.is_none(), "{path}: listed twice: {twice:?}");
        }
        let names = |names: Vec<&Vec<u8>>| -> Vec<String> {
            let shown = names
                .into_iter()
                .map(|name| name.escape_ascii().to_string());
            shown.collect()
        };
        assert_eq!(
            names(found.keys().collect()),
            names(entries.keys().collect()),
            "names in {path}/"
        );
        let mut children = Vec::new();
        for (name, &child) in entries {
            let entry = &found[name];
            let shown = name.escape_ascii().to_string();
            assert_eq!(fs.lookup(dir, name).unwrap(), entry.inode, "{path}/{shown}");
            if let Some(file_type) = entry.file_type {
                assert_eq!(file_type, self.node(child).file_type(), "{path}/{shown}");
            }
            if self.node(child).is_dir() {
                assert_eq!(
                    fs.lookup(entry.inode, b"..").unwrap(),
                    dir,
                    "{path}/{shown}/.."
                );
            }
            children.push((child, entry.inode, shown));
        }
        children
    }

    /// Compares an inode with the model.
    pub(crate) fn compare_inode(&self, fs: &Fs, id: Id, number: InodeNr) {
        let node = self.node(id);
        let stat = fs
            .stat(number)
            .unwrap_or_else(|error| panic!("{id:?}, {number}: {error}"));
        let what = format!("{id:?}, inode {number}");
        assert_eq!(stat.file_type, node.file_type(), "{what}");
        assert_eq!(u32::from(stat.links), node.links, "links of {what}");
        let permissions = stat.mode.0 & 0o7777;
        assert_eq!(
            permissions, node.permissions,
            "permissions of {what}, octal {permissions:o}"
        );
        assert_eq!(
            (stat.uid, stat.gid),
            (node.uid, node.gid),
            "owner of {what}"
        );
        assert_eq!(stat.project_id, node.project, "project of {what}");
        assert_eq!(stat.flags & Self::FLAGS, node.flags, "flags of {what}");
        let times = [
            (node.atime, stat.atime, "atime"),
            (node.mtime, stat.mtime, "mtime"),
        ];
        for (expected, found, name) in times {
            if let Some(expected) = expected {
                assert_eq!(found.seconds(), expected, "{name} of {what}");
            }
        }
        let xattrs = fs.xattrs(number).unwrap().into_iter();
        let xattrs: BTreeMap<_, _> = xattrs.map(|xattr| (xattr.name, xattr.value)).collect();
        assert_eq!(xattrs, node.all_xattrs(), "attributes of {what}");
        match &node.kind {
            Kind::File(content) => compare_file(fs, &stat, content),
            Kind::Symlink(target) => assert_eq!(fs.read_link(number).unwrap(), *target, "{what}"),
            Kind::Device(_, major, minor) => {
                let device = stat.device.map(|device| (device.major, device.minor));
                assert_eq!(device, Some((*major, *minor)), "{what}");
            }
            Kind::Directory { .. } | Kind::Endpoint(_) => {}
        }
    }
}

/// Compares size, data and mapping of a file.
fn compare_file(fs: &Fs, stat: &Stat, content: &Content) {
    let number = stat.inode;
    assert_eq!(stat.file_type, FileType::Regular);
    assert_eq!(stat.size_bytes, content.size(), "size of {number}");
    let mut data = Vec::new();
    let mut at = 0;
    while let Some(start) = fs.seek(number, at, Seek::Data).unwrap() {
        assert!(start >= at, "{number}: SEEK_DATA from {at} returns {start}");
        at = fs.seek(number, start, Seek::Hole).unwrap().unwrap();
        assert!(at > start, "{number}: data from {start} to {at}");
        data.push(start..at);
    }
    compare_extents(fs, stat, &data);
    let read = |offset, bytes: &mut [u8]| {
        let read = fs.read_at(number, bytes, offset).unwrap();
        assert_eq!(read, bytes.len(), "{number} at {offset}");
    };
    compare_content(&format!("inode {number}"), content, &data, read);
    let mut behind = [0];
    assert_eq!(fs.read_at(number, &mut behind, content.size()).unwrap(), 0);
}

/// Checks that extents are in order, that the written ones are the data, and that `i_blocks`
/// includes them.
fn compare_extents(fs: &Fs, stat: &Stat, data: &[Range<u64>]) {
    let number = stat.inode;
    let block_bytes = fs.geometry().block_size().bytes() as u64;
    let extents = fs.extents(number).unwrap();
    let (mut end, mut blocks) = (0, 0);
    let mut written: Vec<Range<u64>> = Vec::new();
    for extent in &extents {
        let start = u64::from(extent.logical.0) * block_bytes;
        assert!(start >= end, "{number}: {extents:?}");
        end = start + u64::from(extent.blocks) * block_bytes;
        blocks += u64::from(extent.blocks);
        let shown = start.min(stat.size_bytes)..end.min(stat.size_bytes);
        if extent.state != ExtentState::Written || shown.is_empty() {
            continue;
        }
        match written.last_mut() {
            Some(last) if last.end == shown.start => last.end = shown.end,
            _ => written.push(shown),
        }
    }
    if !stat.flags.contains(InodeFlags::INLINE_DATA_FL) {
        assert_eq!(written, data, "{number}: extents and SEEK_DATA");
    }
    assert!(
        stat.sectors * 512 >= blocks * block_bytes,
        "{number}: {} sectors, {blocks} blocks",
        stat.sectors
    );
}

/// Reads the data ranges, and the edges of holes, and compares them with the model.
pub(super) fn compare_content(
    what: &str,
    content: &Content,
    data: &[Range<u64>],
    mut read: impl FnMut(u64, &mut [u8]),
) {
    let mut holes = Vec::new();
    let mut end = 0;
    for range in data {
        holes.push(end..range.start);
        end = range.end;
    }
    holes.push(end..content.size());
    holes.retain(|hole| !hole.is_empty());
    for run in content.runs() {
        let is_hidden = |hole: &&Range<u64>| hole.start < run.end && run.start < hole.end;
        let hidden = holes.iter().find(is_hidden);
        assert!(
            hidden.is_none(),
            "{what}: {run:?} was written, but {hidden:?} is a hole"
        );
    }
    let edges = holes.iter().flat_map(|hole| {
        let len = (hole.end - hole.start).min(4096);
        [hole.start..hole.start + len, hole.end - len..hole.end]
    });
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for range in data.iter().cloned().chain(edges) {
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from((range.end - at).min(PIECE_BYTES)).unwrap();
            bytes.resize(len, 0xee);
            expected.resize(len, 0);
            read(at, &mut bytes);
            content.fill(at, &mut expected);
            if let Some(place) = bytes.iter().zip(&expected).position(|(a, b)| a != b) {
                panic!(
                    "{what}: byte {} is {}, not {}",
                    at + place as u64,
                    bytes[place],
                    expected[place]
                );
            }
            at += len as u64;
        }
    }
}
