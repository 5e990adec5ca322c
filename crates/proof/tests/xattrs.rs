//! Extended attributes and access control lists: the same operations done by us on one image and by
//! the kernel on its twin, with the same results and errors; e2fsck looks at both.
//!
//! A binary of its own, because it sets the umask of its process, which the kernel applies to files
//! that other tests would create meanwhile.

#[allow(dead_code, reason = "it needs a part of it")]
#[path = "it/common/mod.rs"]
mod common;
#[path = "it/outcome/mod.rs"]
mod outcome;

use fourscore::{AttributeChange, Error, FileType, Follow, Fs, InodeNr, NewAttributes, SetXattr};
use fourscore_ondisk::inode::DeviceNr;
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, dumpe2fs_header};
use rustix::fs::XattrFlags;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use outcome::{errno, ours, theirs};

use common::{
    PLAIN, image_of_inodes, mount, open, require_e2fsprogs, require_kernel, unmount_clean,
};

/// The umask of created files, for us and for this process.
const UMASK: u16 = 0o027;

fn image(block_size: u32, inode_size: u16) -> Image {
    image_of_inodes(block_size, inode_size, &[])
}

/// Two file systems, to which the same operations are applied.
struct Twins {
    fs: Arc<Fs>,
    root: PathBuf,
    /// Existing paths, by type.
    paths: Vec<(String, FileType)>,
}

impl Twins {
    fn inode(&self, path: &str) -> InodeNr {
        self.fs.resolve(path.as_bytes(), Follow::No).unwrap()
    }

    fn pick(&self, random: &mut Rng) -> (String, FileType) {
        random.pick(&self.paths).clone()
    }

    /// Creates a file or a directory in a directory.
    fn make(&mut self, random: &mut Rng) {
        let dirs = self
            .paths
            .iter()
            .filter(|(_, kind)| *kind == FileType::Directory);
        let dirs = dirs.map(|(path, _)| path.clone()).collect::<Vec<_>>();
        let parent = random.pick(&dirs).clone();
        let name = format!("n{}", random.below(1_000_000));
        let path = format!("{parent}/{name}");
        let (dir, at) = (self.inode(&parent), self.root.join(&path));
        if at.symlink_metadata().is_ok() {
            return;
        }
        let permissions = u16::try_from(random.below(0o1000)).unwrap();
        let new = PLAIN.permissions(permissions).umask(UMASK);
        let name = name.as_bytes();
        let (kind, made, expected) = match random.below(4) {
            0 if self.paths.len() < 60 => {
                use std::os::unix::fs::DirBuilderExt;
                let made = std::fs::DirBuilder::new()
                    .mode(permissions.into())
                    .create(&at);
                let kind = FileType::Directory;
                (kind, self.fs.mkdir(dir, name, &new), theirs(made))
            }
            1 => {
                let made = std::os::unix::fs::symlink("target", &at);
                let kind = FileType::Symlink;
                (
                    kind,
                    self.fs.symlink(dir, name, b"target", &OWNER_OF_LINK),
                    theirs(made),
                )
            }
            2 => {
                let (kind, device) = (FileType::Fifo, DeviceNr { major: 0, minor: 0 });
                let made = rustix::fs::mknodat(
                    rustix::fs::CWD,
                    &at,
                    rustix::fs::FileType::Fifo,
                    rustix::fs::Mode::from_raw_mode(permissions.into()),
                    0,
                );
                (
                    kind,
                    self.fs.mknod(dir, name, kind, device, &new),
                    errno(made),
                )
            }
            _ => {
                let made = std::fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(permissions.into())
                    .open(&at);
                (
                    FileType::Regular,
                    self.fs.create(dir, name, &new),
                    theirs(made),
                )
            }
        };
        assert_eq!(ours(made), expected, "{path}");
        self.paths.push((path, kind));
    }

    fn set_or_remove(&self, random: &mut Rng, block_size: usize) {
        let (path, _) = self.pick(random);
        let (inode, at) = (self.inode(&path), self.root.join(&path));
        let name = name(random);
        let host_name = OsStr::from_bytes(&name);
        if random.below(4) == 0 {
            let removed = ours(self.fs.remove_xattr(inode, &name));
            let expected = errno(rustix::fs::lremovexattr(&at, host_name));
            assert_eq!(removed, expected, "removing {host_name:?} of {path}");
            return;
        }
        let mut value = value(&name, random, block_size);
        if self.fs.stat(inode).unwrap().file_type == FileType::Symlink
            && !name.starts_with(b"system.")
        {
            // Because of the space of a value in an inode of its own, e2fsck believes that the
            // target has blocks, whether we or the kernel stored the value.
            value.truncate(40);
        }
        let (how, flags) = match random.below(6) {
            0 => (SetXattr::Create, XattrFlags::CREATE),
            1 => (SetXattr::Replace, XattrFlags::REPLACE),
            _ => (SetXattr::Any, XattrFlags::empty()),
        };
        let set = ours(self.fs.set_xattr(inode, &name, &value, how));
        let expected = errno(rustix::fs::lsetxattr(&at, host_name, &value, flags));
        let len = value.len();
        assert_eq!(
            set, expected,
            "setting {host_name:?} of {path} to {len} bytes, {how:?}"
        );
    }

    fn chmod_or_chown(&self, random: &mut Rng) {
        let (path, kind) = self.pick(random);
        let (inode, at) = (self.inode(&path), self.root.join(&path));
        let mut change = AttributeChange::default();
        if random.below(2) == 0 && kind != FileType::Symlink {
            let permissions = u16::try_from(random.below(0o10000)).unwrap();
            change.permissions = Some(permissions);
            let mode = std::fs::Permissions::from_mode(permissions.into());
            std::fs::set_permissions(&at, mode).unwrap();
        } else {
            change.gid = Some(u32::try_from(random.below(70_000)).unwrap());
            std::os::unix::fs::lchown(&at, None, change.gid).unwrap();
        }
        self.fs.set_attributes(inode, &change).unwrap();
    }

    fn unlink(&mut self, random: &mut Rng) {
        let (path, kind) = self.pick(random);
        if kind == FileType::Directory {
            return;
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
        self.fs.unlink(self.inode(parent), name.as_bytes()).unwrap();
        std::fs::remove_file(self.root.join(&path)).unwrap();
        self.paths.retain(|(other, _)| *other != path);
    }

    fn compare(&self) {
        for (path, _) in &self.paths {
            let inode = self.inode(path);
            let host = self.root.join(path);
            assert_eq!(
                attributes(&self.fs, inode),
                host_attributes(&host),
                "{path}"
            );
            let (stat, meta) = (
                self.fs.stat(inode).unwrap(),
                host.symlink_metadata().unwrap(),
            );
            let found = (u32::from(stat.mode.0), stat.uid, stat.gid, stat.sectors);
            let expected = (meta.mode(), meta.uid(), meta.gid(), meta.blocks());
            assert_eq!(found, expected, "{path}");
        }
    }
}

const OWNER_OF_LINK: NewAttributes = PLAIN.permissions(0o777);

type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

fn attributes(fs: &Fs, inode: InodeNr) -> Attributes {
    let found = fs.xattrs(inode).unwrap().into_iter();
    found.map(|xattr| (xattr.name, xattr.value)).collect()
}

fn host_attributes(path: &Path) -> Attributes {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let name = OsStr::from_bytes(name);
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(len);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

fn name(random: &mut Rng) -> Vec<u8> {
    let number = random.below(5);
    match random.below(20) {
        0..=8 => format!("user.{number}"),
        9..=10 => format!("trusted.{number}"),
        11 => "security.test".into(),
        12 => "security.capability".into(),
        13..=15 => "system.posix_acl_access".into(),
        16..=17 => "system.posix_acl_default".into(),
        18 => match number {
            0 => "user.".into(),
            1 => "trusted.".into(),
            2 => "other.name".into(),
            3 => "system.data".into(),
            _ => String::new(),
        },
        _ => format!("user.{}", "n".repeat(240 + random.below(20))),
    }
    .into_bytes()
}

fn value(name: &[u8], random: &mut Rng, block_size: usize) -> Vec<u8> {
    if name.starts_with(b"system.posix_acl") {
        return acl(random);
    }
    if name == b"security.capability" {
        return [&[0, 0, 0, 2][..], &[4; 16]].concat();
    }
    let len = match random.below(20) {
        0 => 0,
        1 => block_size,
        2 => 65_537,
        3..=6 => random.below(block_size),
        7..=9 => random.below(block_size / 3),
        _ => random.below(120),
    };
    let byte = u8::try_from(random.below(4)).unwrap();
    vec![byte; len]
}

/// A list in the form of the system calls; some are broken.
fn acl(random: &mut Rng) -> Vec<u8> {
    let mut out = 2_u32.to_le_bytes().to_vec();
    let mut put = |tag: u16, id: u32, random: &mut Rng| {
        let permissions = u16::try_from(random.below(8)).unwrap();
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    };
    const NO_ID: u32 = u32::MAX;
    put(1, NO_ID, random);
    let users = random.below(3);
    for user in 0..users {
        put(2, 1000 + u32::try_from(user).unwrap(), random);
    }
    put(4, NO_ID, random);
    let groups = random.below(3);
    for group in 0..groups {
        put(8, 2000 + u32::try_from(group).unwrap(), random);
    }
    if users + groups > 0 || random.below(3) == 0 {
        put(16, NO_ID, random);
    }
    put(32, NO_ID, random);
    match random.below(16) {
        0 => out.truncate(out.len() - 8),
        1 => out.truncate(out.len() - 3),
        2 => out[0] = 3,
        3 => out[4] = 3,
        4 => out[6] = 9,
        5 => out.truncate(4),
        6 => out.clear(),
        7 if users > 0 => out[16..20].fill(255),
        _ => {}
    }
    out
}

#[test]
fn the_kernel_does_the_same_on_its_twin() {
    require_kernel!();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK.into()));
    let sizes: [(u32, u16, &[&str]); 9] = [
        (1024, 128, &[]),
        (1024, 256, &[]),
        (1024, 1024, &[]),
        (4096, 128, &[]),
        (4096, 256, &[]),
        (4096, 1024, &[]),
        (1024, 256, &["ea_inode"]),
        (4096, 256, &["ea_inode", "^metadata_csum"]),
        (1024, 512, &["ea_inode", "inline_data"]),
    ];
    for (seed, (block_size, inode_size, features)) in (1..).zip(sizes) {
        let make = || image_of_inodes(block_size, inode_size, features);
        let (own, twin) = (make(), make());
        let mut random = Rng::new(seed);
        let mut paths = vec![(".".to_owned(), FileType::Directory)];
        // The kernel continues with the image that we left, and the other way round.
        for (ours, kernels) in [(&own, &twin), (&twin, &own)] {
            let kernel = KernelMount::new(kernels.path(), Access::ReadWrite, "").unwrap();
            let mut twins = Twins {
                fs: mount(ours),
                root: kernel.path().to_owned(),
                paths,
            };
            twins.compare();
            for _ in 0..1500 {
                match random.below(12) {
                    0..=1 => twins.make(&mut random),
                    2 if twins.paths.len() > 20 => twins.unlink(&mut random),
                    3 => twins.chmod_or_chown(&mut random),
                    _ => twins.set_or_remove(&mut random, block_size as usize),
                }
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

/// Files that share what their attributes are stored in.
struct Sharers(Image);

impl Sharers {
    const FILES: u32 = 40;

    fn name(number: u32) -> String {
        format!("file {number}")
    }

    /// Has the kernel make the files. `give` gives each its attributes.
    fn of_kernel(image: Image, give: impl Fn(&Path)) -> Self {
        let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
        for number in 0..Self::FILES {
            let at = kernel.path().join(Self::name(number));
            std::fs::write(&at, b"").unwrap();
            give(&at);
        }
        drop(kernel);
        Self(image)
    }

    /// Calls `change` for each file, four at once: inodes with different locks change what they
    /// share. Each file has a turn from 0 to 3.
    fn change(&self, fs: &Fs, change: impl Fn(InodeNr, &str, u32) + Sync) {
        thread::scope(|scope| {
            for part in 0..4 {
                let change = &change;
                scope.spawn(move || {
                    for number in (part..Self::FILES).step_by(4) {
                        let name = Self::name(number);
                        let inode = fs.lookup(InodeNr::ROOT, name.as_bytes()).unwrap();
                        change(inode, &name, number / 4 % 4);
                    }
                });
            }
        });
    }

    /// Calls `check` for each file but those of turn 0, which are gone, and removes it.
    fn check_and_remove(&self, fs: &Fs, check: impl Fn(InodeNr, &str, u32)) {
        for number in 0..Self::FILES {
            let name = Self::name(number);
            let turn = number / 4 % 4;
            match fs.lookup(InodeNr::ROOT, name.as_bytes()) {
                Ok(inode) => check(inode, &name, turn),
                Err(_) => {
                    assert_eq!(turn, 0);
                    continue;
                }
            }
            fs.unlink(InodeNr::ROOT, name.as_bytes()).unwrap();
        }
        fs.sync().unwrap();
    }
}

#[test]
fn blocks_that_inodes_share_are_divided_and_go_with_their_last_user() {
    require_kernel!();
    let sharers = Sharers::of_kernel(image(1024, 128), |at| {
        let flags = XattrFlags::empty();
        rustix::fs::lsetxattr(at, "user.same", b"for all of them", flags).unwrap();
    });
    let fs = mount(&sharers.0);
    let free = fs.statfs().unwrap().free_blocks;
    sharers.change(&fs, |inode, name, turn| match turn {
        0 => fs.unlink(InodeNr::ROOT, name.as_bytes()).unwrap(),
        1 => fs.remove_xattr(inode, b"user.same").unwrap(),
        2 => fs
            .set_xattr(inode, b"user.own", name.as_bytes(), SetXattr::Create)
            .unwrap(),
        _ => {}
    });
    fs.sync().unwrap();
    unmount_clean(fs, &sharers.0);
    let fs = mount(&sharers.0);
    sharers.check_and_remove(&fs, |inode, name, turn| {
        let same = (b"user.same".to_vec(), b"for all of them".to_vec());
        let own = (b"user.own".to_vec(), name.as_bytes().to_vec());
        let expected: Attributes = match turn {
            1 => Attributes::new(),
            2 => [same, own].into(),
            _ => [same].into(),
        };
        assert_eq!(attributes(&fs, inode), expected, "{name}");
    });
    unmount_clean(fs, &sharers.0);
    let free_now = open(&sharers.0).statfs().unwrap().free_blocks;
    assert_eq!(free_now, free + 1, "the block that all shared");
}

#[test]
fn readers_miss_nothing_while_attributes_move_between_inode_and_block() {
    require_e2fsprogs!();
    let image = image(1024, 256);
    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
    fs.set_xattr(file, b"user.kept", &[1; 300], SetXattr::Any)
        .unwrap();
    fs.set_xattr(file, b"user.moves", &[0; 8], SetXattr::Any)
        .unwrap();
    let done = fourscore_sync::atomic::AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while done.load(fourscore_sync::atomic::Ordering::Acquire) == 0 {
                    let all = attributes(&fs, file);
                    assert_eq!(all.len(), 2);
                    let value = fs.xattr(file, b"user.moves").unwrap();
                    assert!(value.len() == 8 || value.len() == 200, "{}", value.len());
                    assert_eq!(fs.xattr(file, b"user.kept").unwrap(), [1; 300]);
                }
            });
        }
        for turn in 0..2000_u32 {
            let len = if turn % 2 == 0 { 200 } else { 8 };
            fs.set_xattr(file, b"user.moves", &vec![0; len], SetXattr::Replace)
                .unwrap();
        }
        done.store(1, fourscore_sync::atomic::Ordering::Release);
    });
    unmount_clean(fs, &image);
}

#[test]
fn nothing_is_changed_by_what_is_refused() {
    require_e2fsprogs!();
    let image = image(1024, 256);
    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
    fs.set_xattr(file, b"user.a", b"value", SetXattr::Create)
        .unwrap();
    let before = fs.stat(file).unwrap();
    let refused = [
        (&b"user.a"[..], 5, SetXattr::Create, 17),
        (b"user.b", 5, SetXattr::Replace, 61),
        (b"user.b", 1100, SetXattr::Any, 28),
        (b"user.b", 65_537, SetXattr::Any, 7),
        (b"", 1, SetXattr::Any, 34),
        (b"user.", 1, SetXattr::Any, 22),
        (b"nothing.known", 1, SetXattr::Any, 95),
        (b"system.posix_acl_default", 28, SetXattr::Any, 95),
    ];
    for (name, len, how, errno) in refused {
        let set = fs.set_xattr(file, name, &vec![9; len], how);
        assert_eq!(ours(set), Err(errno), "{:?}", String::from_utf8_lossy(name));
    }
    assert!(matches!(
        fs.remove_xattr(file, b"user.b"),
        Err(Error::NoAttribute)
    ));
    // Setting the value that the attribute has already is no change either.
    fs.set_xattr(file, b"user.a", b"value", SetXattr::Any)
        .unwrap();
    assert_eq!(fs.stat(file).unwrap(), before);
    assert_eq!(fs.xattr(file, b"user.a").unwrap(), b"value");
    fs.unmount().unwrap();
    let fs = open(&image);
    assert_eq!(
        ours(fs.set_xattr(file, b"user.a", b"x", SetXattr::Any)),
        Err(30)
    );
    assert_clean(image.path());
}

#[test]
fn the_first_block_of_attributes_is_noted_in_the_superblock() {
    require_e2fsprogs!();
    let image = Image::builder(MiB(64))
        .kind("ext4")
        .features(&["^ext_attr"]);
    let image = image.make().unwrap();
    let noted = || {
        let header = dumpe2fs_header(image.path()).unwrap();
        header["Filesystem features"].contains("ext_attr")
    };
    assert!(!noted());
    let fs = mount(&image);
    for name in [b"first", b"other"] {
        let file = fs.create(InodeNr::ROOT, name, &PLAIN).unwrap();
        let value = [7; 500];
        fs.set_xattr(file, b"user.large", &value, SetXattr::Any)
            .unwrap();
        assert_eq!(fs.xattr(file, b"user.large").unwrap(), value);
    }
    fs.unmount().unwrap();
    assert!(noted());
    assert_clean(image.path());
}

/// Values that do not fit into the block of attributes are inodes, which come and go with them.
#[test]
fn large_values_have_inodes_of_their_own() {
    require_kernel!();
    let image = image_of_inodes(1024, 256, &["ea_inode"]);
    let fs = mount(&image);
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &PLAIN).unwrap();
    let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
    fs.sync().unwrap();
    let before = fs.statfs().unwrap();
    let value = |number: u32, len: usize| -> Vec<u8> {
        let bytes = (0..).map(|at: u32| (at.wrapping_mul(number + 7) >> 3).to_le_bytes()[0]);
        bytes.take(len).collect()
    };
    let lengths = [65_536, 20_000, 969, 968, 900, 800, 700];
    for (inode, (number, len)) in [dir, file]
        .into_iter()
        .flat_map(|inode| (0..).zip(lengths).map(move |value| (inode, value)))
    {
        let name = format!("user.{number}");
        let name = name.as_bytes();
        fs.set_xattr(inode, name, &value(number, len), SetXattr::Create)
            .unwrap();
        assert_eq!(fs.xattr(inode, name).unwrap(), value(number, len));
    }
    fs.sync().unwrap();
    let between = image.copy().unwrap();
    let recovered = mount(&between);
    recovered.unlink(InodeNr::ROOT, b"file").unwrap();
    recovered.rmdir(InodeNr::ROOT, b"dir").unwrap();
    unmount_clean(recovered, &between);
    // Values are replaced by other ones, by short ones, and removed.
    for number in 0..7 {
        let name = format!("user.{number}");
        let name = name.as_bytes();
        fs.set_xattr(file, name, &value(number + 50, 5000), SetXattr::Replace)
            .unwrap();
        assert_eq!(fs.xattr(file, name).unwrap(), value(number + 50, 5000));
        match number % 3 {
            0 => fs.remove_xattr(file, name).unwrap(),
            1 => fs.set_xattr(file, name, b"short", SetXattr::Any).unwrap(),
            _ => {}
        }
    }
    unmount_clean(fs, &image);
    {
        let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
        let found = host_attributes(&kernel.path().join("file"));
        let expected = [1, 2, 4, 5].map(|number| {
            let is_short = number % 3 == 1;
            let value = if is_short {
                b"short".to_vec()
            } else {
                value(number + 50, 5000)
            };
            (format!("user.{number}").into_bytes(), value)
        });
        assert_eq!(found, Attributes::from(expected));
        assert_eq!(host_attributes(&kernel.path().join("dir")).len(), 7);
    }
    let fs = mount(&image);
    for number in [1, 2, 4, 5] {
        let name = format!("user.{number}");
        fs.remove_xattr(file, name.as_bytes()).unwrap();
    }
    fs.rmdir(InodeNr::ROOT, b"dir").unwrap();
    fs.sync().unwrap();
    let after = fs.statfs().unwrap();
    assert_eq!(after.free_inodes, before.free_inodes + 1);
    // The directory had a block.
    assert_eq!(after.free_blocks, before.free_blocks + 1);
    unmount_clean(fs, &image);
}

/// For the kernel, equal values are one inode, which is freed with the last attribute that uses it.
#[test]
fn values_that_inodes_share_go_with_their_last_user() {
    require_kernel!();
    let image = image_of_inodes(1024, 256, &["ea_inode"]);
    let sharers = Sharers::of_kernel(image, |at| {
        let flags = XattrFlags::empty();
        rustix::fs::lsetxattr(at, "user.same", &[5; 3000], flags).unwrap();
        // Most of the entries are in blocks then, which are shared, too.
        rustix::fs::lsetxattr(at, "user.more", &[6; 80], flags).unwrap();
        rustix::fs::lsetxattr(at, "user.same", &[7; 3000], flags).unwrap();
    });
    let fs = mount(&sharers.0);
    sharers.change(&fs, |inode, name, turn| {
        assert_eq!(fs.xattr(inode, b"user.same").unwrap(), [7; 3000]);
        match turn {
            0 => fs.unlink(InodeNr::ROOT, name.as_bytes()).unwrap(),
            1 => fs.remove_xattr(inode, b"user.same").unwrap(),
            2 => fs
                .set_xattr(inode, b"user.same", &[8; 4000], SetXattr::Replace)
                .unwrap(),
            _ => {}
        }
    });
    unmount_clean(fs, &sharers.0);
    let fs = mount(&sharers.0);
    sharers.check_and_remove(&fs, |inode, _, turn| match turn {
        1 => assert!(fs.xattr(inode, b"user.same").is_err()),
        2 => assert_eq!(fs.xattr(inode, b"user.same").unwrap(), [8; 4000]),
        _ => assert_eq!(fs.xattr(inode, b"user.same").unwrap(), [7; 3000]),
    });
    let found = fs.statfs().unwrap();
    // The reserved inodes and lost+found.
    let inodes = fs.superblock().geometry().inodes();
    assert_eq!(inodes - found.free_inodes, 11);
    unmount_clean(fs, &sharers.0);
}

#[test]
fn readers_miss_nothing_while_values_get_other_inodes() {
    require_e2fsprogs!();
    let image = image_of_inodes(4096, 256, &["ea_inode"]);
    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
    fs.set_xattr(file, b"user.large", &[0; 10_000], SetXattr::Any)
        .unwrap();
    let done = fourscore_sync::atomic::AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while done.load(fourscore_sync::atomic::Ordering::Acquire) == 0 {
                    let value = fs.xattr(file, b"user.large").unwrap();
                    assert!(value.iter().all(|&byte| byte == value[0]));
                }
            });
        }
        for turn in 0..500_u32 {
            let value = vec![turn.to_le_bytes()[0]; 10_000];
            fs.set_xattr(file, b"user.large", &value, SetXattr::Replace)
                .unwrap();
            // The new file takes the number and the blocks of the inode that was given up.
            let other = fs.create(InodeNr::ROOT, b"other", &PLAIN).unwrap();
            fs.write_at(other, &[255; 100], 0).unwrap();
            fs.unlink(InodeNr::ROOT, b"other").unwrap();
        }
        done.store(1, fourscore_sync::atomic::Ordering::Release);
    });
    unmount_clean(fs, &image);
}
