//! **Purpose.** A layout under construction: parameters, superblock, groups and the space map, and
//! the contents of the blocks and inodes that were placed so far.
//!
//! **Not here.** Which files are made, and from what (`root`, `journal`, `hidden`, `quota`).
//!
//! **Invariants.** Each block with content is taken in the space map, and no two structures share
//! one. Inodes are used from the first on, without gaps.

use std::collections::BTreeMap;
use std::ops::Range;

use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::superblock::{RawSuperblock, Superblock};
use fourscore_ondisk::{Geometry, GroupNr, InodeGeneration, InodeNr, InodeSeed, PhysBlock};

use crate::error::{FormatError, FormatResult};
use crate::identity::Identity;
use crate::options::{OldContent, Options};
use crate::profile::Profile;
use crate::resolve::{Parameters, resolve};
use crate::sizes::{FIRST_INO, settle};
use crate::space::Space;
use crate::superblock::{build, provisional};
use crate::tables::{GroupLayout, Tables, mark_written};

/// A layout under construction.
pub(crate) struct LayoutDraft {
    pub(crate) p: Parameters,
    pub(crate) raw: RawSuperblock,
    /// For geometry and checksum seeds. Lacks the features whose inodes and blocks have no number
    /// yet.
    pub(crate) sb: Superblock,
    pub(crate) id: Identity,
    pub(crate) space: Space,
    pub(crate) groups: Vec<GroupLayout>,
    /// Sealed inodes by number.
    pub(crate) inodes: BTreeMap<u32, Vec<u8>>,
    /// Content of blocks outside the fixed tables.
    pub(crate) blocks: BTreeMap<u64, Vec<u8>>,
    /// Blocks outside the inode tables that must read as zeroes.
    pub(crate) zero: Vec<Range<u64>>,
    earlier_data: EarlierData,
}

/// Data that was on the device before the layout was begun, and stays where it is.
#[derive(Clone, Copy, Debug, Default)]
struct EarlierData {
    blocks: u64,
    end: u64,
}

impl LayoutDraft {
    /// Determines the parameters and places superblocks, descriptors, bitmaps and inode tables of a
    /// file system for a device of `len_bytes` bytes. They go around `earlier_data`, sorted runs
    /// of blocks that hold data already.
    pub(crate) fn new(
        earlier_data: &[Range<PhysBlock>],
        options: &Options,
        profile: &Profile,
        len_bytes: u64,
    ) -> FormatResult<Self> {
        let p = resolve(options, profile, len_bytes)?;
        let sizes = settle(&p)?;
        let id = Identity::of(options)?;
        let raw = build(&p, &sizes, &id);
        let sb = provisional(&raw)?;
        let first = sb.geometry().first_data_block().0;
        let mut draft = Self {
            space: Space::new(first..sizes.blocks),
            groups: Vec::new(),
            inodes: BTreeMap::new(),
            blocks: BTreeMap::new(),
            zero: Vec::new(),
            p,
            raw,
            sb,
            id,
            earlier_data: EarlierData::default(),
        };
        draft.begin_groups();
        draft.take_earlier_data(earlier_data)?;
        draft.place_tables()?;
        Ok(draft)
    }

    /// Takes the blocks of earlier data, as far as they lie in front of the end of the file system.
    fn take_earlier_data(&mut self, runs: &[Range<PhysBlock>]) -> FormatResult<()> {
        let blocks = self.geometry().blocks().0;
        let features = self.raw.features().incompat;
        let is_free_to_place =
            features.contains(Incompat::FLEX_BG) && !features.contains(Incompat::META_BG);
        if !runs.is_empty() && !is_free_to_place {
            return Err(FormatError::InTheWay { what: "the tables" });
        }
        for run in runs {
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
            self.earlier_data.blocks += length;
            self.earlier_data.end = run.end;
        }
        Ok(())
    }

    /// Where the last run of earlier data ends; `None` without any.
    pub(crate) fn end_of_earlier_data(&self) -> Option<u64> {
        (self.earlier_data.blocks > 0).then_some(self.earlier_data.end)
    }

    /// Sizes and counts of the file system.
    pub(crate) fn geometry(&self) -> &Geometry {
        self.sb.geometry()
    }

    /// Whether group descriptors have checksums, and with them flags for unused tables.
    pub(crate) fn has_desc_checksums(&self) -> bool {
        let either = RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM;
        self.raw.features().ro_compat.intersects(either)
    }

    /// Takes the blocks of superblocks and descriptors, and sets the flags of groups in which
    /// nothing is placed yet.
    fn begin_groups(&mut self) {
        let groups = self.geometry().groups();
        let per_group = self.geometry().inodes_per_group();
        let mut reserved = FIRST_INO;
        // Growing step by step would have the host clear twice the memory.
        self.groups.reserve_exact(groups as usize);
        for number in 0..groups {
            let mut group = GroupLayout::default();
            if self.has_desc_checksums() {
                // The bitmap of the last group has bits behind the end that must be set.
                let last = number == groups - 1;
                group.flags.set(GroupFlags::BLOCK_UNINIT, !last);
                group.flags.insert(GroupFlags::INODE_UNINIT);
                let here = reserved.min(per_group);
                reserved -= here;
                group.itable_unused = per_group - here;
            }
            self.groups.push(group);
        }
        if self.raw.features().incompat.contains(Incompat::META_BG) {
            self.take_base_meta((0..groups).map(GroupNr));
        } else {
            let geometry = *self.geometry();
            self.take_base_meta(geometry.groups_with_super());
        }
    }

    /// Takes the blocks of superblock and descriptors in these groups.
    fn take_base_meta(&mut self, groups: impl Iterator<Item = GroupNr>) {
        for group in groups {
            let start = self.geometry().group_first_block(group).0;
            let blocks = u64::from(self.geometry().base_meta_blocks(group));
            if blocks > 0 {
                self.space.take(start..start + blocks);
            }
        }
    }

    /// Places bitmaps and inode tables.
    fn place_tables(&mut self) -> FormatResult<()> {
        let flex = self.raw.features().incompat.contains(Incompat::FLEX_BG);
        let mut tables = Tables {
            geometry: self.sb.geometry(),
            space: &mut self.space,
            groups: &mut self.groups,
            log_groups_per_flex: if flex { self.p.log_groups_per_flex } else { 0 },
            stride: self.raw.s_raid_stride.get().into(),
        };
        if flex && (self.p.packed || self.earlier_data.blocks > 0) {
            tables.place_packed()
        } else {
            tables.place_all()
        }
    }

    /// Sets the flags of groups whose inode tables will be zeroes outside the inodes in use.
    pub(crate) fn promise_zeroed_tables(&mut self) {
        let old = self.p.options.old_content;
        let clear =
            old == OldContent::AllZero || (self.p.discard && old == OldContent::ZeroAfterDiscard);
        if clear || !self.p.lazy_itables {
            for group in &mut self.groups {
                group.flags.insert(GroupFlags::INODE_ZEROED);
            }
        }
    }

    /// The blocks that are taken, those of earlier data left out.
    pub(crate) fn metadata_blocks(&self) -> u64 {
        let geometry = self.geometry();
        let all = geometry.blocks().0 - geometry.first_data_block().0;
        all - self.free_blocks() - self.earlier_data.blocks
    }

    /// The number of free blocks.
    pub(crate) fn free_blocks(&self) -> u64 {
        let geometry = self.geometry();
        let all = geometry.first_data_block().0..geometry.blocks().0;
        self.space.free_in(all)
    }

    /// Takes the first free block from `goal` on, with its cluster.
    pub(crate) fn new_block(&mut self, goal: u64) -> FormatResult<u64> {
        let place = self.space.first_free(goal);
        let block = place.ok_or(FormatError::NoRoom {
            what: "the first files",
        })?;
        self.claim(block, 1);
        Ok(block)
    }

    /// Takes `count` blocks outside of the fixed tables.
    pub(crate) fn claim(&mut self, block: u64, count: u64) {
        self.space.take(block..block + count);
        mark_written(self.sb.geometry(), &mut self.groups, block..block + count);
    }

    /// The block size in bytes.
    pub(crate) fn block_bytes(&self) -> usize {
        self.geometry().block_size().bytes()
    }

    /// The seed of the checksums of an inode.
    pub(crate) fn seed(&self, number: u32) -> InodeSeed {
        let seed = self.sb.checksum_seed();
        seed.for_inode(InodeNr(number), InodeGeneration(0))
    }

    /// Counts an inode as used.
    pub(crate) fn use_inode(&mut self, number: u32) -> FormatResult<()> {
        let place = self.geometry().inode_group(InodeNr(number));
        let (GroupNr(index), offset) = place.ok_or(FormatError::NoRoom { what: "inodes" })?;
        let per_group = self.geometry().inodes_per_group();
        let checksums = self.has_desc_checksums();
        let group = &mut self.groups[index as usize];
        group.used_inodes += 1;
        group.flags.remove(GroupFlags::INODE_UNINIT);
        if checksums {
            group.itable_unused = group.itable_unused.min(per_group - offset.0 - 1);
        }
        Ok(())
    }

    /// The first inode after the reserved ones and those in use.
    pub(crate) fn next_inode(&self) -> u32 {
        let last = self.inodes.keys().next_back().copied();
        last.map_or(FIRST_INO, |last| (last + 1).max(FIRST_INO))
    }

    /// Takes the next inode.
    pub(crate) fn new_inode(&mut self) -> FormatResult<u32> {
        let number = self.next_inode();
        self.use_new_inode(number)?;
        Ok(number)
    }

    /// Counts an inode as used that was found by a search. libext2fs initialises the block bitmap
    /// of the group in which it searches.
    pub(crate) fn use_new_inode(&mut self, number: u32) -> FormatResult<()> {
        self.use_inode(number)?;
        if let Some((GroupNr(group), _)) = self.geometry().inode_group(InodeNr(number)) {
            self.groups[group as usize]
                .flags
                .remove(GroupFlags::BLOCK_UNINIT);
        }
        Ok(())
    }

    /// Counts the inodes up to `last` as used. `directories` are the numbers of directories by
    /// group.
    pub(crate) fn count_inodes(&mut self, last: InodeNr, directories: &[u32]) {
        let per_group = self.geometry().inodes_per_group();
        let checksums = self.has_desc_checksums();
        let mut left = last.0;
        for (index, group) in self.groups.iter_mut().enumerate() {
            let here = left.min(per_group);
            left -= here;
            group.dirs = directories.get(index).copied().unwrap_or(0);
            group.used_inodes = group.used_inodes.max(here);
            if here > 0 {
                group.flags.remove(GroupFlags::INODE_UNINIT);
            }
            if checksums {
                group.itable_unused = group.itable_unused.min(per_group - here);
            }
        }
    }
}
