//! Features that change what is counted and where things are kept: quota files tell what everybody
//! uses, as e2fsck recomputes it and as the kernel's mount shows it.

#[path = "images/mod.rs"]
mod images;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fourscore_build::tree::{Content, Kind, Meta, Tree, Xattrs};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use images::Case;

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
