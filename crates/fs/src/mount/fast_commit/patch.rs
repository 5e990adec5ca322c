//! **Purpose.** The bytes of an inode that fast commits changed.
//!
//! **Model.** The record replaces the bytes in the table except `i_block`:
//! ```text
//! 0x00      0x28      0x64            record's end
//! | record  | i_block | record        | as before |   then links, then the checksum
//! ```
//! `i_block` stays as it was before, since the tree on disk has not changed. It comes from the
//! record where it holds content and no map.

use std::mem::offset_of;
use std::ops::Range;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::extent::MAGIC as EXTENT_MAGIC;
use fourscore_ondisk::inode::{self, FileMode, FileType, InodeError, InodeFlags, RawInode};
use fourscore_ondisk::superblock::Superblock;
use zerocopy::FromBytes;
use zerocopy::byteorder::little_endian::U16;

/// The block map, or the content in its place.
const I_BLOCK: Range<usize> = offset_of!(RawInode, i_block)..offset_of!(RawInode, i_generation);
/// The root of an extent tree without entries: magic, entries, max, depth, generation.
const EMPTY_ROOT: [u16; 6] = [EXTENT_MAGIC, 0, 4, 0, 0, 0];

/// The source of the bytes that no record replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The inode's table.
    Table,
    /// Zeroes: the number belonged to no file, so the bytes in the table have no meaning.
    Zeroes,
}

/// Changed bytes of one inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InodePatch {
    /// The source of the other bytes.
    pub(crate) base: Base,
    /// The last INODE record's bytes, at least 128.
    pub(crate) record: Option<Box<[u8]>>,
    /// `i_links_count`.
    pub(crate) links: u16,
}

impl InodePatch {
    /// Returns the file type in the record, if there is a record.
    pub(crate) fn file_type(&self) -> Option<FileType> {
        let (raw, _) = RawInode::ref_from_prefix(self.record.as_deref()?).ok()?;
        FileType::from_mode(FileMode(raw.i_mode.get()))
    }

    /// Returns the bytes of inode `nr` after the change. `before` are its bytes in the table, and
    /// may be longer than an inode.
    ///
    /// # Errors
    /// `before` is shorter than an inode of this file system.
    pub(crate) fn apply(
        &self,
        before: &[u8],
        nr: InodeNr,
        superblock: &Superblock,
    ) -> Result<Vec<u8>, InodeError> {
        let inode_bytes = superblock.geometry().inode_size_bytes();
        let mut bytes = match self.base {
            Base::Table => before.get(..inode_bytes).unwrap_or(before).to_vec(),
            Base::Zeroes => vec![0; inode_bytes],
        };
        let table = RawInode::ref_from_prefix(&bytes).ok();
        let next_orphan = table.map(|(raw, _)| raw.i_dtime);
        if let Some(record) = &self.record {
            lay_over(&mut bytes, record);
        }
        if let Ok((raw, _)) = RawInode::mut_from_prefix(&mut bytes) {
            raw.i_links_count = U16::new(self.links);
            if let (Base::Table, Some(next_orphan)) = (self.base, next_orphan) {
                // The field links the orphan list on disk; the record's value does not.
                raw.i_dtime = next_orphan;
            }
        }
        inode::seal(&mut bytes, nr, superblock)?;
        Ok(bytes)
    }
}

fn lay_over(bytes: &mut [u8], record: &[u8]) {
    let i_block = match i_block_source(record) {
        Source::Record => None,
        Source::Before | Source::Tree => bytes.get(I_BLOCK).map(<[u8]>::to_vec),
    };
    for (to, from) in bytes.iter_mut().zip(record) {
        *to = *from;
    }
    let (Some(before), Some(field)) = (i_block, bytes.get_mut(I_BLOCK)) else {
        return;
    };
    field.copy_from_slice(&before);
    let has_root = field.starts_with(&EXTENT_MAGIC.to_le_bytes());
    if i_block_source(record) == Source::Tree && !has_root {
        field.fill(0);
        for (to, word) in field.chunks_exact_mut(2).zip(EMPTY_ROOT) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The source of `i_block`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The bytes before the change.
    Before,
    /// The bytes before the change, if they are the root of an extent tree; else an empty root.
    Tree,
    /// The record.
    Record,
}

fn i_block_source(record: &[u8]) -> Source {
    let Ok((raw, _)) = RawInode::ref_from_prefix(record) else {
        return Source::Before;
    };
    let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
    if flags.contains(InodeFlags::EXTENTS_FL) {
        return Source::Tree;
    }
    if flags.contains(InodeFlags::INLINE_DATA_FL) {
        return Source::Record;
    }
    match FileType::from_mode(FileMode(raw.i_mode.get())) {
        Some(FileType::Symlink | FileType::CharDevice | FileType::BlockDevice) => Source::Record,
        _ => Source::Before,
    }
}
