//! **Purpose.** A planned file system: every block of metadata with its content, before anything
//! is written.
//!
//! **Not here.** How contents come about (`files`), and how they are written (`write`).
//!
//! **Invariants.** The superblock of a [`Plan`] passes the checks of the reading side. Blocks
//! with content are taken in the space map, and no two structures share one.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::superblock::{RawSuperblock, Superblock};
use fourscore_ondisk::{BlockCount, Geometry, GroupNr, InodeNr, PhysBlock};
use uuid::Uuid;

use crate::error::{FormatError, FormatResult};
use crate::options::{OldContent, Options};
use crate::profile::Profile;
use crate::quota::{QuotaFile, QuotaUsage};
use crate::resolve::{Parameters, resolve};
use crate::sizes::{FIRST_INO, settle};
use crate::space::Space;
use crate::superblock::{Identity, build, checked, high, low, provisional};
use crate::tables::{GroupPlan, Tables};

/// A planned file system.
#[derive(Debug)]
pub struct Plan {
    pub(crate) superblock: Superblock,
    pub(crate) groups: Vec<GroupPlan>,
    pub(crate) space: Space,
    /// Inodes in use and reserved ones, sealed.
    pub(crate) inodes: BTreeMap<u32, Vec<u8>>,
    /// Content of blocks outside the fixed tables.
    pub(crate) blocks: BTreeMap<u64, Vec<u8>>,
    /// Blocks outside the inode tables that must read as zeroes.
    pub(crate) zero: Vec<Range<u64>>,
    pub(crate) old_content: OldContent,
    pub(crate) discard: bool,
    pub(crate) journal: Option<JournalSize>,
    requested_blocks: u64,
    root_owner: (u32, u32),
}

/// The blocks of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalSize {
    pub(crate) log_blocks: u64,
    pub(crate) fast_commit_blocks: u64,
}

impl JournalSize {
    pub(crate) fn blocks(self) -> u64 {
        self.log_blocks + self.fast_commit_blocks
    }
}

/// A plan in the making.
pub(crate) struct Planner {
    pub(crate) p: Parameters,
    pub(crate) raw: RawSuperblock,
    /// For geometry and checksum seeds: without features that name inodes and blocks.
    pub(crate) sb: Superblock,
    pub(crate) id: Identity,
    pub(crate) space: Space,
    pub(crate) groups: Vec<GroupPlan>,
    pub(crate) inodes: BTreeMap<u32, Vec<u8>>,
    pub(crate) blocks: BTreeMap<u64, Vec<u8>>,
    pub(crate) zero: Vec<Range<u64>>,
    /// Placed, but not filled yet.
    pub(crate) quota_files: Vec<QuotaFile>,
    /// What was there before any table: how much, and where it ends.
    contents: Contents,
}

/// Contents that were there before the file system was planned.
#[derive(Clone, Copy, Debug, Default)]
struct Contents {
    blocks: u64,
    end: u64,
}

impl Plan {
    /// Plans a file system for a device of `len_bytes` bytes (a last part of a block is not
    /// used).
    ///
    /// # Errors
    /// Everything that keeps the file system from being made, except I/O.
    pub fn new(options: &Options, profile: &Profile, len_bytes: u64) -> FormatResult<Self> {
        let mut planner = Planner::new(options, profile, len_bytes)?;
        // In the order in which mke2fs places files.
        let overhead = planner.begin_files()?;
        planner.make_root()?;
        let usage = planner.root_usage();
        let journal = planner.make_hidden_files(overhead, &usage)?;
        planner.fill_quota_files(&usage)?;
        planner.finish(journal)
    }

    /// The superblock of the file system to be.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Blocks the device has and the file system will not use.
    #[must_use]
    pub fn unused_blocks(&self) -> BlockCount {
        BlockCount(self.requested_blocks - self.superblock.geometry().blocks().0)
    }

    /// The blocks of the journal, its fast-commit area included; 0 without one.
    #[must_use]
    pub fn journal_blocks(&self) -> BlockCount {
        BlockCount(self.journal.map_or(0, JournalSize::blocks))
    }

    /// Whether a journal was wanted but left out because the file system is too small for one.
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
        let plan = self.groups.get(group.0 as usize)?;
        Some(PhysBlock(plan.inode_table))
    }

    /// The last inode in use. Inodes are used from the first on, without gaps.
    #[must_use]
    pub fn last_inode(&self) -> InodeNr {
        InodeNr(self.groups.iter().map(|plan| plan.used_inodes).sum())
    }

    /// User and group of the root directory.
    pub(crate) fn root_owner(&self) -> (u32, u32) {
        self.root_owner
    }
}

impl Planner {
    /// Settles the parameters and places superblocks, descriptors, bitmaps and inode tables.
    pub(crate) fn new(options: &Options, profile: &Profile, len_bytes: u64) -> FormatResult<Self> {
        Self::around(&[], options, profile, len_bytes)
    }

    /// As [`Planner::new`], around these contents, in sorted runs.
    pub(crate) fn around(
        contents: &[Range<PhysBlock>],
        options: &Options,
        profile: &Profile,
        len_bytes: u64,
    ) -> FormatResult<Self> {
        let p = resolve(options, profile, len_bytes)?;
        let sizes = settle(&p)?;
        let id = identity(options)?;
        let raw = build(&p, &sizes, &id);
        let sb = provisional(&raw)?;
        let first = sb.geometry().first_data_block().0;
        let mut planner = Self {
            space: Space::new(first..sizes.blocks),
            groups: Vec::new(),
            inodes: BTreeMap::new(),
            blocks: BTreeMap::new(),
            zero: Vec::new(),
            quota_files: Vec::new(),
            p,
            raw,
            sb,
            id,
            contents: Contents::default(),
        };
        planner.begin_groups();
        planner.take_contents(contents)?;
        planner.place_tables()?;
        Ok(planner)
    }

    /// Takes the blocks of contents that are there already, as far as they lie in front of the end.
    fn take_contents(&mut self, contents: &[Range<PhysBlock>]) -> FormatResult<()> {
        let blocks = self.geometry().blocks().0;
        let features = self.raw.features().incompat;
        let is_free_to_place =
            features.contains(Incompat::FLEX_BG) && !features.contains(Incompat::META_BG);
        if !contents.is_empty() && !is_free_to_place {
            return Err(FormatError::InTheWay { what: "the tables" });
        }
        for run in contents {
            let run = run.start.0..run.end.0.min(blocks);
            if run.is_empty() {
                break;
            }
            let length = run.end - run.start;
            if self.space.free_in(run.clone()) < length {
                let what = "superblocks and descriptors";
                return Err(FormatError::InTheWay { what });
            }
            self.claim(run.start, length);
            self.contents.blocks += length;
            self.contents.end = run.end;
        }
        Ok(())
    }

    /// Where the last of the contents that were there first ends; `None` without any.
    pub(crate) fn end_of_contents(&self) -> Option<u64> {
        (self.contents.blocks > 0).then_some(self.contents.end)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.sb.geometry()
    }

    pub(crate) fn has_desc_checksums(&self) -> bool {
        let either = RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM;
        self.raw.features().ro_compat.intersects(either)
    }

    /// Superblocks and descriptors, and what groups say before anything is placed in them.
    fn begin_groups(&mut self) {
        let groups = self.geometry().groups();
        let per_group = self.geometry().inodes_per_group();
        let mut reserved = FIRST_INO;
        // Growing to some megabytes would have the host clear twice the memory.
        self.groups.reserve_exact(groups as usize);
        for number in 0..groups {
            let mut plan = GroupPlan::default();
            if self.has_desc_checksums() {
                // The bitmap of the last group has bits behind the end that must be set.
                let last = number == groups - 1;
                plan.flags.set(GroupFlags::BLOCK_UNINIT, !last);
                plan.flags.insert(GroupFlags::INODE_UNINIT);
                let here = reserved.min(per_group);
                reserved -= here;
                plan.itable_unused = per_group - here;
            }
            self.groups.push(plan);
        }
        if self.raw.features().incompat.contains(Incompat::META_BG) {
            self.take_base_meta((0..groups).map(GroupNr));
        } else {
            let geometry = *self.geometry();
            self.take_base_meta(geometry.groups_with_super());
        }
    }

    fn take_base_meta(&mut self, groups: impl Iterator<Item = GroupNr>) {
        for group in groups {
            let start = self.geometry().group_first_block(group).0;
            let blocks = u64::from(self.geometry().base_meta_blocks(group));
            if blocks > 0 {
                self.space.take(start..start + blocks);
            }
        }
    }

    fn place_tables(&mut self) -> FormatResult<()> {
        let flex = self.raw.features().incompat.contains(Incompat::FLEX_BG);
        let mut tables = Tables {
            geometry: self.sb.geometry(),
            space: &mut self.space,
            groups: &mut self.groups,
            log_groups_per_flex: if flex { self.p.log_groups_per_flex } else { 0 },
            stride: self.raw.s_raid_stride.get().into(),
        };
        if flex && (self.p.packed || self.contents.blocks > 0) {
            tables.place_packed()
        } else {
            tables.place_all()
        }
    }

    pub(crate) fn finish(mut self, journal: Option<JournalSize>) -> FormatResult<Plan> {
        let geometry = *self.geometry();
        let first = geometry.first_data_block().0;
        let free = self.space.free_in(first..geometry.blocks().0);
        (
            self.raw.s_free_blocks_count_lo,
            self.raw.s_free_blocks_count_hi,
        ) = (low(free), high(free));
        let used: u32 = self.groups.iter().map(|plan| plan.used_inodes).sum();
        self.raw.s_free_inodes_count = (geometry.inodes() - used).into();
        let superblock = checked(&mut self.raw)?;
        let owner = self.p.options.root_owner.unwrap_or_default();
        Ok(Plan {
            superblock,
            groups: self.groups,
            space: self.space,
            inodes: self.inodes,
            blocks: self.blocks,
            zero: self.zero,
            old_content: self.p.options.old_content,
            discard: self.p.discard,
            journal,
            requested_blocks: self.p.blocks,
            root_owner: (owner.uid, owner.gid),
        })
    }

    /// What comes before any file; says how many clusters are overhead so far.
    pub(crate) fn begin_files(&mut self) -> FormatResult<u64> {
        let cluster_log = self.geometry().blocks_per_cluster_log();
        self.space.use_clusters(cluster_log);
        let first = self.geometry().first_data_block().0;
        let blocks = self.geometry().blocks().0;
        let taken = blocks - first - self.space.free_in(first..blocks);
        let overhead = taken - self.contents.blocks;
        self.promise_zeroed_tables();
        self.reserve_inodes()?;
        Ok(overhead.div_ceil(1 << cluster_log))
    }

    /// The files that users do not see, in the order in which mke2fs places them: quota files for
    /// the identifiers in `usage`, to be filled later.
    pub(crate) fn make_hidden_files(
        &mut self,
        mut overhead: u64,
        usage: &QuotaUsage,
    ) -> FormatResult<Option<JournalSize>> {
        let cluster_log = self.geometry().blocks_per_cluster_log();
        if self.raw.features().compat.contains(Compat::RESIZE_INODE) {
            self.make_resize_inode()?;
        }
        let journal = self.journal_size()?;
        if let Some(size) = journal {
            overhead += size.blocks().div_ceil(1 << cluster_log);
            self.make_journal(size)?;
        }
        if self.raw.features().incompat.contains(Incompat::MMP) {
            self.make_mmp_block()?;
        }
        let first = self.geometry().first_data_block().0;
        self.raw.s_overhead_clusters = low(overhead + first);
        if self.raw.features().ro_compat.contains(RoCompat::QUOTA) {
            self.make_quota_files(usage)?;
        }
        if self.raw.features().compat.contains(Compat::ORPHAN_FILE) {
            self.make_orphan_file()?;
        }
        Ok(journal)
    }

    /// Says of inode tables which will be zeroes throughout.
    fn promise_zeroed_tables(&mut self) {
        let old = self.p.options.old_content;
        let clear =
            old == OldContent::AllZero || (self.p.discard && old == OldContent::ZeroAfterDiscard);
        if clear || !self.p.lazy_itables {
            for plan in &mut self.groups {
                plan.flags.insert(GroupFlags::INODE_ZEROED);
            }
        }
    }
}

pub(crate) fn identity(options: &Options) -> FormatResult<Identity> {
    let time_seconds = match options.time_seconds {
        Some(seconds) => seconds,
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(0, |since| since.as_secs())
        }
    };
    // Superblocks count seconds in 40 bits.
    if time_seconds >> 40 != 0 {
        let why = format!("{time_seconds} seconds are past the year 36000");
        return Err(FormatError::option("the time", why));
    }
    Ok(Identity {
        uuid: options.uuid.map_or_else(random_uuid, Ok)?,
        hash_seed: match options.hash_seed {
            Some(seed) if !seed.is_nil() => seed,
            _ => random_uuid()?,
        },
        time_seconds,
    })
}

fn random_uuid() -> FormatResult<Uuid> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}
