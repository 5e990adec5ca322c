//! No thread holds an epoch guard while the device works: otherwise a slow read would keep alive
//! all memory that other threads retire, and no freed block could be reused.
//!
//! The device of these tests asserts that at each call. Epoch guards are counted in debug builds.
#![cfg(debug_assertions)]

use fourscore::{
    Fallocate, Follow, Fs, InodeNr, LogicalBlock, MountOptions, OpenInode, OpenOptions, Replace,
    Result, Seek, SetXattr,
};
use fourscore_block::{BlockDevice, Hints, RamDevice};
use fourscore_sync::{Arc, epoch};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::{ControlFlow, Range};

use crate::common::{OWNER, ROOT, device_to_read};

/// So small that the blocks of one operation just fit, and hardly anything stays.
const CACHE_BYTES: usize = 96 << 10;

/// A device in memory for callers that hold no guard.
#[derive(Debug)]
struct Unpinned(RamDevice);

impl BlockDevice for Unpinned {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }
    fn hints(&self) -> Hints {
        self.0.hints()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        epoch::assert_not_pinned();
        self.0.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        epoch::assert_not_pinned();
        self.0.write_vectored_at(bufs, offset)
    }
    fn flush(&self) -> io::Result<()> {
        epoch::assert_not_pinned();
        self.0.flush()
    }
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        epoch::assert_not_pinned();
        self.0.discard(range)
    }
}

/// Creates a device with a file system of the type `kind`.
fn device(kind: &str, arguments: &[&str]) -> (Image, Arc<Unpinned>) {
    let image = Image::builder(MiB(32)).kind(kind).block_size_bytes(1024);
    let image = image.arguments(arguments.iter().copied()).make().unwrap();
    let device = Arc::new(Unpinned(RamDevice::over(device_to_read(&image))));
    (image, device)
}

fn name(number: u32) -> Vec<u8> {
    format!("a name that fills a leaf soon {number}").into_bytes()
}

/// Calls everything that reads or changes a file system.
fn use_all(fs: &Fs, value_bytes: usize) -> Result<()> {
    let dir = fs.mkdir(ROOT, b"dir", &OWNER)?;
    for number in 0..600 {
        let file = fs.create(dir, &name(number), &OWNER)?;
        fs.write_at(file, &[7; 3000], u64::from(number) * 5000)?;
    }
    let file = fs.lookup(dir, &name(300))?;
    for at in 0..300 {
        fs.write_at(file, &[1; 1024], at * 2048)?;
    }
    fs.fallocate(file, Fallocate::PunchHole, 4096, 90_000)?;
    fs.set_xattr(file, b"user.value", &vec![8; value_bytes], SetXattr::Any)?;
    fs.symlink(dir, b"link", &[b'/'; 900], &OWNER)?;
    fs.rename((dir, &name(1)), (ROOT, b"moved"), Replace::Yes)?;
    fs.link(file, ROOT, b"other")?;
    let open = OpenInode::named(fs, dir, &name(2))?;
    fs.unlink(dir, &name(2))?;
    open.close()?;
    fs.copy_file_range(file, 0, fs.lookup(ROOT, b"moved")?, 0, 1 << 20)?;
    fs.fsync(file)?;
    fs.truncate(file, 300_000)?;
    assert!(fs.rmdir(ROOT, b"dir").is_err(), "it has names");
    fs.sync()?;
    read_all(fs)
}

/// Calls everything that reads.
fn read_all(fs: &Fs) -> Result<()> {
    let dir = fs.resolve(b"/dir", Follow::Yes)?;
    let mut count = 0;
    fs.for_each_entry(dir, |entry| {
        count += 1;
        assert!(fs.has_fast_commits() || entry.inode != InodeNr(0));
        ControlFlow::Continue(())
    })?;
    assert_eq!(count, 2 + 600 - 2 + 1);
    let mut buf = Vec::new();
    let mut scanned = 0;
    fs.scan_entries(dir, &mut buf, |_| {
        scanned += 1;
        ControlFlow::Continue(())
    })?;
    assert_eq!(scanned, count);
    for number in (3..600).step_by(7) {
        let file = fs.lookup(dir, &name(number))?;
        let mut content = vec![0; 2000];
        assert_eq!(
            fs.read_at(file, &mut content, u64::from(number) * 5000 + 500)?,
            2000
        );
        assert_eq!(content, [7; 2000]);
        assert!(fs.stat(file)?.size_bytes > 0);
        fs.scan(file)?;
    }
    let file = fs.resolve(b"/other", Follow::Yes)?;
    assert_eq!(fs.xattr(file, b"user.value")?[0], 8);
    assert_eq!(fs.xattrs(file)?.len(), 1);
    assert!(!fs.extents(file)?.is_empty());
    fs.for_each_extent(file, LogicalBlock(0), |_| ControlFlow::Continue(()))?;
    assert!(fs.seek(file, 4096, Seek::Data)?.is_some());
    assert_eq!(fs.read_link(fs.lookup(dir, b"link")?)?.len(), 900);
    assert!(fs.statfs()?.blocks > 0);
    Ok(())
}

fn all_calls(kind: &str, arguments: &[&str], value_bytes: usize) {
    let (_image, device) = device(kind, arguments);
    let open = OpenOptions::new().cache_bytes(CACHE_BYTES);
    let options = MountOptions::new().open(open.clone());
    let fs = Fs::mount(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).unwrap();
    use_all(&fs, value_bytes).unwrap();
    fs.unmount().unwrap();
    read_all(&Fs::open(device, &open).unwrap()).unwrap();
}

#[test]
fn no_guard_is_held_while_the_device_works_with_extents() {
    require!(Need::Program("mke2fs"));
    all_calls("ext4", &["-O", "ea_inode"], 5000);
}

#[test]
fn no_guard_is_held_while_the_device_works_with_pointers() {
    require!(Need::Program("mke2fs"));
    all_calls("ext2", &[], 500);
}

#[test]
#[should_panic(expected = "a thread waits with an epoch guard")]
fn a_guard_that_is_held_is_seen() {
    let device = Unpinned(RamDevice::new(1 << 20));
    let _guard = epoch::pin();
    let _ = device.read_at(&mut [0; 512], 0);
}
