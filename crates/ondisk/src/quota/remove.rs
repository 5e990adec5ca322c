//! **Purpose.** Removes an identifier from a quota file.
//!
//! **Not here.** Whether it has usage or limits, which the caller knows.
//!
//! **Model.** As in the kernel (`qtree_delete_dquot`): the entry becomes zeroes, and so does the
//! pointer to it. A node of the tree without pointers and a block without entries go to the list of
//! free blocks; a block that was full goes to the list of blocks with free entries. The file does
//! not become shorter.
//!
//! Like [`insert`](mod@super::insert), [`remove`] changes nothing and returns the bytes that
//! change. None covers another entry.
//!
//! **Invariants.** As of [`insert`](mod@super::insert). A block is free only if all its entries
//! are: its header, which counts them, must agree.

use zerocopy::{FromZeros, IntoBytes};

use super::insert::{Block, is_free};
use super::insert::{Change, Editor, EntryAt, InsertError, Path, entries_header, entry_offsets};
use super::{ENTRIES_PER_BLOCK, ENTRY_BYTES, QuotaFileError, ROOT_BLOCK, RawEntriesHeader, word};

/// Plans the removal of the entry of `id`; no change if the file has none.
///
/// # Errors
/// A block cannot be read, or the file is broken.
pub fn remove<E>(
    id: u32,
    read_block: &mut dyn FnMut(u32) -> Result<Block, E>,
) -> Result<Vec<Change>, InsertError<E>> {
    let mut editor = Editor::open(read_block)?;
    let Path::Entry(entry) = editor.descend(id)? else {
        return Ok(Vec::new());
    };
    editor.cut_pointers(id, entry)?;
    editor.free_entry(entry)?;
    Ok(editor.changes())
}

impl<E> Editor<'_, E> {
    /// Removes the pointer to an entry, and the nodes that have no other one.
    fn cut_pointers(&mut self, id: u32, entry: EntryAt) -> Result<(), InsertError<E>> {
        let mut path = Vec::new();
        let mut node = ROOT_BLOCK;
        for slot in id.to_be_bytes() {
            if node == entry.block || path.iter().any(|&(before, _)| before == node) {
                return Err(InsertError::File(QuotaFileError::SharedNode));
            }
            let at = usize::from(slot) * 4;
            path.push((node, at));
            node = word(self.block(node)?, at);
        }
        for (node, at) in path.into_iter().rev() {
            self.put(node, at, &0_u32.to_le_bytes())?;
            let is_empty = self.block(node)?.iter().all(|&byte| byte == 0);
            if node == ROOT_BLOCK || !is_empty {
                break;
            }
            self.free_block(node)?;
        }
        Ok(())
    }

    fn free_entry(&mut self, EntryAt { block, offset }: EntryAt) -> Result<(), InsertError<E>> {
        self.put(block, offset, &[0; ENTRY_BYTES])?;
        let bytes = self.block(block)?;
        let mut header = entries_header(bytes);
        let used = entry_offsets().filter(|&offset| !is_free(&bytes[offset..offset + ENTRY_BYTES]));
        let left = used.count();
        let counted = usize::from(header.dqdh_entries.get());
        if counted != left + 1 {
            return Err(InsertError::File(QuotaFileError::EntryCount));
        }
        header.dqdh_entries = u16::try_from(left).unwrap_or(u16::MAX).into();
        if counted >= ENTRIES_PER_BLOCK {
            self.link(block, &mut header)?;
        }
        if left > 0 {
            return self.put(block, 0, header.as_bytes());
        }
        if header.dqdh_prev_free.get() != 0 || self.header.dqi_free_entry.get() == block {
            self.unlink(&mut header)?;
        }
        self.free_block(block)
    }

    /// Makes a block, whose header is `header`, the first one of those with free entries.
    fn link(&mut self, block: u32, header: &mut RawEntriesHeader) -> Result<(), InsertError<E>> {
        let next = self.header.dqi_free_entry;
        if next.get() == block {
            return Err(InsertError::File(QuotaFileError::SharedNode));
        }
        if next.get() != 0 {
            let at = std::mem::offset_of!(RawEntriesHeader, dqdh_prev_free);
            self.put(next.get(), at, &block.to_le_bytes())?;
        }
        header.dqdh_next_free = next;
        header.dqdh_prev_free = 0.into();
        self.header.dqi_free_entry = block.into();
        Ok(())
    }

    /// Puts a block without entries or pointers at the front of the list of free blocks.
    fn free_block(&mut self, block: u32) -> Result<(), InsertError<E>> {
        let header = RawEntriesHeader {
            dqdh_next_free: self.header.dqi_free_blk,
            ..RawEntriesHeader::new_zeroed()
        };
        self.header.dqi_free_blk = block.into();
        self.put(block, 0, header.as_bytes())
    }
}
