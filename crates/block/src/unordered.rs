//! **Purpose.** A device whose flushes do nothing, for the mount option `nobarrier`, which trades
//! durability for speed.
//!
//! **Crash safety.** None: after a crash, any subset of all writes may be on the device. This is
//! acceptable if the device has a battery-backed cache, or if the image is not needed after a
//! crash.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_sync::Arc;

use crate::batch::{Batch, InFlight};
use crate::device::{BlockDevice, Hints, HostRange};
use crate::error::DeviceOp;

/// A device that passes all operations but flushes to a base device.
#[derive(Debug)]
pub struct UnorderedDevice(Arc<dyn BlockDevice>);

impl UnorderedDevice {
    /// `device` without flushes.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self(device)
    }
}

impl BlockDevice for UnorderedDevice {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn lengthen(&self, len_bytes: u64) -> io::Result<u64> {
        self.0.lengthen(len_bytes)
    }

    fn hints(&self) -> Hints {
        self.0.hints()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.0.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_vectored_at(bufs, offset)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.0.discard(range)
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        self.0.write_zeroes(range)
    }

    /// A batch with a flush is carried out one request after the other.
    fn submit(&self, batch: Batch) -> InFlight {
        let mut requests = batch.requests().iter();
        if requests.any(|request| request.operation().op == DeviceOp::Flush) {
            return InFlight::finished(batch.run_on(self));
        }
        self.0.submit(batch)
    }

    fn unlock(&self) {
        self.0.unlock();
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.0.forget_cached(range);
    }

    fn is_being_written(&self) -> bool {
        self.0.is_being_written()
    }

    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        self.0.host_range(range)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::{IoBuf, RamDevice, RecordingDevice};

    #[test]
    fn all_writes_arrive_and_nothing_is_flushed() {
        let base = Arc::new(RamDevice::new(4096));
        let recording = Arc::new(RecordingDevice::new(base));
        let device = UnorderedDevice::new(recording.clone());
        device.write_at(b"one", 0).expect("inside");
        device.flush().expect("no effect");
        device
            .write_fua(&[IoSlice::new(b"two")], 3)
            .expect("inside");
        let mut batch = Batch::new();
        batch.write(vec![IoBuf::from(&b"three"[..])], 6).flush();
        device.submit(batch).wait_all_ok().expect("inside");
        let mut batch = Batch::new();
        batch.write(vec![IoBuf::from(&b"four"[..])], 11);
        device.submit(batch).wait_all_ok().expect("inside");
        let mut bytes = [0; 15];
        device.read_at(&mut bytes, 0).expect("inside");
        assert_eq!(&bytes, b"onetwothreefour");
        let events = recording.events();
        assert_eq!(events.len(), 4);
        let is_durable = |event: &crate::Event| {
            let at_once = crate::Durable::AtOnce;
            matches!(event, crate::Event::Write { durable, .. } if *durable == at_once)
        };
        assert!(
            !events
                .iter()
                .any(|event| event.is_flush() || is_durable(event))
        );
    }
}
