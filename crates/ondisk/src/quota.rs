//! **Purpose.** Quota files: how many inodes and bytes each user, group and project uses, as the
//! kernel's quota format `vfsv1` stores it.
//!
//! | module | responsibility |
//! |---|---|
//! | `entry` | the entry of an identifier: usage, limits, and when grace times end |
//! | `insert` | adds an identifier to a file that exists |
//! | `remove` | removes one |
//! | `usage` | what objects use, added up by user, group and project |
//!
//! **Not here.** Where the blocks of a quota file are; whether limits are kept.
//!
//! **Model.** A quota file consists of blocks of 1 KiB, whatever the block size of the file system.
//! Block 0 holds the header, block 1 the root of a tree of four levels with 256 pointers in each
//! node. The bytes of the identifier, highest first, choose the pointers; the lowest level points
//! to a block of entries, in which the entry with the identifier is searched.
//!
//! ```text
//! 0: header | 1: root of the tree | lower nodes and blocks of entries, as identifiers need them
//! ```
//!
//! How many blocks a file has follows from the identifiers alone, so that it can be placed before
//! it is known what they use ([`count_blocks`]).
//!
//! **Invariants.** [`write()`] fills each block of entries before it begins the next one. If the
//! last one has free entries, the header names it as the head of the list of such blocks. [`read`]
//! ends whatever the blocks hold: it reads each node and each block of entries once.
//!
//! **References.** `Documentation/filesystems/quota.rst` of the kernel; structures of revision 1
//! (`v2r1`) and of the quota tree (`qt_disk_dqdbheader`).

use std::collections::{BTreeMap, HashMap, HashSet};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::words::put;

mod entry;
mod insert;
mod remove;
mod usage;

pub use entry::{ENTRY_BYTES, QuotaEntry, QuotaLimits};
pub use insert::{Change, EntryAt, InsertError, Insertion, insert, look_up};
pub use remove::remove;
pub use usage::{QuotaCounts, QuotaIds, QuotaUsage};

/// The size of a block of a quota file.
pub const QUOTA_BLOCK_BYTES: usize = 1024;
/// The root of the tree.
const ROOT_BLOCK: u32 = 1;
/// Header and root of the tree.
const FIRST_BLOCKS: usize = 2;
/// Levels of nodes above the blocks of entries.
const TREE_LEVELS: u32 = 4;
const ENTRIES_PER_BLOCK: usize =
    (QUOTA_BLOCK_BYTES - size_of::<RawEntriesHeader>()) / size_of::<RawEntry>();
/// The newest revision of the format.
const VERSION: u32 = 1;
/// How long a soft limit may be exceeded: a week.
const GRACE_SECONDS: u32 = 604_800;

/// What the identifiers of a quota file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuotaKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaKind {
    /// All kinds, in the order of their numbers in the kernel.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// `dqh_magic` of a file of this kind.
    fn magic(self) -> u32 {
        match self {
            Self::User => 0xd9c0_1f11,
            Self::Group => 0xd9c0_1927,
            Self::Project => 0xd9c0_3f14,
        }
    }
}

/// What is wrong with a quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaFileError {
    /// There is no header.
    NoHeader,
    /// `dqh_magic` is not that of the kind.
    Magic,
    /// `dqh_version` is of the future.
    Version,
    /// `dqi_blocks` is larger than the file.
    Blocks,
    /// Two pointers refer to one node.
    SharedNode,
    /// A pointer refers to a block that cannot be read.
    Pointer,
    /// A pointer refers to a block of entries without the one of its identifier.
    NotPresent,
    /// The header of a block of entries does not count those that are in use.
    EntryCount,
}

impl QuotaFileError {
    /// What is wrong, as the end of a sentence about the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoHeader => "it has no header",
            Self::Magic => "its magic number is wrong",
            Self::Version => "its version is not known",
            Self::Blocks => "its header counts more blocks than it has",
            Self::SharedNode => "two pointers of its tree refer to the same node",
            Self::Pointer => "its tree refers to a block outside the file",
            Self::NotPresent => "its tree refers to an entry that is not there",
            Self::EntryCount => "a block of entries counts more or fewer than it has",
        }
    }
}

/// What the header of a quota file says about grace times, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraceTimes {
    /// How long the soft limit of space may be exceeded.
    pub space: u32,
    /// How long the soft limit of inodes may be exceeded.
    pub inodes: u32,
}

/// The header of the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawQuotaHeader {
    /// 0x0: which kind of file it is.
    dqh_magic: U32,
    /// 0x4: the revision of the format.
    dqh_version: U32,
    /// 0x8: how long the soft limit of blocks may be exceeded, in seconds.
    dqi_bgrace: U32,
    /// 0xC: the same of inodes.
    dqi_igrace: U32,
    /// 0x10.
    dqi_flags: U32,
    /// 0x14: blocks of the file.
    dqi_blocks: U32,
    /// 0x18: the first free block; 0 for none.
    dqi_free_blk: U32,
    /// 0x1C: the first block with free entries; 0 for none.
    dqi_free_entry: U32,
}

/// The header of a block of entries.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntriesHeader {
    /// 0x0: the next block with free entries.
    dqdh_next_free: U32,
    /// 0x4: the one before.
    dqdh_prev_free: U32,
    /// 0x8: entries in use.
    dqdh_entries: U16,
    /// 0xA.
    dqdh_pad1: U16,
    /// 0xC.
    dqdh_pad2: U32,
}

/// An entry.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    /// 0x0: the identifier.
    dqb_id: U32,
    /// 0x4.
    dqb_pad: U32,
    /// 0x8: limits of inodes.
    dqb_ihardlimit: U64,
    dqb_isoftlimit: U64,
    /// 0x18: inodes.
    dqb_curinodes: U64,
    /// 0x20: limits of space.
    dqb_bhardlimit: U64,
    dqb_bsoftlimit: U64,
    /// 0x30: space in bytes.
    dqb_curspace: U64,
    /// 0x38: when the soft limits will have been exceeded too long.
    dqb_btime: U64,
    dqb_itime: U64,
}

const _: () = {
    assert!(size_of::<RawQuotaHeader>() == 32);
    assert!(size_of::<RawEntriesHeader>() == 16);
    assert!(size_of::<RawEntry>() == 72);
    assert!(std::mem::offset_of!(RawEntry, dqb_curinodes) == 24);
    assert!(std::mem::offset_of!(RawEntry, dqb_curspace) == 48);
    assert!(std::mem::offset_of!(RawEntriesHeader, dqdh_entries) == 8);
};

/// The number of blocks of 1 KiB of a file with entries for these identifiers, in rising order.
pub fn count_blocks(ids: impl IntoIterator<Item = u32>) -> usize {
    let (mut nodes, mut entries) = (0, 0);
    let mut before: Option<u32> = None;
    for id in ids {
        debug_assert!(before < Some(id), "identifiers rise");
        // Nodes on the path to this entry that are not on the path to the one before.
        let shared = before.map_or(0, |before| (before ^ id).leading_zeros() / 8);
        nodes += 3 - shared.min(3) as usize;
        entries += 1_usize;
        before = Some(id);
    }
    FIRST_BLOCKS + nodes + entries.div_ceil(ENTRIES_PER_BLOCK)
}

/// The content of a quota file without limits.
#[must_use]
pub fn write(kind: QuotaKind, usage: &BTreeMap<u32, QuotaCounts>) -> Vec<u8> {
    let mut file = vec![0; FIRST_BLOCKS * QUOTA_BLOCK_BYTES];
    let mut entries_block = 0;
    for (index, (&id, counts)) in usage.iter().enumerate() {
        let [a, b, c, last] = id.to_be_bytes();
        let node = [a, b, c]
            .into_iter()
            .fold(ROOT_BLOCK, |node, slot| child(&mut file, node, slot));
        let position = index % ENTRIES_PER_BLOCK;
        if position == 0 {
            entries_block = child(&mut file, node, last);
        }
        put(&mut file, slot_at(node, last), &entries_block.to_le_bytes());
        let block = entries_block as usize * QUOTA_BLOCK_BYTES;
        if let Some((header, _)) = file
            .get_mut(block..)
            .and_then(|bytes| RawEntriesHeader::mut_from_prefix(bytes).ok())
        {
            header.dqdh_entries = crate::words::low16(position as u64 + 1);
        }
        let entry = RawEntry {
            dqb_id: id.into(),
            dqb_curinodes: counts.inodes.into(),
            dqb_curspace: counts.bytes.into(),
            ..RawEntry::default()
        };
        let at = block + size_of::<RawEntriesHeader>() + position * size_of::<RawEntry>();
        put(&mut file, at, entry.as_bytes());
    }
    let is_full = usage.len().is_multiple_of(ENTRIES_PER_BLOCK);
    let header = RawQuotaHeader {
        dqh_magic: kind.magic().into(),
        dqh_version: VERSION.into(),
        dqi_bgrace: GRACE_SECONDS.into(),
        dqi_igrace: GRACE_SECONDS.into(),
        dqi_flags: 0.into(),
        dqi_blocks: block_count(&file).into(),
        dqi_free_blk: 0.into(),
        dqi_free_entry: if is_full { 0 } else { entries_block }.into(),
    };
    put(&mut file, 0, header.as_bytes());
    file
}

/// The block that a pointer of a node refers to; a new one where the pointer is 0.
fn child(file: &mut Vec<u8>, node: u32, slot: u8) -> u32 {
    let at = slot_at(node, slot);
    match word(file, at) {
        0 => {
            let new = block_count(file);
            file.resize(file.len() + QUOTA_BLOCK_BYTES, 0);
            put(file, at, &new.to_le_bytes());
            new
        }
        found => found,
    }
}

/// Where a pointer of a node is in the file.
fn slot_at(node: u32, slot: u8) -> usize {
    node as usize * QUOTA_BLOCK_BYTES + usize::from(slot) * 4
}

/// The blocks of a file that is in memory.
fn block_count(file: &[u8]) -> u32 {
    u32::try_from(file.len() / QUOTA_BLOCK_BYTES).unwrap_or(u32::MAX)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

/// Checks the first block of a quota file of `blocks` blocks of 1 KiB, and returns its grace times.
///
/// # Errors
/// What is wrong with it.
pub fn check_header(
    kind: QuotaKind,
    blocks: u32,
    first_block: &[u8],
) -> Result<GraceTimes, QuotaFileError> {
    let (header, _) =
        RawQuotaHeader::ref_from_prefix(first_block).map_err(|_| QuotaFileError::NoHeader)?;
    if header.dqh_magic.get() != kind.magic() {
        return Err(QuotaFileError::Magic);
    }
    if header.dqh_version.get() > VERSION {
        return Err(QuotaFileError::Version);
    }
    if header.dqi_blocks.get() > blocks {
        return Err(QuotaFileError::Blocks);
    }
    Ok(GraceTimes {
        space: header.dqi_bgrace.get(),
        inodes: header.dqi_igrace.get(),
    })
}

/// Stores grace times in the first block of a quota file.
pub fn put_grace_times(first_block: &mut [u8], times: GraceTimes) {
    if let Ok((header, _)) = RawQuotaHeader::mut_from_prefix(first_block) {
        header.dqi_bgrace = times.space.into();
        header.dqi_igrace = times.inodes.into();
    }
}

/// Reads a quota file of `blocks` blocks of 1 KiB: what each identifier uses. `read_block` returns
/// a block of the file, `None` for one that cannot be read.
///
/// # Errors
/// The first thing that is wrong.
pub fn read(
    kind: QuotaKind,
    blocks: u32,
    read_block: &mut dyn FnMut(u32) -> Option<[u8; QUOTA_BLOCK_BYTES]>,
) -> Result<BTreeMap<u32, QuotaCounts>, QuotaFileError> {
    let entries = read_entries(kind, blocks, read_block)?;
    let counts = entries.into_iter().map(|(id, entry)| (id, entry.counts));
    Ok(counts.collect())
}

/// As [`read`], with limits and the ends of grace times.
///
/// # Errors
/// As [`read`].
pub fn read_entries(
    kind: QuotaKind,
    blocks: u32,
    read_block: &mut dyn FnMut(u32) -> Option<[u8; QUOTA_BLOCK_BYTES]>,
) -> Result<BTreeMap<u32, QuotaEntry>, QuotaFileError> {
    let mut reader = Reader {
        blocks,
        read_block,
        nodes: HashSet::new(),
        read: HashSet::new(),
        found: HashMap::new(),
        entries: BTreeMap::new(),
    };
    let header = reader.block(0).ok_or(QuotaFileError::NoHeader)?;
    check_header(kind, blocks, &header)?;
    reader.descend(ROOT_BLOCK, TREE_LEVELS, 0)?;
    Ok(reader.entries)
}

/// A quota file that is read block by block.
struct Reader<'a> {
    blocks: u32,
    read_block: &'a mut dyn FnMut(u32) -> Option<[u8; QUOTA_BLOCK_BYTES]>,
    /// The nodes that were read.
    nodes: HashSet<u32>,
    /// The blocks of entries that were read.
    read: HashSet<u32>,
    /// What is in them, by block and identifier.
    found: HashMap<(u32, u32), QuotaEntry>,
    /// What the tree leads to.
    entries: BTreeMap<u32, QuotaEntry>,
}

impl Reader<'_> {
    fn block(&mut self, number: u32) -> Option<[u8; QUOTA_BLOCK_BYTES]> {
        if number >= self.blocks {
            return None;
        }
        (self.read_block)(number)
    }

    /// Reads a node with all that is below it. `first` has the bytes of identifiers that led to it.
    fn descend(&mut self, number: u32, level: u32, first: u32) -> Result<(), QuotaFileError> {
        if !self.nodes.insert(number) {
            return Err(QuotaFileError::SharedNode);
        }
        let bytes = self.block(number).ok_or(QuotaFileError::Pointer)?;
        for (last, at) in (0..).zip((0..QUOTA_BLOCK_BYTES).step_by(4)) {
            let id = first << 8 | last;
            match (word(&bytes, at), level) {
                (0, _) => {}
                (child, ..=1) => self.take(child, id)?,
                (child, level) => self.descend(child, level.saturating_sub(1), id)?,
            }
        }
        Ok(())
    }

    /// Takes the entry of `id` from a block of entries.
    fn take(&mut self, number: u32, id: u32) -> Result<(), QuotaFileError> {
        if self.read.insert(number) {
            let bytes = self.block(number).ok_or(QuotaFileError::Pointer)?;
            self.read_entries(number, &bytes);
        }
        let entry = self.found.remove(&(number, id));
        self.entries
            .insert(id, entry.ok_or(QuotaFileError::NotPresent)?);
        Ok(())
    }

    fn read_entries(&mut self, number: u32, block: &[u8]) {
        let entries = block.get(size_of::<RawEntriesHeader>()..).unwrap_or(&[]);
        for bytes in entries.chunks_exact(size_of::<RawEntry>()) {
            if bytes.iter().all(|&byte| byte == 0) {
                continue;
            }
            if let Some((id, entry)) = QuotaEntry::of(bytes) {
                self.found.insert((number, id), entry);
            }
        }
    }
}

#[cfg(test)]
mod tests;
