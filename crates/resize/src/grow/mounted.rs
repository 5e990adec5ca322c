//! **Purpose.** Makes a file system larger while it is mounted.
//!
//! **Model.** The growth is cut into pieces, each of which is one as at rest ([`super::grow`]),
//! made through the mount. So operations that change something wait for one piece at a time, and a
//! piece fits into a transaction.
//!
//! | limit of a piece | because |
//! |---|---|
//! | descriptors for a quarter of a transaction | bitmaps and the resize inode come on top |
//! | 16 groups, where their inode tables have to be zeroed | others wait for it |

use fourscore::Fs;
use fourscore_ondisk::BlockCount;
use fourscore_ondisk::superblock::{MetadataChecksum, Superblock};

use crate::error::{ResizeError, Result};
use crate::target;
use crate::volume::Volume;

/// The most groups of a piece if their inode tables are zeroed.
const ZEROED_GROUPS: u64 = 16;

/// Makes the mounted file system `fs` as large as possible with at most so many blocks. An image
/// file is made longer for it, and a block device is asked for its size again. Returns the size,
/// which is durable then.
///
/// Threads that read go on meanwhile; those that change something wait for a moment, once for each
/// piece of the growth. A crash leaves the old size, the new one or one in between, with all
/// content.
///
/// # Errors
/// `TooSmall` for fewer blocks than it has, `TooLarge` for more than the format or this mount
/// allows, `DeviceTooShort`, all with nothing changed; `Corrupt`; `Io`; `Fs` with `Busy` if it is
/// frozen or grows already, and with `ReadOnly`. What was done until an error stays.
pub fn grow_mounted(fs: &Fs, blocks: BlockCount) -> Result<BlockCount> {
    let now = fs.geometry().blocks();
    if blocks < now {
        return Err(ResizeError::TooSmall {
            blocks: blocks.0,
            least: now.0,
            block_bytes: fs.geometry().block_size().bytes(),
        });
    }
    let wish = target::of(fs.superblock(), blocks.0)?;
    let after = wish.geometry().blocks();
    if after <= now {
        return Ok(now);
    }
    if after > fs.most_blocks()? {
        return Err(ResizeError::TooLarge {
            blocks: after.0,
            why: "this mount has tables for fewer; mount it again to grow further",
        });
    }
    let has_bytes = fs.device().lengthen(wish.geometry().size_bytes())?;
    if has_bytes < wish.geometry().size_bytes() {
        return Err(ResizeError::device_too_short(wish.geometry(), has_bytes));
    }
    loop {
        let has = piece(fs, after)?;
        if has >= after {
            return Ok(has);
        }
    }
}

/// Grows by one piece, to `end` at most. Returns the size.
fn piece(fs: &Fs, end: BlockCount) -> Result<BlockCount> {
    let growth = fs.begin_growth()?;
    let most_changes = growth.most_changes();
    let mut volume = Volume::mounted(growth)?;
    let before = volume.geometry().blocks();
    let next = end_of_piece(volume.sb(), end, most_changes);
    let new = target::of(volume.sb(), next.0)?;
    let after = new.geometry().blocks();
    if after <= before {
        return Ok(before);
    }
    let grown = super::grow(&mut volume, &new);
    // Also after an error, of which the steps before it are durable.
    let finished = volume.finish();
    grown.and(finished).map(|()| after)
}

fn end_of_piece(sb: &Superblock, end: BlockCount, most_changes: usize) -> BlockCount {
    let geometry = sb.geometry();
    let in_transaction = (most_changes as u64 / 4).max(1) * u64::from(geometry.descs_per_block());
    let most = match sb.metadata_checksum() {
        MetadataChecksum::None => ZEROED_GROUPS.min(in_transaction),
        _ => in_transaction,
    };
    let groups = u64::from(geometry.groups()) + most;
    let first = geometry.first_data_block().0;
    let limit = first.saturating_add(groups.saturating_mul(geometry.blocks_per_group().into()));
    end.min(BlockCount(limit))
}
