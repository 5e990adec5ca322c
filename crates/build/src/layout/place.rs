//! **Purpose.** Allocates the blocks of every object.
//!
//! **Model.** File data may be in the image before anything is allocated (`draft`). Then
//!
//! ```text
//!   blocks of the file system = tables and hidden files
//!                             + data that stays, before the end
//!                             + free runs, from which everything else is allocated:
//!                               directories, attributes, nodes, data from after the end
//! ```
//!
//! Without a draft, no data stays. Blocks are allocated in this order: directories (so that listing
//! a tree reads one region of the disk), attribute blocks, large attribute values, then file data
//! in the order of inodes, each file followed by the nodes of its extent tree or block map, if any.
//! With `bigalloc`, every allocation begins at a cluster, and the blocks of a file have the same
//! offset in their clusters on disk as in the file.
//!
//! The location of an object takes 8 bytes: none; the first block of a single run without nodes
//! (nearly every file); or the number of a mapping.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::{InodeNr, PhysBlock};

use super::content::{FAST_TARGET_BYTES, Range, check, ranges, size_bytes};
use super::directory::{Directory, Shape, shape_all};
use super::draft::StreamedData;
use super::facts::Facts;
use super::mapping::{Run, runs_in_pieces};
use super::numbers::Numbers;
use super::pool::Pool;
use super::values::Values;
use super::xattr::{self, EncodedSet, LargeEntries};
use crate::error::{BuildError, BuildResult};
use crate::tree::{NodeId, Stored, Tree, XattrSet};

/// Largest number of inodes that may share an attribute block.
const MAX_SHARERS: u32 = 1024;

/// The tree with all parts of the layout that do not depend on the size of the file system.
#[derive(Debug)]
pub(crate) struct Forms {
    pub(crate) tree: Tree,
    pub(crate) facts: Facts,
    pub(crate) numbers: Numbers,
    /// By number of the entry list.
    pub(crate) shapes: Vec<Shape>,
    /// By number of the attribute set.
    pub(crate) sets: Vec<EncodedSet>,
    pub(crate) values: Values,
    /// File data that is already in the image.
    pub(crate) streamed: Option<StreamedData>,
}

/// The blocks of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// No blocks.
    #[default]
    None,
    /// One run that begins at this block.
    Run(u64),
    /// The mapping with this number.
    Mapped(usize),
}

/// A [`Place`] for each object in 8 bytes, with the variant in two bits.
#[derive(Debug)]
struct Places(Vec<u64>);

const TAG_SHIFT: u32 = 62;

impl Places {
    fn get(&self, node: NodeId) -> Place {
        let packed = self.0.get(node.0 as usize).copied().unwrap_or(0);
        let value = packed & ((1 << TAG_SHIFT) - 1);
        match packed >> TAG_SHIFT {
            0 => Place::None,
            1 => Place::Run(value),
            _ => Place::Mapped(usize::try_from(value).unwrap_or(usize::MAX)),
        }
    }

    fn set(&mut self, node: NodeId, place: Place) {
        if let Some(packed) = self.0.get_mut(node.0 as usize) {
            *packed = match place {
                Place::None => 0,
                Place::Run(block) => 1 << TAG_SHIFT | block,
                Place::Mapped(number) => 2 << TAG_SHIFT | number as u64,
            };
        }
    }
}

/// The blocks of an object that is not a single run.
#[derive(Debug)]
struct Mapping {
    runs: Box<[Run]>,
    nodes: Box<[u64]>,
    /// Number of clusters of the runs.
    clusters: u64,
}

/// An attribute block, and the number of inodes that share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedBlock {
    pub(crate) block: u64,
    pub(crate) set: u32,
    pub(crate) sharers: u32,
}

/// The allocation of all blocks.
#[derive(Debug)]
pub(crate) struct Placed {
    places: Places,
    mappings: Vec<Mapping>,
    xattr_blocks: HashMap<NodeId, u64>,
    /// By the number of a large value.
    values: Vec<Place>,
    pub(crate) shared: Vec<SharedBlock>,
}

/// The result of an allocation.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) placed: Placed,
    /// Number of blocks needed.
    pub(crate) needed_blocks: u64,
    /// Number of blocks that could not be allocated.
    pub(crate) missing_blocks: u64,
}

impl Forms {
    /// Encodes the attribute sets, and checks that the format can hold all objects.
    pub(crate) fn new(
        tree: Tree,
        facts: Facts,
        numbers: Numbers,
        streamed: Option<StreamedData>,
    ) -> BuildResult<Self> {
        let mut sets: Vec<Option<EncodedSet>> = Vec::new();
        let mut values = Values::default();
        let of_links = match facts.ea_inode {
            true => sets_of_fast_links(&tree, &numbers),
            false => HashSet::new(),
        };
        for node in std::iter::once(NodeId::ROOT).chain(numbers.order().iter().copied()) {
            check(&tree, &facts, node)?;
            let set = tree.xattr_set(node);
            let number = set.0 as usize;
            if sets.len() <= number {
                sets.resize(number + 1, None);
            }
            if sets[number].is_none() {
                let large = match of_links.contains(&set) {
                    true => LargeEntries::InBlock,
                    false => LargeEntries::Anywhere,
                };
                let encoded =
                    xattr::encode_set(&facts, tree.xattrs(node), &mut values, node, large);
                let failed = |why| BuildError::Xattr {
                    path: tree.path_of(node),
                    why,
                };
                sets[number] = Some(encoded.map_err(failed)?);
            }
        }
        let sets = sets.into_iter().map(Option::unwrap_or_default).collect();
        Ok(Self {
            tree,
            facts,
            numbers,
            shapes: Vec::new(),
            sets,
            values,
            streamed,
        })
    }

    /// Decides the format of all directories.
    pub(crate) fn shape_directories(
        &mut self,
        lost_and_found: Option<NodeId>,
        threads: usize,
    ) -> BuildResult<()> {
        let mut inline_rooms = vec![None; self.tree.directories()];
        if self.facts.inline_data {
            for &node in self.numbers.order() {
                // lost+found must not need blocks when e2fsck adds entries, so it is not inline.
                let list = self
                    .tree
                    .list_of(node)
                    .filter(|_| Some(node) != lost_and_found);
                if let Some(room) = list.and_then(|list| inline_rooms.get_mut(list as usize)) {
                    *room = self.set_of(node).and_then(|set| set.inline_room);
                }
            }
        }
        let lost_and_found = lost_and_found.and_then(|node| self.tree.list_of(node));
        let tree = &mut self.tree;
        self.shapes = shape_all(tree, &self.facts, &inline_rooms, lost_and_found, threads)?;
        Ok(())
    }

    /// Whether the data of an object is stored in its inode (`inline_data`).
    pub(crate) fn is_inline(&self, node: NodeId) -> bool {
        let Some(room) = self.set_of(node).and_then(|set| set.inline_room) else {
            return false;
        };
        match &self.tree.node(node).stored {
            Stored::Directory(_) => matches!(self.shape(node), Some(Shape::Inline { .. })),
            // mke2fs stores long targets inline, the kernel does not. e2fsck does not count an
            // inline link for quota, and takes its attribute block for free: this one's, or one
            // that it gets later.
            Stored::Symlink(_) => false,
            Stored::File(content) => content.len_bytes() <= room.most_bytes as u64,
            Stored::CharDevice(_) | Stored::BlockDevice(_) | Stored::Fifo | Stored::Socket => false,
        }
    }

    /// Number of inodes of all objects except the root, and of large attribute values.
    pub(crate) fn inodes(&self) -> u64 {
        (self.numbers.order().len() + self.values.len()) as u64
    }

    /// Sets the first inode number. Large attribute values follow all objects, and get their
    /// reference counts.
    pub(crate) fn set_first_inode(&mut self, first: InodeNr, placed: &Placed) -> BuildResult<()> {
        self.numbers.set_first_inode(first);
        let objects = u32::try_from(self.numbers.order().len()).unwrap_or(u32::MAX);
        self.values
            .set_first_inode(InodeNr(first.0.saturating_add(objects)));
        if self.values.len() == 0 {
            return Ok(());
        }
        for set in &mut self.sets {
            let numbered = set.number_values(&self.values);
            numbered.map_err(|_| BuildError::Invalid("attributes that cannot be read"))?;
        }
        let order = self.numbers.order().iter().copied();
        for node in std::iter::once(NodeId::ROOT).chain(order) {
            let set = self.sets.get(self.tree.xattr_set(node).0 as usize);
            for &number in set.into_iter().flat_map(|set| &set.inside) {
                self.values.add_ref(number);
            }
        }
        for shared in &placed.shared {
            let set = self.sets.get(shared.set as usize);
            for &number in set.into_iter().flat_map(|set| &set.outside) {
                self.values.add_ref(number);
            }
        }
        Ok(())
    }

    /// Clusters of an object's large attribute values. They are charged to each object that has
    /// them.
    fn value_clusters(&self, node: NodeId) -> u64 {
        let values = self.set_of(node).into_iter().flat_map(EncodedSet::values);
        let values = values.filter_map(|number| self.values.get(number));
        let blocks = values.map(|value| self.facts.blocks(value.len_bytes()));
        blocks.map(|blocks| self.facts.clusters(blocks)).sum()
    }

    /// The size in the inode of an object.
    pub(crate) fn size_bytes(&self, node: NodeId) -> u64 {
        size_bytes(&self.tree, &self.facts, &self.shapes, node)
    }

    pub(crate) fn set_of(&self, node: NodeId) -> Option<&EncodedSet> {
        self.sets.get(self.tree.xattr_set(node).0 as usize)
    }

    /// The format of a directory.
    pub(crate) fn shape(&self, node: NodeId) -> Option<Shape> {
        let list = self.tree.list_of(node)?;
        self.shapes.get(list as usize).copied()
    }

    /// A directory to be encoded.
    pub(crate) fn directory(&self, node: NodeId) -> Option<Directory<'_>> {
        Some(Directory {
            tree: &self.tree,
            facts: &self.facts,
            numbers: &self.numbers,
            node,
            parent: self.parent(node),
            shape: self.shape(node)?,
        })
    }

    /// The parent directory of a directory.
    pub(crate) fn parent(&self, node: NodeId) -> InodeNr {
        let list = self.tree.list_of(node);
        let parent = list.map_or(NodeId::ROOT, |list| {
            self.numbers.directory_info(list).parent
        });
        self.numbers.inode(parent)
    }

    /// The runs of data that is already in the image.
    pub(crate) fn contents(&self) -> &[std::ops::Range<PhysBlock>] {
        self.streamed.as_ref().map_or(&[], StreamedData::runs)
    }

    /// Number of their blocks before `end`.
    pub(crate) fn staying_blocks(&self, end: u64) -> u64 {
        let streamed = self.streamed.as_ref();
        streamed.map_or(0, |streamed| streamed.blocks_below(end))
    }

    /// Whether a run of an object was in the image before the allocation.
    pub(crate) fn stays_in_place(&self, node: NodeId, run: Run) -> bool {
        let streamed = self.streamed.as_ref();
        streamed.is_some_and(|streamed| streamed.stays_in_place(&self.tree, node, run))
    }

    /// Allocates everything from the free runs in `pool`, except data that is already in the image
    /// before `end`.
    pub(crate) fn place(&self, pool: &mut Pool, end: u64) -> Outcome {
        let mut allocator = Allocator {
            forms: self,
            pool,
            placed: Placed {
                places: Places(vec![0; self.tree.len()]),
                mappings: Vec::new(),
                xattr_blocks: HashMap::new(),
                values: Vec::new(),
                shared: Vec::new(),
            },
            needed: 0,
            missing: 0,
            end,
            ranges: Vec::new(),
            pieces: Vec::new(),
            stayed: Vec::new(),
        };
        for node in self.numbers.directories(&self.tree) {
            allocator.content(node);
        }
        allocator.xattr_blocks();
        allocator.values();
        for &node in self.numbers.order() {
            if self.tree.file_type(node) != FileType::Directory {
                allocator.content(node);
            }
        }
        Outcome {
            needed_blocks: allocator.needed,
            missing_blocks: allocator.missing,
            placed: allocator.placed,
        }
    }
}

/// The attribute sets of symbolic links whose targets are in `i_block`.
fn sets_of_fast_links(tree: &Tree, numbers: &Numbers) -> HashSet<XattrSet> {
    let is_fast = |node: &NodeId| match &tree.node(*node).stored {
        Stored::Symlink(target) => tree.text(*target).len() <= FAST_TARGET_BYTES,
        _ => false,
    };
    let links = numbers.order().iter().copied().filter(is_fast);
    links.map(|node| tree.xattr_set(node)).collect()
}

struct Allocator<'a> {
    forms: &'a Forms,
    pool: &'a mut Pool,
    placed: Placed,
    needed: u64,
    missing: u64,
    /// Data before this block stays.
    end: u64,
    ranges: Vec<Range>,
    pieces: Vec<std::ops::Range<u64>>,
    stayed: Vec<Run>,
}

impl Allocator<'_> {
    /// Allocates whole clusters and stores them in `pieces`.
    fn take(&mut self, blocks: u64) -> bool {
        self.pieces.clear();
        self.needed += blocks;
        let taken = self.pool.take(blocks, |piece| self.pieces.push(piece));
        if !taken {
            self.missing += blocks;
        }
        taken
    }

    fn content(&mut self, node: NodeId) {
        let forms = self.forms;
        if forms.is_inline(node) {
            return;
        }
        let mut ranges_of = std::mem::take(&mut self.ranges);
        ranges(
            &forms.tree,
            &forms.facts,
            &forms.shapes,
            node,
            &mut ranges_of,
        );
        self.stayed.clear();
        if let Some(streamed) = &forms.streamed {
            streamed.runs_of(&forms.tree, node, self.end, &mut self.stayed);
        }
        if !self.stayed.is_empty() {
            ranges_of = subtract(&ranges_of, &self.stayed);
        }
        let place = self.blocks(&ranges_of, forms.size_bytes(node));
        self.placed.places.set(node, place);
        self.ranges = ranges_of;
    }

    /// Allocates the large attribute values.
    fn values(&mut self) {
        self.stayed.clear();
        for value in self.forms.values.iter() {
            let blocks = self.forms.facts.blocks(value.len_bytes());
            let place = self.blocks(&[Range { first: 0, blocks }], value.len_bytes());
            self.placed.values.push(place);
        }
    }

    /// Allocates blocks for `ranges`, and combines them with the runs in `stayed`.
    fn blocks(&mut self, ranges: &[Range], len_bytes: u64) -> Place {
        let facts = &self.forms.facts;
        let clusters = in_clusters(facts, ranges);
        let blocks: u64 = clusters.iter().map(|range| range.blocks).sum();
        let stayed: u64 = self.stayed.iter().map(|run| run.blocks).sum();
        self.needed += stayed;
        if blocks + stayed == 0 || (blocks > 0 && !self.take(blocks)) {
            return Place::None;
        }
        let mut runs = Vec::with_capacity(ranges.len() + self.stayed.len());
        if blocks > 0 {
            runs_in_pieces(&clusters, ranges, &self.pieces, &mut runs);
        }
        // Runs that stay are never joined with new ones, so that each run is entirely either.
        runs.extend_from_slice(&self.stayed);
        runs.sort_unstable_by_key(|run| run.logical);
        self.map(runs, facts.clusters(blocks + stayed), len_bytes)
    }

    fn map(&mut self, runs: Vec<Run>, clusters: u64, len_bytes: u64) -> Place {
        let facts = self.forms.facts;
        let count = facts.nodes(&runs);
        if let ([run], 0) = (runs.as_slice(), count)
            && run.logical == 0
            && run.blocks == facts.blocks(len_bytes)
        {
            return Place::Run(run.physical);
        }
        let mut nodes = Vec::with_capacity(count);
        if self.take((count as u64) << facts.cluster_log) {
            for piece in &self.pieces {
                nodes.extend(piece.clone().step_by(1 << facts.cluster_log));
            }
        }
        let number = self.placed.mappings.len();
        self.placed.mappings.push(Mapping {
            runs: runs.into(),
            nodes: nodes.into(),
            clusters,
        });
        Place::Mapped(number)
    }

    /// Allocates one block for each 1024 users of a set that does not fit into the inode.
    fn xattr_blocks(&mut self) {
        let forms = self.forms;
        let mut current: HashMap<u32, usize> = HashMap::new();
        for node in std::iter::once(NodeId::ROOT).chain(forms.numbers.order().iter().copied()) {
            let set = forms.tree.xattr_set(node).0;
            if forms
                .sets
                .get(set as usize)
                .is_none_or(|set| set.block.is_empty())
            {
                continue;
            }
            let index = match current.get(&set) {
                Some(&index) if self.placed.shared[index].sharers < MAX_SHARERS => index,
                _ => {
                    let first = match self.take(1 << forms.facts.cluster_log) {
                        true => self.pieces.first().map_or(0, |piece| piece.start),
                        false => 0,
                    };
                    let index = self.placed.shared.len();
                    self.placed.shared.push(SharedBlock {
                        block: first,
                        set,
                        sharers: 0,
                    });
                    current.insert(set, index);
                    index
                }
            };
            let shared = &mut self.placed.shared[index];
            shared.sharers += 1;
            self.placed.xattr_blocks.insert(node, shared.block);
        }
    }
}

/// The blocks in `ranges` that are in none of the runs; both are sorted.
fn subtract(ranges: &[Range], runs: &[Run]) -> Vec<Range> {
    let mut rest = Vec::new();
    let mut runs = runs.iter().peekable();
    for range in ranges {
        let (mut at, end) = (range.first, range.first + range.blocks);
        while at < end {
            while runs.next_if(|run| run.logical + run.blocks <= at).is_some() {}
            let (from, to) = runs.peek().map_or((end, end), |run| {
                (run.logical.clamp(at, end), run.logical + run.blocks)
            });
            if from > at {
                rest.push(Range {
                    first: at,
                    blocks: from - at,
                });
            }
            at = to.clamp(from, end);
        }
    }
    rest
}

/// The clusters that contain these blocks, each once.
fn in_clusters(facts: &Facts, ranges: &[Range]) -> Vec<Range> {
    let mut clusters: Vec<Range> = Vec::with_capacity(ranges.len());
    for range in ranges {
        let first = range.first >> facts.cluster_log << facts.cluster_log;
        let end = facts.whole_clusters(range.first + range.blocks);
        match clusters.last_mut() {
            Some(last) if first <= last.first + last.blocks => {
                last.blocks = last.blocks.max(end - last.first);
            }
            _ => clusters.push(Range {
                first,
                blocks: end - first,
            }),
        }
    }
    clusters
}

impl Placed {
    /// The runs of an object.
    pub(crate) fn runs(&self, forms: &Forms, node: NodeId) -> Cow<'_, [Run]> {
        let place = self.places.get(node);
        self.runs_at(place, || forms.facts.blocks(forms.size_bytes(node)))
    }

    /// The first block of an object that is a single run; does not allocate memory.
    pub(crate) fn single_run(&self, node: NodeId) -> Option<u64> {
        match self.places.get(node) {
            Place::Run(physical) => Some(physical),
            Place::None | Place::Mapped(_) => None,
        }
    }

    /// Whether an object has no blocks.
    pub(crate) fn is_empty(&self, node: NodeId) -> bool {
        self.places.get(node) == Place::None
    }

    /// The nodes of an object's extent tree or block map.
    pub(crate) fn nodes(&self, node: NodeId) -> &[u64] {
        self.nodes_at(self.places.get(node))
    }

    /// The attribute block of an object.
    pub(crate) fn xattr_block(&self, node: NodeId) -> Option<u64> {
        self.xattr_blocks.get(&node).copied()
    }

    /// Number of clusters of an object: data, nodes and attributes.
    pub(crate) fn clusters(&self, forms: &Forms, node: NodeId) -> u64 {
        let own = self.clusters_at(self.places.get(node), &forms.facts, || {
            forms.facts.blocks(forms.size_bytes(node))
        });
        own + u64::from(self.xattr_block(node).is_some()) + forms.value_clusters(node)
    }

    /// The runs of a large attribute value.
    pub(crate) fn value_runs(&self, forms: &Forms, number: usize) -> Cow<'_, [Run]> {
        self.runs_at(self.value_place(number), || value_blocks(forms, number))
    }

    /// The nodes of a large value's extent tree or block map.
    pub(crate) fn value_nodes(&self, number: usize) -> &[u64] {
        self.nodes_at(self.value_place(number))
    }

    /// Number of clusters of the inode of a large value.
    pub(crate) fn value_clusters(&self, forms: &Forms, number: usize) -> u64 {
        let place = self.value_place(number);
        self.clusters_at(place, &forms.facts, || value_blocks(forms, number))
    }

    fn value_place(&self, number: usize) -> Place {
        self.values.get(number).copied().unwrap_or_default()
    }

    fn runs_at(&self, place: Place, blocks: impl FnOnce() -> u64) -> Cow<'_, [Run]> {
        match place {
            Place::None => [].as_slice().into(),
            Place::Run(physical) => {
                let (logical, blocks) = (0, blocks());
                vec![Run {
                    logical,
                    physical,
                    blocks,
                }]
                .into()
            }
            Place::Mapped(number) => {
                let mapping = self.mappings.get(number);
                mapping.map_or(&[][..], |mapping| &mapping.runs).into()
            }
        }
    }

    fn nodes_at(&self, place: Place) -> &[u64] {
        match place {
            Place::Mapped(number) => self
                .mappings
                .get(number)
                .map_or(&[], |mapping| &mapping.nodes),
            Place::None | Place::Run(_) => &[],
        }
    }

    fn clusters_at(&self, place: Place, facts: &Facts, blocks: impl FnOnce() -> u64) -> u64 {
        match place {
            Place::None => 0,
            Place::Run(_) => facts.clusters(blocks()),
            Place::Mapped(number) => self
                .mappings
                .get(number)
                .map_or(0, |mapping| mapping.clusters + mapping.nodes.len() as u64),
        }
    }
}

/// Number of data blocks of a large value.
fn value_blocks(forms: &Forms, number: usize) -> u64 {
    let value = forms.values.get(number);
    value.map_or(0, |value| forms.facts.blocks(value.len_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs(of: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut at = 0;
        let mut found: Vec<(u64, u64)> = Vec::new();
        for &(gap, length) in of {
            found.push((at + gap, length));
            at += gap + length;
        }
        found
    }

    proptest! {
        #[test]
        fn subtracting_runs_leaves_the_other_blocks(
            ranges in proptest::collection::vec((1u64..20, 1u64..20), 0..10),
            stayed in proptest::collection::vec((0u64..20, 1u64..20), 0..10),
        ) {
            let ranges: Vec<Range> = runs(&ranges)
                .into_iter()
                .map(|(first, blocks)| Range { first, blocks })
                .collect();
            let stayed: Vec<Run> = runs(&stayed)
                .into_iter()
                .map(|(logical, blocks)| Run { logical, physical: 0, blocks })
                .collect();
            let is_in = |block: u64| {
                let has = |run: &Run| (run.logical..run.logical + run.blocks).contains(&block);
                stayed.iter().any(has)
            };
            let blocks = |ranges: &[Range]| -> Vec<u64> {
                ranges.iter().flat_map(|range| range.first..range.first + range.blocks).collect()
            };
            let mut expected = blocks(&ranges);
            expected.retain(|&block| !is_in(block));
            prop_assert_eq!(blocks(&subtract(&ranges, &stayed)), expected);
        }
    }
}
