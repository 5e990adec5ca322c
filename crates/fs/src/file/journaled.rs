//! **Purpose.** Decides which files have their data in the journal, and reads the data of such
//! files.
//!
//! **Model.** With `data=ordered` and `data=writeback`, data goes to its home location before the
//! plan that maps it, and no copy of it is in memory. Where data is journaled, its blocks are
//! buffers like those of metadata: a write plans them as regions, the log takes them (escaped where
//! they look like blocks of the log), a checkpoint writes them to their home locations, and a block
//! that is freed is revoked.
//!
//! | | ordered, writeback | journal |
//! |---|---|---|
//! | all files | to their places | through the log |
//! | files with `JOURNAL_DATA_FL` | through the log | through the log |
//! | encrypted files, values of attributes | to their places | to their places |
//! | without a journal | to their places | refused |
//!
//! `data=writeback` promises less than `data=ordered`: nothing about when data arrives. Here it
//! costs nothing to keep the order, since data is on its way before its plan is applied, and the
//! commit has to flush the device anyway. So both modes do the same.
//!
//! **Invariants.** A block whose newest data is not at its home location is in the buffer cache:
//! dirty and unsettled buffers do not leave it. So a reader of such a file looks up each block in
//! the cache, and reads the device for blocks that are not there. While a file is not journaled,
//! buffers of its blocks are not kept up to date, if there are any. So when the flag changes, all
//! data is checkpointed first, and the buffers are dropped.
//!
//! **Locking.** Readers take no lock. The flag changes under the inode's lock.
//!
//! **References.** `ext4_inode_journal_mode` of Linux; Documentation/admin-guide/ext4.rst.

use fourscore_block::BlockDevice as _;
use fourscore_ondisk::PhysBlock;
use fourscore_ondisk::inode::{FileType, InodeFlags};

use crate::Result;
use crate::core::Core;
use crate::file::scatter::Scatter;
use crate::inode::cached::CachedInode;
use crate::mount::modes::DataMode;
use fourscore_sync::epoch;

/// Whether the data of `inode` goes through the journal.
pub(crate) fn journals_content(core: &Core, inode: &CachedInode) -> bool {
    let Some(live) = &core.live else {
        return false;
    };
    let wanted = live.data == DataMode::Journal || inode.has(InodeFlags::JOURNAL_DATA_FL);
    // Values of attributes go straight to their blocks.
    let is_value = inode.has(InodeFlags::EA_INODE_FL);
    let is_file = inode.file_type() == FileType::Regular && !inode.is_encrypted() && !is_value;
    wanted && is_file && live.journal.has_log()
}

/// Reads `len_bytes` from byte `from` of the device on, which belong to a file whose data is
/// journaled: data in memory is newer than data at its home location.
pub(crate) fn read_journaled(
    core: &Core,
    out: &mut Scatter<'_, '_>,
    len_bytes: u64,
    from: u64,
) -> Result<()> {
    let bits = core.geometry().block_size().bits();
    let (mut at, end) = (from, from.saturating_add(len_bytes));
    let block = |at: u64| PhysBlock(at >> bits);
    while at < end {
        let stop = |at: u64| end.min(((at >> bits) + 1) << bits);
        let mut until = stop(at);
        let guard = epoch::pin();
        if let Some(buffer) = core.buffers.cached(block(at), &guard) {
            // A buffer is as long as a block, so the rest of the block is there.
            let inside = usize::try_from(at & ((1 << bits) - 1)).unwrap_or(usize::MAX);
            let mut rest = buffer.bytes(&guard).get(inside..).unwrap_or_default();
            while at < until {
                let done = out.with_next(until - at, |buf| {
                    let (now, later) = rest.split_at(buf.len().min(rest.len()));
                    buf[..now.len()].copy_from_slice(now);
                    rest = later;
                });
                if done == 0 {
                    return Ok(());
                }
                at += done;
            }
            continue;
        }
        while until < end && core.buffers.cached(block(until), &guard).is_none() {
            until = stop(until);
        }
        drop(guard);
        out.read(until - at, at, |slices, from| {
            core.device.read_vectored_at(slices, from)
        })?;
        at = until;
    }
    Ok(())
}
