//! Writing: deep trees, threads, tunables, renames. Random operations are in `random`.

use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};

use fourscore::{
    DirEntry, Fallocate, Follow, Fs, InodeNr, MountOptions, NewAttributes, OpenOptions, Replace,
};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_mballoc::Tunable;
use fourscore_mballoc::stats::Count;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::epoch::{self, EpochCell};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, debugfs, debugfs_write};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{mount, mount_with, open, require_e2fsprogs, require_kernel, unmount_clean};

const OWNER: NewAttributes = NewAttributes::owned_by(7, 8).permissions(0o755);

/// The time limit for operations that should take almost no time.
const PATIENCE: Duration = Duration::from_secs(60);

fn image(block_size: u32, features: &[&str]) -> Image {
    let image = Image::builder(MiB(256))
        .kind("ext4")
        .block_size_bytes(block_size)
        .features(features);
    image.make().unwrap()
}

#[test]
fn what_was_written_is_there_after_unmounting() {
    require_e2fsprogs!();
    let image = image(4096, &[]);
    let fs = mount(&image);
    let root = InodeNr::ROOT;
    let dir = fs.mkdir(root, b"dir", &OWNER).unwrap();
    let file = fs.create(dir, b"file", &OWNER).unwrap();
    let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    fs.write_at(file, &content, 5000).unwrap();
    fs.symlink(dir, b"short", b"file", &OWNER).unwrap();
    fs.symlink(dir, b"long", &[b'x'; 300], &OWNER).unwrap();
    fs.link(file, root, b"other").unwrap();
    fs.rename((dir, b"short"), (root, b"moved"), Replace::Yes)
        .unwrap();
    let refused = |result: fourscore::Result<()>, errno: i32| {
        assert_eq!(result.unwrap_err().errno(), errno);
    };
    refused(fs.rename((dir, b"."), (root, b"x"), Replace::Yes), 16);
    refused(fs.rename((dir, b"file"), (root, b".."), Replace::Yes), 16);
    refused(fs.rename((root, b"dir"), (dir, b"below"), Replace::Yes), 22);
    refused(fs.rename((root, b"moved"), (dir, b"long"), Replace::No), 17);
    refused(fs.rmdir(root, b"dir"), 39);
    refused(fs.rmdir(root, b"moved"), 20);
    refused(fs.unlink(root, b"dir"), 21);
    refused(fs.unlink(root, b"nothing"), 2);
    refused(fs.create(root, &[b'n'; 256], &OWNER).map(drop), 36);
    refused(fs.write_at(dir, b"x", 0).map(drop), 21);
    refused(fs.truncate(file, u64::MAX), 27);
    refused(fs.link(dir, root, b"again"), 1);
    fs.fsync(file).unwrap();
    unmount_clean(fs, &image);
    let fs = open(&image);
    refused(fs.unlink(root, b"moved"), 30);
    let found = fs.resolve(b"other", Follow::Yes).unwrap();
    assert_eq!(fs.stat(found).unwrap().links, 2);
    let mut read = vec![1; 105_000];
    assert_eq!(fs.read_at(found, &mut read, 0).unwrap(), 105_000);
    assert!(read[..5000].iter().all(|&byte| byte == 0));
    assert_eq!(&read[5000..], &content[..]);
    assert_eq!(
        fs.read_link(fs.resolve(b"moved", Follow::No).unwrap())
            .unwrap(),
        b"file"
    );
    let long = fs.resolve(b"dir/long", Follow::No).unwrap();
    assert_eq!(fs.read_link(long).unwrap(), [b'x'; 300]);
}

#[test]
fn directories_and_maps_grow_deep_and_shrink_again() {
    require_e2fsprogs!();
    let image = image(1024, &[]);
    let fs = mount(&image);
    let dir = fs.mkdir(InodeNr::ROOT, b"many", &OWNER).unwrap();
    let name = |number: u32| format!("a name of some length, number {number}").into_bytes();
    let target = fs.create(InodeNr::ROOT, b"target", &OWNER).unwrap();
    for number in 0..20_000 {
        fs.link(target, dir, &name(number)).unwrap();
    }
    let holes = fs.create(InodeNr::ROOT, b"holes", &OWNER).unwrap();
    for number in 0..3000_u64 {
        let offset = number * 7919 % 3000 * 2048;
        fs.write_at(holes, &[b'd'; 1024], offset).unwrap();
    }
    assert_eq!(fs.extents(holes).unwrap().len(), 3000);
    fs.sync().unwrap();
    let between = image.copy().unwrap();
    let recovered = mount(&between);
    for number in 0..20_000 {
        assert_eq!(recovered.lookup(dir, &name(number)).unwrap(), target);
    }
    unmount_clean(recovered, &between);

    for number in 0..20_000 {
        fs.unlink(dir, &name(number)).unwrap();
    }
    fs.rmdir(InodeNr::ROOT, b"many").unwrap();
    fs.truncate(holes, 100_000).unwrap();
    assert_eq!(fs.extents(holes).unwrap().len(), 49);
    fs.unlink(InodeNr::ROOT, b"holes").unwrap();
    unmount_clean(fs, &image);
}

/// With `large_dir` an index has a third level. Long names in small blocks need it soon.
#[test]
fn an_index_grows_to_its_third_level() {
    const NAMES: u32 = 40_000;
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let image = image(1024, &["large_dir"]);
    let fs = mount(&image);
    let dir = fs.mkdir(InodeNr::ROOT, b"many", &OWNER).unwrap();
    let target = fs.create(InodeNr::ROOT, b"target", &OWNER).unwrap();
    let name = |number: u32| format!("{number:0>250}").into_bytes();
    for number in 0..NAMES {
        fs.link(target, dir, &name(number)).unwrap();
    }
    unmount_clean(fs, &image);
    let dumped = debugfs(image.path(), &["htree_dump /many"]).unwrap();
    assert!(dumped.contains("Indirect levels: 2"), "{dumped:.300}");

    let fs = mount(&image);
    for number in 0..NAMES {
        assert_eq!(fs.lookup(dir, &name(number)).unwrap(), target);
    }
    let mut names = 0;
    fs.for_each_entry(dir, |_| {
        names += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(names, NAMES + 2);
    for number in (0..NAMES).step_by(2) {
        fs.unlink(dir, &name(number)).unwrap();
    }
    unmount_clean(fs, &image);
}

/// Counts when it is dropped.
struct Retired(Arc<AtomicU64>);

impl Drop for Retired {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// While its caller looks at a name, a listing of a mounted file system holds no epoch guard.
#[test]
fn a_listing_does_not_keep_what_is_retired_meanwhile() {
    const NAMES: u64 = 3000;
    require!(Need::Program("mke2fs"));
    let image = image(1024, &[]);
    let fs = mount(&image);
    let dir = fs.mkdir(InodeNr::ROOT, b"many", &OWNER).unwrap();
    let target = fs.create(InodeNr::ROOT, b"target", &OWNER).unwrap();
    for number in 0..NAMES {
        let name = format!("a name of some length, number {number}").into_bytes();
        fs.link(target, dir, &name).unwrap();
    }
    let retires_and_waits = || {
        let (dropped, mut listed) = (Arc::new(AtomicU64::new(0)), 0);
        move |_: DirEntry<'_>| {
            listed += 1;
            if listed == NAMES / 2 {
                drop(EpochCell::new(Some(Box::new(Retired(dropped.clone())))));
                epoch::flush();
                // Other tests may have held a guard as well, but not for long.
                let begun = Instant::now();
                while dropped.load(Ordering::Relaxed) == 0 {
                    assert!(begun.elapsed() < PATIENCE, "it is kept");
                    thread::yield_now();
                }
            }
            ControlFlow::Continue(())
        }
    };
    fs.for_each_entry(dir, retires_and_waits()).unwrap();
    fs.scan_entries(dir, &mut Vec::new(), retires_and_waits())
        .unwrap();
    fs.unmount().unwrap();
}

/// A directory whose index is not valid any more is one without an index.
#[test]
fn an_index_without_its_feature_is_given_up() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let image = image(1024, &["^metadata_csum"]);
    let fs = mount(&image);
    let dir = fs.mkdir(InodeNr::ROOT, b"many", &OWNER).unwrap();
    let target = fs.create(InodeNr::ROOT, b"target", &OWNER).unwrap();
    let name = |number: u32| format!("a name of some length, number {number}").into_bytes();
    for number in 0..200 {
        fs.link(target, dir, &name(number)).unwrap();
    }
    let indexed = |fs: &Fs| fs.stat(dir).unwrap().flags.contains(InodeFlags::INDEX_FL);
    assert!(indexed(&fs));
    fs.unmount().unwrap();
    debugfs_write(image.path(), &["feature -dir_index"]).unwrap();
    let fs = mount(&image);
    for number in 200..300 {
        fs.link(target, dir, &name(number)).unwrap();
    }
    assert!(!indexed(&fs));
    unmount_clean(fs, &image);
    let fs = open(&image);
    for number in 0..300 {
        assert_eq!(fs.lookup(dir, &name(number)).unwrap(), target);
    }
}

#[test]
fn threads_work_side_by_side() {
    require_e2fsprogs!();
    let image = image(4096, &[]);
    // The cache is so small that blocks of plans are evicted.
    let cache = OpenOptions::new().cache_bytes(1 << 20);
    let fs = mount_with(&image, &MountOptions::new().open(cache));
    let shared = fs.mkdir(InodeNr::ROOT, b"shared", &OWNER).unwrap();
    thread::scope(|scope| {
        for thread in 0..8_u32 {
            let fs = &fs;
            scope.spawn(move || {
                let own = format!("own {thread}").into_bytes();
                let own = fs.mkdir(InodeNr::ROOT, &own, &OWNER).unwrap();
                for number in 0..300 {
                    let name = format!("{thread}-{number}").into_bytes();
                    let file = fs.create(shared, &name, &OWNER).unwrap();
                    fs.write_at(file, &name, number * 1000).unwrap();
                    match number % 3 {
                        0 => fs
                            .rename((shared, &name), (own, &name), Replace::No)
                            .unwrap(),
                        1 => fs.unlink(shared, &name).unwrap(),
                        _ => assert_eq!(fs.lookup(shared, &name).unwrap(), file),
                    }
                    if number % 50 == 0 {
                        fs.fsync(file).unwrap_or_default();
                    }
                }
            });
        }
    });
    let check = |fs: &Fs| {
        for thread in 0..8_u32 {
            for number in 0..300_u64 {
                let (own, name) = (format!("own {thread}/"), format!("{thread}-{number}"));
                let dir = match number % 3 {
                    0 => &own,
                    1 => continue,
                    _ => "shared/",
                };
                let path = [dir, &*name].concat().into_bytes();
                let file = fs.resolve(&path, Follow::No).unwrap();
                let mut content = vec![0; name.len()];
                fs.read_at(file, &mut content, number * 1000).unwrap();
                assert_eq!(content, name.as_bytes());
            }
        }
    };
    check(&fs);
    // Operations restart now and then, and none restarts without end.
    let (restarts, operations) = (fs.stats().mount.unwrap().plan_restarts, 8 * 300 * 3);
    assert!(
        restarts < operations,
        "{restarts} of {operations} plans were restarted"
    );
    unmount_clean(fs, &image);
    check(&open(&image));
}

#[test]
fn readers_miss_nothing_while_maps_and_directories_are_divided() {
    require_e2fsprogs!();
    let image = image(1024, &[]);
    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &OWNER).unwrap();
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
    let place = |number: u64| number * 7919 % 4000 * 2048;
    let name = |number: u64| format!("name {number}").into_bytes();
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for reader in 0..3_u64 {
            let (fs, done) = (&fs, &done);
            scope.spawn(move || {
                let mut random = Rng::new(reader);
                loop {
                    let there = done.load(Ordering::Acquire);
                    if there == 4000 {
                        return;
                    }
                    if there == 0 {
                        continue;
                    }
                    let number = random.bits() % there;
                    let mut byte = [0];
                    fs.read_at(file, &mut byte, place(number)).unwrap();
                    assert_eq!(byte, [b'w'], "block {number}");
                    assert_eq!(fs.lookup(dir, &name(number)).unwrap(), file);
                }
            });
        }
        for number in 0..4000 {
            fs.write_at(file, &[b'w'; 1024], place(number)).unwrap();
            fs.link(file, dir, &name(number)).unwrap();
            done.store(number + 1, Ordering::Release);
        }
    });
    unmount_clean(fs, &image);
}

#[test]
fn tunables_are_set_at_the_mount_and_while_it_lasts() {
    require_e2fsprogs!();
    let image = image(4096, &[]);
    let device = || Arc::new(open_path(image.path(), DeviceOptions::read_write()).unwrap());
    let refused = MountOptions::new().tunable("mb_no_such", 1);
    assert!(Fs::mount(device(), &refused).is_err());
    let refused = MountOptions::new().tunable("mb_optimize_scan", 7);
    assert!(Fs::mount(device(), &refused).is_err());
    let options = MountOptions::new().parse("defaults,mb_optimize_scan=0");
    let fs = Fs::mount(device(), &options.unwrap()).unwrap();
    let scan = Tunable::MbOptimizeScan;
    assert_eq!(fs.tunables().unwrap().get(scan), 0);
    let file = fs.create(InodeNr::ROOT, b"file", &OWNER).unwrap();
    fs.write_at(file, &[1; 1 << 20], 0).unwrap();
    fs.tunables().unwrap().set(scan, 1).unwrap();
    fs.write_at(file, &[1; 1 << 20], 1 << 21).unwrap();
    let stats = fs.stats().mount.unwrap().allocator;
    assert!(
        stats[Count::Reqs] >= 2 && stats[Count::Success] >= 2,
        "{stats:?}"
    );
    unmount_clean(fs, &image);
}

#[test]
fn unused_buddies_leave_memory() {
    require_e2fsprogs!();
    // 32 groups of 8 MiB, each nearly filled by a file; the cache has space for four groups.
    let image = image(1024, &[]);
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let options = MountOptions::new().buddy_bytes(4 * 2 * 1024);
    let fs = Fs::mount(Arc::new(device), &options).unwrap();
    let mut most = 0;
    for number in 0..20_u32 {
        let name = number.to_string();
        let file = fs.create(InodeNr::ROOT, name.as_bytes(), &OWNER).unwrap();
        let bytes = 8 << 20;
        fs.fallocate(file, Fallocate::Allocate, 0, bytes).unwrap();
        most = most.max(fs.stats().mount.unwrap().groups_loaded);
    }
    assert!(most >= 20, "{most} groups at once");
    for number in 0..5_u32 {
        // A change that can be committed.
        let name = format!("more {number}");
        fs.create(InodeNr::ROOT, name.as_bytes(), &OWNER).unwrap();
        fs.sync().unwrap();
    }
    let left = fs.stats().mount.unwrap().groups_loaded;
    assert!(left <= 8, "{left} groups are left of {most}");
    for number in 0..20_u32 {
        let name = number.to_string();
        fs.unlink(InodeNr::ROOT, name.as_bytes()).unwrap();
    }
    unmount_clean(fs, &image);
}

/// The blocks reserved for the super-user are used by mounts that request them.
#[test]
fn only_privileged_callers_use_the_reserve() {
    require_e2fsprogs!();
    let image = image(1024, &[]);
    let fill = |name: &[u8], options: MountOptions| {
        let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
        let fs = Fs::mount(Arc::new(device), &options).unwrap();
        let file = fs.create(InodeNr::ROOT, name, &OWNER).unwrap();
        let mut size = 0;
        while fs.write_at(file, &[1; 64 << 10], size).is_ok() {
            size += 64 << 10;
        }
        let free = fs.statfs().unwrap().free_blocks;
        unmount_clean(fs, &image);
        (size, free)
    };
    let reserved = open(&image).superblock().reserved_blocks().0;
    assert!(reserved > 5_000, "{reserved} blocks are kept");
    // As many more are kept for nodes of extent trees.
    let kept = (open(&image).geometry().blocks().0 / 50).min(4096);
    let (_, free) = fill(b"user", MountOptions::new());
    let all = reserved + kept;
    assert!((all..all + 100).contains(&free), "{free} are free");
    let (size, free) = fill(b"root", MountOptions::new().use_reserve());
    assert!(
        size > 0 && free < 100,
        "{size} bytes more, {free} blocks free"
    );
}

/// Names are exchanged, also across directories, and whiteouts are as overlayfs expects them.
#[test]
fn names_change_places_and_leave_whiteouts() {
    require_kernel!();
    let image = image(4096, &[]);
    let fs = mount(&image);
    let root = InodeNr::ROOT;
    let one = fs.mkdir(root, b"one", &OWNER).unwrap();
    let two = fs.mkdir(root, b"two", &OWNER).unwrap();
    let dir = fs.mkdir(one, b"dir", &OWNER).unwrap();
    let file = fs.create(two, b"file", &OWNER).unwrap();
    let refused = |result: fourscore::Result<()>, errno: i32| {
        assert_eq!(result.unwrap_err().errno(), errno);
    };
    refused(fs.exchange((one, b"dir"), (two, b"nothing")), 2);
    refused(fs.exchange((root, b"one"), (one, b"dir")), 22);
    refused(fs.exchange((one, b"dir"), (root, b"one")), 22);
    refused(fs.exchange((one, b"dir"), (two, b"..")), 16);
    fs.exchange((one, b"dir"), (two, b"file")).unwrap();
    assert_eq!(fs.lookup(one, b"dir").unwrap(), file);
    assert_eq!(fs.lookup(two, b"file").unwrap(), dir);
    assert_eq!(fs.lookup(dir, b"..").unwrap(), two);
    let links = |nr| fs.stat(nr).unwrap().links;
    assert_eq!((links(one), links(two)), (2, 3));
    // In one directory, and two directories.
    fs.exchange((root, b"one"), (root, b"two")).unwrap();
    assert_eq!(fs.lookup(root, b"one").unwrap(), two);
    fs.exchange((root, b"two"), (two, b"file")).unwrap();
    assert_eq!(fs.lookup(two, b"file").unwrap(), one);
    assert_eq!(fs.lookup(one, b"..").unwrap(), two);
    assert_eq!(fs.lookup(dir, b"..").unwrap(), root);
    // one/{file/{dir: a file}}, two: a directory
    let (from, to) = ((one, &b"dir"[..]), (root, &b"moved"[..]));
    fs.rename_leaving_whiteout(from, to, Replace::No, &OWNER)
        .unwrap();
    refused(
        fs.rename_leaving_whiteout(from, to, Replace::No, &OWNER),
        17,
    );
    unmount_clean(fs, &image);
    let kernel = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
    let at = |path: &str| std::fs::symlink_metadata(kernel.path().join(path)).unwrap();
    let whiteout = at("one/file/dir");
    assert!(whiteout.file_type().is_char_device());
    assert_eq!((whiteout.rdev(), whiteout.mode() & 0o7777), (0, 0));
    assert!(at("moved").is_file() && at("two").is_dir() && at("one/file").is_dir());
    assert_eq!((at("one").nlink(), at("two").nlink()), (3, 2));
}

/// A write of 1 MiB where 300 KiB are left takes what the kernel takes page by page. (A write of
/// Linux 6.18 fails as a whole if a folio of its page cache, which may be as large as the write,
/// has no space.)
#[test]
fn a_write_that_does_not_fit_takes_what_linux_takes() {
    require_kernel!();
    let image = Image::builder(MiB(16)).kind("ext4").block_size_bytes(1024);
    let image = image.arguments(["-m", "0"]).make().unwrap();
    let fs = mount(&image);
    let filler = fs.create(InodeNr::ROOT, b"filler", &OWNER).unwrap();
    let available = fs.statfs().unwrap().available_blocks;
    let filled = (available - 300) * 1024;
    fs.fallocate(filler, Fallocate::Allocate, 0, filled)
        .unwrap();
    fs.unmount().unwrap();
    let theirs = image.copy().unwrap();
    let bytes = vec![7; 1 << 20];

    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &OWNER).unwrap();
    let ours = fs.write_at(file, &bytes, 0).unwrap();
    assert_eq!(fs.stat(file).unwrap().size_bytes, ours as u64);
    fs.unmount().unwrap();
    assert_clean(image.path());

    let kernel = KernelMount::new(theirs.path(), Access::ReadWrite, "").unwrap();
    let host = std::fs::File::create(kernel.path().join("file")).unwrap();
    let mut found = 0;
    for page in bytes.chunks(4096) {
        match std::os::unix::fs::FileExt::write_at(&host, page, found as u64) {
            Ok(written) => found += written,
            Err(error) if error.raw_os_error() == Some(28) => break,
            Err(error) => panic!("{error}"),
        }
    }
    drop(host);
    kernel.unmount().unwrap();
    println!("{ours} bytes, and {found} in Linux");
    // The kernel keeps some blocks for nodes of the tree, which are not needed.
    assert!(ours.abs_diff(found) <= 24 * 1024, "{ours} and {found}");
    assert!(found > 200 * 1024 && ours < bytes.len());
}
