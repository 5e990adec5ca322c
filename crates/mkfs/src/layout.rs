//! **Purpose.** The layout of a file system: the place and content of every block of metadata,
//! known before anything is written.
//!
//! **Not here.** How the contents come about (`draft` and the modules of the files), and how they
//! are written (`write`).
//!
//! **Invariants.** The superblock of a [`Layout`] passes the checks of the reading side. Blocks
//! with content are taken in the space map, and no two structures share one.

use std::collections::BTreeMap;
use std::ops::Range;

use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::quota::QuotaUsage;
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::words::{high32, low32};
use fourscore_ondisk::{BlockCount, GroupNr, InodeNr, PhysBlock};

use crate::draft::LayoutDraft;
use crate::error::FormatResult;
use crate::hidden::{make_mmp_block, make_orphan_file, make_resize_inode};
use crate::inodes::reserve_inodes;
use crate::journal::{JournalSize, journal_size, make_journal};
use crate::options::{OldContent, Options, Owner};
use crate::profile::Profile;
use crate::quota::{QuotaFile, fill_quota_files, make_quota_files, root_usage};
use crate::root::make_root;
use crate::space::Space;
use crate::superblock::checked;
use crate::tables::GroupLayout;

/// The layout of a file system that is not written yet.
#[derive(Debug)]
pub struct Layout {
    pub(crate) superblock: Superblock,
    pub(crate) groups: Vec<GroupLayout>,
    pub(crate) space: Space,
    /// Inodes in use and reserved ones by number, sealed.
    pub(crate) inodes: BTreeMap<u32, Vec<u8>>,
    /// Content of blocks outside the fixed tables.
    pub(crate) blocks: BTreeMap<u64, Vec<u8>>,
    /// Blocks outside the inode tables that must read as zeroes.
    pub(crate) zero: Vec<Range<u64>>,
    pub(crate) old_content: OldContent,
    pub(crate) discard: bool,
    pub(crate) journal: Option<JournalSize>,
    requested_blocks: u64,
    root_owner: Owner,
}

/// The files of a layout that are in no directory.
pub(crate) struct HiddenFiles {
    /// The size of the journal inside the file system, if one is wanted.
    pub(crate) journal: Option<JournalSize>,
    /// Quota files, which are not filled yet.
    pub(crate) quota: Vec<QuotaFile>,
}

impl Layout {
    /// Computes the layout of a file system for a device of `len_bytes` bytes (a last part of a
    /// block is not used).
    ///
    /// # Errors
    /// All that can keep the file system from being made, except I/O.
    pub fn new(options: &Options, profile: &Profile, len_bytes: u64) -> FormatResult<Self> {
        let mut draft = LayoutDraft::new(&[], options, profile, len_bytes)?;
        // In the order in which mke2fs places files.
        let overhead = begin_files(&mut draft)?;
        make_root(&mut draft)?;
        let usage = root_usage(&draft);
        let hidden = make_hidden_files(&mut draft, overhead, &usage)?;
        fill_quota_files(&mut draft, &hidden.quota, &usage)?;
        finish(draft, hidden.journal)
    }

    /// The superblock of the new file system.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Blocks of the device that the file system will not use.
    #[must_use]
    pub fn unused_blocks(&self) -> BlockCount {
        BlockCount(self.requested_blocks - self.superblock.geometry().blocks().0)
    }

    /// The blocks of the journal, its fast-commit area included; 0 without one.
    #[must_use]
    pub fn journal_blocks(&self) -> BlockCount {
        BlockCount(self.journal.map_or(0, JournalSize::blocks))
    }

    /// Whether a wanted journal was left out because the file system is too small for one.
    #[must_use]
    pub fn is_too_small_for_a_journal(&self) -> bool {
        self.journal.is_some_and(|journal| journal.blocks() == 0)
    }

    /// Where backup superblocks will be.
    pub fn backups(&self) -> impl Iterator<Item = PhysBlock> {
        let geometry = self.superblock.geometry();
        let backups = geometry.groups_with_super().skip(1);
        backups.map(|group| geometry.group_first_block(group))
    }

    /// Where the inode table of a group begins.
    #[must_use]
    pub fn inode_table(&self, group: GroupNr) -> Option<PhysBlock> {
        let group = self.groups.get(group.0 as usize)?;
        Some(PhysBlock(group.inode_table))
    }

    /// The last inode in use. Inodes are used from the first on, without gaps.
    #[must_use]
    pub fn last_inode(&self) -> InodeNr {
        InodeNr(self.groups.iter().map(|group| group.used_inodes).sum())
    }

    /// Owner of the root directory.
    pub(crate) fn root_owner(&self) -> Owner {
        self.root_owner
    }
}

/// Prepares the layout for files. Returns the number of clusters that metadata takes so far.
pub(crate) fn begin_files(draft: &mut LayoutDraft) -> FormatResult<u64> {
    let cluster_log = draft.geometry().blocks_per_cluster_log();
    draft.space.use_clusters(cluster_log);
    let overhead = draft.metadata_blocks();
    draft.promise_zeroed_tables();
    reserve_inodes(draft)?;
    Ok(overhead.div_ceil(1 << cluster_log))
}

/// Makes the files that are in no directory, in the order in which mke2fs places them. Quota files
/// are placed for the identifiers in `usage`. `overhead` counts the clusters of other metadata.
pub(crate) fn make_hidden_files(
    draft: &mut LayoutDraft,
    mut overhead: u64,
    usage: &QuotaUsage,
) -> FormatResult<HiddenFiles> {
    let cluster_log = draft.geometry().blocks_per_cluster_log();
    if draft.raw.features().compat.contains(Compat::RESIZE_INODE) {
        make_resize_inode(draft)?;
    }
    let journal = journal_size(draft)?;
    if let Some(size) = journal {
        overhead += size.blocks().div_ceil(1 << cluster_log);
        make_journal(draft, size)?;
    }
    if draft.raw.features().incompat.contains(Incompat::MMP) {
        make_mmp_block(draft)?;
    }
    let first = draft.geometry().first_data_block().0;
    draft.raw.s_overhead_clusters = low32(overhead + first);
    let quota = match draft.raw.features().ro_compat.contains(RoCompat::QUOTA) {
        true => make_quota_files(draft, usage)?,
        false => Vec::new(),
    };
    if draft.raw.features().compat.contains(Compat::ORPHAN_FILE) {
        make_orphan_file(draft)?;
    }
    Ok(HiddenFiles { journal, quota })
}

/// Completes the counts of the superblock.
pub(crate) fn finish(mut draft: LayoutDraft, journal: Option<JournalSize>) -> FormatResult<Layout> {
    let geometry = *draft.geometry();
    let first = geometry.first_data_block().0;
    let free = draft.space.free_in(first..geometry.blocks().0);
    (
        draft.raw.s_free_blocks_count_lo,
        draft.raw.s_free_blocks_count_hi,
    ) = (low32(free), high32(free));
    let used: u32 = draft.groups.iter().map(|group| group.used_inodes).sum();
    draft.raw.s_free_inodes_count = (geometry.inodes() - used).into();
    let superblock = checked(&mut draft.raw)?;
    let owner = draft.p.options.root_owner.unwrap_or_default();
    Ok(Layout {
        superblock,
        groups: draft.groups,
        space: draft.space,
        inodes: draft.inodes,
        blocks: draft.blocks,
        zero: draft.zero,
        old_content: draft.p.options.old_content,
        discard: draft.p.discard,
        journal,
        requested_blocks: draft.p.blocks,
        root_owner: owner,
    })
}
