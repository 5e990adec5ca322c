//! **Purpose.** Finds fields of the primary superblock that are valid by themselves but wrong: two
//! backups agree on another value, or inodes contradict them.
//!
//! **Model.** Only fields that nothing changes but mkfs and resizing, which write the backups, too:
//! sizes, counts, the first inode, the seed of hashes. With a wrong one, all that is sound would
//! look damaged, and a repair would destroy it.
//!
//! How long groups are can be judged by one backup: it says itself that it begins group 1, and lies
//! where that is with its own length of groups. If the primary superblock expects it elsewhere, and
//! nothing is there, the length is wrong.
//!
//! The first inode that is not reserved can be judged without backups, which small file systems do
//! not have: it is 11 wherever mke2fs made the file system. If the field is larger, and an inode
//! between the two is in use and sound, the field is wrong. If it is not, for a program other than
//! mke2fs gave these inodes a role, nothing is lost: they become ordinary files.

use fourscore_block::BlockDevice;
use fourscore_ondisk::superblock::JournalPlace;
use fourscore_ondisk::{
    BlockSize, BytePlace, GroupNr, InodeNr, PhysBlock, RawSuperblock, Superblock,
};
use fourscore_sync::Arc;

use super::places::is_sound;
use crate::inode::InodeView;
use crate::open::{primary, read_superblock};
use crate::report::Findings;
use crate::volume::Volume;

/// The first inode that is not reserved, as mke2fs sets it.
const USUAL_FIRST_INODE: u32 = 11;

/// Groups with backups, in all layouts but `sparse_super2`.
const GROUPS: [u64; 3] = [1, 3, 5];

macro_rules! fields {
    ($($field:ident),*) => {
        /// The names of the fields that differ.
        fn differences(one: &RawSuperblock, two: &RawSuperblock) -> Vec<&'static str> {
            let mut names = Vec::new();
            $(if one.$field != two.$field {
                names.push(stringify!($field));
            })*
            names
        }

        fn copy(from: &RawSuperblock, to: &mut RawSuperblock) {
            $(to.$field = from.$field;)*
        }
    };
}

fields!(
    s_inodes_count,
    s_blocks_count_lo,
    s_blocks_count_hi,
    s_first_data_block,
    s_log_block_size,
    s_log_cluster_size,
    s_blocks_per_group,
    s_clusters_per_group,
    s_inodes_per_group,
    s_first_ino,
    s_inode_size,
    s_desc_size,
    s_first_meta_bg,
    s_reserved_gdt_blocks,
    s_log_groups_per_flex,
    s_hash_seed,
    s_rev_level
);

/// The primary superblock with the fields on which two backups agree against it, and their names;
/// `None` if there are none.
pub(super) fn outvoted(device: &dyn BlockDevice) -> Option<(RawSuperblock, Vec<&'static str>)> {
    let own = primary(device).ok()?;
    let backups: Vec<Superblock> = (0..=6).find_map(|log| two_backups(device, log))?;
    let [one, two] = &backups[..] else {
        return None;
    };
    let same_system = [one, two].iter().all(|sb| sb.uuid() == own.uuid());
    if !same_system || !differences(one.raw(), two.raw()).is_empty() {
        return None;
    }
    let names = differences(own.raw(), one.raw());
    let mut raw = *own.raw();
    copy(one.raw(), &mut raw);
    (!names.is_empty()).then_some((raw, names))
}

/// The primary superblock with the length of groups of the only backup, whose place contradicts it:
/// see the module. `None` if nothing contradicts it.
pub(super) fn group_length(device: &dyn BlockDevice) -> Option<RawSuperblock> {
    let own = primary(device).ok()?;
    let size = own.geometry().block_size();
    let at = |length: u64| PhysBlock(length + own.geometry().first_data_block().0);
    let begins_group = |block: PhysBlock| {
        let copy = read_superblock(device, size.offset(block)).ok()?.ok()?;
        let place = copy.geometry().group_first_block(GroupNr(1));
        let is_it = copy.uuid() == own.uuid() && copy.block_group_nr().0 == 1 && place == block;
        is_it.then_some(copy)
    };
    let expected = own.geometry().group_first_block(GroupNr(1));
    let found = at(size.bytes() as u64 * 8);
    if found == expected || begins_group(expected).is_some() {
        return None;
    }
    let copy = begins_group(found)?;
    let mut raw = *own.raw();
    raw.s_blocks_per_group = copy.raw().s_blocks_per_group;
    raw.s_clusters_per_group = copy.raw().s_clusters_per_group;
    Some(raw)
}

/// The primary superblock with the usual first inode, and the inode that shows that its own is
/// wrong: see the module. `None` if nothing shows that. Reads inodes up to the one that it returns.
pub(super) fn first_inode(device: Arc<dyn BlockDevice>) -> Option<(RawSuperblock, InodeNr)> {
    let sb = primary(&*device).ok()?;
    let reserved = USUAL_FIRST_INODE..sb.first_inode().0;
    if reserved.is_empty() {
        return None;
    }
    // The check reports what is wrong with the descriptors.
    let volume = crate::pass0::load(device, sb, &mut Findings::new(0));
    let mut block = vec![0; volume.block_bytes()];
    let mut loaded = None;
    let mut numbers = reserved.map(InodeNr);
    let witness = numbers.find(|&nr| {
        let Some(place) = place_of(&volume, nr) else {
            return false;
        };
        if loaded != Some(place.block) {
            if volume.read(place.block, &mut block).is_err() {
                block.fill(0);
            }
            loaded = Some(place.block);
        }
        let end = place.offset_bytes + volume.geometry().inode_size_bytes();
        let bytes = block.get(place.offset_bytes..end);
        let inode = bytes.and_then(|bytes| InodeView::new(bytes, nr));
        inode.is_some_and(|inode| is_file(&volume, &inode))
    })?;
    let mut raw = *volume.sb.raw();
    raw.s_first_ino = USUAL_FIRST_INODE.into();
    Some((raw, witness))
}

fn place_of(volume: &Volume, nr: InodeNr) -> Option<BytePlace> {
    let (group, index) = volume.geometry().inode_group(nr)?;
    let table = volume.group(group)?.inode_table?;
    Some(volume.geometry().inode_place(table, index))
}

/// Whether an inode is in use and sound, and the superblock names no role for it.
fn is_file(volume: &Volume, inode: &InodeView<'_>) -> bool {
    let sb = &volume.sb;
    let is_journal = sb.journal() == Some(JournalPlace::Inode(inode.number));
    let is_in_use = inode.links() > 0 && inode.base.i_dtime.get() == 0;
    let has_role = is_journal || sb.is_hidden(inode.number);
    is_in_use && !has_role && inode.file_type().is_some() && is_sound(volume, inode)
}

/// Two sound backups in a file system with blocks of this size and groups of full size.
fn two_backups(device: &dyn BlockDevice, log: u32) -> Option<Vec<Superblock>> {
    let size = BlockSize::from_log(log)?;
    let group_blocks = size.bytes() as u64 * 8;
    let found = GROUPS.iter().filter_map(|group| {
        let block = PhysBlock(group * group_blocks + u64::from(log == 0));
        let sb = read_superblock(device, size.offset(block)).ok()?.ok()?;
        let is_it =
            sb.geometry().block_size() == size && u64::from(sb.block_group_nr().0) == *group;
        is_it.then_some(sb)
    });
    let found: Vec<Superblock> = found.take(2).collect();
    (found.len() == 2).then_some(found)
}
