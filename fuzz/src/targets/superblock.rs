//! **Purpose.** Superblock and geometry.
//!
//! **Input.** A byte of switches, then the superblock.

use fourscore_ondisk::geometry::Geometry;
use fourscore_ondisk::superblock::{JournalDevice, SUPERBLOCK_SIZE_BYTES, Superblock};
use fourscore_ondisk::{BlockCount, GroupNr, GroupOffset, InodeNr, RawSuperblock};
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;
use crate::targets::SEAL;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let switches = input.u8();
    let mut bytes = input.bytes(SUPERBLOCK_SIZE_BYTES).to_vec();
    if let Ok((raw, _)) = RawSuperblock::mut_from_prefix(&mut bytes)
        && switches & SEAL != 0
    {
        raw.seal();
    }
    let Ok(raw) = RawSuperblock::from_bytes(&bytes) else {
        return;
    };
    let features = raw.features();
    for feature in features.iter() {
        assert!(!feature.to_string().is_empty());
    }
    let _answers = (features.check_reading(), features.check_writing());
    let _journal = JournalDevice::try_from(raw);
    let Ok(superblock) = Superblock::try_from(raw) else {
        return;
    };
    assert_eq!(superblock.raw().as_bytes(), bytes);
    read_fields(&superblock);
    check_geometry(superblock.geometry());
}

/// Asks for everything a superblock tells.
fn read_fields(sb: &Superblock) {
    assert!(sb.volume_name().len() <= 16 && sb.last_mounted().len() <= 64);
    assert!(sb.mount_opts().len() <= 64);
    let identity = (
        sb.uuid(),
        sb.revision(),
        sb.flags(),
        sb.creator_os(),
        sb.block_group_nr(),
    );
    let options = (
        sb.default_mount_opts(),
        sb.metadata_checksum(),
        sb.error_policy(),
    );
    let space = (
        sb.reserved_blocks(),
        sb.free_blocks(),
        sb.free_inodes(),
        sb.overhead_clusters(),
    );
    let layout = (
        sb.groups_per_flex(),
        sb.reserved_gdt_blocks(),
        sb.raid_stride_blocks(),
    );
    let inodes = (
        sb.first_inode(),
        sb.journal(),
        sb.last_orphan(),
        sb.orphan_file_inode(),
    );
    let others = (
        sb.quota_inodes(),
        sb.mmp_block(),
        sb.mmp_update_interval_seconds(),
    );
    let names = (
        sb.def_hash_version(),
        sb.hash_seed(),
        sb.hash_sign(),
        sb.encoding(),
    );
    let times = (
        sb.mkfs_time(),
        sb.mount_time(),
        sb.write_time(),
        sb.last_check(),
    );
    let errors = (
        sb.state(),
        sb.error_count(),
        sb.first_error(),
        sb.last_error(),
    );
    let all = format!(
        "{identity:?}{options:?}{space:?}{layout:?}{inodes:?}{others:?}{names:?}{times:?}{errors:?}"
    );
    assert!(!all.is_empty() && sb.groups_per_flex() > 0);
    assert!(sb.may_be_named(InodeNr::ROOT));
}

/// The places that a geometry gives lie inside the file system and do not contradict each other.
fn check_geometry(geometry: &Geometry) {
    let groups = geometry.groups();
    let first = geometry.first_data_block();
    assert!(groups > 0 && first.0 < geometry.blocks().0);
    assert!(geometry.size_bytes() >= geometry.blocks().0);
    let probe = [0, 1, 2, groups / 2, groups - 1];
    for group in probe.into_iter().filter(|&nr| nr < groups).map(GroupNr) {
        let blocks = geometry.group_blocks(group);
        assert!(blocks.start < blocks.end && blocks.end.0 <= geometry.blocks().0);
        assert_eq!(blocks.start, geometry.group_first_block(group));
        assert_eq!(
            u64::from(geometry.group_length(group)),
            blocks.end.0 - blocks.start.0
        );
        assert!(geometry.group_clusters(group) <= geometry.clusters_per_group());
        assert_eq!(
            geometry.block_group(blocks.start),
            Some((group, GroupOffset(0)))
        );
        let place = geometry.desc_place(group);
        let place = place.expect("a group has a descriptor");
        assert!(place.block.0 < geometry.blocks().0, "{place:?}");
        assert!(
            place.offset_bytes + geometry.desc_size_bytes() <= geometry.block_size().bytes(),
            "{place:?}"
        );
        let _meta = (geometry.has_super(group), geometry.base_meta_blocks(group));
        let inode = geometry
            .inode_at(group, GroupOffset(0))
            .expect("a group has inodes");
        assert_eq!(geometry.inode_group(inode), Some((group, GroupOffset(0))));
    }
    assert_eq!(geometry.inode_group(InodeNr(0)), None);
    assert_eq!(geometry.desc_place(GroupNr(groups)), None);
    let _overlap = geometry.overlaps_base_meta(first, BlockCount(u64::from(u32::MAX)));
    let _primary = geometry.primary_table();
    assert!(geometry.overhead_blocks().0 > 0);
}
