//! **Purpose.** File systems that are filled while they are made: the layout has everything but
//! root and lost+found, and the builder of the image reports at the end what it placed.
//!
//! **Not here.** The files that the builder places (crate `build`).
//!
//! **Model.** In a [`Skeleton`] the tables, the journal and other hidden files are placed. The
//! builder queries the free runs and the first free inode, places its files, and reports the blocks
//! and inodes it took as [`Usage`]. [`Skeleton::finish`] then completes all counts and returns the
//! [`Layout`], which writes all metadata but the inode tables. The builder writes these itself,
//! beginning with the [`ReservedInodes`].
//!
//! A builder may have written data before it knew the size of the file system. The tables go around
//! such data: they are packed into the first free blocks, as with
//! `mke2fs -E packed_meta_blocks=1`.
//!
//! **Invariants.** The builder takes only blocks of [`Skeleton::free_runs`], and inodes without
//! gaps from [`Skeleton::next_inode`] on.

use std::collections::BTreeMap;
use std::ops::Range;

use fourscore_ondisk::features::FeatureSet;
use fourscore_ondisk::quota::QuotaUsage;
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{BlockCount, InodeNr, PhysBlock};

use crate::draft::LayoutDraft;
use crate::error::{FormatError, FormatResult};
use crate::layout::{HiddenFiles, Layout, begin_files, finish, make_hidden_files};
use crate::options::Options;
use crate::profile::Profile;
use crate::quota::fill_quota_files;
use crate::superblock::put_features;

/// The layout of a file system without root and lost+found.
pub struct Skeleton {
    draft: LayoutDraft,
    hidden: HiddenFiles,
}

/// What a builder placed in a [`Skeleton`].
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
    /// What each owner uses, for quota files: the identifiers are those the skeleton was made for.
    pub quota: QuotaUsage,
}

/// The inodes that a [`Skeleton`] has from the start, sealed.
#[derive(Clone, Debug)]
pub struct ReservedInodes {
    inodes: BTreeMap<u32, Vec<u8>>,
}

impl ReservedInodes {
    /// The bytes of an inode; `None` for inodes that are all zeroes and for those of the builder.
    #[must_use]
    pub fn get(&self, number: InodeNr) -> Option<&[u8]> {
        self.inodes.get(&number.0).map(Vec::as_slice)
    }
}

impl Skeleton {
    /// Layouts a file system for a device of `len_bytes` bytes (a last part of a block is not
    /// used). Quota files get space for the identifiers in `owners`, whatever these use.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn new(
        options: &Options,
        profile: &Profile,
        len_bytes: u64,
        owners: &QuotaUsage,
    ) -> FormatResult<Self> {
        Self::around(&[], options, profile, len_bytes, owners)
    }

    /// As [`Skeleton::new`], around data that is on the device already: sorted runs, of which those
    /// behind the end of the file system are ignored.
    ///
    /// # Errors
    /// Also [`FormatError::InTheWay`] if the data lies where superblocks or descriptors must be, or
    /// if the features tie tables to their groups.
    pub fn around(
        earlier_data: &[Range<PhysBlock>],
        options: &Options,
        profile: &Profile,
        len_bytes: u64,
        owners: &QuotaUsage,
    ) -> FormatResult<Self> {
        let mut draft = LayoutDraft::new(earlier_data, options, profile, len_bytes)?;
        let overhead = begin_files(&mut draft)?;
        let hidden = make_hidden_files(&mut draft, overhead, owners)?;
        Ok(Self { draft, hidden })
    }

    /// The superblock as far as it is known: geometry, identity and seeds are final.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.draft.sb
    }

    /// The number of free blocks.
    #[must_use]
    pub fn free_blocks(&self) -> BlockCount {
        BlockCount(self.draft.free_blocks())
    }

    /// The free blocks in order; with `bigalloc` whole clusters.
    pub fn free_runs(&self) -> impl Iterator<Item = Range<PhysBlock>> {
        let geometry = self.draft.geometry();
        let all = geometry.first_data_block().0..geometry.blocks().0;
        let mut taken = self.draft.space.runs_in(all.clone());
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

    /// The first free inode.
    #[must_use]
    pub fn next_inode(&self) -> InodeNr {
        InodeNr(self.draft.next_inode())
    }

    /// Whether there are quota files.
    #[must_use]
    pub fn has_quota_files(&self) -> bool {
        !self.hidden.quota.is_empty()
    }

    /// Whether a journal is wanted, on this device.
    #[must_use]
    pub fn wants_a_journal(&self) -> bool {
        self.hidden.journal.is_some()
    }

    /// Whether a wanted journal was left out because the file system is too small for one.
    #[must_use]
    pub fn is_too_small_for_a_journal(&self) -> bool {
        self.hidden
            .journal
            .is_some_and(|journal| journal.blocks() == 0)
    }

    /// Completes all counts with what the builder took, and returns the layout to write.
    ///
    /// # Errors
    /// [`FormatError::NoRoom`] for inodes that do not exist; [`FormatError::Invalid`] for quota of
    /// other identifiers than those in `owners`.
    pub fn finish(mut self, usage: &Usage) -> FormatResult<(Layout, ReservedInodes)> {
        let draft = &mut self.draft;
        if usage.last_inode.0 > draft.geometry().inodes() {
            return Err(FormatError::NoRoom { what: "inodes" });
        }
        for run in &usage.blocks {
            draft.claim(run.start.0, run.end.0 - run.start.0);
        }
        draft.count_inodes(usage.last_inode, &usage.directories);
        fill_quota_files(draft, &self.hidden.quota, &usage.quota)?;
        let mut features = draft.raw.features();
        features.compat |= usage.features.compat;
        features.incompat |= usage.features.incompat;
        features.ro_compat |= usage.features.ro_compat;
        put_features(&mut draft.raw, features);
        let inodes = std::mem::take(&mut draft.inodes);
        let layout = finish(self.draft, self.hidden.journal)?;
        Ok((layout, ReservedInodes { inodes }))
    }
}
