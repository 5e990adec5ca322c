//! **Purpose.** File systems made to be filled at once: everything is planned but root and
//! lost+found, and the builder says at the end what it put where.
//!
//! **Not here.** What the builder fills it with (crate `build`).
//!
//! **Model.** A [`Skeleton`] has its tables, journal and other hidden files placed. The builder
//! asks for the runs of blocks that are free and for the first free inode number, decides, and
//! reports what it took as [`Usage`]. [`Skeleton::finish`] then counts and gives the [`Plan`],
//! which writes all metadata but the inode tables; these the builder writes, with the
//! [`ReservedInodes`] in front.
//!
//! A builder may have written contents before it knew the size. The tables go around these: they
//! are packed into the first blocks that are free, as `mke2fs -E packed_meta_blocks=1` packs them.
//!
//! **Invariants.** The builder takes only blocks of [`Skeleton::free_runs`], and inodes without
//! gaps from [`Skeleton::next_inode`] on.

use std::collections::BTreeMap;
use std::ops::Range;

use fourscore_ondisk::features::FeatureSet;
use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{BlockCount, InodeNr, PhysBlock};

use crate::error::{FormatError, FormatResult};
use crate::options::Options;
use crate::plan::{JournalSize, Plan, Planner};
use crate::profile::Profile;
use crate::quota::QuotaUsage;
use crate::superblock::put_features;

/// A planned file system without root and lost+found.
pub struct Skeleton {
    planner: Planner,
    journal: Option<JournalSize>,
}

/// What a builder put into a [`Skeleton`].
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// The blocks it took, sorted.
    pub blocks: Vec<Range<PhysBlock>>,
    /// The last inode in use.
    pub last_inode: InodeNr,
    /// Directories by group, the first group first.
    pub directories: Vec<u32>,
    /// Features to add, such as `large_file`.
    pub features: FeatureSet,
    /// What everybody uses, for quota files: by the identifiers the skeleton was made for.
    pub quota: QuotaUsage,
}

/// The inodes that a [`Skeleton`] has from the start, sealed, by number from 1 on.
#[derive(Clone, Debug)]
pub struct ReservedInodes {
    inodes: BTreeMap<u32, Vec<u8>>,
}

impl ReservedInodes {
    /// The bytes of an inode; `None` for those that are all zeroes or the builder's.
    #[must_use]
    pub fn get(&self, number: InodeNr) -> Option<&[u8]> {
        self.inodes.get(&number.0).map(Vec::as_slice)
    }
}

impl Skeleton {
    /// Plans a file system for a device of `len_bytes` bytes (a last part of a block is not
    /// used). Quota files get room for the identifiers in `owners`, whatever these use.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn new(
        options: &Options,
        profile: &Profile,
        len_bytes: u64,
        owners: &QuotaUsage,
    ) -> FormatResult<Self> {
        Self::around(&[], options, profile, len_bytes, owners)
    }

    /// As [`Skeleton::new`], around contents that are there already: sorted runs, of which those
    /// behind the end of the file system do not count.
    ///
    /// # Errors
    /// Also [`FormatError::InTheWay`], where superblocks or descriptors would have to lie there,
    /// and where the features tie tables to their groups.
    pub fn around(
        contents: &[Range<PhysBlock>],
        options: &Options,
        profile: &Profile,
        len_bytes: u64,
        owners: &QuotaUsage,
    ) -> FormatResult<Self> {
        let mut planner = Planner::around(contents, options, profile, len_bytes)?;
        let overhead = planner.begin_files()?;
        let journal = planner.make_hidden_files(overhead, owners)?;
        Ok(Self { planner, journal })
    }

    /// The superblock as far as it is known: geometry, identity and seeds are final.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.planner.sb
    }

    /// Blocks the builder can have.
    #[must_use]
    pub fn free_blocks(&self) -> BlockCount {
        BlockCount(self.planner.free_blocks())
    }

    /// The free blocks in order; with `bigalloc` whole clusters.
    pub fn free_runs(&self) -> impl Iterator<Item = Range<PhysBlock>> {
        let geometry = self.planner.geometry();
        let all = geometry.first_data_block().0..geometry.blocks().0;
        let mut taken = self.planner.space.runs_in(all.clone());
        let mut at = Some(all.start);
        std::iter::from_fn(move || {
            loop {
                let start = at?;
                let (end, next) = match taken.next() {
                    Some(run) => (run.start, Some(run.end)),
                    None => (all.end, None),
                };
                at = next;
                if start < end {
                    return Some(PhysBlock(start)..PhysBlock(end));
                }
            }
        })
    }

    /// The first inode the builder can have.
    #[must_use]
    pub fn next_inode(&self) -> InodeNr {
        InodeNr(self.planner.next_inode())
    }

    /// Whether there are quota files.
    #[must_use]
    pub fn has_quota_files(&self) -> bool {
        !self.planner.quota_files.is_empty()
    }

    /// Whether a journal is wanted, on this device.
    #[must_use]
    pub fn wants_a_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// Whether a journal was wanted but left out because the file system is too small for one.
    #[must_use]
    pub fn is_too_small_for_a_journal(&self) -> bool {
        self.journal.is_some_and(|journal| journal.blocks() == 0)
    }

    /// Counts what the builder took, and gives the plan to write.
    ///
    /// # Errors
    /// [`FormatError::NoRoom`] for inodes that do not exist; [`FormatError::Invalid`] for quota of
    /// others than the skeleton was made for.
    pub fn finish(mut self, usage: &Usage) -> FormatResult<(Plan, ReservedInodes)> {
        let planner = &mut self.planner;
        if usage.last_inode.0 > planner.geometry().inodes() {
            return Err(FormatError::NoRoom { what: "inodes" });
        }
        for run in &usage.blocks {
            planner.claim(run.start.0, run.end.0 - run.start.0);
        }
        planner.count_inodes(usage.last_inode, &usage.directories);
        planner.fill_quota_files(&usage.quota)?;
        let mut features = planner.raw.features();
        features.compat |= usage.features.compat;
        features.incompat |= usage.features.incompat;
        features.ro_compat |= usage.features.ro_compat;
        put_features(&mut planner.raw, features);
        let inodes = std::mem::take(&mut planner.inodes);
        let plan = self.planner.finish(self.journal)?;
        Ok((plan, ReservedInodes { inodes }))
    }
}

impl Planner {
    fn free_blocks(&self) -> u64 {
        let geometry = self.geometry();
        let all = geometry.first_data_block().0..geometry.blocks().0;
        self.space.free_in(all)
    }

    /// Counts the inodes up to `last` as used, and the directories among them.
    fn count_inodes(&mut self, last: InodeNr, directories: &[u32]) {
        let per_group = self.geometry().inodes_per_group();
        let checksums = self.has_desc_checksums();
        let mut left = last.0;
        for (index, plan) in self.groups.iter_mut().enumerate() {
            let here = left.min(per_group);
            left -= here;
            plan.dirs = directories.get(index).copied().unwrap_or(0);
            plan.used_inodes = plan.used_inodes.max(here);
            if here > 0 {
                plan.flags.remove(GroupFlags::INODE_UNINIT);
            }
            if checksums {
                plan.itable_unused = plan.itable_unused.min(per_group - here);
            }
        }
    }
}
