//! Features that change what is counted and where things are kept: quota files tell what everybody
//! uses, large values of attributes are in inodes of their own, as e2fsck recomputes it and as the
//! kernel's mount shows it.

#[path = "images/mod.rs"]
mod images;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use fourscore_build::Size;
use fourscore_build::tree::{Content, Kind, Meta, Tree, Xattrs};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};
use rustix::fs::XattrFlags;
use tempfile::TempDir;

use images::{Case, build_directory, options, sha256};

/// Bytes and inodes by identifier.
type Counts = BTreeMap<u32, (u64, u64)>;

/// Files of several hundred users and groups and some projects, with attributes inside and outside
/// of their inodes.
fn of_many_owners() -> Tree {
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

/// What the objects below a mount use.
fn used(root: &Path, id: impl Fn(&fs::Metadata) -> u32) -> Counts {
    let mut counts = Counts::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let found = fs::symlink_metadata(&path).expect("an object");
        let entry = counts.entry(id(&found)).or_default();
        entry.0 += found.blocks() * 512;
        entry.1 += 1;
        if found.is_dir() {
            let entries = fs::read_dir(&path).expect("a directory");
            waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
    }
    counts
}

/// What a quota file says.
fn told(image: &Path, kind: &str) -> Counts {
    let mut debugfs = tools::command("debugfs").expect("debugfs");
    debugfs
        .args(["-R", &format!("list_quota {kind}")])
        .arg(image);
    let text = tools::stdout_of(&mut debugfs).expect("a listing");
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        // Identifier; used, soft and hard bytes; used inodes.
        let id = words.next()?.ok()?;
        let bytes = words.next()?.ok()?;
        let inodes = words.nth(2)?.ok()?;
        Some((u32::try_from(id).expect("an identifier"), (bytes, inodes)))
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn quota_files_tell_what_everybody_uses() {
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
        case.check_tree(of_many_owners());
        let mount = KernelMount::new(&case.image(), Access::ReadOnly, "").expect("a mount");
        let users = used(mount.path(), fs::Metadata::uid);
        let groups = used(mount.path(), fs::Metadata::gid);
        mount.unmount().expect("nobody uses it");
        assert!(users.len() > 600 && groups.len() == 20, "{form}");
        assert_eq!(told(&case.image(), "user"), users, "{form}");
        if !form.contains("usrquota:prjquota") {
            assert_eq!(told(&case.image(), "group"), groups, "{form}");
        }
        if form.contains("project") {
            let projects = told(&case.image(), "project");
            let inodes: Vec<u64> = projects.values().map(|&(_, inodes)| inodes).collect();
            // Of project 0 are also root, lost+found and the 40 directories.
            assert_eq!(inodes, [234 + 42, 233, 233], "{form}");
            let sum = |counts: &Counts| counts.values().map(|&(bytes, _)| bytes).sum::<u64>();
            assert_eq!(sum(&projects), sum(&users), "{form}");
        }
    }
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).expect("room for an attribute");
}

/// Attributes that fit neither inodes nor blocks: shared and not, of files, directories and links,
/// one and several of an object, and more users of a set than may share a block.
fn with_large_values() -> TempDir {
    let folder = scratch::folder().expect("a folder");
    let root = folder.path();
    let file = |name: &str| {
        let path = root.join(name);
        fs::write(&path, name).expect("room");
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
    fs::create_dir(root.join("directory")).expect("room");
    set_xattr(&root.join("directory"), "user.shared", &value(60_000, 1));
    for len in [10, 59, 60, 300] {
        let link = root.join(format!("link-{len}"));
        symlink("t".repeat(len), &link).expect("room");
        set_xattr(&link, "trusted.shared", &value(60_000, 1));
    }
    folder
}

#[test]
fn large_values_are_in_inodes_of_their_own() {
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
    fs::write(at("new"), "").expect("room");
    set_xattr(&at("new"), "user.new", &vec![b'n'; 9000]);
    fs::remove_file(at("largest")).expect("it is there");
    fs::remove_file(at("user-7")).expect("it is there");
    mount.unmount().expect("nobody uses it");
    assert_clean(&case.image());
    let error = Case::new("-t ext4").build(source.path()).unwrap_err();
    assert!(
        error.to_string().contains("the feature ea_inode"),
        "{error}"
    );
}

#[test]
fn the_same_bytes_with_all_of_them_on_any_number_of_threads() {
    require!(Need::Root);
    let source = with_large_values();
    let folder = scratch::folder().expect("a folder");
    let mut sums = Vec::new();
    for threads in [1, 2, 7] {
        let mut options = options("-t ext4 -O quota,project,ea_inode");
        options.threads = Some(threads);
        options.source_date_epoch = Some(1_700_000_000);
        let image = folder.path().join("image");
        build_directory(&options, source.path(), &image).expect("an image");
        sums.push(sha256(&image));
    }
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
}
