//! **Purpose.** Joins adjacent small writes.
//!
//! **Model.** Small files and directories are read into a buffer at the offset that they have on
//! disk. A buffer is complete when the next data is not adjacent, or does not fit. A complete
//! buffer is written at once, unless another thread is writing to the device: then the thread fills
//! another buffer, up to a limit. So the device is always busy, and threads rarely wait for it.

use std::collections::VecDeque;
use std::io;

use fourscore_block::BlockDevice;

/// Fits into the cache of one core, so that the copy to the page cache reads from there.
pub(crate) const COMBINE_BYTES: usize = 512 << 10;
/// Limit for the complete buffers of one thread.
const MAX_FULL: usize = 4;
/// Limit for the complete buffers of all threads: hundreds of them would need as much memory as a
/// million files.
const MAX_FULL_OF_ALL: usize = 128;

/// Adjacent blocks that are not written yet. [`WriteCombiner::flush`] must be called at the end.
pub(crate) struct WriteCombiner<'a, D: ?Sized> {
    device: &'a D,
    block_bits: u32,
    max_full: usize,
    filling: Buffer,
    full: VecDeque<Buffer>,
    empty: Vec<Vec<u8>>,
}

/// A buffer and its position on disk.
struct Buffer {
    buffer: Vec<u8>,
    used: usize,
    start: u64,
}

impl Buffer {
    fn new(buffer: Vec<u8>, start: u64) -> Self {
        Self {
            buffer,
            used: 0,
            start,
        }
    }
}

impl<'a, D: BlockDevice + ?Sized> WriteCombiner<'a, D> {
    /// The buffers of one of `threads` threads.
    pub(crate) fn new(device: &'a D, block_bits: u32, threads: usize) -> Self {
        Self {
            device,
            block_bits,
            max_full: (MAX_FULL_OF_ALL / threads.max(1)).min(MAX_FULL),
            filling: Buffer::new(vec![0; COMBINE_BYTES], 0),
            full: VecDeque::new(),
            empty: Vec::new(),
        }
    }

    /// The buffer of blocks from `block` on, at most [`COMBINE_BYTES`], with undefined content.
    pub(crate) fn blocks(&mut self, block: u64, blocks: u64) -> io::Result<&mut [u8]> {
        let wanted = usize::try_from(blocks << self.block_bits).unwrap_or(usize::MAX);
        let now = &self.filling;
        let follows = now.start + (now.used as u64 >> self.block_bits) == block;
        if !follows || now.buffer.len() - now.used < wanted {
            self.start_at(block)?;
        }
        let from = self.filling.used;
        let too_long = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a write longer than the buffer",
            )
        };
        let memory = self
            .filling
            .buffer
            .get_mut(from..from + wanted)
            .ok_or_else(too_long)?;
        self.filling.used += wanted;
        Ok(memory)
    }

    /// Writes all buffers.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.start_at(0)?;
        self.write_down_to(0)
    }

    /// Completes the current buffer and continues with an empty one.
    fn start_at(&mut self, block: u64) -> io::Result<()> {
        if self.filling.used == 0 {
            self.filling.start = block;
            return Ok(());
        }
        let empty = self.empty.pop().unwrap_or_else(|| vec![0; COMBINE_BYTES]);
        let full = std::mem::replace(&mut self.filling, Buffer::new(empty, block));
        self.full.push_back(full);
        while !self.full.is_empty() && !self.device.is_being_written() {
            self.write_down_to(self.full.len() - 1)?;
        }
        self.write_down_to(self.max_full)
    }

    /// Writes until at most `left` complete buffers remain.
    fn write_down_to(&mut self, left: usize) -> io::Result<()> {
        while self.full.len() > left
            && let Some(full) = self.full.pop_front()
        {
            let bytes = full.buffer.get(..full.used).unwrap_or_default();
            self.device.write_at(bytes, full.start << self.block_bits)?;
            self.empty.push(full.buffer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourscore_block::{Event, RamDevice, RecordingDevice};
    use fourscore_sync::Arc;

    #[test]
    fn adjacent_blocks_are_written_together() {
        let device = RecordingDevice::new(Arc::new(RamDevice::new(1 << 20)));
        let mut combiner = WriteCombiner::new(&device, 10, 1);
        for (block, byte) in [(3, 1), (4, 2), (9, 3)] {
            combiner.blocks(block, 1).unwrap().fill(byte);
        }
        combiner.blocks(10, 500).unwrap().fill(4);
        combiner.blocks(510, 12).unwrap().fill(5);
        combiner.flush().unwrap();
        let writes = device
            .events()
            .iter()
            .filter(|event| matches!(event, Event::Write { .. }))
            .count();
        assert_eq!(writes, 3);
        let mut found = [0; 3];
        for (byte, at) in found.iter_mut().zip([3 << 10, 9 << 10, 521 << 10]) {
            let mut one = [0];
            device.read_at(&mut one, at).unwrap();
            *byte = one[0];
        }
        assert_eq!(found, [1, 3, 5]);
    }

    #[test]
    fn hundreds_of_threads_keep_few_buffers() {
        let device = RamDevice::new(1 << 20);
        let most = |threads| WriteCombiner::new(&device, 12, threads).max_full;
        assert_eq!([1, 2, 32, 64, 192, 4096].map(most), [4, 4, 4, 2, 0, 0]);
    }
}
