//! **Purpose.** The on-disk format of ext2, ext3 and ext4: bytes to types and back, checksums,
//! hashes and the feature table.
//!
//! **Not here.** I/O, locks, allocation of blocks: functions of this crate take bytes and return
//! values.
//!
//! | module | responsibility |
//! |---|---|
//! | [`types`] | newtypes for every number with a meaning |
//! | [`checksum`] | crc32c and crc16, and their seeds |
//! | [`features`] | feature bits and the table read / write / refuse |
//! | [`superblock`] | the superblock |
//! | [`geometry`] | the layout: groups, descriptors and inodes |
//! | [`group`] | group descriptors |
//! | [`inode`] | inodes, without the content of their blocks |
//! | [`orphan`] | blocks of the orphan file |
//! | [`mmp`] | the block of multiple-mount protection |
//! | [`relation`] | contradictions between structures |
//! | [`time`] | timestamps |
//! | [`fast_commit`] | the records of the fast-commit area |
//! | [`jbd2`] | the journal's superblock and the blocks that frame its transactions |
//! | [`corrupt`] | the error type for corrupt content, with its location |
//! | [`extent`] | nodes of extent trees |
//! | [`blockmap`] | direct to triple indirect blocks of files without extents |
//! | [`dirent`] | directory blocks with entries |
//! | [`htree`] | index blocks of hashed directories |
//! | [`dirhash`] | the hashes of names |
//! | [`casefold`] | comparison of names without regard to case |
//! | [`xattr`] | extended attributes in inodes, blocks and inodes of their own |
//! | [`acl`] | POSIX access control lists |
//! | [`quota`] | quota files |
//! | [`run`] | runs of a file's blocks, from which maps are built |
//! | [`words`] | parts of wide numbers, and bytes into buffers |
//! | [`inline`] | inline data: content stored in the inode itself |
//! | [`crypt`] | encrypted files without their key |
//! | [`verity`] | the fs-verity metadata of a file |
#![forbid(unsafe_code)]

pub mod acl;
pub mod blockmap;
pub mod casefold;
pub mod checksum;
pub mod corrupt;
pub mod crypt;
pub mod dirent;
pub mod dirhash;
pub mod extent;
pub mod fast_commit;
pub mod features;
pub mod geometry;
pub mod group;
pub mod htree;
pub mod inline;
pub mod inode;
pub mod jbd2;
pub mod mmp;
#[cfg(test)]
mod oracle;
pub mod orphan;
pub mod quota;
pub mod relation;
pub mod run;
pub mod superblock;
#[cfg(test)]
mod testing;
mod text;
pub mod time;
pub mod types;
pub mod verity;
pub mod words;
pub mod xattr;

pub use checksum::{ChecksumMismatch, ChecksumSeed, Crc32c, InodeGeneration, InodeSeed};
pub use corrupt::{Corrupt, CorruptKind, Place};
pub use geometry::{BytePlace, Geometry};
pub use group::GroupDesc;
pub use inode::Inode;
pub use run::MappedRun;
pub use superblock::{RawSuperblock, Superblock};
pub use time::Timestamp;
pub use types::{
    BlockCount, BlockSize, GroupNr, GroupOffset, InodeNr, LogicalBlock, PhysBlock, Tid,
};
