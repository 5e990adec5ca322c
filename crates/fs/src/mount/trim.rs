//! **Purpose.** Discards free blocks on the device: all at once (trim), or after each commit those
//! that were freed (the mount option `discard`).
//!
//! **Model.** A free run is claimed while it is discarded, so that no other thread allocates it
//! meanwhile and loses its data. Blocks that were freed and wait for their commit are not free yet.
//! A group whose free blocks were all discarded, and in which nothing was freed since, is skipped.
//!
//! **Locking.** None; no lock is held while the device works.
//!
//! **Crash safety.** What is free in memory is free on disk, durably: a freed block becomes free
//! when its commit is durable.
//!
//! **References.** fstrim(8), ioctl `FITRIM`; mount option `discard` of ext4(5).

use std::ops::Range;

use fourscore_mballoc::{ClusterCount, Run};
use fourscore_ondisk::GroupNr;

use crate::core::Core;
use crate::mount::discards::Discards;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::{Error, Result};

/// The range of [`Fs::trim`](crate::Fs::trim). The default is the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// The first byte of the range on the device.
    pub start_bytes: u64,
    /// The length of the range, in bytes.
    pub len_bytes: u64,
    /// The least length of a run, in bytes. Shorter runs are left out.
    pub least_bytes: u64,
}

impl Default for Trim {
    fn default() -> Self {
        Self {
            start_bytes: 0,
            len_bytes: u64::MAX,
            least_bytes: 0,
        }
    }
}

/// See [`Fs::trim`](crate::Fs::trim).
pub(crate) fn trim(mount: &Mount, what: &Trim) -> Result<u64> {
    errors::noting(mount, tell_free(mount, what))
}

fn tell_free(mount: &Mount, what: &Trim) -> Result<u64> {
    let discards = Discards::of(&mount.core.device, &mount.core.superblock);
    let no_space_back = || Error::Unsupported("the device gives no space back".into());
    let discards = discards.ok_or_else(no_space_back)?;
    let geometry = mount.core.geometry();
    let bits = geometry.block_size().bits();
    let least = (what.least_bytes >> bits) >> geometry.blocks_per_cluster_log();
    let first = what.start_bytes >> bits;
    let too_long = least > u64::from(geometry.clusters_per_group());
    if too_long || first >= geometry.blocks().0 || what.len_bytes >> bits == 0 {
        return Err(Error::InvalidArgument("nothing to trim"));
    }
    let end = first.saturating_add(what.len_bytes >> bits);
    let blocks = first..end.min(geometry.blocks().0);
    let least = ClusterCount(u32::try_from(least).unwrap_or(u32::MAX).max(1));
    let mut reported = 0;
    for group in 0..geometry.groups() {
        let group = GroupNr(group);
        if let Some(within) = clusters_of(&mount.core, group, &blocks) {
            let _inside = mount.freezer().enter();
            let allocator = mount.allocator();
            let discard = |run: &Run| discards.discard(allocator, run);
            reported += allocator.visit_free(group, within, least, discard)?;
        }
    }
    Ok((reported << geometry.blocks_per_cluster_log()) << bits)
}

/// Returns the clusters of a group that lie in a range of blocks.
fn clusters_of(core: &Core, group: GroupNr, blocks: &Range<u64>) -> Option<Range<u32>> {
    let geometry = core.geometry();
    let log = geometry.blocks_per_cluster_log();
    let first = geometry.group_first_block(group).0;
    let all = geometry.group_clusters(group);
    let cluster = |block: u64| {
        let blocks = block.saturating_sub(first);
        u32::try_from(blocks >> log).map_or(all, |cluster| cluster.min(all))
    };
    let start = cluster(blocks.start.saturating_add((1 << log) - 1));
    let is_to_its_end = blocks.end >= geometry.blocks().0;
    let end = if is_to_its_end {
        all
    } else {
        cluster(blocks.end)
    };
    (start < end).then_some(start..end)
}
