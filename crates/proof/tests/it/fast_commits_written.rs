//! Fast commits that fourscore writes: after a crash, fourscore, Linux and e2fsck make the same
//! file system of them, and it has what was synced.

use fourscore::{
    AttributeChange, DeviceNr, Fallocate, FileType, Follow, Fs, InodeGeneration, InodeNr,
    MountOptions, Replace, SetXattr, Timestamp,
};
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::Image;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use std::time::Duration;

use crate::common::{
    self, PLAIN as NEW, ROOT, image_of, mount_with, open, pattern, quiet, require_e2fsprogs,
    require_kernel, unmount_clean,
};
use crate::tree::recovered::{Forgiven, assert_recovered_alike};
use crate::tree::{Tree, assert_same, our_tree};

/// Makes changes and syncs them.
type Recorded = fn(&Fs);
/// Makes a change, and returns the inode that is to be synced.
type Unsaid = fn(&Fs) -> InodeNr;

struct Setup {
    image: Image,
    fs: Arc<Fs>,
}

impl Setup {
    /// A file system with fast commits, in which nothing has changed since the last full commit.
    fn new(block_bytes: u32) -> Self {
        Self::with_features(block_bytes, &["fast_commit"])
    }

    fn with_features(block_bytes: u32, features: &[&str]) -> Self {
        let image = image_of(block_bytes, features);
        let fs = mount_with(&image, &quiet());
        Self { image, fs }
    }

    /// One with files in two directories.
    fn with_files(block_bytes: u32) -> Self {
        let setup = Self::new(block_bytes);
        let fs = &setup.fs;
        let dirs = [&b"a"[..], b"b"].map(|name| fs.mkdir(ROOT, name, &NEW).unwrap());
        for (name, seed) in [(&b"one"[..], 10), (b"two", 11)] {
            let file = fs.create(dirs[0], name, &NEW).unwrap();
            fs.write_at(file, &pattern(seed, 30_000), 0).unwrap();
        }
        fs.link(at(fs, "a/two"), dirs[0], b"also two").unwrap();
        fs.sync().unwrap();
        setup
    }

    /// Counts of fast commits and of full ones.
    fn commits(&self) -> (u64, u64) {
        let stats = self.fs.stats().mount.unwrap();
        (stats.fast_commits.unwrap().commits, stats.journal.commits)
    }

    /// Runs `change`, which must make at least one fast commit, and no full one.
    fn fast(&self, change: impl FnOnce(&Fs)) {
        let before = self.commits();
        change(&self.fs);
        let after = self.commits();
        assert!(after.0 > before.0, "no fast commit");
        assert_eq!(
            after.1,
            before.1,
            "a full commit: {:?}",
            self.fs.stats().mount
        );
    }

    /// Checks that all recover the file system as it is now, if it crashes.
    fn assert_kept(&self, what: &str) {
        let expected = comparable(our_tree(&self.fs));
        assert_same(&self.recovered(what), &expected, what);
    }

    /// The file system as it is recovered if it crashes now.
    fn recovered(&self, what: &str) -> Tree {
        let crashed = self.image.copy().unwrap();
        assert_recovered_alike(&crashed, Forgiven::Nothing, what)
    }
}

fn at(fs: &Fs, path: &str) -> InodeNr {
    fs.resolve(path.as_bytes(), Follow::No).unwrap()
}

/// Leaves out what the recoveries are not compared by: the space, which e2fsck compares with the
/// maps, and the times of changes.
fn comparable(mut tree: Tree) -> Tree {
    for object in tree.values_mut() {
        (object.mtime, object.sectors) = (None, 0);
    }
    tree
}

#[test]
fn new_files_are_there_with_their_content() {
    require_kernel!();
    for block_bytes in [1024, 4096] {
        let setup = Setup::new(block_bytes);
        // The first inodes lie beside that of the journal.
        for nth in 0..8 {
            setup.fs.create(ROOT, &[b'0' + nth], &NEW).unwrap();
        }
        setup.fs.sync().unwrap();
        setup.fast(|fs| {
            let file = fs.create(ROOT, b"file", &NEW).unwrap();
            fs.write_at(file, b"content", 0).unwrap();
            fs.fsync(file).unwrap();
        });
        setup.assert_kept("one file");
    }
}

fn make_in_listed(fs: &Fs) {
    let dir = at(fs, "a");
    let before = fs.stat(dir).unwrap().atime;
    // The clock of times has ticks.
    thread::sleep(Duration::from_millis(12));
    fs.accessed(dir).unwrap();
    assert_ne!(fs.stat(dir).unwrap().atime, before);
    let file = fs.create(dir, b"new", &NEW).unwrap();
    fs.fsync(file).unwrap();
}

#[test]
fn what_is_recorded_is_recovered_alike() {
    require_kernel!();
    let cases: [(&str, Recorded); 9] = [
        ("an append", |fs| {
            let file = at(fs, "a/one");
            fs.append(file, &pattern(1, 10_000)).unwrap();
            fs.fsync(file).unwrap();
        }),
        ("a second name", |fs| {
            let file = at(fs, "a/one");
            fs.link(file, at(fs, "b"), b"linked").unwrap();
            fs.fsync(file).unwrap();
        }),
        ("one of two names removed", |fs| {
            fs.unlink(at(fs, "a"), b"two").unwrap();
            fs.fsync(at(fs, "a/also two")).unwrap();
        }),
        ("renamed to another directory", |fs| {
            let (from, to) = ((at(fs, "a"), &b"one"[..]), (at(fs, "b"), &b"moved"[..]));
            fs.rename(from, to, Replace::No).unwrap();
            fs.fsync(at(fs, "b/moved")).unwrap();
        }),
        ("renamed in its directory, several times", |fs| {
            let dir = at(fs, "a");
            fs.rename((dir, b"one"), (dir, b"1"), Replace::No).unwrap();
            fs.rename((dir, b"1"), (dir, b"uno"), Replace::No).unwrap();
            fs.fsync(at(fs, "a/uno")).unwrap();
            fs.rename((dir, b"uno"), (dir, b"one"), Replace::No)
                .unwrap();
            fs.fsync(dir).unwrap();
        }),
        ("preallocated, and a part written", |fs| {
            let file = at(fs, "a/one");
            let what = Fallocate::AllocateKeepSize;
            fs.fallocate(file, what, 100_000, 200_000).unwrap();
            fs.fsync(file).unwrap();
            fs.write_at(file, &pattern(2, 5000), 150_000).unwrap();
            fs.fsync(file).unwrap();
        }),
        ("owner, permissions and times", |fs| {
            let file = at(fs, "a/one");
            let change = AttributeChange {
                uid: Some(7),
                gid: Some(70_000),
                permissions: Some(0o640),
                mtime: Some(Timestamp::new(1_000_000_000, 5).unwrap()),
                ..AttributeChange::default()
            };
            fs.set_attributes(file, &change).unwrap();
            fs.fsync(file).unwrap();
        }),
        ("made in a directory that was listed", make_in_listed),
        ("made, linked, its first name removed, written", |fs| {
            let (a, b) = (at(fs, "a"), at(fs, "b"));
            let file = fs.create(a, b"new", &NEW).unwrap();
            fs.link(file, b, b"newer").unwrap();
            fs.unlink(a, b"new").unwrap();
            for part in 0..3 {
                let offset = part * 20_000;
                fs.write_at(file, &pattern(3, 3000), offset).unwrap();
            }
            fs.fsync(file).unwrap();
        }),
    ];
    for (what, change) in cases {
        let setup = Setup::with_files(1024);
        // A name that is removed is not in the first fast commit of a transaction.
        setup.fast(|fs| {
            let other = fs.create(ROOT, b"other", &NEW).unwrap();
            fs.fsync(other).unwrap();
        });
        setup.fast(change);
        setup.assert_kept(what);
    }
}

/// Changes that no record expresses, and the inode that is synced.
const UNSAID: [(&str, Unsaid); 15] = [
    ("a new directory", |fs| {
        fs.mkdir(ROOT, b"dir", &NEW).unwrap()
    }),
    ("a file in a new directory", |fs| {
        let dir = fs.mkdir(ROOT, b"dir", &NEW).unwrap();
        fs.create(dir, b"file", &NEW).unwrap()
    }),
    ("a renamed directory", |fs| {
        let to = (at(fs, "b"), &b"a"[..]);
        fs.rename((ROOT, b"a"), to, Replace::No).unwrap();
        at(fs, "b/a")
    }),
    ("a truncated file", |fs| {
        fs.truncate(at(fs, "a/one"), 10).unwrap();
        at(fs, "a/one")
    }),
    ("a hole", |fs| {
        let file = at(fs, "a/one");
        fs.fallocate(file, Fallocate::PunchHole, 0, 4096).unwrap();
        file
    }),
    ("a range that was zeroed", |fs| {
        let file = at(fs, "a/one");
        fs.fallocate(file, Fallocate::ZeroRange, 0, 4096).unwrap();
        file
    }),
    ("an attribute", |fs| {
        let file = at(fs, "a/one");
        fs.set_xattr(file, b"user.a", b"value", SetXattr::Any)
            .unwrap();
        file
    }),
    ("permissions of a directory", |fs| {
        let change = AttributeChange {
            permissions: Some(0o700),
            ..AttributeChange::default()
        };
        fs.set_attributes(at(fs, "a"), &change).unwrap();
        at(fs, "a")
    }),
    ("a symbolic link", |fs| {
        fs.symlink(ROOT, b"link", b"a/one", &NEW).unwrap()
    }),
    ("a fifo", |fs| {
        let device = DeviceNr { major: 0, minor: 0 };
        fs.mknod(ROOT, b"fifo", FileType::Fifo, device, &NEW)
            .unwrap()
    }),
    ("a name that took the place of another", |fs| {
        let (from, to) = ((at(fs, "a"), &b"one"[..]), (at(fs, "a"), &b"two"[..]));
        fs.rename(from, to, Replace::Yes).unwrap();
        at(fs, "a/two")
    }),
    ("two names that were exchanged", |fs| {
        fs.exchange((at(fs, "a"), b"one"), (at(fs, "a"), b"two"))
            .unwrap();
        at(fs, "a/two")
    }),
    ("a directory whose last name of a file was removed", |fs| {
        fs.unlink(at(fs, "a"), b"one").unwrap();
        at(fs, "a")
    }),
    ("a file with a name in place of a last one", |fs| {
        fs.unlink(at(fs, "a"), b"one").unwrap();
        fs.create(at(fs, "a"), b"one", &NEW).unwrap()
    }),
    (
        "a file whose name was first given to a file with attributes",
        |fs| {
            let dir = at(fs, "a");
            let file = fs.create(dir, b"file", &NEW).unwrap();
            fs.set_xattr(file, b"user.a", b"value", SetXattr::Any)
                .unwrap();
            fs.link(file, at(fs, "b"), b"file").unwrap();
            fs.unlink(dir, b"file").unwrap();
            fs.create(dir, b"file", &NEW).unwrap()
        },
    ),
];

/// What no record expresses is committed in full, and so is what depends on it; what does not
/// depend on it is not.
#[test]
fn what_no_record_expresses_is_committed_in_full() {
    require_kernel!();
    for (what, change) in UNSAID {
        let setup = Setup::with_files(1024);
        let tainted = change(&setup.fs);
        setup.fast(|fs| {
            let other = fs.create(at(fs, "b"), b"other", &NEW).unwrap();
            fs.write_at(other, b"content", 0).unwrap();
            fs.fsync(other).unwrap();
        });
        let full = setup.commits().1;
        setup.fs.fsync(tainted).unwrap();
        assert_eq!(setup.commits().1, full + 1, "{what}");
        setup.assert_kept(what);
    }
}

/// What is set of a directory is durable with its fsync: no name need change for that.
#[test]
fn what_is_set_of_a_directory_is_committed_in_full() {
    require_e2fsprogs!();
    type Set = fn(&Fs, InodeNr);
    const PAST: Timestamp = Timestamp::new(1_000_000_000, 5).unwrap();
    let cases: [(&str, Set); 5] = [
        ("the time of its last change", |fs, dir| {
            let change = AttributeChange {
                mtime: Some(PAST),
                ..AttributeChange::default()
            };
            fs.set_attributes(dir, &change).unwrap();
        }),
        ("the time of its last access", |fs, dir| {
            let change = AttributeChange {
                atime: Some(PAST),
                ..AttributeChange::default()
            };
            fs.set_attributes(dir, &change).unwrap();
        }),
        ("its owner", |fs, dir| {
            let change = AttributeChange {
                uid: Some(7),
                ..AttributeChange::default()
            };
            fs.set_attributes(dir, &change).unwrap();
        }),
        ("its project", |fs, dir| fs.set_project(dir, 77).unwrap()),
        ("its generation", |fs, dir| {
            fs.set_generation(dir, InodeGeneration(77)).unwrap();
        }),
    ];
    let features = ["fast_commit", "project", "^metadata_csum"];
    let setup = Setup::with_features(1024, &features);
    let fs = &setup.fs;
    let dir = fs.mkdir(ROOT, b"dir", &NEW).unwrap();
    fs.sync().unwrap();
    for (what, set) in cases {
        let full = setup.commits().1;
        set(fs, dir);
        fs.fsync(dir).unwrap();
        assert_eq!(setup.commits().1, full + 1, "{what}");
        let crashed = setup.image.copy().unwrap();
        let found = open(&crashed).stat(dir).unwrap();
        assert_eq!(found, fs.stat(dir).unwrap(), "{what}");
    }
}

/// Replay counts the blocks of a map alone, and a file is charged for its values elsewhere, too.
#[test]
fn a_file_whose_value_is_in_an_inode_is_committed_in_full() {
    require_kernel!();
    let setup = Setup::with_features(1024, &["fast_commit", "ea_inode"]);
    let fs = &setup.fs;
    for nth in 0..8 {
        fs.create(ROOT, &[b'0' + nth], &NEW).unwrap();
    }
    let file = fs.create(ROOT, b"file", &NEW).unwrap();
    fs.set_xattr(file, b"user.v", &pattern(3, 5000), SetXattr::Any)
        .unwrap();
    fs.sync().unwrap();
    let full = setup.commits().1;
    fs.write_at(file, &pattern(4, 3000), 0).unwrap();
    fs.fsync(file).unwrap();
    assert_eq!(setup.commits().1, full + 1);
    setup.assert_kept("a value in an inode");
}

#[test]
fn what_is_durable_already_needs_no_commit() {
    require!(Need::Program("mke2fs"));
    let setup = Setup::with_files(4096);
    let fs = &setup.fs;
    let files: Vec<InodeNr> = (0..100)
        .map(|nth| {
            let file = fs.create(ROOT, format!("f{nth}").as_bytes(), &NEW).unwrap();
            fs.write_at(file, &pattern(1, 1000), 0).unwrap();
            file
        })
        .collect();
    setup.fast(|fs| fs.fsync(files[50]).unwrap());
    let before = setup.commits();
    for &file in &files {
        fs.fsync(file).unwrap();
        fs.fdatasync(file).unwrap();
    }
    fs.fsync(ROOT).unwrap();
    assert_eq!(setup.commits(), before);
    setup.fast(|fs| {
        fs.append(files[3], b"more").unwrap();
        fs.fdatasync(files[3]).unwrap();
    });
}

/// Names are put wherever there is space when they are replayed, and e2fsck makes no directory
/// longer that has no index.
#[test]
fn names_have_space_when_they_are_replayed() {
    require_kernel!();
    let setup = Setup::new(1024);
    let fs = &setup.fs;
    let dir = fs.mkdir(ROOT, b"dir", &NEW).unwrap();
    let other = fs.mkdir(ROOT, b"other", &NEW).unwrap();
    let file = fs.create(other, b"file", &NEW).unwrap();
    let name = |nth: usize| format!("a name that is rather long, number {nth:03}").into_bytes();
    // The block is nearly full.
    for nth in 0..20 {
        fs.link(file, dir, &name(nth)).unwrap();
    }
    fs.sync().unwrap();
    for nth in 0..20 {
        fs.unlink(dir, &name(nth)).unwrap();
        fs.link(file, dir, &name(100 + nth)).unwrap();
        fs.fsync(file).unwrap();
        setup.assert_kept(&format!("{nth} names replaced"));
    }
    for nth in 200..300 {
        fs.link(file, dir, &name(nth)).unwrap();
        fs.fsync(file).unwrap();
        if nth % 9 == 0 {
            setup.assert_kept(&format!("{nth} names"));
        }
    }
    let (fast, full) = setup.commits();
    assert!(
        fast > 80 && full < 40,
        "{fast} fast commits, {full} full ones"
    );
}

#[test]
fn many_fast_commits_follow_each_other_until_the_area_is_full() {
    require_kernel!();
    let setup = Setup::with_files(1024);
    let fs = &setup.fs;
    let file = at(fs, "a/one");
    let full = setup.commits().1;
    let mut fast = 0;
    while setup.commits().1 == full {
        fs.append(file, &pattern(5, 700)).unwrap();
        fs.fsync(file).unwrap();
        fast += 1;
        assert!(fast < 10_000);
        if fast % 40 == 0 {
            setup.assert_kept(&format!("{fast} fast commits"));
        }
    }
    assert!(fast > 50, "{fast} fast commits");
    setup.assert_kept("full");
    setup.fast(|fs| {
        fs.append(file, b"again").unwrap();
        fs.fsync(file).unwrap();
    });
    setup.assert_kept("the next transaction");
}

/// A file that is in a fast commit is removed, and another one needs its blocks.
fn reuse_recorded_blocks(options: &MountOptions) {
    const LEN: usize = 3 << 20;
    let image = image_of(1024, &["fast_commit"]);
    let fs = mount_with(&image, options);
    let filler = fs.create(ROOT, b"filler", &NEW).unwrap();
    let left = fs.statfs().unwrap().available_blocks * 1024 - (LEN as u64 + (1 << 20));
    fs.fallocate(filler, Fallocate::Allocate, 0, left).unwrap();
    fs.sync().unwrap();
    let old = fs.create(ROOT, b"old", &NEW).unwrap();
    fs.write_at(old, &vec![b'o'; LEN], 0).unwrap();
    fs.fsync(old).unwrap();
    let stats = fs.stats().mount.unwrap();
    assert_eq!(stats.fast_commits.unwrap().commits, 1);
    fs.unlink(ROOT, b"old").unwrap();
    let new = fs.create(ROOT, b"new", &NEW).unwrap();
    fs.write_at(new, &vec![b'n'; LEN], 0).unwrap();
    let crashed = image.copy().unwrap();
    let read = open(&crashed);
    if let Ok(old) = read.lookup(ROOT, b"old") {
        assert!(
            common::content(&read, old) == vec![b'o'; LEN],
            "bytes of another file"
        );
    }
}

#[test]
fn blocks_in_a_fast_commit_are_not_reused_before_the_full_one() {
    require!(Need::Program("mke2fs"));
    reuse_recorded_blocks(&MountOptions::new());
}

#[cfg(feature = "sabotage")]
#[test]
#[should_panic(expected = "bytes of another file")]
fn blocks_that_are_reused_early_are_noticed() {
    let fault = fourscore::Sabotage::RecordedBlockReused;
    reuse_recorded_blocks(&MountOptions::new().sabotage(Some(fault)));
}

/// A change of a block of attributes is kept by a full commit: also if only its count changes,
/// since the inode leaves it to others or joins it, and if a directory's block changes in place.
#[test]
fn changes_of_blocks_of_attributes_are_not_left_out() {
    require_e2fsprogs!();
    const NAME: &[u8] = b"user.large";
    let set = |fs: &Fs, path: &str, byte: u8| {
        fs.set_xattr(at(fs, path), NAME, &[byte; 700], SetXattr::Any)
            .unwrap();
    };
    type Change = (&'static str, fn(&Fs, &dyn Fn(&Fs, &str, u8)) -> InodeNr);
    let changes: [Change; 5] = [
        ("a directory's block changes in place", |fs, set| {
            set(fs, "b", 9);
            at(fs, "b")
        }),
        ("a directory leaves a shared block", |fs, _| {
            fs.remove_xattr(at(fs, "a"), NAME).unwrap();
            at(fs, "a")
        }),
        ("a directory moves to another block", |fs, set| {
            set(fs, "a", 2);
            at(fs, "a")
        }),
        ("a file leaves a shared block", |fs, _| {
            fs.remove_xattr(at(fs, "a/one"), NAME).unwrap();
            at(fs, "a/one")
        }),
        ("a file joins a block", |fs, set| {
            set(fs, "new", 1);
            at(fs, "new")
        }),
    ];
    for (what, change) in changes {
        let setup = Setup::with_files(4096);
        let fs = &setup.fs;
        fs.create(ROOT, b"new", &NEW).unwrap();
        for (path, byte) in [("a", 1), ("a/one", 1), ("a/two", 1), ("b", 2)] {
            set(fs, path, byte);
        }
        fs.sync().unwrap();
        let shared = fs.stats().mount.unwrap().xattr_sharing.unwrap().shared;
        assert_eq!(shared, 2, "{what}");
        let synced = change(fs, &set);
        let expected = fs.xattrs(synced).unwrap();
        fs.fsync(synced).unwrap();
        // Recovered in memory, and on disk: then the counts of users are right, too.
        let crashed = setup.image.copy().unwrap();
        assert_eq!(open(&crashed).xattrs(synced).unwrap(), expected, "{what}");
        let recovered = mount_with(&crashed, &MountOptions::new());
        assert_eq!(recovered.xattrs(synced).unwrap(), expected, "{what}");
        unmount_clean(recovered, &crashed);
    }
}

/// A history of calls on a few names in three directories.
struct History<'s> {
    fs: &'s Fs,
    random: Rng,
    dirs: Vec<InodeNr>,
}

impl History<'_> {
    /// Does one call, and syncs something sometimes. A call that is refused changes nothing.
    fn step(&mut self) {
        let dir = self.dir();
        let (name, other) = (self.name(), self.name());
        let found = self.fs.lookup(dir, &name).ok();
        let fs = self.fs;
        match (self.random.below(20), found) {
            (0..=3, None) => drop(fs.create(dir, &name, &NEW)),
            (4, None) => drop(fs.symlink(dir, &name, b"target", &NEW)),
            (5, None) => {
                if let Ok(made) = fs.mkdir(dir, &name, &NEW)
                    && self.dirs.len() < 6
                {
                    self.dirs.push(made);
                }
            }
            (0..=5, Some(file)) => drop(fs.link(file, self.dir(), &other)),
            (6..=9, Some(file)) => {
                let len = 1 + self.random.below(9000);
                drop(fs.append(file, &self.content(len)));
            }
            (10, Some(file)) => {
                let offset = self.random.below(40_000) as u64;
                drop(fs.write_at(file, &self.content(3000), offset));
            }
            (11, Some(file)) => {
                let what = match self.random.below(6) {
                    0 => Fallocate::PunchHole,
                    1 => Fallocate::ZeroRange,
                    2 => Fallocate::CollapseRange,
                    3 => Fallocate::AllocateKeepSize,
                    _ => Fallocate::Allocate,
                };
                let offset = 4096 * self.random.below(8) as u64;
                drop(fs.fallocate(file, what, offset, 8192));
            }
            (12 | 13, Some(_)) => drop(fs.unlink(dir, &name)),
            (14..=16, Some(_)) => {
                let replace = match self.random.below(3) {
                    0 => Replace::Yes,
                    _ => Replace::No,
                };
                drop(fs.rename((dir, &name), (self.dir(), &other), replace));
            }
            (17, Some(file)) => {
                let change = AttributeChange {
                    permissions: Some(0o600 + u16::from(self.random.happens(1, 2))),
                    ..AttributeChange::default()
                };
                drop(fs.set_attributes(file, &change));
            }
            (18, Some(file)) if self.random.happens(1, 4) => {
                drop(fs.set_xattr(file, b"user.name", b"value", SetXattr::Any));
            }
            (19, Some(file)) if self.random.happens(1, 4) => {
                drop(fs.truncate(file, self.random.below(20_000) as u64));
            }
            (_, Some(file)) => fs.fsync(file).unwrap(),
            (_, None) => fs.fsync(dir).unwrap(),
        }
    }

    fn dir(&mut self) -> InodeNr {
        *self.random.pick(&self.dirs)
    }

    fn name(&mut self) -> Vec<u8> {
        format!("a name, number {}", self.random.below(12)).into_bytes()
    }

    fn content(&mut self, len: usize) -> Vec<u8> {
        let [seed, ..] = self.random.bits().to_le_bytes();
        pattern(seed, len)
    }
}

/// Linux, e2fsck and fourscore recover the same tree of any history, and it is clean. Set
/// `FOURSCORE_HISTORIES` to run more histories than usual.
#[test]
fn random_histories_are_recovered_alike() {
    require_kernel!();
    let wanted = std::env::var("FOURSCORE_HISTORIES").ok();
    let histories: u64 = wanted.map_or(100, |wanted| wanted.parse().unwrap());
    let (mut fast, mut full) = (0, 0);
    for seed in 0..histories {
        let setup = Setup::new([1024, 2048, 4096][usize::try_from(seed % 3).unwrap()]);
        let fs = &setup.fs;
        let dirs = [&b"a"[..], b"b"].map(|name| fs.mkdir(ROOT, name, &NEW).unwrap());
        fs.sync().unwrap();
        let mut history = History {
            fs,
            random: Rng::new(seed),
            dirs: [&[ROOT], &dirs[..]].concat(),
        };
        for _ in 0..120 {
            history.step();
        }
        // Most of what came before is in fast commits.
        let last = history.fs.create(ROOT, b"last", &NEW).unwrap();
        fs.fsync(last).unwrap();
        let found = setup.recovered(&format!("history {seed}"));
        assert!(found.contains_key(&b"last"[..]), "history {seed}");
        let commits = setup.commits();
        (fast, full) = (fast + commits.0, full + commits.1);
    }
    assert!(fast > full, "{fast} fast commits, {full} full ones");
}

/// One thread makes directories and syncs them, beside others that make fast commits.
#[test]
fn what_is_tainted_is_committed_in_full_beside_fast_commits() {
    require!(Need::Program("mke2fs"));
    let setup = Setup::with_files(1024);
    let fs = &setup.fs;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for nth in 0..2 {
            let (is_done, dir) = (&is_done, fs.mkdir(ROOT, &[b'x', b'0' + nth], &NEW).unwrap());
            scope.spawn(move || {
                for nr in 0.. {
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("f{}", nr % 500);
                    let file = match fs.create(dir, name.as_bytes(), &NEW) {
                        Ok(file) => file,
                        Err(_) => fs.lookup(dir, name.as_bytes()).unwrap(),
                    };
                    fs.append(file, b"content").unwrap();
                    fs.fsync(file).unwrap();
                }
            });
        }
        for nr in 0..1000 {
            let before = setup.commits().1;
            let dir = fs.mkdir(ROOT, format!("d{nr}").as_bytes(), &NEW).unwrap();
            fs.fsync(dir).unwrap();
            assert!(
                setup.commits().1 > before,
                "directory {nr} is not committed"
            );
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
