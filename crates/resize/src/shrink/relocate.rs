//! **Purpose.** Moves the blocks of files to the front of the new end: data, maps, attributes.
//!
//! **Model.** Data is copied to free clusters and flushed; then one step makes the inodes refer to
//! the copies, and frees the originals. A step has several small inodes, or a part of a large one,
//! so that it stays within the journal. Its data is copied by all processors (`copy`), while the
//! rest of the step is planned.
//!
//! If the caller wants that, what a step frees behind the end is discarded. Data that moves out of
//! an image file on tmpfs leaves its memory to what moves next then: the host takes new memory for
//! the first step only, and the first access to that costs more than the copy of the data.
//!
//! **Crash safety.** A step is made durable when its data is copied. Its old places are discarded
//! after that: the log is empty, so no replay makes the file system refer to them again.
//!
//! A block of attributes that several inodes share moves one user at a time: the first makes the
//! copy, the count of users of the copy rises and that of the original falls, and with the last
//! user the original is freed.
//!
//! **Not here.** The journal (`journal`), tables of groups (`tables`).

use std::collections::BTreeMap;
use std::ops::Range;

use fourscore_ondisk::inode::{Inode, InodeMut};
use fourscore_ondisk::superblock::{JournalPlace, Superblock};
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock, orphan, xattr};
use fourscore_sync::Arc;

use super::copy::Copier;
use super::journal;
use super::renumber::InodeBits;
use crate::error::{ResizeError, Result};
use crate::faults::Sabotage;
use crate::inodes;
use crate::map::{Map, Moves, Piece, Rewritten, rewrite};
use crate::resize_inode;
use crate::space::Space;
use crate::volume::{Discards, Volume};

/// A step ends when the blocks that it changes are so many bytes, or this part of the log: a
/// transaction may have a quarter, and the last change of a step adds some.
const MOST_CHANGED_BYTES: usize = 4 << 20;
const SHARE_OF_THE_LOG: u32 = 8;
/// A step ends when so many bytes have to be copied for it.
const MOST_COPIED_BYTES: u64 = 32 << 20;
/// Copies begin when there are so many bytes to copy.
const BYTES_TO_BEGIN: u64 = 4 << 20;
/// A step ends when so many clusters in front of the end become free with it: the next one may need
/// them.
const MOST_FREED: u64 = 48;
/// Clusters of a file that move in one step.
const MOST_CLUSTERS: u64 = 16 << 10;
/// The shortest run of clusters that data is moved to at first.
const LEAST_RUN: u64 = 256;

/// The state of moving blocks to the front of an end.
#[derive(Debug)]
pub(crate) struct Relocation<'a, 'f> {
    pub(crate) volume: &'a mut Volume<'f>,
    pub(crate) space: Space,
    pub(crate) end: PhysBlock,
    /// Where the search for a free inode goes on: group and bit.
    pub(super) inode_goal: (u32, u64),
    pub(super) inode_bits: BTreeMap<GroupNr, InodeBits>,
    /// Data is not moved to shorter free runs, as long as there are runs of this length.
    least_run: u64,
    /// Blocks of attributes that have moved, or are moving.
    attributes: BTreeMap<PhysBlock, PhysBlock>,
    copier: Copier,
    /// Data of this step that has to be copied before it is durable, and its blocks.
    uncopied: Vec<Piece>,
    uncopied_blocks: u64,
    /// Blocks of this step that are being copied.
    copied_blocks: u64,
    /// Changed blocks with which a step ends.
    most_changes: usize,
}

impl<'a, 'f> Relocation<'a, 'f> {
    /// Prepares to move what lies behind `end` in front of it.
    pub(crate) fn new(volume: &'a mut Volume<'f>, end: PhysBlock) -> Result<Self> {
        let space = Space::new(volume, end)?;
        let most_changes = most_changes(volume)?;
        let copier = Copier::new(Arc::clone(volume.device()));
        Ok(Self {
            volume,
            space,
            end,
            inode_goal: (0, 0),
            inode_bits: BTreeMap::new(),
            least_run: LEAST_RUN,
            attributes: BTreeMap::new(),
            copier,
            uncopied: Vec::new(),
            uncopied_blocks: 0,
            copied_blocks: 0,
            most_changes,
        })
    }

    /// Moves the double indirect block of the resize inode, whose other blocks have fixed places.
    pub(crate) fn move_reserved_top(&mut self) -> Result<()> {
        let Some(top) = resize_inode::top(self.volume)?.filter(|&top| top >= self.end) else {
            return Ok(());
        };
        let bytes = self.volume.read(top)?;
        let new = self.space.take(self.volume, 1, 1)?.start;
        self.volume.write_now(new, &bytes)?;
        self.space.free(self.volume, &(top..PhysBlock(top.0 + 1)));
        resize_inode::set_top(self.volume, new)?;
        self.commit()
    }

    /// Moves the blocks of all inodes but that of the journal.
    pub(crate) fn move_files(&mut self) -> Result<()> {
        let journal = match self.volume.sb().journal() {
            Some(JournalPlace::Inode(number)) => Some(number),
            _ => None,
        };
        for group in 0..self.volume.geometry().groups() {
            let mut numbers = Vec::new();
            inodes::visit(self.volume, group..group + 1, &mut |inode| {
                if Some(inode.number()) != journal && self.has_blocks_behind(&inode)? {
                    numbers.push(inode.number());
                }
                Ok(())
            })?;
            for number in numbers {
                self.move_inode(number)?;
            }
        }
        self.commit()
    }

    /// Ends the step: waits for its copies, makes it durable, and discards what is free then.
    pub(crate) fn commit(&mut self) -> Result<()> {
        if self.volume.changes() == 0 {
            return Ok(());
        }
        self.make_durable(|space, volume| space.commit(volume))
    }

    /// As [`Self::commit`], in place.
    pub(crate) fn commit_in_place(&mut self) -> Result<()> {
        self.make_durable(|space, volume| space.commit_in_place(volume))
    }

    /// Makes the step durable by `commit`, when its data is copied, and discards what that returns.
    fn make_durable(
        &mut self,
        commit: impl FnOnce(&mut Space, &mut Volume<'f>) -> Result<Vec<Range<PhysBlock>>>,
    ) -> Result<()> {
        let faults = self.volume.faults();
        if !faults.has(Sabotage::LateCopies) {
            self.finish_copies()?;
        }
        if faults.has(Sabotage::EarlyDiscard) {
            let freed = self.space.freed_behind(self.volume);
            self.discard(&freed);
            self.copier.finish()?;
        }
        let freed = commit(&mut self.space, self.volume)?;
        if faults.has(Sabotage::LateCopies) {
            self.finish_copies()?;
        }
        self.discard(&freed);
        Ok(())
    }

    /// Copies what was reserved in this step, and waits for it.
    fn finish_copies(&mut self) -> Result<()> {
        self.begin_copies();
        self.copied_blocks = 0;
        self.copier.finish()
    }

    /// Discards blocks that a step has freed, which is durable.
    fn discard(&mut self, freed: &[Range<PhysBlock>]) {
        if self.volume.discards() == Discards::None {
            return;
        }
        let geometry = self.volume.geometry();
        let offset = |block| {
            geometry
                .block_size()
                .offset(block)
                .min(geometry.size_bytes())
        };
        for run in freed {
            self.copier.discard(offset(run.start)..offset(run.end));
        }
    }

    /// Begins to copy what was reserved.
    fn begin_copies(&mut self) {
        let pieces = std::mem::take(&mut self.uncopied);
        self.copied_blocks += std::mem::take(&mut self.uncopied_blocks);
        self.copier.copy(self.volume.geometry(), pieces);
    }

    /// The bytes of so many blocks.
    fn bytes_of(&self, blocks: u64) -> u64 {
        blocks << self.volume.geometry().block_size().bits()
    }

    /// Ends the step if it has become large.
    pub(crate) fn commit_if_large(&mut self) -> Result<()> {
        if self.is_large(0) {
            self.commit()
        } else {
            Ok(())
        }
    }

    /// Whether the step has become large, with `more` blocks that it will change.
    pub(crate) fn is_large(&self, more: usize) -> bool {
        // A bitmap has a descriptor.
        let changes = self.volume.changes() + 2 * self.space.changed_groups() + more;
        let copied = self.bytes_of(self.copied_blocks + self.uncopied_blocks);
        changes >= self.most_changes
            || copied >= MOST_COPIED_BYTES
            || self.space.freed_in_front() >= MOST_FREED
    }

    /// Whether a block of the inode, of its map or of its attributes lies behind the end.
    fn has_blocks_behind(&self, inode: &Inode) -> Result<bool> {
        if inode.file_acl().is_some_and(|block| block >= self.end) {
            return Ok(true);
        }
        let map = Map::read(self.volume, inode)?;
        let has_node = map.nodes.iter().any(|&node| node >= self.end);
        Ok(has_node || !self.doomed(&map).is_empty())
    }

    fn move_inode(&mut self, number: InodeNr) -> Result<()> {
        if number == inodes::BAD_BLOCKS_INODE {
            return self.drop_bad_blocks();
        }
        let inode = inodes::read(self.volume, number)?;
        if inode.file_acl().is_some_and(|block| block >= self.end) {
            self.move_attributes(&inode)?;
        }
        loop {
            let inode = inodes::read(self.volume, number)?;
            let map = Map::read(self.volume, &inode)?;
            let doomed = self.doomed(&map);
            if doomed.is_empty() && map.nodes.iter().all(|&node| node < self.end) {
                return Ok(());
            }
            let moves = self.reserve(&doomed, MOST_CLUSTERS)?;
            for piece in moves.pieces() {
                self.uncopied_blocks += piece.from.end.0 - piece.from.start.0;
            }
            self.uncopied.extend_from_slice(moves.pieces());
            if self.volume.sb().orphan_file_inode() == Some(number) {
                self.begin_copies();
                self.copier.finish()?;
                self.seal_orphan_blocks(&inode, &moves)?;
            }
            self.switch(&inode, &map, &moves)?;
            if self.bytes_of(self.uncopied_blocks) >= BYTES_TO_BEGIN {
                self.begin_copies();
            }
            self.commit_if_large()?;
        }
    }

    /// Drops the bad blocks behind the end: nothing is copied.
    fn drop_bad_blocks(&mut self) -> Result<()> {
        let inode = inodes::read(self.volume, inodes::BAD_BLOCKS_INODE)?;
        let map = Map::read(self.volume, &inode)?;
        self.switch(&inode, &map, &Moves::default())?;
        self.commit_if_large()
    }

    /// The clusters of a map that lie behind the end.
    pub(crate) fn doomed(&self, map: &Map) -> Vec<Range<PhysBlock>> {
        self.clusters_of(map, self.end)
    }

    /// The clusters of a map from a block on.
    pub(crate) fn clusters_of(&self, map: &Map, first: PhysBlock) -> Vec<Range<PhysBlock>> {
        let log = self.volume.geometry().blocks_per_cluster_log();
        let mut runs: Vec<Range<PhysBlock>> = Vec::new();
        for extent in &map.extents {
            let start = extent.physical.max(first).0;
            let end = extent.physical.0 + u64::from(extent.blocks);
            if start < end {
                let start = start >> log << log;
                let end = (((end - 1) >> log) + 1) << log;
                runs.push(PhysBlock(start)..PhysBlock(end));
            }
        }
        if log > 0 {
            // Two extents may lie in one cluster.
            runs.sort_by_key(|run| run.start);
            runs.dedup_by(|next, run| {
                let is_joined = next.start < run.end;
                if is_joined {
                    run.end = run.end.max(next.end);
                }
                is_joined
            });
        }
        runs
    }

    /// Takes free clusters for those of `doomed`, at most `most`. Returns the moves, whose data is
    /// not copied yet.
    pub(crate) fn reserve(&mut self, doomed: &[Range<PhysBlock>], most: u64) -> Result<Moves> {
        let log = self.volume.geometry().blocks_per_cluster_log();
        let mut pieces = Vec::new();
        let mut left = most;
        'runs: for run in doomed {
            let mut at = run.start.0;
            while at < run.end.0 {
                if left == 0 {
                    break 'runs;
                }
                let wanted = ((run.end.0 - at) >> log).min(left);
                let found = self.take_run(wanted)?;
                let blocks = found.end.0 - found.start.0;
                left -= (blocks >> log).min(left);
                let from = PhysBlock(at)..PhysBlock(at + blocks);
                pieces.push(Piece {
                    from,
                    to: found.start,
                });
                at += blocks;
            }
        }
        Ok(Moves::new(pieces))
    }

    /// Takes a run of free clusters: of `wanted`, or fewer if there is no such run.
    fn take_run(&mut self, wanted: u64) -> Result<Range<PhysBlock>> {
        loop {
            let least = wanted.min(self.least_run);
            match self.space.take(self.volume, least, wanted) {
                Err(ResizeError::NoRoom) if least > 1 => self.least_run = least / 2,
                found => return found,
            }
        }
    }

    /// The checksums of the orphan file's blocks depend on their place.
    fn seal_orphan_blocks(&self, inode: &Inode, moves: &Moves) -> Result<()> {
        for piece in moves.pieces() {
            for offset in 0..piece.from.end.0 - piece.from.start.0 {
                let place = PhysBlock(piece.to.0 + offset);
                self.seal_orphan_block(inode, place)?;
            }
        }
        Ok(())
    }

    fn seal_orphan_block(&self, inode: &Inode, place: PhysBlock) -> Result<()> {
        let mut bytes = self.volume.read(place)?;
        let seed = inode.checksum_seed();
        orphan::seal(&mut bytes, place, seed, self.volume.sb()).map_err(ResizeError::corrupt)?;
        self.volume.write_now(place, &bytes)
    }

    /// Makes an inode refer to the copies, and frees the originals.
    pub(crate) fn switch(&mut self, inode: &Inode, map: &Map, moves: &Moves) -> Result<()> {
        let seed = inode.checksum_seed();
        let (volume, space) = (&*self.volume, &mut self.space);
        let new = rewrite(volume, space, inode, map, moves, seed, self.end)?;
        for piece in moves.pieces() {
            self.space.free(self.volume, &piece.from);
        }
        let sb = self.volume.sb().clone();
        // Bad blocks belong to no user.
        let is_counted = self.volume.has_quota() && inode.number() != inodes::BAD_BLOCKS_INODE;
        inodes::change(self.volume, inode.number(), |inode| {
            put_map(inode, &new, &sb, is_counted)
        })
    }

    fn move_attributes(&mut self, inode: &Inode) -> Result<()> {
        let Some(old) = inode.file_acl() else {
            return Ok(());
        };
        let mut bytes = self.volume.read(old)?;
        xattr::block_header(&bytes).map_err(ResizeError::corrupt)?;
        let new = match self.attributes.get(&old) {
            Some(&new) => {
                let mut copy = self.volume.read(new)?;
                xattr::add_user(&mut copy);
                self.set_attributes(new, copy)?;
                new
            }
            None => {
                let new = self.space.take(self.volume, 1, 1)?.start;
                let mut copy = bytes.clone();
                xattr::set_single_user(&mut copy);
                self.set_attributes(new, copy)?;
                self.attributes.insert(old, new);
                new
            }
        };
        if xattr::drop_user(&mut bytes) == 0 {
            self.space.free(self.volume, &(old..PhysBlock(old.0 + 1)));
            self.attributes.remove(&old);
        } else {
            self.set_attributes(old, bytes)?;
        }
        inodes::change(self.volume, inode.number(), |inode| {
            inode.set_file_acl(Some(new)).map_err(ResizeError::corrupt)
        })?;
        self.commit_if_large()
    }

    fn set_attributes(&mut self, place: PhysBlock, mut bytes: Vec<u8>) -> Result<()> {
        if self.volume.sb().has_metadata_csum() {
            let seed = self.volume.sb().checksum_seed();
            xattr::seal_block(&mut bytes, place, seed).map_err(ResizeError::corrupt)?;
        }
        self.volume.set(place, bytes);
        Ok(())
    }
}

/// The number of changed blocks with which a step ends.
fn most_changes(volume: &Volume<'_>) -> Result<usize> {
    let most = MOST_CHANGED_BYTES / volume.block_bytes();
    let log = journal::log_blocks(volume)?;
    let share = log.and_then(|blocks| usize::try_from(blocks / SHARE_OF_THE_LOG).ok());
    Ok(share.map_or(most, |share| most.min(share)))
}

/// Stores a map that was rewritten in its inode.
pub(super) fn put_map(
    inode: &mut InodeMut<'_>,
    new: &Rewritten,
    sb: &Superblock,
    has_quota: bool,
) -> Result<()> {
    if new.more_blocks != 0 && has_quota {
        let why = "it has quotas, which would have to count another length of a file's map";
        return Err(ResizeError::Unsupported(why.into()));
    }
    *inode.i_block_mut() = new.i_block;
    let cluster_sectors = sb.geometry().cluster_size_bytes() / 512;
    let more = new.more_blocks * i64::try_from(cluster_sectors).unwrap_or(i64::MAX);
    let sectors = inode.sectors().saturating_add_signed(more);
    inode.set_sectors(sectors).map_err(ResizeError::corrupt)
}
