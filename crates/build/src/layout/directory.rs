//! **Purpose.** Decides the format and size of each directory, and encodes its blocks.
//!
//! **Not here.** The allocation of the blocks (`place`).
//!
//! **Model.** With `inline_data`, a directory that fits into its inode is stored there, except the
//! root and lost+found. Otherwise, a directory that fits into one block is a linear list of entries
//! in the order of names. A larger one is a hash tree if the file system has `dir_index`: all names
//! are hashed, sorted by hash and filled into leaves one after another, so no leaf is ever split.
//!
//! ```text
//!   block 0: root | index blocks of the lower levels, top level first | leaves in order of hash
//! ```
//!
//! The entries in the tree are reordered by hash when the blocks are counted, so that counting and
//! encoding process them in the same order and no other state is needed.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Hash Tree Directories".

use fourscore_ondisk::dirent::write::{LeafWriter, NewEntry};
use fourscore_ondisk::dirent::{DirFormat, Dots, EntryType};
use fourscore_ondisk::htree::edit::{Child, IndexMut, init_node, init_root};
use fourscore_ondisk::htree::{self, HtreeError, RootInfo};
use fourscore_ondisk::inline::edit::InlineDirMut;
use fourscore_ondisk::inline::{self, HEAD_BYTES, InlineDir, InlineError, InlineRoom};
use fourscore_ondisk::{InodeNr, InodeSeed, LogicalBlock};
use fourscore_sync::thread;

use super::facts::Facts;
use super::numbers::Numbers;
use crate::error::{BuildError, BuildResult};
use crate::tree::{Entry, NodeId, Tree};

/// Initial size of lost+found, so that e2fsck need not allocate blocks for it.
const LOST_AND_FOUND_BYTES: usize = 16 << 10;
/// Number of blocks that an inode maps without index blocks.
const DIRECT_BLOCKS: usize = 12;

/// The format and size of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// In its inode; `second_bytes` is the size of the part after `i_block`.
    Inline { second_bytes: u32 },
    /// A linear list of entries.
    Linear { blocks: u32 },
    /// A hash tree.
    Indexed { blocks: u32 },
}

impl Shape {
    pub(crate) fn blocks(self) -> u32 {
        match self {
            Self::Inline { .. } => 0,
            Self::Linear { blocks } | Self::Indexed { blocks } => blocks,
        }
    }

    /// The size in its inode.
    pub(crate) fn size_bytes(self, facts: &Facts) -> u64 {
        match self {
            Self::Inline { second_bytes } => HEAD_BYTES as u64 + u64::from(second_bytes),
            Self::Linear { blocks } | Self::Indexed { blocks } => {
                u64::from(blocks) << facts.block_bits
            }
        }
    }
}

/// Decides the format of all directories, given the free space in their inodes (by number of the
/// entry list), and reorders the entries of hash trees by hash. The result is by number of the
/// entry list.
pub(crate) fn shape_all(
    tree: &mut Tree,
    facts: &Facts,
    inline_rooms: &[Option<InlineRoom>],
    lost_and_found: Option<u32>,
    threads: usize,
) -> BuildResult<Vec<Shape>> {
    let (lists, arena) = tree.lists_mut();
    let part = lists.len().div_ceil(threads.max(1)).max(1);
    let name = |entry: &Entry| arena.get(entry.name);
    let shape_part = |first: usize, part: &mut [Vec<Entry>]| {
        let mut shapes = Vec::with_capacity(part.len());
        for (number, entries) in (first..).zip(part) {
            let room = inline_rooms.get(number).copied().flatten();
            let mut shape = shape(facts, room, entries, &name).ok_or(number)?;
            if lost_and_found.is_some_and(|own| own as usize == number)
                && let Shape::Linear { blocks } = &mut shape
            {
                let usual = LOST_AND_FOUND_BYTES.div_ceil(facts.block_bytes());
                let smallest = usual.clamp(2, DIRECT_BLOCKS);
                *blocks = (*blocks).max(u32::try_from(smallest).unwrap_or(2));
            }
            shapes.push(shape);
        }
        Ok(shapes)
    };
    let found: Vec<Result<Vec<Shape>, usize>> = thread::scope(|scope| {
        let parts = lists.chunks_mut(part).enumerate();
        let handles: Vec<_> = parts
            .map(|(index, lists)| scope.spawn(move || shape_part(index * part, lists)))
            .collect();
        let join = |handle: thread::ScopedJoinHandle<'_, _>| match handle.join() {
            Ok(shapes) => shapes,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        handles.into_iter().map(join).collect()
    });
    let mut shapes = Vec::new();
    for part in found {
        match part {
            Ok(part) => shapes.extend(part),
            Err(list) => {
                let path = tree.path_of_list(list);
                return Err(BuildError::DirectoryTooLarge { path });
            }
        }
    }
    Ok(shapes)
}

fn shape<'a>(
    facts: &Facts,
    inline_room: Option<InlineRoom>,
    entries: &mut [Entry],
    name: &impl Fn(&Entry) -> &'a [u8],
) -> Option<Shape> {
    let format = facts.dir_format(InodeNr::ROOT);
    let room = format.room_bytes(facts.block_bytes());
    let dots = dots_bytes(&format);
    let needed = |entry: &Entry| format.needed_bytes(name(entry));
    if let Some(room) = inline_room
        && let Some(second_bytes) = inline_second_bytes(entries.iter().map(needed), room)
    {
        return Some(Shape::Inline { second_bytes });
    }
    let bytes: usize = entries.iter().map(needed).sum();
    if dots + bytes <= room {
        return Some(Shape::Linear { blocks: 1 });
    }
    if !facts.dir_index {
        let blocks = chunks(entries, &needed, room, dots).count();
        let blocks = u32::try_from(blocks).ok()?;
        return Some(Shape::Linear { blocks });
    }
    entries.sort_by_cached_key(|entry| {
        let hash = facts.hasher.hash(name(entry));
        (hash.hash, hash.minor_hash)
    });
    let leaves = chunks(entries, &needed, room, 0).count();
    let levels = Levels::of(facts, &format, leaves)?;
    let blocks = u32::try_from(1 + levels.nodes() + leaves).ok()?;
    Some(Shape::Indexed { blocks })
}

/// Size of the second part of an inline directory, if it fits: the entries (given by their sizes)
/// that do not fit into the first part.
fn inline_second_bytes(mut entries: impl Iterator<Item = usize>, room: InlineRoom) -> Option<u32> {
    let most = room.most_bytes - HEAD_BYTES;
    let mut first = InlineDir::SECOND_AT;
    let second = entries.try_fold(0, |second, needed| match first.checked_sub(needed) {
        Some(left) => {
            first = left;
            Some(second)
        }
        None => Some(second + needed).filter(|&bytes| bytes <= most),
    });
    u32::try_from(second?).ok()
}

fn dots_bytes(format: &DirFormat) -> usize {
    format.needed_bytes(b".") + format.needed_bytes(b"..")
}

/// Splits entries into those of each block. The first block has `used` bytes less.
fn chunks<'e>(
    entries: &'e [Entry],
    needed: &impl Fn(&Entry) -> usize,
    room: usize,
    mut used: usize,
) -> impl Iterator<Item = &'e [Entry]> {
    let mut rest = entries;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut left = room - std::mem::take(&mut used);
        let fits = |entry: &&Entry| match left.checked_sub(needed(entry)) {
            Some(less) => {
                left = less;
                true
            }
            None => false,
        };
        let count = rest.iter().take_while(fits).count();
        let (now, later) = rest.split_at(count);
        rest = later;
        Some(now)
    })
}

/// The number of index blocks below the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Levels {
    /// Index blocks that refer to leaves; 0 if the root does.
    lower: usize,
    /// Index blocks between the root and the lower ones.
    upper: usize,
}

impl Levels {
    /// `None` if an index cannot refer to so many leaves.
    fn of(facts: &Facts, format: &DirFormat, leaves: usize) -> Option<Self> {
        let root = htree::root_limit(format, facts.block_bytes());
        let node = htree::node_limit(format, facts.block_bytes());
        let none = Self { lower: 0, upper: 0 };
        if leaves <= root {
            return Some(none);
        }
        let lower = leaves.div_ceil(node);
        if lower <= root {
            return Some(Self { lower, ..none });
        }
        let upper = lower.div_ceil(node);
        (facts.large_dir && upper <= root).then_some(Self { lower, upper })
    }

    fn nodes(self) -> usize {
        self.lower + self.upper
    }

    fn below_root(self) -> u8 {
        u8::from(self.lower > 0) + u8::from(self.upper > 0)
    }
}

/// A directory to be encoded.
pub(crate) struct Directory<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) facts: &'a Facts,
    pub(crate) numbers: &'a Numbers,
    pub(crate) node: NodeId,
    pub(crate) parent: InodeNr,
    pub(crate) shape: Shape,
}

impl Directory<'_> {
    /// Fills the two parts of an inline directory; the second has the size that was counted.
    pub(crate) fn fill_inline(
        &self,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Result<(), InlineError> {
        let format = self.facts.dir_format(self.numbers.inode(self.node));
        inline::edit::init(first, self.parent)?;
        inline::edit::grow_second(&format, second, 0)?;
        let mut parts = InlineDirMut::new(&format, first, second)?;
        for entry in self.tree.entries_of(self.node) {
            if let Some(new) = self.new_entry(entry) {
                let place = parts.insert(&new)?;
                debug_assert!(place.is_some(), "no space for {new:?}");
            }
        }
        Ok(())
    }

    /// Fills the blocks of the directory, overwriting `out`.
    pub(crate) fn fill(&self, out: &mut [u8]) {
        let own = self.numbers.inode(self.node);
        let format = self.facts.dir_format(own);
        let dots = Dots {
            own,
            parent: self.parent,
        };
        let entries = self.tree.entries_of(self.node);
        if matches!(self.shape, Shape::Indexed { .. }) {
            let filled = self.fill_indexed(&format, out, &dots, entries);
            // The blocks were counted before, and an index fits.
            debug_assert!(filled.is_ok(), "{filled:?}");
            return;
        }
        let needed = |entry: &Entry| format.needed_bytes(self.tree.entry_name(entry));
        let block_bytes = self.facts.block_bytes();
        let room = format.room_bytes(block_bytes);
        let mut parts = chunks(entries, &needed, room, dots_bytes(&format));
        for (index, block) in out.chunks_mut(block_bytes).enumerate() {
            let writer = match index {
                0 => LeafWriter::with_dots(&format, block, &dots),
                _ => LeafWriter::new(&format, block),
            };
            self.write_leaf(writer, parts.next().unwrap_or_default());
            seal(&format, block, DirFormat::seal);
        }
    }

    fn fill_indexed(
        &self,
        format: &DirFormat,
        out: &mut [u8],
        dots: &Dots,
        entries: &[Entry],
    ) -> Result<(), HtreeError> {
        let name = |entry: &Entry| self.tree.entry_name(entry);
        let hash = |entry: &Entry| self.facts.hasher.hash(name(entry)).hash;
        let needed = |entry: &Entry| format.needed_bytes(name(entry));
        let block_bytes = self.facts.block_bytes();
        let room = format.room_bytes(block_bytes);
        let parts = || chunks(entries, &needed, room, 0);
        let leaves = parts().count();
        let Some(levels) = Levels::of(self.facts, format, leaves) else {
            return Ok(());
        };
        let first_leaf = 1 + levels.nodes();
        // The key of each leaf: its lowest hash, with the lowest bit set if the previous leaf has
        // that hash too.
        let mut keys = Vec::with_capacity(leaves);
        let mut before = None;
        let blocks = out.chunks_mut(block_bytes).skip(first_leaf);
        for (block, part) in blocks.zip(parts()) {
            self.write_leaf(LeafWriter::new(format, block), part);
            seal(format, block, DirFormat::seal);
            let lowest = part.first().map_or(0, hash);
            keys.push(lowest | u32::from(before == Some(lowest)));
            before = part.last().map(hash);
        }
        let node = htree::node_limit(format, block_bytes);
        let (mut below, mut first_below) = (keys, first_leaf);
        for count in [levels.lower, levels.upper] {
            if count == 0 {
                continue;
            }
            let first = first_below - count;
            let parts = below.chunks(node).enumerate();
            for ((index, part), block) in parts.zip(out.chunks_mut(block_bytes).skip(first)) {
                let first = first_below + index * node;
                init_node(format, block, logical(first))?;
                put_entries(IndexMut::node(block)?, part, first)?;
                seal(format, block, htree::seal_node);
            }
            below = below
                .chunks(node)
                .filter_map(|part| part.first().copied())
                .collect();
            first_below = first;
        }
        if let Some(block) = out.chunks_mut(block_bytes).next() {
            let info = RootInfo {
                algorithm: self.facts.hash_algorithm,
                indirect_levels: levels.below_root(),
            };
            init_root(format, block, dots, info, logical(first_below))?;
            put_entries(IndexMut::root(block)?, &below, first_below)?;
            seal(format, block, htree::seal_root);
        }
        Ok(())
    }

    /// Writes the entries of one block.
    fn write_leaf(&self, mut writer: LeafWriter<'_>, entries: &[Entry]) {
        for entry in entries {
            let new = self.new_entry(entry);
            let written = new.is_some_and(|new| writer.append(&new));
            debug_assert!(written, "no space for {new:?}");
        }
        writer.finish();
    }

    fn new_entry(&self, entry: &Entry) -> Option<NewEntry<'_>> {
        let node = NodeId(entry.node);
        let kind = EntryType::from(self.tree.file_type(node));
        NewEntry::new(self.numbers.inode(node), self.tree.entry_name(entry), kind)
    }
}

/// Adds the entries of an index block except the first, which it has already.
fn put_entries(mut index: IndexMut<'_>, keys: &[u32], first: usize) -> Result<(), HtreeError> {
    for (block, &hash) in (first..).zip(keys).skip(1) {
        let block = logical(block);
        index.push(Child { hash, block })?;
    }
    Ok(())
}

/// Sets the checksum of a block, if the file system has checksums.
fn seal<E>(format: &DirFormat, block: &mut [u8], how: fn(&mut [u8], InodeSeed) -> Result<(), E>) {
    if let Some(seed) = format.seed {
        let sealed = how(block, seed);
        debug_assert!(sealed.is_ok(), "no space for a checksum");
    }
}

/// Counting has checked that the directory has at most 2^32 blocks.
fn logical(block: usize) -> LogicalBlock {
    LogicalBlock(u32::try_from(block).unwrap_or(u32::MAX))
}
