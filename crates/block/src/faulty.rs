//! **Purpose.** A device with injected faults, for tests.
//!
//! **Model.** A list of [`Rule`]s. Each counts the operations that it applies to (by kind and
//! range), and makes the one with a given number fail, or all from this one on. Nothing is random:
//! the same operations in the same order get the same faults.
//!
//! **Locking.** One lock around the rules, which is not held during I/O of the base device.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_sync::{Arc, Mutex};

use crate::device::{BlockDevice, Hints, to_u64, total_bytes};
use crate::error::{DeviceOp, Operation};

/// The unit that a device writes atomically, in bytes.
const SECTOR_BYTES: u64 = 512;

/// A fault to inject, and the operations that it affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    op: DeviceOp,
    within: Range<u64>,
    nth: u64,
    lasting: Lasting,
    transfer: PartialTransfer,
    errno: Option<i32>,
    seen: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasting {
    Once,
    FromThenOn,
}

/// The part that a failing read or write transfers, from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartialTransfer {
    Bytes(usize),
    Sectors(u64),
}

impl Rule {
    /// A rule that makes the `nth` operation (from 1) of this kind fail without any effect.
    #[must_use]
    pub fn nth(op: DeviceOp, nth: u64) -> Self {
        let within = 0..u64::MAX;
        Self {
            op,
            within,
            nth,
            lasting: Lasting::Once,
            transfer: PartialTransfer::Bytes(0),
            errno: None,
            seen: 0,
        }
    }

    /// Restricts the rule to operations that touch a byte in `range`. Flushes have no range, and
    /// are not restricted by this.
    #[must_use]
    pub fn within(self, range: Range<u64>) -> Self {
        Self {
            within: range,
            ..self
        }
    }

    /// Makes all later operations fail as well, as on a broken device.
    #[must_use]
    pub fn and_after(self) -> Self {
        Self {
            lasting: Lasting::FromThenOn,
            ..self
        }
    }

    /// Makes the failing read or write transfer its first bytes before it fails.
    #[must_use]
    pub fn short(self, first_bytes: usize) -> Self {
        Self {
            transfer: PartialTransfer::Bytes(first_bytes),
            ..self
        }
    }

    /// Makes the failing read or write transfer its bytes in the first `sectors` sectors of 512
    /// bytes that it touches, as a device does, which tears writes only between sectors.
    #[must_use]
    pub fn short_of_sectors(self, sectors: u64) -> Self {
        Self {
            transfer: PartialTransfer::Sectors(sectors),
            ..self
        }
    }

    /// Gives the failure an errno, as an error of the host has one.
    #[must_use]
    pub fn with_errno(self, errno: i32) -> Self {
        Self {
            errno: Some(errno),
            ..self
        }
    }

    /// Makes the failure of an operation.
    fn failure(&self, operation: &Operation) -> Failure {
        let error = match self.errno {
            Some(errno) => operation.host(io::Error::from_raw_os_error(errno)),
            None => operation.injected(),
        };
        let first_bytes = match self.transfer {
            PartialTransfer::Bytes(bytes) => bytes,
            PartialTransfer::Sectors(sectors) => {
                let start = operation.range().start;
                let end = (start / SECTOR_BYTES + sectors) * SECTOR_BYTES;
                usize::try_from(end - start).unwrap_or(usize::MAX)
            }
        };
        Failure { first_bytes, error }
    }

    /// Counts an operation, and returns whether it is to fail.
    fn applies_to(&mut self, operation: &Operation) -> bool {
        let range = operation.range();
        let touches = range.start < self.within.end && self.within.start < range.end;
        if operation.op != self.op || !(touches || operation.op == DeviceOp::Flush) {
            return false;
        }
        self.seen += 1;
        self.seen == self.nth || (self.seen > self.nth && self.lasting == Lasting::FromThenOn)
    }
}

/// How an operation fails.
struct Failure {
    /// The number of bytes that are transferred before it fails.
    first_bytes: usize,
    error: io::Error,
}

/// A device that injects faults by its rules, and passes all other operations to a base device.
#[derive(Debug)]
pub struct FaultyDevice {
    device: Arc<dyn BlockDevice>,
    rules: Mutex<Vec<Rule>>,
}

impl FaultyDevice {
    /// A device without rules.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self {
            device,
            rules: Mutex::new(Vec::new()),
        }
    }

    /// Adds a rule. It counts operations from now on.
    pub fn add(&self, rule: Rule) {
        self.rules.lock().push(rule);
    }

    /// Removes all rules: the device works again.
    pub fn heal(&self) {
        self.rules.lock().clear();
    }

    /// Whether one of the rules has made an operation fail.
    #[must_use]
    pub fn has_struck(&self) -> bool {
        self.rules.lock().iter().any(|rule| rule.seen >= rule.nth)
    }

    /// Applies the rules to an operation; `Err` if it is to fail.
    fn apply_rules(&self, operation: &Operation) -> Result<(), Failure> {
        let mut rules = self.rules.lock();
        let mut result = Ok(());
        // Every rule counts the operation, even if an earlier one makes it fail.
        for rule in rules.iter_mut() {
            if rule.applies_to(operation) && result.is_ok() {
                result = Err(rule.failure(operation));
            }
        }
        result
    }

    /// Applies the rules to an operation that is carried out as a whole or not at all.
    fn apply_rules_atomically(&self, operation: &Operation) -> io::Result<()> {
        self.apply_rules(operation).map_err(|failure| failure.error)
    }

    fn write(&self, bufs: &[IoSlice<'_>], offset: u64, write: Write) -> io::Result<()> {
        let operation = Operation::new(DeviceOp::Write, offset, total_bytes(bufs));
        let Err(failure) = self.apply_rules(&operation) else {
            return match write {
                Write::Plain => self.device.write_vectored_at(bufs, offset),
                Write::Fua => self.device.write_fua(bufs, offset),
            };
        };
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.device
            .write_at(&bytes[..failure.first_bytes.min(bytes.len())], offset)?;
        Err(failure.error)
    }
}

#[derive(Clone, Copy)]
enum Write {
    Plain,
    Fua,
}

impl BlockDevice for FaultyDevice {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn lengthen(&self, len_bytes: u64) -> io::Result<u64> {
        self.device.lengthen(len_bytes)
    }

    fn hints(&self) -> Hints {
        self.device.hints()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let operation = Operation::new(DeviceOp::Read, offset, total_bytes(bufs));
        let Err(failure) = self.apply_rules(&operation) else {
            return self.device.read_vectored_at(bufs, offset);
        };
        let mut left = failure.first_bytes;
        let mut at = offset;
        for buf in bufs {
            let now = left.min(buf.len());
            self.device.read_at(&mut buf[..now], at)?;
            left -= now;
            at += to_u64(now);
        }
        Err(failure.error)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, Write::Plain)
    }

    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, Write::Fua)
    }

    fn flush(&self) -> io::Result<()> {
        self.apply_rules_atomically(&Operation::flush())?;
        self.device.flush()
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.apply_rules_atomically(&Operation::on_range(DeviceOp::Discard, &range))?;
        self.device.discard(range)
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        self.apply_rules_atomically(&Operation::on_range(DeviceOp::WriteZeroes, &range))?;
        self.device.write_zeroes(range)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::{Batch, DeviceError, IoBuf, RamDevice};

    fn device() -> FaultyDevice {
        FaultyDevice::new(Arc::new(RamDevice::from_bytes(b"0123456789")))
    }

    fn is_injected(result: &io::Result<()>) -> bool {
        let payload = result.as_ref().err().and_then(io::Error::get_ref);
        payload
            .and_then(|inner| inner.downcast_ref())
            .is_some_and(DeviceError::is_injected)
    }

    #[test]
    fn the_nth_operation_of_its_kind_and_range_fails() {
        let device = device();
        device.add(Rule::nth(DeviceOp::Read, 2).within(4..6));
        let read = |at| device.read_at(&mut [0; 2], at);
        let failed: Vec<bool> = [3, 0, 6, 5, 4].map(|at| is_injected(&read(at))).into();
        assert_eq!(failed, [false, false, false, true, false]);
        device.add(Rule::nth(DeviceOp::Flush, 1).and_after());
        assert!(is_injected(&device.flush()) && is_injected(&device.flush()));
        device.write_at(b"x", 0).expect("no rule for writes");
        device.heal();
        device.flush().expect("healed");
        device.add(Rule::nth(DeviceOp::Discard, 1));
        device.add(Rule::nth(DeviceOp::WriteZeroes, 1));
        assert!(is_injected(&device.discard(0..1)) && is_injected(&device.write_zeroes(0..1)));
    }

    #[test]
    fn a_failure_has_the_errno_of_its_rule() {
        let device = device();
        assert!(!device.has_struck());
        device.add(Rule::nth(DeviceOp::Write, 1).with_errno(28));
        assert!(!device.has_struck());
        let error = device.write_at(b"x", 0).expect_err("it is full");
        assert_eq!(crate::raw_os_error(&error), Some(28));
        assert!(device.has_struck());
    }

    #[test]
    fn a_short_transfer_fails_after_its_first_bytes() {
        let device = device();
        device.add(Rule::nth(DeviceOp::Write, 1).short(3));
        device.add(Rule::nth(DeviceOp::Write, 2));
        let bufs = [IoSlice::new(b"ab"), IoSlice::new(b"cd")];
        assert!(is_injected(&device.write_fua(&bufs, 1)));
        assert!(is_injected(&device.write_vectored_at(&bufs, 6)));
        device.add(Rule::nth(DeviceOp::Read, 1).short(5));
        let (mut one, mut two) = ([b'-'; 4], [b'-'; 4]);
        let mut bufs = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        let result = device.read_vectored_at(&mut bufs, 0);
        assert!(is_injected(&result));
        assert_eq!((&one, &two), (b"0abc", b"4---"));
    }

    #[test]
    fn a_write_is_cut_at_the_end_of_a_sector() {
        let base = Arc::new(RamDevice::from_bytes(&[0; 2048]));
        let device = FaultyDevice::new(base.clone());
        device.add(Rule::nth(DeviceOp::Write, 1).short_of_sectors(2));
        assert!(is_injected(&device.write_at(&[1; 1500], 500)));
        let mut bytes = [0; 2048];
        base.read_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes.map(usize::from).iter().sum::<usize>(), 1024 - 500);
        assert_eq!((bytes[500], bytes[1023], bytes[1024]), (1, 1, 0));
    }

    #[test]
    fn a_failed_flush_cancels_the_rest_of_a_batch() {
        let device = device();
        device.add(Rule::nth(DeviceOp::Flush, 1));
        let mut batch = Batch::new();
        batch.write(vec![IoBuf::from(&b"log"[..])], 0).flush();
        batch.write(vec![IoBuf::from(&b"commit"[..])], 3);
        let outcomes = device.submit(batch).wait();
        assert!(is_injected(&outcomes[1].result));
        let last = outcomes[2]
            .result
            .as_ref()
            .expect_err("not begun")
            .get_ref();
        let error = last.and_then(|inner| inner.downcast_ref::<DeviceError>());
        assert!(error.is_some_and(DeviceError::is_cancelled));
        let mut bytes = [0; 10];
        device.read_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"log3456789");
    }
}
