//! **Purpose.** The journal inside the file system: its size, its place, and its superblock.
//!
//! **Not here.** Journals on a device of their own (`journal_device`, `external_journal`).

use fourscore_ondisk::features::Compat;
use fourscore_ondisk::jbd2::RawJournalSuperblock;
use fourscore_ondisk::words::{high32, low32, put};
use fourscore_ondisk::{BlockSize, GroupNr, InodeNr};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U32 as BigU32;

use crate::draft::LayoutDraft;
use crate::error::{FormatError, FormatResult};
use crate::inodes::{hidden_file, put_file};
use crate::mapping::map_journal;
use crate::options::JournalOptions;

/// The default size of a journal in blocks, for file systems of fewer blocks than the first number.
const JOURNAL_BLOCKS: [(u64, u64); 9] = [
    (2 << 10, 0),
    (32 << 10, 1 << 10),
    (256 << 10, 4 << 10),
    (512 << 10, 8 << 10),
    (4 << 20, 16 << 10),
    (8 << 20, 32 << 10),
    (16 << 20, 64 << 10),
    (32 << 20, 128 << 10),
    (u64::MAX, MOST_USUAL_JOURNAL_BLOCKS),
];
const MOST_USUAL_JOURNAL_BLOCKS: u64 = 256 << 10;

/// The blocks of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSize {
    /// Blocks of the log.
    pub log_blocks: u64,
    /// Blocks behind it for fast commits.
    pub fast_commit_blocks: u64,
}

impl JournalSize {
    /// The size of a journal in a file system of `blocks` blocks: what is wished, or what mke2fs
    /// makes by default, with space for fast commits if it has the feature `fast_commit`. `None` if
    /// the file system is too small for one. Whether a size that is wished is possible is not
    /// checked.
    #[must_use]
    pub fn of(
        wish: &JournalOptions,
        blocks: u64,
        block_size: BlockSize,
        features: Compat,
    ) -> Option<Self> {
        let fast_commit = features.contains(Compat::FAST_COMMIT);
        let usual = JOURNAL_BLOCKS.iter().find(|(below, _)| blocks < *below);
        let log_blocks = usual.map_or(MOST_USUAL_JOURNAL_BLOCKS, |&(_, usual)| usual);
        if log_blocks == 0 {
            return None;
        }
        let mut size = Self {
            log_blocks,
            fast_commit_blocks: if fast_commit { log_blocks / 64 } else { 0 },
        };
        let blocks = |kib: u64| (kib << 10) >> block_size.bits();
        if let Some(mib) = wish.size_mib.filter(|&mib| mib > 0) {
            size.log_blocks = blocks(u64::from(mib) << 10);
        }
        let fast_commit_wish = wish.fast_commit_size_kib.filter(|&kib| kib > 0);
        if let Some(kib) = fast_commit_wish.filter(|_| fast_commit) {
            size.fast_commit_blocks = blocks(kib.into());
        }
        Some(size)
    }

    /// All blocks of the journal.
    pub(crate) fn blocks(self) -> u64 {
        self.log_blocks + self.fast_commit_blocks
    }
}

/// The size of the journal inside the file system; `None` if none is wanted, 0 blocks if the file
/// system is too small for the one that is wanted.
pub(crate) fn journal_size(draft: &LayoutDraft) -> FormatResult<Option<JournalSize>> {
    let features = draft.raw.features().compat;
    if !features.contains(Compat::HAS_JOURNAL) || draft.p.options.external_journal.is_some() {
        return Ok(None);
    }
    let fast_commit = features.contains(Compat::FAST_COMMIT);
    let wish = draft.p.journal;
    let blocks = draft.geometry().blocks().0;
    let block_size = draft.geometry().block_size();
    let Some(size) = JournalSize::of(&wish, blocks, block_size, features) else {
        return Ok(Some(JournalSize {
            log_blocks: 0,
            fast_commit_blocks: 0,
        }));
    };
    let fast_commit_wish = wish
        .fast_commit_size_kib
        .filter(|&kib| fast_commit && kib > 0);
    let log_wish = wish.size_mib.filter(|&mib| mib > 0);
    if log_wish.is_some() || fast_commit_wish.is_some() {
        let found = size.blocks();
        if !(1024..=10_240_000).contains(&found) {
            let why = format!("{found} blocks are not from 1024 to 10240000");
            return Err(FormatError::option("-J size", why));
        }
        let free = blocks_for_files(draft);
        if found > free / 2 {
            let why = format!("{found} blocks are over half of the {free} free ones");
            return Err(FormatError::option("-J size", why));
        }
    }
    Ok(Some(size))
}

/// The blocks of which a journal may take half: all but superblocks and descriptors, and without
/// flex groups all but bitmaps and inode tables, as mke2fs counts.
fn blocks_for_files(draft: &LayoutDraft) -> u64 {
    let geometry = draft.geometry();
    let groups = (0..geometry.groups()).map(GroupNr);
    let base: u64 = groups
        .map(|group| u64::from(geometry.base_meta_blocks(group)))
        .sum();
    let tables = match draft.raw.s_log_groups_per_flex {
        0 => u64::from(geometry.groups()) * (2 + u64::from(geometry.inode_table_blocks())),
        _ => 0,
    };
    let all = geometry.blocks().0 - geometry.first_data_block().0;
    all.saturating_sub(base + tables)
}

/// Makes the journal: its blocks, its superblock, and the copy of its block map in the superblock
/// of the file system. A journal of 0 blocks is left out.
pub(crate) fn make_journal(draft: &mut LayoutDraft, size: JournalSize) -> FormatResult<()> {
    if size.blocks() == 0 {
        let features = draft.raw.features().compat - Compat::HAS_JOURNAL;
        draft.raw.s_feature_compat = features.bits().into();
        return Ok(());
    }
    let wish = draft.p.journal.location;
    let wish = wish.map(|place| place.blocks(draft.geometry().block_size()));
    // Behind earlier data it is in one piece.
    let goal = wish.or_else(|| draft.end_of_earlier_data());
    let goal = goal.unwrap_or_else(|| middle(draft));
    let number = InodeNr::JOURNAL.0;
    let mapped = map_journal(draft, number, goal, size.blocks())?;
    let block_size = draft.geometry().block_size();
    let Ok(blocks) = u32::try_from(size.blocks()) else {
        return Err(FormatError::option("-J size", "over 2^32 blocks"));
    };
    let mut raw = RawJournalSuperblock::new(block_size, blocks, draft.id.uuid);
    raw.s_num_fc_blks = BigU32::new(low32(size.fast_commit_blocks).get());
    let mut content = vec![0; block_size.bytes()];
    put(&mut content, 0, raw.as_bytes());
    draft.blocks.insert(mapped.blocks[0], content);

    let size_bytes = size.blocks() << block_size.bits();
    for (word, bytes) in draft
        .raw
        .s_jnl_blocks
        .iter_mut()
        .zip(mapped.i_block.chunks(4))
    {
        if let &[a, b, c, d] = bytes {
            *word = u32::from_le_bytes([a, b, c, d]).into();
        }
    }
    draft.raw.s_jnl_blocks[15] = high32(size_bytes);
    draft.raw.s_jnl_blocks[16] = low32(size_bytes);
    draft.raw.s_jnl_backup_type = 1;
    draft.raw.s_journal_inum = number.into();
    let file = hidden_file(draft, size_bytes, mapped);
    put_file(draft, number, &file)
}

/// The goal for the journal: the start of the group with more free space, of one or two groups in
/// the middle of the file system, so that seeks to the journal are short.
fn middle(draft: &LayoutDraft) -> u64 {
    let geometry = draft.geometry();
    let groups = geometry.groups();
    let first = geometry.first_data_block().0;
    let half = (geometry.blocks().0 - first) / 2;
    let per_group = u64::from(geometry.blocks_per_group());
    // Groups have 32-bit numbers.
    let group_of_half = u32::try_from(half.saturating_sub(first) / per_group).unwrap_or(0);
    let free = |group: u32| {
        let blocks = geometry.group_blocks(GroupNr(group));
        draft.space.free_in(blocks.start.0..blocks.end.0)
    };
    let flex = 1u32
        .checked_shl(draft.raw.s_log_groups_per_flex.into())
        .unwrap_or(0);
    let mut group = group_of_half;
    let start = if flex > 1 && group > flex {
        group &= !(flex - 1);
        group = (group..groups).find(|&group| free(group) > 0).unwrap_or(0);
        group
    } else {
        group.saturating_sub(1)
    };
    let end = (group + 1).min(groups - 1);
    let mut best = start;
    for candidate in start + 1..=end {
        if free(candidate) > free(best) {
            best = candidate;
        }
    }
    geometry.group_first_block(GroupNr(best)).0
}
