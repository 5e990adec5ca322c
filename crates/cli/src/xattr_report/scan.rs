//! **Purpose.** Reads all inodes of an image in the order of their tables, and collects what the
//! report needs.
//!
//! **Model.** An inode table is read in pieces. First the inodes of a piece are decoded, and the
//! attributes inside them; then the blocks of attributes that have not been met are read, in the
//! order of their numbers; then the users are counted, and the simulated caches looked up, in the
//! order of the inodes. Each inode, block and value is read once, and once more for each copy that
//! is compared with it.

use fourscore::{Corrupt, InodeNr, PhysBlock};
use fourscore_ondisk::inode::{Inode, InodeFlags};
use fourscore_ondisk::xattr::{self, MAX_BLOCK_REFS, Value, Xattrs};
use fourscore_ondisk::{GroupNr, GroupOffset};

use super::blocks::Blocks;
use super::clock::{Clock, Key};
use super::contents::ContentNr;
use super::faults::{Faults, Kind, Place};
use super::values::{User, Values};
use super::volume::Volume;
use crate::failure::Result;
use crate::image::Image;
use crate::progress::Progress;

/// Bytes of an inode table that are read at once.
const PIECE_BYTES: usize = 512 << 10;

/// How many inodes have attributes, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InodeCounts {
    pub(super) in_use: u64,
    /// Those with attributes inside the inode.
    pub(super) inside: u64,
    /// Those with a block of attributes.
    pub(super) in_block: u64,
    /// Those with both.
    pub(super) both: u64,
}

/// Everything that was found.
pub(super) struct Scan<'a> {
    pub(super) volume: Volume<'a>,
    pub(super) inodes: InodeCounts,
    pub(super) blocks: Blocks,
    pub(super) values: Values,
    pub(super) clocks: Vec<Clock>,
    pub(super) faults: Faults,
}

/// An inode of a piece that has attributes.
struct Found {
    user: User,
    block: Option<PhysBlock>,
    /// Values in inodes of the attributes inside it.
    values: Vec<ContentNr>,
}

impl<'a> Scan<'a> {
    /// Scans the image; there is a simulated cache of each size.
    pub(super) fn of(image: &'a Image, cache_bytes: &[u64]) -> Result<Self> {
        let mut scan = Self {
            volume: Volume { image },
            inodes: InodeCounts::default(),
            blocks: Blocks::default(),
            values: Values::default(),
            clocks: cache_bytes.iter().copied().map(Clock::new).collect(),
            faults: Faults::default(),
        };
        let geometry = image.fs.geometry();
        let progress = Progress::of_objects(geometry.inodes().into());
        let mut piece = Vec::new();
        for group in (0..geometry.groups()).map(GroupNr) {
            scan.group(group, &mut piece)?;
            progress.add(geometry.inodes_per_group() as usize);
        }
        scan.blocks.check_refcounts(scan.volume, &mut scan.faults);
        scan.values.check(scan.volume, &mut scan.faults);
        Ok(scan)
    }

    /// Reads the inodes of a group; `piece` is a buffer.
    fn group(&mut self, group: GroupNr, piece: &mut Vec<u8>) -> Result<()> {
        let image = self.volume.image;
        let found = image.fs.inode_bitmap(group);
        let found = found.and_then(|used| Ok((used, image.fs.group(group)?.inode_table())));
        let (used, table) = match found {
            Ok(found) => found,
            Err(why) => {
                let place = Place::Group(group);
                self.faults.report(image, Kind::Group, place, why);
                return Ok(());
            }
        };
        let geometry = self.volume.geometry();
        let block_bytes = self.volume.block_bytes();
        let step = (PIECE_BYTES / block_bytes).max(1);
        let per_block = geometry.inodes_per_block() as usize;
        let inodes: Vec<u32> = (0..used.len()).filter(|&bit| used.is_used(bit)).collect();
        let mut rest = inodes.as_slice();
        while let Some(&first) = rest.first() {
            let from = first as usize / per_block;
            let count = rest.partition_point(|&bit| (bit as usize / per_block) < from + step);
            let (now, later) = rest.split_at(count);
            rest = later;
            let last = now.last().map_or(from, |&bit| bit as usize / per_block);
            piece.resize((last + 1 - from) * block_bytes, 0);
            let start = PhysBlock(table.0.saturating_add(from as u64));
            if let Err(why) = self.volume.read(start, piece) {
                let place = Place::Group(group);
                self.faults.report(image, Kind::Group, place, why);
                continue;
            }
            self.piece(group, now, (from * per_block, piece))?;
        }
        Ok(())
    }

    /// Takes the inodes `bits` of a group; the table's part begins with the inode of its number.
    fn piece(&mut self, group: GroupNr, bits: &[u32], part: (usize, &[u8])) -> Result<()> {
        let geometry = self.volume.geometry();
        let size = geometry.inode_size_bytes();
        let (first, bytes) = part;
        let mut found = Vec::new();
        for &bit in bits {
            let at = (bit as usize - first) * size;
            let slot = bytes.get(at..at + size);
            let nr = geometry.inode_at(group, GroupOffset(bit));
            if let (Some(slot), Some(nr)) = (slot, nr) {
                found.extend(self.inode(nr, slot)?);
            }
        }
        let has_block = |found: &Found| Some((found.block?, found.user));
        let mut blocks: Vec<_> = found.iter().filter_map(has_block).collect();
        // The first inode of a block stays the first.
        blocks.sort_by_key(|&(block, _)| block);
        for (block, user) in blocks {
            let (values, faults) = (&mut self.values, &mut self.faults);
            self.blocks.load(self.volume, block, user, values, faults)?;
        }
        found.iter().for_each(|found| self.count(found));
        Ok(())
    }

    /// Decodes an inode, and the attributes inside it.
    fn inode(&mut self, nr: InodeNr, bytes: &[u8]) -> Result<Option<Found>> {
        let image = self.volume.image;
        // A reserved inode that was never used.
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let inode = match Inode::parse(bytes, nr, self.volume.superblock()) {
            Ok(inode) => inode,
            Err(why) => {
                self.faults
                    .report(image, Kind::Inode, Place::Inode(nr), why);
                return Ok(None);
            }
        };
        if inode.mode().0 == 0 && inode.links_count() == 0 {
            return Ok(None);
        }
        self.inodes.in_use += 1;
        if inode.flags().contains(InodeFlags::EA_INODE_FL) {
            self.values.add_inode(self.volume, &inode, &mut self.faults);
            return Ok(None);
        }
        let area = inode.xattr_area().unwrap_or_default();
        let values = match xattr::check_in_inode(area, self.volume.ea_inodes()) {
            Ok(()) => self.values_inside(User::of(&inode), area)?,
            Err(why) => {
                let why = Corrupt::from(why);
                self.faults
                    .report(image, Kind::InInode, Place::Inode(nr), why);
                Vec::new()
            }
        };
        let inside = Xattrs::in_inode(area).entries().next().is_some();
        let block = inode.file_acl();
        self.inodes.inside += u64::from(inside);
        self.inodes.in_block += u64::from(block.is_some());
        self.inodes.both += u64::from(inside && block.is_some());
        Ok((inside || block.is_some()).then_some(Found {
            user: User::of(&inode),
            block,
            values,
        }))
    }

    /// The contents of the values in inodes of a checked area inside an inode.
    fn values_inside(&mut self, user: User, area: &[u8]) -> Result<Vec<ContentNr>> {
        let mut found = Vec::new();
        for entry in Xattrs::in_inode(area)
            .entries()
            .map_while(|entry| entry.ok())
        {
            if let Value::Inode { .. } = entry.value {
                let (volume, faults) = (self.volume, &mut self.faults);
                found.extend(self.values.add_user(volume, user, &entry, faults)?);
            }
        }
        Ok(found)
    }

    /// Counts an inode as a user of its block, and looks its contents up in the caches.
    fn count(&mut self, found: &Found) {
        let block = found.block.and_then(|block| self.blocks.add_user(block));
        let content = block.and_then(|block| block.content);
        let known = content.and_then(|nr| self.blocks.contents.get(nr));
        let in_block = known.map_or(&[][..], |known| &known.values);
        for clock in &mut self.clocks {
            for &value in found.values.iter().chain(in_block) {
                clock.look_up(Key::Value(value), u64::MAX);
            }
            if let Some(content) = content {
                clock.look_up(Key::Block(content), MAX_BLOCK_REFS.into());
            }
        }
    }
}
