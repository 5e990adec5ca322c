//! **Purpose.** A device in memory whose flushes take a time, as those of a disk do: the time is
//! the same on every machine, and no transfer is measured.
//!
//! **Model.** A flush, or a write with FUA, sleeps. Other threads go on meanwhile, and flushes of
//! several threads take their time together. Sleeping takes some microseconds more than it is asked
//! for; the counts have the time that it really took.

use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::{Duration, Instant};

use fourscore_block::{BlockDevice, Hints, RamDevice};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{Arc, thread};

/// A device in memory with a latency of flushes.
#[derive(Debug)]
pub struct SlowMemory {
    memory: RamDevice,
    latency: Duration,
    flushes: AtomicU64,
    flushing_ns: AtomicU64,
}

/// Flushes and writes with FUA since the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushes {
    /// Their number.
    pub count: u64,
    /// The time that they took, one after the other.
    pub time: Duration,
}

impl Flushes {
    /// Those since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            count: self.count.saturating_sub(before.count),
            time: self.time.saturating_sub(before.time),
        }
    }
}

impl SlowMemory {
    /// A device that reads as `base` and keeps what is written in memory.
    #[must_use]
    pub fn over(base: Arc<dyn BlockDevice>, latency: Duration) -> Self {
        Self {
            memory: RamDevice::over(base),
            latency,
            flushes: AtomicU64::new(0),
            flushing_ns: AtomicU64::new(0),
        }
    }

    /// The flushes until now.
    #[must_use]
    pub fn flushes(&self) -> Flushes {
        Flushes {
            count: self.flushes.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.flushing_ns.load(Ordering::Relaxed)),
        }
    }

    fn wait(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if self.latency.is_zero() {
            return;
        }
        let began = Instant::now();
        // The kernel may wake a thread up to 50 us late, unless it is asked not to.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        thread::sleep(self.latency);
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.flushing_ns.fetch_add(took, Ordering::Relaxed);
    }
}

impl BlockDevice for SlowMemory {
    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    fn hints(&self) -> Hints {
        self.memory.hints()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.memory.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.memory.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.wait();
        Ok(())
    }

    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.memory.write_vectored_at(bufs, offset)?;
        self.wait();
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.memory.discard(range)
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        self.memory.write_zeroes(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_take_their_time_and_are_counted() {
        let base: Arc<dyn BlockDevice> = Arc::new(RamDevice::new(8192));
        let latency = Duration::from_millis(3);
        let device = SlowMemory::over(Arc::clone(&base), latency);
        device.write_at(&[7; 4096], 4096).expect("it is in memory");
        assert_eq!(device.flushes(), Flushes::default());
        device.flush().expect("memory");
        let before = device.flushes();
        device
            .write_fua(&[IoSlice::new(&[8; 512])], 0)
            .expect("it is in memory");
        let since = device.flushes().since(before);
        assert_eq!((before.count, since.count), (1, 1));
        assert!(before.time >= latency && since.time >= latency);
        let mut found = [0; 8192];
        device.read_at(&mut found, 0).expect("it is in memory");
        assert_eq!((found[511], found[512], found[8191]), (8, 0, 7));
        base.read_at(&mut found, 0).expect("it is in memory");
        assert_eq!(found, [0; 8192]);
    }
}
