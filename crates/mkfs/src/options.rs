//! **Purpose.** The options of a new file system, typed.
//!
//! **Not here.** Options as text (`text`), defaults (`profile`), whether options go together
//! (`resolve`).

use std::ops::RangeInclusive;
use std::path::PathBuf;

use fourscore_ondisk::BlockSize;
use fourscore_ondisk::superblock::{CreatorOs, ErrorPolicy};
use uuid::Uuid;

use crate::external_journal::ExternalJournal;

/// What the blocks of the device hold before anything is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldContent {
    /// Anything: blocks that must be zero are written.
    #[default]
    Unknown,
    /// Anything, but discarded blocks read as zeroes, as in an image file.
    ZeroAfterDiscard,
    /// Zeroes, as in a file just made (`-E assume_storage_prezeroed`).
    AllZero,
}

/// `-b`: the block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSizeWish {
    /// Exactly this size.
    Exactly(BlockSize),
    /// The default size, but at least this (`-b` with a negative number).
    AtLeast(BlockSize),
}

/// A yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Yes.
    Yes,
    /// No.
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

/// A size or location that may be given before the block size is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// In blocks.
    Blocks(u64),
    /// In bytes, rounded down to whole blocks.
    Bytes(u64),
}

impl Amount {
    /// The number of blocks of this size.
    #[must_use]
    pub fn blocks(self, block_size: BlockSize) -> u64 {
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
    /// `location`: the goal for the journal; without effect with `packed_meta_blocks`.
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

/// The owner of the root directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The options of a new file system. Where one is `None`, the profile decides, as in mke2fs.
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
    /// `-g`: blocks (with `bigalloc` clusters) in a group: a multiple of 8; 0 is the default.
    pub blocks_per_group: Option<u32>,
    /// `-G`: groups in a flex group: a power of two.
    pub groups_per_flex: Option<u32>,
    /// `-i`: bytes of space for each inode. If it is more than the size, it is 4096, or a larger
    /// block.
    pub inode_ratio_bytes: Option<u32>,
    /// `-N`: the number of inodes.
    pub inodes: Option<u64>,
    /// `-I`: the size of an inode in bytes; 0 is the default.
    pub inode_size_bytes: Option<u32>,
    /// `-j`: a journal even if the profile has none. `-J size` has the same effect.
    pub with_journal: bool,
    /// `-J`.
    pub journal: JournalOptions,
    /// `-J device`: the device of the journal. Not used by this crate: the caller opens the device
    /// and sets [`external_journal`](Self::external_journal).
    pub journal_device: Option<PathBuf>,
    /// The journal on a device of its own. The caller also enters the file system there
    /// ([`ExternalJournal::add_user`]).
    pub external_journal: Option<ExternalJournal>,
    /// `-L`: at most 16 bytes.
    pub label: Vec<u8>,
    /// `-M`: the last mount point; at most 64 bytes.
    pub last_mounted: Vec<u8>,
    /// `-m`: percent of the blocks reserved for the super-user, 0 to 50.
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
    /// `-E desc_size`: the size of a group descriptor with `64bit`; 0 is the default.
    pub desc_size_bytes: Option<u16>,
    /// `-E num_backup_sb`: backup superblocks with `sparse_super2`: 0 to 2.
    pub backup_superblocks: Option<u8>,
    /// `-E packed_meta_blocks`: all tables and the journal at the start.
    pub packed_meta_blocks: Option<Choice>,
    /// `-E lazy_itable_init`: leave unused inode tables to the kernel.
    pub lazy_itable_init: Option<Choice>,
    /// `-E lazy_journal_init`: do not zero the journal.
    pub lazy_journal_init: Option<Choice>,
    /// `-E discard`, `-E nodiscard`.
    pub discard: Option<Choice>,
    /// `-E mmp_update_interval`, in seconds.
    pub mmp_update_interval_seconds: Option<u16>,
    /// Names of host and device in the MMP block; at most 64 and 32 bytes.
    pub mmp_names: (Vec<u8>, Vec<u8>),
    /// `-E root_owner`: user and group 0 when not given.
    pub root_owner: Option<Owner>,
    /// `-E quotatype`. Without the feature `quota`, project quota still sets the feature `project`.
    pub quota_types: Option<QuotaTypes>,
    /// `-E orphan_file_size`, without effect if there is no orphan file.
    pub orphan_file_size: Option<Amount>,
    /// `-E encoding`: names of directories that ignore case are UTF-8 (sets `casefold`).
    pub encoding: Option<Choice>,
    /// `-E encoding_flags=strict`.
    pub encoding_strict: bool,
    /// `-E test_fs`.
    pub test_fs: bool,
    /// What the device holds before.
    pub old_content: OldContent,
    /// `-E offset`: where on the device the file system begins, in bytes. Not used by
    /// this crate: the caller passes a window of the device.
    pub offset_bytes: u64,
    /// `-E no_copy_xattrs`: files that the caller copies (`-d`) get no extended attributes. Not
    /// used by this crate.
    pub without_source_xattrs: bool,
}

/// The possible inode ratios in bytes.
pub(crate) const INODE_RATIO: RangeInclusive<u32> = 1024..=65536 * 1024;
