//! **Purpose.** Computes the checksums of all metadata again, for other features or another UUID.
//!
//! **Model.** The superblock as it will be decides what each checksum is; the one that is there
//! decides how the metadata is read. With `metadata_csum` these have one: inodes, nodes of extents,
//! blocks of directories and of their index, attribute blocks, blocks of the orphan file, the block
//! of multi-mount protection, bitmaps, descriptors, the superblock.
//!
//! A block of a directory keeps its checksum in a last record. One that has no such record gets it
//! if there is space behind its last name, or else between the names. A directory with a block
//! without space is written again as a whole, to new blocks: so a crash leaves the old blocks or
//! the new ones.
//!
//! **Invariants.** Only inodes in use are followed: the blocks of a deleted one may belong to
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fourscore_ondisk::dirent::DirFormat;
use fourscore_ondisk::dirent::write::LeafWriter;
use fourscore_ondisk::extent;
use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::group::{self, BitmapSummary, GroupDescMut, GroupFlags};
use fourscore_ondisk::htree::{self, Index, edit as index_edit};
use fourscore_ondisk::inode::{self, InodeFlags};
use fourscore_ondisk::mmp::RawMmp;
use fourscore_ondisk::superblock::{MetadataChecksum, Superblock};
use fourscore_ondisk::{
    GroupNr, GroupOffset, InodeNr, InodeSeed, PhysBlock, RawSuperblock, orphan, xattr,
};
use uuid::Uuid;
use zerocopy::FromBytes;

use super::super::editor::{Editor, Left, Patch};
use super::super::salvage::{self, Saved};
use super::Ranges;
use super::files::{blocks_of, extents_of, take_runs};
use super::plan::set_checksums;
use crate::finding::Finding;
use crate::inode::InodeView;
use crate::pass1::has_map;
use crate::volume::Group;
use crate::walk::{Role, Sink, Walker};

/// The levels of index blocks below a root, at most.
const MOST_LEVELS: u8 = 2;

/// The bytes of `.` and `..` in a block.
const DOTS_BYTES: usize = 24;

/// Gives everything a checksum: `metadata_csum`.
pub(super) fn dress(editor: &Editor<'_>, uuid: Option<Uuid>) -> Patch<Ranges> {
    let new = planned(editor, MetadataChecksum::Crc32c, uuid)?;
    let mut sealer = Sealer::new(editor, &new);
    sealer.inode_tables(Which::All)?;
    for dir in std::mem::take(&mut sealer.without_room) {
        sealer.rebuild(dir)?;
    }
    sealer.mmp()?;
    sealer.groups()?;
    editor.edit_super(|raw| set_checksums(raw, MetadataChecksum::Crc32c, uuid))?;
    Ok(Ranges::new())
}

/// Takes `metadata_csum` away, and leaves checksums of descriptors.
pub(super) fn strip(editor: &Editor<'_>, uuid: Option<Uuid>) -> Patch<Ranges> {
    seal_groups(editor, uuid)
}

/// Gives descriptors alone a checksum: `uninit_bg`.
pub(super) fn seal_groups(editor: &Editor<'_>, uuid: Option<Uuid>) -> Patch<Ranges> {
    let new = planned(editor, MetadataChecksum::Crc16, uuid)?;
    Sealer::new(editor, &new).groups()?;
    editor.edit_super(|raw| set_checksums(raw, MetadataChecksum::Crc16, uuid))?;
    Ok(Ranges::new())
}

/// Gives index blocks the limit that they have without checksums.
pub(super) fn refit(editor: &Editor<'_>) -> Patch<Ranges> {
    let same = editor.volume.sb.clone();
    Sealer::new(editor, &same).inode_tables(Which::Directories)?;
    Ok(Ranges::new())
}

/// Takes the checksums of descriptors away: bitmaps and inode tables that count as not initialised
/// are initialised.
pub(super) fn undress(editor: &Editor<'_>) -> Patch<Ranges> {
    planned(editor, MetadataChecksum::None, None)?;
    let mut zeroed = Ranges::new();
    for (nr, group) in (0..).map(GroupNr).zip(&editor.volume.groups) {
        let flags = group.desc.flags();
        if flags.intersects(GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT) {
            editor.recount_group(nr)?;
        }
        if !flags.contains(GroupFlags::INODE_ZEROED) {
            zeroed.extend(unused_table(editor, nr, group)?);
        }
        editor.set_unused(nr, 0)?;
        let all = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT | GroupFlags::INODE_ZEROED;
        editor.edit_descriptor(nr, |low, _| {
            low.bg_flags = (low.bg_flags.get() & !all.bits()).into();
        })?;
    }
    editor.edit_super(|raw| set_checksums(raw, MetadataChecksum::None, None))?;
    Ok(zeroed)
}

/// Changes the UUID where there are no checksums.
pub(super) fn change_uuid(editor: &Editor<'_>, uuid: Uuid) -> Patch<Ranges> {
    planned(editor, MetadataChecksum::None, Some(uuid))?;
    editor.edit_super(|raw| set_checksums(raw, MetadataChecksum::None, Some(uuid)))?;
    Ok(Ranges::new())
}

/// Clears the inodes of a group that were never used and share a block with used ones; returns the
/// bytes of the blocks behind them.
fn unused_table(editor: &Editor<'_>, nr: GroupNr, group: &Group) -> Patch<Option<Range<u64>>> {
    let (volume, geometry) = (editor.volume, editor.volume.geometry());
    let Some(table) = group.inode_table else {
        return Ok(None);
    };
    let first = volume.inodes_to_read(group);
    let per_block = geometry.inodes_per_block();
    let behind = first.next_multiple_of(per_block);
    for index in first..behind.min(geometry.inodes_per_group()) {
        if let Some(inode) = geometry.inode_at(nr, GroupOffset(index)) {
            editor.zero_inode(inode)?;
        }
    }
    let blocks = u64::from(behind / per_block)..u64::from(geometry.inode_table_blocks());
    let at = |block| geometry.block_size().offset(PhysBlock(table.0 + block));
    Ok((!blocks.is_empty()).then(|| at(blocks.start)..at(blocks.end)))
}

/// The superblock as it will be. Refuses another seed of checksums where values have hashes that
/// depend on it.
fn planned(
    editor: &Editor<'_>,
    checksums: MetadataChecksum,
    uuid: Option<Uuid>,
) -> Patch<Superblock> {
    let old = &editor.volume.sb;
    let mut raw: RawSuperblock = *old.raw();
    set_checksums(&mut raw, checksums, uuid);
    if checksums == MetadataChecksum::Crc32c {
        raw.seal();
    }
    let new = Superblock::try_from(&raw).map_err(|error| Left(error.to_string()))?;
    let inodes = editor.volume.geometry().inodes();
    let values = editor.state.value_inodes.count_in(0..u64::from(inodes) + 1);
    if new.checksum_seed() == old.checksum_seed() || values == 0 {
        return Ok(new);
    }
    let depends = match old.features().incompat.contains(Incompat::CSUM_SEED) {
        true => "depend on the stored seed, which goes with metadata_csum; the UUID was changed",
        false if checksums == MetadataChecksum::Crc32c => {
            "depend on the UUID; with -O metadata_csum_seed as well they do not"
        }
        false => "depend on the UUID; tune2fs -U computes them again",
    };
    Err(Left(format!(
        "hashes of the values of attributes in {values} inodes (ea_inode) {depends}"
    )))
}

/// The inodes whose blocks are sealed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Only the index blocks of directories; nothing else changes.
    Directories,
}

/// The blocks of an inode that may have checksums.
#[derive(Default)]
struct Parts {
    nodes: Vec<PhysBlock>,
    content: BTreeMap<u64, PhysBlock>,
    wants_content: bool,
}

impl Sink for Parts {
    fn claim(&mut self, run: Range<PhysBlock>, role: Role) {
        if role == Role::Map {
            self.nodes.push(run.start);
        }
    }

    fn wants_content(&self, _inode: &InodeView<'_>) -> bool {
        self.wants_content
    }

    fn content(&mut self, logical: u64, run: Range<PhysBlock>, _state: ExtentState) {
        if self.wants_content {
            let places = (run.start.0..run.end.0).map(PhysBlock);
            self.content.extend((logical..).zip(places));
        }
    }

    fn fault(&mut self, _finding: Finding) {}
}

/// Computes checksums for the superblock `new`.
struct Sealer<'a> {
    editor: &'a Editor<'a>,
    new: &'a Superblock,
    walker: Walker<'a>,
    /// Attribute blocks that are done: several inodes may share one.
    attributes: BTreeSet<PhysBlock>,
    without_room: BTreeSet<InodeNr>,
}

fn text(error: impl std::fmt::Display) -> Left {
    Left(error.to_string())
}

impl<'a> Sealer<'a> {
    fn new(editor: &'a Editor<'a>, new: &'a Superblock) -> Self {
        Self {
            editor,
            new,
            walker: Walker::new(editor.volume),
            attributes: BTreeSet::new(),
            without_room: BTreeSet::new(),
        }
    }

    /// Seals the used part of each inode table, and what its inodes refer to.
    fn inode_tables(&mut self, which: Which) -> Patch {
        let (volume, geometry) = (self.editor.volume, self.editor.volume.geometry());
        let (size, per_block) = (geometry.inode_size_bytes(), geometry.inodes_per_block());
        for (nr, group) in (0..).map(GroupNr).zip(&volume.groups) {
            let Some(table) = group.inode_table else {
                continue;
            };
            let count = volume.inodes_to_read(group);
            for block in 0..count.div_ceil(per_block) {
                let place = PhysBlock(table.0 + u64::from(block));
                let mut bytes = self.editor.read_block(place)?;
                for (index, inode) in (block * per_block..count).zip(bytes.chunks_exact_mut(size)) {
                    if let Some(number) = geometry.inode_at(nr, GroupOffset(index)) {
                        self.inode(number, inode, which)?;
                    }
                }
                if which == Which::All {
                    self.editor.write_block(place, &bytes)?;
                }
            }
        }
        Ok(())
    }

    fn inode(&mut self, number: InodeNr, bytes: &mut [u8], which: Which) -> Patch {
        let view = InodeView::new(bytes, number);
        let Some(view) = view.filter(|view| !view.is_blank()) else {
            return Ok(());
        };
        if view.links() > 0 && (which == Which::All || view.is_directory()) {
            self.blocks(&view, which)?;
        }
        match which {
            Which::All => inode::seal(bytes, number, self.new).map_err(text),
            Which::Directories => Ok(()),
        }
    }

    /// Seals the blocks of an inode in use.
    fn blocks(&mut self, view: &InodeView<'_>, which: Which) -> Patch {
        let (editor, volume) = (self.editor, self.editor.volume);
        let acl = view.file_acl(&volume.sb);
        if which == Which::All && acl.0 != 0 && self.attributes.insert(acl) {
            let mut bytes = editor.read_block(acl)?;
            xattr::seal_block(&mut bytes, acl, self.new.checksum_seed()).map_err(text)?;
            editor.write_block(acl, &bytes)?;
        }
        if !has_map(view) {
            return Ok(());
        }
        let is_orphan_file = volume.sb.orphan_file_inode() == Some(view.number);
        let mut parts = Parts {
            wants_content: view.is_directory() || is_orphan_file,
            ..Parts::default()
        };
        self.walker.follow(view, &mut parts);
        let seed = view.seed(self.new);
        let has_extents = view.has(InodeFlags::EXTENTS_FL) && volume.incompat(Incompat::EXTENTS);
        if which == Which::All && has_extents {
            for &node in &parts.nodes {
                let mut bytes = editor.read_block(node)?;
                extent::seal(&mut bytes, seed).map_err(text)?;
                editor.write_block(node, &bytes)?;
            }
        }
        if view.is_directory() {
            return self.directory(view, seed, &parts.content);
        }
        for &place in parts.content.values() {
            let mut bytes = editor.read_block(place)?;
            orphan::seal(&mut bytes, place, seed, self.new).map_err(text)?;
            editor.write_block(place, &bytes)?;
        }
        Ok(())
    }

    /// Seals the blocks of a directory.
    fn directory(
        &mut self,
        view: &InodeView<'_>,
        seed: InodeSeed,
        blocks: &BTreeMap<u64, PhysBlock>,
    ) -> Patch {
        let format = DirFormat {
            seed: self.new.has_metadata_csum().then_some(seed),
            ..self.editor.format_of(view.number)?
        };
        let is_indexed = view.has(InodeFlags::INDEX_FL);
        let nodes = match is_indexed {
            true => index_nodes(self.editor, blocks)?,
            false => BTreeSet::new(),
        };
        for (&logical, &place) in blocks {
            let mut bytes = self.editor.read_block(place)?;
            let has_room = match () {
                () if is_indexed && logical == 0 => seal_root(&format, &mut bytes)?,
                () if nodes.contains(&logical) => seal_node(&format, &mut bytes)?,
                () => seal_leaf(&format, &mut bytes)?,
            };
            match has_room {
                true => self.editor.write_block(place, &bytes)?,
                false => drop(self.without_room.insert(view.number)),
            }
        }
        Ok(())
    }

    /// Writes a directory to new blocks, with space for checksums, and seals it.
    fn rebuild(&mut self, dir: InodeNr) -> Patch {
        let editor = self.editor;
        let is_indexed = editor.with_inode(dir, |inode| inode.has(InodeFlags::INDEX_FL))?;
        let seed = editor.with_inode(dir, |inode| inode.seed(self.new))?;
        let format = DirFormat {
            seed: Some(seed),
            ..editor.format_of(dir)?
        };
        if is_indexed {
            editor.clear_flags(dir, InodeFlags::INDEX_FL)?;
        }
        if !is_indexed || !editor.index_as(dir, &format)? {
            self.write_plain(dir, &format)?;
        }
        let mut bytes = editor.inode_bytes(dir)?;
        self.inode(dir, &mut bytes, Which::All)?;
        match self.without_room.contains(&dir) {
            true => Err(Left(format!(
                "directory inode {dir} has a block without space for its checksum: run e2fsck -fD \
                 first"
            ))),
            false => editor.write_at(editor.inode_offset(dir)?, &bytes),
        }
    }

    /// Writes the names of a directory to new blocks, in their order, without an index.
    fn write_plain(&self, dir: InodeNr, format: &DirFormat) -> Patch {
        let editor = self.editor;
        let old = editor.blocks_of(dir)?;
        let first = old
            .first()
            .ok_or_else(|| Left::because("it has no block"))?;
        let dots = format.dots(&first.bytes).map_err(text)?;
        let all = old
            .iter()
            .flat_map(|block| salvage::entries(format, &block.bytes));
        let entries: Vec<_> = all.filter(|saved| !saved.is_dots()).collect();
        let block_bytes = first.bytes.len();
        let (mut rest, mut blocks) = (&entries[..], Vec::new());
        while blocks.is_empty() || !rest.is_empty() {
            let mut block = vec![0; block_bytes];
            let mut room = format.room_bytes(block_bytes);
            let writer = match blocks.is_empty() {
                true => {
                    room = room.saturating_sub(DOTS_BYTES);
                    LeafWriter::with_dots(format, &mut block, &dots)
                }
                false => LeafWriter::new(format, &mut block),
            };
            let fits = |saved: &&Saved| {
                let needed = format.needed_bytes(&saved.name);
                let fits = needed <= room;
                room = room.saturating_sub(needed);
                fits
            };
            let (now, later) = rest.split_at(rest.iter().take_while(fits).count());
            let is_stuck = now.is_empty() && !later.is_empty() && !blocks.is_empty();
            if is_stuck || !salvage::write(writer, now).is_empty() {
                let why = format!("directory inode {dir}: a name fits into no block");
                return Err(Left(why));
            }
            rest = later;
            blocks.push(block);
        }
        let runs = take_runs(editor, blocks.len() as u64, None)?;
        for (place, block) in blocks_of(&runs).zip(&blocks) {
            editor.write_block(PhysBlock(place), block)?;
        }
        editor.write_map(dir, &extents_of(blocks_of(&runs).take(blocks.len())))?;
        editor.set_size(dir, (blocks.len() * block_bytes) as u64)
    }

    /// Seals the block of multi-mount protection.
    fn mmp(&self) -> Patch {
        let Some(block) = self.editor.volume.sb.mmp_block() else {
            return Ok(());
        };
        let mut bytes = self.editor.read_block(block)?;
        if let Ok((raw, _)) = RawMmp::mut_from_prefix(&mut bytes) {
            raw.seal(self.new);
        }
        self.editor.write_block(block, &bytes)
    }

    /// Stores the checksums of the bitmaps that are initialised, and those of all descriptors.
    fn groups(&self) -> Patch {
        let (editor, volume) = (self.editor, self.editor.volume);
        let geometry = volume.geometry();
        for (nr, group) in (0..).map(GroupNr).zip(&volume.groups) {
            let mut bytes = editor.descriptor(nr)?;
            let flags = match volume.has_group_checksums() {
                true => group.desc.flags(),
                false => GroupFlags::empty(),
            };
            let mut desc = GroupDescMut::new(&mut bytes, self.new).map_err(text)?;
            let is_there = |flag, block: Option<PhysBlock>| block.filter(|_| !flags.contains(flag));
            if let Some(block) = is_there(GroupFlags::BLOCK_UNINIT, group.block_bitmap) {
                let bitmap = editor.read_block(block)?;
                let (bits, covered) = (geometry.group_clusters(nr), geometry.clusters_per_group());
                desc.set_block_bitmap(&BitmapSummary::of(&bitmap, bits, covered, self.new));
            }
            if let Some(block) = is_there(GroupFlags::INODE_UNINIT, group.inode_bitmap) {
                let bitmap = editor.read_block(block)?;
                let bits = geometry.inodes_per_group();
                desc.set_inode_bitmap(&BitmapSummary::of(&bitmap, bits, bits, self.new));
            }
            group::seal(&mut bytes, nr, self.new).map_err(text)?;
            editor.write_at(editor.descriptor_offset(nr)?, &bytes)?;
        }
        Ok(())
    }
}

/// The index blocks of a directory below its root, whose blocks are at `blocks`.
pub(super) fn index_nodes(
    editor: &Editor<'_>,
    blocks: &BTreeMap<u64, PhysBlock>,
) -> Patch<BTreeSet<u64>> {
    let read = |logical: u64| {
        let place = blocks.get(&logical);
        let place = place.ok_or_else(|| Left::because("its index refers to no block"))?;
        editor.read_block(*place)
    };
    let root = read(0)?;
    let levels = htree::root_info(&root).map_err(text)?.indirect_levels;
    let mut nodes = BTreeSet::new();
    let mut level = vec![Index::root(&root).map(children).map_err(text)?];
    for _ in 0..levels.min(MOST_LEVELS) {
        let mut below = Vec::new();
        for logical in std::mem::take(&mut level).concat() {
            if nodes.insert(logical) {
                let node = read(logical)?;
                below.push(Index::node(&node).map(children).map_err(text)?);
            }
        }
        level = below;
    }
    Ok(nodes)
}

/// The blocks that an index block refers to.
fn children(index: Index<'_>) -> Vec<u64> {
    let blocks = (0..index.len()).filter_map(|position| index.block(position));
    blocks.map(|block| block.0.into()).collect()
}

/// Seals a root; `false`, and nothing changes, if it has an entry too many for a checksum.
fn seal_root(format: &DirFormat, bytes: &mut [u8]) -> Patch<bool> {
    let fits = index_edit::refit_root(format, bytes).map_err(text)?;
    if let (true, Some(seed)) = (fits, format.seed) {
        htree::seal_root(bytes, seed).map_err(text)?;
    }
    Ok(fits)
}

/// As [`seal_root`], for an index block below it.
fn seal_node(format: &DirFormat, bytes: &mut [u8]) -> Patch<bool> {
    let fits = index_edit::refit_node(format, bytes).map_err(text)?;
    if let (true, Some(seed)) = (fits, format.seed) {
        htree::seal_node(bytes, seed).map_err(text)?;
    }
    Ok(fits)
}

/// Seals a block of names; `false`, and nothing changes, if there is no space for its checksum.
fn seal_leaf(format: &DirFormat, bytes: &mut Vec<u8>) -> Patch<bool> {
    let Some(seed) = format.seed else {
        return Ok(true);
    };
    if !ends_in_tail(format, bytes) {
        let without = DirFormat {
            seed: None,
            ..*format
        };
        let entries = salvage::entries(&without, bytes);
        let mut packed = vec![0; bytes.len()];
        let writer = LeafWriter::new(format, &mut packed);
        if !salvage::write(writer, &entries).is_empty() {
            return Ok(false);
        }
        *bytes = packed;
    }
    DirFormat::seal(bytes, seed).map_err(text)?;
    Ok(true)
}

/// Whether the last record of a block is one for its checksum.
fn ends_in_tail(format: &DirFormat, bytes: &[u8]) -> bool {
    let mut end = 0;
    for record in format.records(bytes) {
        let Ok(record) = record else {
            return false;
        };
        end = record.at + record.rec_len;
    }
    end == format.room_bytes(bytes.len())
}
