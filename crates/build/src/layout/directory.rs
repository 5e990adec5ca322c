//! **Purpose.** Directories in their final form: how many blocks each takes, and what is in them.
//!
//! **Not here.** Where the blocks lie (`place`), directories inside inodes.
//!
//! **Model.** A directory that fits one block is a chain of entries in the order of names. A larger
//! one is hashed where the file system has `dir_index`: all names are hashed, sorted by hash and
//! filled into leaves one after the other, so nothing is ever split.
//!
//! ```text
//! block 0: root | index blocks of the lower levels, top level first | leaves in order of hash
//! ```
//!
//! The order of entries in the tree is changed to that of the hashes when the blocks are counted,
//! so that counting and filling walk the same way and nothing else needs to be kept.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Hash Tree Directories".

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::dirent::{
    DirFormat, RawDirentHeader, RawTail, TAIL_BYTES, TAIL_FILE_TYPE, encode_rec_len,
};
use fourscore_ondisk::htree::{self, RawCountLimit, RawEntry, RawRootInfo};
use fourscore_ondisk::inode::FileType;
use fourscore_sync::thread;
use zerocopy::IntoBytes;

use super::facts::Facts;
use super::numbers::Numbers;
use crate::bytes::{low16, low32, put};
use crate::error::{BuildError, BuildResult};
use crate::tree::{Entry, NodeId, Tree};

/// What lost+found has from the start, so that e2fsck need not find blocks for it.
const LOST_AND_FOUND_BYTES: usize = 16 << 10;
/// Blocks that every inode can point to without index blocks.
const DIRECT_BLOCKS: usize = 12;
const HEADER_BYTES: usize = size_of::<RawDirentHeader>();
const DOTS_BYTES: usize = 24;
const ROOT_ENTRIES_AT: usize = 32;
const NODE_ENTRIES_AT: usize = 8;
const INDEX_ENTRY_BYTES: usize = size_of::<RawEntry>();

/// How many blocks a directory takes, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) blocks: u32,
    pub(crate) indexed: bool,
}

/// Counts the blocks of all directories, and puts the entries of hashed ones into the order of
/// their hashes. By the number of the list.
pub(crate) fn shape_all(
    tree: &mut Tree,
    facts: &Facts,
    lost_and_found: Option<NodeId>,
    threads: usize,
) -> BuildResult<Vec<Shape>> {
    let lost_and_found = lost_and_found.and_then(|node| tree.list_of(node));
    let (lists, arena) = tree.lists_mut();
    let part = lists.len().div_ceil(threads.max(1)).max(1);
    let name = |entry: &Entry| arena.get(entry.name);
    let shape_part = |first: usize, part: &mut [Vec<Entry>]| {
        let mut shapes = Vec::with_capacity(part.len());
        for (number, entries) in (first..).zip(part) {
            let mut shape = shape(facts, entries, &name).ok_or(number)?;
            if lost_and_found.is_some_and(|own| own as usize == number) && !shape.indexed {
                let usual = LOST_AND_FOUND_BYTES.div_ceil(facts.block_bytes());
                let least = usual.clamp(2, DIRECT_BLOCKS);
                shape.blocks = shape.blocks.max(u32::try_from(least).unwrap_or(2));
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

/// Bytes that an entry needs.
fn needed(name: &[u8]) -> usize {
    (HEADER_BYTES + name.len()).next_multiple_of(4)
}

impl Facts {
    /// Bytes for entries in a block.
    fn room(&self) -> usize {
        self.block_bytes() - if self.metadata_csum { TAIL_BYTES } else { 0 }
    }

    /// Entries of an index block that begin at a byte.
    fn index_limit(&self, at: usize) -> usize {
        let tail = if self.metadata_csum {
            size_of::<htree::RawTail>()
        } else {
            0
        };
        (self.block_bytes() - at - tail) / INDEX_ENTRY_BYTES
    }
}

fn shape<'a>(
    facts: &Facts,
    entries: &mut [Entry],
    name: &impl Fn(&Entry) -> &'a [u8],
) -> Option<Shape> {
    let bytes: usize = entries.iter().map(|entry| needed(name(entry))).sum();
    if DOTS_BYTES + bytes <= facts.room() {
        return Some(Shape {
            blocks: 1,
            indexed: false,
        });
    }
    if !facts.dir_index {
        let blocks = chunks(entries, name, facts.room(), DOTS_BYTES).count();
        let blocks = u32::try_from(blocks).ok()?;
        return Some(Shape {
            blocks,
            indexed: false,
        });
    }
    entries.sort_by_cached_key(|entry| {
        let hash = facts.hasher.hash(name(entry));
        (hash.hash, hash.minor_hash)
    });
    let leaves = chunks(entries, name, facts.room(), 0).count();
    let levels = Levels::of(facts, leaves)?;
    let blocks = u32::try_from(1 + levels.nodes() + leaves).ok()?;
    Some(Shape {
        blocks,
        indexed: true,
    })
}

/// The entries of each block when blocks are filled one after the other, the first of them with
/// `used` bytes gone.
fn chunks<'e, 'a>(
    entries: &'e [Entry],
    name: &impl Fn(&Entry) -> &'a [u8],
    room: usize,
    mut used: usize,
) -> impl Iterator<Item = &'e [Entry]> {
    let mut rest = entries;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut left = room - std::mem::take(&mut used);
        let fits = |entry: &&Entry| match left.checked_sub(needed(name(entry))) {
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

/// How many index blocks stand below the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Levels {
    /// Those that lead to leaves; 0 where the root does.
    lower: usize,
    /// Those between the root and the lower ones.
    upper: usize,
}

impl Levels {
    /// `None` for more leaves than an index can lead to.
    fn of(facts: &Facts, leaves: usize) -> Option<Self> {
        let root = facts.index_limit(ROOT_ENTRIES_AT);
        let node = facts.index_limit(NODE_ENTRIES_AT);
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

/// A directory to be written.
pub(crate) struct Directory<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) facts: &'a Facts,
    pub(crate) numbers: &'a Numbers,
    pub(crate) node: NodeId,
    pub(crate) parent: InodeNr,
    pub(crate) shape: Shape,
}

impl Directory<'_> {
    /// Fills the blocks of the directory, which are zeroes before.
    pub(crate) fn fill(&self, out: &mut [u8]) {
        let own = self.numbers.inode(self.node);
        let entries = self.tree.entries_of(self.node);
        let name = |entry: &Entry| self.tree.entry_name(entry);
        if self.shape.indexed {
            self.fill_indexed(out, own, entries);
            return;
        }
        let block_bytes = self.facts.block_bytes();
        let mut parts = chunks(entries, &name, self.facts.room(), DOTS_BYTES);
        for (index, block) in out.chunks_mut(block_bytes).enumerate() {
            let mut at = if index == 0 {
                self.put_dots(block, own, 12)
            } else {
                0
            };
            for entry in parts.next().unwrap_or_default() {
                at = self.put_entry(block, at, entry);
            }
            self.finish_block(block, at, own);
        }
    }

    fn fill_indexed(&self, out: &mut [u8], own: InodeNr, entries: &[Entry]) {
        let name = |entry: &Entry| self.tree.entry_name(entry);
        let hash = |entry: &Entry| self.facts.hasher.hash(name(entry)).hash;
        let block_bytes = self.facts.block_bytes();
        let parts = chunks(entries, &name, self.facts.room(), 0);
        let leaves = chunks(entries, &name, self.facts.room(), 0).count();
        let Some(levels) = Levels::of(self.facts, leaves) else {
            return;
        };
        let first_leaf = 1 + levels.nodes();
        // What leads to each leaf: its lowest hash, odd if the leaf before has that hash too.
        let mut keys = Vec::with_capacity(leaves);
        let mut before = None;
        let blocks = out.chunks_mut(block_bytes).skip(first_leaf);
        for (block, part) in blocks.zip(parts) {
            let end = part
                .iter()
                .fold(0, |at, entry| self.put_entry(block, at, entry));
            self.finish_block(block, end, own);
            let lowest = part.first().map_or(0, hash);
            keys.push(lowest | u32::from(before == Some(lowest)));
            before = part.last().map(hash);
        }
        let node = self.facts.index_limit(NODE_ENTRIES_AT);
        let (mut below, mut first_below) = (keys, first_leaf);
        for count in [levels.lower, levels.upper] {
            if count == 0 {
                continue;
            }
            let first = first_below - count;
            let parts = below.chunks(node).enumerate();
            for ((index, part), block) in parts.zip(out.chunks_mut(block_bytes).skip(first)) {
                self.put_node(block, part, first_below + index * node, own);
            }
            below = below
                .chunks(node)
                .filter_map(|part| part.first().copied())
                .collect();
            first_below = first;
        }
        if let Some(block) = out.chunks_mut(block_bytes).next() {
            self.put_root(block, &below, first_below, levels, own);
        }
    }

    /// `.` and `..`, the second with room for what follows up to `room` bytes; says where it ends.
    fn put_dots(&self, block: &mut [u8], own: InodeNr, room: usize) -> usize {
        let kind = FileType::Directory;
        self.put_record(block, 0, (own, b".", kind), 12);
        self.put_record(block, 12, (self.parent, b"..", kind), room);
        12 + room
    }

    fn put_entry(&self, block: &mut [u8], at: usize, entry: &Entry) -> usize {
        let node = NodeId(entry.node);
        let name = self.tree.entry_name(entry);
        let length = needed(name);
        let what = (self.numbers.inode(node), name, self.tree.file_type(node));
        self.put_record(block, at, what, length);
        at + length
    }

    fn put_record(
        &self,
        block: &mut [u8],
        at: usize,
        (inode, name, kind): (InodeNr, &[u8], FileType),
        length: usize,
    ) {
        let header = RawDirentHeader {
            inode: inode.0.into(),
            rec_len: rec_len(length, block.len()),
            // Names have at most 255 bytes.
            name_len: u8::try_from(name.len()).unwrap_or(u8::MAX),
            file_type: if self.facts.file_types {
                type_byte(kind)
            } else {
                0
            },
        };
        put(block, at, header.as_bytes());
        put(block, at + HEADER_BYTES, name);
    }

    /// Lets the last entry reach to the end of the room, or a free one fill an empty block, and
    /// seals.
    fn finish_block(&self, block: &mut [u8], end: usize, own: InodeNr) {
        let room = self.facts.room();
        let block_bytes = block.len();
        let last = last_record(block, end);
        let rest = rec_len(room - last, block_bytes);
        put(block, last + 4, rest.as_bytes());
        if self.facts.metadata_csum {
            let tail = RawTail {
                det_reserved_zero1: 0.into(),
                det_rec_len: 12.into(),
                det_reserved_zero2: 0,
                det_reserved_ft: TAIL_FILE_TYPE,
                det_checksum: 0.into(),
            };
            put(block, room, tail.as_bytes());
            // The tail is there.
            let _ = DirFormat::seal(block, self.facts.seed(own));
        }
    }

    fn put_root(&self, block: &mut [u8], keys: &[u32], first: usize, levels: Levels, own: InodeNr) {
        self.put_dots(block, own, block.len() - 12);
        let info = RawRootInfo {
            reserved_zero: 0.into(),
            hash_version: self.facts.hash_version,
            info_length: 8,
            indirect_levels: levels.below_root(),
            unused_flags: 0,
        };
        put(block, DOTS_BYTES, info.as_bytes());
        self.put_index(block, ROOT_ENTRIES_AT, keys, first);
        if self.facts.metadata_csum {
            // Counts and limits are in order.
            let _ = htree::seal_root(block, self.facts.seed(own));
        }
    }

    fn put_node(&self, block: &mut [u8], keys: &[u32], first: usize, own: InodeNr) {
        let length = rec_len(block.len(), block.len());
        put(block, 4, length.as_bytes());
        self.put_index(block, NODE_ENTRIES_AT, keys, first);
        if self.facts.metadata_csum {
            // Counts and limits are in order.
            let _ = htree::seal_node(block, self.facts.seed(own));
        }
    }

    /// The entries of an index block that lead to blocks from `first` on.
    fn put_index(&self, block: &mut [u8], at: usize, keys: &[u32], first: usize) {
        let head = RawCountLimit {
            limit: low16(self.facts.index_limit(at) as u64),
            count: low16(keys.len() as u64),
            block: low32(first as u64),
        };
        put(block, at, head.as_bytes());
        for (index, &key) in keys.iter().enumerate().skip(1) {
            let entry = RawEntry {
                hash: key.into(),
                block: low32((first + index) as u64),
            };
            put(block, at + index * INDEX_ENTRY_BYTES, entry.as_bytes());
        }
    }
}

/// Where the last record in front of `end` begins; 0 in an empty block.
fn last_record(block: &[u8], end: usize) -> usize {
    let (mut at, mut last) = (0, 0);
    while at < end {
        last = at;
        let length = match block.get(at + 4..at + 6) {
            Some(&[a, b]) => usize::from(u16::from_le_bytes([a, b])),
            _ => 0,
        };
        at += length.max(12);
    }
    last
}

fn rec_len(length: usize, block_bytes: usize) -> zerocopy::little_endian::U16 {
    encode_rec_len(length, block_bytes)
        .unwrap_or(u16::MAX)
        .into()
}

fn type_byte(kind: FileType) -> u8 {
    match kind {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::CharDevice => 3,
        FileType::BlockDevice => 4,
        FileType::Fifo => 5,
        FileType::Socket => 6,
        FileType::Symlink => 7,
    }
}
