//! **Purpose.** Makes the allocator larger while it is in use: the last group gets its missing
//! clusters, and new groups follow it.
//!
//! **Not here.** Bitmaps and descriptors of new groups, which the source has before this begins.
//!
//! **Model.** All tables have space for more groups from the beginning ([`Allocator::with_room`]),
//! so nothing moves, and readers keep the tables that they have. What is published is the geometry,
//! and after it tokens, the right to use what it names.
//!
//! ```text
//! counts and listings of new groups -> geometry -> longer last group, freed runs -> tokens
//! ```
//!
//! **Invariants.** *A token is added after its cluster can be found.* A thread with a token
//! searches until it finds a cluster, and reports an error if there is none.
//!
//! **Locking.** Group locks, one at a time. The caller sees to it that no other thread makes the
//! allocator larger.

use fourscore_ondisk::GroupNr;
use fourscore_sync::CoreNr;

use crate::allocator::Allocator;
use crate::error::Error;
use crate::geometry::{Geometry, Run};
use crate::stats::Tally;
use crate::table::Patience;

/// What an allocator gets.
#[derive(Clone, Copy, Debug)]
pub struct Growth<'a> {
    /// The division into groups from now on. It differs from the old one in the number of blocks.
    pub geometry: Geometry,
    /// Clusters of the groups that were there before, which become free: they are used, and no
    /// thread has claimed or freed them. Their groups are [pinned](Allocator::pin).
    pub freed: &'a [Run],
    /// As [`Options::root_clusters`](crate::Options::root_clusters).
    pub root_clusters: u64,
}

/// The order of what is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As the module says.
    FindableFirst,
    /// The injected fault of the model.
    #[cfg(all(test, feature = "shuttle"))]
    TokensFirst,
}

impl Allocator {
    /// The most groups that the allocator has space for.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.table().room()
    }

    /// Loads a group and keeps it in memory until [`Allocator::unpin`].
    ///
    /// # Errors
    /// [`Error::Source`] and [`Error::Group`].
    pub fn pin(&self, group: GroupNr) -> Result<(), Error> {
        let mut tally = Tally::default();
        self.table().lock_loaded(group, &mut tally)?.pin();
        self.stats().add(CoreNr::current(), &tally);
        Ok(())
    }

    /// Ends [`Allocator::pin`].
    pub fn unpin(&self, group: GroupNr) {
        if let Some(mut locked) = self.table().lock(group, Patience::Wait) {
            locked.unpin();
        }
    }

    /// Makes the allocator larger. The last of the old groups is pinned if it becomes longer.
    /// Groups for which there is no space are left out.
    pub fn grow(&self, growth: &Growth<'_>) {
        self.grow_in(growth, Order::FindableFirst);
    }

    pub(crate) fn grow_in(&self, growth: &Growth<'_>, order: Order) {
        let table = self.table();
        let tokens = &table.shared.tokens;
        tokens.set_root(growth.root_clusters);
        if order != Order::FindableFirst {
            let added = growth.geometry.groups() - self.geometry().groups();
            let per_group = growth.geometry.clusters_per_group();
            tokens.add(CoreNr::current(), u64::from(added * per_group));
        }
        let last = GroupNr(self.geometry().groups() - 1);
        let free = table.grow(growth.geometry);
        if let Some(mut locked) = table.lock(last, Patience::Wait) {
            locked.lengthen(growth.geometry.clusters_in(last));
        }
        for run in growth.freed {
            // A pinned group is loaded.
            if let Some(mut locked) = table.lock(run.group, Patience::Wait) {
                locked.release(run);
            }
        }
        if order == Order::FindableFirst {
            tokens.add(CoreNr::current(), free);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::allocator::Options;
    use crate::geometry::{ClusterCount, Layout, LogicalCluster};
    use crate::request::Request;
    use crate::testdisk::{Disk, geometry, run};
    use crate::tokens::Privilege;
    use fourscore_ondisk::{InodeNr, PhysBlock, Tid};
    use fourscore_sync::Arc;

    fn shorter(of: &Geometry, s_blocks_count: u64) -> Geometry {
        Geometry::new(Layout {
            s_blocks_count,
            ..*of.layout()
        })
        .unwrap()
    }

    #[test]
    fn all_clusters_of_a_larger_disk_are_allocated_once() {
        let whole = geometry(70, 64);
        let disk = Arc::new(Disk::new(whole));
        // One group and ten clusters; the rest of the second group is used.
        disk.preset(&run(1, 10, 54));
        let options = Options {
            durable: Tid(0),
            root_clusters: 0,
            reserved_clusters: 0,
            fast_commits: false,
        };
        let source = Box::new(Arc::clone(&disk));
        let allocator = Allocator::with_room(shorter(&whole, 75), source, options, 70);
        assert_eq!((allocator.free_clusters(), allocator.room()), (74, 70));
        let all = |wanted: u64| {
            let mut reservation = allocator.reserve(wanted, Privilege::User).unwrap();
            let mut left = u32::try_from(wanted).unwrap();
            while left > 0 {
                let len = ClusterCount(left.min(40));
                let request = Request::data(InodeNr(12), LogicalCluster(0), len, PhysBlock(1));
                let claim = allocator.allocate(&request, None, &mut reservation);
                let claim = claim.unwrap();
                left -= claim.run().len.0;
                disk.apply(claim.change());
                allocator.mark(claim, Tid(1));
            }
            allocator.unreserve(reservation);
            assert!(allocator.reserve(1, Privilege::User).is_err());
        };
        all(74);
        // In two steps: the second group is whole, then 68 more groups.
        allocator.pin(GroupNr(1)).unwrap();
        assert_eq!(allocator.evict_idle(9) + allocator.evict_idle(9), 1);
        disk.apply(crate::claim::Change {
            run: run(1, 10, 54),
            kind: crate::claim::ChangeKind::Clear,
        });
        allocator.grow(&Growth {
            geometry: shorter(&whole, 129),
            freed: &[run(1, 10, 54)],
            root_clusters: 0,
        });
        allocator.unpin(GroupNr(1));
        all(54);
        allocator.grow(&Growth {
            geometry: whole,
            freed: &[],
            root_clusters: 1000,
        });
        assert_eq!(allocator.free_clusters(), 68 * 64);
        assert!(allocator.reserve(68 * 64, Privilege::User).is_err());
        let rest = allocator.reserve(1000, Privilege::Root).unwrap();
        allocator.unreserve(rest);
        allocator.grow(&Growth {
            geometry: whole,
            freed: &[],
            root_clusters: 0,
        });
        all(68 * 64);
        allocator.check().unwrap();
        disk.assert_same(&allocator);
        assert_eq!(allocator.absent_groups(), 0);
    }
}
