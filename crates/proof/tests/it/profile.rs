//! Profiles of operations: a device that sleeps is in the section `device`, and the sections take
//! no more than the time of the operations.
//!
//! No other test of the binary marks operations, so the sums are those of this module.

use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use fourscore::profile::{self, Sampling, Section};
use fourscore::{Fallocate, Fs, MountOptions};
use fourscore_block::BlockDevice;
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{OWNER, ROOT, device};

const LATENCY: Duration = Duration::from_millis(3);

/// A device whose writes and flushes take a time.
#[derive(Debug)]
struct SlowDevice(Arc<dyn BlockDevice>);

impl BlockDevice for SlowDevice {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.0.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        thread::sleep(LATENCY);
        self.0.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        thread::sleep(LATENCY);
        self.0.flush()
    }
}

#[test]
fn a_device_that_sleeps_is_in_its_section_and_sections_take_no_more_than_the_threads() {
    const THREADS: u32 = 2;
    const FILES: u32 = 10;
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(64)).kind("ext4").make().unwrap();
    let slow = Arc::new(SlowDevice(device(&image)));
    let fs = Fs::mount(slow, &MountOptions::new()).unwrap();
    assert_eq!(fs.stats().profile.operations, 0);
    profile::start(Sampling::All);
    let began = Instant::now();
    let work = |thread: u32| {
        for nr in 0..FILES {
            let _operation = profile::operation();
            let name = format!("{thread} {nr}");
            let file = fs.create(ROOT, name.as_bytes(), &OWNER).unwrap();
            fs.write_at(file, &[7; 8192], 0).unwrap();
            fs.fallocate(file, Fallocate::AllocateKeepSize, 8192, 65_536)
                .unwrap();
            fs.fsync(file).unwrap();
        }
    };
    thread::scope(|scope| {
        for nr in 0..THREADS {
            scope.spawn(move || work(nr));
        }
    });
    let wall = began.elapsed();
    profile::stop();
    let totals = fs.stats().profile;
    let all = wall * THREADS;
    assert_eq!(totals.operations, u64::from(THREADS * FILES));
    assert!(totals.in_sections() <= all, "{totals:?}, {all:?}");
    assert!(totals.all() <= all + all / 100, "{totals:?}, {all:?}");
    // Each operation writes its data itself. A commit is made by any thread, or in the background,
    // and the operations wait for it.
    let in_device = totals.of(Section::Device);
    assert!(in_device.time >= LATENCY * THREADS * FILES, "{totals:?}");
    let waits = in_device.time + totals.of(Section::Journal).time;
    assert!(waits >= 2 * LATENCY * THREADS * FILES, "{totals:?}");
    for section in Section::ALL {
        let is_sure = section != Section::GroupLockWait;
        let of_one = totals.of(section);
        assert!(!is_sure || of_one.entered >= u64::from(FILES), "{totals:?}");
        assert!(!is_sure || !of_one.time.is_zero(), "{totals:?}");
    }
    // Nothing is added any more.
    {
        let _operation = profile::operation();
        fs.create(ROOT, b"last", &OWNER).unwrap();
    }
    let after = fs.stats().profile;
    assert_eq!(after.operations, totals.operations);
    let entered = |totals: &profile::Totals| Section::ALL.map(|one| totals.of(one).entered);
    assert_eq!(entered(&after), entered(&totals));
    fs.unmount().unwrap();
}
