//! **Purpose.** Finds fields of the primary superblock that are valid by themselves but wrong: two
//! backups agree on another value.
//!
//! **Model.** Only fields that nothing changes but mkfs and resizing, which write the backups, too:
//! sizes, counts, the first inode, the seed of hashes. With a wrong one, all that is sound would
//! look damaged, and a repair would destroy it.

use fourscore_block::BlockDevice;
use fourscore_ondisk::{BlockSize, PhysBlock, RawSuperblock, Superblock};

use crate::open::{primary, read_superblock};

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
