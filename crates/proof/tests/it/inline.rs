//! Data that is kept inside inodes: the same operations are applied by us to one image and by the
//! kernel to its twin, with the same results, errors and space; e2fsck checks both.

use fourscore::{Fallocate, FileType, Follow, Fs, InodeNr, MountOptions, Replace, SetXattr};
use fourscore_block::RamDevice;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::Image;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use rustix::fs::{FallocateFlags, XattrFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::common::{
    OWNER, ROOT, host_names, image_of_inodes, mount, mount_with, names, require_e2fsprogs,
    require_kernel, unmount_clean,
};
use crate::outcome::{errno, ours, theirs};

fn is_inside(fs: &Fs, inode: InodeNr) -> bool {
    let flags = fs.stat(inode).unwrap().flags;
    flags.contains(InodeFlags::INLINE_DATA_FL)
}

/// Random numbers of 64 bits from a seed.
struct Random(Rng);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0.bits() % end
    }
}

/// The object that a path refers to.
#[derive(Clone, Copy)]
struct What {
    kind: FileType,
    /// Whether its space is compared: Linux does not let files go back into their inodes if they
    /// had blocks.
    is_measured: bool,
    /// Whether its data may change: if data moves to a block without a write (truncate, fallocate),
    /// Linux 6.18 moves it through the journal, and ignores that when it writes the block as file
    /// data. Later data is lost then.
    is_writable: bool,
}

impl What {
    fn new(kind: FileType) -> Self {
        Self {
            kind,
            is_measured: true,
            is_writable: true,
        }
    }
}

/// Two file systems, to which the same operations are applied.
struct Twins {
    fs: Arc<Fs>,
    root: PathBuf,
    paths: BTreeMap<String, What>,
}

impl Twins {
    fn inode(&self, path: &str) -> InodeNr {
        self.fs.resolve(path.as_bytes(), Follow::No).unwrap()
    }

    fn pick(&self, random: &mut Random, kind: Option<FileType>) -> Option<String> {
        let is_wanted = |what: &What| kind.is_none_or(|kind| kind == what.kind);
        let all = self.paths.iter();
        let fit: Vec<_> = all.filter(|(_, what)| is_wanted(what)).collect();
        let nth = usize::try_from(random.below(fit.len().max(1) as u64)).unwrap();
        fit.get(nth).map(|(path, _)| (*path).clone())
    }

    fn new_path(&self, random: &mut Random) -> String {
        let dir = self.pick(random, Some(FileType::Directory)).unwrap();
        let longest = if random.below(12) == 0 { 240 } else { 10 };
        let len = usize::try_from(random.below(longest)).unwrap();
        format!("{dir}/{}{}", random.below(100_000), "n".repeat(len))
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(20) {
            0..=3 => self.make(random),
            4..=8 => self.write(random),
            9..=10 => self.truncate(random),
            11..=14 => self.change_attribute(random),
            15 => self.fallocate(random),
            16..=17 => self.remove(random),
            _ => self.rename(random),
        }
    }

    fn make(&mut self, random: &mut Random) {
        let path = self.new_path(random);
        let at = self.root.join(&path);
        let (parent, name) = path.rsplit_once('/').unwrap();
        let dir = self.inode(parent);
        if random.below(3) == 0 {
            let made = ours(self.fs.mkdir(dir, name.as_bytes(), &OWNER));
            assert_eq!(made, theirs(std::fs::create_dir(&at)), "{path}");
            if made.is_ok() {
                self.paths.insert(path, What::new(FileType::Directory));
            }
        } else {
            let made = ours(self.fs.create(dir, name.as_bytes(), &OWNER));
            assert_eq!(made, theirs(File::create_new(&at)), "{path}");
            if made.is_ok() {
                self.paths.insert(path, What::new(FileType::Regular));
            }
        }
    }

    /// A file, if the one that is drawn may be written.
    fn pick_writable(&self, random: &mut Random) -> Option<String> {
        let path = self.pick(random, Some(FileType::Regular))?;
        self.paths[&path].is_writable.then_some(path)
    }

    fn write(&self, random: &mut Random) {
        let Some(path) = self.pick_writable(random) else {
            return;
        };
        let most = [60, 170, 400, 900, 6000];
        let most = most[usize::try_from(random.below(5)).unwrap()];
        let (offset, len) = (random.below(most), 1 + random.below(most));
        let byte = u8::try_from(1 + random.below(255)).unwrap();
        let data = vec![byte; usize::try_from(len).unwrap()];
        let written = ours(self.fs.write_at(self.inode(&path), &data, offset));
        let file = File::options().write(true).open(self.root.join(&path));
        let expected = theirs(file.unwrap().write_all_at(&data, offset));
        assert_eq!(written, expected, "{path}: {len} bytes at {offset}");
    }

    fn truncate(&mut self, random: &mut Random) {
        let Some(path) = self.pick_writable(random) else {
            return;
        };
        let most = [100, 400, 20_000];
        let most = most[usize::try_from(random.below(3)).unwrap()];
        let size = random.below(most);
        let inode = self.inode(&path);
        let had_blocks = !self.fs.extents(inode).unwrap().is_empty();
        let was_inside = is_inside(&self.fs, inode);
        let done = ours(self.fs.truncate(inode, size));
        let what = self.paths.get_mut(&path).unwrap();
        what.is_measured &= !had_blocks || !self.fs.extents(inode).unwrap().is_empty();
        what.is_writable = !was_inside || is_inside(&self.fs, inode);
        let file = File::options().write(true).open(self.root.join(&path));
        assert_eq!(done, theirs(file.unwrap().set_len(size)), "{path}: {size}");
    }

    fn change_attribute(&self, random: &mut Random) {
        let path = self.pick(random, None).unwrap();
        let (inode, at) = (self.inode(&path), self.root.join(&path));
        let name = format!("user.{}", random.below(4));
        if random.below(3) == 0 {
            let removed = ours(self.fs.remove_xattr(inode, name.as_bytes()));
            let expected = errno(rustix::fs::lremovexattr(&at, &*name));
            assert_eq!(removed, expected, "{path}: {name}");
            return;
        }
        let most = if random.below(4) == 0 { 1000 } else { 60 };
        let value = vec![7; usize::try_from(random.below(most)).unwrap()];
        let how = SetXattr::Any;
        let set = ours(self.fs.set_xattr(inode, name.as_bytes(), &value, how));
        let flags = XattrFlags::empty();
        let expected = errno(rustix::fs::lsetxattr(&at, &*name, &value, flags));
        assert_eq!(set, expected, "{path}: {name} of {} bytes", value.len());
    }

    fn fallocate(&mut self, random: &mut Random) {
        let Some(path) = self.pick_writable(random) else {
            return;
        };
        let inode = self.inode(&path);
        let was_inside = is_inside(&self.fs, inode);
        if !was_inside && self.fs.extents(inode).unwrap().is_empty() {
            // Linux remembers that, and does not let the file into its inode.
            return;
        }
        let kinds = if was_inside { 2 } else { 5 };
        let (what, flags) = match random.below(kinds) {
            0 => (Fallocate::Allocate, FallocateFlags::empty()),
            1 => (Fallocate::AllocateKeepSize, FallocateFlags::KEEP_SIZE),
            2 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                (Fallocate::PunchHole, flags)
            }
            3 => (Fallocate::ZeroRange, FallocateFlags::ZERO_RANGE),
            _ => (Fallocate::CollapseRange, FallocateFlags::COLLAPSE_RANGE),
        };
        let (offset, len) = (random.below(300), 1 + random.below(300));
        let done = ours(self.fs.fallocate(inode, what, offset, len));
        let file = File::options().write(true).open(self.root.join(&path));
        let expected = errno(rustix::fs::fallocate(file.unwrap(), flags, offset, len));
        assert_eq!(done, expected, "{path}: {what:?} {offset}, {len}");
        self.paths.get_mut(&path).unwrap().is_writable = !was_inside;
    }

    fn remove(&mut self, random: &mut Random) {
        let path = self.pick(random, None).unwrap();
        let Some((parent, name)) = path.rsplit_once('/') else {
            return;
        };
        let (dir, at) = (self.inode(parent), self.root.join(&path));
        let (removed, expected) = if self.paths[&path].kind == FileType::Directory {
            let removed = self.fs.rmdir(dir, name.as_bytes());
            (ours(removed), theirs(std::fs::remove_dir(at)))
        } else {
            let removed = self.fs.unlink(dir, name.as_bytes());
            (ours(removed), theirs(std::fs::remove_file(at)))
        };
        assert_eq!(removed, expected, "{path}");
        if removed.is_ok() {
            self.paths.remove(&path);
        }
    }

    fn rename(&mut self, random: &mut Random) {
        let from = self.pick(random, None).unwrap();
        let to = match random.below(3) {
            0 => self.pick(random, None).unwrap(),
            _ => self.new_path(random),
        };
        if from.starts_with(&format!("{to}/")) {
            return;
        }
        let (Some((old_dir, old)), Some((new_dir, new))) =
            (from.rsplit_once('/'), to.rsplit_once('/'))
        else {
            return;
        };
        let renamed = self.fs.rename(
            (self.inode(old_dir), old.as_bytes()),
            (self.inode(new_dir), new.as_bytes()),
            Replace::Yes,
        );
        let expected = std::fs::rename(self.root.join(&from), self.root.join(&to));
        let renamed = ours(renamed);
        assert_eq!(renamed, theirs(expected), "{from} to {to}");
        if renamed.is_err() || from == to {
            return;
        }
        let below = format!("{from}/");
        let moved = |path: &&String| **path == from || path.starts_with(&below);
        let all: Vec<_> = self.paths.keys().filter(moved).cloned().collect();
        for path in all {
            let what = self.paths.remove(&path).unwrap();
            let path = format!("{to}{}", &path[from.len()..]);
            self.paths.insert(path, what);
        }
    }

    fn compare(&self) {
        for (path, what) in &self.paths {
            let (inode, host) = (self.inode(path), self.root.join(path));
            let (stat, meta) = (
                self.fs.stat(inode).unwrap(),
                host.symlink_metadata().unwrap(),
            );
            assert_eq!(stat.links, u16::try_from(meta.nlink()).unwrap(), "{path}");
            assert_eq!(stat.size_bytes, meta.len(), "{path}");
            if what.is_measured {
                let found = shown_sectors(&self.fs, inode);
                let xattrs = self.fs.xattrs(inode).unwrap();
                assert_eq!(found, meta.blocks(), "{path}: {stat:?}, {xattrs:?}");
            }
            for xattr in self.fs.xattrs(inode).unwrap() {
                assert_eq!(host_value(&host, &xattr.name), xattr.value, "{path}");
            }
            if what.kind == FileType::Regular {
                let mut content = vec![1; usize::try_from(stat.size_bytes).unwrap()];
                self.fs.read_at(inode, &mut content, 0).unwrap();
                let expected = std::fs::read(&host).unwrap();
                let unlike = content.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(unlike, None, "{path}: {stat:?}");
            } else {
                assert_eq!(names(&self.fs, inode), host_names(&host), "{path}");
            }
        }
    }
}

/// The space as the kernel reports it: data of files in the inode counts.
fn shown_sectors(fs: &Fs, inode: InodeNr) -> u64 {
    let stat = fs.stat(inode).unwrap();
    match stat.file_type {
        FileType::Regular if is_inside(fs, inode) => stat.sectors + stat.size_bytes.div_ceil(512),
        _ => stat.sectors,
    }
}

fn host_value(path: &Path, name: &[u8]) -> Vec<u8> {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
    value.truncate(len);
    value
}

/// An empty file system that keeps small data in inodes.
fn inline_data(block_bytes: u32, inode_bytes: u16) -> (Image, Arc<Fs>) {
    let image = image_of_inodes(block_bytes, inode_bytes, &["inline_data"]);
    let fs = mount(&image);
    (image, fs)
}

#[test]
fn the_kernel_does_the_same_on_its_twin() {
    require_kernel!();
    let sizes = [(4096, 256), (1024, 256), (4096, 1024), (1024, 512)];
    for (seed, (block_size, inode_size)) in (1..).zip(sizes) {
        let make = || image_of_inodes(block_size, inode_size, &["inline_data"]);
        let (own, twin) = (make(), make());
        let mut random = Random(Rng::new(seed));
        let mut paths = BTreeMap::from([(".".to_owned(), What::new(FileType::Directory))]);
        // The kernel continues with the image that we left, and the other way round.
        for (ours, kernels) in [(&own, &twin), (&twin, &own)] {
            // The kernel forgets with the inode whether an empty file may go into its inode.
            for what in paths.values_mut() {
                what.is_measured &= what.kind == FileType::Directory;
            }
            let options = "nodelalloc";
            let kernel = KernelMount::new(kernels.path(), Access::ReadWrite, options).unwrap();
            let mut twins = Twins {
                fs: mount(ours),
                root: kernel.path().to_owned(),
                paths,
            };
            twins.compare();
            for _ in 0..1500 {
                twins.step(&mut random);
            }
            twins.compare();
            paths = twins.paths;
            twins.fs.unmount().unwrap();
            drop(kernel);
            assert_clean(ours.path());
            assert_clean(kernels.path());
        }
    }
}

/// Changes bytes behind those that lie where the map would be: neither the size nor the map
/// changes.
#[test]
fn what_is_replaced_inside_is_no_change_of_times_alone() {
    require_e2fsprogs!();
    for words in ["", "lazytime"] {
        let image = image_of_inodes(4096, 256, &["inline_data"]);
        let options = MountOptions::new().parse(words).unwrap();
        let fs = mount_with(&image, &options);
        let file = fs.create(ROOT, b"file", &OWNER).unwrap();
        fs.write_at(file, &[1; 100], 0).unwrap();
        fs.fsync(file).unwrap();
        fs.write_at(file, &[2; 10], 70).unwrap();
        fs.fdatasync(file).unwrap();
        // The state after a crash.
        let crashed = RamDevice::from_bytes(&std::fs::read(image.path()).unwrap());
        let recovered = Fs::mount(Arc::new(crashed), &MountOptions::new()).unwrap();
        let expect = |fs: &Fs, expected: &[u8]| {
            let mut found = vec![0; 101];
            let len = fs.read_at(file, &mut found, 0).unwrap();
            assert_eq!(&found[..len], expected, "{words}");
        };
        let mut expected = [1; 100];
        expected[70..80].fill(2);
        expect(&recovered, &expected);
        recovered.unmount().unwrap();
        // The next change of the inode starts from it.
        fs.write_at(file, &[3; 10], 80).unwrap();
        fs.link(file, ROOT, b"linked").unwrap();
        expected[80..90].fill(3);
        expect(&fs, &expected);
        fs.unmount().unwrap();
        expect(&mount_with(&image, &options), &expected);
        assert!(is_inside(&mount(&image), file));
        assert_clean(image.path());
    }
}

#[test]
fn files_go_in_and_out_of_their_inodes() {
    require_e2fsprogs!();
    let (image, fs) = inline_data(4096, 256);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    let content = |len| {
        let mut content = vec![0; len];
        assert_eq!(fs.read_at(file, &mut content, 0).unwrap(), len);
        content
    };
    // 256 - 128 - 32 bytes for attributes, less a magic, an entry and a terminator, and i_block.
    let most = 60 + 96 - 4 - 20 - 4;
    fs.write_at(file, &vec![b'a'; most], 0).unwrap();
    assert!(is_inside(&fs, file));
    assert_eq!(fs.stat(file).unwrap().sectors, 0);
    assert_eq!(content(most), vec![b'a'; most]);
    fs.append(file, b"b").unwrap();
    assert!(!is_inside(&fs, file));
    assert_eq!(fs.stat(file).unwrap().sectors, 8);
    assert_eq!(content(most + 1), [&vec![b'a'; most][..], b"b"].concat());
    fs.truncate(file, 0).unwrap();
    fs.write_at(file, b"again", 10).unwrap();
    assert!(is_inside(&fs, file));
    assert_eq!(content(15), [&[0; 10][..], b"again"].concat());
    fs.truncate(file, 12).unwrap();
    fs.truncate(file, 20).unwrap();
    assert!(is_inside(&fs, file));
    assert_eq!(content(20), [&[0; 10][..], b"ag", &[0; 8]].concat());
    // A size above the data that is kept, though not above the available space.
    fs.truncate(file, 61).unwrap();
    assert!(!is_inside(&fs, file));
    assert_eq!(content(61), [&[0; 10][..], b"ag", &[0; 49]].concat());
    fs.truncate(file, 0).unwrap();
    // The attribute does not fit beside the data and goes to the block.
    fs.write_at(file, &[b'c'; 128], 0).unwrap();
    fs.set_xattr(file, b"user.name", b"value", SetXattr::Any)
        .unwrap();
    assert!(is_inside(&fs, file));
    assert_eq!(fs.stat(file).unwrap().sectors, 8);
    // An attribute in the inode leaves less space for data.
    let other = fs.create(ROOT, b"other", &OWNER).unwrap();
    fs.set_xattr(other, b"user.name", b"value", SetXattr::Any)
        .unwrap();
    fs.write_at(other, &[b'c'; 60 + 40], 0).unwrap();
    assert!(is_inside(&fs, other));
    fs.write_at(other, b"cdef", 98).unwrap();
    assert!(!is_inside(&fs, other));
    for (nr, what) in [
        Fallocate::Allocate,
        Fallocate::AllocateKeepSize,
        Fallocate::PunchHole,
        Fallocate::ZeroRange,
    ]
    .into_iter()
    .enumerate()
    {
        let name = nr.to_string();
        let file = fs.create(ROOT, name.as_bytes(), &OWNER).unwrap();
        fs.write_at(file, b"small", 0).unwrap();
        assert!(is_inside(&fs, file));
        fs.fallocate(file, what, 2, 2).unwrap();
        assert!(!is_inside(&fs, file), "{what:?}");
        let mut found = [0; 5];
        fs.read_at(file, &mut found, 0).unwrap();
        let expected = if nr < 2 { b"small" } else { b"sm\0\0l" };
        assert_eq!(&found, expected, "{what:?}");
    }
    unmount_clean(fs, &image);
}

#[test]
fn directories_grow_out_of_their_inodes_into_an_index() {
    require_e2fsprogs!();
    let (image, fs) = inline_data(1024, 1024);
    let target = fs.create(ROOT, b"target", &OWNER).unwrap();
    let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    let below = fs.mkdir(dir, b"below", &OWNER).unwrap();
    assert!(is_inside(&fs, dir) && is_inside(&fs, below));
    assert_eq!(fs.stat(dir).unwrap().sectors, 0);
    let name = |number: u32| format!("{number}-{}", "n".repeat(200)).into_bytes();
    let mut inside = 0;
    for number in 0..100 {
        fs.link(target, dir, &name(number)).unwrap();
        inside += u32::from(is_inside(&fs, dir));
    }
    assert!((2..=4).contains(&inside), "{inside} names were inside");
    let flags = fs.stat(dir).unwrap().flags;
    assert!(flags.contains(InodeFlags::INDEX_FL));
    for number in 0..100 {
        assert_eq!(fs.lookup(dir, &name(number)).unwrap(), target);
    }
    assert_eq!(fs.lookup(dir, b"..").unwrap(), ROOT);
    assert_eq!(fs.lookup(below, b"..").unwrap(), dir);
    fs.rename((dir, b"below"), (ROOT, b"moved"), Replace::No)
        .unwrap();
    assert_eq!(fs.lookup(below, b"..").unwrap(), ROOT);
    unmount_clean(fs, &image);
}

#[test]
fn readers_see_all_of_what_moves_out() {
    require_e2fsprogs!();
    let (image, fs) = inline_data(4096, 256);
    let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    let kept = fs.create(dir, b"kept", &OWNER).unwrap();
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.write_at(file, &[1; 100], 0).unwrap();
    let turns = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while turns.load(Ordering::Acquire) < 300 {
                    let mut content = [0; 100];
                    let len = fs.read_at(file, &mut content, 0).unwrap();
                    assert_eq!(content[..len], [1; 100][..len]);
                    assert_eq!(fs.lookup(dir, b"kept").unwrap(), kept);
                }
            });
        }
        for turn in 0..300_u32 {
            fs.write_at(file, &[1; 3000], 0).unwrap();
            fs.truncate(file, 0).unwrap();
            fs.write_at(file, &[1; 100], 0).unwrap();
            let name = format!("a name that is rather long, number {turn}");
            fs.link(kept, dir, name.as_bytes()).unwrap();
            turns.fetch_add(1, Ordering::AcqRel);
        }
    });
    assert!(is_inside(&fs, file) && !is_inside(&fs, dir));
    unmount_clean(fs, &image);
}
