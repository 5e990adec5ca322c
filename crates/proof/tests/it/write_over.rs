//! Data that is overwritten in the same clock tick in which its inode was changed: only the data
//! changes, and fsync covers it all the same. e2fsck checks the result.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fourscore::{Fs, InodeNr, MountOptions, Noted, NotedTimes, OpenOptions, Stat, WrittenAt};
use fourscore_block::{BlockDevice, DeviceOptions, Event, RecordingDevice, Survival, open_path};
use fourscore_ondisk::Timestamp;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, Mutex, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;

use crate::common::{PLAIN, ROOT, require_e2fsprogs};

/// The number of attempts to finish within one tick: the work takes microseconds, a tick
/// milliseconds.
const MOST_ATTEMPTS: u8 = 250;

type Hook = Box<dyn FnOnce() + Send>;

/// A device that runs a hook at the end of a flush, or before a write.
struct Hooked {
    inner: RecordingDevice,
    after_flush: Mutex<Option<Hook>>,
    before_write: Mutex<Option<Hook>>,
}

fn apply(hook: &Mutex<Option<Hook>>) {
    let hook = hook.lock().take();
    if let Some(hook) = hook {
        hook();
    }
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl BlockDevice for Hooked {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.inner.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        apply(&self.before_write);
        self.inner.write_vectored_at(bufs, offset)
    }
    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.inner.write_fua(bufs, offset)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()?;
        apply(&self.after_flush);
        Ok(())
    }
}

/// A file system on a recording device, and a file of two blocks in it.
struct Setup {
    image: Image,
    device: Arc<Hooked>,
    fs: Arc<Fs>,
    file: InodeNr,
}

fn setup(features: &[&str], cache: OpenOptions) -> Setup {
    let image = Image::builder(MiB(16)).kind("ext4").features(features);
    let image = image.make().unwrap();
    let base = open_path(image.path(), DeviceOptions::default()).unwrap();
    let device = Arc::new(Hooked {
        inner: RecordingDevice::new(Arc::new(base)),
        after_flush: Mutex::new(None),
        before_write: Mutex::new(None),
    });
    // Commits happen only on request.
    let options = MountOptions::new().parse("commit=100000").unwrap();
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = Fs::mount(shared, &options.open(cache)).unwrap();
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    fs.write_at(file, &[255; 8192], 0).unwrap();
    fs.sync().unwrap();
    Setup {
        image,
        device,
        fs,
        file,
    }
}

impl Setup {
    fn stat(&self) -> Stat {
        self.fs.stat(self.file).unwrap()
    }

    /// Overwrites the first block, and returns whether the inode stayed unchanged.
    fn leaves_the_inode(&self, with: u8) -> bool {
        let before = self.stat();
        self.fs.write_at(self.file, &[with; 4096], 0).unwrap();
        let after = self.stat();
        assert_eq!(after == before, after.version == before.version);
        assert_eq!(after == before, after.mtime == before.mtime);
        after == before
    }

    /// Returns the first block after a crash that keeps only flushed data.
    fn after_a_crash(&self) -> Vec<u8> {
        let recording = &self.device.inner;
        let crashed = recording.crashed(recording.cuts(), |_, _| Survival::Lost);
        let fs = Fs::open(Arc::new(crashed.unwrap()), &OpenOptions::new()).unwrap();
        let mut content = vec![0; 4096];
        fs.read_at(self.file, &mut content, 0).unwrap();
        content
    }

    /// Unmounts, and has e2fsck check the result.
    fn end(self) {
        self.fs.unmount().unwrap();
        let recording = &self.device.inner;
        let mut bytes = vec![0; usize::try_from(recording.len_bytes()).unwrap()];
        recording.read_at(&mut bytes, 0).unwrap();
        let copy = self.image.copy().unwrap();
        fs::write(copy.path(), bytes).unwrap();
        assert_clean(copy.path());
    }
}

#[test]
fn writing_over_content_within_a_tick_is_one_write_of_the_device() {
    require_e2fsprogs!();
    for features in [&[][..], &["^has_journal"], &["^extents", "^64bit"]] {
        let setup = setup(features, OpenOptions::new());
        let recording = &setup.device.inner;
        let found = (0..MOST_ATTEMPTS).find(|&with| {
            let before = recording.cuts();
            let leaves = setup.leaves_the_inode(with);
            if leaves {
                let events = recording.events();
                let [Event::Write { bytes, .. }] = &events[before..] else {
                    panic!("one write: {:?}", &events[before..]);
                };
                assert_eq!(**bytes, [with; 4096]);
            }
            leaves
        });
        let with = found.expect("a tick that is long enough");
        let host = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mtime = setup.stat().mtime;
        let host = (host.as_secs().cast_signed(), host.subsec_nanos());
        assert!((mtime.seconds(), mtime.nanoseconds()) <= host, "the future");
        setup.fs.fsync(setup.file).unwrap();
        assert_eq!(setup.after_a_crash(), [with; 4096]);
        // A later tick is recorded in the inode, and so is every change of more than data.
        thread::sleep(Duration::from_millis(50));
        assert!(!setup.leaves_the_inode(7));
        let size = setup.stat().size_bytes;
        setup.fs.write_at(setup.file, &[7; 10], size).unwrap();
        assert_eq!(setup.stat().size_bytes, size + 10);
        setup.end();
    }
}

#[test]
fn content_that_is_written_over_while_its_inode_commits_is_synced() {
    require_e2fsprogs!();
    let setup = Arc::new(setup(&[], OpenOptions::new()));
    let found = (0..MOST_ATTEMPTS).find(|&with| {
        // It may be the tick of the last attempt; then there is nothing to commit.
        let commits = !setup.leaves_the_inode(254);
        let outcome = Arc::new(Mutex::new(None));
        let hook = {
            let (setup, outcome) = (Arc::clone(&setup), Arc::clone(&outcome));
            move || {
                let leaves = setup.leaves_the_inode(with);
                let syncs = thread::spawn(move || setup.fs.fsync(setup.file));
                *outcome.lock() = Some((leaves, syncs));
                // The fsync waits for this commit, if it comes in time.
                thread::sleep(Duration::from_millis(5));
            }
        };
        *setup.device.after_flush.lock() = Some(Box::new(hook));
        setup.fs.fsync(setup.file).unwrap();
        let (leaves, syncs) = outcome.lock().take().expect("fsync flushes");
        syncs.join().unwrap().unwrap();
        assert_eq!(setup.after_a_crash(), [with; 4096]);
        commits && leaves
    });
    assert!(found.is_some(), "no tick was long enough");
    Arc::into_inner(setup).expect("all have ended").end();
}

/// A caller that caches data sets the times of its writes itself.
#[test]
fn writeback_leaves_the_times_to_the_caller() {
    require_e2fsprogs!();
    let setup = setup(&[], OpenOptions::new());
    let (fs, file) = (&setup.fs, setup.file);
    let told = Timestamp::new(1_000_000_000, 7).unwrap();
    let times = NotedTimes {
        mtime: Some(told),
        ctime: Some(told),
        ..NotedTimes::default()
    };
    fs.note_times(file, &times, Noted::Written).unwrap();
    let back = |data: &[u8], offset| {
        let written = fs.write_back_at(file, data, offset, WrittenAt::ByCaller);
        assert_eq!(written.unwrap(), data.len());
    };
    let before = setup.stat();
    assert_eq!((before.mtime, before.ctime), (told, told));
    back(&[1; 4096], 0);
    assert_eq!(setup.stat(), before, "it lies where it lay");
    back(&[2; 4096], 8192);
    let after = setup.stat();
    assert_eq!((after.mtime, after.ctime), (told, told));
    assert_eq!(after.size_bytes, 12288);
    fs.fsync(file).unwrap();
    assert_eq!(setup.after_a_crash(), [1; 4096]);
    let written = fs.write_back_at(file, &[3; 4096], 0, WrittenAt::Now);
    assert!(written.is_ok() && setup.stat().mtime > told);
    setup.end();
}

#[test]
fn content_that_is_written_back_does_not_wait_for_other_pieces_of_it() {
    require_e2fsprogs!();
    let setup = Arc::new(setup(&[], OpenOptions::new()));
    let back = |setup: &Setup, with, offset| {
        let data = [with; 4096];
        let written = setup
            .fs
            .write_back_at(setup.file, &data, offset, WrittenAt::ByCaller);
        assert_eq!(written.unwrap(), data.len());
    };
    let done = Arc::new(AtomicBool::new(false));
    let hook = {
        let (setup, is_done) = (Arc::clone(&setup), Arc::clone(&done));
        move || {
            let other = thread::spawn(move || {
                back(&setup, 2, 4096);
                drop(setup);
                is_done.store(true, Ordering::Release);
            });
            let end = Instant::now() + Duration::from_secs(20);
            while !done.load(Ordering::Acquire) {
                assert!(Instant::now() < end, "the other write waits for this one");
                thread::sleep(Duration::from_millis(1));
            }
            other.join().unwrap();
        }
    };
    *setup.device.before_write.lock() = Some(Box::new(hook));
    back(&setup, 1, 0);
    setup.fs.fsync(setup.file).unwrap();
    assert_eq!(setup.after_a_crash(), [1; 4096]);
    let mut second = [0; 4096];
    setup.fs.read_at(setup.file, &mut second, 4096).unwrap();
    assert_eq!(second, [2; 4096]);
    Arc::into_inner(setup).expect("all have ended").end();
}

/// An fsync that is repeated does not make changes of other inodes durable.
#[test]
fn content_that_was_written_over_is_synced_once() {
    require_e2fsprogs!();
    let setup = setup(&[], OpenOptions::new());
    let recording = &setup.device.inner;
    let synced = |name: &str| {
        setup.fs.create(ROOT, name.as_bytes(), &PLAIN).unwrap();
        let before = recording.cuts();
        setup.fs.fsync(setup.file).unwrap();
        let events = recording.events().split_off(before);
        let is_write = |event: &Event| matches!(event, Event::Write { .. });
        let flushes = events.iter().any(|event| !is_write(event));
        assert!(flushes, "{events:?}");
        events.iter().any(is_write)
    };
    let found = (0..MOST_ATTEMPTS).find(|&with| setup.leaves_the_inode(with));
    let with = found.expect("a tick that is long enough");
    assert!(synced("a commit"), "as if it had joined a transaction");
    assert!(!synced("no commit") && !synced("none again"));
    assert_eq!(setup.after_a_crash(), [with; 4096]);
    let found = (0..MOST_ATTEMPTS).find(|&with| setup.leaves_the_inode(with));
    assert!(found.is_some() && synced("another commit"));
    setup.end();
}

#[test]
fn content_that_was_written_over_before_its_inode_left_memory_is_synced() {
    require_e2fsprogs!();
    // The cache is so small that inodes evict each other.
    let setup = setup(&[], OpenOptions::new().cache_bytes(256 << 10));
    let name = |number: u32| format!("other {number}").into_bytes();
    let others: Vec<_> = (0..2000)
        .map(|number| setup.fs.create(ROOT, &name(number), &PLAIN).unwrap())
        .collect();
    let found = (0..MOST_ATTEMPTS).find(|&with| {
        setup.leaves_the_inode(254);
        // Nothing is left to commit.
        setup.fs.sync().unwrap();
        setup.leaves_the_inode(with)
    });
    let with = found.expect("a tick that is long enough");
    for &other in &others {
        setup.fs.stat(other).unwrap();
    }
    setup.fs.fsync(setup.file).unwrap();
    assert_eq!(setup.after_a_crash(), [with; 4096]);
    setup.end();
}
