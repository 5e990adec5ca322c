//! Operations on the device as a whole: other hosts (MMP), freezing, trimming, discarding. The
//! kernel, e2fsck and debugfs check the result.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use fourscore::{Discard, Error, Follow, Fs, MountOptions, OpenInode, Trim};
use fourscore_block::mmp::Claimed;
use fourscore_block::{BlockDevice, DeviceOptions, FileDevice, open_path};
use fourscore_ondisk::mmp::MmpSequence;
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{
    assert_clean, debugfs, debugfs_write, dumpe2fs_header, e2fsck_repair,
};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{other_host, require};

use crate::common::{PLAIN, ROOT, image, mount, open, require_e2fsprogs, try_mount, unmount_clean};

/// Writes the MMP block of an image as another host would.
fn another_host(image: &Image, sequence: MmpSequence) {
    other_host::leave(image.path(), sequence).unwrap();
}

#[test]
fn the_volume_label_changes() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs")
    );
    // The superblock has a block to itself, shares a block, or has no checksum.
    for (block_size_bytes, features) in [(1024, &[][..]), (4096, &[]), (4096, &["^metadata_csum"])]
    {
        let image = Image::builder(MiB(16)).kind("ext4").features(features);
        let image = image.block_size_bytes(block_size_bytes).make().unwrap();
        let fs = mount(&image);
        assert_eq!(fs.label().unwrap(), b"");
        fs.set_label(b"sixteen bytes is").unwrap();
        assert_eq!(fs.label().unwrap(), b"sixteen bytes is");
        for wrong in [&b"seventeen byteser"[..], b"a\0b"] {
            let refused = fs.set_label(wrong);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))));
        }
        fs.set_label(b"short").unwrap();
        // Readers do not wait for the thaw.
        fs.freeze().unwrap();
        assert_eq!(fs.label().unwrap(), b"short");
        fs.thaw().unwrap();
        // Other fields of the superblock change at the same time.
        let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
        fs.set_xattr(file, b"user.x", &[1; 900], fourscore::SetXattr::Any)
            .unwrap();
        unmount_clean(fs, &image);
        let header = dumpe2fs_header(image.path()).unwrap();
        assert_eq!(header["Filesystem volume name"], "short");
        let fs = open(&image);
        assert_eq!(fs.label().unwrap(), b"short");
        assert!(matches!(fs.set_label(b"x"), Err(Error::ReadOnly(_))));
    }
}

fn mmp_lines(image: &Image) -> String {
    debugfs(image.path(), &["dump_mmp"]).unwrap()
}

#[test]
fn mmp_is_kept_while_mounted_and_given_back() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let image = image(&["mmp"]);
    let began = Instant::now();
    let fs = mount(&image);
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "the image was not in use"
    );
    let first = mmp_lines(&image);
    let node = rustix::system::uname();
    assert!(
        first.contains(&*node.nodename().to_string_lossy()),
        "{first}"
    );
    let sequence = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("sequence"));
        line.unwrap().to_owned()
    };
    // The MMP block changes while the file system is mounted, but not while it is frozen.
    thread::sleep(Duration::from_secs(6));
    assert_ne!(sequence(&first), sequence(&mmp_lines(&image)));
    fs.freeze().unwrap();
    let frozen = mmp_lines(&image);
    thread::sleep(Duration::from_secs(6));
    assert_eq!(frozen, mmp_lines(&image));
    fs.thaw().unwrap();
    fs.create(ROOT, b"file", &PLAIN).unwrap();
    fs.unmount().unwrap();
    assert!(sequence(&mmp_lines(&image)).contains("ff4d4d50"));
    assert_clean(image.path());
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    assert!(kernel.path().join("file").exists());
    kernel.unmount().unwrap();
    mount(&image).unmount().unwrap();
}

#[test]
fn what_another_host_has_or_checks_is_refused_by_its_name() {
    require_e2fsprogs!();
    let image = image(&["mmp"]);
    another_host(&image, MmpSequence::Fsck);
    let error = try_mount(&image, &MountOptions::new()).unwrap_err();
    assert_eq!(error.errno(), 16);
    assert!(error.to_string().contains("elsewhere"), "{error}");

    another_host(&image, MmpSequence::InUse(100));
    let stop = AtomicBool::new(false);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 101.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(Duration::from_millis(500));
                another_host(&image, MmpSequence::InUse(number));
            }
        });
        let error = try_mount(&image, &MountOptions::new()).map(drop);
        stop.store(true, Ordering::Relaxed);
        error.unwrap_err()
    });
    assert!(matches!(error, Error::InUse(_)), "{error}");
    assert!(error.to_string().contains("elsewhere"), "{error}");
    // Reading is allowed.
    open(&image);
    another_host(&image, MmpSequence::Clean);
    assert_clean(image.path());
}

#[test]
fn what_a_host_left_behind_that_died_is_taken_over_after_a_while() {
    require_e2fsprogs!();
    let image = image(&["mmp"]);
    let fs = mount(&image);
    fs.create(ROOT, b"file", &PLAIN).unwrap();
    fs.sync().unwrap();
    // The file system is neither unmounted nor released.
    drop(fs);
    let began = Instant::now();
    let fs = mount(&image);
    assert!(began.elapsed() > Duration::from_secs(10));
    fs.lookup(ROOT, b"file").unwrap();
    unmount_clean(fs, &image);
}

/// A program that works on a file system at rest: a repair, a resize, a change of features.
#[test]
fn the_kernel_mounts_nothing_that_is_claimed() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount
    );
    let image = image(&["mmp"]);
    let sb = open(&image).superblock().clone();
    let device: Arc<dyn BlockDevice> =
        Arc::new(open_path(image.path(), DeviceOptions::read_write()).unwrap());
    let claimed = Claimed::take(Arc::clone(&device), &sb).unwrap();
    let began = Instant::now();
    KernelMount::new(image.path(), Access::ReadWrite, "").unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(10), "it has waited");
    let refused = e2fsck_repair(image.path(), &[]).unwrap_err().to_string();
    assert!(refused.contains("MMP"), "{refused}");
    claimed.release().unwrap();
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    kernel.unmount().unwrap();
    Claimed::take(Arc::clone(&device), &sb)
        .unwrap()
        .release()
        .unwrap();
    assert_clean(image.path());
}

#[test]
fn a_copy_of_what_is_frozen_is_clean_and_writers_wait() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs"),
        Need::KernelMount
    );
    let image = image(&["orphan_file"]);
    let fs = mount(&image);
    assert_eq!(fs.thaw().unwrap_err().errno(), 22);
    let nameless = OpenInode::unnamed(&*fs, ROOT, &PLAIN).unwrap();
    fs.write_at(nameless.inode(), &[1; 50_000], 0).unwrap();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for writer in 0..4_u64 {
            let (fs, stop, written) = (&fs, &stop, &written);
            scope.spawn(move || {
                let dir = fs.mkdir(ROOT, format!("d{writer}").as_bytes(), &PLAIN);
                let dir = dir.unwrap();
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("f{}", number % 50);
                    if let Ok(old) = fs.lookup(dir, name.as_bytes()) {
                        fs.truncate(old, 100).unwrap();
                        fs.unlink(dir, name.as_bytes()).unwrap();
                    }
                    let file = fs.create(dir, name.as_bytes(), &PLAIN).unwrap();
                    fs.write_at(file, &[(number % 251) as u8; 9000], number % 7)
                        .unwrap();
                    fs.write_at(file, &[(number % 251) as u8; 9000], number % 7)
                        .unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(50));
            fs.freeze().unwrap();
            assert_eq!(fs.freeze().unwrap_err().errno(), 16);
            let first = image.copy().unwrap();
            let before = written.load(Ordering::Relaxed);
            // Readers continue, and no write reaches the device.
            fs.read_at(nameless.inode(), &mut [0; 100], 0).unwrap();
            fs.sync().unwrap();
            thread::sleep(Duration::from_millis(50));
            let second = image.copy().unwrap();
            assert!(std::fs::read(first.path()).unwrap() == std::fs::read(second.path()).unwrap());
            // Operations that were in progress may still be counted.
            assert!(written.load(Ordering::Relaxed) <= before + 4);
            fs.thaw().unwrap();
            let header = dumpe2fs_header(first.path()).unwrap();
            assert!(!header["Filesystem features"].contains("needs_recovery"));
            let kernel = KernelMount::new(first.path(), Access::ReadOnly, "noload").unwrap();
            assert!(kernel.path().join("d3").exists());
            kernel.unmount().unwrap();
            // Only the file without a name remains to be cleaned up.
            e2fsck_repair(second.path(), &[]).unwrap();
            assert_clean(second.path());
        }
        stop.store(true, Ordering::Relaxed);
    });
    nameless.close().unwrap();
    let header = dumpe2fs_header(image.path()).unwrap();
    assert!(header["Filesystem features"].contains("needs_recovery"));
    unmount_clean(fs, &image);
}

#[test]
fn what_is_done_after_a_thaw_is_recovered() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = mount(&image);
    fs.create(ROOT, b"before", &PLAIN).unwrap();
    fs.freeze().unwrap();
    fs.thaw().unwrap();
    let file = fs.create(ROOT, b"after", &PLAIN).unwrap();
    fs.write_at(file, b"content", 0).unwrap();
    fs.fsync(file).unwrap();
    let copy = image.copy().unwrap();
    let crashed = open(&copy);
    let after = crashed.resolve(b"/after", Follow::No).unwrap();
    let mut content = [0; 7];
    crashed.read_at(after, &mut content, 0).unwrap();
    assert_eq!(&content, b"content");
    let fs_of_copy = mount(&copy);
    unmount_clean(fs_of_copy, &copy);
    // A frozen file system can be unmounted.
    fs.freeze().unwrap();
    unmount_clean(fs, &image);
}

fn allocated_bytes(image: &Image) -> u64 {
    std::fs::metadata(image.path()).unwrap().blocks() * 512
}

/// Writes 20 MiB and removes the file again, so that the image has blocks that are not in use.
fn make_garbage(fs: &Fs) {
    let file = fs.create(ROOT, b"garbage", &PLAIN).unwrap();
    fs.write_at(file, &vec![7; 20 << 20], 0).unwrap();
    fs.sync().unwrap();
    fs.unlink(ROOT, b"garbage").unwrap();
}

/// Freed space waits for its commit, and for readers until the commit after it.
fn settle(fs: &Fs) {
    for _ in 0..3 {
        fs.create(ROOT, b"settle", &PLAIN).unwrap();
        fs.unlink(ROOT, b"settle").unwrap();
        fs.sync().unwrap();
    }
}

#[test]
fn trimming_gives_free_space_back_and_nothing_else() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = mount(&image);
    let kept = fs.create(ROOT, b"kept", &PLAIN).unwrap();
    let content: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 253) as u8).collect();
    fs.write_at(kept, &content, 0).unwrap();
    make_garbage(&fs);
    settle(&fs);
    let before = allocated_bytes(&image);
    let free = fs.statfs().unwrap();
    let free = free.free_blocks * free.block_bytes as u64;
    let told = fs.trim(&Trim::default()).unwrap();
    // Space that is preallocated for the file is not trimmed.
    assert!(told <= free && told + (4 << 20) > free, "{told} of {free}");
    assert!(allocated_bytes(&image) + (19 << 20) < before);
    // All of it was trimmed; a part of the range is known to be trimmed, too.
    assert_eq!(fs.trim(&Trim::default()).unwrap(), 0);
    fs.unlink(ROOT, b"kept").unwrap();
    settle(&fs);
    assert!(fs.trim(&Trim::default()).unwrap() >= 5_000_000);
    unmount_clean(fs, &image);
    let fs = mount(&image);
    let least = Trim {
        start_bytes: 8 << 20,
        len_bytes: 4 << 20,
        least_bytes: 1 << 20,
    };
    let told = fs.trim(&least).unwrap();
    assert!(told > 0 && told <= 4 << 20, "{told}");
    let refused = |what: Trim| fs.trim(&what).unwrap_err().errno();
    let behind = Trim {
        start_bytes: 64 << 20,
        ..Trim::default()
    };
    assert_eq!(refused(behind), 22);
    let too_long = Trim {
        least_bytes: 1 << 40,
        ..Trim::default()
    };
    assert_eq!(refused(too_long), 22);
    let empty = Trim {
        len_bytes: 100,
        ..Trim::default()
    };
    assert_eq!(refused(empty), 22);
    unmount_clean(fs, &image);
}

#[test]
fn files_keep_their_content_while_all_around_is_trimmed() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = try_mount(&image, &MountOptions::new().discard(Discard::Online)).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u8)
            .map(|writer| {
                let fs = &fs;
                scope.spawn(move || {
                    let name = [b'a' + writer];
                    for round in 0..60_u8 {
                        let file = fs.create(ROOT, &name, &PLAIN).unwrap();
                        let content = vec![writer * 60 + round; 300_000];
                        fs.write_at(file, &content, 0).unwrap();
                        let mut back = vec![0; content.len()];
                        fs.read_at(file, &mut back, 0).unwrap();
                        assert!(back == content, "round {round} of {writer}");
                        if round < 59 {
                            fs.unlink(ROOT, &name).unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs.trim(&Trim::default()).unwrap();
                fs.sync().unwrap();
            }
        });
        let joined: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(joined.iter().all(Result::is_ok));
    });
    unmount_clean(fs, &image);
    let fs = open(&image);
    for writer in 0..3_u8 {
        let file = fs.lookup(ROOT, &[b'a' + writer]).unwrap();
        let mut back = vec![0; 300_000];
        fs.read_at(file, &mut back, 0).unwrap();
        assert!(back.iter().all(|&byte| byte == writer * 60 + 59));
    }
}

#[test]
fn with_the_option_discard_freed_blocks_go_after_their_commit() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    // The option is set in the superblock, in bits and in words, and by the mount.
    let cases = [
        ("", "", false),
        ("", "discard", true),
        ("default_mount_opts 0x40c", "", true),
        ("default_mount_opts 0x40c", "nodiscard", false),
        ("mount_opts discard", "", true),
        ("mount_opts discard", "nodiscard", false),
    ];
    for (stored, words, goes) in cases {
        let image = image(&[]);
        if !stored.is_empty() {
            debugfs_write(image.path(), &[format!("set_super_value {stored}")]).unwrap();
        }
        let options = MountOptions::new().parse(words).unwrap();
        let fs = try_mount(&image, &options).unwrap();
        make_garbage(&fs);
        let before = allocated_bytes(&image);
        settle(&fs);
        let gone = before.saturating_sub(allocated_bytes(&image)) > 19 << 20;
        assert_eq!(gone, goes, "{stored}, {words}");
        // All of the space can be reused, including space that was freed a moment ago.
        make_garbage(&fs);
        let file = fs.create(ROOT, b"all", &PLAIN).unwrap();
        if let Err(error) = fs.write_at(file, &vec![1; 45 << 20], 0) {
            let stat = fs.statfs().unwrap();
            panic!("{words}: {error} of {stat:?}");
        }
        unmount_clean(fs, &image);
    }
}

/// A device that cannot discard.
#[derive(Debug)]
struct Plain(FileDevice);

impl BlockDevice for Plain {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.0.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_vectored_at(bufs, offset)
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn a_device_that_gives_no_space_back_is_not_trimmed() {
    require_e2fsprogs!();
    let image = image(&[]);
    let device = Plain(open_path(image.path(), DeviceOptions::read_write()).unwrap());
    // The option has no effect there, as in Linux.
    let options = MountOptions::new().discard(Discard::Online);
    let fs = Fs::mount(Arc::new(device), &options).unwrap();
    make_garbage(&fs);
    settle(&fs);
    assert_eq!(fs.trim(&Trim::default()).unwrap_err().errno(), 95);
    unmount_clean(fs, &image);
}
