//! **Purpose.** Files: extents of every kind and depth, holes, preallocation, truncation, small and
//! sparse ones.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, fallocate};

use super::Writer;

/// Offsets at which the last block of a sparse file may begin, largest first: the last block of
/// 2^32 of 4 KiB, of 2^32 of 1 KiB, below the 2 TiB that `i_blocks` counts without `huge_file`, and
/// below what triple indirect blocks of 1 KiB reach.
const SPARSE_ENDS: &[u64] = &[
    (16 << 40) - 8192,
    (5 << 40) + 4096,
    (4 << 40) - 2048,
    (1 << 40) + 4096,
    (16 << 30) - 4096,
];

/// The sizes of the small files: around the 60 bytes of `i_block`, and around what fits into the
/// rest of an inode of 256 bytes with inline data.
const SMALL_SIZES: std::ops::RangeInclusive<u64> = 1..=160;

/// Writes `len_bytes` of the content for a name, from `offset` on.
pub(super) fn fill(file: &File, name: &str, offset: u64, len_bytes: u64) -> Result<()> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut done = 0;
    while done < len_bytes {
        let length = CHUNK_BYTES.min(len_bytes - done);
        let bytes: Vec<u8> = (0..length)
            .map(|at| byte_at(seed, offset + done + at))
            .collect();
        file.write_all_at(&bytes, offset + done)
            .with_context(|| format!("content of {name}"))?;
        done += length;
    }
    Ok(())
}

/// Writes bytes at an offset.
pub(super) fn write(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    Ok(file.write_all_at(bytes, offset)?)
}

/// The byte of a file's content at an offset: changes with the offset in the block, the number of
/// the block, and the file.
fn byte_at(seed: u64, offset: u64) -> u8 {
    let word = (offset / 8 + 1).wrapping_mul(seed | 1).rotate_left(29);
    word.to_le_bytes()[usize::from(offset.to_le_bytes()[0] & 7)]
}

impl Writer<'_> {
    /// Writes all files.
    pub(super) fn content(&mut self) -> Result<()> {
        self.directory("files")?;
        self.file("plain", 14)?;
        self.file("files/empty", 0)?;
        self.file("files/one-block", self.limits.block_size_bytes)?;
        self.file("files/one-byte-more", self.limits.block_size_bytes + 1)?;
        self.file("files/five-mib", 5 << 20)?;
        self.holes()?;
        self.fragments()?;
        self.sparse()?;
        self.truncated()?;
        if self.limits.extents.yes() {
            self.preallocated()?;
        }
        self.directory("small")?;
        for len_bytes in SMALL_SIZES {
            self.file(&format!("small/{len_bytes:03}"), len_bytes)?;
        }
        Ok(())
    }

    /// Holes at the start, in the middle and at the end.
    fn holes(&self) -> Result<()> {
        let block = self.limits.block_size_bytes;
        let name = "files/holes";
        let file = self.file(name, 0)?;
        fill(&file, name, 3 * block, block)?;
        fill(&file, name, 7 * block + 5, 10)?;
        // After the direct blocks and after the first indirect block of a block map.
        fill(&file, name, 20 * block, 2 * block)?;
        fill(&file, name, (12 + block / 4) * block - 7, 14)?;
        fill(&file, name, (12 + block / 4 + 9) * block, 100)?;
        file.set_len((12 + block / 4 + 50) * block + 17)?;
        let file = self.file("files/only-a-hole", 0)?;
        file.set_len(10 * block + 1)?;
        Ok(())
    }

    /// Files in pieces, with deep extent trees: one written in pieces, one written as a whole and
    /// then punched.
    fn fragments(&self) -> Result<()> {
        let block = self.limits.block_size_bytes;
        let name = "files/written-in-pieces";
        let file = self.file(name, 0)?;
        for piece in 0..self.limits.fragments / 4 {
            fill(&file, name, (2 * piece + 1) * block, block)?;
        }
        let file = self.file("files/punched", self.limits.fragments * block)?;
        file.sync_all()?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for block_nr in (0..self.limits.fragments).step_by(2) {
            fallocate(&file, punch, block_nr * block, block).context("punch hole")?;
        }
        // A hole that spans leaves, and one that cuts blocks.
        let middle = self.limits.fragments / 2;
        fallocate(&file, punch, middle * block, middle / 2 * block).context("punch hole")?;
        fallocate(&file, punch, 3 * block + 100, 2 * block + 100).context("punch hole")?;
        Ok(())
    }

    /// A file whose last byte has the largest possible offset.
    fn sparse(&mut self) -> Result<()> {
        let name = "files/sparse";
        let file = self.file(name, 0)?;
        for &end in SPARSE_ENDS {
            if file.write_at(b"the last bytes", end).is_err() {
                continue;
            }
            let mut offset = 1 << 20;
            while offset < end {
                fill(&file, name, offset, 100)?;
                offset = offset.saturating_mul(37);
            }
            self.largest_file_bytes = file.metadata()?.len();
            return Ok(());
        }
        bail!("no offset of a sparse file can be written")
    }

    /// Files that were truncated.
    fn truncated(&self) -> Result<()> {
        let block = self.limits.block_size_bytes;
        let file = self.file("files/truncated-in-block", 40 * block)?;
        file.sync_all()?;
        file.set_len(5 * block + 11)?;
        let file = self.file("files/truncated-and-grown", 40 * block)?;
        file.sync_all()?;
        file.set_len(block + 1)?;
        file.set_len(33 * block)?;
        let file = self.file("files/truncated-to-nothing", 3 << 20)?;
        file.sync_all()?;
        file.set_len(0)?;
        self.file("files/deleted", 1 << 20)?;
        fs::remove_file(self.at("files/deleted"))?;
        Ok(())
    }

    /// Unwritten extents: inside, past the end of the file, with a written piece in the middle.
    fn preallocated(&self) -> Result<()> {
        let block = self.limits.block_size_bytes;
        let file = self.file("files/unwritten", 0)?;
        fallocate(&file, FallocateFlags::empty(), 0, 100 * block).context("fallocate")?;
        let name = "files/unwritten-with-islands";
        let file = self.file(name, 0)?;
        fallocate(&file, FallocateFlags::empty(), 0, 300 * block).context("fallocate")?;
        file.sync_all()?;
        for island in 1..20 {
            fill(&file, name, island * 13 * block + 3, block)?;
        }
        let file = self.file("files/kept-size", 3 * block + 1)?;
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 200 * block).context("fallocate")?;
        let file = self.file("files/kept-size-of-nothing", 0)?;
        fallocate(&file, FallocateFlags::KEEP_SIZE, 64 * block, 8 * block).context("fallocate")?;
        let file = self.file("files/zeroed-range", 64 * block)?;
        file.sync_all()?;
        fallocate(
            &file,
            FallocateFlags::ZERO_RANGE,
            10 * block + 9,
            20 * block,
        )
        .context("zero range")?;
        Ok(())
    }
}
