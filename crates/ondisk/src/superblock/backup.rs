//! **Purpose.** The backup of the journal's inode in the superblock: `s_jnl_blocks` has a copy of
//! its map and size, so that the log is found even if its inode was destroyed.
//!
//! **Not here.** The decision when to use the copy, which the journal replay makes.
//!
//! **References.** `e2fsck`, `e2fsck_get_journal`; Documentation/filesystems/ext4/super.rst of the
//! kernel.

use zerocopy::{FromBytes, IntoBytes};

use super::{JournalPlace, Superblock};
use crate::InodeNr;
use crate::inode::{InodeFlags, RawInode, seal};

/// `s_jnl_backup_type` of a copy of `i_block` and `i_size`.
const COPY_OF_INODE: u8 = 1;
/// The mode of the journal's inode: a regular file of the super-user.
const MODE: u16 = 0o100_600;
/// The magic number at the start of an extent tree.
const EXTENT_MAGIC: u16 = 0xf30a;
/// The indices of `i_size_high` and `i_size_lo` in `s_jnl_blocks`, after `i_block`.
const SIZE_HIGH_AT: usize = 15;
const SIZE_LOW_AT: usize = 16;

impl Superblock {
    /// The journal's inode, made from the copy in the superblock: its number, and its bytes as in
    /// an inode table, with a checksum if inodes have one. `None` without an internal journal, or
    /// without a copy.
    #[must_use]
    pub fn journal_inode_copy(&self) -> Option<(InodeNr, Vec<u8>)> {
        let Some(JournalPlace::Inode(number)) = self.journal() else {
            return None;
        };
        let words = &self.raw.s_jnl_blocks;
        if self.raw.s_jnl_backup_type != COPY_OF_INODE {
            return None;
        }
        let mut bytes = vec![0; self.geometry.inode_size_bytes()];
        let (inode, _) = RawInode::mut_from_prefix(&mut bytes).ok()?;
        inode.i_mode = MODE.into();
        inode.i_links_count = 1.into();
        inode.i_size_high = words[SIZE_HIGH_AT];
        inode.i_size_lo = words[SIZE_LOW_AT];
        for (to, word) in inode.i_block.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(word.as_bytes());
        }
        if inode.i_block.starts_with(&EXTENT_MAGIC.to_le_bytes()) {
            inode.i_flags = InodeFlags::EXTENTS_FL.bits().into();
        }
        seal(&mut bytes, number, self).ok()?;
        Some((number, bytes))
    }
}
