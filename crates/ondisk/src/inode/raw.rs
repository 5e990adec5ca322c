//! **Purpose.** The raw layout of an inode: the 128 bytes that every inode has, and the fields
//! after them, of which an inode has the first `i_extra_isize` bytes.
//!
//! **References.** Documentation/filesystems/ext4/inodes.rst of the kernel.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first 128 bytes, as Linux uses them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[expect(missing_docs, reason = "the accessors of Inode describe the fields")]
pub struct RawInode {
    pub i_mode: U16,          // 0x00
    pub i_uid: U16,           // 0x02
    pub i_size_lo: U32,       // 0x04
    pub i_atime: U32,         // 0x08
    pub i_ctime: U32,         // 0x0c
    pub i_mtime: U32,         // 0x10
    pub i_dtime: U32,         // 0x14
    pub i_gid: U16,           // 0x18
    pub i_links_count: U16,   // 0x1a
    pub i_blocks_lo: U32,     // 0x1c
    pub i_flags: U32,         // 0x20
    pub i_version: U32,       // 0x24 (osd1)
    pub i_block: [u8; 60],    // 0x28
    pub i_generation: U32,    // 0x64
    pub i_file_acl_lo: U32,   // 0x68
    pub i_size_high: U32,     // 0x6c
    pub i_obso_faddr: U32,    // 0x70
    pub i_blocks_high: U16,   // 0x74 (osd2)
    pub i_file_acl_high: U16, // 0x76
    pub i_uid_high: U16,      // 0x78
    pub i_gid_high: U16,      // 0x7a
    pub i_checksum_lo: U16,   // 0x7c
    pub i_reserved: U16,      // 0x7e
}

/// The fields after the first 128 bytes. An inode does not have those past `i_extra_isize`.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
#[expect(missing_docs, reason = "the accessors of Inode describe the fields")]
pub struct RawInodeExtra {
    pub i_extra_isize: U16,  // 0x80
    pub i_checksum_hi: U16,  // 0x82
    pub i_ctime_extra: U32,  // 0x84
    pub i_mtime_extra: U32,  // 0x88
    pub i_atime_extra: U32,  // 0x8c
    pub i_crtime: U32,       // 0x90
    pub i_crtime_extra: U32, // 0x94
    pub i_version_hi: U32,   // 0x98
    pub i_projid: U32,       // 0x9c
}

/// The size of the part every inode has, in bytes.
pub const GOOD_OLD_INODE_SIZE_BYTES: usize = size_of::<RawInode>();

const _: () = {
    assert!(GOOD_OLD_INODE_SIZE_BYTES == 128);
    assert!(size_of::<RawInodeExtra>() == 32);
    assert!(offset_of!(RawInode, i_flags) == 0x20);
    assert!(offset_of!(RawInode, i_block) == 0x28);
    assert!(offset_of!(RawInode, i_generation) == 0x64);
    assert!(offset_of!(RawInode, i_checksum_lo) == 0x7c);
    assert!(offset_of!(RawInodeExtra, i_checksum_hi) == 0x82 - 0x80);
    assert!(offset_of!(RawInodeExtra, i_crtime) == 0x90 - 0x80);
    assert!(offset_of!(RawInodeExtra, i_projid) == 0x9c - 0x80);
};
