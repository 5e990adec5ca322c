//! Freed space that waits for a commit or for readers: an operation that needs the space waits as
//! well, instead of failing with an error.

use std::collections::HashSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::time::{Duration, Instant};

use fourscore::{Discard, Error, Fallocate, Fs, InodeNr, MountOptions, SetXattr, Trim};
use fourscore_block::ram::RamDevice;
use fourscore_block::{BlockDevice, Hints};
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fourscore_sync::{Arc, epoch, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{OWNER, ROOT, device_to_read, mount, require_e2fsprogs, unmount_clean};

/// Fills all space with a file.
fn fill(fs: &Fs) {
    let file = fs.create(ROOT, b"filler", &OWNER).unwrap();
    for nth in 0.. {
        match fs.write_at(file, &[7; 4096], nth * 4096) {
            Ok(_) => {}
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    fs.sync().unwrap();
}

/// Runs `what`, which needs a block while the only free blocks wait for a reader, which goes on for
/// some time.
fn needs_a_block(fs: &Fs, what: impl FnOnce()) {
    needs_a_block_for(Duration::from_millis(15), fs, what);
}

fn needs_a_block_for(reading: Duration, fs: &Fs, what: impl FnOnce()) {
    fill(fs);
    let (is_in, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = epoch::pin();
            is_in.store(true, Ordering::Release);
            while !is_over.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(reading);
            drop(guard);
        });
        while !is_in.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        fs.unlink(ROOT, b"filler").unwrap();
        is_over.store(true, Ordering::Release);
        what();
    });
}

#[test]
fn names_and_attributes_wait_for_space_that_is_freed() {
    require_e2fsprogs!();
    let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(4096);
    let image = image.make().unwrap();
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    needs_a_block(&fs, || {
        let value = [b'v'; 2000];
        fs.set_xattr(file, b"user.long", &value, SetXattr::Any)
            .unwrap();
    });
    needs_a_block(&fs, || {
        fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    });
    let dir = fs.lookup(ROOT, b"dir").unwrap();
    let name = |number: u32| format!("{number:0>200}").into_bytes();
    let is_full = |number| {
        fs.link(file, dir, &name(number)).unwrap();
        fs.stat(dir).unwrap().size_bytes > 4096
    };
    let room = (0..).find(|&number| is_full(number)).unwrap();
    let other = fs.mkdir(ROOT, b"other", &OWNER).unwrap();
    (0..room).for_each(|number| fs.link(file, other, &name(number)).unwrap());
    needs_a_block(&fs, || fs.link(file, other, &name(room)).unwrap());
    assert!(fs.stat(other).unwrap().size_bytes > 4096);
    unmount_clean(fs, &image);
}

/// A device in memory whose flushes take a while, as those of a disk do, and so do commits. A
/// discard takes as long.
#[derive(Debug)]
struct Slow {
    device: RamDevice,
    takes: Duration,
}

impl BlockDevice for Slow {
    fn hints(&self) -> Hints {
        self.device.hints()
    }

    fn discard(&self, _range: Range<u64>) -> io::Result<()> {
        thread::sleep(self.takes);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.device.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.device.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        thread::sleep(self.takes);
        self.device.flush()
    }
}

/// An empty file system in memory.
fn in_memory(size: MiB, takes: Duration) -> (Image, Arc<Fs>) {
    in_memory_with(size, takes, &MountOptions::new())
}

fn in_memory_with(size: MiB, takes: Duration, options: &MountOptions) -> (Image, Arc<Fs>) {
    let image = Image::builder(size).kind("ext4").block_size_bytes(4096);
    let image = image.make().unwrap();
    let device = RamDevice::over(device_to_read(&image));
    let device = Arc::new(Slow { device, takes });
    let fs = Fs::mount(device, options).unwrap();
    (image, fs)
}

/// Creates a file of eight blocks and its name.
fn small_file(fs: &Fs, name: &[u8]) -> InodeNr {
    let file = fs.create(ROOT, name, &OWNER).unwrap();
    fs.write_at(file, &[1; 8 * 4096], 0).unwrap();
    file
}

#[test]
fn a_reader_is_waited_for_however_long_it_takes() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = in_memory(MiB(8), Duration::ZERO);
    let file = small_file(&fs, b"file");
    needs_a_block_for(Duration::from_millis(500), &fs, || {
        fs.write_at(file, &[2; 4096], 8 * 4096).unwrap();
    });
    // Four extents are in the inode; a fifth needs a block.
    let holey = fs.create(ROOT, b"holey", &OWNER).unwrap();
    for nth in 0..4 {
        fs.write_at(holey, &[3; 3 * 4096], nth * 4 * 4096).unwrap();
    }
    needs_a_block_for(Duration::from_millis(500), &fs, || {
        fs.fallocate(holey, Fallocate::PunchHole, 4096, 4096)
            .unwrap();
    });
    fs.unmount().unwrap();
}

/// The time limit for giving space to all waiters, if none of them waits in vain.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn one_in_line_may_hold_a_lock_that_another_at_its_turn_waits_for() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = in_memory(MiB(8), Duration::ZERO);
    let file = small_file(&fs, b"file");
    let mut began = None;
    needs_a_block_for(Duration::from_millis(300), &fs, || {
        began = Some(Instant::now());
        thread::scope(|scope| {
            scope.spawn(|| {
                let value = [b'v'; 2000];
                fs.set_xattr(file, b"user.long", &value, SetXattr::Any)
                    .unwrap();
            });
            // The write queues behind it, holding the lock of the file.
            thread::sleep(Duration::from_millis(50));
            fs.write_at(file, &[2; 4096], 8 * 4096).unwrap();
        });
    });
    assert!(began.unwrap().elapsed() < SOON);
    fs.unmount().unwrap();
}

#[test]
fn a_thread_that_waits_for_an_inode_lock_holds_no_epoch_guard() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = in_memory(MiB(8), Duration::from_millis(150));
    let file = small_file(&fs, b"file");
    fs.link(file, ROOT, b"other name").unwrap();
    fill(&fs);
    fs.unlink(ROOT, b"filler").unwrap();
    let began = Instant::now();
    thread::scope(|scope| {
        let writing = scope.spawn(|| fs.write_at(file, &[2; 4096], 8 * 4096));
        // Runs during the commit for which the write waits, holding the lock of the file.
        thread::sleep(Duration::from_millis(50));
        fs.unlink(ROOT, b"other name").unwrap();
        writing.join().unwrap().unwrap();
    });
    assert!(began.elapsed() < SOON);
    fs.unmount().unwrap();
}

/// The results of threads that empty and fill files of their own.
#[derive(Debug)]
struct Told {
    done: AtomicU64,
    no_space: AtomicU64,
}

impl Told {
    const fn new() -> Self {
        Self {
            done: AtomicU64::new(0),
            no_space: AtomicU64::new(0),
        }
    }
}

/// Has `threads` threads empty a file and preallocate `bytes` for it, again and again.
fn empty_and_fill(fs: &Fs, threads: usize, bytes: u64, time: Duration) -> Told {
    let [told] = empty_and_fill_sizes(fs, [(threads, bytes)], time);
    told
}

/// The same with `threads` threads for each of several sizes.
fn empty_and_fill_sizes<const KINDS: usize>(
    fs: &Fs,
    kinds: [(usize, u64); KINDS],
    time: Duration,
) -> [Told; KINDS] {
    let told = [const { Told::new() }; KINDS];
    let began = Instant::now();
    let threads = kinds
        .iter()
        .zip(&told)
        .flat_map(|(&(threads, bytes), told)| std::iter::repeat_n((bytes, told), threads));
    thread::scope(|scope| {
        for (nr, (bytes, told)) in threads.enumerate() {
            let name = format!("own{nr}");
            let file = fs.create(ROOT, name.as_bytes(), &OWNER).unwrap();
            scope.spawn(move || {
                while began.elapsed() < time {
                    fs.truncate(file, 0).unwrap();
                    match fs.fallocate(file, Fallocate::AllocateKeepSize, 0, bytes) {
                        Ok(()) => told.done.fetch_add(1, Ordering::Relaxed),
                        Err(Error::NoSpace) => told.no_space.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    };
                }
            });
        }
    });
    told
}

/// Space that is free for all users, in bytes.
fn free_bytes(fs: &Fs) -> u64 {
    let stat = fs.statfs().unwrap();
    stat.available_blocks * stat.block_bytes as u64
}

#[test]
fn a_request_that_fits_never_fails_with_no_space() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = in_memory(MiB(64), Duration::from_millis(5));
    let threads = 8;
    // Leaves a little for the trees.
    let each = free_bytes(&fs) / 8 - (64 << 10);
    let told = empty_and_fill(&fs, threads, each, Duration::from_secs(3));
    assert_eq!(told.no_space.into_inner(), 0, "of {:?}", told.done);
    fs.unmount().unwrap();
}

#[test]
fn an_allocation_waits_for_space_that_is_being_discarded() {
    require!(Need::Program("mke2fs"));
    for discard in [Discard::Online, Discard::OnDemand] {
        let options = MountOptions::new().discard(discard);
        let (_image, fs) = in_memory_with(MiB(64), Duration::from_millis(5), &options);
        let each = free_bytes(&fs) / 4 - (64 << 10);
        let time = Duration::from_secs(1);
        let told = thread::scope(|scope| {
            scope.spawn(|| {
                let began = Instant::now();
                while discard == Discard::OnDemand && began.elapsed() < time {
                    fs.trim(&Trim::default()).unwrap();
                }
            });
            empty_and_fill(&fs, 4, each, time)
        });
        assert_eq!(told.no_space.into_inner(), 0, "of {:?}", told.done);
        fs.unmount().unwrap();
    }
}

#[test]
fn a_large_request_succeeds_beside_a_stream_of_small_ones() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = in_memory(MiB(64), Duration::from_millis(5));
    let eighth = free_bytes(&fs) / 8 - (64 << 10);
    let kinds = [(1, 4 * eighth), (4, eighth)];
    let [much, little] = empty_and_fill_sizes(&fs, kinds, Duration::from_secs(3));
    println!("{much:?} {little:?}");
    assert_eq!(much.no_space.into_inner(), 0);
    assert_eq!(little.no_space.into_inner(), 0);
    // Each round takes a commit or two.
    assert!(much.done.into_inner() >= 10);
    fs.unmount().unwrap();
}

/// will-it-scale's fallocate3 with 16 threads on 16 GiB, ten times fresh and ten times aged.
#[test]
#[ignore = "takes minutes"]
fn sixteen_threads_never_run_out_of_sixteen_gibibytes() {
    require!(Need::Program("mke2fs"));
    for is_aged in [false, true] {
        for run in 0..10 {
            let (_image, fs) = in_memory(MiB(16 << 10), Duration::ZERO);
            if is_aged {
                age(&fs);
            }
            let free = free_bytes(&fs) >> 20;
            let told = empty_and_fill(&fs, 16, 73_819_750, Duration::from_secs(3));
            println!("aged {is_aged}, run {run}, {free} MiB free: {told:?}");
            assert_eq!(told.no_space.into_inner(), 0);
            fs.unmount().unwrap();
        }
    }
}

/// Uses three quarters of the space: the free space consists of pieces of 4 MiB.
fn age(fs: &Fs) {
    const PIECE_BYTES: u64 = 4 << 20;
    let pieces = free_bytes(fs) / PIECE_BYTES - 16;
    let dir = fs.mkdir(ROOT, b"old", &OWNER).unwrap();
    let name = |piece: u64| format!("{piece}").into_bytes();
    for piece in 0..pieces {
        let file = fs.create(dir, &name(piece), &OWNER).unwrap();
        fs.fallocate(file, Fallocate::AllocateKeepSize, 0, PIECE_BYTES)
            .unwrap();
    }
    for piece in (0..pieces).step_by(4) {
        fs.unlink(dir, &name(piece)).unwrap();
    }
    fs.sync().unwrap();
}

/// Appends a MiB to `file` block by block and empties it, `times` times. Returns the number of
/// different blocks that it had.
fn blocks_of_growing_and_emptying(fs: &Fs, file: InodeNr, times: u32) -> usize {
    let mut blocks = HashSet::new();
    for _ in 0..times {
        for _ in 0..256 {
            fs.append(file, &[5; 4096]).unwrap();
        }
        for extent in fs.extents(file).unwrap() {
            let first = extent.physical.0;
            blocks.extend(first..first + u64::from(extent.blocks));
        }
        fs.truncate(file, 0).unwrap();
    }
    blocks.len()
}

/// Each truncation is short, but many together begin a grace period, without a commit.
#[test]
fn a_file_that_grows_and_is_emptied_again_and_again_reuses_its_blocks() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = in_memory(MiB(2048), Duration::ZERO);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    let began = Instant::now();
    // Readers of other file systems in this process hold the grace period up, too.
    while blocks_of_growing_and_emptying(&fs, file, 128) > 12 * 1024 {
        assert!(began.elapsed() < 6 * SOON, "its blocks are not reused");
    }
    fs.unmount().unwrap();
}
