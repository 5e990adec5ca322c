//! **Purpose.** Following what an inode maps, through extents or pointers, whatever state it is in.
//!
//! **Model.** Each node is first held against the rules of the format, and then followed as far as
//! it makes sense: what lies outside is left out, the rest is told to the [`Sink`]. Pass 1 claims
//! what it is told; the search for owners of shared blocks only looks.
//!
//! **Invariants.** A walk ends: depth falls from node to node, and the nodes that one walker
//! follows are bounded by the blocks of the file system, which only maps that share nodes can
//! exceed.

use std::ops::Range;

use fourscore_ondisk::extent::{self, Child, Extent, ExtentState, LOGICAL_END, Node, RawHeader};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, InodeSeed, LogicalBlock, PhysBlock};
use zerocopy::FromBytes;

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::volume::Volume;

/// Nodes that maps of sound file systems may have beyond one per block.
const SPARE_NODES: u64 = 1024;
/// How often blocks may be claimed before a walker stops to follow.
const MOST_CLAIMS: u64 = 16;
/// Faults told of the pointers of one inode; the rest is alike.
const MOST_POINTER_FAULTS: u32 = 16;
const ENTRY_BYTES: usize = 12;
/// Inode 7, whose indirect blocks are the reserved descriptor blocks.
pub(crate) const RESIZE_INODE: InodeNr = InodeNr(7);

/// What a run of blocks is to its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Content.
    Data,
    /// Nodes of its tree, or blocks of pointers.
    Map,
    /// Extended attributes.
    Attributes,
}

/// Who is told what an inode maps.
pub(crate) trait Sink {
    /// These blocks belong to the inode.
    fn claim(&mut self, run: Range<PhysBlock>, role: Role);
    /// Whether it is told where content lies, too.
    fn wants_content(&self, inode: &InodeView<'_>) -> bool;
    /// Content from `logical` on lies here.
    fn content(&mut self, logical: u64, run: Range<PhysBlock>);
    /// A rule is broken.
    fn fault(&mut self, finding: Finding);
}

/// What an inode maps, summed up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mapped {
    /// Clusters of content, and one for each block of the map.
    pub(crate) clusters: u64,
    /// One past the last logical block.
    pub(crate) end: u64,
    /// One past the last logical block that holds data.
    pub(crate) written_end: u64,
    /// Where the run before ends: logical and physical.
    last: Option<(u64, PhysBlock)>,
}

/// The part of the walk that is the same for all inodes, with room to read.
#[derive(Debug)]
pub(crate) struct Walker<'a> {
    volume: &'a Volume,
    rooms: Vec<Vec<u8>>,
    nodes_left: u64,
    blocks_left: u64,
}

/// One inode on its way.
struct Journey<'w, S> {
    inode: InodeNr,
    is_directory: bool,
    tells_content: bool,
    seed: Option<InodeSeed>,
    mapped: Mapped,
    pointer_faults: u32,
    /// The extents of the tree, while they are gathered to be edited.
    gathered: Option<Vec<Extent>>,
    sink: &'w mut S,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(volume: &'a Volume) -> Self {
        let blocks = volume.geometry().blocks().0;
        Self {
            volume,
            rooms: Vec::new(),
            nodes_left: blocks + SPARE_NODES,
            blocks_left: blocks.saturating_mul(MOST_CLAIMS),
        }
    }

    /// Follows the map of an inode that has one.
    pub(crate) fn follow(&mut self, inode: &InodeView<'_>, sink: &mut impl Sink) -> Mapped {
        let volume = self.volume;
        let has_checksums = volume.sb.has_metadata_csum();
        let mut journey = Journey {
            inode: inode.number,
            is_directory: inode.is_directory(),
            tells_content: sink.wants_content(inode),
            seed: has_checksums.then(|| inode.seed(&volume.sb)),
            mapped: Mapped::default(),
            pointer_faults: 0,
            gathered: None,
            sink,
        };
        if inode.has(InodeFlags::EXTENTS_FL) && volume.incompat(Incompat::EXTENTS) {
            self.extents(inode, &mut journey);
        } else {
            self.pointers(inode, &mut journey);
        }
        journey.mapped
    }

    fn extents<S: Sink>(&mut self, inode: &InodeView<'_>, journey: &mut Journey<'_, S>) {
        let root = &inode.base.i_block;
        if let Err(why) = extent::check_root(root, &self.volume.physical()) {
            let inode = journey.inode;
            journey.sink.fault(Finding::ExtentRoot { inode, why });
        }
        check_max(root, 0, journey);
        let whole = LogicalBlock(0)..LOGICAL_END;
        let edits = self.volume.changes.maps.get(&journey.inode);
        journey.gathered = edits.map(|_| Vec::new());
        self.node(root, &whole, 0, journey);
        let gathered = journey.gathered.take();
        if let Some((edits, stored)) = edits.zip(gathered) {
            for extent in edits.applied_to(&stored) {
                self.extent(&extent, journey);
            }
        }
    }

    /// Follows the entries of a node that make sense. `level` counts from the root down.
    fn node<S: Sink>(
        &mut self,
        bytes: &[u8],
        logical: &Range<LogicalBlock>,
        level: usize,
        journey: &mut Journey<'_, S>,
    ) {
        match Node::parse(bytes) {
            Ok(Node::Leaf(leaf)) => {
                for extent in leaf.iter() {
                    match &mut journey.gathered {
                        Some(gathered) => gathered.push(extent),
                        None => self.extent(&extent, journey),
                    }
                }
            }
            Ok(Node::Inner(inner)) if level <= extent::MAX_DEPTH.into() => {
                for position in 0..inner.len() {
                    let Some(child) = inner.get(position, logical.end) else {
                        break;
                    };
                    if self.volume.physical().contains(&child.block) {
                        self.child(&child, level + 1, journey);
                    }
                }
            }
            _ => {}
        }
    }

    fn child<S: Sink>(&mut self, child: &Child, level: usize, journey: &mut Journey<'_, S>) {
        let inode = journey.inode;
        if self.nodes_left == 0 {
            journey.sink.fault(Finding::SharedBeyond { inode });
            return;
        }
        self.nodes_left -= 1;
        self.claim_map(child.block, journey);
        let Some(room) = self.read_room(child.block, level, journey) else {
            return;
        };
        let block = child.block;
        let checked = extent::check_node(&room, child, &self.volume.physical(), journey.seed);
        let header = RawHeader::ref_from_prefix(&room).ok();
        let is_node = header.is_some_and(|(header, _)| {
            header.eh_magic.get() == extent::MAGIC && header.eh_depth.get() == child.depth
        });
        if let Err(why) = checked {
            journey
                .sink
                .fault(Finding::ExtentNode { inode, block, why });
        } else {
            check_max(&room, if journey.seed.is_some() { 4 } else { 0 }, journey);
        }
        if is_node {
            self.node(&room, &child.logical, level, journey);
        }
        self.give_back(room, level);
    }

    fn claim_map<S: Sink>(&mut self, block: PhysBlock, journey: &mut Journey<'_, S>) {
        journey.mapped.clusters += 1;
        journey.sink.claim(block..PhysBlock(block.0 + 1), Role::Map);
    }

    /// One block, read into room of this level.
    fn read_room<S: Sink>(
        &mut self,
        block: PhysBlock,
        level: usize,
        journey: &mut Journey<'_, S>,
    ) -> Option<Vec<u8>> {
        if self.rooms.len() <= level {
            self.rooms.resize_with(level + 1, Vec::new);
        }
        let mut room = self.rooms.get_mut(level).map(std::mem::take)?;
        room.resize(self.volume.block_bytes(), 0);
        match self.volume.read(block, &mut room) {
            Ok(()) => Some(room),
            Err(error) => {
                let why = error.to_string();
                journey.sink.fault(Finding::Unreadable { block, why });
                self.give_back(room, level);
                None
            }
        }
    }

    fn give_back(&mut self, room: Vec<u8>, level: usize) {
        if let Some(place) = self.rooms.get_mut(level) {
            *place = room;
        }
    }

    fn extent<S: Sink>(&mut self, extent: &Extent, journey: &mut Journey<'_, S>) {
        let (inode, logical) = (journey.inode, u64::from(extent.logical.0));
        let physical = self.volume.physical();
        let end = extent.physical.0.saturating_add(extent.blocks.into());
        let inside = physical.contains(&extent.physical) && end <= physical.end.0;
        // What begins before the end of what came before was told when the node was checked.
        if extent.blocks == 0 || !inside || logical < journey.mapped.end {
            return;
        }
        if journey.is_directory {
            if extent.state == ExtentState::Unwritten {
                let logical = extent.logical;
                journey.sink.fault(Finding::DirUnwritten { inode, logical });
            }
            if logical > journey.mapped.end {
                let logical = journey.mapped.end;
                journey.sink.fault(Finding::DirHole { inode, logical });
            }
        }
        self.run(logical, extent.physical..PhysBlock(end), journey);
        if extent.state == ExtentState::Written {
            journey.mapped.written_end = journey.mapped.end;
        }
    }

    /// Takes a run of content as the inode's.
    fn run<S: Sink>(&mut self, logical: u64, run: Range<PhysBlock>, journey: &mut Journey<'_, S>) {
        let blocks = run.end.0 - run.start.0;
        let log = self.volume.geometry().blocks_per_cluster_log();
        let mut first = run.start;
        if log > 0 {
            first = self.first_new_cluster(logical, &run, journey);
        }
        if first < run.end {
            let clusters = (run.end.0 - first.0).div_ceil(1 << log);
            journey.mapped.clusters += clusters;
            if self.blocks_left < blocks {
                let inode = journey.inode;
                journey.sink.fault(Finding::SharedBeyond { inode });
            } else {
                self.blocks_left -= blocks;
                journey.sink.claim(first..run.end, Role::Data);
            }
        }
        if journey.tells_content && self.blocks_left >= blocks {
            journey.sink.content(logical, run.clone());
        }
        journey.mapped.end = logical + blocks;
        journey.mapped.last = Some((journey.mapped.end - 1, PhysBlock(run.end.0 - 1)));
    }

    /// With clusters: where the part of a run begins that lies in clusters not counted yet, and
    /// whether the run lies in its clusters as it must.
    fn first_new_cluster<S: Sink>(
        &self,
        logical: u64,
        run: &Range<PhysBlock>,
        journey: &mut Journey<'_, S>,
    ) -> PhysBlock {
        let log = self.volume.geometry().blocks_per_cluster_log();
        let mask = (1_u64 << log) - 1;
        let cluster = run.start.0 >> log;
        let mut misplaced = logical & mask != run.start.0 & mask;
        let mut first = cluster << log;
        if let Some((last_logical, last_block)) = journey.mapped.last {
            let same_logical = logical & mask != 0 && logical >> log == last_logical >> log;
            misplaced |= same_logical && cluster != last_block.0 >> log;
            if cluster == last_block.0 >> log {
                first = (cluster + 1) << log;
            }
        }
        if misplaced {
            let (inode, block) = (journey.inode, run.start);
            let logical = LogicalBlock(u32::try_from(logical).unwrap_or(u32::MAX));
            let finding = Finding::ClusterAlign {
                inode,
                logical,
                block,
            };
            journey.sink.fault(finding);
        }
        PhysBlock(first)
    }
}

/// Block maps.
impl Walker<'_> {
    fn pointers<S: Sink>(&mut self, inode: &InodeView<'_>, journey: &mut Journey<'_, S>) {
        let direct: &[u8] = inode.base.i_block.get(..48).unwrap_or(&[]);
        self.leaf_pointers(direct, 0, journey);
        let per_block = self.volume.block_bytes() as u64 / 4;
        let mut logical = 12;
        let mut covered = per_block;
        for depth in 1..=3_u32 {
            let word = inode.block_word(11 + depth as usize);
            self.indirect(word, depth, logical, journey);
            logical += covered;
            covered = covered.saturating_mul(per_block);
        }
        journey.mapped.written_end = journey.mapped.end;
    }

    /// Follows a pointer to a block of pointers; `depth` is 1 where those go to content.
    fn indirect<S: Sink>(
        &mut self,
        word: u32,
        depth: u32,
        logical: u64,
        journey: &mut Journey<'_, S>,
    ) {
        let block = PhysBlock(word.into());
        if word == 0 || !self.is_inside(block, logical, journey) {
            return;
        }
        let inode = journey.inode;
        if self.nodes_left == 0 {
            journey.sink.fault(Finding::SharedBeyond { inode });
            return;
        }
        self.nodes_left -= 1;
        if inode != RESIZE_INODE || depth == 2 {
            self.claim_map(block, journey);
        } else {
            journey.mapped.clusters += 1;
        }
        let level = 3_usize.saturating_sub(depth as usize);
        let Some(room) = self.read_room(block, level, journey) else {
            return;
        };
        if depth == 1 {
            self.leaf_pointers(&room, logical, journey);
        } else {
            let per_block = room.len() as u64 / 4;
            let below = (1..depth).fold(1_u64, |blocks, _| blocks.saturating_mul(per_block));
            for (nth, bytes) in room.chunks_exact(4).enumerate() {
                let word = u32::from_le_bytes(bytes.try_into().unwrap_or([0; 4]));
                let at = logical.saturating_add(below.saturating_mul(nth as u64));
                self.indirect(word, depth - 1, at, journey);
            }
        }
        self.give_back(room, level);
    }

    /// Pointers to content, taken in runs.
    fn leaf_pointers<S: Sink>(&mut self, bytes: &[u8], logical: u64, journey: &mut Journey<'_, S>) {
        let mut open: Option<(u64, Range<PhysBlock>)> = None;
        for (nth, word) in bytes.chunks_exact(4).enumerate() {
            let block = u32::from_le_bytes(word.try_into().unwrap_or([0; 4]));
            let (block, at) = (PhysBlock(block.into()), logical + nth as u64);
            if block.0 == 0 || !self.is_inside(block, at, journey) {
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
                        self.pointed(start, done, journey);
                    }
                }
            }
        }
        if let Some((start, run)) = open {
            self.pointed(start, run, journey);
        }
    }

    fn pointed<S: Sink>(
        &mut self,
        logical: u64,
        run: Range<PhysBlock>,
        journey: &mut Journey<'_, S>,
    ) {
        let inode = journey.inode;
        if inode == RESIZE_INODE {
            // The backups of descriptors: already counted as fixed metadata.
            journey.mapped.clusters += run.end.0 - run.start.0;
            journey.mapped.end = logical + (run.end.0 - run.start.0);
            return;
        }
        if journey.is_directory && logical > journey.mapped.end {
            let logical = journey.mapped.end;
            journey.sink.fault(Finding::DirHole { inode, logical });
        }
        self.run(logical, run, journey);
    }

    fn is_inside<S: Sink>(
        &self,
        block: PhysBlock,
        logical: u64,
        journey: &mut Journey<'_, S>,
    ) -> bool {
        if self.volume.physical().contains(&block) {
            return true;
        }
        journey.pointer_faults += 1;
        if journey.pointer_faults <= MOST_POINTER_FAULTS {
            let inode = journey.inode;
            journey.sink.fault(Finding::BlockOutside {
                inode,
                logical,
                block,
            });
        }
        false
    }
}

/// A node's `eh_max` must be what fits, or up to two less, as e2fsprogs and old kernels made them.
fn check_max<S: Sink>(bytes: &[u8], tail_bytes: usize, journey: &mut Journey<'_, S>) {
    let Ok((header, entries)) = RawHeader::ref_from_prefix(bytes) else {
        return;
    };
    let room = entries.len().saturating_sub(tail_bytes) / ENTRY_BYTES;
    let (found, expected) = (header.eh_max.get(), u16::try_from(room).unwrap_or(u16::MAX));
    if header.eh_magic.get() == extent::MAGIC && found.saturating_add(2) < expected {
        let inode = journey.inode;
        journey.sink.fault(Finding::ExtentMax {
            inode,
            found,
            expected,
        });
    }
}
