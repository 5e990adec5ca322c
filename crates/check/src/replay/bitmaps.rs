//! **Purpose.** Changes bits of a group's bitmap on the in-memory copy of the device, and the
//! counts and checksums of its descriptor.
//!
//! **Invariants.** What was wrong stays wrong, so that pass 5 reports it: counts change by the
//! number of bits that change, and a checksum that did not match is not renewed.

use std::io;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::group::{self, BitmapSummary, GroupDescMut, GroupFlags};
use fourscore_ondisk::{GroupDesc, GroupNr, PhysBlock};

use crate::pass5::uninit_block_bitmap;
use crate::volume::{Group, Volume};

/// One of the two bitmaps of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bitmap {
    Blocks,
    Inodes,
}

/// Bits of a bitmap that change, and what goes with them.
#[derive(Debug, Default)]
pub(super) struct BitmapEdit {
    used: Vec<Range<u64>>,
    free: Vec<Range<u64>>,
    /// By how many directories the group has more.
    pub(super) new_dirs: i32,
}

impl BitmapEdit {
    /// Marks bits as used or free.
    pub(super) fn add(&mut self, bits: Range<u64>, is_used: bool) {
        let list = match is_used {
            true => &mut self.used,
            false => &mut self.free,
        };
        list.push(bits);
    }
}

/// Changes a bitmap of group `nr`. Returns the first bit that was to be marked as used and was so
/// before, if there is one.
///
/// # Errors
/// A block cannot be read.
pub(super) fn edit_bitmap(
    volume: &mut Volume,
    copy: &dyn BlockDevice,
    nr: GroupNr,
    which: Bitmap,
    edit: &BitmapEdit,
) -> io::Result<Option<u64>> {
    let Some(group) = volume.group(nr).copied() else {
        return Ok(None);
    };
    let Some(block) = place(&group, which) else {
        return Ok(None);
    };
    let mut bitmap = vec![0; volume.block_bytes()];
    let is_sound = load(volume, nr, &group, which, &mut bitmap)?;
    let mut taken = None;
    let mut change_of_free = 0_i64;
    for bit in edit.free.iter().cloned().flatten() {
        change_of_free += i64::from(set(&mut bitmap, bit, false));
    }
    for bit in edit.used.iter().cloned().flatten() {
        let is_changed = set(&mut bitmap, bit, true);
        change_of_free -= i64::from(is_changed);
        if !is_changed {
            taken.get_or_insert(bit);
        }
    }
    copy.write_at(&bitmap, volume.geometry().block_size().offset(block))?;
    let geometry = volume.geometry();
    let (bits, covered, free) = match which {
        Bitmap::Blocks => (
            geometry.group_clusters(nr),
            geometry.clusters_per_group(),
            group.desc.free_clusters(),
        ),
        Bitmap::Inodes => {
            let bits = geometry.inodes_per_group();
            (bits, bits, group.desc.free_inodes())
        }
    };
    let mut summary = BitmapSummary::of(&bitmap, bits, covered, &volume.sb);
    let free = i64::from(free) + change_of_free;
    summary.free = u32::try_from(free.max(0)).unwrap_or(u32::MAX);
    if !is_sound {
        summary.checksum = !summary.checksum;
    }
    write_descriptor(volume, copy, nr, which, &summary, edit.new_dirs)?;
    Ok(taken)
}

fn place(group: &Group, which: Bitmap) -> Option<PhysBlock> {
    match which {
        Bitmap::Blocks => group.block_bitmap,
        Bitmap::Inodes => group.inode_bitmap,
    }
}

/// Reads a bitmap, or makes the one that a group has whose bitmap was never written. Returns
/// whether its checksum is right.
fn load(
    volume: &Volume,
    nr: GroupNr,
    group: &Group,
    which: Bitmap,
    bitmap: &mut [u8],
) -> io::Result<bool> {
    let geometry = volume.geometry();
    let (flag, bits) = match which {
        Bitmap::Blocks => (GroupFlags::BLOCK_UNINIT, geometry.group_clusters(nr)),
        Bitmap::Inodes => (GroupFlags::INODE_UNINIT, geometry.inodes_per_group()),
    };
    if volume.has_group_checksums() && group.desc.flags().contains(flag) {
        if which == Bitmap::Blocks {
            uninit_block_bitmap(volume, nr, group, bitmap);
        }
        for bit in u64::from(bits)..bitmap.len() as u64 * 8 {
            set(bitmap, bit, true);
        }
        return Ok(true);
    }
    let block = place(group, which).unwrap_or_default();
    volume.read(block, bitmap)?;
    Ok(match which {
        Bitmap::Blocks => group.desc.verify_block_bitmap(bitmap, &volume.sb),
        Bitmap::Inodes => group.desc.verify_inode_bitmap(bitmap, &volume.sb),
    }
    .is_ok())
}

/// Sets a bit; whether it changed.
fn set(bitmap: &mut [u8], bit: u64, is_used: bool) -> bool {
    let byte = usize::try_from(bit / 8).unwrap_or(usize::MAX);
    let Some(byte) = bitmap.get_mut(byte) else {
        return false;
    };
    let mask = 1 << (bit % 8);
    let was_used = *byte & mask != 0;
    match is_used {
        true => *byte |= mask,
        false => *byte &= !mask,
    }
    was_used != is_used
}

/// Writes the descriptor of a group, and notes it in `volume`.
fn write_descriptor(
    volume: &mut Volume,
    copy: &dyn BlockDevice,
    nr: GroupNr,
    which: Bitmap,
    summary: &BitmapSummary,
    new_dirs: i32,
) -> io::Result<()> {
    let geometry = *volume.geometry();
    let Some(at) = geometry.desc_place(nr) else {
        return Ok(());
    };
    let offset = geometry.block_size().offset(at.block) + at.offset_bytes as u64;
    let mut bytes = vec![0; geometry.desc_size_bytes()];
    copy.read_at(&mut bytes, offset)?;
    let is_sound = group::verify(&bytes, nr, &volume.sb).is_ok();
    if let Ok(mut desc) = GroupDescMut::new(&mut bytes, &volume.sb) {
        match which {
            Bitmap::Blocks => desc.set_block_bitmap(summary),
            Bitmap::Inodes => desc.set_inode_bitmap(summary),
        }
        desc.change_used_dirs(new_dirs);
    }
    if is_sound {
        group::seal(&mut bytes, nr, &volume.sb).map_err(io::Error::other)?;
    }
    copy.write_at(&bytes, offset)?;
    if let Ok(desc) = GroupDesc::unchecked(&bytes, &volume.sb)
        && let Some(group) = volume.groups.get_mut(nr.0 as usize)
    {
        *group = Group::new(desc, &geometry);
    }
    Ok(())
}
