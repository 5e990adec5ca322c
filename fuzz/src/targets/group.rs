//! **Purpose.** Group descriptors and the checksums of bitmaps.
//!
//! **Input.** A seed image, a byte of switches, the group, the descriptor, a bitmap.

use fourscore_ondisk::GroupNr;
use fourscore_ondisk::group::{self, GroupDesc};

use crate::images;
use crate::input::Input;
use crate::targets::SEAL;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let sb = &images::nth(input.u8()).superblock;
    let switches = input.u8();
    let geometry = sb.geometry();
    let nr = GroupNr(u32::from(input.u8()) % geometry.groups());
    let mut bytes = input.bytes(geometry.desc_size_bytes()).to_vec();
    let sealed = switches & SEAL != 0 && group::seal(&mut bytes, nr, sb).is_ok();
    let desc = match GroupDesc::parse(&bytes, nr, sb) {
        Ok(desc) => desc,
        Err(error) => {
            let wrong = matches!(error, group::GroupDescError::Checksum { .. });
            assert!(!(sealed && wrong), "{error}");
            return;
        }
    };
    for block in [desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table()] {
        assert!(block.0 < geometry.blocks().0);
    }
    assert!(desc.inode_table().0 + u64::from(geometry.inode_table_blocks()) <= geometry.blocks().0);
    let _counts = (
        desc.free_clusters(),
        desc.free_inodes(),
        desc.used_dirs(),
        desc.flags(),
    );
    if desc.check_counts(nr, sb).is_ok() {
        assert!(desc.itable_unused() <= geometry.inodes_per_group());
        assert!(desc.free_clusters() <= geometry.group_clusters(nr));
    }
    let bitmap = input.rest();
    let _right = (
        desc.verify_block_bitmap(bitmap, sb),
        desc.verify_inode_bitmap(bitmap, sb),
    );
}
