//! The write path in many interleavings of its threads' steps: a whole file system, its caches,
//! locks and journal included, is mounted, used by a few tasks and unmounted under shuttle's
//! scheduler, repeatedly; e2fsck checks the image that each interleaving leaves.
//!
//! A binary of its own, because only the build with the feature `shuttle` has it.

use fourscore::{
    AttributeChange, Error, Fallocate, FileType, Follow, Fs, InodeNr, MountOptions, NewAttributes,
    OpenInode, OpenOptions, QuotaCounts, QuotaKind, QuotaLimits, Replace,
};
use fourscore_block::BlockDevice;
use fourscore_journal::{Background, Batching, JournalOptions};
use fourscore_sync::{Arc, Mutex, model, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::process::Command;

const SCHEDULES: usize = 60;
const OWNER: NewAttributes = NewAttributes::owned_by(7, 8).permissions(0o755);

/// A device whose every call is one step of the model.
#[derive(Debug)]
struct Memory {
    bytes: Mutex<Vec<u8>>,
    len_bytes: u64,
}

impl BlockDevice for Memory {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.lock();
        let mut at = usize::try_from(offset).unwrap();
        for buf in bufs {
            let end = at + buf.len();
            buf.copy_from_slice(&bytes[at..end]);
            at = end;
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes.lock();
        let mut at = usize::try_from(offset).unwrap();
        for buf in bufs {
            bytes[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A small image: `/one`, `/two` and `/one/below`, a file in each, and `/large`, which has an index
/// with several leaves.
fn image(features: &[&str]) -> Image {
    let source = tempfile::tempdir().unwrap();
    let at = |path: &str| source.path().join(path);
    std::fs::create_dir_all(at("one/below")).unwrap();
    std::fs::create_dir_all(at("two")).unwrap();
    std::fs::create_dir_all(at("large")).unwrap();
    for path in ["one/file", "two/file", "one/below/file"] {
        std::fs::write(at(path), path).unwrap();
    }
    for number in 0..60 {
        std::fs::write(at(&format!("large/a name of some length {number}")), "").unwrap();
    }
    let image = Image::builder(MiB(4))
        .kind("ext4")
        .block_size_bytes(1024)
        .journal(MiB(1))
        .features(features)
        .source(source.path())
        .make()
        .unwrap();
    // Directories that mke2fs copies have no index.
    let mut index = Command::new("e2fsck");
    let made = index.arg("-fyD").arg(image.path()).output().unwrap();
    assert!(made.status.code().is_some_and(|code| code <= 1), "{made:?}");
    image
}

/// Mounts the image, runs `tasks` on it, and checks it with `then` and e2fsck.
fn check(tasks: &'static [fn(&Fs)], then: fn(&Fs)) {
    check_from(|_| {}, tasks, then);
}

/// Does the same, after one task has run `first`.
fn check_from(first: fn(&Fs), tasks: &'static [fn(&Fs)], then: fn(&Fs)) {
    check_on(&["^resize_inode"], "", first, tasks, then);
}

/// Does the same on a file system with these features, and with these mount options.
fn check_on(
    features: &[&str],
    words: &'static str,
    first: fn(&Fs),
    tasks: &'static [fn(&Fs)],
    then: fn(&Fs),
) {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = image(features);
    let content: Arc<[u8]> = std::fs::read(image.path()).unwrap().into();
    model::check(SCHEDULES, move || {
        let device = Arc::new(Memory {
            len_bytes: content.len() as u64,
            bytes: Mutex::new(content.to_vec()),
        });
        let journal = JournalOptions {
            background: Background::None,
            batching: Batching::Off,
            ..JournalOptions::default()
        };
        let options = MountOptions::new()
            .parse(words)
            .unwrap()
            .journal(journal)
            .open(OpenOptions::new().cache_bytes(1 << 16));
        let fs = Fs::mount(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).unwrap();
        first(&fs);
        let running: Vec<_> = tasks
            .iter()
            .map(|task| {
                let fs = Arc::clone(&fs);
                thread::spawn(move || task(&fs))
            })
            .collect();
        for task in running {
            task.join().expect("a task");
        }
        then(&fs);
        fs.unmount().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("image");
        std::fs::write(&left, &*device.bytes.lock()).unwrap();
        assert_clean(&left);
    });
}

fn at(fs: &Fs, path: &str) -> InodeNr {
    fs.resolve(path.as_bytes(), Follow::No).unwrap()
}

fn is_there(fs: &Fs, path: &str) -> bool {
    fs.resolve(path.as_bytes(), Follow::No).is_ok()
}

/// The errno of a refusal, or 0.
fn errno<T>(result: fourscore::Result<T>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

fn rename(fs: &Fs, from: &str, to: &str) -> i32 {
    let split = |path: &str| {
        let path = Path::new(path);
        let name = path.file_name().unwrap().as_encoded_bytes().to_vec();
        let above = path.parent().unwrap().as_os_str().as_encoded_bytes();
        fs.resolve(above, Follow::No).map(|dir| (dir, name))
    };
    match (split(from), split(to)) {
        (Ok((from, old)), Ok((to, new))) => {
            errno(fs.rename((from, &old), (to, &new), Replace::Yes))
        }
        (Err(error), _) | (_, Err(error)) => error.errno(),
    }
}

#[test]
fn names_cross_between_two_directories_in_both_directions() {
    check(
        &[
            |fs| assert_eq!(rename(fs, "/one/file", "/two/from one"), 0),
            |fs| assert_eq!(rename(fs, "/two/file", "/one/from two"), 0),
            |fs| assert_eq!(rename(fs, "/one/below", "/two/below"), 0),
        ],
        |fs| {
            for path in ["/two/from one", "/one/from two", "/two/below/file"] {
                assert!(is_there(fs, path), "{path} was lost");
            }
            for path in ["/one/file", "/two/file", "/one/below"] {
                assert!(!is_there(fs, path), "{path} is there twice");
            }
            let links = |path| fs.stat(at(fs, path)).unwrap().links;
            assert_eq!((links("/one"), links("/two")), (2, 3));
        },
    );
}

#[test]
fn no_directory_comes_to_lie_below_itself() {
    check(
        &[
            // Either result is allowed while the other has not happened.
            |fs| assert!([0, 2, 22].contains(&rename(fs, "/one", "/two/one"))),
            |fs| assert!([0, 2, 22].contains(&rename(fs, "/two", "/one/below/two"))),
        ],
        |fs| {
            let (first, second) = (is_there(fs, "/two/one"), is_there(fs, "/one/below/two"));
            assert!(first != second, "one of them moves: {first} {second}");
        },
    );
}

#[test]
fn exactly_one_of_two_creates_of_one_name_in_a_leaf_succeeds() {
    check(
        &[
            |fs| assert!([0, 17].contains(&errno(fs.create(at(fs, "/large"), b"new", &OWNER)))),
            |fs| assert!([0, 17].contains(&errno(fs.mkdir(at(fs, "/large"), b"new", &OWNER)))),
            |fs| assert_eq!(errno(fs.create(at(fs, "/large"), b"other", &OWNER)), 0),
            |fs| {
                let name = b"a name of some length 7";
                assert_eq!(errno(fs.unlink(at(fs, "/large"), name)), 0);
            },
        ],
        |fs| {
            let large = at(fs, "/large");
            let names = fs.read_dir(large).unwrap();
            let new = names.iter().filter(|entry| entry.name == b"new");
            assert_eq!(new.count(), 1);
            assert!(is_there(fs, "/large/other"));
            assert_eq!(names.len(), 2 + 60 + 2 - 1);
            let is_dir = fs.read_dir(at(fs, "/large/new")).is_ok();
            assert_eq!(fs.stat(large).unwrap().links, 2 + u16::from(is_dir));
        },
    );
}

#[test]
fn a_lookup_that_saw_a_new_inode_does_not_see_the_old_one_again() {
    const LED: &[u8] = b"a name of some length 7";
    const OTHER: &[u8] = b"a name of some length 8";
    /// Looks the name up several times: it refers to the old inode, is gone, and refers to the
    /// other inode, in this order.
    fn looks(fs: &Fs) {
        let large = at(fs, "/large");
        let other = fs.lookup(large, OTHER).unwrap();
        let mut before = 0;
        for _ in 0..4 {
            let now = match fs.lookup(large, LED) {
                Ok(found) if found == other => 2,
                Ok(_) => 0,
                Err(error) => {
                    assert_eq!(error.errno(), 2, "{error}");
                    1
                }
            };
            assert!(now >= before, "{before}, and then {now}");
            before = now;
        }
    }
    check(
        &[looks, looks, |fs| {
            let large = at(fs, "/large");
            fs.unlink(large, LED).unwrap();
            assert_eq!(errno(fs.lookup(large, LED)), 2);
            let other = fs.lookup(large, OTHER).unwrap();
            fs.link(other, large, LED).unwrap();
            assert_eq!(fs.lookup(large, LED).unwrap(), other);
        }],
        |fs| {
            let path = |name: &[u8]| format!("/large/{}", String::from_utf8_lossy(name));
            assert_eq!(at(fs, &path(LED)), at(fs, &path(OTHER)));
        },
    );
}

#[test]
fn an_inode_that_leaves_the_cache_and_comes_back_is_the_one_that_was_changed() {
    check(
        &[
            |fs| {
                for permissions in [0o700, 0o711] {
                    let change = AttributeChange {
                        permissions: Some(permissions),
                        ..AttributeChange::default()
                    };
                    fs.set_attributes(at(fs, "/one/file"), &change).unwrap();
                    let stat = fs.stat(at(fs, "/one/file")).unwrap();
                    assert_eq!(
                        stat.mode.0 & 0o7777,
                        permissions,
                        "an older version came back"
                    );
                }
            },
            |fs| {
                // The cache holds only some inodes, so others evict it.
                for number in 0..12 {
                    let path = format!("/large/a name of some length {number}");
                    fs.stat(at(fs, &path)).unwrap();
                }
            },
            |fs| {
                let mut before = 0;
                for _ in 0..4 {
                    let stat = fs.stat(at(fs, "/one/file")).unwrap();
                    assert!(stat.version >= before, "it went back");
                    before = stat.version;
                }
            },
        ],
        |fs| {
            let stat = fs.stat(at(fs, "/one/file")).unwrap();
            assert_eq!(stat.mode.0 & 0o7777, 0o711);
        },
    );
}

#[test]
fn a_file_that_is_written_and_cut_at_once_is_one_or_the_other() {
    check(
        &[
            |fs| {
                let written = fs.write_at(at(fs, "/one/file"), &[b'w'; 5000], 0);
                assert_eq!(written.unwrap(), 5000);
            },
            |fs| fs.truncate(at(fs, "/one/file"), 1000).unwrap(),
            |fs| {
                let mut content = [0; 6000];
                let len = fs.read_at(at(fs, "/one/file"), &mut content, 0).unwrap();
                assert!([8, 1000, 5000].contains(&len), "{len} bytes");
            },
        ],
        |fs| {
            let mut content = [0; 6000];
            let file = at(fs, "/one/file");
            let len = fs.read_at(file, &mut content, 0).unwrap();
            assert!([1000, 5000].contains(&len), "{len} bytes");
            assert!(content[..len].iter().all(|&byte| byte == b'w'));
        },
    );
}

#[test]
fn opening_a_name_that_is_being_removed_gives_the_file_or_not_found() {
    check(
        &[
            |fs| fs.unlink(at(fs, "/two"), b"file").unwrap(),
            |fs| {
                let two = at(fs, "/two");
                if let Ok(open) = OpenInode::named(fs, two, b"file") {
                    let mut content = [0; 8];
                    assert_eq!(fs.read_at(open.inode(), &mut content, 0).unwrap(), 8);
                    assert_eq!(&content, b"two/file");
                    open.close().unwrap();
                }
            },
            |fs| assert_eq!(errno(fs.create(at(fs, "/two"), b"another", &OWNER)), 0),
        ],
        |fs| {
            assert!(!is_there(fs, "/two/file") && is_there(fs, "/two/another"));
        },
    );
}

#[test]
fn what_is_made_open_is_one_file_whatever_others_do_to_its_name() {
    check(
        &[
            |fs| {
                let open = OpenInode::created(fs, at(fs, "/two"), b"new", &OWNER).unwrap();
                fs.write_at(open.inode(), b"content", 0).unwrap();
                let mut content = [0; 7];
                assert_eq!(fs.read_at(open.inode(), &mut content, 0).unwrap(), 7);
                assert_eq!(&content, b"content");
                open.close().unwrap();
            },
            |fs| {
                let gone = errno(fs.unlink(at(fs, "/two"), b"new"));
                assert!(gone == 0 || gone == rustix::io::Errno::NOENT.raw_os_error());
            },
            // A task that has a number, and not the name.
            |fs| {
                if let Ok(inode) = fs.lookup(at(fs, "/two"), b"new")
                    && let Ok(stat) = fs.stat(inode)
                {
                    assert_eq!(stat.file_type, FileType::Regular);
                }
                assert_eq!(errno(fs.mkdir(at(fs, "/two"), b"dir", &OWNER)), 0);
            },
        ],
        |fs| {
            assert!(is_there(fs, "/two/dir"));
            if is_there(fs, "/two/new") {
                assert_eq!(fs.stat(at(fs, "/two/new")).unwrap().size_bytes, 7);
            }
        },
    );
}

#[test]
fn a_waiter_for_space_is_woken_when_the_space_becomes_free() {
    /// Half of the free space, in bytes.
    const HALF_BYTES: u64 = 900 << 10;
    fn fill(fs: &Fs, path: &str) {
        let file = at(fs, path);
        fs.fallocate(file, Fallocate::AllocateKeepSize, 0, HALF_BYTES)
            .unwrap();
    }
    fn empty_and_fill(fs: &Fs, path: &str) {
        fs.truncate(at(fs, path), 0).unwrap();
        fill(fs, path);
    }
    check_from(
        |fs| {
            fill(fs, "/one/file");
            fill(fs, "/two/file");
            let stat = fs.statfs().unwrap();
            let free = stat.available_blocks * stat.block_bytes as u64;
            // A task gets space only after the other task's blocks are free again.
            let rest = free.saturating_sub(100 << 10);
            let file = at(fs, "/one/below/file");
            fs.fallocate(file, Fallocate::AllocateKeepSize, 0, rest)
                .unwrap();
        },
        &[
            |fs| empty_and_fill(fs, "/one/file"),
            |fs| empty_and_fill(fs, "/two/file"),
            |fs| {
                for _ in 0..3 {
                    fs.read_dir(at(fs, "/large")).unwrap();
                }
            },
        ],
        |fs| {
            let sectors = |path| fs.stat(at(fs, path)).unwrap().sectors;
            for path in ["/one/file", "/two/file"] {
                assert!(sectors(path) >= HALF_BYTES / 512);
            }
        },
    );
}

/// What a user uses, by the quota file, which is written at each seal.
fn used(fs: &Fs, id: u32) -> QuotaCounts {
    let report = fs.quota(QuotaKind::User).unwrap().unwrap();
    let entry = report.entries.get(&id);
    entry.map(|entry| entry.counts).unwrap_or_default()
}

/// Makes files of user 7 with a block each, with commits in between, until a limit is met.
fn fill(fs: &Fs, dir: &str) {
    let dir = at(fs, dir);
    for nth in 0..4 {
        let name = format!("{nth}");
        match fs.create(dir, name.as_bytes(), &OWNER) {
            Ok(file) => match fs.write_at(file, &[1; 1000], 0) {
                Ok(_) | Err(Error::QuotaExceeded) => {}
                Err(error) => panic!("{error}"),
            },
            Err(Error::QuotaExceeded) => {}
            Err(error) => panic!("{error}"),
        }
        if nth == 1 {
            fs.sync().unwrap();
        }
        if nth == 2 {
            let _ = fs.unlink(dir, b"0");
        }
    }
}

#[test]
fn usage_adds_up_at_the_seal_and_stays_within_limits() {
    check_on(
        &["quota", "^resize_inode"],
        "usrquota",
        |fs| {
            let limits = QuotaLimits {
                hard_inodes: 5,
                hard_bytes: 4096,
                ..QuotaLimits::default()
            };
            fs.set_quota(QuotaKind::User, 7, limits).unwrap();
        },
        &[
            |fs| fill(fs, "/one"),
            |fs| fill(fs, "/two"),
            |fs| {
                for _ in 0..3 {
                    let counts = used(fs, 7);
                    assert!(counts.inodes <= 5 && counts.bytes <= 4096, "{counts:?}");
                }
            },
        ],
        |fs| {
            let counts = used(fs, 7);
            assert!((3..=5).contains(&counts.inodes), "{counts:?}");
        },
    );
}

/// Makes and removes files, so that one core gives back what another has taken.
fn come_and_go(fs: &Fs, dir: &str) {
    let dir = at(fs, dir);
    for nth in 0..6 {
        let name = format!("{nth}");
        let file = fs.create(dir, name.as_bytes(), &OWNER).unwrap();
        fs.write_at(file, &[1; 1000], 0).unwrap();
        fs.unlink(dir, name.as_bytes()).unwrap();
    }
}

#[test]
fn what_one_core_takes_another_gives_back() {
    check_on(
        &["quota", "^resize_inode"],
        "",
        |_| {},
        &[|fs| come_and_go(fs, "/one"), |fs| come_and_go(fs, "/two")],
        |fs| assert_eq!(used(fs, 7), QuotaCounts::default()),
    );
}
