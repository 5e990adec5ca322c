//! **Purpose.** Patches of the superblock, the group descriptors, their backups, and the block of
//! multi-mount protection.
//!
//! **Model.** A place that a descriptor gives wrongly is taken from the first sound backup of the
//! descriptors; if that has no better one, a bitmap moves to a free block. Flags and counts are
//! never taken from a backup, which may be years old. After such a fault the flags that a table is
//! not initialised are distrusted: all of it is read.

use std::ops::Range;

use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::inode::{FileMode, FileType};
use fourscore_ondisk::mmp::MmpBlock;
use fourscore_ondisk::superblock::{
    SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, SuperblockError,
};
use fourscore_ondisk::{GroupDesc, GroupNr, InodeNr, PhysBlock, RawSuperblock, Superblock};
use zerocopy::{FromBytes, IntoBytes};

use super::editor::{Editor, Left, Patch};
use crate::inode::InodeView;
use crate::open::read_superblock;
use crate::pass0::{MOST_GROUPS_PER_FLEX_LOG, is_desc_size};
use crate::volume::HiddenFile;

/// A backup of the superblock, with descriptors behind it.
struct Backup {
    group: GroupNr,
    sb: Superblock,
}

impl Editor<'_> {
    /// Writes the superblock that is in use over the primary one.
    pub(super) fn restore_super(&self) -> Patch {
        let mut raw = *self.volume.sb.raw();
        raw.s_block_group_nr = 0.into();
        let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        self.write_super(&mut bytes)
    }

    /// Mends all fields of the superblock that name objects that do not exist.
    pub(super) fn mend_super_fields(&self) -> Patch {
        let is_file = |nr: u32| {
            let is_file = |inode: &InodeView<'_>| {
                inode.links() > 0 && inode.file_type() == Some(FileType::Regular)
            };
            self.with_inode(InodeNr(nr), is_file).unwrap_or(false)
        };
        self.mend_idle_fields()?;
        for fault in self.volume.sb.faults() {
            match fault {
                SuperblockError::FirstMetaBg {
                    descriptor_blocks, ..
                } => {
                    let most = *descriptor_blocks;
                    self.edit_super(|raw| raw.s_first_meta_bg = most.into())?;
                }
                SuperblockError::Journal { .. }
                | SuperblockError::HiddenInode {
                    field: "s_journal_inum",
                    ..
                } => {
                    let inode = if is_file(InodeNr::JOURNAL.0) {
                        InodeNr::JOURNAL.0
                    } else {
                        0
                    };
                    self.edit_super(|raw| set_journal(raw, inode))?;
                }
                SuperblockError::HiddenInode {
                    field: "s_orphan_file_inum",
                    ..
                } => {
                    self.edit_super(|raw| {
                        raw.s_orphan_file_inum = 0.into();
                        clear_compat(raw, Compat::ORPHAN_FILE);
                        clear_ro_compat(raw, RoCompat::ORPHAN_PRESENT);
                    })?;
                }
                SuperblockError::HiddenInode { field, .. }
                | SuperblockError::QuotaInode { field, .. } => {
                    let usual = |nr: u32| if is_file(nr) { nr } else { 0 };
                    let (user, group) = (usual(3), usual(4));
                    self.edit_super(|raw| match *field {
                        "s_usr_quota_inum" => raw.s_usr_quota_inum = user.into(),
                        "s_grp_quota_inum" => raw.s_grp_quota_inum = group.into(),
                        _ => raw.s_prj_quota_inum = 0.into(),
                    })?;
                }
                SuperblockError::MmpBlock { .. } => {
                    let block = self.take_cluster()?;
                    self.write_mmp(block)?;
                    self.edit_super(|raw| raw.s_mmp_block = block.0.into())?;
                }
                other => return Err(Left(other.to_string())),
            }
        }
        Ok(())
    }

    /// Gives fields that mean nothing with these features a value that e2fsck accepts. The size of
    /// flex groups is that of mke2fs; only new groups depend on it.
    fn mend_idle_fields(&self) -> Patch {
        const USUAL_GROUPS_PER_FLEX_LOG: u8 = 4;
        let false_files = self.volume.false_hidden_files();
        let has_clusters = self.volume.ro_compat(RoCompat::BIGALLOC);
        let has_64bit = self.volume.incompat(Incompat::BIT64);
        let has_flex = self.volume.incompat(Incompat::FLEX_BG);
        self.edit_super(|raw| {
            if raw.s_log_groups_per_flex > MOST_GROUPS_PER_FLEX_LOG {
                raw.s_log_groups_per_flex = if has_flex {
                    USUAL_GROUPS_PER_FLEX_LOG
                } else {
                    0
                };
            }
            let size = raw.s_desc_size.get();
            if !has_64bit && !is_desc_size(size) {
                raw.s_desc_size = 0.into();
            }
            if !has_clusters {
                raw.s_clusters_per_group = raw.s_blocks_per_group;
            }
            for found in &false_files {
                *match found.file {
                    HiddenFile::Orphans => &mut raw.s_orphan_file_inum,
                    HiddenFile::UserQuota => &mut raw.s_usr_quota_inum,
                    HiddenFile::GroupQuota => &mut raw.s_grp_quota_inum,
                    HiddenFile::ProjectQuota => &mut raw.s_prj_quota_inum,
                } = 0.into();
            }
        })
    }

    /// Makes the count of reserved blocks a twentieth of all.
    pub(super) fn mend_reserved_blocks(&self) -> Patch {
        let reserved = self.volume.geometry().blocks().0 / 20;
        let [a, b, c, d, e, f, g, h] = reserved.to_le_bytes();
        let wide = self.volume.incompat(Incompat::BIT64);
        self.edit_super(|raw| {
            raw.s_r_blocks_count_lo = u32::from_le_bytes([a, b, c, d]).into();
            if wide {
                raw.s_r_blocks_count_hi = u32::from_le_bytes([e, f, g, h]).into();
            }
        })
    }

    /// Makes features consistent; `why` is that of the finding.
    pub(super) fn mend_features(&self, why: &str) -> Patch {
        match why {
            "metadata_csum and uninit_bg exclude each other" => {
                self.edit_super(|raw| clear_ro_compat(raw, RoCompat::GDT_CSUM))
            }
            "metadata_csum_seed without metadata_csum" => self.edit_super(|raw| {
                let features = raw.s_feature_incompat.get() & !Incompat::CSUM_SEED.bits();
                raw.s_feature_incompat = features.into();
            }),
            "64bit without extent" => self.set_incompat(Incompat::EXTENTS),
            "meta_bg and resize_inode exclude each other" => {
                self.edit_super(|raw| clear_compat(raw, Compat::RESIZE_INODE))
            }
            _ => Err(Left(format!("no rule for: {why}"))),
        }
    }

    /// Sets the size of extra fields in the superblock to 32.
    pub(super) fn mend_extra_isizes(&self, field: &str) -> Patch {
        self.edit_super(|raw| match field {
            "s_min_extra_isize" => raw.s_min_extra_isize = 32.into(),
            _ => raw.s_want_extra_isize = 32.into(),
        })
    }

    /// Writes a block of multi-mount protection that says that no host uses the file system.
    pub(super) fn write_mmp(&self, block: PhysBlock) -> Patch {
        let mut bytes = MmpBlock::clean(&self.volume.sb).raw().as_bytes().to_vec();
        bytes.resize(self.volume.block_bytes(), 0);
        self.write_block(block, &bytes)
    }

    /// Mends the descriptor of a group.
    pub(super) fn mend_descriptor(&self, nr: GroupNr) -> Patch {
        let sb = &self.volume.sb;
        let copy = self.backup_descriptor(nr);
        let mut bytes = self.descriptor(nr)?;
        let own = GroupDesc::unchecked(&bytes, sb).map_err(|error| Left(error.to_string()))?;
        if own.check_places(nr, sb).is_err() {
            let places = copy.filter(|copy| copy.check_places(nr, sb).is_ok());
            match places {
                Some(copy) => put_places(&mut bytes, &copy),
                None => self.find_places(nr, &mut bytes)?,
            }
        }
        self.write_descriptor(nr, &mut bytes)?;
        self.distrust(nr)
    }

    /// Moves the metadata of a group that lies on other metadata: to the place that a backup
    /// gives, or a bitmap to a free block.
    pub(super) fn mend_overlap(&self, nr: GroupNr, field: &str) -> Patch {
        let sb = &self.volume.sb;
        let mut bytes = self.descriptor(nr)?;
        let own = GroupDesc::unchecked(&bytes, sb).map_err(|error| Left(error.to_string()))?;
        let copy = self.backup_descriptor(nr);
        let places =
            |desc: &GroupDesc| (desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table());
        match copy.filter(|copy| copy.check_places(nr, sb).is_ok()) {
            Some(copy) if places(&copy) != places(&own) => put_places(&mut bytes, &copy),
            _ => {
                let block = self.take_run_in(1, self.allowed(nr))?;
                match field {
                    "bg_block_bitmap" => put_place(&mut bytes, Place::BlockBitmap, block),
                    "bg_inode_bitmap" => put_place(&mut bytes, Place::InodeBitmap, block),
                    _ => return Err(Left(format!("{field} cannot be moved"))),
                }
            }
        }
        self.write_descriptor(nr, &mut bytes)?;
        self.distrust(nr)
    }

    /// The clusters in which the metadata of a group may lie.
    fn allowed(&self, nr: GroupNr) -> Range<u64> {
        let (volume, geometry) = (self.volume, self.volume.geometry());
        if volume.incompat(Incompat::FLEX_BG) {
            return 0..volume.clusters();
        }
        let first = volume.cluster(geometry.group_first_block(nr));
        first..first + u64::from(geometry.group_clusters(nr))
    }

    /// Gives a group new places for what has an invalid one: free blocks. An inode table that is
    /// lost is made again, without inodes.
    fn find_places(&self, nr: GroupNr, bytes: &mut [u8]) -> Patch {
        let group = self.volume.group(nr);
        let group = group.ok_or_else(|| Left::because("no such group"))?;
        let allowed = self.allowed(nr);
        let is_wrong = |place: Option<PhysBlock>| {
            place.is_none_or(|block| !allowed.contains(&self.volume.cluster(block)))
        };
        if is_wrong(group.block_bitmap) {
            let block = self.take_run_in(1, allowed.clone())?;
            put_place(bytes, Place::BlockBitmap, block);
        }
        if is_wrong(group.inode_bitmap) {
            let block = self.take_run_in(1, allowed.clone())?;
            put_place(bytes, Place::InodeBitmap, block);
        }
        if is_wrong(group.inode_table) {
            let blocks = u64::from(self.volume.geometry().inode_table_blocks());
            let start = self.take_run_in(blocks, allowed.clone())?;
            let zeroes = vec![0; self.volume.block_bytes()];
            for block in start.0..start.0 + blocks {
                self.write_block(PhysBlock(block), &zeroes)?;
            }
            put_place(bytes, Place::InodeTable, start);
        }
        Ok(())
    }

    /// Has all inodes of a group read from now on.
    pub(super) fn distrust(&self, nr: GroupNr) -> Patch {
        self.set_unused(nr, 0)?;
        self.edit_descriptor(nr, |low, _| {
            let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
            low.bg_flags = (low.bg_flags.get() & !uninit.bits()).into();
        })
    }

    /// Clears flags that mean nothing without checksums of descriptors.
    pub(super) fn clear_group_flags(&self, nr: GroupNr) -> Patch {
        self.distrust(nr)
    }

    /// The descriptor of a group in the first sound backup, in the layout that the superblock there
    /// gives: a crash may have left the old one (`64bit`).
    fn backup_descriptor(&self, nr: GroupNr) -> Option<GroupDesc> {
        let (volume, geometry) = (self.volume, self.volume.geometry());
        let index = nr.0 / geometry.descs_per_block();
        if geometry.first_meta_bg().is_some_and(|first| index >= first) {
            let block = volume.meta_group_copies(index).first()?.place;
            let bytes = self.read_block(block).ok()?;
            let offset = geometry.desc_place(nr)?.offset_bytes;
            return GroupDesc::unchecked(bytes.get(offset..)?, &volume.sb).ok();
        }
        let backup = self.first_sound_backup()?;
        let place = backup.sb.geometry().desc_place(nr)?;
        let table = backup.sb.geometry().primary_table();
        if !table.contains(&place.block) {
            return None;
        }
        let start = geometry.group_first_block(backup.group).0;
        let bytes = self.read_block(PhysBlock(start + place.block.0 - table.start.0));
        GroupDesc::unchecked(bytes.ok()?.get(place.offset_bytes..)?, &backup.sb).ok()
    }

    /// The first group with a sound backup of the superblock and of the first descriptors.
    fn first_sound_backup(&self) -> Option<Backup> {
        let (volume, geometry) = (self.volume, self.volume.geometry());
        let size = geometry.block_size();
        let sound = |group: GroupNr| {
            let start = size.offset(geometry.group_first_block(group));
            let sb = read_superblock(&*volume.device, start).ok()?.ok()?;
            (sb.geometry().block_size() == size).then_some(Backup { group, sb })
        };
        let groups = geometry.groups_with_super().filter(|group| group.0 > 0);
        let mut classic = groups.filter(|group| self.has_classic_copies(*group));
        classic.find_map(sound)
    }

    /// Whether a group with a backup of the superblock has copies of the first descriptors: with
    /// `meta_bg` only if they describe it.
    fn has_classic_copies(&self, group: GroupNr) -> bool {
        let geometry = self.volume.geometry();
        geometry
            .first_meta_bg()
            .is_none_or(|first| group.0 / geometry.descs_per_block() < first)
    }

    /// Writes the primary superblock and the primary descriptors over all backups.
    pub(super) fn write_backups(&self) -> Patch {
        let geometry = self.volume.geometry();
        let size = geometry.block_size();
        let table = geometry.primary_table();
        let primary = self.primary_super()?;
        for group in geometry.groups_with_super().filter(|group| group.0 > 0) {
            let start = geometry.group_first_block(group);
            let mut raw = primary;
            raw.s_block_group_nr = u16::try_from(group.0).unwrap_or(u16::MAX).into();
            if raw.features().ro_compat.contains(RoCompat::METADATA_CSUM) {
                raw.seal();
            }
            self.write_at(size.offset(start), raw.as_bytes())?;
            if !self.has_classic_copies(group) {
                continue;
            }
            for (nth, block) in (table.start.0 + 1..table.end.0).enumerate() {
                let bytes = self.read_block(PhysBlock(block))?;
                self.write_block(PhysBlock(start.0 + 1 + nth as u64), &bytes)?;
            }
        }
        self.write_meta_group_copies()
    }

    /// Writes the primary descriptors over the copies in the groups that they describe (`meta_bg`).
    fn write_meta_group_copies(&self) -> Patch {
        let geometry = self.volume.geometry();
        let first = geometry.first_meta_bg().unwrap_or(geometry.desc_blocks());
        for index in first..geometry.desc_blocks() {
            let group = GroupNr(index.saturating_mul(geometry.descs_per_block()));
            let Some(primary) = geometry.desc_place(group) else {
                continue;
            };
            let bytes = self.read_block(primary.block)?;
            for copy in self.volume.meta_group_copies(index) {
                self.write_block(copy.place, &bytes)?;
            }
        }
        Ok(())
    }

    /// Makes inode 7 again: it has the blocks that are reserved for descriptors below its double
    /// indirect block, each with its backups as pointers.
    pub(super) fn mend_resize_inode(&self) -> Patch {
        let (volume, geometry) = (self.volume, self.volume.geometry());
        let nr = crate::walk::RESIZE_INODE;
        if !volume.compat(Compat::RESIZE_INODE) {
            return self.clear_inode(nr);
        }
        let per_block = self.volume.block_bytes() / 4;
        let reserved = usize::from(volume.sb.reserved_gdt_blocks()).min(per_block);
        let first = geometry.primary_table().end.0;
        let double = self.take_cluster()?;
        let mut table = vec![0; volume.block_bytes()];
        let backups: Vec<u64> = geometry
            .groups_with_super()
            .filter(|group| group.0 > 0)
            .map(|group| geometry.group_first_block(group).0 - geometry.first_data_block().0)
            .collect();
        for nth in 0..reserved {
            let own = first + nth as u64;
            let slot = (geometry.desc_blocks() as usize + nth) % per_block;
            put_pointer(&mut table, slot, own)?;
            let mut below = vec![0; volume.block_bytes()];
            for (slot, group) in backups.iter().enumerate().take(per_block) {
                put_pointer(&mut below, slot, own + group)?;
            }
            self.write_block(PhysBlock(own), &below)?;
        }
        self.write_block(double, &table)?;
        let pointer = u32::try_from(double.0).map_err(|_| Left::because("no low block is free"))?;
        let blocks = 12 + per_block as u64 + (per_block * per_block) as u64;
        let mut bytes = vec![0; geometry.inode_size_bytes()];
        self.write_inode(nr, &mut bytes)?;
        let now = self.now;
        self.edit_base(nr, |base| {
            base.i_mode = FileMode::new(FileType::Regular, 0o600).0.into();
            base.i_links_count = 1.into();
            base.i_mtime = now.into();
            base.i_ctime = now.into();
            if let Some(place) = base.i_block.get_mut(13 * 4..14 * 4) {
                place.copy_from_slice(&pointer.to_le_bytes());
            }
        })?;
        self.set_size(nr, blocks * volume.block_bytes() as u64)
    }

    fn primary_super(&self) -> Patch<RawSuperblock> {
        let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
        self.volume
            .device
            .read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
        RawSuperblock::read_from_bytes(&bytes).map_err(|_| Left::because("too short"))
    }
}

#[derive(Clone, Copy)]
enum Place {
    BlockBitmap,
    InodeBitmap,
    InodeTable,
}

/// Puts the places of bitmaps and inode table of one descriptor into another.
pub(super) fn put_places(bytes: &mut [u8], from: &GroupDesc) {
    put_place(bytes, Place::BlockBitmap, from.block_bitmap());
    put_place(bytes, Place::InodeBitmap, from.inode_bitmap());
    put_place(bytes, Place::InodeTable, from.inode_table());
}

fn put_place(bytes: &mut [u8], place: Place, block: PhysBlock) {
    use fourscore_ondisk::group::{RawGroupDesc, RawGroupDescHigh};
    let [a, b, c, d, e, f, g, h] = block.0.to_le_bytes();
    let low = u32::from_le_bytes([a, b, c, d]);
    let high = u32::from_le_bytes([e, f, g, h]);
    let Ok((desc, rest)) = RawGroupDesc::mut_from_prefix(bytes) else {
        return;
    };
    match place {
        Place::BlockBitmap => desc.bg_block_bitmap_lo = low.into(),
        Place::InodeBitmap => desc.bg_inode_bitmap_lo = low.into(),
        Place::InodeTable => desc.bg_inode_table_lo = low.into(),
    }
    if let Ok((desc, _)) = RawGroupDescHigh::mut_from_prefix(rest) {
        match place {
            Place::BlockBitmap => desc.bg_block_bitmap_hi = high.into(),
            Place::InodeBitmap => desc.bg_inode_bitmap_hi = high.into(),
            Place::InodeTable => desc.bg_inode_table_hi = high.into(),
        }
    }
}

fn put_pointer(block: &mut [u8], slot: usize, to: u64) -> Patch {
    let to = u32::try_from(to).map_err(|_| Left::because("a pointer of more than 32 bits"))?;
    if let Some(place) = block.get_mut(slot * 4..slot * 4 + 4) {
        place.copy_from_slice(&to.to_le_bytes());
    }
    Ok(())
}

/// Names the journal's inode, or none.
fn set_journal(raw: &mut RawSuperblock, inode: u32) {
    raw.s_journal_inum = inode.into();
    raw.s_journal_dev = 0.into();
    raw.s_journal_uuid = [0; 16];
    if inode == 0 {
        clear_compat(raw, Compat::HAS_JOURNAL);
        let features = raw.s_feature_incompat.get() & !Incompat::RECOVER.bits();
        raw.s_feature_incompat = features.into();
    }
}

fn clear_compat(raw: &mut RawSuperblock, feature: Compat) {
    raw.s_feature_compat = (raw.s_feature_compat.get() & !feature.bits()).into();
}

fn clear_ro_compat(raw: &mut RawSuperblock, feature: RoCompat) {
    raw.s_feature_ro_compat = (raw.s_feature_ro_compat.get() & !feature.bits()).into();
}
