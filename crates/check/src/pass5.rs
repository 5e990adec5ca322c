//! **Purpose.** Pass 5: compares bitmaps and free counts with the blocks and inodes in use.
//!
//! **Model.** Bitmaps are compared word by word with the bits of pass 1. A group whose bitmap was
//! never written is compared with the bitmap that the kernel would make.

use std::num::NonZeroUsize;
use std::ops::Range;

use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::{GroupDesc, GroupNr, GroupOffset, InodeNr, PhysBlock};

use crate::bits::Bits;
use crate::finding::Finding;
use crate::open::Recovery;
use crate::parallel::{Pieces, on_threads};
use crate::report::{Findings, Tally};
use crate::state::State;
use crate::volume::{Group, Volume};

/// The number of groups that a thread takes at once: their bitmaps are adjacent.
const AT_ONCE: u64 = 16;

/// Free clusters and inodes, summed over groups.
#[derive(Clone, Copy, Debug, Default)]
struct Free {
    clusters: u64,
    inodes: u64,
}

/// Checks all groups, then the sums of the superblock.
pub(crate) fn run(
    volume: &Volume,
    state: &State,
    recovery: Recovery,
    threads: NonZeroUsize,
    findings: &mut Findings,
    tally: &mut Tally,
) {
    let pieces = Pieces::new(volume.groups.len() as u64, AT_ONCE);
    let limit = findings.limit();
    let found = on_threads(threads, || {
        let mut checker = Checker {
            volume,
            state,
            findings: Findings::new(limit),
            free: Free::default(),
            bitmap: vec![0; volume.block_bytes()],
        };
        while let Some(groups) = pieces.take() {
            for nr in groups {
                checker.group(GroupNr(u32::try_from(nr).unwrap_or(u32::MAX)));
            }
        }
        (checker.findings, checker.free)
    });
    let mut free = Free::default();
    for (more, part) in found {
        findings.merge(more);
        free.clusters += part.clusters;
        free.inodes += part.inodes;
    }
    let ratio = volume.geometry().blocks_per_cluster_log();
    tally.blocks = volume.clusters().saturating_sub(free.clusters) << ratio;
    // The kernel updates these sums at unmount; before, they mean nothing.
    if recovery == Recovery::None {
        check_sums(volume, free, findings);
    }
}

fn check_sums(volume: &Volume, free: Free, findings: &mut Findings) {
    let ratio = volume.geometry().blocks_per_cluster_log();
    let (found, expected) = (volume.sb.free_blocks().0, free.clusters << ratio);
    if found != expected {
        findings.push(Finding::FreeBlocks { found, expected });
    }
    let expected = u32::try_from(free.inodes).unwrap_or(u32::MAX);
    let found = volume.sb.free_inodes();
    if found != expected {
        findings.push(Finding::FreeInodes { found, expected });
    }
}

struct Checker<'a> {
    volume: &'a Volume,
    state: &'a State,
    findings: Findings,
    free: Free,
    bitmap: Vec<u8>,
}

/// Runs of bits in which a bitmap differs from the clusters or inodes in use.
#[derive(Default)]
struct Differences {
    /// In use, but marked free.
    not_marked: Vec<Range<u32>>,
    /// Marked used, but not in use.
    not_used: Vec<Range<u32>>,
}

impl Checker<'_> {
    fn group(&mut self, nr: GroupNr) {
        let volume = self.volume;
        let Some(group) = volume.group(nr) else {
            return;
        };
        self.blocks(nr, group);
        self.inodes(nr, group);
    }

    fn blocks(&mut self, nr: GroupNr, group: &Group) {
        let (volume, geometry) = (self.volume, self.volume.geometry());
        let first = volume.cluster(geometry.group_first_block(nr));
        let clusters = geometry.group_clusters(nr);
        let used = self
            .state
            .found
            .count_in(first..first + u64::from(clusters));
        let expected = clusters - u32::try_from(used).unwrap_or(clusters);
        self.free.clusters += u64::from(expected);
        let uninit =
            volume.has_group_checksums() && group.desc.flags().contains(GroupFlags::BLOCK_UNINIT);
        if uninit {
            uninit_block_bitmap(volume, nr, group, &mut self.bitmap);
        } else if !self.read(nr, group.block_bitmap, Which::Blocks, group) {
            return;
        }
        let differences = compare(&self.bitmap, &self.state.found, first, clusters);
        self.report(&differences, |marked, run| {
            let block = volume.cluster_start(first + u64::from(run.start));
            let end = volume.cluster_start(first + u64::from(run.end));
            let (group, count) = (nr, end.0 - block.0);
            match marked {
                Marked::Free => Finding::BlockNotMarked {
                    group,
                    block,
                    count,
                },
                Marked::Used => Finding::BlockNotUsed {
                    group,
                    block,
                    count,
                },
            }
        });
        if !uninit {
            self.padding(nr, clusters, "block");
        }
        let found = group.desc.free_clusters();
        if found != expected {
            self.findings.push(Finding::GroupFreeBlocks {
                group: nr,
                found,
                expected,
            });
        }
    }

    /// Reports each run in which a bitmap is wrong.
    fn report(&mut self, wrong: &Differences, finding: impl Fn(Marked, &Range<u32>) -> Finding) {
        let free = wrong.not_marked.iter().map(|run| (Marked::Free, run));
        let used = wrong.not_used.iter().map(|run| (Marked::Used, run));
        for (marked, run) in free.chain(used) {
            self.findings.push(finding(marked, run));
        }
    }

    fn inodes(&mut self, nr: GroupNr, group: &Group) {
        let geometry = self.volume.geometry();
        let count = geometry.inodes_per_group();
        let Some(first) = geometry.inode_at(nr, GroupOffset(0)) else {
            return;
        };
        let range = u64::from(first.0)..u64::from(first.0) + u64::from(count);
        let used = self.state.used.count_in(range.clone());
        let expected = count - u32::try_from(used).unwrap_or(count);
        let directories = self.state.directories.count_in(range);
        self.free.inodes += u64::from(expected);
        let uninit = self.volume.has_group_checksums()
            && group.desc.flags().contains(GroupFlags::INODE_UNINIT);
        if uninit {
            self.bitmap.fill(0);
        } else if !self.read(nr, group.inode_bitmap, Which::Inodes, group) {
            return;
        }
        let differences = compare(&self.bitmap, &self.state.used, first.0.into(), count);
        self.report(&differences, |marked, run| {
            let inode = InodeNr(first.0 + run.start);
            let (group, count) = (nr, run.end - run.start);
            match marked {
                Marked::Free => Finding::InodeNotMarked {
                    group,
                    inode,
                    count,
                },
                Marked::Used => Finding::InodeNotUsed {
                    group,
                    inode,
                    count,
                },
            }
        });
        if !uninit {
            self.padding(nr, count, "inode");
        }
        self.inode_counts(nr, &group.desc, expected, directories);
    }

    fn inode_counts(&mut self, group: GroupNr, desc: &GroupDesc, expected: u32, dirs: u64) {
        let found = desc.free_inodes();
        if found != expected {
            self.findings.push(Finding::GroupFreeInodes {
                group,
                found,
                expected,
            });
        }
        let (found, expected) = (desc.used_dirs(), u32::try_from(dirs).unwrap_or(u32::MAX));
        if found != expected {
            self.findings.push(Finding::GroupDirs {
                group,
                found,
                expected,
            });
        }
    }

    /// Reads a bitmap and checks its checksum; `false` if it cannot be read.
    fn read(&mut self, nr: GroupNr, place: Option<PhysBlock>, which: Which, group: &Group) -> bool {
        // Pass 0 reports an invalid place.
        let Some(block) = place else {
            return false;
        };
        if let Err(error) = self.volume.read(block, &mut self.bitmap) {
            let why = error.to_string();
            self.findings.push(Finding::Unreadable { block, why });
            return false;
        }
        let sb = &self.volume.sb;
        let checked = match which {
            Which::Blocks => group.desc.verify_block_bitmap(&self.bitmap, sb),
            Which::Inodes => group.desc.verify_inode_bitmap(&self.bitmap, sb),
        };
        if let Err(why) = checked {
            self.findings
                .push(Finding::BitmapChecksum { group: nr, why });
        }
        true
    }

    fn padding(&mut self, group: GroupNr, bits: u32, bitmap: &'static str) {
        let bits = bits as usize;
        let set = |bit: usize| {
            let byte = self.bitmap.get(bit / 8).copied().unwrap_or(u8::MAX);
            byte >> (bit % 8) & 1 == 1
        };
        let whole = bits.div_ceil(8);
        let rest = self.bitmap.get(whole..).unwrap_or(&[]);
        let complete = (bits..whole * 8).all(set) && rest.iter().all(|&byte| byte == u8::MAX);
        if !complete {
            self.findings.push(Finding::BitmapPadding { group, bitmap });
        }
    }
}

/// Makes the block bitmap of a group with `BLOCK_UNINIT`: its own fixed metadata is in use. Bits
/// past the end of the group are not set.
pub(crate) fn uninit_block_bitmap(volume: &Volume, nr: GroupNr, group: &Group, bitmap: &mut [u8]) {
    let geometry = volume.geometry();
    bitmap.fill(0);
    let first = volume.cluster(geometry.group_first_block(nr));
    let blocks = geometry.group_blocks(nr);
    let base = blocks.start.0..blocks.start.0 + u64::from(geometry.base_meta_blocks(nr));
    let table_blocks = u64::from(geometry.inode_table_blocks());
    let place = |start: Option<PhysBlock>, count: u64| {
        let start = start.map_or(0, |start| start.0);
        start..start + count
    };
    let own = [
        base,
        place(group.block_bitmap, 1),
        place(group.inode_bitmap, 1),
        place(group.inode_table, table_blocks),
    ];
    for run in own {
        let (start, end) = (run.start.max(blocks.start.0), run.end.min(blocks.end.0));
        if start >= end {
            continue;
        }
        let bits = volume.cluster(PhysBlock(start))..=volume.cluster(PhysBlock(end - 1));
        for bit in bits {
            let bit = usize::try_from(bit - first).unwrap_or(usize::MAX);
            if let Some(byte) = bitmap.get_mut(bit / 8) {
                *byte |= 1 << (bit % 8);
            }
        }
    }
}

/// How a bitmap marks a run.
#[derive(Clone, Copy)]
enum Marked {
    Free,
    Used,
}

/// One of the two bitmaps of a group.
#[derive(Clone, Copy)]
enum Which {
    Blocks,
    Inodes,
}

/// Compares the first `count` bits of a bitmap with those of `in_use` from `first` on.
fn compare(bitmap: &[u8], in_use: &Bits, first: u64, count: u32) -> Differences {
    let mut differences = Differences::default();
    let words = bitmap.chunks_exact(8).take(count.div_ceil(64) as usize);
    for (at, word) in (0_u32..).step_by(64).zip(words) {
        let marked = u64::from_le_bytes(word.try_into().unwrap_or([0; 8]));
        let used = in_use.bits_at(first + u64::from(at));
        let left = count - at;
        let mask = if left < 64 { (1 << left) - 1 } else { u64::MAX };
        if (marked ^ used) & mask != 0 {
            add_runs(&mut differences.not_marked, used & !marked & mask, at);
            add_runs(&mut differences.not_used, marked & !used & mask, at);
        }
    }
    differences
}

/// Adds the runs of ones of a word whose first bit is number `at`.
fn add_runs(runs: &mut Vec<Range<u32>>, mut word: u64, at: u32) {
    while word != 0 {
        let first = word.trailing_zeros();
        let count = (word >> first).trailing_ones();
        let run = at + first..at + first + count;
        match runs.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => runs.push(run),
        }
        word &= !((u64::MAX >> (64 - count)) << first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_runs_across_words() {
        let in_use = Bits::new(1000);
        in_use.insert_run(100..230, |_| {});
        let mut bitmap = vec![0; 32];
        // Bits 0 to 129 stand for 100 to 229.
        bitmap[..8].fill(u8::MAX);
        bitmap[20] = 1;
        let found = compare(&bitmap, &in_use, 100, 200);
        assert_eq!(found.not_marked, [64..130]);
        assert_eq!(found.not_used, [160..161]);
        let none = compare(&bitmap, &in_use, 100, 64);
        assert!(none.not_marked.is_empty() && none.not_used.is_empty());
    }
}
