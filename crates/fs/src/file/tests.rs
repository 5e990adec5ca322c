//! Tests of changes of files on forged images, on devices that fail midway, and before a crash.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;

use fourscore_block::{BlockDevice, DeviceOp, DeviceOptions, FaultyDevice, RamDevice, Rule};
use fourscore_journal::{Background, JournalOptions};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, epoch, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::{assert_clean, debugfs_write};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::file::finish::{self, Ending, WrittenAt};
use crate::inode::cache;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{
    AttributeChange, Caller, Capabilities, Error, Fallocate, Fs, InodeNr, MountOptions,
    NewAttributes, OpenInode, Privileges, Result, SetXattr, WriteOutcome,
};

const OWNER: NewAttributes = NewAttributes::owned_by(0, 0);
const ROOT: InodeNr = InodeNr::ROOT;

/// A file system of 8 MiB with blocks of 1 KiB.
fn small(features: &[&str]) -> Image {
    let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(1024);
    let image = image.inode_size_bytes(256).features(features);
    image.make().unwrap()
}

/// A file system whose journal is too small for freeing a file of thousands of extents at once.
fn with_small_journal() -> Image {
    let image = Image::builder(MiB(16)).kind("ext4").block_size_bytes(1024);
    let image = image.journal(MiB(1)).features(&["^orphan_file"]);
    image.make().unwrap()
}

/// The options of a mount that commits only on request.
fn quiet(words: &str) -> MountOptions {
    let options = MountOptions::new().journal(JournalOptions {
        background: Background::None,
        ..JournalOptions::default()
    });
    options.parse(words).unwrap()
}

fn mount_with(image: &Image, words: &str) -> Arc<Fs> {
    let device = fourscore_block::open_path(image.path(), DeviceOptions::read_write()).unwrap();
    Fs::mount(Arc::new(device), &quiet(words)).unwrap()
}

fn mount(image: &Image) -> Arc<Fs> {
    mount_with(image, "")
}

#[track_caller]
fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.unwrap_err().errno()
}

fn content(fs: &Fs, file: InodeNr) -> Vec<u8> {
    let len = usize::try_from(fs.stat(file).unwrap().size_bytes).unwrap();
    let mut bytes = vec![0xaa; len];
    assert_eq!(fs.read_at(file, &mut bytes, 0).unwrap(), len);
    bytes
}

/// The file's slot begins at the start of its block of the inode table, as the block's content
/// does.
#[test]
fn a_file_that_maps_its_own_slot_is_refused() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = small(&["^metadata_csum", "^flex_bg"]);
    let fs = mount(&image);
    let mut file = InodeNr(1);
    for number in 0..4_u32 {
        let made = fs.create(ROOT, number.to_string().as_bytes(), &OWNER);
        let made = made.unwrap();
        fs.write_at(made, &[7; 1000], 0).unwrap();
        if (made.0 - 1).is_multiple_of(4) {
            file = made;
        }
    }
    fs.unmount().unwrap();
    let mut table = [0; 4];
    let raw = File::open(image.path()).unwrap();
    raw.read_exact_at(&mut table, 2048 + 8).unwrap();
    let block = u32::from_le_bytes(table) + (file.0 - 1) / 4;
    for (flags, words) in [("0x84000", ""), ("0x80000", "data=journal")] {
        let flags = format!("sif <{file}> flags {flags}");
        let place = format!("sif <{file}> block[5] {block}");
        debugfs_write(image.path(), &[flags, place]).unwrap();
        let fs = mount_with(&image, words);
        assert_eq!(errno(fs.write_at(file, &[8; 300], 0)), 117);
        assert_eq!(errno(fs.write_at(file, &[8; 1000], 0)), 117);
        assert_eq!(errno(fs.truncate(file, 100)), 117);
        let punched = fs.fallocate(file, Fallocate::PunchHole, 100, 500);
        assert_eq!(errno(punched), 117);
        fs.unmount().unwrap();
    }
}

#[test]
fn data_that_leaves_its_inode_is_covered_by_fdatasync() {
    require!(Need::Program("mke2fs"));
    for features in [&["inline_data"][..], &["inline_data", "fast_commit"]] {
        let image = small(features);
        let fs = mount(&image);
        let [over, punched] = [b"over", b"hole"].map(|name| {
            let file = fs.create(ROOT, name, &OWNER).unwrap();
            fs.write_at(file, &[b'a'; 100], 0).unwrap();
            fs.fsync(file).unwrap();
            file
        });
        fs.fallocate(over, Fallocate::AllocateKeepSize, 0, 10)
            .unwrap();
        fs.write_at(over, &[b'b'; 100], 0).unwrap();
        fs.fdatasync(over).unwrap();
        let crashed = image.copy().unwrap();
        fs.fallocate(punched, Fallocate::PunchHole, 0, 50).unwrap();
        fs.fdatasync(punched).unwrap();
        let crashed_later = image.copy().unwrap();
        fs.unmount().unwrap();
        let after = mount(&crashed);
        assert_eq!(content(&after, over), [b'b'; 100], "{features:?}");
        after.unmount().unwrap();
        let after = mount(&crashed_later);
        let expected = [[0; 50], [b'a'; 50]].concat();
        assert_eq!(content(&after, punched), expected, "{features:?}");
        after.unmount().unwrap();
    }
}

/// An encrypted file of 5000 bytes in eight blocks, which all hold the byte 7.
fn encrypted(image: &Image) -> InodeNr {
    let fs = mount(image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.write_at(file, &[7; 8192], 0).unwrap();
    fs.unmount().unwrap();
    let (flags, size) = ("flags 0x80800", "size 5000");
    let fields = [flags, size].map(|field| format!("sif <{file}> {field}"));
    debugfs_write(image.path(), &fields).unwrap();
    file
}

#[test]
fn recovery_zeroes_nothing_in_an_encrypted_file() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = small(&["encrypt", "^orphan_file"]);
    let file = encrypted(&image);
    let orphan = format!("ssv last_orphan {file}");
    debugfs_write(image.path(), &[orphan]).unwrap();
    let fs = mount(&image);
    assert_eq!(fs.orphans().unwrap(), []);
    let extents = fs.extents(file).unwrap();
    fs.unmount().unwrap();
    let blocks: u32 = extents.iter().map(|extent| extent.blocks).sum();
    assert_eq!((extents.len(), blocks), (1, 5));
    let mut found = [0; 5120];
    let raw = File::open(image.path()).unwrap();
    raw.read_exact_at(&mut found, extents[0].physical.0 * 1024)
        .unwrap();
    assert!(found == [7; 5120], "the tail is not as it was");
}

/// A file whose extents are too many to be freed in one transaction, on a device that fails while
/// they are freed: the file is empty and on the orphan list. The device works again then.
fn cut_midway() -> (Image, Arc<FaultyDevice>, Arc<Fs>, InodeNr) {
    cut_midway_after(|_, _| ())
}

/// As [`cut_midway`], after `prepare` was called with the file system and the file.
fn cut_midway_after(
    prepare: impl Fn(&Arc<Fs>, InodeNr),
) -> (Image, Arc<FaultyDevice>, Arc<Fs>, InodeNr) {
    let image = with_small_journal();
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    for number in 0..3000 {
        fs.write_at(file, b"data", number * 2048).unwrap();
    }
    fs.unmount().unwrap();
    let before = std::fs::read(image.path()).unwrap();
    for nth in (1..100).rev() {
        let device = Arc::new(FaultyDevice::new(Arc::new(RamDevice::from_bytes(&before))));
        let fs = Fs::mount(Arc::clone(&device) as _, &quiet("")).unwrap();
        fs.lookup(ROOT, b"file").unwrap();
        prepare(&fs, file);
        device.add(Rule::nth(DeviceOp::Read, nth).and_after());
        let cut = fs.truncate(file, 0);
        device.heal();
        if cut.is_err() && fs.stat(file).unwrap().size_bytes == 0 {
            assert_eq!(fs.orphans().unwrap().len(), 1);
            return (image, device, fs, file);
        }
    }
    panic!("no read fails between two transactions");
}

#[test]
fn a_file_on_the_orphan_list_stays_in_memory() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (image, device, fs, file) = cut_midway();
    let evict = || fs.core.inodes.remove_if(&file, |cell| cell.retire());
    assert!(evict().is_none());
    fs.unlink(ROOT, b"file").unwrap();
    assert_eq!(fs.orphans().unwrap(), []);
    fs.unmount().unwrap();
    let fs = Fs::mount(Arc::clone(&device) as _, &quiet("")).unwrap();
    fs.unmount().unwrap();
    let mut bytes = vec![0; 16 << 20];
    device.read_at(&mut bytes, 0).unwrap();
    std::fs::write(image.path(), bytes).unwrap();
    assert_clean(image.path());
}

#[test]
fn a_truncation_that_is_not_finished_is_finished_by_the_next_mount() {
    require!(Need::Program("mke2fs"));
    let (_image, device, fs, file) = cut_midway();
    fs.unmount().unwrap();
    let fs = Fs::mount(device, &quiet("")).unwrap();
    assert_eq!(fs.orphans().unwrap(), []);
    assert_eq!(fs.stat(file).unwrap().sectors, 0);
    fs.unmount().unwrap();
}

#[test]
fn what_was_cut_off_stays_away_when_the_file_grows() {
    require!(Need::Program("mke2fs"));
    const BYTES: u64 = 6 << 20;
    let (_image, _device, fs, file) = cut_midway();
    fs.truncate(file, BYTES).unwrap();
    assert!(
        content(&fs, file).iter().all(|&byte| byte == 0),
        "by its size"
    );
    assert_eq!(fs.orphans().unwrap(), []);
    fs.unmount().unwrap();

    let (_image, _device, fs, file) = cut_midway();
    let hole = fs.create(ROOT, b"hole", &OWNER).unwrap();
    fs.truncate(hole, BYTES).unwrap();
    assert_eq!(fs.copy_file_range(hole, 0, file, 0, BYTES).unwrap(), BYTES);
    assert!(
        content(&fs, file).iter().all(|&byte| byte == 0),
        "by a hole"
    );
    assert_eq!(fs.orphans().unwrap(), []);
    fs.unmount().unwrap();
}

/// The blocks that a file has.
fn blocks(fs: &Fs, file: InodeNr) -> BTreeSet<u64> {
    let extents = fs.extents(file).unwrap();
    let blocks = extents.iter().map(|extent| {
        let first = extent.physical.0;
        first..first + u64::from(extent.blocks)
    });
    blocks.flatten().collect()
}

/// Whether a file gets blocks again that `cut_and_map` takes from it, while a reader is active that
/// began before.
fn is_reused_beside_reader(
    fs: &Fs,
    file: InodeNr,
    cut_and_map: impl FnOnce() -> Result<()>,
) -> bool {
    let before = blocks(fs, file);
    let [is_reading, may_end] = [const { AtomicBool::new(false) }; 2];
    let wait_for = |flag: &AtomicBool| {
        while !flag.load(Ordering::Acquire) {
            thread::yield_now();
        }
    };
    let mapped = thread::scope(|scope| {
        scope.spawn(|| {
            let _guard = epoch::pin();
            is_reading.store(true, Ordering::Release);
            wait_for(&may_end);
        });
        wait_for(&is_reading);
        let mapped = cut_and_map();
        may_end.store(true, Ordering::Release);
        mapped
    });
    mapped.unwrap();
    !before.is_disjoint(&blocks(fs, file))
}

#[test]
fn blocks_that_were_never_inside_a_file_wait_for_no_reader() {
    require!(Need::Program("mke2fs"));
    /// More than half of the space.
    const BYTES: u64 = 4 << 20;
    let image = small(&[]);
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    let allocate = |kind, bytes| fs.fallocate(file, kind, 0, bytes);
    let keep_size = Fallocate::AllocateKeepSize;
    allocate(keep_size, BYTES).unwrap();
    assert!(is_reused_beside_reader(&fs, file, || {
        fs.truncate(file, 0)?;
        allocate(keep_size, BYTES)
    }));

    let is_reused = || {
        let is_reused = is_reused_beside_reader(&fs, file, || {
            fs.truncate(file, 0)?;
            allocate(keep_size, BYTES / 4)
        });
        fs.truncate(file, 0).unwrap();
        fs.sync().unwrap();
        is_reused
    };
    for kind in [Fallocate::Allocate, Fallocate::ZeroRange] {
        fs.truncate(file, 0).unwrap();
        allocate(kind, BYTES / 2).unwrap();
        assert!(!is_reused(), "inside the file: {kind:?}");
    }
    allocate(keep_size, BYTES / 2).unwrap();
    fs.truncate(file, BYTES).unwrap();
    assert!(!is_reused(), "inside the file for a while");
    fs.unmount().unwrap();
    assert_clean(image.path());
}

/// The first transaction of a truncation publishes the new size; the blocks that a later one frees
/// were inside the old size.
#[test]
fn blocks_that_the_end_of_a_truncation_frees_wait_for_readers() {
    require!(Need::Program("mke2fs"));
    let image = with_small_journal();
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    for number in 0..3000 {
        fs.fallocate(file, Fallocate::Allocate, number * 2048, 1024)
            .unwrap();
    }
    let is_reused = is_reused_beside_reader(&fs, file, || {
        fs.truncate(file, 0)?;
        fs.fallocate(file, Fallocate::AllocateKeepSize, 0, 2 << 20)
    });
    assert!(!is_reused);
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn what_was_cut_off_stays_away_from_a_file_without_a_name() {
    require!(Need::Program("mke2fs"));
    const BYTES: u64 = 6 << 20;
    let opened = RefCell::new(Vec::new());
    let (_image, _device, fs, file) = cut_midway_after(|fs, file| {
        let open = OpenInode::new(Arc::clone(fs), file).unwrap();
        fs.unlink(ROOT, b"file").unwrap();
        opened.borrow_mut().push(open);
    });
    fs.truncate(file, BYTES).unwrap();
    assert!(content(&fs, file).iter().all(|&byte| byte == 0));
    for open in opened.take() {
        open.close().unwrap();
    }
    fs.unmount().unwrap();
}

/// A truncation of a file without a name ends midway.
#[test]
fn what_was_cut_off_is_freed_before_a_file_gets_a_name() {
    require!(Need::Program("mke2fs"));
    let image = small(&[]);
    let fs = mount(&image);
    let open = OpenInode::unnamed(Arc::clone(&fs), ROOT, &OWNER).unwrap();
    let file = open.inode();
    fs.write_at(file, &[7; 20_000], 0).unwrap();
    {
        let mount = fs.writable().unwrap();
        let pinned = cache::pin_inode(&fs.core, file).unwrap();
        let mut locked = pinned.lock();
        let mut plan = Plan::new(mount);
        let slot = slot::slot(&mut plan, file).unwrap();
        let ending = Ending {
            size: 0,
            written_at: WrittenAt::Now,
        };
        finish::finish(plan, slot, ending, pinned.held(&locked)).unwrap();
        locked.is_cut = true;
    }
    assert_ne!(blocks(&fs, file).len(), 0);
    fs.link(file, ROOT, b"name").unwrap();
    assert_eq!(blocks(&fs, file).len(), 0);
    fs.truncate(file, 20_000).unwrap();
    assert!(content(&fs, file).iter().all(|&byte| byte == 0));
    open.close().unwrap();
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn a_hole_is_copied_only_to_files_that_can_be_written() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = small(&["encrypt", "inline_data"]);
    let locked = encrypted(&image);
    let fs = mount(&image);
    let hole = fs.create(ROOT, b"hole", &OWNER).unwrap();
    fs.truncate(hole, 4 << 20).unwrap();
    let no_key = errno(fs.write_at(locked, b"x", 5000));
    let copied = fs.copy_file_range(hole, 0, locked, 5000, 4000);
    assert_eq!(errno(copied), no_key);
    assert_eq!(fs.stat(locked).unwrap().size_bytes, 5000);

    let inside = fs.create(ROOT, b"inside", &OWNER).unwrap();
    fs.write_at(inside, &[7; 10], 0).unwrap();
    let is_inside = || {
        let flags = fs.stat(inside).unwrap().flags;
        flags.contains(InodeFlags::INLINE_DATA_FL)
    };
    assert!(is_inside());
    let copied = fs.copy_file_range(hole, 0, inside, 10, 4_000_000);
    assert_eq!(copied.unwrap(), 4_000_000);
    assert!(!is_inside());
    let found = content(&fs, inside);
    assert_eq!((found.len(), &found[..10]), (4_000_010, &[7; 10][..]));
    assert!(found[10..].iter().all(|&byte| byte == 0));
    fs.unmount().unwrap();
}

#[test]
fn a_write_without_data_is_refused_where_others_are() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = small(&["encrypt"]);
    let locked = encrypted(&image);
    let fs = mount(&image);
    let none = [&[][..], &[IoSlice::new(b"")]];
    let no_key = errno(fs.write_at(locked, b"x", 0));
    for bufs in none {
        assert_eq!(errno(fs.write_vectored_at(locked, bufs, 0)), no_key);
        assert_eq!(errno(fs.write_vectored_at(ROOT, bufs, 0)), 21);
    }
    let fixed = fs.create(ROOT, b"fixed", &OWNER).unwrap();
    for bufs in none {
        assert_eq!(fs.write_vectored_at(fixed, bufs, 7).unwrap(), 0);
    }
    let flags = InodeFlags::IMMUTABLE_FL | InodeFlags::EXTENTS_FL;
    fs.set_flags(fixed, flags).unwrap();
    for bufs in none {
        assert_eq!(errno(fs.write_vectored_at(fixed, bufs, 0)), 1);
    }
    fs.unmount().unwrap();
}

/// Three extents of the file are mapped to the same blocks.
#[test]
fn a_map_of_more_blocks_than_there_are_is_refused_when_the_flag_changes() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = small(&[]);
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.write_at(file, &[7; 1024], 0).unwrap();
    fs.unmount().unwrap();
    // Blocks of the second half of the file system, which has 8192.
    let (first, len) = (5000, 3000);
    let mut fields = vec![format!("block[0] {:#x}", 0x0003_f30a)];
    for nth in 0..3 {
        let words = [nth * len, len, first];
        for (word, value) in words.into_iter().enumerate() {
            fields.push(format!("block[{}] {value}", 3 + 3 * nth + word as u64));
        }
    }
    let fields: Vec<_> = fields
        .iter()
        .map(|field| format!("sif <{file}> {field}"))
        .collect();
    debugfs_write(image.path(), &fields).unwrap();
    let fs = mount(&image);
    let flags = InodeFlags::JOURNAL_DATA_FL | InodeFlags::EXTENTS_FL;
    let refused = fs.set_flags(file, flags).unwrap_err();
    let why = "maps 9000 blocks, the file system has 8192";
    assert!(refused.to_string().contains(why), "{refused}");
    assert_eq!(refused.errno(), 117);
    let flags = fs.stat(file).unwrap().flags;
    assert!(!flags.contains(InodeFlags::JOURNAL_DATA_FL));
    fs.unmount().unwrap();
}

/// Preallocates all space for users but `left` blocks, and returns how many are left.
fn fill_but(fs: &Fs, left: u64) -> u64 {
    let available = || fs.statfs().unwrap().available_blocks;
    let filler = fs.create(ROOT, b"filler", &OWNER).unwrap();
    let mut filled = 0;
    while available() > left {
        let more = (available() - left) * 1024;
        let what = Fallocate::Allocate;
        match fs.fallocate(filler, what, filled, more) {
            Ok(()) => filled += more,
            Err(Error::Unsupported(_)) => {
                let some = vec![1; more.min(1 << 16) as usize];
                filled += fs.write_at(filler, &some, filled).unwrap() as u64;
            }
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    fs.sync().unwrap();
    available()
}

#[test]
fn a_write_without_space_for_all_writes_a_part() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let every = [
        (&[][..], "data=ordered"),
        (&[], "data=journal"),
        (&["^extent", "^64bit"], ""),
        (&["^has_journal"], ""),
        (&["inline_data"], ""),
    ];
    for (features, words) in every {
        println!("{features:?} {words}");
        let image = small(features);
        let fs = mount_with(&image, words);
        let [plain, holey, many, appended] =
            [b"pl", b"ho", b"ma", b"ap"].map(|name| fs.create(ROOT, name, &OWNER).unwrap());
        fs.truncate(holey, 2 << 20).unwrap();
        let left = fill_but(&fs, 300);
        assert!((200..=300).contains(&left), "{left} blocks");
        let data: Vec<u8> = (0..1 << 20_u32)
            .map(|nr: u32| (nr / 1000).to_le_bytes()[0] | 1)
            .collect();
        // Nodes of the map take some blocks.
        let fits = |written: usize| {
            let blocks = written as u64 / 1024;
            assert!(blocks <= left && blocks + 8 >= left, "{blocks} of {left}");
        };
        let written = fs.write_at(plain, &data, 0).unwrap();
        fits(written);
        assert_eq!(content(&fs, plain), data[..written]);
        assert_eq!(errno(fs.write_at(plain, &data, 2 << 20)), 28);
        fs.truncate(plain, 0).unwrap();

        let written = fs.write_at(holey, &data, 500).unwrap();
        fits(written + 500);
        assert_eq!((written + 500) % 1024, 0);
        let mut expected = vec![0; 2 << 20];
        expected[500..500 + written].copy_from_slice(&data[..written]);
        assert!(content(&fs, holey) == expected);
        fs.truncate(holey, 0).unwrap();

        let halves = data.split_at(70_000);
        let slices = [IoSlice::new(halves.0), IoSlice::new(halves.1)];
        let written = fs.write_vectored_at(many, &slices, 0).unwrap();
        fits(written);
        assert_eq!(content(&fs, many), data[..written]);
        fs.truncate(many, 0).unwrap();

        assert_eq!(errno(fs.append(appended, &data)), 28);
        let size = content(&fs, appended).len();
        fits(size);
        assert_eq!(content(&fs, appended), data[..size]);
        fs.truncate(appended, 0).unwrap();
        assert_eq!(errno(fs.write_all_at(appended, &data, 0)), 28);
        fs.unmount().unwrap();
        assert_clean(image.path());
    }
}

/// Threads fill the file system and one empties its file now and then. Each count is what the file
/// has, and nothing is left that one of them could have had.
#[test]
fn threads_that_fill_the_disk_have_what_their_counts_say() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    const PIECE_BYTES: usize = 300 << 10;
    for words in ["", "data=journal"] {
        let image = small(&[]);
        let fs = mount_with(&image, words);
        let left = fill_but(&fs, 2000);
        let file = |name: u8| fs.create(ROOT, &[name], &OWNER).unwrap();
        let files = [b'a', b'b', b'c'].map(file);
        // Returns the number of bytes that the file has when there is no space.
        let fill = |file: InodeNr, byte: u8| {
            let mut size = 0;
            loop {
                match fs.write_at(file, &[byte; PIECE_BYTES], size) {
                    Ok(written) => size += written as u64,
                    Err(Error::NoSpace) => return size,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let sizes = thread::scope(|scope| {
            let threads = [1, 2, 3].map(|byte: u8| {
                let (fill, fs, file) = (&fill, &fs, files[usize::from(byte) - 1]);
                scope.spawn(move || {
                    let rounds = if byte == 3 { 5 } else { 1 };
                    for _ in 1..rounds {
                        fill(file, byte);
                        fs.truncate(file, 0).unwrap();
                    }
                    fill(file, byte)
                })
            });
            threads.map(|thread| thread.join().unwrap())
        });
        for (nth, (file, size)) in files.into_iter().zip(sizes).enumerate() {
            let found = content(&fs, file);
            assert_eq!(found.len() as u64, size, "{words}");
            assert!(found.iter().all(|&byte| usize::from(byte) == nth + 1));
        }
        // The last thread took what the others left, and nothing was freed since.
        let taken = sizes.iter().sum::<u64>() / 1024;
        assert!(taken <= left && taken + 32 >= left, "{taken} of {left}");
        fs.unmount().unwrap();
        assert_clean(image.path());
    }
}

const CAPABILITY: &[u8] = b"security.capability";

/// Sets the set-id bits and a capability of a file.
fn give_privileges(fs: &Fs, file: InodeNr) {
    let change = AttributeChange {
        permissions: Some(0o6755),
        ..AttributeChange::default()
    };
    fs.set_attributes(file, &change).unwrap();
    let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    fs.set_xattr(file, CAPABILITY, &value, SetXattr::Any)
        .unwrap();
}

fn has_privileges(fs: &Fs, file: InodeNr) -> bool {
    let has_bits = fs.stat(file).unwrap().mode.0 & 0o6000 == 0o6000;
    let has_capability = fs.xattr(file, CAPABILITY).is_ok();
    assert_eq!(has_bits, has_capability, "one of them is gone");
    has_bits
}

#[test]
fn only_a_write_that_is_done_takes_privileges() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    for (features, words) in [
        (&[][..], "data=ordered,lazytime"),
        (&["fast_commit"], ""),
        (&[], "data=journal"),
        (&["inline_data"], ""),
    ] {
        let image = small(features);
        let fs = mount_with(&image, words);
        let user = Caller {
            uid: 1000,
            gid: 1000,
            groups: &[],
            capabilities: Capabilities::empty(),
        };
        let file = fs.create(ROOT, b"file", &OWNER).unwrap();
        let write = |bytes: &[u8], offset: u64| fs.write_at_as(&user, file, bytes, offset);
        let done = |bytes: usize| WriteOutcome {
            bytes,
            privileges: Privileges::Taken,
        };
        // New, written over, longer, preallocated.
        let (block, blocks) = ([3; 1024], [4; 5000]);
        give_privileges(&fs, file);
        for (bytes, offset) in [
            (&block[..10], 0),
            (&block[..], 0),
            (&block[..10], 20),
            (&blocks[..], 512),
            (&blocks[..], 100_000),
            (&blocks[..], 98_000),
        ] {
            assert!(has_privileges(&fs, file));
            assert_eq!(write(bytes, offset).unwrap(), done(bytes.len()));
            assert!(!has_privileges(&fs, file), "{offset}");
            let again = write(bytes, offset).unwrap();
            assert_eq!(again.privileges, Privileges::Kept);
            fs.fsync(file).unwrap();
            let crashed = image.copy().unwrap();
            let after = mount(&crashed);
            assert!(!has_privileges(&after, file), "{offset}");
            assert_eq!(content(&after, file), content(&fs, file));
            after.unmount().unwrap();
            give_privileges(&fs, file);
        }
        assert_eq!(write(b"", 0).unwrap().privileges, Privileges::Kept);
        assert_eq!(errno(write(b"x", u64::MAX - 1)), 27);
        assert_eq!(errno(write(b"x", 1 << 50)), 27);
        for flag in [InodeFlags::APPEND_FL, InodeFlags::IMMUTABLE_FL] {
            let before = fs.stat(file).unwrap().flags & InodeFlags::USER_VISIBLE;
            fs.set_flags(file, before | flag).unwrap();
            assert_eq!(errno(write(b"x", 0)), 1);
            fs.set_flags(file, before).unwrap();
        }
        fill_but(&fs, 0);
        let filled = fs.create(ROOT, b"rest", &OWNER).unwrap();
        while fs.append(filled, &block).is_ok() {}
        let before = fs.stat(file).unwrap();
        assert_eq!(errno(write(&blocks, 200_000)), 28);
        assert_eq!(fs.stat(file).unwrap(), before);
        assert!(has_privileges(&fs, file), "a refused call took them");
        // The last block of the file, which is overwritten in place, and what follows.
        let written = write(&blocks, 104_000).unwrap();
        assert_eq!(written, done(105_472 - 104_000));
        assert!(!has_privileges(&fs, file));
        fs.unmount().unwrap();
        assert_clean(image.path());
    }
}
