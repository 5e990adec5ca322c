//! A file system in memory, to which the same operations are done.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fourscore::{Error, Follow, Fs, InodeNr, NewAttributes, Replace, SetXattr};

/// Numbers from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What is in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Directory,
    File(usize),
    Symlink(Vec<u8>),
}

/// Paths and contents.
#[derive(Default)]
pub(crate) struct Model {
    /// By path, without a slash at either end; the root is not in it.
    nodes: BTreeMap<Vec<u8>, Node>,
    /// Contents by number; files with several names share one.
    contents: Vec<Vec<u8>>,
    /// Extended attributes of the same files.
    attributes: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
}

const NEW: NewAttributes = NewAttributes {
    permissions: 0o750,
    umask: 0,
    uid: 1000,
    gid: 100,
};

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

impl Model {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn pick(&self, random: &mut Random, want: impl Fn(&Node) -> bool) -> Option<Vec<u8>> {
        let fit: Vec<_> = self.nodes.iter().filter(|(_, node)| want(node)).collect();
        let index = random.below(fit.len().max(1) as u64);
        fit.get(usize::try_from(index).unwrap())
            .map(|(path, _)| (*path).clone())
    }

    fn new_path(&self, random: &mut Random) -> Vec<u8> {
        let dir = self
            .pick(random, |node| *node == Node::Directory)
            .filter(|_| random.below(4) > 0)
            .unwrap_or_default();
        let longest = if random.below(4) == 0 { 250 } else { 20 };
        let len = 1 + random.below(longest);
        let number = random.below(1_000_000).to_string();
        let mut name = number.into_bytes();
        name.resize(usize::try_from(len).unwrap().max(name.len()), b'n');
        if dir.is_empty() {
            name
        } else {
            [&dir[..], b"/", &name].concat()
        }
    }

    fn is_empty_dir(&self, path: &[u8]) -> bool {
        let below = [path, b"/"].concat();
        !self.nodes.keys().any(|other| other.starts_with(&below))
    }

    /// Does something to both.
    pub(crate) fn step(&mut self, fs: &Fs, random: &mut Random) {
        let dir_of = |path: &[u8]| fs.resolve(split(path).0, Follow::No).unwrap();
        let inode_of = |path: &[u8]| fs.resolve(path, Follow::No).unwrap();
        let path = self.new_path(random);
        let (dir, name) = (dir_of(&path), split(&path).1);
        match random.below(23) {
            0..=5 => {
                let made = fs.create(dir, name, &NEW);
                if self.nodes.contains_key(&path) {
                    assert!(matches!(made, Err(Error::Exists)), "{made:?}");
                } else {
                    made.unwrap();
                    self.contents.push(Vec::new());
                    self.attributes.push(BTreeMap::new());
                    let number = self.contents.len() - 1;
                    self.nodes.insert(path, Node::File(number));
                }
            }
            6 if !self.nodes.contains_key(&path) => {
                fs.mkdir(dir, name, &NEW).unwrap();
                self.nodes.insert(path, Node::Directory);
            }
            7 if !self.nodes.contains_key(&path) => {
                let len = usize::try_from(1 + random.below(500)).unwrap();
                fs.symlink(dir, name, &vec![b't'; len], &NEW).unwrap();
                self.nodes.insert(path, Node::Symlink(vec![b't'; len]));
            }
            8..=12 => self.write(fs, random),
            13 => self.truncate(fs, random),
            20..=22 => self.change_attribute(fs, random),
            14 => {
                let is_file = |node: &Node| matches!(node, Node::File(_));
                if let Some(old) = self.pick(random, is_file)
                    && !self.nodes.contains_key(&path)
                {
                    fs.link(inode_of(&old), dir, name).unwrap();
                    self.nodes.insert(path, self.nodes[&old].clone());
                }
            }
            15..=16 => {
                if let Some(old) = self.pick(random, |node| *node != Node::Directory) {
                    fs.unlink(dir_of(&old), split(&old).1).unwrap();
                    self.nodes.remove(&old);
                }
            }
            17 => {
                if let Some(old) = self.pick(random, |node| *node == Node::Directory) {
                    let removed = fs.rmdir(dir_of(&old), split(&old).1);
                    if self.is_empty_dir(&old) {
                        removed.unwrap();
                        self.nodes.remove(&old);
                    } else {
                        assert!(matches!(removed, Err(Error::NotEmpty)), "{removed:?}");
                    }
                }
            }
            _ => self.rename(fs, random, path),
        }
    }

    fn write(&mut self, fs: &Fs, random: &mut Random) {
        let Some(path) = self.pick(random, |node| matches!(node, Node::File(_))) else {
            return;
        };
        let Node::File(number) = self.nodes[&path] else {
            return;
        };
        let content = &mut self.contents[number];
        let far = if random.below(8) == 0 {
            3_000_000
        } else {
            40_000
        };
        let offset = usize::try_from(random.below(far)).unwrap();
        let len = usize::try_from(1 + random.below(30_000)).unwrap();
        let byte = u8::try_from(1 + random.below(255)).unwrap();
        let inode = fs.resolve(&path, Follow::No).unwrap();
        fs.write_at(inode, &vec![byte; len], offset as u64).unwrap();
        let end = offset + len;
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset..end].fill(byte);
    }

    fn truncate(&mut self, fs: &Fs, random: &mut Random) {
        let Some(path) = self.pick(random, |node| matches!(node, Node::File(_))) else {
            return;
        };
        let Node::File(number) = self.nodes[&path] else {
            return;
        };
        let size = random.below(100_000);
        fs.truncate(fs.resolve(&path, Follow::No).unwrap(), size)
            .unwrap();
        self.contents[number].resize(usize::try_from(size).unwrap(), 0);
    }

    fn change_attribute(&mut self, fs: &Fs, random: &mut Random) {
        let Some(path) = self.pick(random, |node| matches!(node, Node::File(_))) else {
            return;
        };
        let Node::File(number) = self.nodes[&path] else {
            return;
        };
        let inode = fs.resolve(&path, Follow::No).unwrap();
        let attributes = &mut self.attributes[number];
        let name = format!("user.{}", random.below(6)).into_bytes();
        if random.below(3) == 0 {
            let removed = fs.remove_xattr(inode, &name);
            match attributes.remove(&name) {
                Some(_) => removed.unwrap(),
                None => assert!(matches!(removed, Err(Error::NoAttribute)), "{removed:?}"),
            }
            return;
        }
        let len = usize::try_from(random.below(400)).unwrap();
        let value = vec![u8::try_from(random.below(256)).unwrap(); len];
        match fs.set_xattr(inode, &name, &value, SetXattr::Any) {
            Ok(()) => drop(attributes.insert(name, value)),
            Err(Error::NoSpace) => {
                let taken: usize = attributes.values().map(Vec::len).sum();
                assert!(taken + len > 600, "{len} bytes do not fit beside {taken}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn rename(&mut self, fs: &Fs, random: &mut Random, fresh: Vec<u8>) {
        let Some(old) = self.pick(random, |_| true) else {
            return;
        };
        let to = match random.below(3) {
            0 => self.pick(random, |_| true).unwrap_or(fresh),
            _ => fresh,
        };
        let dir_of = |path: &[u8]| fs.resolve(split(path).0, Follow::No).unwrap();
        let from = (dir_of(&old), split(&old).1);
        let renamed = fs.rename(from, (dir_of(&to), split(&to).1), Replace::Yes);
        let below = [&old[..], b"/"].concat();
        let moved = self.nodes[&old].clone();
        let is_dir = moved == Node::Directory;
        if is_dir && to.starts_with(&below) {
            assert!(
                matches!(renamed, Err(Error::InvalidArgument(_))),
                "{renamed:?}"
            );
            return;
        }
        match self.nodes.get(&to) {
            _ if to == old => return renamed.unwrap(),
            Some(victim) if *victim == moved && !is_dir && matches!(moved, Node::File(_)) => {
                // Two names of one file: nothing happens.
                return renamed.unwrap();
            }
            Some(Node::Directory) if !is_dir => {
                assert!(matches!(renamed, Err(Error::IsADirectory)), "{renamed:?}");
                return;
            }
            Some(Node::Directory) if !self.is_empty_dir(&to) => {
                assert!(matches!(renamed, Err(Error::NotEmpty)), "{renamed:?}");
                return;
            }
            Some(Node::File(_) | Node::Symlink(_)) if is_dir => {
                assert!(matches!(renamed, Err(Error::NotADirectory)), "{renamed:?}");
                return;
            }
            _ => {}
        }
        renamed.unwrap();
        let all: Vec<_> = self
            .nodes
            .range(old.clone()..)
            .map(|(path, _)| path.clone())
            .filter(|path| *path == old || path.starts_with(&below))
            .collect();
        for path in all {
            let node = self.nodes.remove(&path).unwrap();
            self.nodes
                .insert([&to[..], &path[old.len()..]].concat(), node);
        }
    }

    /// Holds the file system against the model.
    pub(crate) fn compare(&self, fs: &Fs) {
        for (path, node) in &self.nodes {
            let shown = String::from_utf8_lossy(path);
            let inode = fs.resolve(path, Follow::No);
            let inode = inode.unwrap_or_else(|error| panic!("{shown}: {error}"));
            match node {
                Node::Directory => {}
                Node::Symlink(target) => assert_eq!(fs.read_link(inode).unwrap(), *target),
                Node::File(number) => {
                    let expected = &self.contents[*number];
                    assert_eq!(fs.stat(inode).unwrap().size_bytes, expected.len() as u64);
                    let mut found = vec![0; expected.len()];
                    fs.read_at(inode, &mut found, 0).unwrap();
                    assert!(found == *expected, "{shown}: content");
                    let found = fs.xattrs(inode).unwrap().into_iter();
                    let found: BTreeMap<_, _> = found.map(|it| (it.name, it.value)).collect();
                    assert_eq!(found, self.attributes[*number], "{shown}: attributes");
                }
            }
        }
        assert_eq!(
            count(fs, InodeNr::ROOT),
            self.nodes.len() + 1,
            "with lost+found"
        );
    }

    /// Holds a tree of the host against the model.
    pub(crate) fn compare_with_host(&self, root: &Path) {
        for (path, node) in &self.nodes {
            let at = root.join(OsStr::from_bytes(path));
            match node {
                Node::Directory => assert!(at.is_dir()),
                Node::Symlink(target) => {
                    let found = std::fs::read_link(&at).unwrap();
                    assert_eq!(found.as_os_str().as_bytes(), target);
                }
                Node::File(number) => {
                    assert!(std::fs::read(&at).unwrap() == self.contents[*number]);
                    for (name, expected) in &self.attributes[*number] {
                        let mut value = vec![0; expected.len() + 1];
                        let name = OsStr::from_bytes(name);
                        let len = rustix::fs::lgetxattr(&at, name, &mut value[..]).unwrap();
                        assert_eq!(value[..len], expected[..], "{at:?}: {name:?}");
                    }
                }
            }
        }
    }
}

/// The entries below a directory.
fn count(fs: &Fs, dir: InodeNr) -> usize {
    let mut entries = Vec::new();
    fs.for_each_entry(dir, |entry| {
        if !matches!(entry.name, b"." | b"..") {
            entries.push(entry.to_owned());
        }
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let below = entries
        .iter()
        .filter(|entry| fs.stat(entry.inode).unwrap().file_type == fourscore::FileType::Directory);
    entries.len() + below.map(|entry| count(fs, entry.inode)).sum::<usize>()
}
