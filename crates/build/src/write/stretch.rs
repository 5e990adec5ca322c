//! **Purpose.** Small contents that lie side by side, written in one call.
//!
//! **Model.** A buffer that small files and directories are read into where they will be on disk.
//! It goes out when the next content does not follow, or does not fit.

use std::io;

use fourscore_block::BlockDevice;

/// What fits a core's own cache, so that the copy into the host's page cache reads from there.
pub(crate) const STRETCH_BYTES: usize = 512 << 10;

/// Blocks in a row that are not written yet.
pub(crate) struct Stretch<'a, D: ?Sized> {
    device: &'a D,
    block_bits: u32,
    buffer: Vec<u8>,
    used: usize,
    start: u64,
}

impl<'a, D: BlockDevice + ?Sized> Stretch<'a, D> {
    pub(crate) fn new(device: &'a D, block_bits: u32) -> Self {
        Self {
            device,
            block_bits,
            buffer: vec![0; STRETCH_BYTES],
            used: 0,
            start: 0,
        }
    }

    /// The memory of blocks from `block` on, at most [`STRETCH_BYTES`], with anything in it.
    pub(crate) fn blocks(&mut self, block: u64, blocks: u64) -> io::Result<&mut [u8]> {
        let wanted = usize::try_from(blocks << self.block_bits).unwrap_or(usize::MAX);
        let follows = self.start + (self.used as u64 >> self.block_bits) == block;
        if !follows || self.buffer.len() - self.used < wanted {
            self.flush()?;
            self.start = block;
        }
        let from = self.used;
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a stretch too long");
        let memory = self
            .buffer
            .get_mut(from..from + wanted)
            .ok_or_else(too_long)?;
        self.used += wanted;
        Ok(memory)
    }

    /// Writes what was not written yet.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let used = std::mem::take(&mut self.used);
        match self.buffer.get(..used) {
            Some(bytes) if used > 0 => self.device.write_at(bytes, self.start << self.block_bits),
            _ => Ok(()),
        }
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
        let mut stretch = Stretch::new(&device, 10);
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
}
