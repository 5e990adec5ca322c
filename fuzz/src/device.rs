//! **Purpose.** A seed image some of whose blocks were changed, as a device. The image itself is
//! shared by all executions and never copied.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};

use fourscore_block::BlockDevice;
use fourscore_ondisk::BlockSize;

/// The smallest block size: that of most seed images, and of the blocks that the targets for single
/// structures make.
pub const BLOCK_BYTES: usize = 1024;

/// An image with changes.
#[derive(Debug)]
pub struct Patched {
    base: &'static [u8],
    block_size: BlockSize,
    changed: BTreeMap<usize, Box<[u8]>>,
}

impl Patched {
    /// `base` without changes, to be changed in blocks of `block_size`, of which its length is a
    /// multiple.
    #[must_use]
    pub fn new(base: &'static [u8], block_size: BlockSize) -> Self {
        Self {
            base,
            block_size,
            changed: BTreeMap::new(),
        }
    }

    /// The length of its blocks in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_size.bytes()
    }

    /// The bytes of a block; none outside of the image.
    #[must_use]
    pub fn block(&self, block: usize) -> &[u8] {
        match self.changed.get(&block) {
            Some(bytes) => bytes,
            None => block_of(self.base, self.block_size, block),
        }
    }

    /// The bytes of a block for changing them; none outside of the image.
    pub fn block_mut(&mut self, block: usize) -> &mut [u8] {
        let (base, block_size) = (self.base, self.block_size);
        let bytes = self.changed.entry(block);
        bytes.or_insert_with(|| block_of(base, block_size, block).into())
    }

    /// Whether a change of this block was requested.
    #[must_use]
    pub fn is_changed(&self, block: usize) -> bool {
        self.changed.contains_key(&block)
    }
}

fn block_of(image: &[u8], block_size: BlockSize, block: usize) -> &[u8] {
    let start = block.saturating_mul(block_size.bytes());
    image
        .get(start..start.saturating_add(block_size.bytes()))
        .unwrap_or_default()
}

impl BlockDevice for Patched {
    fn len_bytes(&self) -> u64 {
        self.base.len() as u64
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let past_end = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let mut at = usize::try_from(offset).map_err(|_| past_end())?;
        for buf in bufs {
            let mut rest = &mut buf[..];
            while !rest.is_empty() {
                let block = self.block(at / self.block_bytes());
                let from = block
                    .get(at % self.block_bytes()..)
                    .filter(|from| !from.is_empty());
                let from = from.ok_or_else(past_end)?;
                let len = from.len().min(rest.len());
                let (now, later) = rest.split_at_mut(len);
                now.copy_from_slice(&from[..len]);
                (rest, at) = (later, at + len);
            }
        }
        Ok(())
    }

    fn write_vectored_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_and_the_end_is_the_end() {
        static BASE: [u8; 3 * BLOCK_BYTES] = [7; 3 * BLOCK_BYTES];
        let mut device = Patched::new(&BASE, BlockSize::from_log(0).unwrap());
        device.block_mut(1)[0] = 1;
        assert!(device.block_mut(3).is_empty());
        let mut read = [0; 4];
        device.read_at(&mut read, 1022).unwrap();
        assert_eq!(read, [7, 7, 1, 7]);
        assert!(device.is_changed(1) && !device.is_changed(0));
        let past = device.read_at(&mut read, 3 * 1024 - 2).unwrap_err();
        assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
        assert!(device.read_at(&mut read, u64::MAX).is_err());
        assert!(device.write_at(&read, 0).is_err());
    }
}
