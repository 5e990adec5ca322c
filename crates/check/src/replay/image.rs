//! **Purpose.** The bytes of an inode after the replay: those of its last INODE record, laid over
//! those in the inode table.
//!
//! **Model.** A record is the inode as it was in memory. What describes blocks stays as in the
//! table, because the tree, the attribute block and the directory blocks on the device are those of
//! the table's inode:
//! ```text
//! i_block     of the table, unless it holds data and no map; an empty root for a new tree
//! i_blocks    of the table; the caller corrects it by the blocks that the map gains and loses
//! i_file_acl  of the table
//! i_size      of the table, for directories: their blocks are not in fast commits
//! i_dtime     of the table: it may chain the orphan list
//! ```

use fourscore_ondisk::extent;
use fourscore_ondisk::inode::{FileMode, FileType, InodeFlags, RawInode};
use zerocopy::FromBytes;

/// Where the bytes come from that a record does not replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The inode table.
    Table,
    /// Zeroes: the number belonged to no file, or to another one that is gone.
    Zeroes,
}

/// Lays `record` over `bytes`, which are those of the table or zeroes.
pub(super) fn lay_over(bytes: &mut [u8], record: &[u8]) {
    let Ok((table, _)) = RawInode::read_from_prefix(bytes) else {
        return;
    };
    for (to, from) in bytes.iter_mut().zip(record) {
        *to = *from;
    }
    let Ok((inode, _)) = RawInode::mut_from_prefix(bytes) else {
        return;
    };
    match i_block_of(inode) {
        IBlock::Record => {}
        IBlock::Table => inode.i_block = table.i_block,
        IBlock::Tree => {
            inode.i_block = table.i_block;
            if !inode.i_block.starts_with(&extent::MAGIC.to_le_bytes()) {
                extent::init_root(&mut inode.i_block);
            }
        }
    }
    inode.i_blocks_lo = table.i_blocks_lo;
    inode.i_blocks_high = table.i_blocks_high;
    inode.i_file_acl_lo = table.i_file_acl_lo;
    inode.i_file_acl_high = table.i_file_acl_high;
    inode.i_dtime = table.i_dtime;
    let flags = InodeFlags::from_bits_retain(inode.i_flags.get());
    let file_type = FileType::from_mode(FileMode(inode.i_mode.get()));
    if file_type == Some(FileType::Directory) && !flags.contains(InodeFlags::INLINE_DATA_FL) {
        inode.i_size_lo = table.i_size_lo;
        inode.i_size_high = table.i_size_high;
        let index = InodeFlags::from_bits_retain(table.i_flags.get()) & InodeFlags::INDEX_FL;
        let flags = (flags - InodeFlags::INDEX_FL) | index;
        inode.i_flags = flags.bits().into();
    }
}

/// Where `i_block` comes from.
enum IBlock {
    /// The table.
    Table,
    /// The table, if it has the root of an extent tree; else an empty root.
    Tree,
    /// The record.
    Record,
}

fn i_block_of(record: &RawInode) -> IBlock {
    let flags = InodeFlags::from_bits_retain(record.i_flags.get());
    if flags.contains(InodeFlags::EXTENTS_FL) {
        return IBlock::Tree;
    }
    if flags.contains(InodeFlags::INLINE_DATA_FL) {
        return IBlock::Record;
    }
    match FileType::from_mode(FileMode(record.i_mode.get())) {
        Some(FileType::Symlink | FileType::CharDevice | FileType::BlockDevice) => IBlock::Record,
        _ => IBlock::Table,
    }
}
