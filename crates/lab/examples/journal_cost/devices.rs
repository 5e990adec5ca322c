//! **Purpose.** The devices of the measurements: a home area, whose blocks are changed, followed by
//! a journal.

use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::time::Duration;

use fourscore_block::{BlockDevice, DeviceOptions, RamDevice, create_image};
use fourscore_ondisk::{BlockCount, BlockSize, PhysBlock};
use fourscore_sync::{Arc, Mutex, thread};

/// The sizes of home area and journal.
pub(crate) struct Shape {
    pub(crate) block_bytes: usize,
    pub(crate) home_blocks: u64,
    pub(crate) journal_blocks: u32,
}

/// For all measurements but that of the gate.
pub(crate) const SMALL_HOME: Shape = Shape {
    block_bytes: 4096,
    home_blocks: 1 << 14,
    journal_blocks: 1 << 16,
};

/// For transactions of more than 100 000 blocks.
pub(crate) const LARGE_LOG: Shape = Shape {
    block_bytes: 1024,
    home_blocks: 1 << 17,
    journal_blocks: 1 << 19,
};

impl Shape {
    pub(crate) fn block_size(&self) -> BlockSize {
        BlockSize::from_log((self.block_bytes >> 10).ilog2()).expect("a power of two")
    }

    pub(crate) fn blocks(&self) -> BlockCount {
        BlockCount(self.home_blocks + u64::from(self.journal_blocks))
    }

    fn len_bytes(&self) -> u64 {
        self.block_size().offset(PhysBlock(self.blocks().0))
    }

    /// Offset of the journal in bytes.
    pub(crate) fn journal_offset(&self) -> u64 {
        self.block_size().offset(PhysBlock(self.home_blocks))
    }
}

/// A device in memory that allocates memory when it is written.
pub(crate) fn sparse_ram(shape: &Shape) -> Arc<dyn BlockDevice> {
    Arc::new(RamDevice::new(shape.len_bytes()))
}

/// An image in `dir` with all blocks of the journal allocated. Its name is removed at once.
pub(crate) fn on_disk(dir: &Path) -> Arc<dyn BlockDevice> {
    let path = dir.join(format!("journal-cost-{}", std::process::id()));
    let len_bytes = SMALL_HOME.len_bytes();
    let device = create_image(&path, len_bytes, DeviceOptions::read_write()).expect("an image");
    std::fs::remove_file(&path).expect("the image exists");
    let zeroes = vec![0; 1 << 20];
    for at in (SMALL_HOME.journal_offset()..len_bytes).step_by(zeroes.len()) {
        device.write_at(&zeroes, at).expect("space on the disk");
    }
    device.flush().expect("a flush");
    Arc::new(device)
}

/// A device with a flush latency.
#[derive(Debug)]
pub(crate) struct Slow {
    device: Arc<dyn BlockDevice>,
    latency: Duration,
}

impl Slow {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, latency: Duration) -> Self {
        Self { device, latency }
    }
}

impl BlockDevice for Slow {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.device.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.device.write_vectored_at(bufs, offset)
    }
    fn flush(&self) -> io::Result<()> {
        if !self.latency.is_zero() {
            thread::sleep(self.latency);
        }
        self.device.flush()
    }
}

/// A device in one allocation of memory, on which a write costs a copy.
#[derive(Debug)]
pub(crate) struct Flat(Mutex<Vec<u8>>);

impl Flat {
    /// All pages are touched here, so that no write allocates any.
    pub(crate) fn new(shape: &Shape) -> Self {
        let len_bytes = usize::try_from(shape.len_bytes()).expect("fits into memory");
        Self(Mutex::new(vec![1; len_bytes]))
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("fits into memory")
}

impl BlockDevice for Flat {
    fn len_bytes(&self) -> u64 {
        self.0.lock().len() as u64
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let (memory, mut at) = (self.0.lock(), index(offset));
        for buf in bufs {
            let end = at + buf.len();
            buf.copy_from_slice(&memory[at..end]);
            at = end;
        }
        Ok(())
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let (mut memory, mut at) = (self.0.lock(), index(offset));
        for buf in bufs {
            memory[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A device that drops all writes but those to the journal's superblock.
#[derive(Debug)]
pub(crate) struct Dropping {
    device: RamDevice,
    superblock_offset: u64,
}

impl Dropping {
    pub(crate) fn new(shape: &Shape) -> Self {
        Self {
            device: RamDevice::new(shape.len_bytes()),
            superblock_offset: shape.journal_offset(),
        }
    }
}

impl BlockDevice for Dropping {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.device.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        if offset == self.superblock_offset {
            return self.device.write_vectored_at(bufs, offset);
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
