//! **Purpose.** The raw layout of the superblock: 1024 bytes at byte 1024 of the device.
//!
//! **Not here.** Checks: [`Superblock`](super::Superblock) is the checked form.
//!
//! **References.** Documentation/filesystems/ext4/super.rst of the kernel.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::Crc32c;

/// The superblock as it is on disk.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawSuperblock {
    /// Inodes, used and free.
    pub s_inodes_count: U32, // 0x000
    /// Blocks, low half.
    pub s_blocks_count_lo: U32, // 0x004
    /// Blocks reserved for the super-user, low half.
    pub s_r_blocks_count_lo: U32, // 0x008
    /// Free blocks (clusters times their ratio), low half.
    pub s_free_blocks_count_lo: U32, // 0x00c
    /// Free inodes.
    pub s_free_inodes_count: U32, // 0x010
    /// The block that holds the primary superblock's group: 1 with blocks of 1 KiB, else 0.
    pub s_first_data_block: U32, // 0x014
    /// log2 of the block size in KiB.
    pub s_log_block_size: U32, // 0x018
    /// log2 of the cluster size in KiB.
    pub s_log_cluster_size: U32, // 0x01c
    /// Blocks of each group but the last.
    pub s_blocks_per_group: U32, // 0x020
    /// Clusters of each group but the last.
    pub s_clusters_per_group: U32, // 0x024
    /// Inodes of each group.
    pub s_inodes_per_group: U32, // 0x028
    /// Last mount, seconds.
    pub s_mtime: U32, // 0x02c
    /// Last write, seconds.
    pub s_wtime: U32, // 0x030
    /// Mounts since the last check.
    pub s_mnt_count: U16, // 0x034
    /// Mounts after which a check is due; negative means never.
    pub s_max_mnt_count: U16, // 0x036
    /// 0xEF53.
    pub s_magic: U16, // 0x038
    /// State flags.
    pub s_state: U16, // 0x03a
    /// Action when an error is found.
    pub s_errors: U16, // 0x03c
    /// Minor revision.
    pub s_minor_rev_level: U16, // 0x03e
    /// Last check, seconds.
    pub s_lastcheck: U32, // 0x040
    /// Longest time between checks, seconds; 0 means no limit.
    pub s_checkinterval: U32, // 0x044
    /// Operating system that made the file system.
    pub s_creator_os: U32, // 0x048
    /// Revision: 0 has fixed inode sizes and none of the fields from `s_first_ino` on.
    pub s_rev_level: U32, // 0x04c
    /// User that may use reserved blocks, low half.
    pub s_def_resuid: U16, // 0x050
    /// Group that may use reserved blocks, low half.
    pub s_def_resgid: U16, // 0x052
    /// First inode that is not reserved.
    pub s_first_ino: U32, // 0x054
    /// Inode size in bytes.
    pub s_inode_size: U16, // 0x058
    /// The group this copy of the superblock is in.
    pub s_block_group_nr: U16, // 0x05a
    /// COMPAT features.
    pub s_feature_compat: U32, // 0x05c
    /// INCOMPAT features.
    pub s_feature_incompat: U32, // 0x060
    /// RO_COMPAT features.
    pub s_feature_ro_compat: U32, // 0x064
    /// UUID of the file system.
    pub s_uuid: [u8; 16], // 0x068
    /// Label, padded with zeros.
    pub s_volume_name: [u8; 16], // 0x078
    /// Directory of the last mount, padded with zeros.
    pub s_last_mounted: [u8; 64], // 0x088
    /// Compression algorithms, unused.
    pub s_algorithm_usage_bitmap: U32, // 0x0c8
    /// Preallocation hint for files, unused.
    pub s_prealloc_blocks: u8, // 0x0cc
    /// Preallocation hint for directories, unused.
    pub s_prealloc_dir_blocks: u8, // 0x0cd
    /// Blocks after the descriptors reserved for growth.
    pub s_reserved_gdt_blocks: U16, // 0x0ce
    /// UUID of the journal's own device.
    pub s_journal_uuid: [u8; 16], // 0x0d0
    /// Inode of the journal.
    pub s_journal_inum: U32, // 0x0e0
    /// Device number of the journal.
    pub s_journal_dev: U32, // 0x0e4
    /// Head of the orphan list.
    pub s_last_orphan: U32, // 0x0e8
    /// Seed of directory hashes.
    pub s_hash_seed: [U32; 4], // 0x0ec
    /// Hash of new directories.
    pub s_def_hash_version: u8, // 0x0fc
    /// Whether `s_jnl_blocks` holds a copy.
    pub s_jnl_backup_type: u8, // 0x0fd
    /// Size of a group descriptor with `64bit`.
    pub s_desc_size: U16, // 0x0fe
    /// Default mount options.
    pub s_default_mount_opts: U32, // 0x100
    /// First meta block group.
    pub s_first_meta_bg: U32, // 0x104
    /// Creation, seconds.
    pub s_mkfs_time: U32, // 0x108
    /// Copy of the journal inode's `i_block`, and its size.
    pub s_jnl_blocks: [U32; 17], // 0x10c
    /// Blocks, high half.
    pub s_blocks_count_hi: U32, // 0x150
    /// Reserved blocks, high half.
    pub s_r_blocks_count_hi: U32, // 0x154
    /// Free blocks, high half.
    pub s_free_blocks_count_hi: U32, // 0x158
    /// Extra inode bytes all inodes have.
    pub s_min_extra_isize: U16, // 0x15c
    /// Extra inode bytes new inodes should have.
    pub s_want_extra_isize: U16, // 0x15e
    /// Flags that are not features.
    pub s_flags: U32, // 0x160
    /// Blocks per disk of an array before the next disk.
    pub s_raid_stride: U16, // 0x164
    /// Seconds between updates of the MMP block.
    pub s_mmp_update_interval: U16, // 0x166
    /// The MMP block.
    pub s_mmp_block: U64, // 0x168
    /// Blocks over all data disks of an array.
    pub s_raid_stripe_width: U32, // 0x170
    /// log2 of the groups in a flex group.
    pub s_log_groups_per_flex: u8, // 0x174
    /// 1: crc32c.
    pub s_checksum_type: u8, // 0x175
    /// Version of encryption.
    pub s_encryption_level: u8, // 0x176
    /// Unused.
    pub s_reserved_pad: u8, // 0x177
    /// KiB written in the file system's life.
    pub s_kbytes_written: U64, // 0x178
    /// Next3: inode of the active snapshot.
    pub s_snapshot_inum: U32, // 0x180
    /// Next3: number of the active snapshot.
    pub s_snapshot_id: U32, // 0x184
    /// Next3: blocks reserved for it.
    pub s_snapshot_r_blocks_count: U64, // 0x188
    /// Next3: head of the list of snapshots.
    pub s_snapshot_list: U32, // 0x190
    /// Errors seen.
    pub s_error_count: U32, // 0x194
    /// First error, seconds.
    pub s_first_error_time: U32, // 0x198
    /// First error: inode.
    pub s_first_error_ino: U32, // 0x19c
    /// First error: block.
    pub s_first_error_block: U64, // 0x1a0
    /// First error: function of the kernel.
    pub s_first_error_func: [u8; 32], // 0x1a8
    /// First error: source line.
    pub s_first_error_line: U32, // 0x1c8
    /// Last error, seconds.
    pub s_last_error_time: U32, // 0x1cc
    /// Last error: inode.
    pub s_last_error_ino: U32, // 0x1d0
    /// Last error: source line.
    pub s_last_error_line: U32, // 0x1d4
    /// Last error: block.
    pub s_last_error_block: U64, // 0x1d8
    /// Last error: function of the kernel.
    pub s_last_error_func: [u8; 32], // 0x1e0
    /// Mount options to apply by default, padded with zeros.
    pub s_mount_opts: [u8; 64], // 0x200
    /// Inode of user quota.
    pub s_usr_quota_inum: U32, // 0x240
    /// Inode of group quota.
    pub s_grp_quota_inum: U32, // 0x244
    /// Clusters of fixed metadata; 0 means not computed.
    pub s_overhead_clusters: U32, // 0x248
    /// Groups with backups under `sparse_super2`.
    pub s_backup_bgs: [U32; 2], // 0x24c
    /// Encryption algorithms in use.
    pub s_encrypt_algos: [u8; 4], // 0x254
    /// Salt for keys from pass phrases.
    pub s_encrypt_pw_salt: [u8; 16], // 0x258
    /// Inode of lost+found.
    pub s_lpf_ino: U32, // 0x268
    /// Inode of project quota.
    pub s_prj_quota_inum: U32, // 0x26c
    /// Seed of checksums with `metadata_csum_seed`.
    pub s_checksum_seed: U32, // 0x270
    /// Bits 32 to 39 of `s_wtime`.
    pub s_wtime_hi: u8, // 0x274
    /// Bits 32 to 39 of `s_mtime`.
    pub s_mtime_hi: u8, // 0x275
    /// Bits 32 to 39 of `s_mkfs_time`.
    pub s_mkfs_time_hi: u8, // 0x276
    /// Bits 32 to 39 of `s_lastcheck`.
    pub s_lastcheck_hi: u8, // 0x277
    /// Bits 32 to 39 of `s_first_error_time`.
    pub s_first_error_time_hi: u8, // 0x278
    /// Bits 32 to 39 of `s_last_error_time`.
    pub s_last_error_time_hi: u8, // 0x279
    /// First error: code.
    pub s_first_error_errcode: u8, // 0x27a
    /// Last error: code.
    pub s_last_error_errcode: u8, // 0x27b
    /// Encoding of names under `casefold`.
    pub s_encoding: U16, // 0x27c
    /// Flags of the encoding.
    pub s_encoding_flags: U16, // 0x27e
    /// Inode of the orphan file.
    pub s_orphan_file_inum: U32, // 0x280
    /// User that may use reserved blocks, high half.
    pub s_def_resuid_hi: U16, // 0x284
    /// Group that may use reserved blocks, high half.
    pub s_def_resgid_hi: U16, // 0x286
    /// Reserved, kept as found.
    pub s_reserved: [U32; 93], // 0x288
    /// crc32c of all bytes before.
    pub s_checksum: U32, // 0x3fc
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == 1024);
    assert!(offset_of!(RawSuperblock, s_magic) == 0x38);
    assert!(offset_of!(RawSuperblock, s_rev_level) == 0x4c);
    assert!(offset_of!(RawSuperblock, s_first_ino) == 0x54);
    assert!(offset_of!(RawSuperblock, s_feature_incompat) == 0x60);
    assert!(offset_of!(RawSuperblock, s_uuid) == 0x68);
    assert!(offset_of!(RawSuperblock, s_journal_uuid) == 0xd0);
    assert!(offset_of!(RawSuperblock, s_hash_seed) == 0xec);
    assert!(offset_of!(RawSuperblock, s_desc_size) == 0xfe);
    assert!(offset_of!(RawSuperblock, s_mkfs_time) == 0x108);
    assert!(offset_of!(RawSuperblock, s_blocks_count_hi) == 0x150);
    assert!(offset_of!(RawSuperblock, s_mmp_block) == 0x168);
    assert!(offset_of!(RawSuperblock, s_kbytes_written) == 0x178);
    assert!(offset_of!(RawSuperblock, s_error_count) == 0x194);
    assert!(offset_of!(RawSuperblock, s_mount_opts) == 0x200);
    assert!(offset_of!(RawSuperblock, s_backup_bgs) == 0x24c);
    assert!(offset_of!(RawSuperblock, s_checksum_seed) == 0x270);
    assert!(offset_of!(RawSuperblock, s_encoding) == 0x27c);
    assert!(offset_of!(RawSuperblock, s_orphan_file_inum) == 0x280);
    assert!(offset_of!(RawSuperblock, s_checksum) == 0x3fc);
};

impl RawSuperblock {
    /// The value of `s_checksum` with `metadata_csum`: the checksum of all bytes before it.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        let (covered, _) = self.as_bytes().split_at(offset_of!(Self, s_checksum));
        Crc32c::START.update(covered).value()
    }

    /// Computes and stores the checksum. Only for file systems with `metadata_csum`, as without it
    /// the field is not in use.
    pub fn seal(&mut self) {
        self.s_checksum = self.checksum().into();
    }
}
