//! **Purpose.** Finds descriptors that give places of bitmaps and inode tables that are valid by
//! themselves but wrong: backups of the descriptors give better ones.
//!
//! **Model.** Only resizing moves these structures, and it writes the backups, too. So where the
//! primary descriptor agrees with none of up to two sound backups, these are right if they agree
//! with each other. Otherwise the content decides: the table with more sound inodes is right. If
//! both have equally many, it is the backup, because the primary is written more often. Where only
//! bitmaps differ, a single backup must have a checksum. With a wrong table all inodes of the group
//! would look lost, and the repair would then write the wrong place over the backups.

use fourscore_block::BlockDevice;
use fourscore_ondisk::group;
use fourscore_ondisk::inode::{self, InodeFlags};
use fourscore_ondisk::{GroupDesc, GroupNr, GroupOffset, InodeNr, PhysBlock, Superblock};
use fourscore_sync::Arc;

use super::supers::put_places;
use crate::finding::Finding;
use crate::inode::InodeView;
use crate::open::{read_superblock, superblock};
use crate::report::Findings;
use crate::volume::{DescCopy, Group, Volume};

/// `eh_magic` at the start of a map of extents.
const EXTENT_MAGIC: u32 = 0xf30a;

/// A descriptor with places from a backup.
pub(super) struct Outvoted {
    /// Where it is, in bytes.
    pub(super) at: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) finding: Finding,
}

/// A descriptor of a backup, and the group that holds it.
type Copied = (GroupNr, GroupDesc);

/// The descriptors whose places backups know better. What cannot be read is passed over: the check
/// reports it.
pub(super) fn outvoted(device: Arc<dyn BlockDevice>) -> Vec<Outvoted> {
    let mut ignored = Findings::new(0);
    let Ok(sb) = superblock(&*device, &mut ignored) else {
        return Vec::new();
    };
    let volume = crate::pass0::load(device, sb, &mut ignored);
    let backups = sound_backups(&volume);
    let blocks = 0..volume.geometry().desc_blocks();
    blocks
        .flat_map(|index| in_block(&volume, &backups, index))
        .collect()
}

/// The groups with the first two backups of the superblock that describe this file system.
fn sound_backups(volume: &Volume) -> Vec<GroupNr> {
    let geometry = volume.geometry();
    let is_sound = |group: &GroupNr| {
        let at = geometry
            .block_size()
            .offset(geometry.group_first_block(*group));
        let read = read_superblock(&*volume.device, at);
        let is_this =
            |copy: &Superblock| copy.uuid() == volume.sb.uuid() && copy.geometry() == geometry;
        matches!(read, Ok(Ok(copy)) if is_this(&copy))
    };
    let groups = geometry.groups_with_super().filter(|group| group.0 > 0);
    groups.filter(is_sound).take(2).collect()
}

/// The copies of a block of descriptors.
fn copies(volume: &Volume, backups: &[GroupNr], index: u32) -> Vec<DescCopy> {
    let geometry = volume.geometry();
    if geometry.first_meta_bg().is_some_and(|first| index >= first) {
        return volume.meta_group_copies(index);
    }
    let copy = |&holder: &GroupNr| {
        let start = geometry.group_first_block(holder).0;
        let place = PhysBlock(start + 1 + u64::from(index));
        DescCopy { holder, place }
    };
    backups.iter().map(copy).collect()
}

/// The descriptors of one block whose places backups know better.
fn in_block(volume: &Volume, backups: &[GroupNr], index: u32) -> Vec<Outvoted> {
    let geometry = volume.geometry();
    let size = geometry.desc_size_bytes();
    let mut read = Vec::new();
    for copy in copies(volume, backups, index) {
        let mut bytes = vec![0; volume.block_bytes()];
        if volume.read(copy.place, &mut bytes).is_ok() {
            read.push((copy.holder, bytes));
        }
    }
    let first = index.saturating_mul(geometry.descs_per_block());
    let mut found = Vec::new();
    for (nr, slot) in (first..geometry.groups()).zip(0..geometry.descs_per_block() as usize) {
        let nr = GroupNr(nr);
        let sound = |(holder, block): &(GroupNr, Vec<u8>)| {
            let bytes = block.get(slot * size..(slot + 1) * size)?;
            group::verify(bytes, nr, &volume.sb).ok()?;
            let desc = GroupDesc::unchecked(bytes, &volume.sb).ok()?;
            let is_valid = desc.check_places(nr, &volume.sb).is_ok();
            is_valid.then_some((*holder, desc))
        };
        let sound: Vec<Copied> = read.iter().filter_map(sound).collect();
        found.extend(judged(volume, nr, &sound));
    }
    found
}

fn places(desc: &GroupDesc) -> (PhysBlock, PhysBlock, PhysBlock) {
    (desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table())
}

/// The descriptor of a group with better places, if its backups have some.
fn judged(volume: &Volume, nr: GroupNr, backups: &[Copied]) -> Option<Outvoted> {
    let group = volume.group(nr)?;
    let own = places(&group.desc);
    if backups.iter().any(|(_, copy)| places(copy) == own) {
        return None;
    }
    let score = |(_, copy): &&Copied| sound_inodes(volume, nr, group, copy.inode_table());
    let (holder, copy) = backups.iter().max_by_key(score)?;
    let place = volume.geometry().desc_place(nr)?;
    let at = volume.geometry().block_size().offset(place.block) + place.offset_bytes as u64;
    let mut bytes = vec![0; volume.geometry().desc_size_bytes()];
    volume.device.read_at(&mut bytes, at).ok()?;
    let had_checksum = group::verify(&bytes, nr, &volume.sb).is_ok();

    let agree = matches!(backups, [(_, one), (_, two)] if places(one) == places(two));
    let is_trusted = agree || volume.has_group_checksums() || !had_checksum;
    let here = sound_inodes(volume, nr, group, own.2);
    let there = sound_inodes(volume, nr, group, copy.inode_table());
    let is_better = match own.2 == copy.inode_table() {
        true => is_trusted,
        false => agree || there >= here,
    };
    if !is_better {
        return None;
    }
    put_places(&mut bytes, copy);
    // A wrong checksum may be that of the descriptor with the right places.
    if had_checksum {
        group::seal(&mut bytes, nr, &volume.sb).ok()?;
    }
    let finding = Finding::BackupDescriptors {
        group: *holder,
        other: nr,
    };
    Some(Outvoted { at, bytes, finding })
}

/// How many inodes of a group are sound, if its table is at `table`; each that is not counts
/// against it. Without checksums of inodes, this says how plausible they are. The table of the
/// first group has the root.
fn sound_inodes(volume: &Volume, nr: GroupNr, group: &Group, table: PhysBlock) -> i64 {
    let size = volume.geometry().inode_size_bytes();
    let count = volume.inodes_to_read(group);
    let mut bytes = vec![0; count as usize * size];
    let at = volume.geometry().block_size().offset(table);
    if volume.device.read_at(&mut bytes, at).is_err() {
        return 0;
    }
    let mut sum = 0;
    for (index, bytes) in (0..count).zip(bytes.chunks_exact(size)) {
        let number = volume.geometry().inode_at(nr, GroupOffset(index));
        let view = number.and_then(|number| InodeView::new(bytes, number));
        if view.is_some_and(|view| view.number == InodeNr::ROOT && !view.is_directory()) {
            return i64::MIN;
        }
        if let Some(view) = view.filter(|view| !view.is_blank()) {
            sum += if is_sound(volume, &view) { 1 } else { -1 };
        }
    }
    sum
}

/// Whether an inode that is not blank looks like one.
pub(super) fn is_sound(volume: &Volume, inode: &InodeView<'_>) -> bool {
    if volume.sb.has_metadata_csum() {
        return inode::verify(inode.bytes, inode.number, &volume.sb).is_ok();
    }
    let has_map =
        !inode.has(InodeFlags::EXTENTS_FL) || inode.block_word(0) & 0xffff == EXTENT_MAGIC;
    let is_deleted = inode.links() == 0;
    // Reserved inodes may hold nothing but a size or times.
    let has_type = inode.file_type().is_some() || inode.mode() == 0;
    has_map && has_type && is_deleted == (inode.mode() == 0 || inode.base.i_dtime.get() != 0)
}
