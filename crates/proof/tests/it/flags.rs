//! Flags and the operations that they forbid, compared with the kernel; projects, generations,
//! access times.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use fourscore::{
    AccessTimes, AttributeChange, FileType, Follow, Fs, InodeNr, MountOptions, Replace, SetXattr,
};
use fourscore_ondisk::InodeGeneration;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::Arc;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, debugfs};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use rustix::fs::{IFlags, XattrFlags, ioctl_getflags, ioctl_setflags};

use crate::common::{
    PLAIN, image, mount, mount_with, mount_words, require_e2fsprogs, require_kernel, unmount_clean,
};
use crate::outcome::{errno, ours, theirs};

/// Two file systems, to which the same operations are applied.
struct Twins {
    fs: Arc<Fs>,
    root: PathBuf,
}

impl Twins {
    fn inode(&self, path: &str) -> InodeNr {
        self.fs.resolve(path.as_bytes(), Follow::No).unwrap()
    }

    fn flags(&self, path: &str) -> InodeFlags {
        self.fs.stat(self.inode(path)).unwrap().flags
    }

    fn host_flags(&self, path: &str) -> IFlags {
        ioctl_getflags(File::open(self.root.join(path)).unwrap()).unwrap()
    }

    fn set_flags(&self, path: &str, random: &mut Rng) {
        // Even root may lack the capability that Linux requires to journal single files; the
        // extents flag is always set.
        const NOT_HERE: InodeFlags = InodeFlags::JOURNAL_DATA_FL;
        let wish = match random.below(3) {
            0 => 0,
            1 => 1 << random.below(32),
            _ => u32::try_from(random.bits() & random.bits() & 0xffff_ffff).unwrap(),
        };
        let wish = (InodeFlags::from_bits_retain(wish) - NOT_HERE) | InodeFlags::EXTENTS_FL;
        let host = IFlags::from_bits_retain(wish.bits());
        let set = ours(self.fs.set_flags(self.inode(path), wish));
        let expected = errno(ioctl_setflags(
            File::open(self.root.join(path)).unwrap(),
            host,
        ));
        assert_eq!(set, expected, "{path}: {wish:?}");
        self.compare(path);
    }

    fn compare(&self, path: &str) {
        let visible = self.flags(path) & InodeFlags::USER_VISIBLE;
        assert_eq!(visible.bits(), self.host_flags(path).bits(), "{path}");
    }

    /// Tries the changes that flags may forbid, step by step.
    fn disturb(&self, path: &str, number: u64) {
        let (inode, at) = (self.inode(path), self.root.join(path));
        let is_dir = self.fs.stat(inode).unwrap().file_type == FileType::Directory;
        let root = InodeNr::ROOT;
        let change = AttributeChange {
            permissions: Some(0o755),
            ..AttributeChange::default()
        };
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        assert_eq!(
            ours(self.fs.set_attributes(inode, &change)),
            theirs(std::fs::set_permissions(&at, mode)),
            "chmod {path}"
        );
        assert_eq!(
            ours(self.fs.set_xattr(inode, b"user.x", b"1", SetXattr::Any)),
            errno(rustix::fs::setxattr(
                &at,
                "user.x",
                b"1",
                XattrFlags::empty()
            )),
            "setxattr {path}"
        );
        if is_dir {
            self.disturb_directory(path, number);
            return;
        }
        let other = format!("other {number}");
        let linked = theirs(std::fs::hard_link(&at, self.root.join(&other)));
        assert_eq!(
            ours(self.fs.link(inode, root, other.as_bytes())),
            linked,
            "link {path}"
        );
        let file = std::fs::OpenOptions::new().write(true).open(&at);
        let truncated = theirs(file.and_then(|file| file.set_len(10)));
        assert_eq!(
            ours(self.fs.truncate(inode, 10)),
            truncated,
            "truncate {path}"
        );
        let file = std::fs::OpenOptions::new().append(true).open(&at);
        let appended = theirs(file.and_then(|mut file| std::io::Write::write_all(&mut file, b"x")));
        assert_eq!(ours(self.fs.append(inode, b"x")), appended, "append {path}");
        let written = theirs(File::create(&at).map(drop));
        if written.is_err() {
            assert_eq!(
                ours(self.fs.write_at(inode, b"x", 0)),
                written,
                "write {path}"
            );
        } else {
            self.fs.truncate(inode, 0).unwrap();
        }
        let moved = format!("moved {number}");
        let (from, to) = ((root, path.as_bytes()), (root, moved.as_bytes()));
        let renamed = theirs(std::fs::rename(&at, self.root.join(&moved)));
        assert_eq!(
            ours(self.fs.rename(from, to, Replace::Yes)),
            renamed,
            "rename {path}"
        );
        if renamed.is_ok() {
            self.fs.rename(to, from, Replace::Yes).unwrap();
            std::fs::rename(self.root.join(&moved), &at).unwrap();
        }
        // The file is moved back, so that the next calls find it.
        let removed = theirs(std::fs::remove_file(&at));
        assert_eq!(
            ours(self.fs.unlink(root, path.as_bytes())),
            removed,
            "unlink {path}"
        );
        if removed.is_ok() {
            self.fs.create(root, path.as_bytes(), &PLAIN).unwrap();
            File::create(&at).unwrap();
        }
    }

    fn disturb_directory(&self, path: &str, number: u64) {
        let (dir, at) = (self.inode(path), self.root.join(path));
        let name = format!("n{number}");
        let made = ours(self.fs.create(dir, name.as_bytes(), &PLAIN));
        assert_eq!(
            made,
            theirs(File::create_new(at.join(&name))),
            "create in {path}"
        );
        if made.is_ok() {
            self.compare(&format!("{path}/{name}"));
            let below = format!("d{number}");
            self.fs.mkdir(dir, below.as_bytes(), &PLAIN).unwrap();
            std::fs::create_dir(at.join(&below)).unwrap();
            self.compare(&format!("{path}/{below}"));
            let to = (InodeNr::ROOT, below.as_bytes());
            let renamed = theirs(std::fs::rename(at.join(&below), self.root.join(&below)));
            let from = (dir, below.as_bytes());
            assert_eq!(
                ours(self.fs.rename(from, to, Replace::Yes)),
                renamed,
                "out of {path}"
            );
            let removed = theirs(std::fs::remove_file(at.join(&name)));
            assert_eq!(
                ours(self.fs.unlink(dir, name.as_bytes())),
                removed,
                "unlink in {path}"
            );
        }
    }
}

/// Runs `test` on two new file systems; ours must be clean afterwards.
fn with_twins(test: impl FnOnce(&Twins)) {
    let (own, twin) = (image(&[]), image(&[]));
    let kernel = KernelMount::new(twin.path(), Access::ReadWrite, "").unwrap();
    let twins = Twins {
        fs: mount(&own),
        root: kernel.path().to_owned(),
    };
    test(&twins);
    twins.fs.unmount().unwrap();
    drop(kernel);
    assert_clean(own.path());
}

#[test]
fn flags_are_set_and_obeyed_as_by_the_kernel() {
    require_kernel!();
    with_twins(|twins| {
        let mut random = Rng::new(11);
        twins.fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
        File::create(twins.root.join("file")).unwrap();
        twins.fs.mkdir(InodeNr::ROOT, b"dir", &PLAIN).unwrap();
        std::fs::create_dir(twins.root.join("dir")).unwrap();
        for number in 0..600 {
            for path in ["file", "dir"] {
                twins.set_flags(path, &mut random);
                twins.disturb(path, number);
            }
        }
    });
}

#[test]
fn projects_are_inherited_and_kept_apart() {
    require_e2fsprogs!();
    let with = image(&["project"]);
    let fs = mount(&with);
    let root = InodeNr::ROOT;
    let dir = fs.mkdir(root, b"dir", &PLAIN).unwrap();
    let file = fs.create(root, b"file", &PLAIN).unwrap();
    fs.set_project(dir, 7).unwrap();
    let flags = fs.stat(dir).unwrap().flags | InodeFlags::PROJINHERIT_FL;
    fs.set_flags(dir, flags).unwrap();
    let below = fs.mkdir(dir, b"below", &PLAIN).unwrap();
    let inside = fs.create(below, b"inside", &PLAIN).unwrap();
    assert_eq!(fs.stat(inside).unwrap().project_id, 7);
    assert_eq!(ours(fs.link(file, dir, b"link")), Err(18));
    let moved = fs.rename((root, b"file"), (below, b"file"), Replace::Yes);
    assert_eq!(ours(moved), Err(18));
    fs.set_project(file, 7).unwrap();
    fs.link(file, dir, b"link").unwrap();
    // Any file may be moved out of the directory.
    fs.rename((below, b"inside"), (root, b"inside"), Replace::Yes)
        .unwrap();
    assert_eq!(fs.stat(inside).unwrap().project_id, 7);
    unmount_clean(fs, &with);
    let shown = debugfs(with.path(), &["stat /inside"]).unwrap();
    assert!(shown.contains("Project:     7"), "{shown}");

    let without = image(&[]);
    let fs = mount(&without);
    fs.set_project(root, 0).unwrap();
    assert_eq!(ours(fs.set_project(root, 7)), Err(95));
    fs.unmount().unwrap();
}

/// Clearing all flags of a file keeps its extents flag, and clears the others.
#[test]
fn flags_change_though_the_content_is_stored_as_before() {
    require_kernel!();
    with_twins(|twins| {
        let file = twins.fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
        let host = File::create(twins.root.join("file")).unwrap();
        // Linux turns one extent into pointers, and refuses several.
        for at in [0, 1 << 20, 1 << 21] {
            twins.fs.write_at(file, b"content", at).unwrap();
            host.write_all_at(b"content", at).unwrap();
        }
        twins.fs.sync().unwrap();
        host.sync_all().unwrap();
        let append = InodeFlags::APPEND_FL | InodeFlags::NOATIME_FL;
        for wish in [append | InodeFlags::EXTENTS_FL, InodeFlags::empty()] {
            let set = ours(twins.fs.set_flags(file, wish));
            let expected = errno(ioctl_setflags(&host, IFlags::from_bits_retain(wish.bits())));
            assert_eq!(set, expected, "{wish:?}");
            twins.compare("file");
        }
        assert!(!twins.flags("file").intersects(append));
    });
}

#[test]
fn generations_are_set_where_no_checksum_depends_on_them() {
    require_e2fsprogs!();
    for (features, expected) in [(&["^metadata_csum"][..], Ok(())), (&[], Err(95))] {
        let image = image(features);
        let fs = mount(&image);
        let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
        let before = fs.stat(file).unwrap();
        let set = ours(fs.set_generation(file, InodeGeneration(4711)));
        assert_eq!(set, expected);
        let generation = fs.stat(file).unwrap().generation;
        assert_eq!(generation == 4711, expected.is_ok());
        assert_ne!(before.generation, 0);
        // An inode number that is reused gets another generation.
        fs.unlink(InodeNr::ROOT, b"file").unwrap();
        let again = fs.create(InodeNr::ROOT, b"again", &PLAIN).unwrap();
        assert_eq!(again, file);
        assert_ne!(fs.stat(again).unwrap().generation, generation);
        unmount_clean(fs, &image);
    }
}

/// Whether the access time changed after a change, and after another access.
fn access_times(fs: &Fs, inode: InodeNr) -> [bool; 2] {
    let old = fourscore_ondisk::Timestamp::new(1_000_000_000, 0).unwrap();
    let change = AttributeChange {
        atime: Some(old),
        ..AttributeChange::default()
    };
    fs.set_attributes(inode, &change).unwrap();
    let version = fs.stat(inode).unwrap().version;
    // Longer than a tick of the clock that sets times.
    std::thread::sleep(Duration::from_millis(20));
    fs.accessed(inode).unwrap();
    let first = fs.stat(inode).unwrap();
    assert_eq!(first.version, version, "to read is not to change");
    std::thread::sleep(Duration::from_millis(20));
    fs.accessed(inode).unwrap();
    let second = fs.stat(inode).unwrap();
    [first.atime > old, second.atime > first.atime]
}

#[test]
fn accesses_are_noted_as_the_mount_wants() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &PLAIN).unwrap();
    let quiet = fs.create(InodeNr::ROOT, b"quiet", &PLAIN).unwrap();
    let flags = fs.stat(quiet).unwrap().flags | InodeFlags::NOATIME_FL;
    fs.set_flags(quiet, flags).unwrap();
    fs.unmount().unwrap();
    let expected = [
        ("relatime", [true, false], [true, false]),
        ("strictatime", [true, true], [true, true]),
        ("strictatime,nodiratime", [true, true], [false, false]),
        ("noatime", [false, false], [false, false]),
    ];
    for (words, of_file, of_dir) in expected {
        let fs = mount_words(&image, words);
        assert_eq!(access_times(&fs, file), of_file, "{words}");
        assert_eq!(access_times(&fs, dir), of_dir, "{words}");
        assert_eq!(access_times(&fs, quiet), [false, false], "{words}");
        let atime = fs.stat(file).unwrap().atime;
        unmount_clean(fs, &image);
        let fs = mount(&image);
        assert_eq!(fs.stat(file).unwrap().atime, atime, "{words}: on disk");
        fs.unmount().unwrap();
    }
    let expected = [
        (AccessTimes::Relative, [true, false]),
        (AccessTimes::Strict, [true, true]),
        (AccessTimes::Never, [false, false]),
    ];
    for (when, of_file) in expected {
        let fs = mount_with(&image, &MountOptions::new().access_times(when));
        assert_eq!(access_times(&fs, file), of_file, "{when:?}");
        fs.unmount().unwrap();
    }
}

#[test]
fn versions_count_changes() {
    require!(Need::Program("mke2fs"));
    let image = image(&[]);
    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
    let mut last = fs.stat(file).unwrap().version;
    let mut grows = |what: &str| {
        let version = fs.stat(file).unwrap().version;
        assert!(version > last, "{what}: {version} after {last}");
        last = version;
    };
    fs.write_at(file, b"x", 0).unwrap();
    grows("write");
    fs.truncate(file, 0).unwrap();
    grows("truncate");
    fs.set_xattr(file, b"user.x", b"1", SetXattr::Any).unwrap();
    grows("setxattr");
    fs.link(file, InodeNr::ROOT, b"link").unwrap();
    grows("link");
    fs.set_attributes(file, &AttributeChange::default())
        .unwrap();
    grows("chmod");
    fs.unmount().unwrap();
}
