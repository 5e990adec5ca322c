//! **Purpose.** Gives inodes of groups that vanish numbers in groups that stay.
//!
//! **Model.** A step copies inodes to free slots, clears the old ones, and changes all that names
//! them: entries of directories (`.` and `..` too), attributes whose value they are, and fields of
//! the superblock. It changes each bitmap and each block of a directory once, at its end. Checksums
//! depend on the number: with `metadata_csum` nodes of an inode's map and blocks of a directory are
//! written again, to free places, before the step.
//!
//! All directories are read once, to know which of them name an inode.
//!
//! **Crash safety.** A step is one transaction, if what it changes fits: an inode with names in two
//! hundred directories, or a directory of as many others, hardly fits into the smallest journal,
//! and in a step with others it would not. With more names it is changed in place.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use fourscore_ondisk::dirent::{DirFormat, decode_rec_len};
use fourscore_ondisk::features::Compat;
use fourscore_ondisk::group::{BitmapSummary, GroupDescMut, GroupFlags};
use fourscore_ondisk::inline::InlineMut;
use fourscore_ondisk::inode::{self, FileType, Inode, InodeFlags, InodeMut};
use fourscore_ondisk::superblock::MetadataChecksum;
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, InodeSeed, PhysBlock, htree, orphan};

use super::relocate::{Relocation, put_map};
use crate::bitmap;
use crate::error::{ResizeError, Result};
use crate::inodes;
use crate::map::{Map, Moves, rewrite};
use crate::space::free_run;

/// Bytes of a directory entry before its name.
const ENTRY_HEADER_BYTES: usize = 8;

/// A block of a directory that names an inode. Its logical number stays when the directory moves;
/// it is 0 for a directory inside its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Namer {
    dir: InodeNr,
    logical: u32,
}

/// Blocks of directories by the inode that they name.
type Namers = BTreeMap<InodeNr, BTreeSet<Namer>>;

/// The inodes of a group, with changes of the current step.
#[derive(Debug)]
pub(super) struct InodeBits {
    bits: Vec<u8>,
    /// The inodes at the end of the table that were never used.
    unused: u32,
    /// The change of the number of directories.
    more_dirs: i32,
}

/// New numbers by the old ones.
type Numbers = HashMap<InodeNr, InodeNr>;

/// The number that an inode has now.
fn now(moved: &Numbers, number: InodeNr) -> InodeNr {
    moved.get(&number).copied().unwrap_or(number)
}

impl Relocation<'_, '_> {
    /// Gives other numbers to all inodes with numbers above `most`.
    pub(crate) fn renumber(&mut self, most: u32) -> Result<()> {
        let groups = self.volume.geometry().groups();
        let stay = most / self.volume.geometry().inodes_per_group();
        let mut namers = Namers::new();
        inodes::visit(self.volume, stay..groups, &mut |inode| {
            namers.insert(inode.number(), BTreeSet::new());
            Ok(())
        })?;
        if namers.is_empty() {
            return Ok(());
        }
        if self
            .volume
            .sb()
            .features()
            .compat
            .contains(Compat::STABLE_INODES)
        {
            let why = "it has the feature stable_inodes, and files that would get other numbers";
            return Err(ResizeError::Unsupported(why.into()));
        }
        self.find_namers(&mut namers)?;
        let mut users = self.find_users_of_values(&namers)?;
        let mut moved = Numbers::new();
        let mut named = BTreeSet::new();
        for (old, namers) in namers {
            let users = users.remove(&old).unwrap_or_default();
            // One with many names may not fit into the transaction of those before it.
            let names = named.len() + namers.difference(&named).count();
            // A bitmap has a descriptor.
            if self.is_large(names + users.len() + 2 * self.inode_bits.len()) {
                self.end_renumbering(&mut named, &moved)?;
            }
            let new = self.free_inode(stay)?;
            self.move_inode_to(old, new)?;
            moved.insert(old, new);
            named.extend(namers);
            for user in users {
                self.redirect_values(now(&moved, user), old, new)?;
            }
            self.change_superblock(old, new)?;
        }
        self.end_renumbering(&mut named, &moved)
    }

    /// Ends the step: changes what names the inodes in `named`, and the bitmaps.
    fn end_renumbering(&mut self, named: &mut BTreeSet<Namer>, moved: &Numbers) -> Result<()> {
        self.redirect(std::mem::take(named), moved)?;
        self.store_inode_bits()?;
        self.commit()
    }

    /// Adds the blocks of directories that name the inodes in `namers`.
    fn find_namers(&self, namers: &mut Namers) -> Result<()> {
        let groups = self.volume.geometry().groups();
        inodes::visit(self.volume, 0..groups, &mut |inode| {
            if inode.file_type() != Some(FileType::Directory) {
                return Ok(());
            }
            let dir = inode.number();
            let mut add = |named: InodeNr, logical| {
                if let Some(blocks) = namers.get_mut(&named) {
                    blocks.insert(Namer { dir, logical });
                }
            };
            if inode.flags().contains(InodeFlags::INLINE_DATA_FL) {
                return self.entries_inside(dir, &mut |entries| {
                    each_entry(entries, &mut |number| {
                        add(InodeNr(u32::from_le_bytes(*number)), 0);
                    });
                });
            }
            for (logical, block) in blocks_of(&Map::read(self.volume, &inode)?) {
                let mut bytes = self.volume.read(block)?;
                each_entry(&mut bytes, &mut |number| {
                    add(InodeNr(u32::from_le_bytes(*number)), logical);
                });
            }
            Ok(())
        })
    }

    /// Calls `visit` with the parts of a directory inside a copy of its inode.
    fn entries_inside(&self, dir: InodeNr, visit: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let (block, place) = self.volume.inode_place(dir)?;
        let mut block = self.volume.read(block)?;
        let bytes = block.get_mut(place).unwrap_or_default();
        let mut inode = InodeMut::of(bytes, self.volume.sb()).map_err(ResizeError::corrupt)?;
        visit_inside(&mut inode, visit)
    }

    /// A free number in the first `groups` groups.
    fn free_inode(&mut self, groups: u32) -> Result<InodeNr> {
        let geometry = *self.volume.geometry();
        for group in (self.inode_goal.0..groups).map(GroupNr) {
            let start = match self.inode_goal {
                (goal, bit) if goal == group.0 => bit,
                _ => 0,
            };
            if !self.inode_bits.contains_key(&group) && self.volume.desc(group)?.free_inodes() == 0
            {
                continue;
            }
            let bits = &self.inode_bits(group)?.bits;
            let run = free_run(bits, start..geometry.inodes_per_group().into(), 1);
            let index = run.and_then(|run| u32::try_from(run.start).ok());
            if let Some(index) = index
                && let Some(number) = geometry.inode_at(group, GroupOffset(index))
            {
                self.inode_goal = (group.0, index.into());
                return Ok(number);
            }
        }
        Err(ResizeError::NoRoom)
    }

    /// The bitmap of the inodes of a group, with the changes of this step.
    fn inode_bits(&mut self, group: GroupNr) -> Result<&mut InodeBits> {
        match self.inode_bits.entry(group) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let desc = self.volume.desc(group)?;
                let bits = match desc.flags().contains(GroupFlags::INODE_UNINIT) {
                    true => bitmap::of_no_inodes(self.volume.geometry()),
                    false => self.volume.read(desc.inode_bitmap())?,
                };
                Ok(entry.insert(InodeBits {
                    bits,
                    unused: desc.itable_unused(),
                    more_dirs: 0,
                }))
            }
        }
    }

    fn move_inode_to(&mut self, old: InodeNr, new: InodeNr) -> Result<()> {
        let inode = inodes::read(self.volume, old)?;
        let (block, place) = self.volume.inode_place(old)?;
        let mut bytes = self.volume.read(block)?;
        let mut bytes = bytes.get_mut(place.clone()).unwrap_or_default().to_vec();
        let sb = self.volume.sb().clone();
        if sb.has_metadata_csum() {
            let seed = sb.checksum_seed().for_inode(new, inode.generation());
            self.seal_content(&inode, &mut bytes, seed)?;
        }
        let is_dir = inode.file_type() == Some(FileType::Directory);
        self.mark_inode(new, true, is_dir)?;
        self.mark_inode(old, false, is_dir)?;
        inode::seal(&mut bytes, new, &sb).map_err(ResizeError::corrupt)?;
        let (new_block, new_place) = self.volume.inode_place(new)?;
        let slot = self.volume.change(new_block)?.get_mut(new_place);
        slot.unwrap_or_default().copy_from_slice(&bytes);
        let slot = self.volume.change_last(block)?.get_mut(place);
        slot.unwrap_or_default().fill(0);
        Ok(())
    }

    /// Writes again what has checksums that depend on the inode's number, with `seed`.
    fn seal_content(&mut self, inode: &Inode, bytes: &mut [u8], seed: InodeSeed) -> Result<()> {
        let map = Map::read(self.volume, inode)?;
        let is_dir = inode.file_type() == Some(FileType::Directory);
        let is_orphan_file = self.volume.sb().orphan_file_inode() == Some(inode.number());
        let mut moves = Moves::default();
        if is_dir || is_orphan_file {
            let all = self.clusters_of(&map, PhysBlock(0));
            moves = self.reserve(&all, u64::MAX)?;
        }
        for (logical, block) in blocks_of(&map) {
            let (place, _) = moves.find(block);
            if place == block {
                continue;
            }
            let mut content = self.volume.read(block)?;
            if is_dir {
                seal_dir_block(&mut content, logical, inode.flags(), seed)?;
            } else {
                orphan::seal(&mut content, place, seed, self.volume.sb())
                    .map_err(ResizeError::corrupt)?;
            }
            self.volume.write_now(place, &content)?;
        }
        if moves.pieces().is_empty() && map.nodes.is_empty() {
            return Ok(());
        }
        let (volume, space) = (&*self.volume, &mut self.space);
        let rewritten = rewrite(volume, space, inode, &map, &moves, seed, self.end)?;
        for piece in moves.pieces() {
            self.space.free(self.volume, &piece.from);
        }
        let (sb, has_quota) = (self.volume.sb(), self.volume.has_quota());
        let mut inode = InodeMut::of(bytes, sb).map_err(ResizeError::corrupt)?;
        put_map(&mut inode, &rewritten, sb, has_quota)
    }

    /// Marks an inode as used or free.
    fn mark_inode(&mut self, number: InodeNr, is_used: bool, is_dir: bool) -> Result<()> {
        let geometry = *self.volume.geometry();
        let place = geometry.inode_group(number);
        let (group, index) = place.ok_or_else(|| ResizeError::corrupt("no such inode"))?;
        let inodes = geometry.inodes_per_group();
        let marked = self.inode_bits(group)?;
        let bit = u64::from(index.0);
        bitmap::fill(&mut marked.bits, bit..bit + 1, is_used);
        marked.more_dirs += i32::from(is_dir) * if is_used { 1 } else { -1 };
        if !is_used {
            return Ok(());
        }
        let never_written = inodes.saturating_sub(marked.unused)..index.0;
        marked.unused = marked.unused.min(inodes.saturating_sub(index.0 + 1));
        if self.volume.sb().metadata_checksum() != MetadataChecksum::None {
            // The rest of the table may never have been written.
            let table = self.volume.desc(group)?.inode_table();
            for slot in never_written {
                let place = geometry.inode_place(table, GroupOffset(slot));
                let end = place.offset_bytes + geometry.inode_size_bytes();
                let block = self.volume.change(place.block)?;
                block
                    .get_mut(place.offset_bytes..end)
                    .unwrap_or_default()
                    .fill(0);
            }
        }
        Ok(())
    }

    /// Adds the bitmaps of inodes to the step.
    fn store_inode_bits(&mut self) -> Result<()> {
        let inodes = self.volume.geometry().inodes_per_group();
        for (group, marked) in std::mem::take(&mut self.inode_bits) {
            let summary = BitmapSummary::of(&marked.bits, inodes, inodes, self.volume.sb());
            let place = self.volume.desc(group)?.inode_bitmap();
            self.volume.set(place, marked.bits);
            self.volume.change_desc(group, |bytes, sb| {
                let mut desc = GroupDescMut::new(bytes, sb).map_err(ResizeError::corrupt)?;
                desc.set_inode_bitmap(&summary);
                desc.change_used_dirs(marked.more_dirs);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Makes the entries of some blocks of directories name inodes by the numbers that they have
    /// now.
    fn redirect(&mut self, namers: BTreeSet<Namer>, moved: &Numbers) -> Result<()> {
        let mut known: Option<(Inode, Map)> = None;
        for namer in namers {
            let dir = now(moved, namer.dir);
            let (inode, map) = match known.take() {
                Some(found) if found.0.number() == dir => found,
                _ => {
                    let inode = inodes::read(self.volume, dir)?;
                    let map = Map::read(self.volume, &inode)?;
                    (inode, map)
                }
            };
            self.redirect_names(&inode, &map, namer.logical, moved)?;
            known = Some((inode, map));
        }
        Ok(())
    }

    fn redirect_names(
        &mut self,
        inode: &Inode,
        map: &Map,
        logical: u32,
        moved: &Numbers,
    ) -> Result<()> {
        let change = |number: &mut [u8; 4]| {
            let new = moved.get(&InodeNr(u32::from_le_bytes(*number)));
            *number = new.map_or(*number, |new| new.0.to_le_bytes());
            new.is_some()
        };
        if inode.flags().contains(InodeFlags::INLINE_DATA_FL) {
            return inodes::change(self.volume, inode.number(), |inode| {
                visit_inside(inode, &mut |entries| {
                    each_entry(entries, &mut |number| {
                        change(number);
                    });
                })
            });
        }
        let block = place_of(map, logical);
        let block = block.ok_or_else(|| ResizeError::corrupt("a directory without a block"))?;
        let mut bytes = self.volume.read(block)?;
        let mut is_changed = false;
        each_entry(&mut bytes, &mut |number| is_changed |= change(number));
        if is_changed {
            if self.volume.sb().has_metadata_csum() {
                let seed = inode.checksum_seed();
                seal_dir_block(&mut bytes, logical, inode.flags(), seed)?;
            }
            self.volume.set(block, bytes);
        }
        Ok(())
    }

    /// Inodes that the superblock names.
    fn change_superblock(&mut self, old: InodeNr, new: InodeNr) -> Result<()> {
        let mut raw = *self.volume.sb().raw();
        let mut is_changed = false;
        for field in [
            &mut raw.s_journal_inum,
            &mut raw.s_usr_quota_inum,
            &mut raw.s_grp_quota_inum,
            &mut raw.s_prj_quota_inum,
            &mut raw.s_lpf_ino,
            &mut raw.s_orphan_file_inum,
        ] {
            if field.get() == old.0 {
                *field = new.0.into();
                is_changed = true;
            }
        }
        match is_changed {
            true => self.volume.set_superblock(&raw),
            false => Ok(()),
        }
    }
}

/// The blocks of a map with their places in the file.
pub(super) fn blocks_of(map: &Map) -> impl Iterator<Item = (u32, PhysBlock)> {
    map.extents.iter().flat_map(|extent| {
        (0..extent.blocks).map(|offset| {
            let block = PhysBlock(extent.physical.0 + u64::from(offset));
            (extent.logical.0 + offset, block)
        })
    })
}

/// The place of a block of a map.
fn place_of(map: &Map, logical: u32) -> Option<PhysBlock> {
    map.extents.iter().find_map(|extent| {
        let offset = logical.checked_sub(extent.logical.0)?;
        (offset < extent.blocks).then(|| PhysBlock(extent.physical.0 + u64::from(offset)))
    })
}

/// Calls `visit` with the bytes of the inode number of each record in use.
fn each_entry(entries: &mut [u8], visit: &mut dyn FnMut(&mut [u8; 4])) {
    let (mut at, len) = (0, entries.len());
    while at + ENTRY_HEADER_BYTES <= len {
        let rec_len = u16::from_le_bytes([entries[at + 4], entries[at + 5]]);
        let rec_len = decode_rec_len(rec_len, len);
        if let Some(number) = entries[at..].first_chunk_mut()
            && *number != [0; 4]
        {
            visit(number);
        }
        if rec_len < ENTRY_HEADER_BYTES {
            return;
        }
        at += rec_len;
    }
}

/// Calls `visit` with the parts of a directory inside its inode: its parent, which is an entry
/// without a name, and the records.
fn visit_inside(inode: &mut InodeMut<'_>, visit: &mut dyn FnMut(&mut [u8])) -> Result<()> {
    let (i_block, area) = inode.parts_mut();
    let area = area.ok_or_else(|| ResizeError::corrupt("a directory without its data"))?;
    let mut data = InlineMut::of(i_block, area).map_err(ResizeError::corrupt)?;
    let (head, tail) = data.parts_mut().map_err(ResizeError::corrupt)?;
    let (parent, first) = head.split_at_mut(4);
    let mut entry = [0; ENTRY_HEADER_BYTES];
    entry[..4].copy_from_slice(parent);
    visit(&mut entry);
    parent.copy_from_slice(&entry[..4]);
    visit(first);
    visit(tail);
    Ok(())
}

/// Stores the checksum of a block of a directory.
fn seal_dir_block(
    block: &mut [u8],
    logical: u32,
    flags: InodeFlags,
    seed: InodeSeed,
) -> Result<()> {
    let is_indexed = flags.contains(InodeFlags::INDEX_FL);
    if is_indexed && logical == 0 {
        htree::seal_root(block, seed).map_err(ResizeError::corrupt)
    } else if is_indexed && htree::looks_like_node(block) {
        htree::seal_node(block, seed).map_err(ResizeError::corrupt)
    } else {
        DirFormat::seal(block, seed).map_err(ResizeError::corrupt)
    }
}
