//! **Purpose.** A range of a device as a device of its own: a partition at an offset, or a whole
//! device read-only.
//!
//! **Invariants.** No byte outside of the window is ever accessed: each range is checked against
//! the window before it is translated.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_sync::Arc;

use crate::batch::{Batch, InFlight};
use crate::device::{BlockDevice, Hints, HostRange, total_bytes};
use crate::error::{DeviceOp, Operation};
use crate::open::Access;

/// A view of a range of another device.
#[derive(Debug)]
pub struct Window {
    device: Arc<dyn BlockDevice>,
    start: u64,
    len_bytes: u64,
    access: Access,
}

impl Window {
    /// The bytes in `range` of `device`; with [`Access::ReadOnly`] they cannot be written through
    /// this window.
    ///
    /// # Errors
    /// Kind `UnexpectedEof` if the range is not inside the device.
    pub fn new(
        device: Arc<dyn BlockDevice>,
        range: Range<u64>,
        access: Access,
    ) -> io::Result<Self> {
        let operation = Operation::on_range(DeviceOp::Read, &range);
        operation.check_inside(device.len_bytes())?;
        Ok(Self {
            device,
            start: range.start,
            len_bytes: operation.len_bytes,
            access,
        })
    }

    /// All bytes of `device` from byte `start` on.
    ///
    /// # Errors
    /// Kind `UnexpectedEof` if the device ends before `start`.
    pub fn from_offset(
        device: Arc<dyn BlockDevice>,
        start: u64,
        access: Access,
    ) -> io::Result<Self> {
        let end = device.len_bytes().max(start);
        Self::new(device, start..end, access)
    }

    /// All of `device`, for reading only.
    #[must_use]
    pub fn read_only(device: Arc<dyn BlockDevice>) -> Self {
        let len_bytes = device.len_bytes();
        Self {
            device,
            start: 0,
            len_bytes,
            access: Access::ReadOnly,
        }
    }

    /// Checks an operation, and returns its offset on the base device.
    fn translate(&self, operation: &Operation) -> io::Result<u64> {
        if self.access == Access::ReadOnly
            && !matches!(operation.op, DeviceOp::Read | DeviceOp::Flush)
        {
            return Err(operation.read_only());
        }
        operation.check_inside(self.len_bytes)?;
        Ok(self.start + operation.offset)
    }

    /// Checks an operation on a range, and returns the range on the base device.
    fn translate_range(&self, op: DeviceOp, range: &Range<u64>) -> io::Result<Range<u64>> {
        let operation = Operation::on_range(op, range);
        let start = self.translate(&operation)?;
        Ok(start..start + operation.len_bytes)
    }
}

impl BlockDevice for Window {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn hints(&self) -> Hints {
        let hints = self.device.hints();
        let read_only = hints.read_only || self.access == Access::ReadOnly;
        Hints {
            read_only,
            discard: hints.discard && !read_only,
            ..hints
        }
    }

    fn is_being_written(&self) -> bool {
        self.device.is_being_written()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let at = self.translate(&Operation::new(DeviceOp::Read, offset, total_bytes(bufs)))?;
        self.device.read_vectored_at(bufs, at)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let at = self.translate(&Operation::new(DeviceOp::Write, offset, total_bytes(bufs)))?;
        self.device.write_vectored_at(bufs, at)
    }

    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let at = self.translate(&Operation::new(DeviceOp::Write, offset, total_bytes(bufs)))?;
        self.device.write_fua(bufs, at)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.device
            .discard(self.translate_range(DeviceOp::Discard, &range)?)
    }

    fn unlock(&self) {
        self.device.unlock();
    }

    fn forget_cached(&self, range: Range<u64>) {
        if let Ok(range) = self.translate_range(DeviceOp::Read, &range) {
            self.device.forget_cached(range);
        }
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        self.device
            .write_zeroes(self.translate_range(DeviceOp::WriteZeroes, &range)?)
    }

    /// A batch with a request that is refused is carried out one request after the other, so that
    /// each request gets its own outcome.
    fn submit(&self, mut batch: Batch) -> InFlight {
        if batch
            .requests()
            .iter()
            .all(|request| self.translate(&request.operation()).is_ok())
        {
            batch.move_by(self.start);
            self.device.submit(batch)
        } else {
            InFlight::finished(batch.run_on(self))
        }
    }

    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        self.device
            .host_range(self.translate_range(DeviceOp::Read, &range).ok()?)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{IoBuf, RamDevice};

    fn numbered(len: usize) -> (Arc<RamDevice>, Vec<u8>) {
        let content: Vec<u8> = (0..=255).cycle().take(len).collect();
        (Arc::new(RamDevice::from_bytes(&content)), content)
    }

    #[test]
    fn no_byte_outside_is_accessible() {
        let (device, content) = numbered(10_000);
        let window = Window::new(device.clone(), 1000..3000, Access::ReadWrite).expect("inside");
        assert_eq!(window.len_bytes(), 2000);
        assert!(window.read_at(&mut [0; 2], 1999).is_err());
        assert!(window.write_at(&[0; 2], 1999).is_err());
        assert!(window.write_at(&[0], u64::MAX).is_err());
        assert!(window.write_zeroes(1999..2001).is_err());
        assert!(window.discard(0..2001).is_err());
        window.write_at(&[0; 2000], 0).expect("all of it");
        window
            .write_fua(&[IoSlice::new(&[1])], 1999)
            .expect("its last byte");
        let mut all = vec![0; 10_000];
        device.read_at(&mut all, 0).expect("read");
        assert_eq!(
            (&all[..1000], &all[3000..]),
            (&content[..1000], &content[3000..])
        );
        assert_eq!((all[1000], all[2999]), (0, 1));
        assert!(Window::new(device.clone(), 9999..10_001, Access::ReadOnly).is_err());
        assert!(Window::from_offset(device, 10_001, Access::ReadOnly).is_err());
    }

    #[test]
    fn a_read_only_window_refuses_every_write() {
        let (device, _) = numbered(100);
        let window = Window::read_only(device);
        assert!(window.hints().read_only && !window.hints().discard);
        for refused in [
            window.write_at(&[0], 0),
            window.write_zeroes(0..1),
            window.discard(0..1),
        ] {
            let kind = refused.expect_err("refused").kind();
            assert_eq!(kind, io::ErrorKind::ReadOnlyFilesystem);
        }
        let mut batch = Batch::new();
        batch
            .read(vec![IoBuf::zeroed(3)], 5)
            .write(vec![IoBuf::zeroed(3)], 5);
        let outcomes = window.submit(batch).wait();
        assert_eq!(&*outcomes[0].bufs[0], [5, 6, 7]);
        assert!(outcomes[1].result.is_err());
    }

    proptest! {
        #[test]
        fn reads_its_range(start in 0..5000_u64, at in 0..5000_u64, len in 0..5000_usize) {
            let (device, content) = numbered(10_000);
            let window = Window::from_offset(device, start, Access::ReadOnly)?;
            let mut got = vec![0; len];
            let from = usize::try_from(start + at)?;
            match content.get(from..from + len) {
                Some(expected) => {
                    window.read_at(&mut got, at)?;
                    prop_assert_eq!(&got, expected);
                    let mut batch = Batch::new();
                    batch.read(vec![IoBuf::zeroed(len)], at);
                    let outcomes = window.submit(batch).wait_all_ok()?;
                    prop_assert_eq!(&*outcomes[0][0], expected);
                }
                None => prop_assert!(window.read_at(&mut got, at).is_err()),
            }
        }
    }
}
