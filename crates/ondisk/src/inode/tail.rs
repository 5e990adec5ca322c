//! **Purpose.** The bytes of an inode after its first 128, in memory: without an allocation for
//! inodes of 256 bytes, the usual size.

use std::fmt;
use std::ops::Deref;

/// The number of bytes after the first 128 in inodes of 256 bytes.
const USUAL_BYTES: usize = 128;

/// The bytes of an inode after its first 128.
#[derive(Clone)]
pub(super) enum Tail {
    Usual([u8; USUAL_BYTES]),
    Other(Box<[u8]>),
}

impl Tail {
    pub(super) fn new(bytes: &[u8]) -> Self {
        match bytes.try_into() {
            Ok(usual) => Self::Usual(usual),
            Err(_) => Self::Other(bytes.into()),
        }
    }

    /// Allocated memory, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Usual(_) => 0,
            Self::Other(bytes) => bytes.len(),
        }
    }
}

impl Deref for Tail {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Usual(bytes) => bytes,
            Self::Other(bytes) => bytes,
        }
    }
}

impl PartialEq for Tail {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Tail {}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
