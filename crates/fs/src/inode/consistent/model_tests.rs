//! Tests of readers in parallel with writers, on whole file systems, in many interleavings. Each
//! step of the protocol is left out once, and the tests must detect that.
//!
//! **Model.** A [`Scenario`] is a prepared file system, and the operations of two or three tasks on
//! it. For each interleaving it is mounted again from the same image. Only the tasks run in
//! parallel, so every switch from one task to another that [`model::check`] draws lies inside them.

use std::collections::BTreeSet;

use fourscore_block::{BlockDevice, DeviceOptions, RamDevice, open_path};
use fourscore_journal::{Background, Batching, JournalOptions};
use fourscore_sync::{Arc, model, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::{
    DataMode, Fallocate, Follow, Fs, MountOptions, NewAttributes, OnError, OpenOptions, Replace,
    Sabotage,
};

const ROOT: InodeNr = InodeNr::ROOT;
const BLOCK_BYTES: usize = 1024;
const BLOCK: u64 = BLOCK_BYTES as u64;
const OWNER: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);

/// How many interleavings are tried for a sound protocol.
const SCHEDULES: usize = 1000;
/// The limit of interleavings until a fault is found: the search ends at the first that shows it.
const SCHEDULES_OF_FAULTS: usize = 100_000;

type Task = fn(&Fs);

/// Operations that run in parallel.
#[derive(Clone, Copy)]
struct Scenario {
    prepare: fn(&Fs),
    options: fn(MountOptions) -> MountOptions,
    /// Runs after mounting, before the tasks begin.
    begin: Task,
    tasks: &'static [Task],
    /// Runs when the tasks have ended.
    end: Task,
}

fn nothing(_: &Fs) {}

fn as_usual(options: MountOptions) -> MountOptions {
    options
}

const EMPTY: Scenario = Scenario {
    prepare: nothing,
    options: as_usual,
    begin: nothing,
    tasks: &[],
    end: nothing,
};

impl Scenario {
    fn mount(self, device: impl BlockDevice + 'static, fault: Option<Sabotage>) -> Arc<Fs> {
        let journal = JournalOptions {
            background: Background::None,
            // A deadline is infinitely far in the model.
            batching: Batching::Off,
            ..JournalOptions::default()
        };
        let open = OpenOptions::new().cache_bytes(4 << 20);
        // With a reserve, a full disk would still have blocks that nothing uses again.
        let usual = MountOptions::new().use_reserve();
        let usual = usual.open(open).journal(journal);
        Fs::mount(Arc::new(device), &(self.options)(usual).sabotage(fault)).unwrap()
    }

    /// Runs the scenario with `fault` in as many interleavings as needed.
    fn run(self, fault: Option<Sabotage>) {
        let image = Image::builder(MiB(4)).kind("ext4").block_size_bytes(1024);
        let image = image.arguments(["-N", "64", "-m", "0"]).make().unwrap();
        let path = image.path().to_owned();
        model::once(move || {
            let device = open_path(&path, DeviceOptions::read_write()).unwrap();
            let fs = EMPTY.mount(device, None);
            (self.prepare)(&fs);
            fs.unmount().unwrap();
        });
        let path = image.path().to_owned();
        let schedules = fault.map_or(SCHEDULES, |_| SCHEDULES_OF_FAULTS);
        model::check_whole(schedules, move || {
            let base = open_path(&path, DeviceOptions::default()).unwrap();
            let fs = self.mount(RamDevice::over(Arc::new(base)), fault);
            (self.begin)(&fs);
            let running = self.tasks.iter().map(|task| {
                let fs = Arc::clone(&fs);
                thread::spawn(move || task(&fs))
            });
            let running: Vec<_> = running.collect();
            running
                .into_iter()
                .for_each(|task| task.join().expect("a task"));
            (self.end)(&fs);
        });
    }
}

fn inode(fs: &Fs, path: &str) -> InodeNr {
    fs.resolve(path.as_bytes(), Follow::Yes).unwrap()
}

/// Returns `len` bytes of a file at `offset`, block by block; each block repeats one byte.
fn blocks(fs: &Fs, path: &str, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let got = fs.read_at(inode(fs, path), &mut bytes, offset).unwrap();
    let blocks = bytes[..got].chunks(BLOCK_BYTES);
    blocks
        .map(|block| {
            assert!(block.iter().all(|&byte| byte == block[0]), "half a block");
            block[0]
        })
        .collect()
}

/// Fills all free space with a file full of `byte`, named `filler`.
fn fill(fs: &Fs, byte: u8) {
    let file = fs.create(ROOT, b"filler", &OWNER).unwrap();
    let mut at = 0;
    for len in [64 * BLOCK_BYTES, BLOCK_BYTES] {
        loop {
            match fs.write_at(file, &vec![byte; len], at) {
                Ok(_) => at += len as u64,
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Freeing blocks against a reader: all space is used, so freed blocks of a file are written again.
const FREE: Scenario = Scenario {
    prepare: |fs| {
        let file = fs.create(ROOT, b"file", &OWNER).unwrap();
        fs.write_at(file, &[b'a'; 2 * BLOCK_BYTES], 0).unwrap();
        fs.create(ROOT, b"other", &OWNER).unwrap();
        fill(fs, b'f');
    },
    tasks: &[
        |fs| {
            let found = blocks(fs, "file", 0, 2 * BLOCK_BYTES);
            assert!(matches!(found[..], [b'a', 0 | b'a']), "read {found:?}");
        },
        |fs| {
            let file = inode(fs, "file");
            fs.fallocate(file, Fallocate::PunchHole, BLOCK, BLOCK)
                .unwrap();
            fs.sync().unwrap();
            let other = inode(fs, "other");
            fs.write_back_at(other, &[b'b'; BLOCK_BYTES], 0, crate::WrittenAt::Now)
                .unwrap();
        },
        // As a commit does, and a thread that frees many blocks.
        |fs| fs.writable().unwrap().expedite_grace_period(),
    ],
    ..EMPTY
};

/// A read of the second block of a file, which becomes the first and is overwritten there.
const MOVE: Scenario = Scenario {
    prepare: |fs| {
        let file = fs.create(ROOT, b"file", &OWNER).unwrap();
        fs.write_at(file, &[b'a'; BLOCK_BYTES], 0).unwrap();
        fs.write_at(file, &[b'b'; BLOCK_BYTES], BLOCK).unwrap();
    },
    tasks: &[
        |fs| {
            let found = blocks(fs, "file", BLOCK, BLOCK_BYTES);
            assert!(matches!(found[..], [] | [b'b']), "read {found:?}");
        },
        |fs| {
            let file = inode(fs, "file");
            fs.fallocate(file, Fallocate::CollapseRange, 0, BLOCK)
                .unwrap();
            fs.write_back_at(file, &[b'c'; BLOCK_BYTES], 0, crate::WrittenAt::Now)
                .unwrap();
        },
    ],
    ..EMPTY
};

/// Buffers of journaled data that are forgotten, against a reader of them.
const FORGET: Scenario = Scenario {
    prepare: |fs| {
        let file = fs.create(ROOT, b"file", &OWNER).unwrap();
        fs.write_at(file, &[b'a'; BLOCK_BYTES], 0).unwrap();
        fill(fs, b's');
        fs.unlink(ROOT, b"filler").unwrap();
    },
    options: |options| options.data(DataMode::Journal),
    begin: |fs| {
        let file = inode(fs, "file");
        fs.write_at(file, &[b'b'; BLOCK_BYTES], BLOCK).unwrap();
    },
    tasks: &[
        |fs| {
            let found = blocks(fs, "file", 0, 2 * BLOCK_BYTES);
            assert!(matches!(found[..], [b'a', 0 | b'b']), "read {found:?}");
        },
        |fs| {
            let file = inode(fs, "file");
            fs.fallocate(file, Fallocate::PunchHole, BLOCK, BLOCK)
                .unwrap();
        },
    ],
    ..EMPTY
};

/// Returns the directories that are reachable from the root.
fn tree(fs: &Fs) -> BTreeSet<InodeNr> {
    let (mut found, mut left) = (BTreeSet::new(), vec![ROOT]);
    while let Some(dir) = left.pop() {
        assert!(found.insert(dir), "{dir:?} has two names");
        let entries = fs.read_dir(dir).unwrap();
        let below = entries.iter().filter(|entry| {
            let is_own = matches!(&entry.name[..], b"." | b"..");
            !is_own && entry.file_type == Some(crate::FileType::Directory)
        });
        left.extend(below.map(|entry| entry.inode));
    }
    found
}

/// The second inode that is created.
const B: InodeNr = InodeNr(13);

/// A rename against an inode number that is reused: `a/x` was a file and becomes a directory, into
/// which the target of the rename is moved.
const RENAME: Scenario = Scenario {
    prepare: |fs| {
        let [a, b] = [&b"a"[..], b"b"].map(|name| fs.mkdir(ROOT, name, &OWNER).unwrap());
        assert_eq!(b, B);
        fs.create(a, b"x", &OWNER).unwrap();
        fs.mkdir(b, b"y", &OWNER).unwrap();
    },
    tasks: &[
        |fs| {
            // By its inode number, since `b` may have moved.
            let (a, b) = (inode(fs, "a"), B);
            match fs.rename((a, b"x"), (b, b"y"), Replace::Yes) {
                Ok(()) | Err(Error::NotFound | Error::InvalidArgument(_)) => {}
                Err(Error::NotADirectory | Error::IsADirectory) => {}
                Err(error) => panic!("{error}"),
            }
        },
        |fs| {
            let a = inode(fs, "a");
            fs.unlink(a, b"x").unwrap();
            let x = fs.mkdir(a, b"x", &OWNER).unwrap();
            match fs.rename((ROOT, b"b"), (x, b"b"), Replace::No) {
                Ok(()) | Err(Error::InvalidArgument(_)) => {}
                Err(error) => panic!("{error}"),
            }
        },
    ],
    end: |fs| {
        // The root, lost+found, `a`, `b` and `x` or `y`, unless some are missing.
        let found = tree(fs).len();
        assert!((5..=6).contains(&found), "{found} directories were found");
    },
    ..EMPTY
};

/// Names of this length soon fill a block.
fn name(number: u32) -> Vec<u8> {
    format!("name {number:0>200}").into_bytes()
}

/// Names that exist all the time.
const OLD_NAMES: u32 = 10;

fn link_names(fs: &Fs, numbers: std::ops::Range<u32>) {
    let (dir, target) = (inode(fs, "dir"), inode(fs, "target"));
    numbers.for_each(|number| fs.link(target, dir, &name(number)).unwrap());
}

/// Checks that each old name is in the directory exactly once.
fn list(fs: &Fs) {
    let entries = fs.read_dir(inode(fs, "dir")).unwrap();
    for number in 0..OLD_NAMES {
        let same = entries.iter().filter(|entry| entry.name == name(number));
        assert_eq!(same.count(), 1, "how often name {number} is listed");
    }
}

/// A split against a listing.
const SPLIT: Scenario = Scenario {
    prepare: |fs| {
        fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
        fs.create(ROOT, b"target", &OWNER).unwrap();
        link_names(fs, 0..OLD_NAMES);
    },
    tasks: &[list, |fs| link_names(fs, OLD_NAMES..OLD_NAMES + 6)],
    ..EMPTY
};

/// The same, when the inode of the directory leaves memory before.
const EVICT: Scenario = Scenario {
    tasks: &[list, |fs| {
        let dir = inode(fs, "dir");
        fs.core.inodes.remove_if(&dir, |cell| cell.retire());
        link_names(fs, OLD_NAMES..OLD_NAMES + 6);
    }],
    ..SPLIT
};

/// A lookup of a name that is being created.
const CREATE: Scenario = Scenario {
    tasks: &[
        |fs| assert!(fs.create(ROOT, b"new", &OWNER).is_ok()),
        |fs| match fs.lookup(ROOT, b"new") {
            Err(Error::NotFound) => {}
            found => assert_eq!(fs.stat(found.unwrap()).unwrap().links, 1),
        },
    ],
    ..EMPTY
};

/// A path whose last name is replaced.
const REPLACE: Scenario = Scenario {
    prepare: |fs| {
        let _ = [&b"name"[..], b"new"].map(|name| fs.create(ROOT, name, &OWNER).unwrap());
    },
    tasks: &[
        |fs| assert_ne!(inode(fs, "/name"), ROOT),
        |fs| {
            let (from, to) = ((ROOT, &b"new"[..]), (ROOT, &b"name"[..]));
            fs.rename(from, to, Replace::Yes).unwrap();
        },
    ],
    ..EMPTY
};

/// Blocks of a file of which no two are adjacent on the device: there are more extents than the
/// inode has space for, so they are in a leaf.
const SCATTERED: usize = 6;
const LEN: usize = SCATTERED * BLOCK_BYTES;

fn make_scattered(fs: &Fs) {
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    let bytes = [b'a'; (2 * SCATTERED - 1) * BLOCK_BYTES];
    fs.write_at(file, &bytes, 0).unwrap();
    for at in 1..SCATTERED as u64 {
        fs.fallocate(file, Fallocate::CollapseRange, at * BLOCK, BLOCK)
            .unwrap();
    }
    fs.create(ROOT, b"copy", &OWNER).unwrap();
}

/// A read against a change of the first key of a leaf.
const KEY: Scenario = Scenario {
    prepare: make_scattered,
    tasks: &[
        |fs| {
            let found = blocks(fs, "file", 0, LEN);
            assert!(matches!(found[..], [0 | b'a', ..]), "read {found:?}");
            assert_eq!(found[1..], [b'a'; SCATTERED - 1]);
        },
        |fs| {
            let file = inode(fs, "file");
            fs.fallocate(file, Fallocate::PunchHole, 0, BLOCK).unwrap();
        },
    ],
    ..EMPTY
};

/// A copy against truncation of its source.
const COPY: Scenario = Scenario {
    begin: make_scattered,
    options: |options| options.on_error(OnError::RemountReadOnly),
    tasks: &[
        |fs| {
            let (from, to) = (inode(fs, "file"), inode(fs, "copy"));
            fs.copy_file_range(from, 0, to, 0, LEN as u64).unwrap();
        },
        |fs| fs.truncate(inode(fs, "file"), 0).unwrap(),
    ],
    end: |fs| assert!(fs.create(ROOT, b"another", &OWNER).is_ok()),
    ..EMPTY
};

/// A test of a sound protocol, and a test that expects a failure when a step is left out.
macro_rules! tests {
    ($($sound:ident: $scenario:ident, $broken:ident: $fault:ident, $expected:literal;)*) => { $(
        #[test]
        fn $sound() {
            require!(Need::Program("mke2fs"));
            $scenario.run(None);
        }

        #[test]
        #[should_panic(expected = $expected)]
        fn $broken() {
            if !Need::Program("mke2fs").is_met() {
                panic!($expected);
            }
            $scenario.run(Some(Sabotage::$fault));
        }
    )* };
}

tests! {
    blocks_that_a_reader_has_found_stay_its_own: FREE,
        a_free_that_is_not_counted_is_found: UncountedFree, "read [";
    blocks_that_are_reused_are_noticed: FREE,
        an_unnoticed_reuse_is_found: UnnoticedReuse, "read [";
    blocks_that_move_are_noticed: MOVE,
        an_unnoticed_move_is_found: UnnoticedMove, "read [";
    journaled_content_shows_nothing_that_is_on_the_device: FORGET,
        forgetting_buffers_before_the_publication_is_found: ForgetBeforePublish, "read [";
    no_directory_is_moved_into_itself: RENAME,
        a_renaming_by_number_is_found: RenameByNumber, "directories were found";
    a_listing_has_every_name_once: SPLIT,
        a_listing_to_the_old_end_is_found: ListingToOldEnd, "how often name";
    a_listing_notices_that_its_directory_leaves_memory: EVICT,
        a_listing_that_notices_no_eviction_is_found: UnnoticedEviction, "how often name";
    a_name_leads_to_a_whole_inode: CREATE,
        a_name_before_its_inode_is_found: NameBeforeInode, "Corrupt";
    a_path_leads_somewhere: REPLACE,
        a_path_that_is_not_revalidated_is_found: PathWithoutRevalidation, "NotFound";
    a_map_is_read_whole: KEY,
        an_unsequenced_change_of_a_key_is_found: UnsequencedKeyChange, "Corrupt";
    a_copy_reads_a_whole_map: COPY,
        a_copy_without_a_lock_is_found: CopyWithoutLock, "Corrupt";
}
