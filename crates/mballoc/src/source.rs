//! **Purpose.** The allocator's interface to block bitmaps and group descriptors. The file system
//! implements it with its buffer cache, the lab with memory.

use fourscore_ondisk::GroupNr;

use crate::error::Error;
use crate::geometry::ClusterCount;

/// The reason why a bitmap could not be read, passed through to the file system.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// The kinds of failures to read a bitmap.
#[derive(Debug)]
pub enum ReadError {
    /// The content is wrong: the group is not used any more.
    Corrupt(SourceError),
    /// The device failed: a later request reads again.
    Failed(SourceError),
}

/// Whether the bitmap of a group is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapState {
    /// It is on disk.
    Written,
    /// It was never written (`BLOCK_UNINIT`): it is computed from the layout, without I/O.
    Uninit,
}

/// The fields of a group descriptor that the allocator needs.
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
/// allocator returns, so loading it again later finds the same state.
pub trait GroupSource: Send + Sync {
    /// The descriptor of a group, from memory.
    fn descriptor(&self, group: GroupNr) -> Descriptor;

    /// Fills `bitmap` with the group's block bitmap (1 = used, bit 0 of byte 0 first). Reads it if
    /// it is not in memory, and computes it if it was never written.
    ///
    /// # Errors
    /// An error of the device, or a wrong checksum.
    fn read_bitmap(&self, group: GroupNr, bitmap: &mut [u8]) -> Result<(), ReadError>;

    /// Takes note of damage: nothing is allocated or freed in the group from now on, and what its
    /// descriptor counts as free is not counted any more. Called once for a group, by any thread
    /// that loads it, perhaps inside of a request; must not call the allocator.
    fn unusable(&self, group: GroupNr, why: Error) {
        let _ = (group, why);
    }

    /// Starts to read the bitmaps of these groups in one batch and returns without waiting.
    fn prefetch(&self, groups: &[GroupNr]);

    /// Whether [`GroupSource::read_bitmap`] of this group would return without waiting.
    fn has_arrived(&self, group: GroupNr) -> bool;
}
