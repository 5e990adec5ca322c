//! **Purpose.** Free clusters in front of the new end, for what has to move there.
//!
//! **Model.** All block bitmaps are in memory. A cluster that is allocated becomes used at once;
//! one that is freed stays used until the step is durable, so that nothing is written over content
//! that the file system still has after a crash.
//!
//! **Invariants.** Allocated clusters lie in front of the end.

use std::collections::BTreeSet;
use std::ops::Range;

use fourscore_ondisk::{GroupNr, PhysBlock};

use crate::bitmap;
use crate::error::{ResizeError, Result};
use crate::volume::{Volume, add_free_clusters};

/// The block bitmaps, and the changes of the current step.
#[derive(Debug)]
pub(crate) struct Space {
    bitmaps: Vec<Vec<u8>>,
    /// Groups whose bitmaps have changed in this step.
    changed: BTreeSet<u32>,
    /// Clusters that become free with this step: group and bits.
    freed: Vec<(u32, Range<u64>)>,
    /// How many of them lie in front of the end.
    freed_in_front: u64,
    /// One past the last block that may be allocated, a multiple of the cluster size.
    end: u64,
    /// Where the search goes on: group and bit.
    goal: (u32, u64),
}

impl Space {
    pub(crate) fn new(volume: &Volume<'_>, end: PhysBlock) -> Result<Self> {
        let groups = 0..volume.geometry().groups();
        let bitmaps = groups.map(|group| volume.block_bitmap(GroupNr(group)));
        Ok(Self {
            bitmaps: bitmaps.collect::<Result<_>>()?,
            changed: BTreeSet::new(),
            freed: Vec::new(),
            freed_in_front: 0,
            end: end.0,
            goal: (0, 0),
        })
    }

    /// The number of groups that this step has changed.
    pub(crate) fn changed_groups(&self) -> usize {
        self.changed.len()
    }

    /// The number of clusters in front of the end that become free with this step.
    pub(crate) fn freed_in_front(&self) -> u64 {
        self.freed_in_front
    }

    /// Takes a run of at most `most` clusters, and at least `least`; returns its blocks.
    pub(crate) fn take(
        &mut self,
        volume: &Volume<'_>,
        least: u64,
        most: u64,
    ) -> Result<Range<PhysBlock>> {
        let found = self.search(volume, self.goal, least, most);
        let found = found.or_else(|| self.search(volume, (0, 0), least, most));
        let (group, bits) = found.ok_or(ResizeError::NoRoom)?;
        let bitmap = self.bitmaps.get_mut(group as usize);
        bitmap::fill(bitmap.ok_or(ResizeError::NoRoom)?, bits.clone(), true);
        self.changed.insert(group);
        self.goal = (group, bits.end);
        let geometry = volume.geometry();
        let first = geometry.group_first_block(GroupNr(group)).0;
        let log = geometry.blocks_per_cluster_log();
        Ok(PhysBlock(first + (bits.start << log))..PhysBlock(first + (bits.end << log)))
    }

    fn search(
        &self,
        volume: &Volume<'_>,
        from: (u32, u64),
        least: u64,
        most: u64,
    ) -> Option<(u32, Range<u64>)> {
        let geometry = volume.geometry();
        let log = geometry.blocks_per_cluster_log();
        let mut bit = from.1;
        for group in from.0..geometry.groups() {
            let first = geometry.group_first_block(GroupNr(group)).0;
            let bits = u64::from(geometry.group_clusters(GroupNr(group)));
            let bits = bits.min(self.end.saturating_sub(first) >> log);
            if bits == 0 {
                return None;
            }
            let bitmap = self.bitmaps.get(group as usize)?;
            while let Some(run) = free_run(bitmap, bit..bits, most) {
                if run.end - run.start >= least {
                    return Some((group, run));
                }
                bit = run.end;
            }
            bit = 0;
        }
        None
    }

    /// Frees the clusters of some blocks when this step is durable.
    pub(crate) fn free(&mut self, volume: &Volume<'_>, blocks: &Range<PhysBlock>) {
        let geometry = volume.geometry();
        let log = geometry.blocks_per_cluster_log();
        let mut at = blocks.start;
        while at < blocks.end {
            let Some((group, offset)) = geometry.block_group(at) else {
                return;
            };
            let end = blocks.end.min(geometry.group_blocks(group).end);
            let first = u64::from(offset.0);
            let last = first + (end.0 - at.0) - 1;
            let bits = first >> log..(last >> log) + 1;
            if at.0 < self.end {
                self.freed_in_front += bits.end - bits.start;
            }
            self.freed.push((group.0, bits));
            self.changed.insert(group.0);
            at = end;
        }
    }

    /// Adds the bitmaps to the step of `volume`, with the counts, and makes the step durable.
    /// Returns the blocks behind the end that are free now.
    pub(crate) fn commit(&mut self, volume: &mut Volume<'_>) -> Result<Vec<Range<PhysBlock>>> {
        let freed = self.finish(volume)?;
        volume.commit()?;
        Ok(self.behind(volume, freed))
    }

    /// As [`Space::commit`], in place.
    pub(crate) fn commit_in_place(
        &mut self,
        volume: &mut Volume<'_>,
    ) -> Result<Vec<Range<PhysBlock>>> {
        let freed = self.finish(volume)?;
        volume.commit_in_place()?;
        Ok(self.behind(volume, freed))
    }

    /// The blocks behind the end that become free with this step.
    pub(crate) fn freed_behind(&self, volume: &Volume<'_>) -> Vec<Range<PhysBlock>> {
        self.behind(volume, self.freed.clone())
    }

    /// Returns the clusters that the step frees.
    fn finish(&mut self, volume: &mut Volume<'_>) -> Result<Vec<(u32, Range<u64>)>> {
        let freed = std::mem::take(&mut self.freed);
        self.freed_in_front = 0;
        for (group, bits) in &freed {
            if let Some(bitmap) = self.bitmaps.get_mut(*group as usize) {
                bitmap::fill(bitmap, bits.clone(), false);
            }
        }
        let mut free = 0;
        for group in std::mem::take(&mut self.changed) {
            if let Some(bitmap) = self.bitmaps.get(group as usize) {
                free += volume.set_block_bitmap(GroupNr(group), bitmap.clone())?;
            }
        }
        let mut raw = *volume.sb().raw();
        add_free_clusters(&mut raw, &volume.sb().clone(), free);
        volume.set_superblock(&raw)?;
        Ok(freed)
    }

    /// The blocks of clusters, as far as they lie behind the end, joined.
    fn behind(
        &self,
        volume: &Volume<'_>,
        mut clusters: Vec<(u32, Range<u64>)>,
    ) -> Vec<Range<PhysBlock>> {
        clusters.sort_by_key(|(group, bits)| (*group, bits.start));
        let geometry = volume.geometry();
        let log = geometry.blocks_per_cluster_log();
        let mut runs: Vec<Range<PhysBlock>> = Vec::new();
        for (group, bits) in clusters {
            let first = geometry.group_first_block(GroupNr(group)).0;
            let start = PhysBlock((first + (bits.start << log)).max(self.end));
            let end = PhysBlock(first + (bits.end << log));
            match runs.last_mut() {
                Some(run) if start <= run.end => run.end = run.end.max(end),
                _ if start < end => runs.push(start..end),
                _ => {}
            }
        }
        runs
    }
}

/// The first run of clear bits in a range, at most `most` long.
pub(crate) fn free_run(bitmap: &[u8], bits: Range<u64>, most: u64) -> Option<Range<u64>> {
    let mut at = bits.start;
    while at < bits.end {
        let byte = usize::try_from(at / 8).ok().and_then(|at| bitmap.get(at));
        if at.is_multiple_of(8) && byte == Some(&0xff) {
            at += 8;
        } else if bitmap::is_set(bitmap, at) {
            at += 1;
        } else {
            let start = at;
            while at < bits.end && at - start < most && !bitmap::is_set(bitmap, at) {
                at += 1;
            }
            return Some(start..at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_clear_bits_are_found() {
        let bitmap = [0xff, 0xff, 0b1100_0011, 0x01];
        assert_eq!(free_run(&bitmap, 0..32, 100), Some(18..22));
        assert_eq!(free_run(&bitmap, 0..32, 3), Some(18..21));
        assert_eq!(free_run(&bitmap, 22..32, 100), Some(25..32));
        assert_eq!(free_run(&bitmap, 0..18, 100), None);
    }
}
