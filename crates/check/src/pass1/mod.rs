//! **Purpose.** Pass 1: every inode, its map, and the blocks that it claims.
//!
//! **Model.** Threads take groups in order. The used part of each inode table is read in large
//! pieces, and inodes are checked in place. The map of an inode is followed at once, and its blocks
//! are claimed in a bitmap. Directories are collected for pass 2.
//!
//! | module | responsibility |
//! |---|---|
//! | `fields` | the inode's own fields, and the roles of reserved inodes |
//! | `special` | symbolic links, devices, pipes, sockets |
//! | `blocks` | the map, compared with size and counts |
//! | `xattrs` | attributes inside the inode and in blocks |
//! | `orphans` | the orphan list and the orphan file |
//!
//! **Invariants.** An inode whose map fits into its `i_block` is checked without allocation.

mod blocks;
mod fields;
pub(crate) mod orphans;
mod special;
mod xattrs;

use std::num::NonZeroUsize;

use fourscore_ondisk::quota::QuotaUsage;
use fourscore_ondisk::{GroupNr, GroupOffset, PhysBlock};

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::parallel::{Pieces, on_threads};
use crate::policies::PolicyRuns;
use crate::report::{Findings, Tally};
use crate::state::{Directories, Scanned, State};
use crate::volume::Volume;
use crate::walk::Walker;

pub(crate) use blocks::has_map;

/// Bytes of an inode table that are read at once.
const PIECE_BYTES: usize = 512 << 10;

/// The state of one thread.
struct Scanner<'a> {
    volume: &'a Volume,
    state: &'a State,
    walker: Walker<'a>,
    findings: Findings,
    directories: Directories,
    policies: PolicyRuns,
    usage: QuotaUsage,
    tally: Tally,
    /// A buffer for a block of attributes or of a symbolic link.
    block: Vec<u8>,
    /// A buffer for an inode that holds an attribute value.
    other_inode: Vec<u8>,
    /// A buffer for the places of values in an area of attributes.
    places: Vec<(usize, usize)>,
    /// Whether small times of deletion are links of an orphan list: not if the clock was that low.
    checks_dtime: bool,
}

/// Checks all inodes.
pub(crate) fn run(
    volume: &Volume,
    state: &State,
    threads: NonZeroUsize,
    findings: &mut Findings,
    tally: &mut Tally,
) -> Scanned {
    let limit = findings.limit();
    let pieces = Pieces::new(volume.groups.len() as u64, 1);
    let scanners = on_threads(threads, || {
        let mut scanner = Scanner::new(volume, state, limit);
        let mut piece = Vec::new();
        while let Some(groups) = pieces.take() {
            for nr in groups {
                scanner.group(GroupNr(u32::try_from(nr).unwrap_or(u32::MAX)), &mut piece);
            }
        }
        (
            scanner.findings,
            scanner.directories,
            scanner.policies,
            scanner.usage,
            scanner.tally,
        )
    });
    let mut scanned = Scanned::default();
    let mut policies = Vec::new();
    for (found, directories, runs, usage, part) in scanners {
        findings.merge(found);
        scanned.directories.push(directories);
        policies.push(runs);
        scanned.usage.merge(&usage);
        tally.inodes += part.inodes;
        tally.directories += part.directories;
    }
    scanned.policies = PolicyRuns::gather(policies);
    xattrs::check_refcounts(state, findings);
    scanned
}

impl<'a> Scanner<'a> {
    fn new(volume: &'a Volume, state: &'a State, limit: u64) -> Self {
        let raw = volume.sb.raw();
        let inodes = volume.geometry().inodes();
        let times = [raw.s_wtime, raw.s_mtime, raw.s_mkfs_time].map(|time| time.get());
        Self {
            volume,
            state,
            walker: Walker::new(volume),
            findings: Findings::new(limit),
            directories: Directories::default(),
            policies: PolicyRuns::default(),
            usage: QuotaUsage::default(),
            tally: Tally::default(),
            block: Vec::new(),
            other_inode: Vec::new(),
            places: Vec::new(),
            checks_dtime: times.iter().all(|&time| time == 0 || time >= inodes),
        }
    }

    /// Checks the inodes of a group; `piece` is a buffer for parts of its table.
    fn group(&mut self, nr: GroupNr, piece: &mut Vec<u8>) {
        let volume = self.volume;
        let Some((group, table)) = volume
            .group(nr)
            .and_then(|group| Some((group, group.inode_table?)))
        else {
            return;
        };
        let per_block = volume.geometry().inodes_per_block();
        let blocks = u64::from(volume.inodes_to_read(group).div_ceil(per_block));
        let block_bytes = volume.block_bytes();
        let step = (PIECE_BYTES / block_bytes).max(1) as u64;
        let mut index = 0;
        let mut at = 0;
        while at < blocks {
            let count = step.min(blocks - at);
            piece.resize(usize::try_from(count).unwrap_or(1) * block_bytes, 0);
            let findings = &mut self.findings;
            volume.read_run(PhysBlock(table.0 + at), piece, |block, error| {
                let why = error.to_string();
                findings.push(Finding::Unreadable { block, why });
            });
            self.inodes(nr, index, volume.inodes_to_read(group), piece);
            index += u32::try_from(count).unwrap_or(1) * per_block;
            at += count;
        }
    }

    /// Checks the inodes from `index` on that lie in a piece, up to `end`.
    fn inodes(&mut self, nr: GroupNr, index: u32, end: u32, piece: &[u8]) {
        let geometry = self.volume.geometry();
        let size = geometry.inode_size_bytes();
        let end = end.min(geometry.inodes_per_group());
        for (index, bytes) in (index..end).zip(piece.chunks_exact(size)) {
            let Some(number) = geometry.inode_at(nr, GroupOffset(index)) else {
                return;
            };
            if let Some(inode) = InodeView::new(bytes, number) {
                self.inode(&inode);
            }
        }
    }
}
