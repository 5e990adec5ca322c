//! **Purpose.** A device in memory that costs only what was written to it, so that a file
//! system of 15 TiB costs its metadata.
//!
//! **Model.** A three-level tree of pages of 4096 bytes, grown as it is written:
//!
//! ```text
//!   root: one slot per GiB -> middle: one slot per 2 MiB -> leaf: 512 pages -> 4096 bytes
//! ```
//!
//! A page is immutable; writing puts a new one in its place. A missing page reads as zeroes.
//!
//! **Invariants.** Slots of the root and the middle are filled at most once and never emptied.
//!
//! **Locking.** Readers take no lock and write no shared memory: they pin an epoch and follow
//! three pointers. Writers of the same 2 MiB take the leaf's lock for one page at a time, so
//! that two writers of different parts of one page do not lose each other's bytes.
//!
//! **Crash safety.** None: `flush` does nothing. Crash tests wrap a RAM device in a
//! [`RecordingDevice`](crate::recording::RecordingDevice).

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::epoch::{self, EpochCell};
use fourscore_sync::{Mutex, OnceLock};

use crate::device::{BlockDevice, Hints, to_u64, total_bytes};
use crate::error::{Asked, DeviceOp};

const PAGE_BYTES: usize = 4096;
const FANOUT: u64 = 512;
/// One PiB: the root then takes 16 MiB.
const MOST_BYTES: u64 = 1 << 50;

type Page = [u8; PAGE_BYTES];

/// A sparse device in memory.
#[derive(Debug)]
pub struct RamDevice {
    len_bytes: u64,
    root: Box<[OnceLock<Box<Middle>>]>,
}

#[derive(Debug)]
struct Middle {
    leaves: Box<[OnceLock<Box<Leaf>>]>,
}

#[derive(Debug)]
struct Leaf {
    writing: Mutex<()>,
    pages: Box<[EpochCell<Page>]>,
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
            writing: Mutex::new(()),
            pages: (0..FANOUT).map(|_| EpochCell::new(None)).collect(),
            present: AtomicU64::new(0),
        }
    }

    /// Replaces the page in `slot` by what `change` makes of it (zeroes if it was missing).
    fn update(&self, slot: usize, change: impl FnOnce(&mut Page)) {
        let _writing = self.writing.lock();
        let guard = epoch::pin();
        let cell = &self.pages[slot];
        let mut page = match cell.load(&guard) {
            Some(old) => Box::new(*old),
            None => {
                self.present.fetch_add(1, Ordering::Relaxed);
                Box::new([0; PAGE_BYTES])
            }
        };
        change(&mut page);
        cell.store(Some(page));
    }

    /// Zeroes a part of the page in `slot`; a missing page is zero already.
    fn zero(&self, slot: usize, within: Range<usize>) {
        let missing = self.pages[slot].load(&epoch::pin()).is_none();
        if !missing {
            self.update(slot, |page| page[within].fill(0));
        }
    }

    /// Forgets the page in `slot`.
    fn forget(&self, slot: usize) {
        let _writing = self.writing.lock();
        let guard = epoch::pin();
        if self.pages[slot].load(&guard).is_some() {
            self.present.fetch_sub(1, Ordering::Relaxed);
            self.pages[slot].store(None);
        }
    }
}

impl RamDevice {
    /// A device of `len_bytes` zero bytes.
    ///
    /// # Panics
    /// For more than 1 PiB, which the tree is not made for.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        assert!(
            len_bytes <= MOST_BYTES,
            "a RAM device holds at most 1 PiB, not {len_bytes} bytes"
        );
        let pages = len_bytes.div_ceil(to_u64(PAGE_BYTES));
        Self {
            len_bytes,
            root: empty_slots(pages.div_ceil(FANOUT * FANOUT)),
        }
    }

    /// A device that holds a copy of `content`.
    #[must_use]
    pub fn from_bytes(content: &[u8]) -> Self {
        let device = Self::new(to_u64(content.len()));
        device.store(content, 0);
        device
    }

    /// How much memory the written pages take, in bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let leaves = self.root.iter().filter_map(OnceLock::get);
        let leaves = leaves.flat_map(|middle| middle.leaves.iter().filter_map(OnceLock::get));
        leaves
            .map(|leaf| leaf.present.load(Ordering::Relaxed) * to_u64(PAGE_BYTES))
            .sum()
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

    fn load(&self, buf: &mut [u8], offset: u64) {
        let mut rest = buf;
        let guard = epoch::pin();
        for piece in pieces(offset, rest.len()) {
            let (now, later) = rest.split_at_mut(piece.within.len());
            let slot = indices(piece.page).2;
            match self
                .leaf(piece.page)
                .and_then(|leaf| leaf.pages[slot].load(&guard))
            {
                Some(page) => now.copy_from_slice(&page[piece.within]),
                None => now.fill(0),
            }
            rest = later;
        }
    }

    fn store(&self, buf: &[u8], offset: u64) {
        let mut rest = buf;
        for piece in pieces(offset, rest.len()) {
            let (now, later) = rest.split_at(piece.within.len());
            let leaf = self.leaf_for_writing(piece.page);
            leaf.update(indices(piece.page).2, |page| {
                page[piece.within].copy_from_slice(now);
            });
            rest = later;
        }
    }

    /// Zeroes the part of `range` up to the next page, or 2 MiB where nothing was ever written;
    /// returns where it stopped.
    fn zero_some(&self, range: Range<u64>) -> u64 {
        let next = |unit: u64| range.end.min((range.start / unit + 1).saturating_mul(unit));
        let page = range.start / to_u64(PAGE_BYTES);
        let Some(leaf) = self.leaf(page) else {
            return next(FANOUT * to_u64(PAGE_BYTES));
        };
        let stop = next(to_u64(PAGE_BYTES));
        let slot = indices(page).2;
        if stop - range.start == to_u64(PAGE_BYTES) {
            leaf.forget(slot);
        } else {
            let start = within_page(range.start, page);
            leaf.zero(slot, start..start + within_page(stop - range.start, 0));
        }
        stop
    }
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

/// How far `byte` is into `page`, at most a whole page.
fn within_page(byte: u64, page: u64) -> usize {
    usize::try_from(byte - page * to_u64(PAGE_BYTES)).unwrap_or(PAGE_BYTES)
}

/// Cuts `len` bytes from `offset` at page boundaries.
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
        let within = |byte: u64| usize::try_from(byte - page * page_bytes).unwrap_or(PAGE_BYTES);
        let piece = Piece {
            page,
            within: within(at)..within(stop),
        };
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
        Asked::new(DeviceOp::Read, offset, total_bytes(bufs)).inside(self.len_bytes)?;
        let mut at = offset;
        for buf in bufs {
            self.load(buf, at);
            at += to_u64(buf.len());
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        Asked::new(DeviceOp::Write, offset, total_bytes(bufs)).inside(self.len_bytes)?;
        let mut at = offset;
        for buf in bufs {
            self.store(buf, at);
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
        Asked::about(DeviceOp::WriteZeroes, &range).inside(self.len_bytes)?;
        let mut at = range.start;
        while at < range.end {
            at = self.zero_some(at..range.end);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourscore_sync::thread;
    use proptest::prelude::*;

    #[test]
    fn fifteen_tebibytes_cost_only_what_was_written() {
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
    fn the_end_is_where_it_was_said_to_be() {
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
        fn behaves_like_a_vector(ops in prop::collection::vec((0..4_u8, 0..20_000_usize, 0..9_000_usize), 1..40)) {
            let device = RamDevice::new(20_000);
            let mut model = vec![0_u8; 20_000];
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
