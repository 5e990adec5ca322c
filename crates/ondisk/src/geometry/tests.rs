//! **Purpose.** Tests with locations computed by hand, at the edges and in file systems too large
//! to make.

use crate::features::{Compat, Incompat, RoCompat};
use crate::geometry::BytePlace;
use crate::superblock::{RawSuperblock, Superblock};
use crate::testing::image;
use crate::types::{BlockCount, GroupNr, GroupOffset, InodeNr, PhysBlock};

fn place(block: u64, offset_bytes: usize) -> Option<BytePlace> {
    Some(BytePlace {
        block: PhysBlock(block),
        offset_bytes,
    })
}

fn set_groups(raw: &mut RawSuperblock, groups: u64) {
    let blocks = groups * u64::from(raw.s_blocks_per_group.get());
    raw.s_blocks_count_lo = u32::try_from(blocks & 0xffff_ffff).unwrap().into();
    raw.s_blocks_count_hi = u32::try_from(blocks >> 32).unwrap().into();
    let inodes = groups * u64::from(raw.s_inodes_per_group.get());
    raw.s_inodes_count = u32::try_from(inodes).unwrap().into();
}

fn backups(sb: &Superblock) -> Vec<u32> {
    let geometry = sb.geometry();
    let listed: Vec<u32> = geometry.groups_with_super().map(|group| group.0).collect();
    let asked = (0..geometry.groups()).filter(|&group| geometry.has_super(GroupNr(group)));
    assert_eq!(listed, asked.collect::<Vec<_>>());
    listed
}

#[test]
fn the_last_group_is_short() {
    let sb = image::metadata_csum();
    let geometry = sb.geometry();
    assert_eq!(geometry.group_length(GroupNr(2)), 32_768);
    assert_eq!(geometry.group_length(GroupNr(3)), 20_000);
    assert_eq!(geometry.group_length(GroupNr(4)), 0);
    let last = PhysBlock(3 * 32_768 + 19_999);
    assert_eq!(
        geometry.block_group(last),
        Some((GroupNr(3), GroupOffset(19_999)))
    );
    assert_eq!(geometry.block_group(PhysBlock(last.0 + 1)), None);
    assert!(geometry.contains(last, BlockCount(1)));
    assert!(!geometry.contains(last, BlockCount(2)));
    assert!(!geometry.contains(last, BlockCount(0)));
    assert!(!geometry.contains(PhysBlock(1), BlockCount(u64::MAX)));
}

#[test]
fn backups_follow_the_feature() {
    let sparse = image::with(|raw| set_groups(raw, 130));
    assert_eq!(backups(&sparse), [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
    let two = image::with(|raw| {
        set_groups(raw, 130);
        raw.s_feature_compat = Compat::SPARSE_SUPER2.bits().into();
        raw.s_backup_bgs = [2.into(), 129.into()];
    });
    assert_eq!(backups(&two), [0, 2, 129]);
    let all = image::with(|raw| {
        set_groups(raw, 12);
        raw.s_feature_ro_compat = RoCompat::METADATA_CSUM.bits().into();
    });
    assert_eq!(backups(&all).len(), 12);
}

#[test]
fn descriptors_are_behind_the_superblock_or_in_their_meta_group() {
    let classic = image::with(|raw| set_groups(raw, 130));
    assert_eq!(classic.geometry().desc_place(GroupNr(0)), place(1, 0));
    assert_eq!(
        classic.geometry().desc_place(GroupNr(63)),
        place(1, 63 * 64)
    );
    assert_eq!(classic.geometry().desc_place(GroupNr(129)), place(3, 64));
    assert_eq!(classic.geometry().desc_place(GroupNr(130)), None);

    let meta = image::with(|raw| {
        set_groups(raw, 130);
        raw.s_feature_incompat = (Incompat::META_BG | Incompat::BIT64).bits().into();
        raw.s_first_meta_bg = 1.into();
    });
    let geometry = meta.geometry();
    assert_eq!(geometry.desc_place(GroupNr(5)), place(1, 5 * 64));
    assert_eq!(geometry.desc_place(GroupNr(64)), place(64 * 32_768, 0));
    assert_eq!(geometry.desc_place(GroupNr(129)), place(128 * 32_768, 64));
    // One classic descriptor block and the reserved blocks after the superblock; then one block
    // each in the first, second and last group of the second meta group; only superblocks in other
    // groups.
    let sizes = [0, 2, 3, 64, 65, 66, 81, 127].map(|g| geometry.base_meta_blocks(GroupNr(g)));
    assert_eq!(sizes, [33, 0, 33, 1, 1, 0, 1, 1]);
}

#[test]
fn a_block_of_1_kib_shifts_everything_by_one() {
    let change = |raw: &mut RawSuperblock| {
        raw.s_log_block_size = 0.into();
        raw.s_log_cluster_size = 0.into();
        raw.s_blocks_per_group = 8_192.into();
        raw.s_first_data_block = 1.into();
        raw.s_blocks_count_lo = (4 * 8_192 + 1).into();
    };
    let sb = image::with(change);
    let geometry = sb.geometry();
    assert_eq!(geometry.super_block(), PhysBlock(1));
    assert_eq!(geometry.desc_place(GroupNr(3)), place(2, 3 * 64));
    assert_eq!(geometry.group_first_block(GroupNr(1)), PhysBlock(8_193));
    assert_eq!(geometry.block_group(PhysBlock(0)), None);
    assert!(!geometry.contains(PhysBlock(0), BlockCount(1)));
    assert!(geometry.overlaps_base_meta(PhysBlock(0), BlockCount(1)));
}

#[test]
fn runs_on_fixed_metadata_are_found() {
    let sb = image::metadata_csum();
    let geometry = sb.geometry();
    let overlaps = |start, count| geometry.overlaps_base_meta(PhysBlock(start), BlockCount(count));
    // Superblock, one descriptor block, 31 reserved, in groups 0, 1 and 3.
    assert!(overlaps(32, 1));
    assert!(!overlaps(33, 1));
    assert!(!overlaps(33, 32_768 - 33));
    assert!(overlaps(33, 32_768 - 32));
    assert!(!overlaps(2 * 32_768, 32_768));
    assert!(overlaps(2 * 32_768, 32_769));
    assert!(!overlaps(2 * 32_768, 0));
    assert!(
        overlaps(33, u64::MAX - 33),
        "past the end the groups still count"
    );
}

#[test]
fn inodes_have_places() {
    let sb = image::metadata_csum();
    let geometry = sb.geometry();
    assert_eq!(geometry.inode_group(InodeNr(0)), None);
    assert_eq!(
        geometry.inode_group(InodeNr(8_192)),
        Some((GroupNr(0), GroupOffset(8_191)))
    );
    assert_eq!(
        geometry.inode_group(InodeNr(8_193)),
        Some((GroupNr(1), GroupOffset(0)))
    );
    assert_eq!(geometry.inode_group(InodeNr(4 * 8_192 + 1)), None);
    let at = |group, index| geometry.inode_at(GroupNr(group), GroupOffset(index));
    assert_eq!(at(1, 0), Some(InodeNr(8_193)));
    assert_eq!(at(3, 8_191), Some(InodeNr(4 * 8_192)));
    assert_eq!((at(4, 0), at(0, 8_192)), (None, None));
    let found = geometry.inode_place(PhysBlock(1_000), GroupOffset(33));
    assert_eq!(Some(found), place(1_002, 256));
}

#[test]
fn one_exbibyte_does_not_overflow() {
    // 2^23 groups of 2^25 blocks each: clusters of 4 MiB.
    let sb = image::with(|raw| {
        raw.s_feature_ro_compat = (RoCompat::BIGALLOC | RoCompat::METADATA_CSUM).bits().into();
        raw.s_log_cluster_size = 12.into();
        raw.s_clusters_per_group = 32_768.into();
        raw.s_blocks_per_group = (32_768 << 10).into();
        raw.s_inodes_per_group = 16.into();
        set_groups(raw, 1 << 23);
    });
    let geometry = sb.geometry();
    assert_eq!(geometry.size_bytes(), 1 << 60);
    assert_eq!(geometry.groups(), 1 << 23);
    let last = PhysBlock(geometry.blocks().0 - 1);
    let (group, offset) = geometry.block_group(last).unwrap();
    assert_eq!((group.0, offset.0), ((1 << 23) - 1, (32_768 << 10) - 1));
    assert_eq!(geometry.group_clusters(group), 32_768);
}
