//! **Purpose.** Where bitmaps and descriptors come from: the file system's buffer cache, or the
//! memory of the lab. The allocator knows no more of the disk than this.

use fourscore_ondisk::GroupNr;

use crate::geometry::ClusterCount;

/// Why a bitmap could not be read; the file system knows what it means.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// How the bitmap of a group comes into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapState {
    /// It is on disk.
    Written,
    /// It was never written (`BLOCK_UNINIT`): it follows from the layout, without I/O.
    Uninit,
}

/// What the allocator needs of a group descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// `bg_free_blocks_count`, in clusters.
    pub free: ClusterCount,
    /// Whether the bitmap needs I/O.
    pub state: BitmapState,
}

/// The bitmaps and descriptors of a file system.
///
/// A bitmap that the allocator has loaded changes only by the [`crate::claim::Change`]s that the
/// allocator hands out, so loading it again later finds the same state.
pub trait GroupSource: Send + Sync {
    /// The descriptor of a group, from memory.
    fn descriptor(&self, group: GroupNr) -> Descriptor;

    /// Fills `bitmap` with the group's block bitmap (1 = used, bit 0 of byte 0 first), reading
    /// it if it is not in memory and making it up if it was never written.
    ///
    /// # Errors
    /// What the device said, or that the bitmap's checksum is wrong.
    fn read_bitmap(&self, group: GroupNr, bitmap: &mut [u8]) -> Result<(), SourceError>;

    /// Starts to read the bitmaps of these groups in one batch and returns without waiting.
    fn prefetch(&self, groups: &[GroupNr]);

    /// Whether [`GroupSource::read_bitmap`] of this group would return without waiting.
    fn has_arrived(&self, group: GroupNr) -> bool;
}
