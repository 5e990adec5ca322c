//! **Purpose.** A disk for the tests of this crate: bitmaps in memory that panic if a bit is set or
//! cleared twice, so that a cluster allocated twice is found at once.

use fourscore_ondisk::{BlockSize, GroupNr};
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, Mutex};

use crate::allocator::Allocator;
use crate::claim::{Change, ChangeKind};
use crate::error::Error;
use crate::geometry::{ClusterCount, Geometry, Layout};
use crate::source::{BitmapState, Descriptor, GroupSource, ReadError};
use crate::stats::Tally;
use crate::words;

/// The groups of a disk.
#[derive(Debug)]
pub(crate) struct Disk {
    geometry: Geometry,
    groups: Vec<Mutex<Vec<u64>>>,
    /// Whether reads fail.
    pub(crate) broken: AtomicBool,
    /// The group whose descriptor counts one free cluster more than its bitmap has.
    pub(crate) wrong_descriptor: Option<GroupNr>,
    /// The group whose bitmap has a wrong checksum.
    pub(crate) damaged: Option<GroupNr>,
    /// The group whose bitmap the device cannot read.
    pub(crate) unreadable: Option<GroupNr>,
    /// What the allocator found wrong with groups.
    pub(crate) unusable: Mutex<Vec<(GroupNr, Error)>>,
}

/// A geometry of `groups` groups of `per_group` clusters of 1 KiB.
pub(crate) fn geometry(groups: u32, per_group: u32) -> Geometry {
    Geometry::new(Layout {
        s_blocks_count: u64::from(groups) * u64::from(per_group) + 1,
        s_first_data_block: 1,
        block_size: BlockSize::from_log(0).unwrap(),
        s_clusters_per_group: per_group,
        cluster_bits: 0,
        s_log_groups_per_flex: Some(2),
        stripe: 0,
    })
    .unwrap()
}

#[cfg(not(feature = "shuttle"))]
pub(crate) fn run(group: u32, start: u32, len: u32) -> crate::geometry::Run {
    crate::geometry::Run {
        group: GroupNr(group),
        start: fourscore_ondisk::GroupOffset(start),
        len: ClusterCount(len),
    }
}

impl Disk {
    pub(crate) fn new(geometry: Geometry) -> Self {
        let words = geometry.clusters_per_group().div_ceil(64) as usize;
        let groups = (0..geometry.groups())
            .map(|_| Mutex::new(vec![0; words]))
            .collect();
        Self {
            geometry,
            groups,
            broken: AtomicBool::new(false),
            wrong_descriptor: None,
            damaged: None,
            unreadable: None,
            unusable: Mutex::default(),
        }
    }

    /// Marks clusters as used before the allocator is made.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn preset(&self, run: &crate::geometry::Run) {
        words::set(
            &mut self.groups[run.group.0 as usize].lock(),
            run.start.0,
            run.end(),
        );
    }

    pub(crate) fn apply(&self, change: Change) {
        let Change { run, kind } = change;
        let mut bits = self.groups[run.group.0 as usize].lock();
        match kind {
            ChangeKind::Set => {
                assert!(
                    words::all_clear(&bits, run.start.0, run.end()),
                    "{run:?} is allocated twice"
                );
                words::set(&mut bits, run.start.0, run.end());
            }
            ChangeKind::Clear => {
                assert!(
                    words::all_set(&bits, run.start.0, run.end()),
                    "{run:?} is freed twice"
                );
                words::clear(&mut bits, run.start.0, run.end());
            }
        }
    }

    pub(crate) fn free_in(&self, group: GroupNr) -> u32 {
        let clusters = self.geometry.clusters_in(group);
        let bits = self.groups[group.0 as usize].lock();
        let used: u32 = (0..clusters).map(|i| u32::from(words::get(&bits, i))).sum();
        clusters - used
    }

    /// Compares the buddies of an idle allocator with the bitmaps, bit by bit.
    pub(crate) fn assert_same(&self, allocator: &Allocator) {
        for group in (0..self.geometry.groups()).map(GroupNr) {
            let locked = allocator.table().lock_loaded(group, &mut Tally::default());
            let locked = locked.expect("nothing is broken");
            let bits = self.groups[group.0 as usize].lock();
            for i in 0..self.geometry.clusters_in(group) {
                let (ours, theirs) = (words::get(locked.buddy().bits(), i), words::get(&bits, i));
                assert_eq!(ours, theirs, "cluster {i} of group {group}");
            }
        }
    }

    pub(crate) fn free(&self) -> u64 {
        (0..self.geometry.groups())
            .map(|group| u64::from(self.free_in(GroupNr(group))))
            .sum()
    }
}

impl GroupSource for Arc<Disk> {
    fn descriptor(&self, group: GroupNr) -> Descriptor {
        let error = u32::from(self.wrong_descriptor == Some(group));
        let clusters = self.geometry.clusters_in(group);
        let free = self.free_in(group);
        let state = if free == clusters {
            BitmapState::Uninit
        } else {
            BitmapState::Written
        };
        Descriptor {
            free: ClusterCount(free + error),
            state,
        }
    }

    fn read_bitmap(&self, group: GroupNr, bitmap: &mut [u8]) -> Result<(), ReadError> {
        if self.broken.load(Ordering::Relaxed) || self.unreadable == Some(group) {
            return Err(ReadError::Failed("the disk is broken".into()));
        }
        if self.damaged == Some(group) {
            return Err(ReadError::Corrupt("a wrong checksum".into()));
        }
        let bits = self.groups[group.0 as usize].lock();
        for (bytes, word) in bitmap.chunks_mut(8).zip(bits.iter()) {
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
        Ok(())
    }

    fn unusable(&self, group: GroupNr, why: Error) {
        self.unusable.lock().push((group, why));
    }

    fn prefetch(&self, _groups: &[GroupNr]) {}

    fn has_arrived(&self, _group: GroupNr) -> bool {
        true
    }
}
