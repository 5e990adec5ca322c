//! A mounted file system becomes larger, while threads change and read it: then all content is
//! there, our checker and e2fsck find nothing, and the kernel uses the new groups.

use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use fourscore::block::{DeviceOptions, open_path};
use fourscore::{Error, Follow, Fs, MountOptions, StatFs};
use fourscore_check::{CheckOptions, check};
use fourscore_ondisk::BlockCount;
use fourscore_resize::{ResizeError, grow_mounted};
use fourscore_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, dumpe2fs_header};
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};

/// Options of mke2fs, and sizes in KiB: of the image, and of each growth.
const SHAPES: &[(&str, &[u64])] = &[
    // From one group: the second one has a backup, so the resize inode is made again.
    ("-t ext4 -b 1024 -J size=1", &[8_000, 8_192, 40_000, 90_001]),
    ("-t ext4 -b 1024 -J size=1 -G 4", &[20_000, 61_000, 150_000]),
    (
        "-t ext4 -b 1024 -J size=1 -g 1024",
        &[9_000, 30_000, 90_000],
    ),
    (
        "-t ext4 -b 1024 -J size=1 -g 1024 -E resize=60M",
        &[9_000, 30_000, 90_000],
    ),
    (
        "-t ext4 -b 1024 -J size=1 -O meta_bg,^resize_inode -g 1024",
        &[20_000, 41_000, 60_000],
    ),
    (
        "-t ext4 -b 1024 -J size=1 -O bigalloc -C 8192",
        &[60_000, 90_000, 200_000],
    ),
    (
        "-t ext4 -b 1024 -J size=1 -O sparse_super2,^resize_inode",
        &[20_000, 60_000],
    ),
    ("-t ext4 -J size=4 -O ^64bit", &[40_000, 200_000, 400_000]),
    ("-t ext4 -J size=4 -O 64bit,quota", &[40_000, 200_000]),
    (
        "-t ext4 -b 1024 -J size=1 -O ^resize_inode",
        &[9_000, 90_000],
    ),
    ("-t ext4 -b 2048 -J size=2 -O ^flex_bg", &[20_000, 120_000]),
    // The mount has the claim.
    ("-t ext4 -b 1024 -J size=1 -O mmp", &[9_000, 30_000]),
    (
        "-t ext4 -b 1024 -J size=1 -O fast_commit,orphan_file -g 2048",
        &[9_000, 30_000],
    ),
    (
        "-t ext4 -b 1024 -J size=1 -O ^metadata_csum,uninit_bg",
        &[9_000, 60_000],
    ),
    ("-t ext3 -b 1024 -J size=1 -g 1024", &[9_000, 50_000]),
    ("-t ext2 -b 1024", &[9_000, 50_000]),
    (
        "-t ext4 -b 1024 -O ^has_journal,^metadata_csum,^sparse_super,^resize_inode",
        &[9_000, 40_000],
    ),
];

struct Grown {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Grown {
    fn new(options: &str, kib: u64) -> Self {
        let folder = scratch::folder().unwrap();
        let path = folder.path().join("image");
        let mut command = tools::command("mke2fs").unwrap();
        command.args(["-q", "-F"]).args(options.split_whitespace());
        command.arg(&path).arg(format!("{kib}k"));
        tools::stdout_of(&mut command).unwrap();
        Self {
            _folder: folder,
            path,
        }
    }

    fn mount(&self) -> Arc<Fs> {
        let device = open_path(&self.path, DeviceOptions::read_write()).unwrap();
        Fs::mount(Arc::new(device), &MountOptions::new()).unwrap()
    }

    /// Unmounts, and has two checkers look.
    fn end(&self, fs: Arc<Fs>) {
        fs.unmount().unwrap();
        let device = open_path(&self.path, DeviceOptions::default()).unwrap();
        let options = CheckOptions {
            threads: NonZeroUsize::MIN,
            ..CheckOptions::default()
        };
        let report = check(Arc::new(device), &options).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings());
        assert_clean(&self.path);
    }
}

fn blocks(fs: &Fs, kib: u64) -> BlockCount {
    BlockCount((kib << 10) >> fs.geometry().block_size().bits())
}

/// The bytes of a file of a thread.
fn content(thread: u32, file: u32) -> Vec<u8> {
    let len = 500 + (file * 7919) % 20_000;
    (0..len)
        .map(|at| u8::try_from((at / 64 + thread * 31 + file) % 251).unwrap())
        .collect()
}

fn name(thread: u32, file: u32) -> String {
    format!("/thread{thread}/dir{}/file{file}", file % 5)
}

/// The blocks of 1 KiB that the threads have taken for their files, at most: those of writes that
/// have begun, and of writes that have ended.
#[derive(Default)]
struct Taken {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Taken {
    /// Calls `write`, which writes so many bytes.
    fn by<T>(&self, bytes: usize, write: impl FnOnce() -> T) -> T {
        // Four more for the end of the file, its map and its name.
        let blocks = bytes as u64 / 1024 + 4;
        self.begun.fetch_add(blocks, Ordering::SeqCst);
        let result = write();
        self.ended.fetch_add(blocks, Ordering::SeqCst);
        result
    }
}

/// Makes files, reads some again and removes others, until `stop` is set. Returns how many it
/// made; those whose number is divisible by three are gone, and so are those for which there was no
/// space.
fn work(fs: &Fs, thread: u32, taken: &Taken, stop: &AtomicBool) -> Vec<u32> {
    let files = fs.paths();
    for dir in 0..5 {
        files
            .create_dir_all(format!("/thread{thread}/dir{dir}"))
            .unwrap();
    }
    let mut made = Vec::new();
    for file in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let content_of_file = content(thread, file);
        let write = || files.write(name(thread, file), &content_of_file);
        match taken.by(content_of_file.len(), write) {
            Ok(()) => made.push(file),
            Err(Error::NoSpace) => {
                let _ = files.remove_file(name(thread, file));
                // Makes some space, for all threads.
                if let Some(old) = made.pop() {
                    files.remove_file(name(thread, old)).unwrap();
                }
            }
            Err(error) => panic!("{error}"),
        }
        if file % 3 == 2 && made.len() > 20 {
            let old = made.swap_remove(usize::try_from(file).unwrap() % made.len());
            let found = files.read(name(thread, old)).unwrap();
            assert!(found == content(thread, old), "file {old} of {thread}");
            files.remove_file(name(thread, old)).unwrap();
        }
    }
    made
}

/// Looks at the free space until `stop` is set.
fn look(fs: &Fs, taken: &Taken, stop: &AtomicBool) {
    let mut last: Option<(StatFs, u64)> = None;
    while !stop.load(Ordering::Relaxed) {
        let ended = taken.ended.load(Ordering::SeqCst);
        let now = fs.statfs().unwrap();
        let begun = taken.begun.load(Ordering::SeqCst);
        assert!(now.free_blocks <= now.blocks, "{now:?}");
        assert!(now.free_inodes <= now.inodes, "{now:?}");
        if let Some((last, ended)) = last {
            assert!(now.inodes >= last.inodes);
            // What is added comes with its free space.
            let more = (now.blocks).saturating_sub(last.blocks);
            let used = |stat: &StatFs| stat.blocks - stat.free_blocks;
            let taken = begun - ended;
            assert!(
                used(&now) < used(&last) + more / 2 + taken + 4000,
                "{last:?}, then {now:?} with {taken} taken"
            );
        }
        last = Some((now, ended));
        thread::yield_now();
    }
}

fn grow_while_threads_work(options: &str, kib: &[u64]) {
    let image = Grown::new(options, kib[0]);
    let fs = image.mount();
    let (stop, looked) = (AtomicBool::new(false), AtomicBool::new(false));
    let taken = Taken::default();
    let mut made = Vec::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|nr| {
                let (fs, taken, stop) = (&fs, &taken, &stop);
                scope.spawn(move || work(fs, nr, taken, stop))
            })
            .collect();
        scope.spawn(|| look(&fs, &taken, &looked));
        for &kib in &kib[1..] {
            thread::sleep(std::time::Duration::from_millis(30));
            let before = fs.statfs().unwrap();
            let wish = blocks(&fs, kib);
            let has = grow_mounted(&fs, wish).unwrap_or_else(|why| panic!("{options}: {why}"));
            assert!(has <= wish && has.0 + 8192 > wish.0, "{options}: {has:?}");
            assert_eq!(fs.geometry().blocks(), has, "{options}");
            assert!(fs.statfs().unwrap().blocks > before.blocks, "{options}");
        }
        thread::sleep(std::time::Duration::from_millis(60));
        stop.store(true, Ordering::Relaxed);
        made.extend(workers.into_iter().map(|worker| worker.join().unwrap()));
        looked.store(true, Ordering::Relaxed);
    });
    let read_all = |fs: &Fs| {
        for (thread, made) in (0..).zip(&made) {
            for &file in made {
                let found = fs.paths().read(name(thread, file)).unwrap();
                assert!(found == content(thread, file), "{options}: {thread} {file}");
            }
        }
    };
    read_all(&fs);
    let size = fs.geometry().blocks();
    image.end(fs);
    let header = dumpe2fs_header(&image.path).unwrap();
    assert_eq!(header["Block count"], size.to_string(), "{options}");
    let fs = image.mount();
    read_all(&fs);
    image.end(fs);
    use_in_kernel(options, &image.path, &made);
}

/// The kernel finds the files, and fills the new groups.
fn use_in_kernel(options: &str, image: &Path, made: &[Vec<u32>]) {
    if !Need::KernelMount.is_met() {
        return;
    }
    let Ok(mounted) = KernelMount::new(image, Access::ReadWrite, "") else {
        return;
    };
    for (thread, made) in (0..).zip(made) {
        for &file in made.iter().step_by(7) {
            let path = mounted.path().join(&name(thread, file)[1..]);
            assert!(std::fs::read(path).unwrap() == content(thread, file));
        }
    }
    let space = rustix::fs::statvfs(mounted.path()).unwrap();
    // Linux keeps a fiftieth of all blocks, which it counts as free, for its own trees.
    let free = space.f_bfree.saturating_sub(space.f_blocks / 50);
    let pieces = (free * space.f_frsize / 10 * 9) >> 18;
    let mut big = File::create(mounted.path().join("big")).unwrap();
    for _ in 0..pieces {
        let written = big.write_all(&[9; 1 << 18]);
        written.unwrap_or_else(|why| panic!("{options}: {why}"));
    }
    drop(big);
    mounted.unmount().unwrap();
    assert_clean(image);
}

#[test]
fn it_grows_while_threads_work() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs")
    );
    let next = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((options, kib)) =
                    SHAPES.get(next.fetch_add(1, Ordering::Relaxed) as usize)
                {
                    grow_while_threads_work(options, kib);
                }
            });
        }
    });
}

/// Fills all space and all inodes of the first group with files, returns their number.
fn fill(fs: &Fs) -> u32 {
    let files = fs.paths();
    for file in 0.. {
        match files.write(format!("/f{file}"), [7; 9000]) {
            Ok(()) => {}
            Err(Error::NoSpace) => return file,
            Err(error) => panic!("{error}"),
        }
    }
    0
}

#[test]
fn a_full_file_system_is_usable_again() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = Grown::new("-t ext4 -b 1024 -J size=1 -m 5 -g 1024", 6_000);
    let fs = image.mount();
    let reserved = fs.superblock().reserved_blocks();
    let first = fill(&fs);
    assert!(fs.statfs().unwrap().available_blocks < 40);
    grow_mounted(&fs, blocks(&fs, 24_000)).unwrap();
    assert!(fs.superblock().reserved_blocks().0 >= 3 * reserved.0);
    let all = (first..).take_while(|file| {
        let written = fs.paths().write(format!("/f{file}"), [7; 9000]);
        written.is_ok()
    });
    let all = all.count();
    assert!(all > 2 * first as usize, "{all} more after {first}");
    // The last group is extended, and then it is the only free space.
    let wish = fs.geometry().blocks().0 + 500;
    assert_eq!(grow_mounted(&fs, BlockCount(wish)).unwrap().0, wish);
    fs.paths().write("/in/../last", [7; 9000]).unwrap_err();
    fs.paths().create_dir("/in").unwrap();
    fs.paths().write("/in/last", [7; 200_000]).unwrap();
    image.end(fs);
}

#[test]
fn what_cannot_be_is_refused() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = Grown::new("-t ext4 -b 1024 -J size=1", 20_000);
    let fs = image.mount();
    let now = fs.geometry().blocks();
    let refused = |blocks| grow_mounted(&fs, BlockCount(blocks)).unwrap_err();
    assert!(matches!(refused(now.0 - 1), ResizeError::TooSmall { .. }));
    let most = fs.most_blocks().unwrap().0;
    let ResizeError::TooLarge { why, .. } = refused(most + 9000) else {
        panic!("more than it has space for");
    };
    assert!(why.contains("mount it again"), "{why}");
    assert!(matches!(refused(1 << 50), ResizeError::TooLarge { .. }));
    // As much as it has, or not enough for another group.
    assert_eq!(grow_mounted(&fs, now).unwrap(), now);
    fs.freeze().unwrap();
    let busy = refused(now.0 + 20_000);
    assert!(matches!(busy, ResizeError::Fs(Error::Busy)), "{busy}");
    fs.thaw().unwrap();
    let end = grow_mounted(&fs, BlockCount(now.0 + 20_000)).unwrap();
    assert!(end > now);
    image.end(fs);
    let device = open_path(&image.path, DeviceOptions::default()).unwrap();
    let fs = Fs::open(Arc::new(device), &fourscore::OpenOptions::new()).unwrap();
    let why = grow_mounted(&fs, BlockCount(end.0 + 20_000)).unwrap_err();
    assert!(matches!(why, ResizeError::Fs(Error::ReadOnly(_))), "{why}");
}

#[test]
fn two_growths_are_one_after_the_other() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = Grown::new("-t ext4 -b 1024 -J size=1 -g 1024", 9_000);
    let fs = image.mount();
    let grown = AtomicU32::new(0);
    thread::scope(|scope| {
        for nr in 0..3_u64 {
            let (fs, grown) = (&fs, &grown);
            scope.spawn(move || {
                for step in 0..8 {
                    let wish = BlockCount(10_000 + step * 4_000 + nr * 1_111);
                    match grow_mounted(fs, wish) {
                        Ok(_) => drop(grown.fetch_add(1, Ordering::Relaxed)),
                        Err(ResizeError::Fs(Error::Busy) | ResizeError::TooSmall { .. }) => {}
                        Err(why) => panic!("{why}"),
                    }
                }
            });
        }
    });
    assert!(grown.load(Ordering::Relaxed) > 0);
    fill(&fs);
    image.end(fs);
}

/// Growing across 2^32 blocks: the log of a smaller file system has numbers for the new blocks.
#[test]
fn a_crash_after_growing_across_the_32_bit_limit_loses_nothing() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    // Groups of 8 GiB, so that some hundred directories reach all of them.
    let options = "-t ext4 -b 1024 -O 64bit,bigalloc,^resize_inode -C 1M -i 64M -J size=4 \
                   -E lazy_itable_init=1";
    let limit_kib = 1 << 32;
    let group_kib = 8 << 20;
    let image = Grown::new(options, limit_kib - group_kib);
    let fs = image.mount();
    assert_eq!(u64::from(fs.geometry().blocks_per_group()), group_kib);
    let end = BlockCount(limit_kib + 100 * group_kib);
    assert_eq!(grow_mounted(&fs, end).unwrap(), end);
    let groups = limit_kib / group_kib;
    let mut behind = 0;
    for nr in 0..700 {
        fs.paths().create_dir(format!("/{nr}")).unwrap();
        let inode = fs
            .resolve(format!("/{nr}").as_bytes(), Follow::Yes)
            .unwrap();
        let group = fs.geometry().inode_group(inode).unwrap().0;
        behind += u64::from(u64::from(group.0) >= groups);
    }
    assert!(behind > 10, "{behind} directories are behind block 2^32");
    fs.sync().unwrap();
    let crashed = image.path.with_file_name("crashed");
    let mut copy = std::process::Command::new("cp");
    copy.arg("--sparse=always").arg(&image.path).arg(&crashed);
    assert!(copy.status().unwrap().success());
    let mut replay = tools::command("e2fsck").unwrap();
    let replayed = replay
        .args(["-y", "-E", "journal_only"])
        .arg(&crashed)
        .status();
    assert_eq!(replayed.unwrap().code(), Some(0));
    assert_clean(&crashed);
    drop(fs);
}
