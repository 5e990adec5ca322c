//! **Purpose.** Contents that lie in the image before anything else is decided: where they go as
//! they arrive, and what of them can stay.
//!
//! **Not here.** Writing them (`source::draft`); everything that is placed around them (`place`).
//!
//! **Model.** Only superblocks and descriptors have places that nobody can choose: the first blocks
//! of the groups that have a copy. How many blocks these will be depends on the size. So a draft
//! leaves as much room as a file system of any likely size needs: descriptors up to as many blocks
//! as there may be reserved ones (8 TiB with blocks of 4 KiB), and as many reserved ones as there
//! can be. What of it is not needed is not lost: tables and directories go there.
//!
//! A content goes whole behind the one before, or behind the next copy if it would be cut by that
//! and is small; smaller ones that follow fill the gap.
//!
//! When the size is found, blocks in front of the end of the file system stay and those behind it
//! move into what is free: since nothing is placed behind the end, no block is overwritten before
//! it was read. So gaps, and what later entries replaced, cost the copy of as many blocks from the
//! end of the stream, and no space.
//!
//! **Invariants.** A block of the file is in the block of the image that its bytes in the draft are
//! in, and no two files have one block.

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

/// A content of at most so many bytes is not cut by the copy of a superblock.
const WHOLE_BYTES: u64 = 8 << 20;
/// One past the last block that a draft uses.
const DRAFT_END: u64 = 1 << 32;

/// The blocks in which contents are put as they arrive.
#[derive(Debug)]
pub(crate) struct DraftSpace {
    block_bits: u32,
    pool: Pool,
    ranges: Vec<Range>,
    pieces: Vec<Span<u64>>,
}

impl DraftSpace {
    /// The space of a file system with these options; `None` where tables are tied to their
    /// groups, or the options make no file system.
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

    /// Places a file with data in these parts: where they are and how long, in bytes. Says whether
    /// there was room.
    pub(crate) fn place(
        &mut self,
        parts: impl Iterator<Item = (u64, u64)>,
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

/// The blocks that no file system of this form needs for superblocks and descriptors, whatever
/// its size.
fn runs_between_superblocks(sb: &Superblock) -> Option<Vec<Span<u64>>> {
    let (geometry, features) = (sb.geometry(), sb.features());
    let tied = Incompat::META_BG | Incompat::INLINE_DATA;
    let is_free_to_place = features.incompat.contains(Incompat::FLEX_BG)
        && !features.incompat.intersects(tied)
        && !features.ro_compat.contains(RoCompat::BIGALLOC)
        // The last group, wherever it will be, has a copy.
        && !features.compat.contains(Compat::SPARSE_SUPER2);
    if !is_free_to_place {
        return None;
    }
    let per_group = u64::from(geometry.blocks_per_group());
    let groups = u32::try_from(DRAFT_END / per_group).ok()?;
    let pointers = geometry.block_size().bytes() as u64 / 4;
    let table = u64::from(groups.div_ceil(geometry.descs_per_block()));
    let kept_free = 1 + table.min(2 * pointers);
    if kept_free >= per_group {
        return None;
    }
    let first = geometry.first_data_block().0;
    let mut runs: Vec<Span<u64>> = Vec::new();
    for group in (0..groups).filter(|&group| geometry.has_super(GroupNr(group))) {
        let start = first + u64::from(group) * per_group;
        if let Some(last) = runs.last_mut() {
            last.end = start;
        }
        runs.push(start + kept_free..first + u64::from(groups) * per_group);
    }
    Some(runs)
}

/// What of the contents lies in the image already.
#[derive(Debug)]
pub(crate) struct Arrived {
    file: FileId,
    block_bits: u32,
    /// All of it: sorted, none touching the next.
    runs: Vec<Span<PhysBlock>>,
}

impl Arrived {
    /// What of these objects lies in `file`, the draft; `None` if a block were in two of them,
    /// which no draft makes.
    pub(crate) fn new(
        tree: &Tree,
        nodes: &[NodeId],
        file: FileId,
        block_bits: u32,
    ) -> Option<Self> {
        let mut arrived = Self {
            file,
            block_bits,
            runs: Vec::new(),
        };
        let mut all: Vec<Span<u64>> = Vec::new();
        let mut of_node = Vec::new();
        for &node in nodes {
            arrived.runs_of(tree, node, u64::MAX, &mut of_node);
            all.extend(
                of_node
                    .iter()
                    .map(|run| run.physical..run.physical + run.blocks),
            );
        }
        all.sort_unstable_by_key(|run| run.start);
        for run in all {
            match arrived.runs.last_mut() {
                Some(last) if run.start < last.end.0 => return None,
                Some(last) if run.start == last.end.0 => last.end.0 = run.end,
                _ => arrived.runs.push(PhysBlock(run.start)..PhysBlock(run.end)),
            }
        }
        Some(arrived)
    }

    /// All of it: sorted, none touching the next.
    pub(crate) fn runs(&self) -> &[Span<PhysBlock>] {
        &self.runs
    }

    /// How many blocks of it lie in front of `end`.
    pub(crate) fn blocks_below(&self, end: u64) -> u64 {
        let cut = |run: &Span<PhysBlock>| run.end.0.min(end).saturating_sub(run.start.0);
        self.runs.iter().map(cut).sum()
    }

    /// Which blocks of an object lie in front of `end`, and where.
    pub(crate) fn runs_of(&self, tree: &Tree, node: NodeId, end: u64, out: &mut Vec<Run>) {
        out.clear();
        for piece in self.pieces(tree, node).iter() {
            let mut run = self.run(piece);
            // Two pieces may begin and end in one block.
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

    /// Whether a run of an object, all of which stayed or moved, stayed.
    pub(crate) fn has_stayed(&self, tree: &Tree, node: NodeId, run: Run) -> bool {
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

    /// The blocks that a piece has a part in.
    fn run(&self, piece: &Piece) -> Run {
        let bits = self.block_bits;
        let logical = piece.at >> bits;
        Run {
            logical,
            physical: piece.from >> bits,
            blocks: (piece.at + piece.len_bytes).div_ceil(1 << bits) - logical,
        }
    }

    /// The parts of an object that lie in the draft.
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
    fn contents_keep_clear_of_superblocks_and_small_ones_stay_whole() {
        let mut space = DraftSpace::of(&Options::new()).unwrap();
        let (bits, mut runs) = (space.block_bits(), Vec::new());
        assert_eq!(bits, 12);
        // A superblock, 1024 blocks of descriptors, and as many in reserve.
        assert!(space.place([(0, 1)].into_iter(), &mut runs));
        assert_eq!(runs, [run(0, 2049, 1)]);
        // A large content is cut by the copy in group 1.
        let blocks = 32768;
        assert!(space.place([(0, blocks << bits)].into_iter(), &mut runs));
        let first = 32768 - 2050;
        let rest = run(first, 32768 + 2049, blocks - first);
        assert_eq!(runs, [run(0, 2050, first), rest]);
        // A small one goes behind the copy in group 3, and a smaller one in front of it.
        let left = 3 * 32768 - (rest.physical + rest.blocks) - 1000;
        assert!(space.place([(0, left << bits)].into_iter(), &mut runs));
        assert!(space.place([(0, 1001 << bits)].into_iter(), &mut runs));
        assert_eq!(runs, [run(0, 3 * 32768 + 2049, 1001)]);
        assert!(space.place([(5, 7), (1 << 20, 9000)].into_iter(), &mut runs));
        let at = 3 * 32768 - 1000;
        assert_eq!(runs, [run(0, at, 1), run(256, at + 1, 3)]);
    }

    #[test]
    fn where_tables_are_tied_to_their_groups_there_is_no_draft() {
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
    fn blocks_in_front_of_the_end_stay() {
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
        // The second block has the end of one piece and the start of another.
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
        let arrived = Arrived::new(&tree, &nodes, FileId(0), 12).unwrap();
        let block = |number| PhysBlock(number);
        assert_eq!(arrived.runs(), [block(10)..block(13), block(20)..block(23)]);
        assert_eq!(arrived.blocks_below(22), 5);
        let below = |node, end| {
            let mut runs = Vec::new();
            arrived.runs_of(&tree, node, end, &mut runs);
            runs
        };
        assert_eq!(below(nodes[0], 12), [run(0, 10, 2)]);
        assert_eq!(below(nodes[1], u64::MAX), []);
        assert_eq!(below(nodes[2], u64::MAX), [run(0, 20, 2), run(10, 22, 1)]);
        assert_eq!(below(nodes[2], 21), [run(0, 20, 1)]);
        assert!(arrived.has_stayed(&tree, nodes[2], run(10, 22, 1)));
        assert!(arrived.has_stayed(&tree, nodes[0], run(1, 11, 2)));
        assert!(!arrived.has_stayed(&tree, nodes[0], run(0, 11, 1)));
        assert!(!arrived.has_stayed(&tree, nodes[1], run(0, 0, 1)));
    }

    #[test]
    fn a_block_of_two_files_is_no_draft() {
        let content = |offset| Content::Range {
            file: FileId(0),
            offset,
            len_bytes: 8192,
        };
        let (tree, nodes) = tree(vec![content(40960), content(45056)]);
        assert!(Arrived::new(&tree, &nodes, FileId(0), 12).is_none());
    }
}
