//! **Purpose.** Finds an identifier in a quota file that exists, and adds one that it does not
//! have.
//!
//! **Not here.** Removing one ([`remove`](mod@super::remove)), which uses the same [`Editor`].
//!
//! **Model.** As in the kernel, entries are placed in the block at the head of a list of blocks
//! with free entries. A block that becomes full leaves the list. Where there is none, or a node of
//! the tree is missing, a block comes from the list of free blocks, or the file grows by one.
//!
//! [`insert`] changes nothing: it reads blocks and returns the bytes that change, so that the
//! caller can make all changes at once. They are small, and none covers an entry that exists. So
//! usage can be written to other entries of the same blocks meanwhile.
//!
//! **Invariants.** The depth of the tree is fixed and lists are not walked, so reading ends
//! whatever the blocks hold. Pointers are checked against the size of the file.

use std::collections::BTreeMap;
use std::ops::Range;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{
    ENTRIES_PER_BLOCK, ENTRY_BYTES, QUOTA_BLOCK_BYTES, QuotaEntry, QuotaFileError, ROOT_BLOCK,
    RawEntriesHeader, RawQuotaHeader, TREE_LEVELS, put, word,
};

pub(super) type Block = [u8; QUOTA_BLOCK_BYTES];

/// Where the words of the header begin that change: `dqi_blocks`, and the heads of both lists.
const CHANGING_AT: usize = std::mem::offset_of!(RawQuotaHeader, dqi_blocks);

/// The place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryAt {
    /// The block of the file, of 1 KiB.
    pub block: u32,
    /// Its offset there, in bytes.
    pub offset: usize,
}

/// Bytes of a quota file that change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The block of the file, of 1 KiB.
    pub block: u32,
    /// Their offset there.
    pub offset: usize,
    /// The bytes after the change.
    pub bytes: Vec<u8>,
}

/// A new entry of a quota file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insertion {
    /// Where the entry is.
    pub entry: EntryAt,
    /// What changes.
    pub changes: Vec<Change>,
    /// How many blocks of 1 KiB the file has afterwards.
    pub blocks: u32,
}

/// Why an identifier was not found, added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError<E> {
    /// A block could not be read.
    Read(E),
    /// The file is broken.
    File(QuotaFileError),
}

/// Returns where the entry of `id` is in a quota file; `None` if it has none.
///
/// # Errors
/// A block cannot be read, or the file is broken.
pub fn look_up<E>(
    id: u32,
    read_block: &mut dyn FnMut(u32) -> Result<Block, E>,
) -> Result<Option<EntryAt>, InsertError<E>> {
    let mut editor = Editor::open(read_block)?;
    match editor.descend(id)? {
        Path::Entry(at) => Ok(Some(at)),
        Path::Ends { .. } => Ok(None),
    }
}

/// Plans an entry for `id`, which the file does not have, without usage and limits.
///
/// # Errors
/// A block cannot be read, or the file is broken.
pub fn insert<E>(
    id: u32,
    read_block: &mut dyn FnMut(u32) -> Result<Block, E>,
) -> Result<Insertion, InsertError<E>> {
    let mut editor = Editor::open(read_block)?;
    let (mut node, level) = match editor.descend(id)? {
        Path::Entry(entry) => {
            return Ok(Insertion {
                entry,
                changes: Vec::new(),
                blocks: editor.header.dqi_blocks.get(),
            });
        }
        Path::Ends { node, level } => (node, level),
    };
    let entry = editor.place_entry(id)?;
    let slots = id.to_be_bytes();
    for (nth, &slot) in slots.iter().enumerate().skip(level) {
        let is_last = nth + 1 == slots.len();
        let child = match is_last {
            true => entry.block,
            false => editor.take_block()?,
        };
        editor.put(node, usize::from(slot) * 4, &child.to_le_bytes())?;
        node = child;
    }
    let blocks = editor.header.dqi_blocks.get();
    Ok(Insertion {
        entry,
        changes: editor.changes(),
        blocks,
    })
}

/// Where the way from the root to an identifier ends.
pub(super) enum Path {
    /// At its entry.
    Entry(EntryAt),
    /// At a node, whose pointer for the byte `level` of the identifier is 0.
    Ends { node: u32, level: usize },
}

/// A quota file that is read, with changes in memory.
pub(super) struct Editor<'r, E> {
    read_block: &'r mut dyn FnMut(u32) -> Result<Block, E>,
    pub(super) header: RawQuotaHeader,
    /// The blocks that were read, with their changes.
    blocks: BTreeMap<u32, Block>,
    /// The parts that change. A block in its whole length was free or is new.
    changed: Vec<(u32, Range<usize>)>,
}

impl<'r, E> Editor<'r, E> {
    pub(super) fn open(
        read_block: &'r mut dyn FnMut(u32) -> Result<Block, E>,
    ) -> Result<Self, InsertError<E>> {
        let first = read_block(0).map_err(InsertError::Read)?;
        let header = RawQuotaHeader::read_from_prefix(&first)
            .map_err(|_| InsertError::File(QuotaFileError::NoHeader))?;
        Ok(Self {
            read_block,
            header: header.0,
            blocks: BTreeMap::new(),
            changed: Vec::new(),
        })
    }

    /// Returns a block that a pointer or a list names.
    pub(super) fn block(&mut self, number: u32) -> Result<&mut Block, InsertError<E>> {
        if number < ROOT_BLOCK || number >= self.header.dqi_blocks.get() {
            return Err(InsertError::File(QuotaFileError::Pointer));
        }
        match self.blocks.entry(number) {
            std::collections::btree_map::Entry::Occupied(held) => Ok(held.into_mut()),
            std::collections::btree_map::Entry::Vacant(free) => {
                let read = (self.read_block)(number).map_err(InsertError::Read)?;
                Ok(free.insert(read))
            }
        }
    }

    pub(super) fn put(
        &mut self,
        number: u32,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), InsertError<E>> {
        put(self.block(number)?, at, bytes);
        self.changed.push((number, at..at + bytes.len()));
        Ok(())
    }

    pub(super) fn descend(&mut self, id: u32) -> Result<Path, InsertError<E>> {
        let mut node = ROOT_BLOCK;
        for (level, slot) in id.to_be_bytes().into_iter().enumerate() {
            let child = word(self.block(node)?, usize::from(slot) * 4);
            if child == 0 {
                return Ok(Path::Ends { node, level });
            }
            if child <= ROOT_BLOCK {
                return Err(InsertError::File(QuotaFileError::SharedNode));
            }
            node = child;
        }
        debug_assert!(id.to_be_bytes().len() == TREE_LEVELS as usize);
        let block = self.block(node)?;
        let found = entry_offsets().find(|&offset| {
            let entry = &block[offset..offset + ENTRY_BYTES];
            let is_its = QuotaEntry::of(entry).is_some_and(|(found, _)| found == id);
            is_its && !is_free(entry)
        });
        match found {
            Some(offset) => Ok(Path::Entry(EntryAt {
                block: node,
                offset,
            })),
            None => Err(InsertError::File(QuotaFileError::Pointer)),
        }
    }

    /// Takes a block of zeroes: a free one, or one behind the end.
    fn take_block(&mut self) -> Result<u32, InsertError<E>> {
        let free = self.header.dqi_free_blk.get();
        let number = if free == 0 {
            let end = self.header.dqi_blocks.get();
            let longer = end.checked_add(1);
            let longer = longer.ok_or(InsertError::File(QuotaFileError::Blocks))?;
            self.header.dqi_blocks = longer.into();
            end
        } else {
            let next = entries_header(self.block(free)?).dqdh_next_free;
            if next.get() == free {
                return Err(InsertError::File(QuotaFileError::SharedNode));
            }
            self.header.dqi_free_blk = next;
            free
        };
        self.blocks.insert(number, [0; QUOTA_BLOCK_BYTES]);
        self.changed.push((number, 0..QUOTA_BLOCK_BYTES));
        Ok(number)
    }

    /// Puts an entry for `id` into a block that has a free one.
    fn place_entry(&mut self, id: u32) -> Result<EntryAt, InsertError<E>> {
        let number = match self.header.dqi_free_entry.get() {
            0 => {
                let new = self.take_block()?;
                self.header.dqi_free_entry = new.into();
                new
            }
            head => head,
        };
        let block = self.block(number)?;
        let mut header = entries_header(block);
        let offset = entry_offsets()
            .find(|&offset| is_free(&block[offset..offset + ENTRY_BYTES]))
            .ok_or(InsertError::File(QuotaFileError::Pointer))?;
        let entries = header.dqdh_entries.get().saturating_add(1);
        header.dqdh_entries = entries.into();
        if usize::from(entries) >= ENTRIES_PER_BLOCK {
            self.unlink(&mut header)?;
        }
        self.put(number, 0, header.as_bytes())?;
        self.put(number, offset, &QuotaEntry::default().to_bytes(id))?;
        Ok(EntryAt {
            block: number,
            offset,
        })
    }

    /// Takes a block whose header is `header` out of the list of those with free entries.
    pub(super) fn unlink(&mut self, header: &mut RawEntriesHeader) -> Result<(), InsertError<E>> {
        let (next, before) = (header.dqdh_next_free, header.dqdh_prev_free);
        if next.get() != 0 {
            let at = std::mem::offset_of!(RawEntriesHeader, dqdh_prev_free);
            self.put(next.get(), at, before.as_bytes())?;
        }
        if before.get() == 0 {
            self.header.dqi_free_entry = next;
        } else {
            self.put(before.get(), 0, next.as_bytes())?;
        }
        header.dqdh_next_free = 0.into();
        header.dqdh_prev_free = 0.into();
        Ok(())
    }

    /// Returns the bytes that change.
    pub(super) fn changes(self) -> Vec<Change> {
        let is_whole = |range: &Range<usize>| range.len() == QUOTA_BLOCK_BYTES;
        let whole: Vec<u32> = self
            .changed
            .iter()
            .filter(|(_, range)| is_whole(range))
            .map(|(block, _)| *block)
            .collect();
        let mut changes = vec![Change {
            block: 0,
            offset: CHANGING_AT,
            bytes: self.header.as_bytes()[CHANGING_AT..].to_vec(),
        }];
        for (number, range) in self.changed {
            // A whole block is written once, with all that was put into it. All bytes are those of
            // the end, so of two parts that begin at one place the longer one is right.
            if !is_whole(&range) && whole.contains(&number) {
                continue;
            }
            let block = self.blocks.get(&number);
            let bytes = block.and_then(|block| block.get(range.clone()));
            let bytes = bytes.unwrap_or_default().to_vec();
            let is_its = |known: &&mut Change| (known.block, known.offset) == (number, range.start);
            match changes.iter_mut().find(is_its) {
                Some(known) if known.bytes.len() < bytes.len() => known.bytes = bytes,
                Some(_) => {}
                None => changes.push(Change {
                    block: number,
                    offset: range.start,
                    bytes,
                }),
            }
        }
        changes
    }
}

pub(super) fn entries_header(block: &Block) -> RawEntriesHeader {
    let header = RawEntriesHeader::read_from_prefix(block);
    header.map_or_else(|_| RawEntriesHeader::new_zeroed(), |(header, _)| header)
}

/// The offsets of the entries of a block.
pub(super) fn entry_offsets() -> impl Iterator<Item = usize> {
    (0..ENTRIES_PER_BLOCK).map(|nth| size_of::<RawEntriesHeader>() + nth * ENTRY_BYTES)
}

pub(super) fn is_free(entry: &[u8]) -> bool {
    entry.iter().all(|&byte| byte == 0)
}
