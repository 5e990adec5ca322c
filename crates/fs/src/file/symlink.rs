//! **Purpose.** The targets of symbolic links.
//!
//! **Model.** A target of less than 60 bytes lies in the inode; a longer one is the content of the
//! link, at most one block. A zero byte ends it early, as it does for the kernel.

use std::io::IoSliceMut;

use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock};
use fourscore_sync::epoch::Guard;

use crate::inode::cache::{CachedInode, Layout};
use crate::map::lookup::Target;
use crate::{Error, Fs, Result};

impl Fs {
    /// The target of a symbolic link. Of an encrypted one, the form Linux shows without the key.
    ///
    /// # Errors
    /// `InvalidArgument` for anything but a symbolic link.
    pub fn read_link(&self, inode: InodeNr) -> Result<Vec<u8>> {
        self.read_consistent(inode, |inode, guard| match inode.file_type() {
            FileType::Symlink => self.link_target(inode, guard),
            _ => Err(Error::InvalidArgument("not a symbolic link")),
        })
    }

    /// The target of the symbolic link `inode`; not empty.
    pub(crate) fn link_target(&self, inode: &CachedInode, guard: &Guard) -> Result<Vec<u8>> {
        let most = match inode.layout() {
            Layout::FastSymlink => inode.i_block().len(),
            _ => self.geometry().block_size().bytes(),
        };
        let found_bytes = inode.size_bytes();
        let wrong = || {
            let error = RelationError::SymlinkSize { found_bytes, most };
            Error::from(Corrupt::from(error).in_inode(inode.nr()))
        };
        let len = usize::try_from(found_bytes)
            .ok()
            .filter(|len| (1..=most).contains(len));
        let len = len.ok_or_else(wrong)?;
        let mut target = match inode.layout() {
            Layout::FastSymlink => inode.i_block().get(..len).unwrap_or_default().to_vec(),
            _ => self.long_target(inode, len, guard)?,
        };
        if inode.is_encrypted() {
            return self.shown_link_target(inode, &target);
        }
        if let Some(end) = target.iter().position(|&byte| byte == 0) {
            target.truncate(end);
        }
        if target.is_empty() {
            Err(wrong())
        } else {
            Ok(target)
        }
    }

    /// The content of a link that has a block. While the file system is written, the block may be
    /// newer in memory than on the device.
    fn long_target(&self, inode: &CachedInode, len: usize, guard: &Guard) -> Result<Vec<u8>> {
        if self.writer.is_some()
            && let Target::Written(block) = self.map(inode, LogicalBlock(0), guard)?.target
            && let Some(buffer) = self.buffers.cached(block, guard)
        {
            let bytes = buffer.bytes(guard);
            return Ok(bytes.get(..len).unwrap_or(bytes).to_vec());
        }
        let mut target = vec![0; len];
        let bufs = &mut [IoSliceMut::new(&mut target)];
        self.read_stored(inode, bufs, 0, guard)?;
        Ok(target)
    }
}
