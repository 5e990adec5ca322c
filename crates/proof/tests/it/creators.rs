//! Many threads create and remove names in one directory: no name is lost or created twice, and the
//! directory's own fields are right, in memory, on disk and after a crash.

use fourscore::{Fs, InodeNr, NewAttributes, Stat};
use fourscore_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use fourscore_sync::thread;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use std::collections::BTreeSet;

use crate::common::{mount, open, require_e2fsprogs, require_kernel, unmount_clean};

const OWNER: NewAttributes = NewAttributes::owned_by(7, 8).permissions(0o755);
const THREADS: u32 = 8;

fn image() -> Image {
    let image = Image::builder(MiB(256)).kind("ext4").block_size_bytes(1024);
    image.arguments(["-N", "65536"]).make().unwrap()
}

fn name(thread: u32, number: u32) -> Vec<u8> {
    format!("the name number {number} of thread {thread}").into_bytes()
}

fn names(fs: &Fs, dir: InodeNr) -> BTreeSet<Vec<u8>> {
    let entries = fs.read_dir(dir).unwrap();
    let names: BTreeSet<_> = entries.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names.len(), entries.len(), "a name is there twice");
    names
}

/// Asserts that a directory's inode was changed later than `before`.
fn assert_later(before: &Stat, after: &Stat) {
    assert!(after.version > before.version, "{before:?} {after:?}");
    assert!(after.mtime >= before.mtime && after.ctime >= before.ctime);
}

#[test]
fn threads_fill_and_empty_one_directory() {
    const EACH: u32 = 1500;
    require_kernel!();
    let image = image();
    let fs = mount(&image);
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut before = fs.stat(dir).unwrap();
            while !is_done.load(Ordering::Acquire) {
                let now = fs.stat(dir).unwrap();
                assert!(now.version >= before.version, "an older version was shown");
                assert!(now.mtime >= before.mtime || now.version == before.version);
                before = now;
                thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let fs = &fs;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let own = name(thread, number);
                        let made = if number % 50 == 7 {
                            fs.mkdir(dir, &own, &OWNER).unwrap()
                        } else {
                            fs.create(dir, &own, &OWNER).unwrap()
                        };
                        assert_eq!(fs.lookup(dir, &own).unwrap(), made);
                        if number % 3 == 0 && number % 50 != 7 {
                            fs.unlink(dir, &own).unwrap();
                            assert!(fs.lookup(dir, &own).is_err());
                        }
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        is_done.store(true, Ordering::Release);
        watcher.join().unwrap();
    });
    let mut expected: BTreeSet<Vec<u8>> = [b".".to_vec(), b"..".to_vec()].into();
    let mut directories = 0;
    for thread in 0..THREADS {
        for number in (0..EACH).filter(|number| number % 3 != 0 || number % 50 == 7) {
            expected.insert(name(thread, number));
            directories += u16::from(number % 50 == 7);
        }
    }
    assert!(names(&fs, dir) == expected);
    let stat = fs.stat(dir).unwrap();
    assert_eq!(stat.links, 2 + directories);
    let changes = u64::from(THREADS) * u64::from(EACH);
    assert!(stat.version > changes, "each change raises it: {stat:?}");
    unmount_clean(fs, &image);
    let again = open(&image);
    assert!(names(&again, dir) == expected);
    assert_eq!(again.stat(dir).unwrap(), stat);
    let kernel = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
    let listed = std::fs::read_dir(kernel.path().join("dir")).unwrap();
    assert_eq!(listed.count(), expected.len() - 2);
}

#[test]
fn exactly_one_of_many_creates_of_one_name_succeeds() {
    const NAMES: u32 = 800;
    require_e2fsprogs!();
    let image = image();
    let fs = mount(&image);
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
    let (made, removed) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fs, made, removed) = (&fs, &made, &removed);
            scope.spawn(move || {
                for number in 0..NAMES {
                    match fs.create(dir, &name(0, number), &OWNER) {
                        Ok(_) => drop(made.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => assert_eq!(error.errno(), 17, "{error}"),
                    }
                    // Half of the threads remove names that exist by then.
                    if thread % 2 == 0 && number % 2 == 0 {
                        match fs.unlink(dir, &name(0, number)) {
                            Ok(()) => drop(removed.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => assert_eq!(error.errno(), 2, "{error}"),
                        }
                    }
                }
            });
        }
    });
    let left = names(&fs, dir).len() - 2;
    let (made, removed) = (made.into_inner(), removed.into_inner());
    assert_eq!(
        left,
        (made - removed) as usize,
        "{made} made, {removed} removed"
    );
    assert!(left >= NAMES as usize / 2);
    unmount_clean(fs, &image);
}

#[test]
fn after_fsync_of_the_directory_a_crash_leaves_its_names_and_times() {
    require_kernel!();
    let image = image();
    let fs = mount(&image);
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
    for number in 0..300 {
        fs.create(dir, &name(0, number), &OWNER).unwrap();
    }
    fs.sync().unwrap();
    let before = fs.stat(dir).unwrap();
    thread::scope(|scope| {
        for thread in 1..=THREADS {
            let fs = &fs;
            scope.spawn(move || {
                for number in 0..4 {
                    fs.create(dir, &name(thread, number), &OWNER).unwrap();
                    fs.fsync(dir).unwrap();
                }
            });
        }
    });
    let stat = fs.stat(dir).unwrap();
    assert_later(&before, &stat);
    let crashed = image.copy().unwrap();
    fs.unmount().unwrap();
    let by_kernel = crashed.copy().unwrap();
    let kernel = KernelMount::new(by_kernel.path(), Access::ReadWrite, "").unwrap();
    for thread in 1..=THREADS {
        let name = String::from_utf8(name(thread, 3)).unwrap();
        assert!(kernel.path().join("dir").join(name).exists());
    }
    drop(kernel);
    assert_clean(by_kernel.path());
    let recovered = mount(&crashed);
    assert_eq!(recovered.stat(dir).unwrap(), stat);
    assert_eq!(names(&recovered, dir).len(), 2 + 300 + 4 * THREADS as usize);
    unmount_clean(recovered, &crashed);
}
