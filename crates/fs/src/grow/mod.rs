//! **Purpose.** The mount's part in growing: it makes the changes that its caller has prepared
//! durable, and then lets all threads use what they added.
//!
//! **Not here.** Which blocks change, and how: crate `fourscore_resize` decides that, with the same
//! steps as for a file system that is not mounted. The length of the device.
//!
//! **Model.** A growth keeps operations out as freezing does ([`crate::mount::freezer`], the *door*
//! below): threads that change something wait, and threads that read do not. So the device holds
//! all of the file system, and blocks can be replaced as a whole.
//!
//! ```text
//! close the door -> commit, checkpoint
//!   -> a step: its blocks in one transaction, the superblock's version in the same handle
//!      -> commit, checkpoint                               (some steps)
//!   -> groups and sums -> inode numbers -> allocator -> open the door
//! ```
//!
//! | moment | a reader without a lock sees |
//! |---|---|
//! | before the first step | the old size |
//! | between steps | the old size in `statfs`; the superblock has the new one, whose groups are free |
//! | groups and sums | all of the new size and its free space in `statfs`, at once |
//! | allocator | new groups are found and then counted ([`fourscore_mballoc::Growth`]) |
//!
//! **Invariants.**
//! - *The log has no block behind the end that the superblock on the device states*: nothing is
//!   allocated there before the step is checkpointed. So recovery, which checks block numbers
//!   against that superblock, needs to know nothing about growing.
//! - *The superblock is the last block of a step that is written to its place.* Linux reads the
//!   descriptors of all groups that it names before it replays the log, and refuses the file system
//!   if one is wrong.
//! - A bitmap is sealed with the size of the superblock that is committed with it: the version is
//!   published inside the handle, and the transaction before it is durable by then.
//! - A group whose bitmap changes is pinned in the allocator. Until the end of the growth the
//!   allocator has the group's clusters as they were.
//!
//! **Locking.** The door. No lock is held.
//!
//! **Crash safety.** Each step is one transaction: see `fourscore_resize`. Before a step the caller
//! writes what the step needs in free blocks, or behind the end; the commit flushes that. When the
//! step is durable its blocks are written to their places ahead of the checkpoint, which then has
//! only the superblock to change.

mod step;

use std::collections::BTreeMap;
use std::fmt;

use fourscore_block::BlockDevice;
use fourscore_mballoc::{ClusterCount, Geometry, Growth as MoreSpace, Layout, Run};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{BlockCount, GroupNr, GroupOffset, RawSuperblock};
use fourscore_sync::Arc;

use crate::group::change;
use crate::group::table::Added;
use crate::mount::errors;
use crate::mount::mark::raw_superblock;
use crate::mount::state::Mount;
use crate::txn::faults::Sabotage;
use crate::{Error, Fs, Result};

use step::Changed;
pub use step::{Bitmap as GroupBitmap, GrowthStep};

/// A growth of a mounted file system: see [`Fs::begin_growth`]. Operations that change something
/// wait until it is dropped.
pub struct Growth<'f> {
    mount: &'f Mount,
    /// The superblock after the last step, as it is on the device.
    raw: RawSuperblock,
    /// The bitmaps of the groups that steps have changed, before and after them.
    bitmaps: BTreeMap<GroupNr, Changed>,
}

impl fmt::Debug for Growth<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Growth").finish_non_exhaustive()
    }
}

impl Fs {
    /// Begins to make a mounted file system larger, for a program that knows how
    /// (`fourscore_resize`). Operations that change something wait until the growth is dropped.
    /// When this returns, all changes are in their places on the device.
    ///
    /// # Errors
    /// `Busy` if it is frozen or grows already; `ReadOnly`; `Io`.
    pub fn begin_growth(&self) -> Result<Growth<'_>> {
        let mount = self.writable()?;
        mount.freezer().close()?;
        let begun = match mount.core.faults.lacks(Sabotage::UnsettledGrowth) {
            true => Ok(()),
            false => settle(mount),
        };
        let begun = begun.and_then(|()| raw_superblock(&*mount.core.device));
        match errors::noting(mount, begun) {
            Ok(raw) => Ok(Growth {
                mount,
                raw,
                bitmaps: BTreeMap::new(),
            }),
            Err(error) => {
                mount.freezer().open();
                Err(error)
            }
        }
    }

    /// Returns the most blocks to which this mount can grow. Tables in memory have space for so
    /// many; the next mount can grow further. Without the feature `64bit`, records of the log have
    /// no numbers for more than 2^32 blocks.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that was opened for reading.
    pub fn most_blocks(&self) -> Result<BlockCount> {
        Ok(most_blocks(self.writable()?))
    }
}

fn most_blocks(mount: &Mount) -> BlockCount {
    let geometry = mount.core.geometry();
    let room = u64::from(mount.allocator().room());
    let per_group = u64::from(geometry.blocks_per_group());
    let in_tables = BlockCount(geometry.first_data_block().0 + room * per_group);
    in_tables.min(mount.journal().most_blocks())
}

/// Commits, and writes everything to its place.
fn settle(mount: &Mount) -> Result<()> {
    mount.journal().quiesce()?;
    Ok(mount.device.flush()?)
}

impl Growth<'_> {
    /// The device, which holds all of the file system: blocks in use are changed by steps only.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.mount.core.device
    }

    /// The most blocks that one step can change, that of the superblock included.
    #[must_use]
    pub fn most_changes(&self) -> usize {
        self.mount.journal().most_credits().0 as usize
    }

    /// Makes the changes of a step: after a crash there are all of them or none. When this returns
    /// they are durable, in their places. Writes to free blocks and behind the end, which were made
    /// before, are durable before that.
    ///
    /// # Errors
    /// `NotOneTransaction` and `Unsupported` (more than [`Fs::most_blocks`]), with nothing changed;
    /// `Corrupt`; `Io`.
    pub fn commit(&mut self, step: &GrowthStep) -> Result<()> {
        let mount = self.mount;
        mount.errors.check()?;
        if step.superblock.geometry().blocks() > most_blocks(mount) {
            return Err(Error::Unsupported("a growth beyond this mount".into()));
        }
        let done = step::commit(mount, step, &self.raw, &mut self.bitmaps);
        let done = done.and_then(|()| Ok(mount.journal().commit()?));
        let done = done.and_then(|_| step::put_in_place(mount, step));
        let done = done.and_then(|()| settle(mount));
        errors::noting(mount, done)?;
        self.raw = *step.superblock.raw();
        Ok(())
    }

    /// Lets all threads use what the steps have added. To be called after the last step, and also
    /// after one that failed.
    ///
    /// # Errors
    /// `Corrupt` for new groups whose descriptors are wrong; `Io`. They are not used then.
    pub fn finish(self) -> Result<()> {
        errors::noting(self.mount, self.publish(self.mount))
    }

    fn publish(&self, mount: &Mount) -> Result<()> {
        let core = &mount.core;
        let superblock = core.superblock().clone();
        let geometry = *superblock.geometry();
        let groups = change::read_groups(core, mount.groups().count())?;
        let free = self.bitmaps.iter().map(|(&group, changed)| {
            let bits = geometry.group_clusters(group);
            (group, bits - ones(&changed.after, bits))
        });
        let more = MoreSpace {
            geometry: Geometry::new(Layout {
                s_blocks_count: geometry.blocks().0,
                ..*mount.allocator().geometry().layout()
            })
            .map_err(|error| Error::Unsupported(error.to_string()))?,
            freed: &self.freed(&superblock),
            root_clusters: superblock.reserved_blocks().0 >> geometry.blocks_per_cluster_log(),
        };
        mount.groups().grow(Added {
            free: free.collect(),
            groups,
            tables: change::descriptor_blocks(&geometry),
            superblock,
        });
        mount.inodes().grow(core, &more.geometry);
        mount.allocator().grow(&more);
        Ok(())
    }

    /// The clusters of old groups that were used before the steps and are free after them.
    fn freed(&self, superblock: &Superblock) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (&group, changed) in &self.bitmaps {
            for bit in 0..superblock.geometry().group_clusters(group) {
                if !is_set(&changed.before, bit) || is_set(&changed.after, bit) {
                    continue;
                }
                match runs.last_mut() {
                    Some(run) if run.group == group && run.end() == bit => run.len.0 += 1,
                    _ => runs.push(Run {
                        group,
                        start: GroupOffset(bit),
                        len: ClusterCount(1),
                    }),
                }
            }
        }
        runs
    }
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        // Also if an error has stopped the mount: the threads that wait get the error.
        for &group in self.bitmaps.keys() {
            self.mount.allocator().unpin(group);
        }
        self.mount.freezer().open();
    }
}

/// Whether a bit is set. Bits behind the end are.
fn is_set(bitmap: &[u8], bit: u32) -> bool {
    let byte = bitmap.get(bit as usize / 8);
    byte.is_none_or(|byte| byte >> (bit % 8) & 1 == 1)
}

fn ones(bitmap: &[u8], bits: u32) -> u32 {
    (0..bits).map(|bit| u32::from(is_set(bitmap, bit))).sum()
}
