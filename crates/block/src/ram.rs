//! **Purpose.** A sparse device in memory, which allocates only pages that were written: a file
//! system of 15 TiB takes the memory of its metadata.
//!
//! **Model.** A three-level tree of pages of 4096 bytes, which grows with writes:
//!
//! ```text
//!   root: one slot per GiB -> middle: one slot per 2 MiB -> leaf: 512 pages -> 4096 bytes
//! ```
//!
//! A page is immutable; a write replaces it by a new one. A missing page reads as zeroes or, if the
//! device was made over a base device, as the bytes of the base: then it is a copy-on-write
//! snapshot of the base, whose changes are only in memory.
//!
//! **Invariants.** Slots of the root and the middle are filled at most once and never emptied. On a
//! device with a base, a page that exists is never removed.
//!
//! **Locking.** Readers take no lock and write no shared memory: they pin an epoch and follow three
//! pointers. Writers take the lock of the leaf (2 MiB) for one page at a time, so that two writers
//! of different parts of one page do not lose each other's bytes. The base is read before the lock
//! is taken.
//!
//! **Crash safety.** None: `flush` does nothing. Crash tests wrap a RAM device in a
//! `RecordingDevice`.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::epoch::{self, EpochCell};
use fourscore_sync::{Arc, Mutex, OnceLock};

use crate::device::{BlockDevice, Hints, to_u64, total_bytes};
use crate::error::{DeviceOp, Operation};

const PAGE_BYTES: usize = 4096;
const FANOUT: u64 = 512;

type Page = [u8; PAGE_BYTES];

/// A sparse device in memory.
#[derive(Debug)]
pub struct RamDevice {
    len_bytes: u64,
    /// The device that missing pages are read from; never written.
    base: Option<Arc<dyn BlockDevice>>,
    root: Box<[OnceLock<Box<Middle>>]>,
}

#[derive(Debug)]
struct Middle {
    leaves: Box<[OnceLock<Box<Leaf>>]>,
}

#[derive(Debug)]
struct Leaf {
    /// Held by a writer while it changes a page.
    writer: Mutex<()>,
    pages: Box<[EpochCell<Page>]>,
    /// The number of pages that exist.
    present: AtomicU64,
}

/// A part of a transfer that lies within one page.
struct Piece {
    page: u64,
    within: Range<usize>,
}

fn empty_slots<T>(count: u64) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}

impl Leaf {
    fn new() -> Self {
        Self {
            writer: Mutex::new(()),
            pages: (0..FANOUT).map(|_| EpochCell::new(None)).collect(),
            present: AtomicU64::new(0),
        }
    }

    fn is_missing(&self, slot: usize) -> bool {
        self.pages[slot].load(&epoch::pin()).is_none()
    }

    /// Changes a copy of the page in `slot`, or `missing` if there is none, and stores it.
    fn update(&self, slot: usize, missing: Box<Page>, change: impl FnOnce(&mut Page)) {
        let _writer = self.writer.lock();
        let guard = epoch::pin();
        let cell = &self.pages[slot];
        let mut page = missing;
        match cell.load(&guard) {
            Some(old) => *page = *old,
            None => {
                self.present.fetch_add(1, Ordering::Relaxed);
            }
        }
        change(&mut page);
        cell.store(Some(page));
    }

    /// Stores a whole page in `slot`.
    fn replace(&self, slot: usize, page: Box<Page>) {
        let _writer = self.writer.lock();
        let guard = epoch::pin();
        if self.pages[slot].swap(Some(page), &guard).is_none() {
            self.present.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the page in `slot`.
    fn remove(&self, slot: usize) {
        let _writer = self.writer.lock();
        let guard = epoch::pin();
        if self.pages[slot].load(&guard).is_some() {
            self.present.fetch_sub(1, Ordering::Relaxed);
            self.pages[slot].store(None);
        }
    }
}

impl RamDevice {
    /// The longest device: 1 PiB, for which the root takes 16 MiB.
    pub const MAX_BYTES: u64 = 1 << 50;

    /// A device of `len_bytes` zero bytes.
    ///
    /// # Panics
    /// If `len_bytes` is more than [`RamDevice::MAX_BYTES`].
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        assert!(
            len_bytes <= Self::MAX_BYTES,
            "a RAM device holds at most 1 PiB, not {len_bytes} bytes"
        );
        let pages = len_bytes.div_ceil(to_u64(PAGE_BYTES));
        Self {
            len_bytes,
            base: None,
            root: empty_slots(pages.div_ceil(FANOUT * FANOUT)),
        }
    }

    /// A device that holds a copy of `content`.
    #[must_use]
    pub fn from_bytes(content: &[u8]) -> Self {
        let device = Self::new(to_u64(content.len()));
        for piece in pieces(0, content.len()) {
            let from = device_byte(piece.page, piece.within.start);
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let bytes = &content[from..from + piece.within.len()];
            device.change(&piece, zero_page(), |part| part.copy_from_slice(bytes));
        }
        device
    }

    /// A device that reads as `base` and keeps writes in memory. `base` is never written and must
    /// not change.
    #[must_use]
    pub fn over(base: Arc<dyn BlockDevice>) -> Self {
        let device = Self::new(base.len_bytes());
        Self {
            base: Some(base),
            ..device
        }
    }

    /// The memory of the written pages, in bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let leaves = self.root.iter().filter_map(OnceLock::get);
        let leaves = leaves.flat_map(|middle| middle.leaves.iter().filter_map(OnceLock::get));
        leaves
            .map(|leaf| leaf.present.load(Ordering::Relaxed) * to_u64(PAGE_BYTES))
            .sum()
    }

    /// The ranges that are held in memory, in ascending order: what was written, rounded to pages
    /// of 4096 bytes. Ranges that touch are joined.
    #[must_use]
    pub fn written_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (root, middle) in self.root.iter().enumerate() {
            let leaves = middle.get().into_iter().flat_map(|middle| &middle.leaves);
            for (nr, leaf) in leaves.enumerate() {
                let Some(leaf) = leaf.get() else { continue };
                let first = (to_u64(root) * FANOUT + to_u64(nr)) * FANOUT;
                for slot in (0..leaf.pages.len()).filter(|&slot| !leaf.is_missing(slot)) {
                    let start = device_byte(first + to_u64(slot), 0);
                    let end = self.len_bytes.min(start + to_u64(PAGE_BYTES));
                    match ranges.last_mut() {
                        Some(last) if last.end == start => last.end = end,
                        _ => ranges.push(start..end),
                    }
                }
            }
        }
        ranges
    }

    fn leaf(&self, page: u64) -> Option<&Leaf> {
        let (root, middle, _) = indices(page);
        Some(self.root.get(root)?.get()?.leaves.get(middle)?.get()?)
    }

    fn leaf_for_writing(&self, page: u64) -> &Leaf {
        let (root, middle, _) = indices(page);
        let make_middle = || {
            Box::new(Middle {
                leaves: empty_slots(FANOUT),
            })
        };
        let middle_node = self.root[root].get_or_init(make_middle);
        middle_node.leaves[middle].get_or_init(|| Box::new(Leaf::new()))
    }

    fn load(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut rest = buf;
        for piece in pieces(offset, rest.len()) {
            let (now, later) = rest.split_at_mut(piece.within.len());
            if !self.load_present(&piece, now) {
                match &self.base {
                    Some(base) => base.read_at(now, device_byte(piece.page, piece.within.start))?,
                    None => now.fill(0),
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// Fills `buf` from a page if it exists; returns whether it does.
    fn load_present(&self, piece: &Piece, buf: &mut [u8]) -> bool {
        let Some(leaf) = self.leaf(piece.page) else {
            return false;
        };
        let guard = epoch::pin();
        let Some(page) = leaf.pages[indices(piece.page).2].load(&guard) else {
            return false;
        };
        buf.copy_from_slice(&page[piece.within.clone()]);
        true
    }

    fn store(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut rest = buf;
        for piece in pieces(offset, rest.len()) {
            let (now, later) = rest.split_at(piece.within.len());
            rest = later;
            if now.len() == PAGE_BYTES
                && let Ok(page) = Box::<Page>::try_from(Vec::from(now))
            {
                let leaf = self.leaf_for_writing(piece.page);
                leaf.replace(indices(piece.page).2, page);
                continue;
            }
            let before = self.page_before(&piece)?;
            self.change(&piece, before, |part| part.copy_from_slice(now));
        }
        Ok(())
    }

    /// Changes a part of a page, or of `missing` if the page does not exist.
    fn change(&self, piece: &Piece, missing: Box<Page>, change: impl FnOnce(&mut [u8])) {
        let leaf = self.leaf_for_writing(piece.page);
        let part = |page: &mut Page| change(&mut page[piece.within.clone()]);
        leaf.update(indices(piece.page).2, missing, part);
    }

    /// The content of a page before its first change. The base is not read if the whole page is
    /// replaced, or if the page exists already.
    fn page_before(&self, piece: &Piece) -> io::Result<Box<Page>> {
        let mut page = zero_page();
        let Some(base) = &self.base else {
            return Ok(page);
        };
        let slot = indices(piece.page).2;
        let missing = self
            .leaf(piece.page)
            .is_none_or(|leaf| leaf.is_missing(slot));
        if missing && piece.within.len() < PAGE_BYTES {
            let start = device_byte(piece.page, 0);
            let stop = self.len_bytes.min(device_byte(piece.page + 1, 0));
            base.read_at(&mut page[..within_page(stop, piece.page)], start)?;
        }
        Ok(page)
    }

    /// Zeroes the part of `range` up to the end of its first page, or skips up to the end of its
    /// first 2 MiB if no page of them exists; returns the end of this part.
    fn zero_some(&self, range: Range<u64>) -> io::Result<u64> {
        let next = |unit: u64| range.end.min((range.start / unit + 1).saturating_mul(unit));
        let page = range.start / to_u64(PAGE_BYTES);
        let leaf = self.leaf(page);
        if leaf.is_none() && self.base.is_none() {
            return Ok(next(FANOUT * to_u64(PAGE_BYTES)));
        }
        let stop = next(to_u64(PAGE_BYTES));
        let within = within_page(range.start, page)..within_page(stop, page);
        let piece = Piece { page, within };
        let slot = indices(page).2;
        match leaf {
            Some(leaf) if self.base.is_none() => {
                if piece.within.len() == PAGE_BYTES {
                    leaf.remove(slot);
                } else if !leaf.is_missing(slot) {
                    self.change(&piece, zero_page(), |part| part.fill(0));
                }
            }
            _ => {
                let before = self.page_before(&piece)?;
                self.change(&piece, before, |part| part.fill(0));
            }
        }
        Ok(stop)
    }
}

fn zero_page() -> Box<Page> {
    Box::new([0; PAGE_BYTES])
}

/// The device offset of byte `within` of `page`.
fn device_byte(page: u64, within: usize) -> u64 {
    page * to_u64(PAGE_BYTES) + to_u64(within)
}

/// The slots of `page` in root, middle and leaf.
fn indices(page: u64) -> (usize, usize, usize) {
    let slot = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    (
        slot(page / (FANOUT * FANOUT)),
        slot(page / FANOUT % FANOUT),
        slot(page % FANOUT),
    )
}

/// The offset of `byte` from the start of `page`, at most a whole page.
fn within_page(byte: u64, page: u64) -> usize {
    usize::try_from(byte - page * to_u64(PAGE_BYTES)).unwrap_or(PAGE_BYTES)
}

/// Splits the range of `len` bytes from `offset` on at page boundaries.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let page_bytes = to_u64(PAGE_BYTES);
    let mut at = offset;
    let end = offset + to_u64(len);
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let page = at / page_bytes;
        let stop = end.min((page + 1) * page_bytes);
        let within = within_page(at, page)..within_page(stop, page);
        let piece = Piece { page, within };
        at = stop;
        Some(piece)
    })
}

impl BlockDevice for RamDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn hints(&self) -> Hints {
        Hints {
            discard: true,
            ..Hints::default()
        }
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        Operation::new(DeviceOp::Read, offset, total_bytes(bufs)).check_inside(self.len_bytes)?;
        let mut at = offset;
        for buf in bufs {
            self.load(buf, at)?;
            at += to_u64(buf.len());
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        Operation::new(DeviceOp::Write, offset, total_bytes(bufs)).check_inside(self.len_bytes)?;
        let mut at = offset;
        for buf in bufs {
            self.store(buf, at)?;
            at += to_u64(buf.len());
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write_vectored_at(bufs, offset)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.write_zeroes(range)
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        Operation::on_range(DeviceOp::WriteZeroes, &range).check_inside(self.len_bytes)?;
        let mut at = range.start;
        while at < range.end {
            at = self.zero_some(at..range.end)?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use fourscore_sync::thread;
    use proptest::prelude::*;

    #[test]
    fn fifteen_tebibytes_take_only_the_memory_of_written_pages() {
        let device = RamDevice::new(15 << 40);
        device
            .write_at(&[7; 5000], (15 << 40) - 5000)
            .expect("the last bytes");
        device
            .write_at(&[9; 4096], 1 << 43)
            .expect("somewhere in the middle");
        assert_eq!(device.resident_bytes(), 3 * 4096);
        let mut tail = [0; 6000];
        device
            .read_at(&mut tail, (15 << 40) - 6000)
            .expect("read across the hole's edge");
        assert_eq!(
            (&tail[..1000], &tail[1000..]),
            (&[0; 1000][..], &[7; 5000][..])
        );
        device.discard(0..(15 << 40) - 1).expect("all but one byte");
        assert_eq!(
            device.resident_bytes(),
            4096,
            "only the page written in part is left"
        );
        device
            .read_at(&mut tail, (15 << 40) - 6000)
            .expect("read after the discard");
        assert_eq!((&tail[..5999], tail[5999]), (&[0; 5999][..], 7));
    }

    #[test]
    fn written_ranges_are_joined_and_in_order() {
        let base = Arc::new(RamDevice::new((3 << 30) + 5000));
        let device = RamDevice::over(base);
        assert!(device.written_ranges().is_empty());
        device
            .write_at(&[1; 2], (3 << 30) + 4999 - 1)
            .expect("the end");
        device
            .write_at(&[1; 9000], (1 << 30) - 4096)
            .expect("over a GiB");
        device.write_at(&[1], 8191).expect("in a page");
        device.write_zeroes(4096..4097).expect("in the same page");
        let expected = [
            4096..8192,
            (1 << 30) - 4096..(1 << 30) + 8192,
            (3 << 30) + 4096..(3 << 30) + 5000,
        ];
        assert_eq!(device.written_ranges(), expected);
    }

    #[test]
    fn transfers_past_the_end_are_refused() {
        let device = RamDevice::new(5000);
        let error = device
            .read_at(&mut [0; 2], 4999)
            .expect_err("one byte too far");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(
            error.to_string(),
            "read of 2 bytes at byte 4999: the device ends at byte 5000"
        );
        let error = device
            .write_at(&[0; 2], u64::MAX)
            .expect_err("past every end");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(device.write_zeroes(4000..5001).is_err());
        device.write_at(&[1], 4999).expect("the last byte");
    }

    #[test]
    fn writers_of_one_page_do_not_lose_each_others_bytes() {
        let device = RamDevice::new(4096);
        thread::scope(|scope| {
            for writer in 0..4_u8 {
                let device = &device;
                scope.spawn(move || {
                    for at in (u64::from(writer)..4096).step_by(4) {
                        device.write_at(&[writer + 1], at).expect("write");
                    }
                });
            }
        });
        let mut page = [0; 4096];
        device.read_at(&mut page, 0).expect("read");
        let expected: Vec<u8> = [1, 2, 3, 4].repeat(1024);
        assert_eq!(page[..], expected[..]);
    }

    proptest! {
        #[test]
        fn behaves_like_a_vector(
            ops in prop::collection::vec((0..4_u8, 0..20_000_usize, 0..9_000_usize), 1..40),
            over in any::<bool>(),
        ) {
            let mut model = vec![0_u8; 20_000];
            let device = if over {
                model = (0..=250).cycle().take(20_000).collect();
                RamDevice::over(Arc::new(RamDevice::from_bytes(&model)))
            } else {
                RamDevice::new(20_000)
            };
            for (turn, (op, at, len)) in ops.into_iter().enumerate() {
                let end = (at + len).min(20_000);
                let range = to_u64(at)..to_u64(end);
                match op {
                    0 | 1 => {
                        model[at..end].fill(u8::try_from(turn)? + 1);
                        device.write_at(&model[at..end], range.start)?;
                    }
                    2 => {
                        model[at..end].fill(0);
                        device.write_zeroes(range)?;
                    }
                    _ => {
                        let mut got = vec![0xEE; end - at];
                        let (left, right) = got.split_at_mut((end - at) / 3);
                        let mut bufs = [IoSliceMut::new(left), IoSliceMut::new(right)];
                        device.read_vectored_at(&mut bufs, range.start)?;
                        prop_assert_eq!(&got, &model[at..end]);
                    }
                }
            }
            let mut all = vec![0; 20_000];
            device.read_at(&mut all, 0)?;
            prop_assert_eq!(all, model);
        }
    }
}
