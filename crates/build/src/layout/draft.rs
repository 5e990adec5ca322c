//! **Purpose.** Allocates blocks for data that is written to the image before the layout is known,
//! and decides which of these blocks can stay.
//!
//! **Not here.** Writing the data (`source::draft`); the allocation of everything else (`place`).
//!
//! **Model.** Only superblocks and group descriptors have fixed locations: the first blocks of each
//! group with a backup. How many blocks they take depends on the size of the file system. So a
//! draft leaves as much space as a file system of any likely size needs: as many descriptor blocks
//! as there can be reserved ones (enough for 8 TiB with 4 KiB blocks), and the largest number of
//! reserved ones. Blocks of it that turn out to be unused are allocated for tables and directories
//! later.
//!
//! The data of a file is allocated contiguously after the previous file. If a backup would split it
//! and the file is small, it is allocated after the backup instead; later, smaller files fill the
//! gap.
//!
//! When the size is known, data blocks before the end of the file system stay, and those after the
//! end are copied to free blocks. Since no block after the end is allocated, no block is
//! overwritten before it is read. Hence gaps, and files that later entries replaced, cost the copy
//! of as many blocks from the end of the stream, but no space.
//!
//! **Invariants.** In the draft, the offset of a byte in its file and its offset in the image are
//! equal modulo the block size, and no two files share a block.

use std::ops::Range as Span;

use fourscore_mkfs::Skeleton;
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{GroupNr, PhysBlock};

use super::content::{Range, ranges_of_parts};
use super::mapping::{Run, push_run, runs_in_pieces};
use super::pool::Pool;
use super::size::draft_skeleton;
use crate::options::Options;
use crate::tree::{Content, DataPlace, FileId, NodeId, Piece, Stored, Tree};

/// A file of at most this size is not split by a backup of the superblock.
const WHOLE_BYTES: u64 = 8 << 20;
/// End of the blocks that a draft may use.
const DRAFT_END: u64 = 1 << 32;

/// Allocates blocks for streamed data.
#[derive(Debug)]
pub(crate) struct DraftSpace {
    block_bits: u32,
    pool: Pool,
    ranges: Vec<Range>,
    pieces: Vec<Span<u64>>,
}

impl DraftSpace {
    /// The space of a file system with these options; `None` if its tables are tied to their
    /// groups, or the options are invalid.
    pub(crate) fn of(options: &Options) -> Option<Self> {
        let skeleton: Skeleton = draft_skeleton(options).ok()?;
        let sb = skeleton.superblock();
        let runs = runs_between_superblocks(sb)?;
        Some(Self {
            block_bits: sb.geometry().block_size().bits(),
            pool: Pool::new(runs),
            ranges: Vec::new(),
            pieces: Vec::new(),
        })
    }

    pub(crate) fn block_bits(&self) -> u32 {
        self.block_bits
    }

    /// Allocates blocks for the data of a file, given as byte ranges in order.
    /// Returns false if there is no space.
    pub(crate) fn place(
        &mut self,
        parts: impl Iterator<Item = Span<u64>>,
        runs: &mut Vec<Run>,
    ) -> bool {
        runs.clear();
        self.pieces.clear();
        ranges_of_parts(parts, self.block_bits, &mut self.ranges);
        let blocks = self.ranges.iter().map(|range| range.blocks).sum();
        let pieces = &mut self.pieces;
        let taken = match blocks << self.block_bits <= WHOLE_BYTES {
            true => self.pool.take(blocks, |piece| pieces.push(piece)),
            false => self.pool.take_next(blocks, |piece| pieces.push(piece)),
        };
        runs_in_pieces(&self.ranges, &self.ranges, pieces, runs);
        taken
    }
}

/// The blocks that a file system with these options never needs for superblocks and descriptors,
/// whatever its size.
fn runs_between_superblocks(sb: &Superblock) -> Option<Vec<Span<u64>>> {
    let (geometry, features) = (sb.geometry(), sb.features());
    let tied = Incompat::META_BG | Incompat::INLINE_DATA;
    let can_place_freely = features.incompat.contains(Incompat::FLEX_BG)
        && !features.incompat.intersects(tied)
        && !features.ro_compat.contains(RoCompat::BIGALLOC)
        // The last group, whose number is unknown, has a backup.
        && !features.compat.contains(Compat::SPARSE_SUPER2);
    if !can_place_freely {
        return None;
    }
    let per_group = u64::from(geometry.blocks_per_group());
    let groups = u32::try_from(DRAFT_END / per_group).ok()?;
    let pointers = geometry.block_size().bytes() as u64 / 4;
    let table = u64::from(groups.div_ceil(geometry.descs_per_block()));
    let reserved = 1 + table.min(2 * pointers);
    if reserved >= per_group {
        return None;
    }
    let first = geometry.first_data_block().0;
    let mut runs: Vec<Span<u64>> = Vec::new();
    for group in (0..groups).filter(|&group| geometry.has_super(GroupNr(group))) {
        let start = first + u64::from(group) * per_group;
        if let Some(last) = runs.last_mut() {
            last.end = start;
        }
        runs.push(start + reserved..first + u64::from(groups) * per_group);
    }
    Some(runs)
}

/// The image that was begun while the sources were read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftFile {
    /// The image among the open files of the tree.
    pub(crate) file: FileId,
    /// log2 of the block size with which data was written to it.
    pub(crate) block_bits: u32,
}

/// The data that is already in the image.
#[derive(Debug)]
pub(crate) struct StreamedData {
    file: FileId,
    block_bits: u32,
    /// All runs: sorted, with gaps between them.
    runs: Vec<Span<PhysBlock>>,
}

impl StreamedData {
    /// Collects the data of these objects that is in the draft; `None` if two of them share
    /// a block, which a draft does not do.
    pub(crate) fn new(tree: &Tree, nodes: &[NodeId], draft: DraftFile) -> Option<Self> {
        let DraftFile { file, block_bits } = draft;
        let mut streamed = Self {
            file,
            block_bits,
            runs: Vec::new(),
        };
        let mut all: Vec<Span<u64>> = Vec::new();
        let mut of_node = Vec::new();
        for &node in nodes {
            streamed.runs_of(tree, node, u64::MAX, &mut of_node);
            all.extend(
                of_node
                    .iter()
                    .map(|run| run.physical..run.physical + run.blocks),
            );
        }
        all.sort_unstable_by_key(|run| run.start);
        for run in all {
            match streamed.runs.last_mut() {
                Some(last) if run.start < last.end.0 => return None,
                Some(last) if run.start == last.end.0 => last.end.0 = run.end,
                _ => streamed.runs.push(PhysBlock(run.start)..PhysBlock(run.end)),
            }
        }
        Some(streamed)
    }

    /// All runs: sorted, with gaps between them.
    pub(crate) fn runs(&self) -> &[Span<PhysBlock>] {
        &self.runs
    }

    /// Number of blocks before `end`.
    pub(crate) fn blocks_below(&self, end: u64) -> u64 {
        let cut = |run: &Span<PhysBlock>| run.end.0.min(end).saturating_sub(run.start.0);
        self.runs.iter().map(cut).sum()
    }

    /// Collects the runs of an object before `end`.
    pub(crate) fn runs_of(&self, tree: &Tree, node: NodeId, end: u64, out: &mut Vec<Run>) {
        out.clear();
        for piece in self.pieces(tree, node).iter() {
            let mut run = self.run(piece);
            // Two pieces may share a block.
            let seen = out.last().map_or(0, |last| last.logical + last.blocks);
            let again = seen.saturating_sub(run.logical);
            run.logical += again;
            run.physical += again;
            run.blocks = run.blocks.saturating_sub(again);
            run.blocks = run.blocks.min(end.saturating_sub(run.physical));
            if run.blocks > 0 {
                push_run(out, run);
            }
        }
    }

    /// Whether a run of an object, which is either entirely in the draft's blocks or not at all, is
    /// in them.
    pub(crate) fn stays_in_place(&self, tree: &Tree, node: NodeId, run: Run) -> bool {
        let pieces = self.pieces(tree, node);
        let ends_before = |piece: &Piece| {
            let own = self.run(piece);
            own.logical + own.blocks <= run.logical
        };
        let at = pieces.partition_point(ends_before);
        pieces.get(at).is_some_and(|piece| {
            let own = self.run(piece);
            own.logical <= run.logical && own.physical + (run.logical - own.logical) == run.physical
        })
    }

    /// The blocks of a piece.
    fn run(&self, piece: &Piece) -> Run {
        let bits = self.block_bits;
        let logical = piece.at >> bits;
        Run {
            logical,
            physical: piece.from >> bits,
            blocks: (piece.at + piece.len_bytes).div_ceil(1 << bits) - logical,
        }
    }

    /// The pieces of an object in the draft.
    fn pieces<'a>(&self, tree: &'a Tree, node: NodeId) -> std::borrow::Cow<'a, [Piece]> {
        match &tree.node(node).stored {
            Stored::File(Content::Range {
                file,
                offset,
                len_bytes,
            }) if *file == self.file => vec![Piece {
                at: 0,
                from: *offset,
                len_bytes: *len_bytes,
            }]
            .into(),
            Stored::File(Content::Sparse(sparse)) if sparse.data == DataPlace::Open(self.file) => {
                sparse.pieces.as_slice().into()
            }
            _ => [].as_slice().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Kind, Meta, Sparse, Xattrs};

    #[test]
    fn data_avoids_superblocks_and_small_files_are_contiguous() {
        let mut space = DraftSpace::of(&Options::new()).unwrap();
        let (bits, mut runs) = (space.block_bits(), Vec::new());
        assert_eq!(bits, 12);
        // One superblock, 1024 descriptor blocks, and as many reserved ones.
        assert!(space.place([0..1].into_iter(), &mut runs));
        assert_eq!(runs, [run(0, 2049, 1)]);
        // A large file is split by the backup in group 1.
        let blocks = 32768;
        assert!(space.place([0..blocks << bits].into_iter(), &mut runs));
        let first = 32768 - 2050;
        let rest = run(first, 32768 + 2049, blocks - first);
        assert_eq!(runs, [run(0, 2050, first), rest]);
        // A small file goes after the backup in group 3, and a smaller one before it.
        let left = 3 * 32768 - (rest.physical + rest.blocks) - 1000;
        assert!(space.place([0..left << bits].into_iter(), &mut runs));
        assert!(space.place([0..1001 << bits].into_iter(), &mut runs));
        assert_eq!(runs, [run(0, 3 * 32768 + 2049, 1001)]);
        assert!(space.place([5..12, 1 << 20..(1 << 20) + 9000].into_iter(), &mut runs));
        let at = 3 * 32768 - 1000;
        assert_eq!(runs, [run(0, at, 1), run(256, at + 1, 3)]);
    }

    #[test]
    fn there_is_no_draft_if_tables_are_tied_to_their_groups() {
        for features in [
            "^flex_bg",
            "meta_bg,^resize_inode",
            "bigalloc",
            "inline_data",
        ] {
            let mut options = Options::new();
            options.format.features = Some(features.to_owned());
            assert!(DraftSpace::of(&options).is_none(), "{features}");
        }
    }

    const DRAFT: DraftFile = DraftFile {
        file: FileId(0),
        block_bits: 12,
    };

    fn run(logical: u64, physical: u64, blocks: u64) -> Run {
        Run {
            logical,
            physical,
            blocks,
        }
    }

    fn tree(contents: Vec<Content>) -> (Tree, Vec<NodeId>) {
        let mut tree = Tree::new();
        let put = |(number, content)| {
            let path = format!("{number}");
            let (kind, meta) = (Kind::File(content), Meta::default());
            tree.insert(path.as_bytes(), &meta, kind, &Xattrs::new())
                .unwrap()
        };
        let nodes = contents.into_iter().enumerate().map(put).collect();
        (tree, nodes)
    }

    fn piece(at: u64, from: u64, len_bytes: u64) -> Piece {
        Piece {
            at,
            from,
            len_bytes,
        }
    }

    #[test]
    fn blocks_before_the_end_stay() {
        let dense = Content::Range {
            file: FileId(0),
            offset: 10 << 12,
            len_bytes: 3 << 12,
        };
        let elsewhere = Content::Range {
            file: FileId(1),
            offset: 0,
            len_bytes: 5,
        };
        // One piece ends and another begins in the second block.
        let holes = Content::Sparse(Box::new(Sparse {
            data: DataPlace::Open(FileId(0)),
            len_bytes: 1 << 20,
            pieces: vec![
                piece(0, 20 << 12, 5000),
                piece(6000, (20 << 12) + 6000, 100),
                piece(40960, 22 << 12, 4096),
            ],
        }));
        let (tree, nodes) = tree(vec![dense, elsewhere, holes]);
        let streamed = StreamedData::new(&tree, &nodes, DRAFT).unwrap();
        let block = |number| PhysBlock(number);
        assert_eq!(
            streamed.runs(),
            [block(10)..block(13), block(20)..block(23)]
        );
        assert_eq!(streamed.blocks_below(22), 5);
        let below = |node, end| {
            let mut runs = Vec::new();
            streamed.runs_of(&tree, node, end, &mut runs);
            runs
        };
        assert_eq!(below(nodes[0], 12), [run(0, 10, 2)]);
        assert_eq!(below(nodes[1], u64::MAX), []);
        assert_eq!(below(nodes[2], u64::MAX), [run(0, 20, 2), run(10, 22, 1)]);
        assert_eq!(below(nodes[2], 21), [run(0, 20, 1)]);
        assert!(streamed.stays_in_place(&tree, nodes[2], run(10, 22, 1)));
        assert!(streamed.stays_in_place(&tree, nodes[0], run(1, 11, 2)));
        assert!(!streamed.stays_in_place(&tree, nodes[0], run(0, 11, 1)));
        assert!(!streamed.stays_in_place(&tree, nodes[1], run(0, 0, 1)));
    }

    #[test]
    fn a_block_shared_by_two_files_is_refused() {
        let content = |offset| Content::Range {
            file: FileId(0),
            offset,
            len_bytes: 8192,
        };
        let (tree, nodes) = tree(vec![content(40960), content(45056)]);
        assert!(StreamedData::new(&tree, &nodes, DRAFT).is_none());
    }
}
