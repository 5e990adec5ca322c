//! When the grace period of a free begins: when the version without the freed blocks is published.

use std::time::{Duration, Instant};

use fourscore_block::{BlockDevice as _, DeviceOptions, RamDevice, open_path};
use fourscore_journal::{Background, JournalOptions};
use fourscore_ondisk::LogicalBlock;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::*;
use crate::guard::Loader;
use crate::inode::cache;
use crate::map::account::Freed;
use crate::map::mapping::Target;
use crate::map::{lookup, update};
use crate::txn::slot;
use crate::{Error, Fs, InodeNr, MountOptions, NewAttributes};

const BLOCK_BYTES: usize = 4096;
const OWNER: NewAttributes = NewAttributes::owned_by(0, 0);
/// A write that need not wait has ended by then, unless the machine is very busy.
const PATIENCE: Duration = Duration::from_millis(500);

/// A file system in memory that is full of `b'f'`, and a file of a few blocks of `b'a'`.
fn full(options: MountOptions) -> (Image, Arc<Fs>, InodeNr) {
    let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(4096);
    let image = image.make().unwrap();
    let base = open_path(image.path(), DeviceOptions::default()).unwrap();
    let device = Arc::new(RamDevice::over(Arc::new(base)));
    let options = options.journal(JournalOptions {
        background: Background::None,
        ..JournalOptions::default()
    });
    let fs = Fs::mount(device, &options).unwrap();
    let file = fs.create(InodeNr::ROOT, b"file", &OWNER).unwrap();
    fs.write_at(file, &[b'a'; 4 * BLOCK_BYTES], 0).unwrap();
    let filler = fs.create(InodeNr::ROOT, b"filler", &OWNER).unwrap();
    for at in (0..).step_by(BLOCK_BYTES) {
        match fs.write_at(filler, &[b'f'; BLOCK_BYTES], at) {
            Ok(_) => {}
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    fs.sync().unwrap();
    (image, fs, file)
}

fn wait_until(is_so: &AtomicBool, patience: Duration) {
    let began = Instant::now();
    while !is_so.load(Ordering::Acquire) && began.elapsed() < patience {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Frees all blocks of a file. Between the beginning of the plan's last step and the publication
/// the grace-period clock ticks, and a reader begins that finds the old version of the file.
/// Returns what the reader reads after another file was written, or waits for space.
fn read_in_the_middle(fs: &Fs, file: InodeNr) -> u8 {
    let [ticked, is_in, is_written] = [const { AtomicBool::new(false) }; 3];
    let read = || {
        wait_until(&ticked, Duration::MAX);
        let guard = Loader::default().pin();
        let inode = cache::inode(&fs.core, file, &guard).unwrap();
        let Target::Written(block) = lookup::map(&fs.core, inode, LogicalBlock(0), &guard)
            .unwrap()
            .target
        else {
            panic!("the file was cut too early");
        };
        is_in.store(true, Ordering::Release);
        wait_until(&is_written, PATIENCE);
        let mut bytes = [0; BLOCK_BYTES];
        let offset = fs.geometry().block_size().offset(block);
        fs.device().read_at(&mut bytes, offset).unwrap();
        bytes[0]
    };
    thread::scope(|scope| {
        let reader = scope.spawn(read);
        let writer = fs.writable().unwrap();
        let pinned = cache::pin_inode(&fs.core, file).unwrap();
        let locked = pinned.lock();
        let mut plan = Plan::new(fs.writable().unwrap());
        let slot = slot::slot(&mut plan, file).unwrap();
        let inode = pinned.copy().unwrap();
        let freed = update::free_map(&mut plan, &inode, slot, LogicalBlock(0)).unwrap();
        assert_eq!(freed, Freed::All);
        let version = slot::version(&mut plan, slot).unwrap();
        let publish = || {
            writer.expedite_grace_period();
            ticked.store(true, Ordering::Release);
            wait_until(&is_in, Duration::MAX);
            pinned.publish(Some(version));
        };
        plan.apply_publishing(&[&locked.last], Publication::of(&[&pinned]), publish)
            .unwrap();
        drop(locked);
        // A thread that finds space after a commit does not wait for readers any more.
        fs.sync().unwrap();
        let other = fs.create(InodeNr::ROOT, b"other", &OWNER).unwrap();
        fs.write_at(other, &[b'b'; 4 * BLOCK_BYTES], 0).unwrap();
        is_written.store(true, Ordering::Release);
        reader.join().unwrap()
    })
}

#[test]
fn a_reader_from_before_the_publication_keeps_the_blocks_that_it_found() {
    require!(Need::Program("mke2fs"));
    let (_image, fs, file) = full(MountOptions::new());
    assert_eq!(char::from(read_in_the_middle(&fs, file)), 'a');
    fs.unmount().unwrap();
}

#[cfg(feature = "sabotage")]
mod put_back {
    use super::*;

    #[test]
    fn a_stamp_from_before_the_publication_is_found() {
        require!(Need::Program("mke2fs"));
        // Readers of other file systems in the process hold the grace period up, too.
        let is_found = (0..20).any(|_| {
            let options = MountOptions::new().sabotage(Some(Sabotage::StampBeforePublish));
            let (_image, fs, file) = full(options);
            let read = read_in_the_middle(&fs, file);
            fs.unmount().unwrap();
            read == b'b'
        });
        assert!(is_found);
    }
}
