//! Test support: source trees, images of them, and comparison with the kernel's mount.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsStr};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use fourscore_build::source::{Context, Destination, Excludes, Notices, Reading, Source};
use fourscore_build::{
    BuildError, Comparison, Flow, Options, Overwrite, ReadBack, Summary, Target, Tree, build, host,
};
use fourscore_mkfs::{BlockSizeWish, Options as Format};
use fourscore_ondisk::{BlockSize, Timestamp};
use fourscore_sync::Counter;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::{scratch, tools};
use rustix::fs::{FileType, Mode, SeekFrom, XattrFlags};
use rustix::io::Errno;
use tempfile::TempDir;

/// Parses options in the syntax of mke2fs.
pub(crate) fn options(arguments: &str) -> Options {
    let mut format = Format::default();
    let mut words = arguments.split(' ');
    while let Some(option) = words.next() {
        let value = words.next().expect("a value");
        let number = || value.parse::<u32>().expect("a number");
        match option {
            "-t" => format.fs_type = Some(value.to_owned()),
            "-b" => {
                let size = BlockSize::from_log(number().trailing_zeros() - 10);
                format.block_size = Some(BlockSizeWish::Exactly(size.expect("a block size")));
            }
            "-C" => format.cluster_size_bytes = Some(number()),
            "-g" => format.blocks_per_group = Some(number()),
            "-I" => format.inode_size_bytes = Some(number()),
            "-O" => format.features = Some(value.to_owned()),
            "-E" => format.add_extended(value).expect("extended options"),
            _ => panic!("{option}"),
        }
    }
    Options {
        format,
        threads: Some(3),
        read_back: ReadBack {
            comparison: Comparison::Everything,
            ..ReadBack::default()
        },
        ..Options::new()
    }
}

/// Builds an image of a directory.
pub(crate) fn build_directory(
    options: &Options,
    source: &Path,
    image: &Path,
) -> Result<Summary, BuildError> {
    let mut tree = Tree::new();
    let scan = host::Scan::all(options.thread_count());
    host::add_directory(&mut tree, source, &scan)?;
    build(options, tree, &target(image), &|_| Flow::Continue)
}

/// The target for an image, which may be overwritten.
#[track_caller]
pub(crate) fn target(image: &Path) -> Target {
    Target::find(image, Overwrite::AnyContent).expect("not busy")
}

/// File system options, and a directory for the image.
pub(crate) struct Case {
    pub(crate) options: Options,
    /// Directory for spooled data of archives.
    pub(crate) scratch: PathBuf,
    form: String,
    folder: TempDir,
}

impl Case {
    pub(crate) fn new(form: &str) -> Self {
        let folder = scratch::folder().expect("a folder");
        Self {
            options: options(form),
            scratch: folder.path().to_owned(),
            form: form.to_owned(),
            folder,
        }
    }

    /// Path of the image.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    pub(crate) fn build(&self, source: &Path) -> Result<Summary, BuildError> {
        build_directory(&self.options, source, &self.image())
    }

    /// Builds and runs e2fsck; returns the path of the image.
    #[track_caller]
    pub(crate) fn image_of(&self, source: &Path) -> PathBuf {
        self.check_unmounted(source);
        self.image()
    }

    /// Builds and runs e2fsck.
    #[track_caller]
    pub(crate) fn check_unmounted(&self, source: &Path) -> Summary {
        self.checked(self.build(source))
    }

    /// As [`Case::check_unmounted`], for a tree in memory.
    #[track_caller]
    pub(crate) fn check_tree(&self, tree: Tree) -> Summary {
        self.checked(build(&self.options, tree, &target(&self.image()), &|_| {
            Flow::Continue
        }))
    }

    #[track_caller]
    fn checked(&self, built: Result<Summary, BuildError>) -> Summary {
        let summary = built.unwrap_or_else(|error| panic!("{}: {error}", self.form));
        assert_clean(&self.image());
        let len = fs::metadata(self.image()).expect("the image").len();
        assert_eq!(len, summary.size_bytes, "{}", self.form);
        summary
    }

    /// Builds, runs e2fsck, and compares the kernel's mount with the source.
    #[track_caller]
    pub(crate) fn check(&self, source: &Path) -> Summary {
        let summary = self.check_unmounted(source);
        self.compare(source);
        summary
    }

    /// Compares the kernel's mount of the image with the source.
    #[track_caller]
    pub(crate) fn compare(&self, source: &Path) {
        let mount = KernelMount::new(&self.image(), Access::ReadOnly, "");
        let mount = mount.unwrap_or_else(|error| panic!("{}: {error:#}", self.form));
        same(
            &self.form,
            source,
            mount.path(),
            self.options.format.inode_size_bytes,
        );
        mount.unmount().expect("not busy");
    }

    /// As [`Case::check`], also for an archive of the source.
    #[track_caller]
    pub(crate) fn check_both(&self, source: &Path) -> Summary {
        let summary = self.check(source);
        assert_eq!(self.check_archive(source).objects, summary.objects);
        summary
    }

    /// As [`Case::check`], for an archive of the source made by GNU tar.
    #[track_caller]
    pub(crate) fn check_archive(&self, source: &Path) -> Summary {
        let archive = self.folder.path().join("source.tar");
        let mut tar = tools::command("tar").expect("tar");
        tar.args(["--format=pax", "--sparse", "--xattrs", "--acls", "-cf"])
            .arg(&archive)
            .arg("-C")
            .arg(source)
            .arg(".");
        tools::stdout_of(&mut tar).expect("an archive");
        let summary = self.build_source(&Source::Path(archive.clone(), Reading::ByContent));
        let summary = summary.unwrap_or_else(|error| panic!("{}: {error}", self.form));
        fs::remove_file(&archive).expect("it is there");
        assert_clean(&self.image());
        self.compare(source);
        summary
    }

    /// Builds an image of any source.
    pub(crate) fn build_source(&self, source: &Source) -> Result<Summary, BuildError> {
        let tree = self.tree_of(source);
        build(&self.options, tree, &target(&self.image()), &|_| {
            Flow::Continue
        })
    }

    /// Reads any source into a tree.
    pub(crate) fn tree_of(&self, source: &Source) -> Tree {
        let mut tree = Tree::new();
        let mut context = Context {
            excludes: &Excludes::default(),
            saved: None,
            read_objects: &Counter::default(),
            destination: Some(Destination {
                options: &self.options,
                target: &target(&self.image()),
            }),
            scratch: &self.scratch,
            threads: self.options.thread_count(),
            read_bytes: &Counter::default(),
            notices: Notices::default(),
            platform: None,
        };
        source
            .add_to(&mut tree, &mut context)
            .expect("a good source");
        tree
    }

    /// As [`Case::check`]; then the kernel adds and removes names in the large directory.
    #[track_caller]
    pub(crate) fn check_writable(&self, source: &Path) -> Summary {
        let summary = self.check(source);
        let mount = KernelMount::new(&self.image(), Access::ReadWrite, "").expect("a mount");
        let large = mount.path().join("large");
        for number in 0..600 {
            fs::write(large.join(format!("new name {number}")), "new").expect("disk space");
        }
        for entry in fs::read_dir(&large)
            .expect("a directory")
            .flatten()
            .step_by(2)
        {
            fs::remove_file(entry.path()).expect("a file");
        }
        fs::write(mount.path().join("big"), vec![7; 3 << 20]).expect("disk space");
        mount.unmount().expect("not busy");
        assert_clean(&self.image());
        summary
    }
}

/// Fails unless both trees are equal, except for lost+found.
#[track_caller]
fn same(form: &str, source: &Path, mount: &Path, inode_size: Option<u32>) {
    let whole_seconds = inode_size == Some(128);
    let ours = listing(mount, whole_seconds, LinksBy::FileSystem);
    let mut theirs = listing(source, whole_seconds, LinksBy::Counting);
    let lost_and_found = ours.get(b"lost+found".as_slice()).cloned();
    theirs.insert(b"lost+found".to_vec(), lost_and_found.expect("lost+found"));
    let shown = |path: &[u8]| path.escape_ascii().to_string();
    for (path, line) in &theirs {
        let found = ours.get(path);
        assert_eq!(found, Some(line), "{form}: {}", shown(path));
    }
    let more = ours.keys().find(|path| !theirs.contains_key(*path));
    assert_eq!(more.map(|path| shown(path)), None, "{form}");
}

/// Source of the number of names of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinksBy {
    FileSystem,
    /// Counted, because a part of a file system may have objects with further names outside of it.
    Counting,
}

/// An object at a path.
struct Object {
    /// All attributes except the number of names.
    line: String,
    /// Device and inode number.
    key: (u64, u64),
    /// The link count of the file system; `None` for a directory.
    links: Option<u64>,
}

/// One line for each object, by path.
fn listing(root: &Path, whole_seconds: bool, links_by: LinksBy) -> BTreeMap<Vec<u8>, String> {
    let all = objects(root, whole_seconds);
    let mut names: HashMap<(u64, u64), u64> = HashMap::new();
    for object in all.values() {
        *names.entry(object.key).or_default() += 1;
    }
    let line_of = |object: Object| {
        let links = match links_by {
            LinksBy::FileSystem => object.links,
            LinksBy::Counting => object.links.map(|_| names[&object.key]),
        };
        format!("{} {links:?}", object.line)
    };
    let lines = all.into_iter();
    lines
        .map(|(path, object)| (path, line_of(object)))
        .collect()
}

fn objects(root: &Path, whole_seconds: bool) -> BTreeMap<Vec<u8>, Object> {
    let mut all = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    all.insert(Vec::new(), describe(root, whole_seconds));
    while let Some(path) = pending.pop() {
        // A path through a descriptor is short at any depth.
        let folder = open_deep(root, &path);
        let here = PathBuf::from(format!("/proc/self/fd/{}", raw(&folder)));
        for entry in fs::read_dir(&here).expect("a directory") {
            let entry = entry.expect("an entry");
            let child = path.join(entry.file_name());
            let at = here.join(entry.file_name());
            all.insert(
                child.as_os_str().as_bytes().to_vec(),
                describe(&at, whole_seconds),
            );
            if entry.file_type().expect("a type").is_dir() {
                pending.push(child);
            }
        }
    }
    all
}

fn describe(at: &Path, whole_seconds: bool) -> Object {
    let found = fs::symlink_metadata(at).expect("an object");
    let kind = found.file_type();
    let mut line = format!("{:o} {} {}", found.mode(), found.uid(), found.gid());
    if !kind.is_dir() {
        let _ = write!(line, " {}", found.len());
    }
    if kind.is_block_device() || kind.is_char_device() {
        let _ = write!(line, " {:x}", found.rdev());
    }
    if kind.is_symlink() {
        let target = fs::read_link(at).expect("a target");
        let _ = write!(line, " {}", target.as_os_str().as_bytes().escape_ascii());
    }
    if kind.is_file() && found.len() > 0 {
        let _ = write!(line, " {}", content_hash(at));
    }
    let nanoseconds = if whole_seconds { 0 } else { found.mtime_nsec() };
    let _ = write!(line, " {} {}.{nanoseconds:09}", xattrs(at), found.mtime());
    Object {
        line,
        key: (found.dev(), found.ino()),
        links: (!kind.is_dir()).then_some(found.nlink()),
    }
}

fn raw(file: &File) -> i32 {
    use std::os::fd::AsRawFd;
    file.as_raw_fd()
}

/// Opens a directory at any depth.
fn open_deep(root: &Path, path: &Path) -> File {
    let mut open = File::open(root).expect("the root");
    let mut piece = PathBuf::new();
    for name in path {
        piece.push(name);
        if piece.as_os_str().len() > 3000 {
            open = open_below(&open, &piece);
            piece = PathBuf::new();
        }
    }
    if piece.as_os_str().is_empty() {
        open
    } else {
        open_below(&open, &piece)
    }
}

fn open_below(open: &File, path: &Path) -> File {
    File::open(PathBuf::from(format!("/proc/self/fd/{}", raw(open))).join(path))
        .expect("a directory")
}

/// Hashes the data of a file with its offsets; holes count as zeroes.
fn content_hash(path: &Path) -> u64 {
    use std::hash::Hasher;
    let file = File::open(path).expect("a file");
    let len = file.metadata().expect("a file").len();
    let mut hasher = std::hash::DefaultHasher::new();
    let mut at = 0;
    let mut buffer = vec![0; 64 << 10];
    while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(data))
            .expect("an end")
            .min(len);
        at = data;
        while at < end {
            // Steps must not depend on where holes begin.
            let step = (at / 65536 + 1) * 65536;
            let now = usize::try_from(step.min(end) - at).expect("small");
            file.read_exact_at(&mut buffer[..now], at).expect("content");
            for (offset, &byte) in (0u64..).zip(&buffer[..now]) {
                if byte != 0 {
                    hasher.write_u64(at + offset);
                    hasher.write_u8(byte);
                }
            }
            at += now as u64;
        }
    }
    hasher.finish()
}

fn xattrs(path: &Path) -> String {
    let mut names = [0; 4096];
    let len = rustix::fs::llistxattr(path, names.as_mut_slice()).unwrap_or(0);
    if len == 0 {
        return String::new();
    }
    let mut value = vec![0; 65536];
    let mut all: Vec<String> = names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let len = rustix::fs::lgetxattr(path, name, value.as_mut_slice()).expect("a value");
            format!("{}={}", name.escape_ascii(), value[..len].escape_ascii())
        })
        .collect();
    all.sort();
    all.join(",")
}

/// The mtime of an object in the kernel's mount.
pub(crate) fn mtime(image: &Path, path: &str) -> Timestamp {
    let mount = KernelMount::new(image, Access::ReadOnly, "").expect("a mount");
    let found = fs::metadata(format!("{}{path}", mount.path().display())).expect("an object");
    let nanoseconds = u32::try_from(found.mtime_nsec()).expect("nanoseconds");
    Timestamp::new(found.mtime(), nanoseconds).expect("nanoseconds")
}

/// The checksum of a file, computed by sha256sum.
pub(crate) fn sha256(path: &Path) -> String {
    let text = tools::stdout_of(Command::new("sha256sum").arg(path)).expect("sha256sum");
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Builds with several numbers of threads, and checks that all images are equal.
#[track_caller]
pub(crate) fn assert_same_bytes_on_any_thread_count(
    case: impl Fn() -> Case,
    build: impl Fn(&Case) -> Result<Summary, BuildError>,
) {
    let sums = [1, 2, 7, 7].map(|threads| {
        let mut case = case();
        case.options.threads = Some(threads);
        case.options.source_date_epoch = Some(1_700_000_000);
        build(&case).expect("an image");
        sha256(&case.image())
    });
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
}

/// Creates a chain of directories with this name.
pub(crate) fn make_deep(root: &Path, name: &[u8], depth: usize) {
    let mut open = File::open(root).expect("the root");
    let name = CString::new(name).expect("no NUL");
    for _ in 0..depth {
        rustix::fs::mkdirat(&open, &*name, Mode::from(0o755)).expect("disk space");
        open = open_below(&open, Path::new(OsStr::from_bytes(name.as_bytes())));
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}/bottom", raw(&open)));
    fs::write(path, "deep").expect("disk space");
}

/// Creates a tree with every kind of object that tmpfs and the user support.
pub(crate) fn with_everything() -> TempDir {
    let folder = scratch::folder().expect("a folder");
    let root = folder.path();
    let at = |name: &str| root.join(name);
    for name in ["dir/sub", "empty", "large", "dense"] {
        fs::create_dir_all(at(name)).expect("disk space");
    }
    fs::set_permissions(at("empty"), fs::Permissions::from_mode(0o1777)).expect("ours");
    for number in 0..1500 {
        let name = format!("large/a name of some length, {number}");
        fs::write(at(&name), format!("content {number}")).expect("disk space");
    }
    for len in [
        0usize, 1, 59, 60, 1023, 1024, 1025, 4095, 4096, 4097, 65_536, 300_001,
    ] {
        let bytes: Vec<u8> = (0..len)
            .map(|index| u8::try_from(index % 251).expect("small"))
            .collect();
        fs::write(at(&format!("dense/{len}")), bytes).expect("disk space");
    }
    fs::write(at("big"), vec![3; 21 << 20]).expect("disk space");
    fs::write(root.join(OsStr::from_bytes(&[0xfe; 255])), "").expect("disk space");
    fs::set_permissions(at("dense/1"), fs::Permissions::from_mode(0o6711)).expect("ours");
    fs::hard_link(at("big"), at("dir/sub/link")).expect("disk space");
    for len in [1, 59, 60, 61, 900] {
        let target = "t/".repeat(450);
        symlink(&target[..len], at(&format!("dir/symlink-{len}"))).expect("disk space");
    }
    fs::hard_link(at("dir/symlink-59"), at("dir/sub/symlink")).expect("disk space");
    holes(&at("holes"));
    if tools::is_root() {
        for (name, kind, mode) in [
            ("char", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
            (
                "block",
                FileType::BlockDevice,
                rustix::fs::makedev(259, 70_000),
            ),
            ("fifo", FileType::Fifo, 0),
            ("socket", FileType::Socket, 0),
        ] {
            rustix::fs::mknodat(rustix::fs::CWD, at(name), kind, Mode::from(0o640), mode)
                .expect("root");
        }
        std::os::unix::fs::chown(at("dir"), Some(70_000), Some(4_000_000_000)).expect("root");
    }
    attributes(root);
    let times = |seconds, nanoseconds| rustix::fs::Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let both = rustix::fs::Timestamps {
        last_access: times(5, 6),
        last_modification: times(1_234_567_890, 987_654_321),
    };
    rustix::fs::utimensat(
        rustix::fs::CWD,
        at("dense/60"),
        &both,
        rustix::fs::AtFlags::empty(),
    )
    .expect("ours");
    folder
}

/// A file with data and holes that are not aligned to blocks.
fn holes(path: &Path) {
    let file = File::create(path).expect("disk space");
    file.set_len(40 << 20).expect("disk space");
    for (at, len) in [
        (5, 3),
        (70_000, 10_000),
        (1 << 20, 65_536),
        (30 << 20, 1),
        (39 << 20, 5),
    ] {
        file.write_all_at(&vec![9; len], at).expect("disk space");
    }
    for number in 0..200u64 {
        file.write_all_at(b"fragment", (2 << 20) + number * 131_072)
            .expect("disk space");
    }
}

/// Sets attributes in all namespaces that the host and the user support.
fn attributes(root: &Path) {
    let set = |path: &str, name: &str, value: &[u8]| {
        let done = rustix::fs::lsetxattr(root.join(path), name, value, XattrFlags::empty());
        // Skips attributes that the host does not support or the user may not set.
        let is_user = name.starts_with("user.");
        match done {
            Err(Errno::OPNOTSUPP) if is_user => {}
            Err(Errno::PERM) if !tools::is_root() => {}
            done => done.unwrap_or_else(|why| panic!("{path}: {name}: {why}")),
        }
    };
    set("big", "user.small", b"value");
    set("dense/60", "user.empty", b"");
    for number in 0..30 {
        // Stored in a shared block if it does not fit into the inode.
        set(
            &format!("large/a name of some length, {number}"),
            "user.shared",
            &[b's'; 700],
        );
    }
    set(
        "dir",
        "user.long-name-that-is-not-stored-in-full",
        &[b'v'; 300],
    );
    set("dir/sub", "trusted.of-root", b"1");
    // cap_net_raw, permitted and effective.
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set("dense/4096", "security.capability", &capability);
    let label = b"system_u:object_r:etc_t:s0\0";
    for labelled in ["dense/1024", "dir", "dir/symlink-60", "dir/symlink-61"] {
        set(labelled, "security.selinux", label);
    }
    let entry = |tag: u16, permissions: u16, id: u32| {
        [
            &tag.to_le_bytes()[..],
            &permissions.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    let acl = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 6, u32::MAX),
        entry(2, 7, 1000),
        entry(4, 4, u32::MAX),
        entry(16, 7, u32::MAX),
        entry(32, 4, u32::MAX),
    ]
    .concat();
    set("dense/4097", "system.posix_acl_access", &acl);
    set("empty", "system.posix_acl_default", &acl);
}
