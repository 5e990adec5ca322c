//! **Purpose.** The on-disk format of ext2, ext3 and ext4: bytes to types and back, checksums,
//! hashes and the feature table.
//!
//! **Not here.** I/O, locks, allocation of blocks: functions of this crate take bytes and give
//! values.
//!
//! | module | responsibility |
//! |---|---|
//! | [`types`] | newtypes for every number with a meaning |
//! | [`corrupt`] | what was found wrong, and where |
#![forbid(unsafe_code)]

pub mod corrupt;
pub mod types;

pub use corrupt::{Corrupt, CorruptKind, Place};
pub use types::{
    BlockCount, BlockSize, GroupNr, GroupOffset, InodeNr, LogicalBlock, PhysBlock, Tid,
};
