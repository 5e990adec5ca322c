//! **Purpose.** A read-only device with some blocks replaced by blocks of a journal: a crashed
//! image reads as if its journal had been replayed, while nothing is written.
//!
//! **Not here.** The choice of the blocks, which the journal's recovery makes. If there are none,
//! the caller simply uses the base device.
//!
//! **Model.** A sorted table of block numbers and a table of their sources, together 16 bytes for
//! each block; the bytes stay in the log until they are read. A block that began with the journal's
//! magic number was *escaped* when it was logged (its first four bytes were zeroed); a read
//! restores them.
//!
//! ```text
//!   read:  base | base | journal block 17 | base | journal block 4 (escaped) | base
//! ```
//!
//! **Locking.** None: the tables never change.
//!
//! **References.** `Documentation/filesystems/ext4/journal.rst`, flag 0x1 of a block tag.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_ondisk::{BlockSize, PhysBlock};
use fourscore_sync::Arc;

use crate::batch::{Batch, InFlight, Request};
use crate::device::{BlockDevice, Hints, HostRange, to_u64, total_bytes};
use crate::error::{DeviceOp, Operation};

/// The magic number of journal blocks, as it is on disk.
const MAGIC: [u8; 4] = 0xC03B_3998_u32.to_be_bytes();
/// Source offsets are multiples of the smallest block size, so their low bits can hold a flag.
const SOURCE_ALIGN_BYTES: u64 = 1024;
const ESCAPED: u64 = 1;

/// Whether the content of a block was escaped when it was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// It was logged unchanged.
    AsLogged,
    /// Its first four bytes were the journal's magic number and were zeroed.
    Escaped,
}

/// A block of the base device that is replaced by a block of the source device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlaidBlock {
    /// The block of the base that is replaced.
    pub block: PhysBlock,
    /// The byte of the source device at which its content begins, a multiple of 1024.
    pub source_offset: u64,
    /// Whether the content is escaped.
    pub content: Content,
}

/// A read-only device: its base with some blocks replaced by blocks of a source device.
#[derive(Debug)]
pub struct OverlayDevice {
    base: Arc<dyn BlockDevice>,
    source: Arc<dyn BlockDevice>,
    block_size: BlockSize,
    /// Ascending, without duplicates.
    blocks: Box<[PhysBlock]>,
    /// For each of `blocks` the byte offset in the source, with [`ESCAPED`] in its low bits.
    sources: Box<[u64]>,
}

/// A part of a read that comes from one device.
enum Piece {
    Base {
        len_bytes: u64,
    },
    Source {
        offset: u64,
        len_bytes: u64,
        escaped_from: Option<u64>,
    },
}

impl OverlayDevice {
    /// `base` with `overlaid` blocks of `block_size` read from `source` (which may be the same
    /// device). If a block is given several times, the last one counts, as in a log.
    ///
    /// # Errors
    /// Kind `InvalidInput` if a block is not inside the base, or its source not inside the source
    /// device or not aligned.
    pub fn new(
        base: Arc<dyn BlockDevice>,
        source: Arc<dyn BlockDevice>,
        block_size: BlockSize,
        overlaid: impl IntoIterator<Item = OverlaidBlock>,
    ) -> io::Result<Self> {
        let block_bytes = to_u64(block_size.bytes());
        let inside = |offset: u64, device: &dyn BlockDevice| {
            offset
                .checked_add(block_bytes)
                .is_some_and(|end| end <= device.len_bytes())
        };
        let mut table = Vec::new();
        for OverlaidBlock {
            block,
            source_offset,
            content,
        } in overlaid
        {
            if !inside(block_size.offset(block), &*base)
                || !inside(source_offset, &*source)
                || !source_offset.is_multiple_of(SOURCE_ALIGN_BYTES)
            {
                let text = format!("block {block} cannot be read from byte {source_offset}");
                return Err(io::Error::new(ErrorKind::InvalidInput, text));
            }
            let flag = if content == Content::Escaped {
                ESCAPED
            } else {
                0
            };
            table.push((block, source_offset | flag));
        }
        // The sort is stable, so the entries of a block stay in order, and the last one counts.
        table.sort_by_key(|&(block, _)| block);
        table.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                *earlier = *later;
            }
            same
        });
        let (blocks, sources): (Vec<_>, Vec<_>) = table.into_iter().unzip();
        Ok(Self {
            base,
            source,
            block_size,
            blocks: blocks.into(),
            sources: sources.into(),
        })
    }

    /// The index of the first overlaid block that ends after byte `at`.
    fn first_after(&self, at: u64) -> usize {
        let block = PhysBlock(at >> self.block_size.bits());
        self.blocks.partition_point(|&overlaid| overlaid < block)
    }

    /// Whether `range` contains no part of an overlaid block.
    fn is_untouched(&self, range: &Range<u64>) -> bool {
        let next = self.blocks.get(self.first_after(range.start));
        next.is_none_or(|&block| self.block_size.offset(block) >= range.end)
    }

    /// The first piece of the range from `at` to `end`.
    fn piece(&self, at: u64, end: u64) -> Piece {
        let index = self.first_after(at);
        let (Some(&block), Some(&source)) = (self.blocks.get(index), self.sources.get(index))
        else {
            return Piece::Base {
                len_bytes: end - at,
            };
        };
        let start = self.block_size.offset(block);
        if at < start {
            return Piece::Base {
                len_bytes: start.min(end) - at,
            };
        }
        let within = at - start;
        let stop = (start + to_u64(self.block_size.bytes())).min(end);
        Piece::Source {
            offset: (source & !ESCAPED) + within,
            len_bytes: stop - at,
            escaped_from: (source & ESCAPED != 0).then_some(within),
        }
    }

    fn read_mixed(&self, mut buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut at = offset;
        let end = offset + to_u64(buf.len());
        while at < end {
            let piece = self.piece(at, end);
            let (Piece::Base { len_bytes } | Piece::Source { len_bytes, .. }) = piece;
            let len = usize::try_from(len_bytes)
                .unwrap_or(usize::MAX)
                .min(buf.len());
            let (now, later) = buf.split_at_mut(len);
            match piece {
                Piece::Base { .. } => self.base.read_at(now, at)?,
                Piece::Source {
                    offset,
                    escaped_from,
                    ..
                } => {
                    self.source.read_at(now, offset)?;
                    if let Some(within) = escaped_from {
                        restore_magic(now, within);
                    }
                }
            }
            at += len_bytes;
            buf = later;
        }
        Ok(())
    }
}

/// Restores the magic number of an escaped block, of which `bytes` begin at its byte `within`.
fn restore_magic(bytes: &mut [u8], within: u64) {
    let missing = usize::try_from(within)
        .ok()
        .and_then(|within| MAGIC.get(within..));
    for (byte, &magic) in bytes.iter_mut().zip(missing.unwrap_or_default()) {
        *byte = magic;
    }
}

impl BlockDevice for OverlayDevice {
    fn len_bytes(&self) -> u64 {
        self.base.len_bytes()
    }

    fn unlock(&self) {
        self.base.unlock();
    }

    fn hints(&self) -> Hints {
        Hints {
            read_only: true,
            discard: false,
            ..self.base.hints()
        }
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let operation = Operation::new(DeviceOp::Read, offset, total_bytes(bufs));
        operation.check_inside(self.len_bytes())?;
        if self.is_untouched(&operation.range()) {
            return self.base.read_vectored_at(bufs, offset);
        }
        let mut at = offset;
        for buf in bufs {
            self.read_mixed(buf, at)?;
            at += to_u64(buf.len());
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        Err(Operation::new(DeviceOp::Write, offset, total_bytes(bufs)).read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        Err(Operation::on_range(DeviceOp::Discard, &range).read_only())
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        Err(Operation::on_range(DeviceOp::WriteZeroes, &range).read_only())
    }

    /// Batches that only read, and only ranges without overlaid blocks, are passed to the base.
    fn submit(&self, batch: Batch) -> InFlight {
        let untouched = |request: &Request| match request {
            Request::Read { .. } => self.is_untouched(&request.operation().range()),
            Request::Write { .. } | Request::Flush => false,
        };
        if batch.requests().iter().all(untouched) {
            self.base.submit(batch)
        } else {
            InFlight::finished(batch.run_on(self))
        }
    }

    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        if self.is_untouched(&range) {
            self.base.host_range(range)
        } else {
            None
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{IoBuf, RamDevice};

    const BLOCK: usize = 1024;
    const BLOCKS: usize = 12;

    fn bytes(seed: u8, len: usize) -> Vec<u8> {
        (0..=250_u8)
            .cycle()
            .take(len)
            .map(|byte| byte.wrapping_mul(3).wrapping_add(seed))
            .collect()
    }

    fn overlaid(block: u64, source_block: u64, content: Content) -> OverlaidBlock {
        OverlaidBlock {
            block: PhysBlock(block),
            source_offset: source_block * 1024,
            content,
        }
    }

    fn device(base: &[u8], source: &[u8], blocks: &[OverlaidBlock]) -> io::Result<OverlayDevice> {
        let base = Arc::new(RamDevice::from_bytes(base));
        let source = Arc::new(RamDevice::from_bytes(source));
        let block_size = BlockSize::from_log(0).expect("1 KiB");
        OverlayDevice::new(base, source, block_size, blocks.iter().copied())
    }

    #[test]
    fn the_last_entry_of_a_block_counts_and_an_escaped_magic_number_is_restored() {
        let source = bytes(7, 4 * BLOCK);
        let blocks = [
            overlaid(2, 0, Content::AsLogged),
            overlaid(2, 3, Content::Escaped),
        ];
        let device = device(&bytes(0, BLOCKS * BLOCK), &source, &blocks).expect("valid");
        assert_eq!(*device.blocks, [PhysBlock(2)]);
        let mut got = [0; BLOCK];
        device.read_at(&mut got, 2048).expect("read");
        assert_eq!(got[..4], [0xC0, 0x3B, 0x39, 0x98]);
        assert_eq!(got[4..], source[3 * BLOCK + 4..]);
        device
            .read_at(&mut got[..2], 2050)
            .expect("the second half of the magic");
        assert_eq!(got[..2], [0x39, 0x98]);
        for refused in [
            device.write_at(&[0], 0),
            device.discard(0..1),
            device.write_zeroes(0..1),
        ] {
            assert_eq!(
                refused.expect_err("refused").kind(),
                ErrorKind::ReadOnlyFilesystem
            );
        }
        assert!(
            device.read_at(&mut got, 12 * 1024 - 1).is_err(),
            "past the end"
        );
    }

    #[test]
    fn blocks_outside_of_their_device_are_refused() {
        let base = bytes(0, BLOCKS * BLOCK);
        let source = bytes(1, 2 * BLOCK);
        let unaligned = OverlaidBlock {
            source_offset: 512,
            ..overlaid(0, 0, Content::AsLogged)
        };
        for bad in [
            overlaid(12, 0, Content::AsLogged),
            overlaid(u64::MAX, 0, Content::AsLogged),
            overlaid(0, 2, Content::AsLogged),
            overlaid(0, u64::MAX >> 10, Content::Escaped),
            unaligned,
        ] {
            let error = device(&base, &source, &[bad]).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_read_combines_base_and_source_like_a_vector(
            replaced in prop::collection::vec((0..12_u64, 0..8_u64, any::<bool>()), 0..10),
            reads in prop::collection::vec((0..12_288_usize, 0..5000_usize, 0..5000_usize), 1..12),
        ) {
            let mut model = bytes(0, BLOCKS * BLOCK);
            let base = model.clone();
            let source = bytes(99, 8 * BLOCK);
            let blocks: Vec<_> = replaced.iter().map(|&(block, from, escaped)| {
                let content = if escaped { Content::Escaped } else { Content::AsLogged };
                overlaid(block, from, content)
            }).collect();
            for &(block, from, escaped) in &replaced {
                let (to, from) = (usize::try_from(block)? * BLOCK, usize::try_from(from)? * BLOCK);
                model[to..to + BLOCK].copy_from_slice(&source[from..from + BLOCK]);
                if escaped {
                    model[to..to + 4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
                }
            }
            let device = device(&base, &source, &blocks)?;
            for (at, first, second) in reads {
                let (mut one, mut two) = (vec![0; first], vec![0; second]);
                let mut bufs = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
                let offset = to_u64(at);
                let result = device.read_vectored_at(&mut bufs, offset);
                let Some(expected) = model.get(at..at + first + second) else {
                    prop_assert!(result.is_err());
                    continue;
                };
                result?;
                prop_assert_eq!([one, two].concat(), expected);
                let mut batch = Batch::new();
                batch.read(vec![IoBuf::zeroed(expected.len())], offset);
                prop_assert_eq!(&*device.submit(batch).wait_all_ok()?[0][0], expected);
            }
        }
    }
}
