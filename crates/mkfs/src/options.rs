//! **Purpose.** What a user may ask of a new file system, typed.
//!
//! **Not here.** Options as text (`text`), what is taken where nothing was asked (`profile`),
//! whether the wishes go together (`resolve`).

use std::ops::RangeInclusive;
use std::path::PathBuf;

use fourscore_ondisk::BlockSize;
use fourscore_ondisk::superblock::{CreatorOs, ErrorPolicy};
use uuid::Uuid;

use crate::external_journal::ExternalJournal;

/// What the blocks of the device hold before anything is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldContent {
    /// Anything: whatever must be zero is written.
    #[default]
    Unknown,
    /// Anything, but what is discarded reads as zeroes, as in an image file.
    ZeroAfterDiscard,
    /// Zeroes, as in a file just made (`-E assume_storage_prezeroed`).
    AllZero,
}

/// `-b`: the block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSizeWish {
    /// This one.
    Exactly(BlockSize),
    /// The usual one, but not below this (`-b` with a negative number).
    AtLeast(BlockSize),
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is.
    Yes,
    /// It is not.
    No,
}

impl Choice {
    pub(crate) fn is_yes(self) -> bool {
        self == Self::Yes
    }
}

impl From<bool> for Choice {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// A size or place that may be given before the block size is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// In blocks.
    Blocks(u64),
    /// In bytes; a rest that fills no block does not count.
    Bytes(u64),
}

impl Amount {
    pub(crate) fn blocks(self, block_size: BlockSize) -> u64 {
        match self {
            Self::Blocks(blocks) => blocks,
            Self::Bytes(bytes) => bytes >> block_size.bits(),
        }
    }
}

/// `-J`: the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalOptions {
    /// `size`: the journal without its fast-commit area, in MiB.
    pub size_mib: Option<u32>,
    /// `fast_commit_size`: the fast-commit area behind it, in KiB.
    pub fast_commit_size_kib: Option<u32>,
    /// `location`: the block from which on the journal is placed; without effect with
    /// `packed_meta_blocks`.
    pub location: Option<Amount>,
}

/// `-E quotatype`: which quota files are made with the feature `quota`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaTypes {
    /// Per user.
    pub user: bool,
    /// Per group.
    pub group: bool,
    /// Per project.
    pub project: bool,
}

impl Default for QuotaTypes {
    fn default() -> Self {
        Self {
            user: true,
            group: true,
            project: false,
        }
    }
}

/// Who owns the root directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// What is asked of a new file system. `None` leaves the choice to the profile, as mke2fs does.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `-t`: the section of the profile: `ext2`, `ext3`, `ext4` (the default).
    pub fs_type: Option<String>,
    /// `-T`: sections of the profile for a use, separated by commas; by size when not given.
    pub usage: Option<String>,
    /// `-O`: features to set, or with `^` in front to clear, separated by commas.
    pub features: Option<String>,
    /// `-b`.
    pub block_size: Option<BlockSizeWish>,
    /// `-C`: the cluster size in bytes, with `bigalloc`.
    pub cluster_size_bytes: Option<u32>,
    /// `-g`: blocks (with `bigalloc` clusters) in a group: a multiple of 8.
    pub blocks_per_group: Option<u32>,
    /// `-G`: groups in a flex group: a power of two.
    pub groups_per_flex: Option<u32>,
    /// `-i`: bytes of space for each inode.
    pub inode_ratio_bytes: Option<u32>,
    /// `-N`: inodes, if that many are wanted.
    pub inodes: Option<u64>,
    /// `-I`: the size of an inode in bytes.
    pub inode_size_bytes: Option<u32>,
    /// `-j`: a journal even where the profile has none. `-J size` asks for one as well.
    pub with_journal: bool,
    /// `-J`.
    pub journal: JournalOptions,
    /// `-J device`: where the journal is, if on a device of its own. For the caller, who opens it
    /// and hands in [`external_journal`](Self::external_journal); only remembered here.
    pub journal_device: Option<PathBuf>,
    /// The journal on a device of its own. The caller also enters the file system there
    /// ([`ExternalJournal::add_user`]).
    pub external_journal: Option<ExternalJournal>,
    /// `-L`: at most 16 bytes.
    pub label: Vec<u8>,
    /// `-M`: where it was last mounted; at most 64 bytes.
    pub last_mounted: Vec<u8>,
    /// `-m`: percent of the blocks kept for the super-user, 0 to 50.
    pub reserved_percent: Option<f64>,
    /// `-U`: random when not given.
    pub uuid: Option<Uuid>,
    /// `-E hash_seed`: random when not given.
    pub hash_seed: Option<Uuid>,
    /// `-e`.
    pub errors: Option<ErrorPolicy>,
    /// `-o`.
    pub creator_os: Option<CreatorOs>,
    /// `-r`: 0 or 1.
    pub revision: Option<u32>,
    /// All times in the file system, in seconds since 1970; now when not given.
    pub time_seconds: Option<u64>,
    /// `-E stride`: blocks on one disk of an array before the next.
    pub stride_blocks: Option<u32>,
    /// `-E stripe_width`: blocks over all data disks.
    pub stripe_width_blocks: Option<u32>,
    /// `-E resize`: the size up to which it can grow while mounted.
    pub resize: Option<Amount>,
    /// `-E desc_size`: the size of a group descriptor with `64bit`.
    pub desc_size_bytes: Option<u16>,
    /// `-E num_backup_sb`: backup superblocks with `sparse_super2`: 0 to 2.
    pub backup_superblocks: Option<u8>,
    /// `-E packed_meta_blocks`: all tables and the journal at the start.
    pub packed_meta_blocks: Option<Choice>,
    /// `-E lazy_itable_init`: leave inode tables that nobody uses to the kernel.
    pub lazy_itable_init: Option<Choice>,
    /// `-E lazy_journal_init`: leave the journal's old content.
    pub lazy_journal_init: Option<Choice>,
    /// `-E discard`, `-E nodiscard`.
    pub discard: Option<Choice>,
    /// `-E mmp_update_interval`, in seconds.
    pub mmp_update_interval_seconds: Option<u16>,
    /// What the MMP block names as host and as device; at most 64 and 32 bytes.
    pub mmp_names: (Vec<u8>, Vec<u8>),
    /// `-E root_owner`: user and group 0 when not given.
    pub root_owner: Option<Owner>,
    /// `-E quotatype`.
    pub quota_types: Option<QuotaTypes>,
    /// `-E orphan_file_size`.
    pub orphan_file_size: Option<Amount>,
    /// `-E encoding`: names of directories that ignore case are UTF-8 (sets `casefold`).
    pub encoding: Option<Choice>,
    /// `-E encoding_flags=strict`.
    pub encoding_strict: bool,
    /// `-E test_fs`.
    pub test_fs: bool,
    /// What the device holds.
    pub old_content: OldContent,
    /// `-E offset`: where on the device the file system begins, in bytes. For the caller, who
    /// hands in a window of the device; only remembered here.
    pub offset_bytes: u64,
    /// `-E no_copy_xattrs`: what is filled in (`-d`) leaves its extended attributes behind. For
    /// the caller, who fills; only remembered here.
    pub without_source_xattrs: bool,
}

/// The inode ratios there may be, in bytes.
pub(crate) const INODE_RATIO: RangeInclusive<u32> = 1024..=65536 * 1024;
