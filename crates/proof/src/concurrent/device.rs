//! **Purpose.** A memory device with latency, filled with poison before anything is written.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::time::Duration;

use fourscore_block::{BlockDevice, Hints, RamDevice};
use fourscore_sync::Arc;
use fourscore_sync::atomic::{AtomicBool, Ordering};

use super::stamp::POISON;

/// A memory device with latency.
#[derive(Debug)]
pub(super) struct SlowDevice {
    ram: Arc<RamDevice>,
    read: Duration,
    write: Duration,
    is_fast: AtomicBool,
}

impl SlowDevice {
    pub(super) fn new(ram: Arc<RamDevice>, read: Duration, write: Duration) -> Self {
        Self {
            ram,
            read,
            write,
            is_fast: AtomicBool::new(false),
        }
    }

    /// Turns the latency off, when the threads have ended.
    pub(super) fn hurry(&self) {
        self.is_fast.store(true, Ordering::Relaxed);
    }

    fn pause(&self, latency: Duration) {
        if !latency.is_zero() && !self.is_fast.load(Ordering::Relaxed) {
            std::thread::sleep(latency);
        }
    }
}

/// A device filled with poison.
pub(super) fn poisoned(len_bytes: u64) -> io::Result<Arc<RamDevice>> {
    const PIECE: usize = 1 << 20;
    let ram = RamDevice::new(len_bytes);
    let piece = vec![POISON; PIECE];
    let mut at = 0;
    while at < len_bytes {
        let len = usize::try_from(len_bytes - at).map_or(PIECE, |left| left.min(PIECE));
        ram.write_at(&piece[..len], at)?;
        at += len as u64;
    }
    Ok(Arc::new(ram))
}

impl BlockDevice for SlowDevice {
    fn len_bytes(&self) -> u64 {
        self.ram.len_bytes()
    }

    fn hints(&self) -> Hints {
        self.ram.hints()
    }

    /// Waits before it reads, so that a write may come in between.
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.pause(self.read);
        self.ram.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.pause(self.write);
        self.ram.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.pause(self.write);
        self.ram.flush()
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.ram.discard(range)
    }
}
