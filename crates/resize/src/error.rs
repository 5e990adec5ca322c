//! **Purpose.** Why the size of a file system is not changed.

use std::io;

use fourscore_block::mmp::ClaimError;
use fourscore_ondisk::Geometry;

/// Why the size of a file system is not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The device has no file system of ext2, ext3 or ext4, or a damaged superblock.
    #[error("{0}")]
    NoFileSystem(String),
    /// The file system is in use, was left by a crash, or has errors.
    #[error("{0}")]
    NotAtRest(String),
    /// It uses a feature with which its size cannot be changed.
    #[error("{0}")]
    Unsupported(String),
    /// The content does not fit.
    #[error("{blocks} blocks are too few: the least size is {least} blocks of {block_bytes} bytes")]
    TooSmall {
        /// The size that was wished.
        blocks: u64,
        /// The least possible size.
        least: u64,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// There is no free place for something that has to move. The file system is valid and has its
    /// old size.
    #[error("no free place is left for what has to move: choose a larger size")]
    NoRoom,
    /// The format cannot express the size.
    #[error("{blocks} blocks are too many: {why}")]
    TooLarge {
        /// The size that was wished.
        blocks: u64,
        /// The limit, and what would lift it.
        why: &'static str,
    },
    /// The device is too short.
    #[error(
        "{blocks} blocks are too many: the device has {device_blocks} blocks of {block_bytes} bytes"
    )]
    DeviceTooShort {
        /// The size that was wished.
        blocks: u64,
        /// The blocks that the device has.
        device_blocks: u64,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// The file system on the device is damaged.
    #[error("the file system is damaged ({0}): check it first")]
    Corrupt(String),
    /// The device failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The changes could not be written.
    #[error("{0}")]
    Fs(#[from] fourscore::Error),
}

impl ResizeError {
    /// A file system like `wish` is longer than a device of `len_bytes`.
    pub(crate) fn device_too_short(wish: &Geometry, len_bytes: u64) -> Self {
        Self::DeviceTooShort {
            blocks: wish.blocks().0,
            device_blocks: len_bytes >> wish.block_size().bits(),
            block_bytes: wish.block_size().bytes(),
        }
    }

    pub(crate) fn corrupt(why: impl std::fmt::Display) -> Self {
        Self::Corrupt(why.to_string())
    }
}

impl From<ClaimError> for ResizeError {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::InUse(_) => Self::NotAtRest(error.to_string()),
            ClaimError::Corrupt(error) => Self::corrupt(error),
            ClaimError::Unsupported(why) => Self::Unsupported(why),
            ClaimError::Io(error) => Self::Io(error),
        }
    }
}

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, ResizeError>;
