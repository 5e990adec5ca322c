//! **Purpose.** A device in memory over the image: what a repair changes is kept here until all of
//! it is known, so that the checker can judge the result before a byte of the image changes.
//!
//! **Model.** A sorted map from units of 1 KiB, the smallest block, to their new bytes. A read is
//! passed to the base, and the changed units are laid over it; a short one that the units cover
//! needs no base. A unit that is changed back to what
//! the base holds is dropped when the changes are listed, so a repair that changes nothing writes
//! nothing.
//!
//! **Locking.** One lock for the map, which is not held while the base is read, and one for the
//! list of what was written. No two are held at once.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroUsize;
use std::ops::Range;

use fourscore_block::{BlockDevice, Hints};
use fourscore_sync::{Arc, Mutex, RwLock};

use crate::parallel::{Pieces, on_threads};

/// The unit of changes, in bytes.
pub(super) const UNIT_BYTES: usize = 1024;

/// The units that a thread compares with the base at once.
const UNITS_AT_ONCE: u64 = 64;

/// Longer reads always read the base.
const MOST_COVERED_BYTES: usize = 64 << 10;

type Unit = Box<[u8; UNIT_BYTES]>;

/// The changes at some moment.
#[derive(Debug)]
pub(super) struct Saved(BTreeMap<u64, Unit>);

/// The device.
#[derive(Debug)]
pub(super) struct Overlay {
    base: Arc<dyn BlockDevice>,
    units: RwLock<BTreeMap<u64, Unit>>,
    /// Ranges that were written since they were last taken, in bytes.
    written: Mutex<Vec<Range<u64>>>,
}

/// Adjacent bytes that change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// In bytes.
    pub(super) at: u64,
    pub(super) bytes: Vec<u8>,
}

impl Overlay {
    pub(super) fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self {
            base,
            units: RwLock::new(BTreeMap::new()),
            written: Mutex::new(Vec::new()),
        }
    }

    /// The ranges that were written since the last call, in bytes. What [`restore`](Self::restore)
    /// brings back is not among them.
    pub(super) fn take_written(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut *self.written.lock())
    }

    pub(super) fn base(&self) -> &Arc<dyn BlockDevice> {
        &self.base
    }

    /// The changes until now.
    pub(super) fn saved(&self) -> Saved {
        Saved(self.units.read().clone())
    }

    /// Brings back the changes of an earlier moment.
    pub(super) fn restore(&self, saved: Saved) {
        *self.units.write() = saved.0;
    }

    /// Takes units into memory as they are, so that later reads and writes of the `length` bytes at
    /// `at` need no base. They count as changed only when they are.
    ///
    /// # Errors
    /// The base cannot be read.
    pub(super) fn load(&self, at: u64, length: usize) -> io::Result<()> {
        let end = at.saturating_add(length as u64);
        for unit in at / UNIT_BYTES as u64..end.div_ceil(UNIT_BYTES as u64) {
            if !self.units.read().contains_key(&unit) {
                let start = unit * UNIT_BYTES as u64;
                let mut bytes = Box::new([0; UNIT_BYTES]);
                self.base
                    .read_at(&mut bytes[..self.length_at(start)], start)?;
                self.units.write().insert(unit, bytes);
            }
        }
        Ok(())
    }

    /// What differs from the base, in ascending order; each change is at most `most_bytes` long.
    /// What the base cannot read counts as different.
    pub(super) fn changes(&self, most_bytes: usize, threads: NonZeroUsize) -> Vec<Change> {
        let units = self.units.read();
        let all: Vec<(u64, &Unit)> = units.iter().map(|(&unit, bytes)| (unit, bytes)).collect();
        let mut changes: Vec<Change> = Vec::new();
        for (unit, bytes) in self.different(&all, threads) {
            let at = unit * UNIT_BYTES as u64;
            let length = self.length_at(at);
            match changes.last_mut() {
                Some(last)
                    if last.at + last.bytes.len() as u64 == at
                        && last.bytes.len() + length <= most_bytes =>
                {
                    last.bytes.extend_from_slice(&bytes[..length]);
                }
                _ => changes.push(Change {
                    at,
                    bytes: bytes[..length].to_vec(),
                }),
            }
        }
        changes
    }

    /// Those of the units that are not what the base holds.
    fn different<'u>(
        &self,
        units: &[(u64, &'u Unit)],
        threads: NonZeroUsize,
    ) -> Vec<(u64, &'u Unit)> {
        let pieces = Pieces::new(units.len() as u64, UNITS_AT_ONCE);
        let found = on_threads(threads, || {
            let mut different = Vec::new();
            let mut before = [0; UNIT_BYTES];
            while let Some(piece) = pieces.take() {
                let place = |nth| usize::try_from(nth).unwrap_or(usize::MAX);
                let piece = units.get(place(piece.start)..place(piece.end));
                for &(unit, bytes) in piece.unwrap_or(&[]) {
                    let at = unit * UNIT_BYTES as u64;
                    let length = self.length_at(at);
                    let is_known = self.base.read_at(&mut before[..length], at).is_ok();
                    if !is_known || before[..length] != bytes[..length] {
                        different.push((unit, bytes));
                    }
                }
            }
            different
        });
        let mut different = found.concat();
        different.sort_unstable_by_key(|(unit, _)| *unit);
        different
    }

    /// The bytes of the unit at `at` that are inside the device.
    fn length_at(&self, at: u64) -> usize {
        let left = self.base.len_bytes().saturating_sub(at);
        usize::try_from(left).unwrap_or(UNIT_BYTES).min(UNIT_BYTES)
    }

    fn write(&self, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
        let end = at.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.base.len_bytes()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.written.lock().push(at..at + bytes.len() as u64);
        while !bytes.is_empty() {
            let unit = at / UNIT_BYTES as u64;
            let within = usize::try_from(at % UNIT_BYTES as u64).unwrap_or(0);
            let (now, later) = bytes.split_at(bytes.len().min(UNIT_BYTES - within));
            let mut fresh = Box::new([0; UNIT_BYTES]);
            if now.len() < UNIT_BYTES {
                let start = unit * UNIT_BYTES as u64;
                self.read_at(&mut fresh[..self.length_at(start)], start)?;
            }
            fresh[within..within + now.len()].copy_from_slice(now);
            self.units.write().insert(unit, fresh);
            at += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Fills `buf` with changed units if they cover all of it; returns whether they do.
    fn read_changed(&self, buf: &mut [u8], at: u64) -> bool {
        let end = at.saturating_add(buf.len() as u64);
        let units = at / UNIT_BYTES as u64..end.div_ceil(UNIT_BYTES as u64);
        let count = units.end - units.start;
        if buf.is_empty() || buf.len() > MOST_COVERED_BYTES || end > self.base.len_bytes() {
            return false;
        }
        let changed = self.units.read();
        if changed.range(units).count() as u64 != count {
            return false;
        }
        lay(&changed, buf, at);
        true
    }

    /// Lays the changed units over `buf`, which was read at `at`.
    fn lay_over(&self, buf: &mut [u8], at: u64) {
        lay(&self.units.read(), buf, at);
    }
}

/// Copies the units that `buf`, which lies at `at`, touches.
fn lay(changed: &BTreeMap<u64, Unit>, buf: &mut [u8], at: u64) {
    let end = at.saturating_add(buf.len() as u64);
    let units = at / UNIT_BYTES as u64..end.div_ceil(UNIT_BYTES as u64);
    if units.is_empty() {
        return;
    }
    for (&unit, bytes) in changed.range(units) {
        let start = unit * UNIT_BYTES as u64;
        let (from, to) = (start.max(at), (start + UNIT_BYTES as u64).min(end));
        let place = |at: u64, origin: u64| usize::try_from(at - origin).unwrap_or(0);
        let source = bytes.get(place(from, start)..place(to, start));
        let target = buf.get_mut(place(from, at)..place(to, at));
        if let (Some(source), Some(target)) = (source, target) {
            target.copy_from_slice(source);
        }
    }
}

impl BlockDevice for Overlay {
    fn len_bytes(&self) -> u64 {
        self.base.len_bytes()
    }

    fn hints(&self) -> Hints {
        self.base.hints()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        if let [buf] = bufs
            && self.read_changed(buf, offset)
        {
            return Ok(());
        }
        self.base.read_vectored_at(bufs, offset)?;
        let mut at = offset;
        for buf in bufs {
            self.lay_over(buf, at);
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.write(buf, at)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fourscore_block::RamDevice;

    use super::*;

    #[test]
    fn reads_see_changes_and_the_base_does_not() {
        let base = Arc::new(RamDevice::from_bytes(&[7; 5000]));
        let overlay = Overlay::new(base);
        overlay.write_at(&[1; 1500], 1000).expect("inside");
        let mut read = vec![0; 5000];
        overlay.read_at(&mut read, 0).expect("inside");
        let mut expected = vec![7; 5000];
        expected[1000..2500].fill(1);
        assert_eq!(read, expected);
        overlay.base().read_at(&mut read, 0).expect("inside");
        assert_eq!(read, [7; 5000]);
        assert!(overlay.write_at(&[1; 9], 4992).is_err(), "past the end");
        assert!(overlay.write_at(&[1; 8], 4992).is_ok(), "up to the end");
    }

    /// A device of which nothing can be read.
    #[derive(Debug)]
    struct Unreadable(RamDevice);

    impl BlockDevice for Unreadable {
        fn len_bytes(&self) -> u64 {
            self.0.len_bytes()
        }

        fn hints(&self) -> Hints {
            self.0.hints()
        }

        fn read_vectored_at(&self, _: &mut [IoSliceMut<'_>], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Other.into())
        }

        fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
            self.0.write_vectored_at(bufs, offset)
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_loaded_is_no_change_until_it_is_written() {
        let overlay = Overlay::new(Arc::new(RamDevice::from_bytes(&[7; 5000])));
        overlay.write_at(&[1; 10], 1020).expect("inside");
        overlay.take_written();
        overlay.load(900, 2000).expect("inside");
        overlay.load(4990, 10).expect("up to the end");
        assert!(overlay.take_written().is_empty());
        let changes = overlay.changes(1 << 20, NonZeroUsize::MIN);
        let places: Vec<_> = changes.iter().map(|c| (c.at, c.bytes.len())).collect();
        assert_eq!(places, [(0, 2048)], "of the write alone");
        overlay.write_at(&[2; 1], 2500).expect("inside");
        let changes = overlay.changes(1 << 20, NonZeroUsize::MIN);
        let mut expected = vec![7; 1024];
        expected[2500 - 2048] = 2;
        assert_eq!(changes[0].bytes[2048..], expected);
    }

    #[test]
    fn what_changes_cover_is_read_without_the_base() {
        let base = Unreadable(RamDevice::from_bytes(&[7; 5000]));
        let overlay = Overlay::new(Arc::new(base));
        overlay.write_at(&[1; 2048], 1024).expect("whole units");
        let mut read = [0; 300];
        for at in [1024, 1900, 2772] {
            overlay.read_at(&mut read, at).expect("covered");
            assert_eq!(read, [1; 300]);
        }
        assert!(overlay.read_at(&mut read, 1023).is_err());
        assert!(overlay.read_at(&mut read, 2773).is_err());
    }

    #[test]
    fn only_what_differs_is_listed() {
        let base = Arc::new(RamDevice::from_bytes(&[7; 5000]));
        let overlay = Overlay::new(base);
        overlay.write_at(&[1; 2048], 1024).expect("inside");
        overlay.write_at(&[7; 1024], 2048).expect("changed back");
        overlay.write_at(&[3; 904], 4096).expect("the last part");
        let changes = overlay.changes(1 << 20, NonZeroUsize::MIN);
        let places: Vec<_> = changes.iter().map(|c| (c.at, c.bytes.len())).collect();
        assert_eq!(places, [(1024, 1024), (4096, 904)]);
    }
}
