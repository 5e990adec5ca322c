//! **Purpose.** Gives inodes of groups that vanish numbers in groups that stay.
//!
//! **Model.** One step copies an inode to a free slot, clears the old one, and changes all that
//! names it: entries of directories (`.` and `..` too), attributes whose value it is, and fields of
//! the superblock. Checksums depend on the number: with `metadata_csum` nodes of the inode's map
//! and blocks of a directory are written again, to free places, before the step.
//!
//! All directories are read once, to know which of them name an inode.
//!
//! **Crash safety.** A step is one transaction, if what it changes fits: an inode with names in a
//! hundred directories, or a directory of a hundred others, does not fit into the smallest journal,
//! and is changed in place.

use std::collections::{BTreeMap, BTreeSet};

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
        let mut moved = BTreeMap::new();
        for (old, namers) in namers {
            let new = self.free_inode(stay)?;
            self.move_inode_to(old, new)?;
            moved.insert(old, new);
            let now = |number: InodeNr| moved.get(&number).copied().unwrap_or(number);
            for namer in namers {
                let dir = now(namer.dir);
                self.redirect(Namer { dir, ..namer }, old, new)?;
            }
            for user in users.remove(&old).into_iter().flatten().map(now) {
                self.redirect_values(user, old, new)?;
            }
            self.change_superblock(old, new)?;
            self.commit_if_large()?;
        }
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
        for group in (self.inode_goal..groups).map(GroupNr) {
            let desc = self.volume.desc(group)?;
            self.inode_goal = group.0;
            if desc.free_inodes() == 0 {
                continue;
            }
            if desc.flags().contains(GroupFlags::INODE_UNINIT) {
                let first = geometry.inode_at(group, GroupOffset(0));
                return first.ok_or(ResizeError::NoRoom);
            }
            let bits = self.volume.read(desc.inode_bitmap())?;
            let run = free_run(&bits, 0..geometry.inodes_per_group().into(), 1);
            let index = run.and_then(|run| u32::try_from(run.start).ok());
            if let Some(index) = index
                && let Some(number) = geometry.inode_at(group, GroupOffset(index))
            {
                return Ok(number);
            }
        }
        Err(ResizeError::NoRoom)
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
        let slot = self.volume.change(block)?.get_mut(place);
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
            self.copy(&moves)?;
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
        let desc = self.volume.desc(group)?;
        let inodes = geometry.inodes_per_group();
        let mut bits = match desc.flags().contains(GroupFlags::INODE_UNINIT) {
            true => bitmap::of_no_inodes(&geometry),
            false => self.volume.read(desc.inode_bitmap())?,
        };
        if is_used && self.volume.sb().metadata_checksum() != MetadataChecksum::None {
            // The rest of the table may never have been written.
            for slot in inodes.saturating_sub(desc.itable_unused())..index.0 {
                let place = geometry.inode_place(desc.inode_table(), GroupOffset(slot));
                let end = place.offset_bytes + geometry.inode_size_bytes();
                let block = self.volume.change(place.block)?;
                block
                    .get_mut(place.offset_bytes..end)
                    .unwrap_or_default()
                    .fill(0);
            }
        }
        bitmap::fill(&mut bits, index.0.into()..u64::from(index.0) + 1, is_used);
        let summary = BitmapSummary::of(&bits, inodes, inodes, self.volume.sb());
        self.volume.set(desc.inode_bitmap(), bits);
        self.volume.change_desc(group, |bytes, sb| {
            let mut desc = GroupDescMut::new(bytes, sb).map_err(ResizeError::corrupt)?;
            desc.set_inode_bitmap(&summary);
            if is_dir {
                desc.change_used_dirs(if is_used { 1 } else { -1 });
            }
            Ok(())
        })
    }

    /// Makes the entries of a block of a directory that name `old` name `new`.
    fn redirect(&mut self, namer: Namer, old: InodeNr, new: InodeNr) -> Result<()> {
        let dir = namer.dir;
        let inode = inodes::read(self.volume, dir)?;
        let change = |number: &mut [u8; 4]| {
            let is_old = *number == old.0.to_le_bytes();
            if is_old {
                *number = new.0.to_le_bytes();
            }
            is_old
        };
        if inode.flags().contains(InodeFlags::INLINE_DATA_FL) {
            return inodes::change(self.volume, dir, |inode| {
                visit_inside(inode, &mut |entries| {
                    each_entry(entries, &mut |number| {
                        change(number);
                    });
                })
            });
        }
        let map = Map::read(self.volume, &inode)?;
        let block = place_of(&map, namer.logical);
        let block = block.ok_or_else(|| ResizeError::corrupt("a directory without a block"))?;
        let mut bytes = self.volume.read(block)?;
        let mut is_changed = false;
        each_entry(&mut bytes, &mut |number| is_changed |= change(number));
        if is_changed {
            if self.volume.sb().has_metadata_csum() {
                let seed = inode.checksum_seed();
                seal_dir_block(&mut bytes, namer.logical, inode.flags(), seed)?;
            }
            self.volume.set(block, bytes);
        }
        Ok(())
    }

    /// Inodes that the superblock names.
    fn change_superblock(&mut self, old: InodeNr, new: InodeNr) -> Result<()> {
        let mut raw = *self.volume.sb().raw();
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
            }
        }
        self.volume.set_superblock(&raw)
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
