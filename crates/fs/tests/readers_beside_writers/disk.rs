//! A file system in memory, and a device whose reads can be stopped.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;
use fourscore::{Fs, InodeNr, MountOptions, NewAttributes};
use fourscore_block::{BlockDevice, DeviceOptions, Hints, RamDevice, open_path};
use fourscore_journal::{Background, JournalOptions};
use fourscore_ondisk::PhysBlock;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, Condvar, Mutex, thread};
use fourscore_testkit::image::{Image, ImageBuilder, MiB};

pub(crate) const ROOT: InodeNr = InodeNr::ROOT;
pub(crate) const BLOCK_BYTES: usize = 1024;
pub(crate) const OWNER: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);
/// The time limit for events that come at once unless the test is wrong.
const SOON: Duration = Duration::from_secs(20);

/// How long a scenario tries to see a fault that was fixed.
pub(crate) const SHORT: Duration = Duration::from_millis(700);
/// How long a scenario tries to see an injected fault.
#[cfg(feature = "sabotage")]
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The options of a mount that commits only on request, and is full when no block is free: so a
/// block that is freed is the next one to be used.
pub(crate) fn quiet() -> MountOptions {
    let options = MountOptions::new().journal(JournalOptions {
        background: Background::None,
        ..JournalOptions::default()
    });
    options.use_reserve()
}

/// A device in memory with a file system.
#[derive(Debug)]
pub(crate) struct Disk {
    gate: Arc<Gate>,
    _image: Image,
}

/// The default file system of these tests.
pub(crate) fn usual() -> ImageBuilder {
    let image = Image::builder(MiB(8)).kind("ext4");
    image.block_size_bytes(1024).arguments(["-N", "512"])
}

impl Disk {
    /// Creates a disk of 8 MiB with blocks of [`BLOCK_BYTES`].
    pub(crate) fn new() -> Self {
        Self::of(&usual())
    }

    pub(crate) fn of(image: &ImageBuilder) -> Self {
        let image = image.make().unwrap();
        let base = open_path(image.path(), DeviceOptions::default()).unwrap();
        let gate = Arc::new(Gate {
            device: RamDevice::over(Arc::new(base)),
            state: Mutex::new(State::Open),
            changed: Condvar::new(),
        });
        Self {
            gate,
            _image: image,
        }
    }

    /// Mounts the file system with cold caches.
    pub(crate) fn mount(&self, options: &MountOptions) -> Arc<Fs> {
        let device: Arc<dyn BlockDevice> = Arc::<Gate>::clone(&self.gate);
        Fs::mount(device, options).unwrap()
    }

    /// Runs `read` in a thread of its own until it reads one of `blocks` from the device, runs
    /// `change` meanwhile, lets `read` continue, and returns its result.
    pub(crate) fn stopped_at<T: Send>(
        &self,
        blocks: Range<PhysBlock>,
        read: impl FnOnce() -> T + Send,
        change: impl FnOnce(),
    ) -> T {
        let byte = |block: PhysBlock| block.0 * BLOCK_BYTES as u64;
        thread::scope(|scope| {
            let closed = self.gate.close(byte(blocks.start)..byte(blocks.end));
            let reader = scope.spawn(read);
            closed.wait_for_reader();
            change();
            drop(closed);
            reader.join().expect("no panic")
        })
    }
}

/// The block of the inode table that holds `nr`.
pub(crate) fn table_block(fs: &Fs, nr: InodeNr) -> Range<PhysBlock> {
    let (group, index) = fs.geometry().inode_group(nr).unwrap();
    let table = fs.group(group).unwrap().inode_table();
    let block = fs.geometry().inode_place(table, index).block;
    block..PhysBlock(block.0 + 1)
}

/// Has one thread write and some threads read, again and again, until one fails or the time is
/// over.
pub(crate) fn beside(
    time: Duration,
    readers: u32,
    write: impl FnMut() -> Result<()> + Send,
    read: impl Fn() -> Result<()> + Sync,
) -> Result<()> {
    fn go_on(
        is_over: &AtomicBool,
        mut what: impl FnMut() -> Result<()>,
        until: Instant,
    ) -> Result<()> {
        let mut came_to = Ok(());
        while came_to.is_ok() && Instant::now() < until && !is_over.load(Ordering::Acquire) {
            came_to = what();
        }
        is_over.store(true, Ordering::Release);
        came_to
    }
    let until = Instant::now() + time;
    let (is_over, read) = (&AtomicBool::new(false), &read);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..readers)
            .map(|_| scope.spawn(move || go_on(is_over, read, until)))
            .collect();
        let written = go_on(is_over, write, until);
        let read = readers
            .into_iter()
            .map(|reader| reader.join().expect("no panic"));
        read.fold(written, Result::and)
    })
}

/// A device of which one read can be stopped.
#[derive(Debug)]
struct Gate {
    device: RamDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The next read of these bytes stops.
    Closed(Range<u64>),
    /// A read has stopped; others do not.
    Stopped,
}

/// A guard: until it is dropped, the next read of a range stops.
struct Closed<'g>(&'g Gate);

impl Gate {
    fn close(&self, bytes: Range<u64>) -> Closed<'_> {
        *self.state.lock() = State::Closed(bytes);
        Closed(self)
    }

    fn pass(&self, bytes: &Range<u64>) {
        let mut state = self.state.lock();
        let stops = match &*state {
            State::Closed(closed) => closed.start < bytes.end && bytes.start < closed.end,
            State::Open | State::Stopped => false,
        };
        if !stops {
            return;
        }
        *state = State::Stopped;
        self.changed.notify_all();
        while *state == State::Stopped {
            self.changed.wait(&mut state);
        }
    }
}

impl Closed<'_> {
    fn wait_for_reader(&self) {
        let began = Instant::now();
        let mut state = self.0.state.lock();
        while *state != State::Stopped && began.elapsed() < SOON {
            self.0.changed.wait_for(&mut state, SOON);
        }
        assert_eq!(*state, State::Stopped, "no thread reads there");
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        *self.0.state.lock() = State::Open;
        self.0.changed.notify_all();
    }
}

impl BlockDevice for Gate {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn hints(&self) -> Hints {
        self.device.hints()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.pass(&(offset..offset + len as u64));
        self.device.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.device.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }
}
