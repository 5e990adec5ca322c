//! Tests of features that change accounting or where data is stored: quota files, large attribute
//! values (`ea_inode`) and `inline_data`, compared with e2fsck and the kernel's mount.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use fourscore_build::Size;
use fourscore_build::tree::{Content, Kind, Meta, Tree, Xattrs};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};
use rustix::fs::XattrFlags;
use tempfile::TempDir;

use crate::cases::{self, Case};

/// Bytes and inodes by id.
type Counts = BTreeMap<u32, (u64, u64)>;

/// Files of several hundred users and groups and some projects, with attributes inside and outside
/// of their inodes.
fn tree_of_many_owners() -> Tree {
    let mut tree = Tree::new();
    for number in 0..700_u32 {
        let meta = Meta {
            uid: number * number * 37,
            gid: 1000 + number % 19,
            project: number % 3,
            permissions: 0o644,
            ..Meta::default()
        };
        let mut xattrs = Xattrs::new();
        if number.is_multiple_of(10) {
            xattrs.set(b"user.attribute", &vec![b'x'; (number % 900) as usize]);
        }
        let content = Content::Bytes(vec![7; (number * 97 % 30_000) as usize].into());
        let path = format!("directory-{}/file-{number}", number % 40);
        let placed = tree.insert(path.as_bytes(), &meta, Kind::File(content), &xattrs);
        placed.expect("a good path");
    }
    tree
}

/// The usage of all objects below a mount.
fn used(root: &Path, id: impl Fn(&fs::Metadata) -> u32) -> Counts {
    let mut counts = Counts::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let found = fs::symlink_metadata(&path).expect("an object");
        let entry = counts.entry(id(&found)).or_default();
        entry.0 += found.blocks() * 512;
        entry.1 += 1;
        if found.is_dir() {
            let entries = fs::read_dir(&path).expect("a directory");
            pending.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
    }
    counts
}

/// The usage in a quota file.
fn quota_of(image: &Path, kind: &str) -> Counts {
    let mut debugfs = tools::command("debugfs").expect("debugfs");
    debugfs
        .args(["-R", &format!("list_quota {kind}")])
        .arg(image);
    let text = tools::stdout_of(&mut debugfs).expect("a listing");
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        // Columns: id; used bytes, soft and hard limit; used inodes.
        let id = words.next()?.ok()?;
        let bytes = words.next()?.ok()?;
        let inodes = words.nth(2)?.ok()?;
        Some((u32::try_from(id).expect("an identifier"), (bytes, inodes)))
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn quota_files_match_the_usage() {
    require!(
        Need::KernelMount,
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    for form in [
        "-t ext4 -O quota",
        "-t ext4 -O quota,project,orphan_file -b 1024",
        "-t ext4 -O quota,bigalloc,project -E quotatype=usrquota:prjquota",
        "-t ext3 -O quota -b 2048",
        "-t ext2 -O quota -b 1024 -I 128",
    ] {
        let case = Case::new(form);
        case.check_tree(tree_of_many_owners());
        let mount = KernelMount::new(&case.image(), Access::ReadOnly, "").expect("a mount");
        let users = used(mount.path(), fs::Metadata::uid);
        let groups = used(mount.path(), fs::Metadata::gid);
        mount.unmount().expect("not busy");
        assert!(users.len() > 600 && groups.len() == 20, "{form}");
        assert_eq!(quota_of(&case.image(), "user"), users, "{form}");
        if !form.contains("usrquota:prjquota") {
            assert_eq!(quota_of(&case.image(), "group"), groups, "{form}");
        }
        if form.contains("project") {
            let projects = quota_of(&case.image(), "project");
            let inodes: Vec<u64> = projects.values().map(|&(_, inodes)| inodes).collect();
            // Root, lost+found and the 40 directories also belong to project 0.
            assert_eq!(inodes, [234 + 42, 233, 233], "{form}");
            let sum = |counts: &Counts| counts.values().map(|&(bytes, _)| bytes).sum::<u64>();
            assert_eq!(sum(&projects), sum(&users), "{form}");
        }
    }
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).expect("space for an attribute");
}

/// Attributes that fit neither into inodes nor blocks: shared and not, of files, directories and
/// links, one and several of an object, and more users of a set than may share a block.
fn with_large_values() -> TempDir {
    let folder = scratch::folder().expect("a folder");
    let root = folder.path();
    let file = |name: &str| {
        let path = root.join(name);
        fs::write(&path, name).expect("disk space");
        path
    };
    let value = |len: usize, seed: usize| -> Vec<u8> {
        let byte = |index: usize| u8::try_from((index * 7 + seed) % 251).expect("small");
        (0..len).map(byte).collect()
    };
    for number in 0..4 {
        let path = file(&format!("shared-{number}"));
        set_xattr(&path, "user.shared", &value(60_000, 1));
        set_xattr(&path, "user.own", &[b'x'; 100][..number * 30]);
    }
    let many = file("many");
    for number in 0..6 {
        set_xattr(&many, &format!("user.{number}"), &value(9000, number));
    }
    let tight = file("tight");
    for number in 0..5 {
        set_xattr(
            &tight,
            &format!("user.{number}"),
            &value(300 * (number + 1), 3),
        );
    }
    set_xattr(&file("largest"), "trusted.largest", &value(65_536, 5));
    for number in 0..1100 {
        let path = file(&format!("user-{number}"));
        set_xattr(&path, "user.one", &value(5000, 8));
        set_xattr(&path, "user.two", &value(700, 9));
    }
    fs::create_dir(root.join("directory")).expect("disk space");
    set_xattr(&root.join("directory"), "user.shared", &value(60_000, 1));
    for len in [10, 59, 60, 300] {
        let link = root.join(format!("link-{len}"));
        symlink("t".repeat(len), &link).expect("disk space");
        set_xattr(&link, "trusted.shared", &value(60_000, 1));
    }
    folder
}

#[test]
fn large_values_are_stored_in_ea_inodes() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let source = with_large_values();
    for form in [
        "-t ext4 -O ea_inode",
        "-t ext4 -O ea_inode -b 1024",
        "-t ext4 -O ea_inode,quota,bigalloc",
        "-t ext4 -O ea_inode,^has_journal,^extent,^64bit -b 1024 -I 128",
        "-t ext4 -O ea_inode,quota,^metadata_csum -I 512",
    ] {
        let summary = Case::new(form).check(source.path());
        assert!(summary.free_bytes * 50 < summary.size_bytes, "{summary:?}");
    }
    let mut case = Case::new("-t ext4 -O ea_inode");
    case.options.size = Size::AutoPlusBytes(4 << 20);
    case.check(source.path());
    let mount = KernelMount::new(&case.image(), Access::ReadWrite, "").expect("a mount");
    let at = |name: &str| mount.path().join(name);
    let shared = [at("shared-0"), at("directory")];
    for path in &shared {
        rustix::fs::removexattr(path, "user.shared").expect("it is there");
    }
    fs::write(at("new"), "").expect("disk space");
    set_xattr(&at("new"), "user.new", &vec![b'n'; 9000]);
    fs::remove_file(at("largest")).expect("it is there");
    fs::remove_file(at("user-7")).expect("it is there");
    mount.unmount().expect("not busy");
    assert_clean(&case.image());
    let error = Case::new("-t ext4").build(source.path()).unwrap_err();
    assert!(
        error.to_string().contains("the feature ea_inode"),
        "{error}"
    );
}

/// Files, links and directories of sizes around every limit for `inline_data`, some with
/// attributes.
fn with_small_contents() -> TempDir {
    let folder = scratch::folder().expect("a folder");
    let root = folder.path();
    let text: Vec<u8> = (b'a'..=b'z').cycle().take(4096).collect();
    let lengths = (0..=300).chain((300..2000).step_by(7)).chain([4095, 4096]);
    for len in lengths {
        fs::write(root.join(format!("file-{len:04}")), &text[..len]).expect("disk space");
    }
    for len in (1..200).chain([890, 1000]) {
        let target = std::str::from_utf8(&text[..len]).expect("letters");
        symlink(target, root.join(format!("link-{len:04}"))).expect("disk space");
    }
    for count in 0..40 {
        let directory = root.join(format!("directory-{count:02}"));
        fs::create_dir(&directory).expect("disk space");
        for number in 0..count {
            let name = match number % 5 {
                4 => format!("{number:02}-{}", "a longer name ".repeat(4)),
                _ => format!("{number:02}"),
            };
            fs::write(directory.join(name), "").expect("disk space");
        }
    }
    let hole = fs::File::create(root.join("hole")).expect("disk space");
    hole.set_len(100).expect("disk space");
    folder
}

/// Flags of all objects below a directory, read with debugfs.
fn flags(image: &Path, source: &Path) -> BTreeMap<String, String> {
    let paths = tools::stdout_of(
        tools::command("find")
            .expect("find")
            .args([".", "-mindepth", "1"])
            .current_dir(source),
    )
    .expect("a listing");
    let folder = scratch::folder().expect("a folder");
    let script = folder.path().join("script");
    let mut requests = String::new();
    for path in paths.lines() {
        let _ = writeln!(requests, "stat \"{}\"", path.trim_start_matches('.'));
    }
    fs::write(&script, requests).expect("disk space");
    let mut debugfs = tools::command("debugfs").expect("debugfs");
    debugfs.arg("-f").arg(&script).arg(image);
    let text = tools::stdout_of(&mut debugfs).expect("a listing");
    let found = text.split("debugfs: stat ").skip(1).map(|part| {
        let path = part.lines().next().unwrap_or_default().trim_matches('"');
        let flags = part
            .split("Flags: ")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next());
        (path.to_owned(), flags.unwrap_or_default().to_owned())
    });
    found.collect()
}

#[test]
fn inline_data_is_used_where_mke2fs_uses_it() {
    require!(
        Need::KernelMount,
        Need::Program("e2fsck"),
        Need::Program("debugfs"),
        Need::Program("mke2fs")
    );
    let source = with_small_contents();
    for (form, arguments) in [
        ("-t ext4 -O inline_data", &["-O", "inline_data"][..]),
        (
            "-t ext4 -O inline_data -I 1024",
            &["-O", "inline_data", "-I", "1024"],
        ),
        (
            "-t ext4 -O inline_data,^extent,^64bit -b 1024",
            &["-O", "inline_data,^extent,^64bit", "-b", "1024"],
        ),
    ] {
        let mut case = Case::new(form);
        case.options.size = Size::AutoPlusBytes(4 << 20);
        case.check(source.path());
        let theirs = case.image().with_extension("mke2fs");
        let mut mke2fs = tools::command("mke2fs").expect("mke2fs");
        mke2fs
            .args(["-q", "-F", "-t", "ext4", "-d"])
            .arg(source.path());
        mke2fs.args(arguments).arg(&theirs).arg("32M");
        tools::stdout_of(&mut mke2fs).expect("an image");
        let (ours, theirs) = (
            flags(&case.image(), source.path()),
            flags(&theirs, source.path()),
        );
        assert!(ours.len() > 1000, "{}", ours.len());
        let is_directory = |path: &str| source.path().join(&path[1..]).is_dir();
        let is_link = |path: &str| source.path().join(&path[1..]).is_symlink();
        // libext2fs leaves the second part of a directory empty, and stores links inline.
        let same = |path: &str| !is_directory(path) && !is_link(path);
        for (path, flags) in theirs.iter().filter(|(path, _)| same(path)) {
            assert_eq!(ours.get(path), Some(flags), "{form}: {path}");
        }
        let kernels = flags(&made_by_kernel(&case.image(), source.path()), source.path());
        for (path, flags) in kernels.iter().filter(|(path, _)| is_directory(path)) {
            assert_eq!(ours.get(path), Some(flags), "{form}: {path}");
        }
        for (path, flags) in ours.iter().filter(|(path, _)| is_link(path)) {
            let bits = u32::from_str_radix(flags.trim_start_matches("0x"), 16);
            let bits = InodeFlags::from_bits_retain(bits.expect("a number"));
            assert!(!bits.contains(InodeFlags::INLINE_DATA_FL), "{form}: {path}");
        }
    }
}

/// A copy of an image in which the kernel has recreated the directories of the source.
fn made_by_kernel(image: &Path, source: &Path) -> PathBuf {
    let copy = image.with_extension("kernel");
    fs::copy(image, &copy).expect("disk space");
    let mount = KernelMount::new(&copy, Access::ReadWrite, "").expect("a mount");
    let mut directories: Vec<_> = fs::read_dir(source)
        .expect("a directory")
        .flatten()
        .collect();
    directories.retain(|entry| entry.path().is_dir());
    for directory in directories {
        let made = mount.path().join(directory.file_name());
        let mut names: Vec<_> = fs::read_dir(directory.path())
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        fs::remove_dir_all(&made).expect("it is there");
        fs::create_dir(&made).expect("disk space");
        for name in names {
            fs::write(made.join(name), "").expect("disk space");
        }
    }
    mount.unmount().expect("not busy");
    assert_clean(&copy);
    copy
}

#[test]
fn images_with_all_features_do_not_depend_on_threads() {
    require!(Need::Root);
    let source = with_large_values();
    cases::assert_same_bytes_on_any_thread_count(
        || Case::new("-t ext4 -O quota,project,ea_inode,inline_data"),
        |case| case.build(source.path()),
    );
}
