//! **Purpose.** Writes a changed superblock and its backups.
//!
//! **Model.** A backup has the bytes of the superblock, except for the group that it is in, and for
//! the state: a file system that is opened by a backup has to be checked.
//!
//! **Crash safety.** The superblock is one write, durable before the first backup is written.

use std::io::IoSlice;

use fourscore_block::BlockDevice;
use fourscore_ondisk::geometry::Geometry;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, State};
use fourscore_ondisk::{GroupNr, RawSuperblock};
use zerocopy::IntoBytes;

use crate::error::FormatResult;

/// Writes the superblock and the backups, durably.
pub(super) fn write(
    device: &dyn BlockDevice,
    raw: &RawSuperblock,
    geometry: &Geometry,
) -> FormatResult<()> {
    device.write_fua(&[IoSlice::new(raw.as_bytes())], SUPERBLOCK_OFFSET_BYTES)?;
    let backups = geometry.groups_with_super().filter(|group| group.0 != 0);
    for group in backups {
        let at = geometry.group_first_block(group).0 << geometry.block_size().bits();
        device.write_at(backup(raw, group).as_bytes(), at)?;
    }
    Ok(device.flush()?)
}

fn backup(raw: &RawSuperblock, group: GroupNr) -> RawSuperblock {
    let mut backup = *raw;
    backup.s_block_group_nr = u16::try_from(group.0).unwrap_or(u16::MAX).into();
    backup.s_state = (raw.s_state.get() & !State::VALID_FS.bits()).into();
    // Without checksums of metadata the field is zero, and stays so.
    if raw.s_checksum.get() != 0 {
        backup.seal();
    }
    backup
}
