//! **Purpose.** What the checks of one repair remember of plain inodes and of the names in
//! directories, so that a round of a repair examines again only what its patches changed.
//!
//! | module | responsibility |
//! |---|---|
//! | `names` | the names in directories, for pass 2 |
//!
//! **Model.** What pass 1 adds to the shared state for a plain inode is a function of three things:
//! its bytes, its number, and the superblock. So it is kept for each block of an inode table:
//! ```text
//! group -> block of its inode table -> one slot for each of its inodes
//! slot = nothing                                 not in use
//!      | plain inode                             its type, links, and one run of blocks
//!      | inode of reserved descriptor blocks     its links and its double indirect block
//!      | again                                   everything else
//! ```
//! An inode is plain if no finding is about it, it is a regular file, a directory in blocks or a
//! symbolic link inside its inode, and it has no attributes in blocks or other inodes, no
//! encryption, and at most one run of blocks, without a node of an extent tree. The inode of
//! reserved descriptor blocks has thousands of blocks below it, which nothing else changes, so it
//! is remembered as well. All others are examined again in each check.
//!
//! **Invariants.**
//! - An inode is to be examined again when any of its bytes is written ([`Memory::forget`]), that
//!   of reserved descriptor blocks also when one of these or its double indirect block is, and
//!   everything is forgotten when a field of the superblock changes that pass 1 reads
//!   ([`Memory::meet`]).
//! - A slot is used only for the inode number and the number of inodes that it was made for, so
//!   descriptors may change: tables that moved, grew or overlap are read again.
//! - Nothing is remembered of file systems with clusters or quota, or while changes of fast commits
//!   are laid over the device: there an inode adds more than a slot says.
//! - Slots are of checks of one device. At most [`MOST_INODES`] are kept, 16 bytes each, and 32
//!   more for a directory.
//!
//! What is remembered is only ever what a check without a memory would find: builds with debug
//! assertions make each check of a repair twice and compare ([`crate::repair()`]).
//!
//! **Locking.** None: passes read a memory that does not change, and collect what is new.

mod names;

use std::ops::Range;

use fourscore_ondisk::features::{Compat, RoCompat};
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock, RawSuperblock};

use crate::inode::InodeView;
use crate::state::{Charge, Directory, Run};
use crate::volume::Volume;
use crate::walk::{RESIZE_INODE, Role};
use names::AllNames;
pub(crate) use names::Names;

/// The most inodes of which something is kept.
const MOST_INODES: usize = 4 << 20;

/// The word of `i_block` that refers to the double indirect block.
const DOUBLE_INDIRECT: usize = 13;

/// What pass 1 adds for one inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Its only run of blocks.
    first: PhysBlock,
    blocks: u32,
    pub(crate) links: u16,
    pub(crate) kind: Kind,
}

/// What is known of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It must be examined.
    #[default]
    Again,
    /// It is not in use, and adds nothing.
    Nothing,
    Regular,
    Symlink,
    /// It maps one run of blocks, from its first block on.
    Directory,
    /// It maps the blocks that are reserved for descriptors, below its only run, which is its
    /// double indirect block.
    ReservedBlocks,
}

impl Slot {
    pub(crate) const AGAIN: Self = Self::of_kind(Kind::Again);
    pub(crate) const NOTHING: Self = Self::of_kind(Kind::Nothing);

    const fn of_kind(kind: Kind) -> Self {
        Self {
            first: PhysBlock(0),
            blocks: 0,
            links: 0,
            kind,
        }
    }

    /// The slot of an inode in use without findings, given its charge for attribute values and what
    /// it claimed.
    pub(crate) fn of(
        inode: &InodeView<'_>,
        charge: Charge,
        claimed: &Claimed,
        volume: &Volume,
    ) -> Self {
        let kind = match inode.file_type() {
            Some(FileType::Regular) => Kind::Regular,
            Some(FileType::Symlink) if inode.is_fast_symlink() => Kind::Symlink,
            Some(FileType::Directory) if !claimed.run.is_empty() => Kind::Directory,
            _ => return Self::AGAIN,
        };
        let is_charged = charge.clusters != 0 || charge.inodes != 0;
        let special = InodeFlags::ENCRYPT_FL | InodeFlags::EA_INODE_FL;
        let has_more = inode.flags().intersects(special) || inode.file_acl(&volume.sb).0 != 0;
        let (Ok(blocks), Ok(links)) = (
            u32::try_from(claimed.run.end.0 - claimed.run.start.0),
            u16::try_from(inode.links()),
        ) else {
            return Self::AGAIN;
        };
        if is_charged || has_more || !claimed.is_one_run || links == 0 {
            return Self::AGAIN;
        }
        Self {
            first: claimed.run.start,
            blocks,
            links,
            kind,
        }
    }

    /// The slot of the inode of reserved descriptor blocks without findings, of whose map so many
    /// nodes were read.
    pub(crate) fn of_reserved_blocks(inode: &InodeView<'_>, nodes: u64, volume: &Volume) -> Self {
        let links = u16::try_from(inode.links()).unwrap_or(0);
        let expected = 1 + u64::from(volume.sb.reserved_gdt_blocks());
        let has_more = inode.file_acl(&volume.sb).0 != 0 || nodes != expected;
        if !volume.compat(Compat::RESIZE_INODE) || links == 0 || has_more {
            return Self::AGAIN;
        }
        Self {
            first: PhysBlock(inode.block_word(DOUBLE_INDIRECT).into()),
            blocks: 1,
            links,
            kind: Kind::ReservedBlocks,
        }
    }

    /// The blocks that it claims.
    pub(crate) fn run(&self) -> Range<PhysBlock> {
        self.first..PhysBlock(self.first.0 + u64::from(self.blocks))
    }
}

/// What an inode claimed.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    run: Range<PhysBlock>,
    /// Whether it claimed nothing but this run of data.
    is_one_run: bool,
}

impl Default for Claimed {
    fn default() -> Self {
        Self {
            run: PhysBlock(0)..PhysBlock(0),
            is_one_run: true,
        }
    }
}

impl Claimed {
    pub(crate) fn add(&mut self, run: &Range<PhysBlock>, role: Role) {
        self.is_one_run &= role == Role::Data && self.run.is_empty();
        self.run = run.clone();
    }
}

/// The slots of the inodes of one block of a table.
#[derive(Debug)]
pub(crate) struct Slots {
    first: InodeNr,
    slots: Box<[Slot]>,
    /// The directories among them.
    directories: Box<[Directory]>,
    is_plain: bool,
    files: Option<Range<PhysBlock>>,
}

impl Slots {
    pub(crate) fn new(first: InodeNr, slots: &[Slot], directories: &[Directory]) -> Self {
        Self {
            first,
            slots: slots.into(),
            directories: directories.into(),
            is_plain: slots.iter().all(|slot| slot.kind != Kind::Again),
            files: files_in(slots),
        }
    }

    /// If all are regular files with one link whose blocks follow each other, those blocks.
    pub(crate) fn files(&self) -> Option<&Range<PhysBlock>> {
        self.files.as_ref()
    }

    /// Has the inodes examined again that lie in a range of their block, in bytes.
    fn forget(&mut self, bytes: Range<u64>, inode_bytes: u64) {
        let (first, end) = (bytes.start / inode_bytes, bytes.end.div_ceil(inode_bytes));
        for (nth, slot) in (0..).zip(&mut self.slots) {
            if (first..end).contains(&nth) {
                *slot = Slot::AGAIN;
                self.is_plain = false;
                self.files = None;
            }
        }
    }

    /// Whether no inode must be examined.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// The places in the block from the first to the last inode that must be examined; empty if
    /// there is none.
    pub(crate) fn again(&self) -> Range<usize> {
        let is_again = |slot: &Slot| slot.kind == Kind::Again;
        let first = self.slots.iter().position(is_again);
        let last = self.slots.iter().rposition(is_again);
        first
            .zip(last)
            .map_or(0..0, |(first, last)| first..last + 1)
    }

    /// A directory, as pass 2 needs it.
    pub(crate) fn directory(&self, inode: InodeNr) -> Option<&Directory> {
        self.directories
            .iter()
            .find(|directory| directory.inode == inode)
    }

    /// The slot of an inode by its place in the block.
    pub(crate) fn get(&self, nth: usize) -> Option<Slot> {
        self.slots.get(nth).copied()
    }

    /// The numbers of the inodes.
    pub(crate) fn inodes(&self) -> Range<u64> {
        let first = u64::from(self.first.0);
        first..first + self.slots.len() as u64
    }

    /// The inodes and their slots, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (InodeNr, &Slot)> {
        (self.first.0..).map(InodeNr).zip(&self.slots)
    }
}

/// The blocks of inodes that are all regular files with one link, if they follow each other.
fn files_in(slots: &[Slot]) -> Option<Range<PhysBlock>> {
    let mut blocks = PhysBlock(0)..PhysBlock(0);
    for slot in slots {
        let run = slot.run();
        if slot.kind != Kind::Regular || slot.links != 1 {
            return None;
        } else if blocks.is_empty() {
            blocks = run;
        } else if run.start == blocks.end {
            blocks.end = run.end;
        } else if !run.is_empty() {
            return None;
        }
    }
    Some(blocks)
}

/// The place of a block of an inode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TablePlace {
    pub(crate) group: GroupNr,
    /// The first block of the table.
    pub(crate) table: PhysBlock,
    /// Which block of the table it is.
    pub(crate) nth: u32,
}

/// What is known of the inode table of a group.
#[derive(Debug, Default)]
struct Table {
    /// The first block of the table.
    start: PhysBlock,
    blocks: Vec<Option<Slots>>,
}

impl Table {
    /// The number of inodes of which something is kept.
    fn inodes(&self) -> usize {
        let known = self.blocks.iter().flatten();
        known.map(|slots| slots.slots.len()).sum()
    }

    /// Has the inodes examined again that lie in these ranges, in bytes, which are sorted.
    fn forget(&mut self, written: &[Range<u64>], block_bytes: u64, inode_bytes: u64) {
        let start = self.start.0 * block_bytes;
        let end = start + self.blocks.len() as u64 * block_bytes;
        let first = written.partition_point(|range| range.end <= start);
        let later = written.get(first..).unwrap_or(&[]).iter();
        for range in later.take_while(|range| range.start < end) {
            let (from, to) = (range.start.max(start) - start, range.end.min(end) - start);
            for nth in from / block_bytes..to.div_ceil(block_bytes) {
                let block = nth * block_bytes;
                let nth = usize::try_from(nth).unwrap_or(usize::MAX);
                if let Some(Some(slots)) = self.blocks.get_mut(nth) {
                    let within = from.max(block)..to.min(block + block_bytes);
                    slots.forget(within.start - block..within.end - block, inode_bytes);
                }
            }
        }
    }
}

/// What is remembered.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// By group.
    tables: Vec<Table>,
    inodes: usize,
    names: AllNames,
    superblock: Option<Box<RawSuperblock>>,
    block_bytes: u64,
    inode_bytes: u64,
    /// The blocks that are reserved for descriptors.
    reserved: Range<u64>,
    /// Whether anything may be remembered of this file system.
    is_on: bool,
    /// Whether nothing is remembered of any, for comparison.
    #[cfg(test)]
    is_off: bool,
}

impl Memory {
    /// One that remembers nothing.
    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self {
            is_off: true,
            ..Self::default()
        }
    }

    /// Prepares for a check of `volume`: forgets everything if another superblock is used than at
    /// the last check.
    pub(crate) fn meet(&mut self, volume: &Volume) {
        let superblock = without_counts(volume.sb.raw());
        self.is_on = !volume.ro_compat(RoCompat::BIGALLOC)
            && !volume.ro_compat(RoCompat::QUOTA)
            && volume.changes.is_empty();
        #[cfg(test)]
        {
            self.is_on &= !self.is_off;
        }
        if !self.is_on || self.superblock.as_deref() != Some(&superblock) {
            self.tables.clear();
            self.inodes = 0;
            self.names.clear();
        }
        self.superblock = Some(Box::new(superblock));
        self.block_bytes = volume.block_bytes() as u64;
        self.inode_bytes = volume.geometry().inode_size_bytes() as u64;
        let first = volume.geometry().primary_table().end.0;
        self.reserved = first..first + u64::from(volume.sb.reserved_gdt_blocks());
    }

    /// Whether slots are to be collected.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// What is known of the `count` inodes from `first` on, which lie in the block at `place`.
    pub(crate) fn slots(&self, place: TablePlace, first: InodeNr, count: usize) -> Option<&Slots> {
        let table = self.tables.get(place.group.0 as usize)?;
        let slots = table.blocks.get(place.nth as usize)?.as_ref()?;
        let is_of = slots.first == first && slots.slots.len() == count;
        (table.start == place.table && is_of).then_some(slots)
    }

    /// Remembers what is new.
    pub(crate) fn learn(&mut self, new: impl IntoIterator<Item = (TablePlace, Slots)>) {
        for (place, slots) in new {
            let (group, nth) = (place.group.0 as usize, place.nth as usize);
            if self.inodes + slots.slots.len() > MOST_INODES {
                return;
            }
            self.inodes += slots.slots.len();
            if self.tables.len() <= group {
                self.tables.resize_with(group + 1, Table::default);
            }
            let Some(table) = self.tables.get_mut(group) else {
                return;
            };
            if table.start != place.table {
                self.inodes -= table.inodes();
                table.start = place.table;
                table.blocks.clear();
            }
            if table.blocks.len() <= nth {
                table.blocks.resize_with(nth + 1, || None);
            }
            if let Some(block) = table.blocks.get_mut(nth)
                && let Some(old) = block.replace(slots)
            {
                self.inodes -= old.slots.len();
            }
        }
    }

    /// What is known of the names of a directory, which lies in these runs.
    pub(crate) fn names(&self, directory: &Directory, runs: &[Run]) -> Option<&Names> {
        self.names.get(directory, runs)
    }

    /// Remembers names that are new.
    pub(crate) fn learn_names(&mut self, new: impl IntoIterator<Item = Names>) {
        for names in new {
            self.names.learn(names);
        }
    }

    /// Forgets what lies in ranges that were written, in bytes.
    pub(crate) fn forget(&mut self, written: Vec<Range<u64>>) {
        // Before the first check nothing is known.
        if self.superblock.is_none() {
            return;
        }
        let size = self.block_bytes.max(1);
        let mut written = merged(written);
        if let Some(inode) = self.reserved_blocks_written(&written) {
            written.push(inode);
            written = merged(written);
        }
        for table in &mut self.tables {
            table.forget(&written, size, self.inode_bytes.max(1));
        }
        let blocks = written.iter();
        let blocks = blocks.map(|range| range.start / size..range.end.div_ceil(size));
        self.names.forget(&merged(blocks.collect()));
    }
}

impl Memory {
    /// Where the inode of reserved descriptor blocks lies, in bytes, if it is remembered and a
    /// block below it was written.
    fn reserved_blocks_written(&self, written: &[Range<u64>]) -> Option<Range<u64>> {
        let table = self.tables.first()?;
        let offset = u64::from(RESIZE_INODE.0 - 1) * self.inode_bytes;
        let nth = usize::try_from(offset / self.block_bytes.max(1)).ok()?;
        let mut slots = table.blocks.get(nth)?.as_ref()?.iter();
        let (_, slot) = slots.find(|(_, slot)| slot.kind == Kind::ReservedBlocks)?;
        let double = slot.first.0..slot.first.0 + 1;
        let is_written = |blocks: &Range<u64>| {
            let (start, end) = (
                blocks.start * self.block_bytes,
                blocks.end * self.block_bytes,
            );
            let next = written.partition_point(|range| range.end <= start);
            written.get(next).is_some_and(|range| range.start < end)
        };
        let start = table.start.0 * self.block_bytes + offset;
        let is_any = [&double, &self.reserved].into_iter().any(is_written);
        is_any.then_some(start..start + self.inode_bytes)
    }
}

/// The same numbers in ranges that are sorted and do not touch.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// A superblock without the fields that say nothing about an inode and that a repair sets.
fn without_counts(raw: &RawSuperblock) -> RawSuperblock {
    let mut raw = *raw;
    raw.s_free_blocks_count_lo = 0.into();
    raw.s_free_blocks_count_hi = 0.into();
    raw.s_free_inodes_count = 0.into();
    raw.s_state = 0.into();
    raw.s_checksum = 0.into();
    raw
}

#[cfg(test)]
mod tests;
