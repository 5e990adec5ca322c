//! **Purpose.** Follows the block map of an inode, extents or block pointers, even if it is broken.
//!
//! **Model.** Each node is first checked against the rules of the format, and then followed as far
//! as possible: entries outside the file system are skipped, the others are passed to the [`Sink`].
//! The sink of pass 1 claims the blocks; that of the search for owners of shared blocks only looks.
//! The ranges that fast commits changed ([`crate::replay`]) are laid over the extents of the tree.
//!
//! Of two extents that overlap, one is at a wrong place. It is the one that the extent behind both
//! contradicts; if that cannot decide, it is the later one. So an extent whose first block is far
//! too high does not hide all those behind it:
//!
//! ```text
//! 0..4 | 4000000000..4000000004 | 8..12 | 12..16      the second is left out
//! 0..9 | 4..8                   | 9..13               the second is left out
//! ```
//!
//! **Invariants.** A walk ends: depth falls from node to node, and a walker follows at most as many
//! nodes as the file system has blocks. Only maps that share nodes can reach that limit.

use std::ops::Range;

use fourscore_ondisk::extent::{self, Child, Extent, ExtentState, LOGICAL_END, Node, RawHeader};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, InodeSeed, LogicalBlock, PhysBlock};
use zerocopy::FromBytes;

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::volume::Volume;

/// How many nodes beyond one per block a walker follows.
const SPARE_NODES: u64 = 1024;
/// How often each block may be claimed on average before a walker stops.
const MOST_CLAIMS: u64 = 16;
/// The most faults reported of the pointers of one inode.
const MOST_POINTER_FAULTS: u32 = 16;
const ENTRY_BYTES: usize = 12;
/// Inode 7, whose indirect blocks are the reserved descriptor blocks.
pub(crate) const RESIZE_INODE: InodeNr = InodeNr(7);

/// What an inode uses a run of blocks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// File data, or blocks of a directory.
    Data,
    /// Nodes of the extent tree, or indirect blocks.
    Map,
    /// Extended attributes.
    Attributes,
}

/// Receives what an inode maps.
pub(crate) trait Sink {
    /// These blocks belong to the inode.
    fn claim(&mut self, run: Range<PhysBlock>, role: Role);
    /// Whether [`content`](Self::content) is to be called for this inode.
    fn wants_content(&self, inode: &InodeView<'_>) -> bool;
    /// The data from `logical` on lies in `run`.
    fn content(&mut self, logical: u64, run: Range<PhysBlock>, state: ExtentState);
    /// Whether a block of the map, which was claimed, is to be read.
    fn enters(&self, _block: PhysBlock) -> bool {
        true
    }
    /// A rule is broken.
    fn fault(&mut self, finding: Finding);
}

/// What an inode maps, summed up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mapped {
    /// Clusters of data, and one for each block of the map.
    pub(crate) clusters: u64,
    /// One past the last logical block.
    pub(crate) end: u64,
    /// One past the last logical block that holds data.
    pub(crate) written_end: u64,
    /// The last block of the previous run: logical and physical.
    last: Option<(u64, PhysBlock)>,
}

/// Walks maps of many inodes with the same buffers and limits.
#[derive(Debug)]
pub(crate) struct Walker<'a> {
    volume: &'a Volume,
    /// A buffer for each level.
    buffers: Vec<Vec<u8>>,
    left: Limits,
}

/// How much walkers may still follow. Walkers that follow maps of the same volume one after the
/// other share it, so that maps that share nodes cannot make a check endless.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    nodes: u64,
    blocks: u64,
}

impl Limits {
    pub(crate) fn of(volume: &Volume) -> Self {
        let blocks = volume.geometry().blocks().0;
        Self {
            nodes: blocks + SPARE_NODES,
            blocks: blocks.saturating_mul(MOST_CLAIMS),
        }
    }
}

/// The walk of one inode.
struct Walk<'w, S> {
    inode: InodeNr,
    is_directory: bool,
    wants_content: bool,
    seed: Option<InodeSeed>,
    mapped: Mapped,
    pointer_faults: u32,
    /// The extents of the tree, while they are gathered to be edited.
    gathered: Option<Vec<Extent>>,
    /// The last extent, which is passed on when the next one agrees with it.
    open: Option<Extent>,
    /// An extent behind it that overlaps it.
    doubtful: Option<Extent>,
    sink: &'w mut S,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(volume: &'a Volume) -> Self {
        Self::within(volume, Limits::of(volume))
    }

    /// A walker with the limits that another one has left.
    pub(crate) fn within(volume: &'a Volume, left: Limits) -> Self {
        Self {
            volume,
            buffers: Vec::new(),
            left,
        }
    }

    /// What the walker may still follow.
    pub(crate) fn left(&self) -> Limits {
        self.left
    }

    /// How many nodes of maps it may still follow.
    pub(crate) fn nodes_left(&self) -> u64 {
        self.left.nodes
    }

    /// Counts a run of data that is not walked; returns whether it may be claimed. If not, the
    /// caller reports it as a walk would.
    pub(crate) fn spend(&mut self, blocks: u64) -> bool {
        let may = self.may_claim(blocks);
        if may {
            self.left.blocks -= blocks;
        }
        may
    }

    /// Whether a run of so many blocks may be claimed.
    pub(crate) fn may_claim(&self, blocks: u64) -> bool {
        self.left.blocks >= blocks
    }

    /// Follows the map of an inode that has one.
    pub(crate) fn follow(&mut self, inode: &InodeView<'_>, sink: &mut impl Sink) -> Mapped {
        let volume = self.volume;
        let has_extents = inode.has(InodeFlags::EXTENTS_FL) && volume.incompat(Incompat::EXTENTS);
        // Only nodes outside of the inode have checksums of their own.
        let header = RawHeader::ref_from_prefix(&inode.base.i_block).ok();
        let has_nodes = header.is_some_and(|(header, _)| header.eh_depth.get() > 0);
        let has_checksums = has_extents && has_nodes && volume.sb.has_metadata_csum();
        let mut walk = Walk {
            inode: inode.number,
            is_directory: inode.is_directory(),
            wants_content: sink.wants_content(inode),
            seed: has_checksums.then(|| inode.seed(&volume.sb)),
            mapped: Mapped::default(),
            pointer_faults: 0,
            gathered: None,
            open: None,
            doubtful: None,
            sink,
        };
        if has_extents {
            self.extents(inode, &mut walk);
        } else {
            self.pointers(inode, &mut walk);
        }
        walk.mapped
    }

    fn extents<S: Sink>(&mut self, inode: &InodeView<'_>, walk: &mut Walk<'_, S>) {
        let root = &inode.base.i_block;
        if let Err(why) = extent::check_root(root, &self.volume.physical()) {
            let inode = walk.inode;
            walk.sink.fault(Finding::ExtentRoot { inode, why });
        }
        check_max(root, 0, walk);
        let whole = LogicalBlock(0)..LOGICAL_END;
        let edits = self.volume.changes.maps.get(&walk.inode);
        walk.gathered = edits.map(|_| Vec::new());
        self.node(root, &whole, 0, walk);
        let gathered = walk.gathered.take();
        if let Some((edits, stored)) = edits.zip(gathered) {
            for extent in edits.applied_to(&stored) {
                self.offer(extent, walk);
            }
        }
        walk.doubtful = None;
        if let Some(last) = walk.open.take() {
            self.extent(&last, walk);
        }
    }

    /// Follows the valid entries of a node. `level` counts from the root down.
    fn node<S: Sink>(
        &mut self,
        bytes: &[u8],
        logical: &Range<LogicalBlock>,
        level: usize,
        walk: &mut Walk<'_, S>,
    ) {
        match Node::parse(bytes) {
            Ok(Node::Leaf(leaf)) => {
                for extent in leaf.iter() {
                    match &mut walk.gathered {
                        // What overlaps was reported when the node was checked.
                        Some(gathered) => {
                            let last = gathered.last();
                            if last.is_none_or(|last| last.logical_end() <= extent.logical) {
                                gathered.push(extent);
                            }
                        }
                        None => self.offer(extent, walk),
                    }
                }
            }
            Ok(Node::Inner(inner)) if level <= extent::MAX_DEPTH.into() => {
                for position in 0..inner.len() {
                    let Some(child) = inner.get(position, logical.end) else {
                        break;
                    };
                    if self.volume.physical().contains(&child.block) {
                        self.child(&child, level + 1, walk);
                    }
                }
            }
            _ => {}
        }
    }

    fn child<S: Sink>(&mut self, child: &Child, level: usize, walk: &mut Walk<'_, S>) {
        let inode = walk.inode;
        if self.left.nodes == 0 {
            walk.sink.fault(Finding::SharedBeyond { inode });
            return;
        }
        self.left.nodes -= 1;
        self.claim_map(child.block, walk);
        if !walk.sink.enters(child.block) {
            return;
        }
        let Some(buffer) = self.read_node(child.block, level, walk) else {
            return;
        };
        let block = child.block;
        let checked = extent::check_node(&buffer, child, &self.volume.physical(), walk.seed);
        let header = RawHeader::ref_from_prefix(&buffer).ok();
        let is_node = header.is_some_and(|(header, _)| {
            header.eh_magic.get() == extent::MAGIC && header.eh_depth.get() == child.depth
        });
        if let Err(why) = checked {
            walk.sink.fault(Finding::ExtentNode { inode, block, why });
        } else {
            check_max(&buffer, if walk.seed.is_some() { 4 } else { 0 }, walk);
        }
        if is_node {
            self.node(&buffer, &child.logical, level, walk);
        }
        self.give_back(buffer, level);
    }

    fn claim_map<S: Sink>(&mut self, block: PhysBlock, walk: &mut Walk<'_, S>) {
        walk.mapped.clusters += 1;
        walk.sink.claim(block..PhysBlock(block.0 + 1), Role::Map);
    }

    /// Reads a block into the buffer of this level; [`give_back`](Self::give_back) returns it.
    fn read_node<S: Sink>(
        &mut self,
        block: PhysBlock,
        level: usize,
        walk: &mut Walk<'_, S>,
    ) -> Option<Vec<u8>> {
        if self.buffers.len() <= level {
            self.buffers.resize_with(level + 1, Vec::new);
        }
        let mut buffer = self.buffers.get_mut(level).map(std::mem::take)?;
        buffer.resize(self.volume.block_bytes(), 0);
        match self.volume.read(block, &mut buffer) {
            Ok(()) => Some(buffer),
            Err(error) => {
                let why = error.to_string();
                walk.sink.fault(Finding::Unreadable { block, why });
                self.give_back(buffer, level);
                None
            }
        }
    }

    fn give_back(&mut self, buffer: Vec<u8>, level: usize) {
        if let Some(place) = self.buffers.get_mut(level) {
            *place = buffer;
        }
    }

    /// Takes the next extent of a tree, and passes on those before it that it agrees with: see the
    /// module. Overlaps were reported when the node was checked.
    fn offer<S: Sink>(&mut self, extent: Extent, walk: &mut Walk<'_, S>) {
        if !self.is_possible(&extent) {
            return;
        }
        let Some(open) = walk.open else {
            walk.open = Some(extent);
            return;
        };
        let is_behind = |other: &Extent| end_of(other) <= u64::from(extent.logical.0);
        let agrees =
            |other: &Extent| is_behind(other) && u64::from(other.logical.0) >= walk.mapped.end;
        if is_behind(&open) {
            self.extent(&open, walk);
        } else if let Some(doubtful) = walk.doubtful.filter(agrees) {
            self.extent(&doubtful, walk);
        } else {
            walk.doubtful = Some(extent);
            return;
        }
        walk.open = Some(extent);
        walk.doubtful = None;
    }

    /// Whether an extent maps blocks of the file system to blocks that a file can have.
    fn is_possible(&self, extent: &Extent) -> bool {
        let physical = self.volume.physical();
        let end = extent.physical.0.saturating_add(extent.blocks.into());
        let is_inside = physical.contains(&extent.physical) && end <= physical.end.0;
        extent.blocks > 0 && is_inside && end_of(extent) <= LOGICAL_END.0.into()
    }

    /// Passes on an extent, unless it begins before the last one ends.
    fn extent<S: Sink>(&mut self, extent: &Extent, walk: &mut Walk<'_, S>) {
        let (inode, logical) = (walk.inode, u64::from(extent.logical.0));
        if logical < walk.mapped.end {
            return;
        }
        let end = extent.physical.0 + u64::from(extent.blocks);
        if walk.is_directory {
            if extent.state == ExtentState::Unwritten {
                let logical = extent.logical;
                walk.sink.fault(Finding::DirUnwritten { inode, logical });
            }
            if logical > walk.mapped.end {
                let logical = walk.mapped.end;
                walk.sink.fault(Finding::DirHole { inode, logical });
            }
        }
        self.run(logical, extent.physical..PhysBlock(end), extent.state, walk);
        if extent.state == ExtentState::Written {
            walk.mapped.written_end = walk.mapped.end;
        }
    }

    /// Claims a run of data for the inode.
    fn run<S: Sink>(
        &mut self,
        logical: u64,
        run: Range<PhysBlock>,
        state: ExtentState,
        walk: &mut Walk<'_, S>,
    ) {
        let blocks = run.end.0 - run.start.0;
        let log = self.volume.geometry().blocks_per_cluster_log();
        let mut first = run.start;
        if log > 0 {
            first = self.first_new_cluster(logical, &run, walk);
        }
        if first < run.end {
            let clusters = (run.end.0 - first.0).div_ceil(1 << log);
            walk.mapped.clusters += clusters;
            if !self.may_claim(blocks) {
                let inode = walk.inode;
                walk.sink.fault(Finding::SharedBeyond { inode });
            } else {
                self.left.blocks -= blocks;
                walk.sink.claim(first..run.end, Role::Data);
            }
        }
        if walk.wants_content && self.may_claim(blocks) {
            walk.sink.content(logical, run.clone(), state);
        }
        walk.mapped.end = logical + blocks;
        walk.mapped.last = Some((walk.mapped.end - 1, PhysBlock(run.end.0 - 1)));
    }

    /// With clusters: returns where the part of a run begins that lies in clusters not counted yet,
    /// and reports a run that lies at the wrong offset of its clusters.
    fn first_new_cluster<S: Sink>(
        &self,
        logical: u64,
        run: &Range<PhysBlock>,
        walk: &mut Walk<'_, S>,
    ) -> PhysBlock {
        let log = self.volume.geometry().blocks_per_cluster_log();
        let mask = (1_u64 << log) - 1;
        let cluster = run.start.0 >> log;
        let mut misplaced = logical & mask != run.start.0 & mask;
        let mut first = cluster << log;
        if let Some((last_logical, last_block)) = walk.mapped.last {
            let same_logical = logical & mask != 0 && logical >> log == last_logical >> log;
            misplaced |= same_logical && cluster != last_block.0 >> log;
            if cluster == last_block.0 >> log {
                first = (cluster + 1) << log;
            }
        }
        if misplaced {
            let (inode, block) = (walk.inode, run.start);
            let logical = LogicalBlock(u32::try_from(logical).unwrap_or(u32::MAX));
            let finding = Finding::ClusterAlign {
                inode,
                logical,
                block,
            };
            walk.sink.fault(finding);
        }
        PhysBlock(first)
    }
}

/// One past the last block of the file that an extent maps.
fn end_of(extent: &Extent) -> u64 {
    u64::from(extent.logical.0) + u64::from(extent.blocks)
}

/// Block maps.
impl Walker<'_> {
    fn pointers<S: Sink>(&mut self, inode: &InodeView<'_>, walk: &mut Walk<'_, S>) {
        let direct: &[u8] = inode.base.i_block.get(..48).unwrap_or(&[]);
        self.leaf_pointers(direct, 0, walk);
        let per_block = self.volume.block_bytes() as u64 / 4;
        let mut logical = 12;
        let mut covered = per_block;
        for depth in 1..=3_u32 {
            let word = inode.block_word(11 + depth as usize);
            self.indirect(word, depth, logical, walk);
            logical += covered;
            covered = covered.saturating_mul(per_block);
        }
        walk.mapped.written_end = walk.mapped.end;
    }

    /// Follows a pointer to an indirect block; `depth` is 1 where its pointers refer to data.
    fn indirect<S: Sink>(&mut self, word: u32, depth: u32, logical: u64, walk: &mut Walk<'_, S>) {
        let block = PhysBlock(word.into());
        if word == 0 || !self.is_inside(block, logical, walk) {
            return;
        }
        let inode = walk.inode;
        if self.left.nodes == 0 {
            walk.sink.fault(Finding::SharedBeyond { inode });
            return;
        }
        self.left.nodes -= 1;
        if inode != RESIZE_INODE || depth == 2 {
            self.claim_map(block, walk);
        } else {
            walk.mapped.clusters += 1;
        }
        if !walk.sink.enters(block) {
            return;
        }
        let level = 3_usize.saturating_sub(depth as usize);
        let Some(buffer) = self.read_node(block, level, walk) else {
            return;
        };
        if depth == 1 {
            self.leaf_pointers(&buffer, logical, walk);
        } else {
            let per_block = buffer.len() as u64 / 4;
            let below = (1..depth).fold(1_u64, |blocks, _| blocks.saturating_mul(per_block));
            for (nth, bytes) in buffer.chunks_exact(4).enumerate() {
                let word = u32::from_le_bytes(bytes.try_into().unwrap_or([0; 4]));
                let at = logical.saturating_add(below.saturating_mul(nth as u64));
                self.indirect(word, depth - 1, at, walk);
            }
        }
        self.give_back(buffer, level);
    }

    /// Joins pointers to data into runs.
    fn leaf_pointers<S: Sink>(&mut self, bytes: &[u8], logical: u64, walk: &mut Walk<'_, S>) {
        let mut open: Option<(u64, Range<PhysBlock>)> = None;
        for (nth, word) in bytes.chunks_exact(4).enumerate() {
            let block = u32::from_le_bytes(word.try_into().unwrap_or([0; 4]));
            let (block, at) = (PhysBlock(block.into()), logical + nth as u64);
            if block.0 == 0 || !self.is_inside(block, at, walk) {
                continue;
            }
            match &mut open {
                Some((start, run))
                    if run.end == block && *start + (run.end.0 - run.start.0) == at =>
                {
                    run.end = PhysBlock(block.0 + 1);
                }
                _ => {
                    let run = block..PhysBlock(block.0 + 1);
                    if let Some((start, done)) = open.replace((at, run)) {
                        self.pointed(start, done, walk);
                    }
                }
            }
        }
        if let Some((start, run)) = open {
            self.pointed(start, run, walk);
        }
    }

    fn pointed<S: Sink>(&mut self, logical: u64, run: Range<PhysBlock>, walk: &mut Walk<'_, S>) {
        let inode = walk.inode;
        if inode == RESIZE_INODE {
            // The backups of descriptors: already counted as fixed metadata.
            walk.mapped.clusters += run.end.0 - run.start.0;
            walk.mapped.end = logical + (run.end.0 - run.start.0);
            return;
        }
        if walk.is_directory && logical > walk.mapped.end {
            let logical = walk.mapped.end;
            walk.sink.fault(Finding::DirHole { inode, logical });
        }
        self.run(logical, run, ExtentState::Written, walk);
    }

    fn is_inside<S: Sink>(&self, block: PhysBlock, logical: u64, walk: &mut Walk<'_, S>) -> bool {
        if self.volume.physical().contains(&block) {
            return true;
        }
        walk.pointer_faults += 1;
        if walk.pointer_faults <= MOST_POINTER_FAULTS {
            let inode = walk.inode;
            walk.sink.fault(Finding::BlockOutside {
                inode,
                logical,
                block,
            });
        }
        false
    }
}

/// Checks `eh_max` of a node: it must be its capacity, or up to two less, as e2fsprogs and old
/// kernels made it.
fn check_max<S: Sink>(bytes: &[u8], tail_bytes: usize, walk: &mut Walk<'_, S>) {
    let Ok((header, entries)) = RawHeader::ref_from_prefix(bytes) else {
        return;
    };
    let capacity = entries.len().saturating_sub(tail_bytes) / ENTRY_BYTES;
    let (found, expected) = (
        header.eh_max.get(),
        u16::try_from(capacity).unwrap_or(u16::MAX),
    );
    if header.eh_magic.get() == extent::MAGIC && found.saturating_add(2) < expected {
        let inode = walk.inode;
        walk.sink.fault(Finding::ExtentMax {
            inode,
            found,
            expected,
        });
    }
}
