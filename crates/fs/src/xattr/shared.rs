//! **Purpose.** The state of a mount that concerns attributes which inodes share: the locks of
//! blocks and values, and the sharing cache.

use crate::txn::order;
use crate::txn::striped::StripedLocks;
use crate::xattr::share::Sharing;

/// Locks and cache of shared attributes.
#[derive(Debug)]
pub(crate) struct SharedXattrs {
    /// The locks of blocks of attributes.
    pub(crate) blocks: StripedLocks,
    /// The locks of inodes that hold values.
    pub(crate) values: StripedLocks,
    /// `None` if attributes are not shared.
    pub(crate) cache: Option<Sharing>,
}

impl SharedXattrs {
    /// Returns the state of a new mount with this cache.
    pub(crate) fn new(cache: Option<Sharing>) -> Self {
        Self {
            blocks: StripedLocks::new(order::XATTR_BLOCK),
            values: StripedLocks::new(order::VALUES),
            cache,
        }
    }
}
