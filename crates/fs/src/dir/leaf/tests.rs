//! Threads that change names in different leaves do not wait for each other. Threads that change
//! names in one leaf do, and so does a thread that needs the whole directory.

use std::time::{Duration, Instant};

use fourscore_block::{DeviceOptions, open_path};
use fourscore_ondisk::superblock::Superblock;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::dir::leaf;
use crate::inode::cache;
use crate::{Fs, MountOptions};

const OWNER: NewAttributes = NewAttributes::owned_by(7, 8).permissions(0o755);

/// A directory with an index over some leaves, none of which is full.
fn large_directory() -> (Image, Arc<Fs>, InodeNr) {
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
    let image = image.make().unwrap();
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let fs = Fs::mount(Arc::new(device), &MountOptions::new()).unwrap();
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
    for number in 0..200 {
        fs.create(dir, &name(number), &OWNER).unwrap();
    }
    for number in (0..200).step_by(2) {
        fs.unlink(dir, &name(number)).unwrap();
    }
    (image, fs, dir)
}

fn name(number: u32) -> Vec<u8> {
    format!("a name of some length, number {number}").into_bytes()
}

/// Whether `flag` is set within the time `within`.
fn is_set(flag: &AtomicBool, within: Duration) -> bool {
    let end = Instant::now() + within;
    while !flag.load(Ordering::Acquire) {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

fn leaf_of(fs: &Fs, dir: InodeNr, name: &[u8]) -> PhysBlock {
    let pinned = cache::pin_inode(&fs.core, dir).unwrap();
    let inode = pinned.copy().unwrap();
    let leaf = leaf::lock_leaf(fs.writable().unwrap(), &pinned, &inode, name);
    leaf.unwrap().unwrap().block
}

#[test]
fn creators_wait_for_their_own_leaf_only() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    wait_for_their_own_leaf_only(|fs, dir, name| {
        fs.create(dir, name, &OWNER).unwrap();
    });
}

#[test]
fn a_link_waits_for_its_own_leaf_only() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    wait_for_their_own_leaf_only(|fs, dir, name| {
        let file = fs.lookup(InodeNr::ROOT, b"file");
        let file = file.or_else(|_| fs.create(InodeNr::ROOT, b"file", &OWNER));
        let file = file.unwrap();
        let links = fs.stat(file).unwrap().links;
        fs.link(file, dir, name).unwrap();
        assert_eq!(fs.stat(file).unwrap().links, links + 1);
        assert_eq!(fs.link(file, dir, name).unwrap_err().errno(), 17);
    });
}

#[test]
fn a_file_without_a_name_gets_one_in_a_leaf() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (image, fs, dir) = large_directory();
    let open = crate::OpenInode::unnamed(&*fs, dir, &OWNER).unwrap();
    fs.link(open.inode(), dir, &name(0)).unwrap();
    fs.unlink(dir, &name(0)).unwrap();
    let again = fs.link(open.inode(), dir, &name(0));
    assert_eq!(again.unwrap_err().errno(), 2, "it had its name");
    let kept = crate::OpenInode::unnamed(&*fs, dir, &OWNER).unwrap();
    fs.link(kept.inode(), dir, &name(0)).unwrap();
    let inode = kept.inode();
    kept.close().unwrap();
    open.close().unwrap();
    assert_eq!(fs.lookup(dir, &name(0)).unwrap(), inode);
    assert_eq!(fs.stat(inode).unwrap().links, 1);
    fs.unmount().unwrap();
    assert_clean(image.path());
}

/// Checks that `make` ignores the locks of other leaves, and waits for that of its own.
fn wait_for_their_own_leaf_only(make: fn(&Fs, InodeNr, &[u8])) {
    let (image, fs, dir) = large_directory();
    let held = leaf_of(&fs, dir, &name(0));
    let lock = |block: PhysBlock| fs.writable().unwrap().leaves().lock(block.0);
    // Another leaf, which has another lock.
    let elsewhere = (1..).map(|nth| 2 * nth).find(|&number| {
        let block = leaf_of(&fs, dir, &name(number));
        let guard = lock(held);
        let (fs, done) = (&fs, &AtomicBool::new(false));
        block != held
            && thread::scope(|scope| {
                scope.spawn(move || {
                    make(fs, dir, &name(number));
                    done.store(true, Ordering::Release);
                });
                let is_free = is_set(done, Duration::from_secs(5));
                drop(guard);
                is_free
            })
    });
    assert!(fs.lookup(dir, &name(elsewhere.unwrap())).is_ok());

    waits_for_a_leaf(&fs, dir, lock(held), make, &name(1));
    fs.unmount().unwrap();
    assert_clean(image.path());
}

/// Checks that a thread that makes a name waits for the leaf whose lock is held; a lookup of
/// `there` does not wait.
fn waits_for_a_leaf(
    fs: &Fs,
    dir: InodeNr,
    held: StripeGuard<'_>,
    make: fn(&Fs, InodeNr, &[u8]),
    there: &[u8],
) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            make(fs, dir, &name(0));
            done.store(true, Ordering::Release);
        });
        let went = is_set(done, Duration::from_millis(300));
        assert!(!went, "it went past the lock");
        assert!(fs.lookup(dir, there).is_ok(), "lookups never wait");
        drop(held);
        assert!(is_set(done, Duration::from_secs(60)));
    });
    assert!(fs.lookup(dir, &name(0)).is_ok());
}

/// The thread that holds the leaf while others wait for it may add a name of an inode that the file
/// system has only since it grew.
#[test]
fn the_size_is_read_behind_the_lock_of_a_leaf() {
    require!(Need::Program("mke2fs"));
    let (_image, fs, dir) = large_directory();
    let held = leaf_of(&fs, dir, &name(0));
    let grown = fs.core.superblock().clone();
    fs.core.superblock.publish(without_last_group(&grown));
    let held = fs.writable().unwrap().leaves().lock(held.0);
    let limit = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let pinned = cache::pin_inode(&fs.core, dir).unwrap();
            let inode = pinned.copy().unwrap();
            let leaf = leaf::lock_leaf(fs.writable().unwrap(), &pinned, &inode, &name(0));
            leaf.unwrap().unwrap().format.inodes_count
        });
        thread::sleep(Duration::from_millis(200));
        fs.core.superblock.publish(grown.clone());
        drop(held);
        waiting.join().unwrap()
    });
    assert_eq!(limit.0, grown.geometry().inodes());
}

/// The superblock as it was before the last group was added.
fn without_last_group(superblock: &Superblock) -> Superblock {
    let (geometry, mut raw) = (superblock.geometry(), *superblock.raw());
    let blocks = raw.s_blocks_count_lo.get() - geometry.blocks_per_group();
    let inodes = geometry.inodes() - geometry.inodes_per_group();
    (raw.s_blocks_count_lo, raw.s_inodes_count) = (blocks.into(), inodes.into());
    raw.seal();
    Superblock::try_from(&raw).unwrap()
}

#[test]
fn names_of_a_directory_of_one_block_wait_for_its_own_lock() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (image, fs, _) = large_directory();
    let dir = fs.mkdir(InodeNr::ROOT, b"small", &OWNER).unwrap();
    fs.create(dir, &name(1), &OWNER).unwrap();
    let pinned = cache::pin_inode(&fs.core, dir).unwrap();
    let make = |fs: &Fs, dir, name: &[u8]| {
        fs.create(dir, name, &OWNER).unwrap();
    };
    waits_for_a_leaf(&fs, dir, pinned.lock_only_leaf(), make, &name(1));
    drop(pinned);
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn names_of_a_directory_of_one_block_come_and_go_beside_others() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (image, fs, _) = large_directory();
    let dir = fs.mkdir(InodeNr::ROOT, b"small", &OWNER).unwrap();
    let pinned = cache::pin_inode(&fs.core, dir).unwrap();
    let shared = pinned.share();
    let done = AtomicBool::new(false);
    let exists = 17;
    let kept = thread::scope(|scope| {
        let (fs, done) = (&fs, &done);
        let changes = scope.spawn(move || {
            let file = fs.create(dir, b"file", &OWNER).unwrap();
            fs.link(file, dir, b"link").unwrap();
            fs.unlink(dir, b"file").unwrap();
            let again = fs.create(dir, b"link", &OWNER);
            assert_eq!(again.unwrap_err().errno(), exists);
            fs.mkdir(dir, b"below", &OWNER).unwrap();
            done.store(true, Ordering::Release);
            file
        });
        assert!(is_set(done, Duration::from_secs(60)), "it waits");
        changes.join().unwrap()
    });
    drop(shared);
    assert_eq!(fs.lookup(dir, b"link").unwrap(), kept);
    assert_eq!(fs.lookup(dir, b"file").unwrap_err().errno(), 2);
    assert_eq!(fs.stat(dir).unwrap().links, 3);
    // When the block is full, the directory gets an index.
    for number in 0..40 {
        fs.create(dir, &name(number), &OWNER).unwrap();
    }
    assert!(fs.stat(dir).unwrap().size_bytes > 1024);
    for number in 0..40 {
        fs.unlink(dir, &name(number)).unwrap();
    }
    assert_eq!(fs.lookup(dir, b"link").unwrap(), kept);
    drop(pinned);
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn an_exclusive_lock_of_a_directory_waits_for_shared_holders() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let waits = || Fs::lock_waits().find(|(name, _)| *name == "directory");
    let waits = || waits().expect("a kind of lock").1;
    let before = waits();
    let (image, fs, dir) = large_directory();
    let pinned = cache::pin_inode(&fs.core, dir).unwrap();
    let shared = pinned.share();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (fs, done) = (&fs, &done);
        scope.spawn(move || {
            fs.rename((dir, &name(1)), (dir, &name(0)), crate::Replace::No)
                .unwrap();
            done.store(true, Ordering::Release);
        });
        let went = is_set(done, Duration::from_millis(300));
        assert!(!went, "it went past who shares");
        drop(shared);
        assert!(is_set(done, Duration::from_secs(60)));
    });
    assert!(waits().count > before.count && waits().time > before.time);
    drop(pinned);
    fs.unmount().unwrap();
    assert_clean(image.path());
}
