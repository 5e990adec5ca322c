//! **Purpose.** Small contents that lie side by side, written in one call.
//!
//! **Model.** A buffer that small files and directories are read into where they will be on disk.
//! It is full when the next content does not follow, or does not fit. Full buffers go out at once,
//! unless another thread is writing to the device: then a thread rather fills another one, as long
//! as it has any. So the device is always being written and nobody waits for it.

use std::collections::VecDeque;
use std::io;

use fourscore_block::BlockDevice;

/// What fits a core's own cache, so that the copy into the host's page cache reads from there.
pub(crate) const STRETCH_BYTES: usize = 512 << 10;
/// Buffers of a thread that wait for another one at most.
const MOST_WAITING: usize = 4;
/// Those of all threads together: with hundreds of these a build would need as much memory for
/// them as for a million files.
const MOST_WAITING_OF_ALL: usize = 128;

/// Blocks in a row that are not written yet. [`Stretch::flush`] ends it.
pub(crate) struct Stretch<'a, D: ?Sized> {
    device: &'a D,
    block_bits: u32,
    most_waiting: usize,
    filling: Filled,
    waiting: VecDeque<Filled>,
    empty: Vec<Vec<u8>>,
}

/// A buffer, and where its first bytes go.
struct Filled {
    buffer: Vec<u8>,
    used: usize,
    start: u64,
}

impl Filled {
    fn new(buffer: Vec<u8>, start: u64) -> Self {
        Self {
            buffer,
            used: 0,
            start,
        }
    }
}

impl<'a, D: BlockDevice + ?Sized> Stretch<'a, D> {
    /// The buffers of one of so many threads.
    pub(crate) fn new(device: &'a D, block_bits: u32, threads: usize) -> Self {
        Self {
            device,
            block_bits,
            most_waiting: (MOST_WAITING_OF_ALL / threads.max(1)).min(MOST_WAITING),
            filling: Filled::new(vec![0; STRETCH_BYTES], 0),
            waiting: VecDeque::new(),
            empty: Vec::new(),
        }
    }

    /// The memory of blocks from `block` on, at most [`STRETCH_BYTES`], with anything in it.
    pub(crate) fn blocks(&mut self, block: u64, blocks: u64) -> io::Result<&mut [u8]> {
        let wanted = usize::try_from(blocks << self.block_bits).unwrap_or(usize::MAX);
        let now = &self.filling;
        let follows = now.start + (now.used as u64 >> self.block_bits) == block;
        if !follows || now.buffer.len() - now.used < wanted {
            self.begin_at(block)?;
        }
        let from = self.filling.used;
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a stretch too long");
        let memory = self
            .filling
            .buffer
            .get_mut(from..from + wanted)
            .ok_or_else(too_long)?;
        self.filling.used += wanted;
        Ok(memory)
    }

    /// Writes what was not written yet.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.begin_at(0)?;
        self.write_down_to(0)
    }

    /// Puts the buffer aside and goes on with an empty one.
    fn begin_at(&mut self, block: u64) -> io::Result<()> {
        if self.filling.used == 0 {
            self.filling.start = block;
            return Ok(());
        }
        let empty = self.empty.pop().unwrap_or_else(|| vec![0; STRETCH_BYTES]);
        let full = std::mem::replace(&mut self.filling, Filled::new(empty, block));
        self.waiting.push_back(full);
        while !self.waiting.is_empty() && !self.device.is_being_written() {
            self.write_down_to(self.waiting.len() - 1)?;
        }
        self.write_down_to(self.most_waiting)
    }

    /// Writes until no more than `left` buffers wait.
    fn write_down_to(&mut self, left: usize) -> io::Result<()> {
        while self.waiting.len() > left
            && let Some(full) = self.waiting.pop_front()
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
    fn neighbours_go_out_together() {
        let device = RecordingDevice::new(Arc::new(RamDevice::new(1 << 20)));
        let mut stretch = Stretch::new(&device, 10, 1);
        for (block, byte) in [(3, 1), (4, 2), (9, 3)] {
            stretch.blocks(block, 1).unwrap().fill(byte);
        }
        stretch.blocks(10, 500).unwrap().fill(4);
        stretch.blocks(510, 12).unwrap().fill(5);
        stretch.flush().unwrap();
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
        let most = |threads| Stretch::new(&device, 12, threads).most_waiting;
        assert_eq!([1, 2, 32, 64, 192, 4096].map(most), [4, 4, 4, 2, 0, 0]);
    }
}
