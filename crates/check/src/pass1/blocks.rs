//! **Purpose.** Claims the blocks that an inode maps, and compares its map with its size and its
//! counts.

use std::ops::Range;

use fourscore_ondisk::blockmap;
use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::inline::InlineData;
use fourscore_ondisk::inode::{FileType, InodeFlags, needs_large_file};
use fourscore_ondisk::quota::QuotaCounts;
use fourscore_ondisk::xattr::Xattrs;
use fourscore_ondisk::{InodeNr, PhysBlock};

use super::Scanner;
use crate::finding::Finding;
use crate::inode::InodeView;
use crate::memory::Claimed;
use crate::quota::owners_of;
use crate::replay::Charged;
use crate::report::Findings;
use crate::state::{Charge, Directory, DirectoryForm, Run, State};
use crate::volume::Volume;
use crate::walk::{Mapped, RESIZE_INODE, Role, Sink};

/// Claims the blocks that a walk passes to it.
struct Claimer<'s> {
    volume: &'s Volume,
    state: &'s State,
    findings: &'s mut Findings,
    runs: &'s mut Vec<Run>,
    claimed: &'s mut Claimed,
    inode: InodeNr,
}

impl Sink for Claimer<'_> {
    fn claim(&mut self, run: Range<PhysBlock>, role: Role) {
        let (volume, state) = (self.volume, self.state);
        if run.end <= run.start {
            return;
        }
        self.claimed.add(&run, role);
        let (inode, block) = (self.inode, run.start);
        if role == Role::Map && inode != RESIZE_INODE && state.metadata.contains(block.0) {
            self.findings.push(Finding::MapOnMetadata { inode, block });
        }
        let last = volume.cluster(PhysBlock(run.end.0 - 1));
        let clusters = volume.cluster(run.start)..last + 1;
        claim_clusters(volume, state, clusters);
    }

    fn wants_content(&self, inode: &InodeView<'_>) -> bool {
        inode.is_directory()
    }

    fn content(&mut self, logical: u64, run: Range<PhysBlock>, _state: ExtentState) {
        let mut start = run.start;
        let mut logical = logical;
        while start < run.end {
            let blocks = u32::try_from(run.end.0 - start.0).unwrap_or(u32::MAX);
            let Ok(at) = u32::try_from(logical) else {
                return;
            };
            self.runs.push(Run {
                logical: at,
                blocks,
                start,
            });
            start = PhysBlock(start.0 + u64::from(blocks));
            logical += u64::from(blocks);
        }
    }

    fn fault(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

/// Claims clusters; those of files may be shared if the file system has the feature.
pub(super) fn claim_clusters(volume: &Volume, state: &State, clusters: Range<u64>) {
    if volume.ro_compat(RoCompat::SHARED_BLOCKS) {
        state.found.insert_run(clusters, |_| {});
    } else {
        state.claim(clusters);
    }
}

/// Whether `i_block` of an inode is a map.
pub(crate) fn has_map(inode: &InodeView<'_>) -> bool {
    if inode.has(InodeFlags::INLINE_DATA_FL) {
        return false;
    }
    match inode.file_type() {
        Some(FileType::Regular | FileType::Directory) => true,
        Some(FileType::Symlink) => !inode.is_fast_symlink(),
        _ => false,
    }
}

impl Scanner<'_> {
    /// Follows the map of an inode and claims its blocks.
    pub(super) fn follow(&mut self, inode: &InodeView<'_>) -> Mapped {
        let mut claimer = Claimer {
            volume: self.volume,
            state: self.state,
            findings: &mut self.findings,
            runs: &mut self.directories.runs,
            claimed: &mut self.claimed,
            inode: inode.number,
        };
        self.walker.follow(inode, &mut claimer)
    }

    /// Claims an attribute block.
    pub(super) fn claim_attributes(&mut self, inode: InodeNr, block: PhysBlock) {
        let mut claimer = Claimer {
            volume: self.volume,
            state: self.state,
            findings: &mut self.findings,
            runs: &mut self.directories.runs,
            claimed: &mut self.claimed,
            inode,
        };
        claimer.claim(block..PhysBlock(block.0 + 1), Role::Attributes);
    }

    /// Follows the map of an inode in use and compares it with size and counts. `charge` is for
    /// attribute values in other inodes.
    pub(super) fn blocks(&mut self, inode: &InodeView<'_>, charge: Charge) {
        let first_run = self.directories.runs.len();
        let in_block = self.xattr_block(inode);
        let mapped = if has_map(inode) {
            self.follow(inode)
        } else {
            Mapped::default()
        };
        let mut clusters = mapped.clusters + charge.clusters;
        let mut value_inodes = charge.inodes;
        if let Some(block) = in_block {
            clusters += 1 + block.clusters;
            value_inodes += block.inodes;
        }
        if inode.has(InodeFlags::INLINE_DATA_FL) {
            self.inline(inode);
        }
        if inode.is_directory() && !self.is_removed(inode) {
            self.directory(inode, &mapped, clusters, first_run);
        }
        self.count_for_quota(inode, clusters, value_inodes);
        self.size(inode, &mapped);
        self.counted_blocks(inode, clusters);
        let is_file = matches!(
            inode.file_type(),
            Some(FileType::Regular | FileType::Directory)
        );
        let named = inode.number == InodeNr::ROOT || inode.number >= self.volume.sb.first_inode();
        let pointers = has_map(inode) && !inode.has(InodeFlags::EXTENTS_FL);
        let bigalloc = self.volume.ro_compat(RoCompat::BIGALLOC);
        if bigalloc && is_file && named && pointers && mapped.clusters > 0 {
            let inode = inode.number;
            self.findings.push(Finding::BigallocBlockMap { inode });
        }
    }

    /// Whether the next mount deletes it. A directory then still has `.` and `..`, which are no
    /// longer counted, and its size is 0.
    fn is_removed(&self, inode: &InodeView<'_>) -> bool {
        inode.links() == 0 && self.state.orphans.contains(&inode.number)
    }

    fn inline(&mut self, inode: &InodeView<'_>) {
        if !self.volume.incompat(Incompat::INLINE_DATA) {
            return;
        }
        let xattrs = Xattrs::in_inode(inode.xattr_area().unwrap_or(&[]));
        match InlineData::find(&inode.base.i_block, &xattrs) {
            Err(why) => {
                let inode = inode.number;
                self.findings.push(Finding::Inline { inode, why });
            }
            Ok(data) if inode.is_directory() && !self.is_removed(inode) => {
                let (found, mapped) = (inode.size_bytes(), data.capacity_bytes() as u64);
                if found != mapped {
                    let inode = inode.number;
                    self.findings.push(Finding::InodeSize {
                        inode,
                        found,
                        mapped,
                    });
                }
            }
            Ok(_) => {}
        }
    }

    /// Collects a directory for pass 2.
    fn directory(
        &mut self,
        inode: &InodeView<'_>,
        mapped: &Mapped,
        clusters: u64,
        first_run: usize,
    ) {
        let volume = self.volume;
        let inline = inode.has(InodeFlags::INLINE_DATA_FL);
        let has_no_block_yet = volume.changes.made_in(inode.number).is_some();
        if clusters == 0 && !inline && !has_no_block_yet {
            let inode = inode.number;
            self.findings.push(Finding::DirEmpty { inode });
        }
        let most = 1_u64 << (31 - volume.geometry().block_size().bits());
        let large = volume.incompat(Incompat::LARGEDIR) || inode.base.i_size_high.get() != 0;
        if !large && mapped.end > most {
            let (inode, logical) = (inode.number, mapped.end - 1);
            self.findings.push(Finding::DirTooBig { inode, logical });
        }
        let runs = self.directories.runs.len() - first_run;
        self.directories.all.push(Directory {
            inode: inode.number,
            seed: inode.seed(&volume.sb),
            form: DirectoryForm {
                inline,
                indexed: inode.has(InodeFlags::INDEX_FL) && !inline,
                casefold: inode.has(InodeFlags::CASEFOLD_FL),
                encrypted: inode.has(InodeFlags::ENCRYPT_FL),
            },
            first_run: u32::try_from(first_run).unwrap_or(u32::MAX),
            runs: u32::try_from(runs).unwrap_or(0),
            end: u32::try_from(mapped.end).unwrap_or(u32::MAX),
        });
    }

    fn count_for_quota(&mut self, inode: &InodeView<'_>, clusters: u64, value_inodes: u64) {
        let volume = self.volume;
        let nr = inode.number;
        if !volume.ro_compat(RoCompat::QUOTA)
            || !volume.sb.may_be_named(nr)
            || inode.has(InodeFlags::EA_INODE_FL)
        {
            return;
        }
        if let Some(charged) = volume.changes.charged.get(&nr) {
            if let Some(Charged { owner, bytes }) = *charged {
                let inodes = value_inodes + 1;
                self.usage.add(owner, QuotaCounts { inodes, bytes });
            }
            return;
        }
        let bytes = clusters.saturating_mul(volume.geometry().cluster_size_bytes() as u64);
        let counts = QuotaCounts {
            inodes: value_inodes + 1,
            bytes,
        };
        self.usage.add(owners_of(inode, &volume.sb), counts);
    }

    /// Compares the size with the last block.
    fn size(&mut self, inode: &InodeView<'_>, mapped: &Mapped) {
        let volume = self.volume;
        let found = inode.size_bytes();
        let block_bytes = volume.block_bytes() as u64;
        let inline = inode.has(InodeFlags::INLINE_DATA_FL);
        let file_type = inode.file_type();
        let nr = inode.number;
        let skipped = file_type == Some(FileType::Symlink) || self.state.orphans.contains(&nr);
        let wrong = if inode.is_directory() {
            let blocks = found / block_bytes;
            let spare = u64::from(volume.sb.raw().s_prealloc_dir_blocks);
            let beyond = mapped.end.saturating_sub(blocks);
            !inline && (!found.is_multiple_of(block_bytes) || blocks > mapped.end || beyond > spare)
        } else {
            let extents = inode.has(InodeFlags::EXTENTS_FL) && volume.incompat(Incompat::EXTENTS);
            let last = mapped.written_end.checked_sub(1);
            let beyond = last.is_some_and(|last| found < last.saturating_mul(block_bytes));
            let most = if extents {
                (block_bytes << 32) - 1
            } else {
                let end = blockmap::logical_end(volume.geometry().block_size());
                u64::from(end.0).saturating_mul(block_bytes)
            };
            (beyond && !inode.has(InodeFlags::VERITY_FL)) || found > most
        };
        if wrong && !skipped {
            let mapped = mapped.end.saturating_mul(block_bytes);
            self.findings.push(Finding::InodeSize {
                inode: nr,
                found,
                mapped,
            });
        }
        let large = file_type == Some(FileType::Regular)
            && needs_large_file(found)
            && !volume.ro_compat(RoCompat::LARGE_FILE);
        if large {
            let (inode, size) = (nr, found);
            self.findings.push(Finding::LargeFile { inode, size });
        }
    }

    fn counted_blocks(&mut self, inode: &InodeView<'_>, clusters: u64) {
        let volume = self.volume;
        let geometry = volume.geometry();
        let blocks = clusters << geometry.blocks_per_cluster_log();
        let large = inode.counts_large_blocks(&volume.sb);
        let expected = if large {
            blocks
        } else {
            blocks << (geometry.block_size().bits() - 9)
        };
        let found = inode.counted_blocks(&volume.sb);
        if found != expected {
            let inode = inode.number;
            self.findings.push(Finding::InodeBlocks {
                inode,
                found,
                expected,
            });
        }
    }
}
