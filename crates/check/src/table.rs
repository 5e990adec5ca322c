//! **Purpose.** Reads the used parts of inode tables in large pieces, without the blocks of which
//! all inodes are remembered.

use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, PhysBlock};
use std::io;

use crate::inode::InodeView;
use crate::memory::{Memory, Slots, TablePlace};
use crate::volume::Volume;

/// Bytes of an inode table that are read at once.
const PIECE_BYTES: usize = 512 << 10;

/// Receives the blocks of inode tables in order.
pub(crate) trait Visitor {
    /// A block of which all inodes are remembered.
    fn remembered(&mut self, slots: &Slots);
    /// A block that was read, and what is remembered of its inodes.
    fn read(&mut self, block: &TableBlock<'_>, slots: Option<&Slots>);
    /// A block that cannot be read; it is passed to [`read`](Self::read) as zeroes.
    fn unreadable(&mut self, block: PhysBlock, error: io::Error);
}

/// A block of an inode table: the part of it with inodes that may be in use. The bytes of inodes
/// that are remembered may not have been read.
#[derive(Clone, Copy)]
pub(crate) struct TableBlock<'b> {
    pub(crate) place: TablePlace,
    /// The number of its first inode.
    pub(crate) first: InodeNr,
    bytes: &'b [u8],
    inode_bytes: usize,
    /// Whether it could be read.
    pub(crate) is_read: bool,
}

impl<'b> TableBlock<'b> {
    pub(crate) fn inodes(&self) -> impl Iterator<Item = InodeView<'b>> + use<'b> {
        let inodes = self.bytes.chunks_exact(self.inode_bytes);
        (self.first.0..)
            .zip(inodes)
            .filter_map(|(nr, bytes)| InodeView::new(bytes, InodeNr(nr)))
    }
}

/// The part of a table that holds inodes that may be in use.
struct Part {
    group: GroupNr,
    table: PhysBlock,
    first: InodeNr,
    inodes: u32,
    per_block: u32,
    inode_bytes: usize,
}

impl Part {
    fn of(volume: &Volume, nr: GroupNr) -> Option<Self> {
        let group = volume.group(nr)?;
        let geometry = volume.geometry();
        let first = geometry.inode_at(nr, GroupOffset(0))?;
        let most = geometry.inodes().checked_sub(first.0)?.saturating_add(1);
        let inodes = volume.inodes_to_read(group);
        Some(Self {
            group: nr,
            table: group.inode_table?,
            first,
            inodes: inodes.min(geometry.inodes_per_group()).min(most),
            per_block: geometry.inodes_per_block(),
            inode_bytes: geometry.inode_size_bytes(),
        })
    }

    fn blocks(&self) -> u32 {
        self.inodes.div_ceil(self.per_block)
    }

    fn block(&self, nth: u32) -> PhysBlock {
        PhysBlock(self.table.0 + u64::from(nth))
    }

    fn first_of(&self, nth: u32) -> InodeNr {
        InodeNr(self.first.0 + nth * self.per_block)
    }

    /// The number of inodes in a block.
    fn count_of(&self, nth: u32) -> usize {
        let before = nth * self.per_block;
        self.inodes.saturating_sub(before).min(self.per_block) as usize
    }

    fn place(&self, nth: u32) -> TablePlace {
        TablePlace {
            group: self.group,
            table: self.table,
            nth,
        }
    }

    fn slots<'m>(&self, memory: Option<&'m Memory>, nth: u32) -> Option<&'m Slots> {
        memory?.slots(self.place(nth), self.first_of(nth), self.count_of(nth))
    }

    /// A block of the table, of which `bytes` are the content.
    fn table_block<'b>(&self, nth: u32, bytes: &'b [u8], is_read: bool) -> TableBlock<'b> {
        let used = self.count_of(nth) * self.inode_bytes;
        TableBlock {
            place: self.place(nth),
            first: self.first_of(nth),
            bytes: bytes.get(..used).unwrap_or(bytes),
            inode_bytes: self.inode_bytes,
            is_read,
        }
    }
}

/// Passes the blocks of the table of a group to `visitor`; `buffer` is for pieces of it.
pub(crate) fn visit(
    volume: &Volume,
    nr: GroupNr,
    memory: Option<&Memory>,
    buffer: &mut Vec<u8>,
    visitor: &mut impl Visitor,
) {
    let Some(part) = Part::of(volume, nr) else {
        return;
    };
    let most = u32::try_from((PIECE_BYTES / volume.block_bytes()).max(1)).unwrap_or(1);
    let plain = |nth| part.slots(memory, nth).filter(|slots| slots.is_plain());
    let mut nth = 0;
    while nth < part.blocks() {
        if let Some(slots) = plain(nth) {
            visitor.remembered(slots);
            nth += 1;
            continue;
        }
        let is_alone = nth + 1 == part.blocks() || plain(nth + 1).is_some();
        if is_alone
            && let Some(slots) = part.slots(memory, nth)
            && read_part(volume, &part, nth, slots, buffer, visitor)
        {
            nth += 1;
            continue;
        }
        let end = part.blocks().min(nth.saturating_add(most));
        let end = (nth + 1..end)
            .find(|&nth| plain(nth).is_some())
            .unwrap_or(end);
        read_run(volume, &part, nth..end, memory, buffer, visitor);
        nth = end;
    }
}

/// Reads the inodes of a block that are not remembered, and what lies between them; returns whether
/// that succeeded.
fn read_part(
    volume: &Volume,
    part: &Part,
    nth: u32,
    slots: &Slots,
    buffer: &mut Vec<u8>,
    visitor: &mut impl Visitor,
) -> bool {
    let again = slots.again();
    let bytes = again.start * part.inode_bytes..again.end * part.inode_bytes;
    let offset = volume.geometry().block_size().offset(part.block(nth)) + bytes.start as u64;
    buffer.resize(volume.block_bytes(), 0);
    let read = buffer.get_mut(bytes);
    let is_read = read.is_some_and(|bytes| volume.device.read_at(bytes, offset).is_ok());
    if is_read {
        visitor.read(&part.table_block(nth, buffer, true), Some(slots));
    }
    is_read
}

/// Reads adjacent blocks of a table.
fn read_run(
    volume: &Volume,
    part: &Part,
    run: std::ops::Range<u32>,
    memory: Option<&Memory>,
    buffer: &mut Vec<u8>,
    visitor: &mut impl Visitor,
) {
    let block_bytes = volume.block_bytes();
    buffer.resize(run.len() * block_bytes, 0);
    let mut failed = Vec::new();
    volume.read_run(part.block(run.start), buffer, |block, error| {
        failed.push(block);
        visitor.unreadable(block, error);
    });
    for (nth, bytes) in run.zip(buffer.chunks_exact(block_bytes)) {
        let is_read = !failed.contains(&part.block(nth));
        let block = part.table_block(nth, bytes, is_read);
        visitor.read(&block, part.slots(memory, nth));
    }
}
