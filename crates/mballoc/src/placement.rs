//! **Purpose.** Chooses the group of a new inode: directories apart from each other, files beside
//! their directory, and creators on different cores in different bitmaps.
//!
//! **Not here.** Inode bitmaps and the counts in the descriptors: the file system supplies the
//! counts, and tries the groups in the order in which this module returns them.
//!
//! **Model.** The Orlov allocator over flex groups. A directory below the root, or below one that
//! is marked `TOPDIR`, is the root of an unrelated tree: it goes to the flex group with the fewest
//! directories among those that have at least the average of free inodes and clusters. Any other
//! directory goes to its parent's flex group, or to the next that is not much worse than the
//! average in inodes, clusters and directories. A file goes to its directory's flex group; in it
//! each core begins at a group of its own, so that two creators in one directory rarely use the
//! same bitmap.
//!
//! **Invariants.** If any group has a free inode, a group with a free inode is returned.
//!
//! **References.** `find_group_orlov` and `find_group_other` in `fs/ext4/ialloc.c`, and
//! `ext4_inode_to_goal_block` in `fs/ext4/balloc.c`.

use fourscore_ondisk::GroupNr;
use fourscore_sync::CoreNr;

use crate::geometry::Geometry;
use crate::num::len32;
use crate::request::Content;

/// Flex groups of at least this many groups keep their first one for metadata.
pub(crate) const FLEX_WITH_METADATA_GROUP: u32 = 4;

/// The counts in a group's descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// `bg_free_inodes_count`.
    pub free_inodes: u32,
    /// `bg_free_blocks_count`, in clusters.
    pub free_clusters: u32,
    /// `bg_used_dirs_count`.
    pub used_dirs: u32,
}

/// The counts of all groups.
pub trait InodeSource {
    /// The counts of one group, from memory.
    fn counts(&self, group: GroupNr) -> GroupCounts;
    /// The sums over all groups.
    fn totals(&self) -> Totals;
}

/// Sums over all groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Free inodes.
    pub free_inodes: u64,
    /// Free clusters.
    pub free_clusters: u64,
    /// Directories.
    pub used_dirs: u64,
}

/// Whether a directory is the root of an unrelated tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// Below the root, or below a directory marked `TOPDIR`: the top of a tree of its own. The
    /// number is a hash of its name, from which the search begins.
    TopLevel(u32),
    /// Anywhere else.
    Below,
}

/// The choice of groups for inodes.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    groups: u32,
    flex: u32,
    inodes_per_group: u32,
    clusters_per_group: u32,
}

impl Placement {
    /// Makes the placement for a file system with `s_inodes_per_group` inodes in each group.
    #[must_use]
    pub fn new(geometry: &Geometry, s_inodes_per_group: u32) -> Self {
        Self {
            groups: geometry.groups(),
            flex: geometry.flex_groups().min(geometry.groups()),
            inodes_per_group: s_inodes_per_group,
            clusters_per_group: geometry.clusters_per_group(),
        }
    }

    fn flex_groups(&self) -> u32 {
        self.groups.div_ceil(self.flex)
    }

    /// The groups of a flex group.
    fn members(&self, flex: u32) -> std::ops::Range<u32> {
        let first = flex * self.flex;
        first..(first + self.flex).min(self.groups)
    }

    /// The sums over a flex group.
    fn flex_totals(&self, source: &dyn InodeSource, flex: u32) -> Totals {
        self.members(flex)
            .fold(Totals::default(), |mut sum, group| {
                let counts = source.counts(GroupNr(group));
                sum.free_inodes += u64::from(counts.free_inodes);
                sum.free_clusters += u64::from(counts.free_clusters);
                sum.used_dirs += u64::from(counts.used_dirs);
                sum
            })
    }

    /// The group for a new directory; `None` if there is no free inode.
    #[must_use]
    pub fn for_directory(
        &self,
        source: &dyn InodeSource,
        parent: GroupNr,
        kinship: Kinship,
    ) -> Option<GroupNr> {
        let count = u64::from(self.flex_groups());
        let all = source.totals();
        let average = Totals {
            free_inodes: all.free_inodes / count,
            free_clusters: all.free_clusters / count,
            used_dirs: all.used_dirs / count,
        };
        let parent_flex = (parent.0 / self.flex).min(self.flex_groups() - 1);
        let found = match kinship {
            Kinship::TopLevel(hash) => {
                self.fewest_directories(source, hash % self.flex_groups(), &average)
            }
            Kinship::Below => None,
        };
        let found = found.or_else(|| self.near(source, parent_flex, &average));
        let flex = found.or_else(|| self.any_flex(source, parent_flex, average.free_inodes))?;
        self.members(flex)
            .map(GroupNr)
            .find(|&group| source.counts(group).free_inodes > 0)
    }

    /// All flex groups, beginning with one and wrapping at the end.
    fn all_from(&self, from: u32) -> impl Iterator<Item = u32> {
        (from..self.flex_groups()).chain(0..from)
    }

    /// The flex group with the fewest directories of those with at least the average of free inodes
    /// and clusters.
    fn fewest_directories(
        &self,
        source: &dyn InodeSource,
        from: u32,
        average: &Totals,
    ) -> Option<u32> {
        let fit = self.all_from(from).filter_map(|flex| {
            let has = self.flex_totals(source, flex);
            let enough = has.free_inodes > 0
                && has.free_inodes >= average.free_inodes
                && has.free_clusters >= average.free_clusters;
            enough.then_some((has.used_dirs, flex))
        });
        fit.min_by_key(|&(dirs, _)| dirs).map(|(_, flex)| flex)
    }

    /// The first flex group from the parent's on that is not much worse than the average.
    fn near(&self, source: &dyn InodeSource, from: u32, average: &Totals) -> Option<u32> {
        let inodes = u64::from(self.inodes_per_group) * u64::from(self.flex);
        let clusters = u64::from(self.clusters_per_group) * u64::from(self.flex);
        let most_dirs = average.used_dirs + inodes / 16;
        let least_inodes = average.free_inodes.saturating_sub(inodes / 4).max(1);
        let least_clusters = average.free_clusters.saturating_sub(clusters / 4);
        self.all_from(from).find(|&flex| {
            let has = self.flex_totals(source, flex);
            has.used_dirs < most_dirs
                && has.free_inodes >= least_inodes
                && has.free_clusters >= least_clusters
        })
    }

    /// The first flex group with the average of free inodes, else with any.
    fn any_flex(&self, source: &dyn InodeSource, from: u32, average: u64) -> Option<u32> {
        let with = |least: u64| {
            self.all_from(from)
                .find(|&flex| self.flex_totals(source, flex).free_inodes >= least)
        };
        with(average.max(1)).or_else(|| with(1))
    }

    /// The goal group for the clusters of an inode that has none yet. In a flex group of at least
    /// four groups, metadata (directories and tree blocks) goes to the first group, and file data
    /// begins in the second.
    #[must_use]
    pub fn goal(&self, inode_group: GroupNr, content: Content) -> GroupNr {
        if self.flex < FLEX_WITH_METADATA_GROUP {
            return inode_group;
        }
        let first = inode_group.0 / self.flex * self.flex;
        match content {
            Content::Data if first + 1 < self.groups => GroupNr(first + 1),
            _ => GroupNr(first),
        }
    }

    /// The groups for a new file, in the order in which the caller should try them: those of its
    /// directory's flex group, beginning with this core's, then others at doubling distances, then
    /// all. A group may occur more than once, and may have no free inode.
    pub fn for_file(&self, parent: GroupNr, core: CoreNr) -> impl Iterator<Item = GroupNr> + use<> {
        let flex = (parent.0 / self.flex).min(self.flex_groups() - 1);
        let members = self.members(flex);
        let own = members.start + len32(core.index()) % (members.end - members.start);
        let near = (own..members.end).chain(members.start..own);
        let groups = self.groups;
        let doubling = (0..groups.ilog2()).scan(u64::from(parent.0), move |at, power| {
            *at += 1 << power;
            u32::try_from(*at % u64::from(groups)).ok()
        });
        near.chain(doubling).chain(0..groups).map(GroupNr)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::geometry::Layout;
    use crate::testdisk::geometry;
    use proptest::prelude::*;

    struct Counts(Vec<GroupCounts>);

    impl InodeSource for Counts {
        fn counts(&self, group: GroupNr) -> GroupCounts {
            self.0[group.0 as usize]
        }

        fn totals(&self) -> Totals {
            self.0.iter().fold(Totals::default(), |sum, counts| Totals {
                free_inodes: sum.free_inodes + u64::from(counts.free_inodes),
                free_clusters: sum.free_clusters + u64::from(counts.free_clusters),
                used_dirs: sum.used_dirs + u64::from(counts.used_dirs),
            })
        }
    }

    fn even(groups: usize) -> Counts {
        Counts(vec![
            GroupCounts {
                free_inodes: 100,
                free_clusters: 500,
                used_dirs: 1
            };
            groups
        ])
    }

    #[test]
    fn trees_spread_and_their_branches_stay() {
        let placement = Placement::new(&geometry(12, 1024), 128);
        let mut counts = even(12);
        (0..10).for_each(|group| counts.0[group].used_dirs = 5);
        let top = placement.for_directory(&counts, GroupNr(0), Kinship::TopLevel(0));
        assert_eq!(top, Some(GroupNr(8)), "flex groups here have four groups");
        let below = placement.for_directory(&counts, GroupNr(7), Kinship::Below);
        assert_eq!(below, Some(GroupNr(4)));
        (4..8).for_each(|group| counts.0[group].free_inodes = 0);
        let below = placement.for_directory(&counts, GroupNr(7), Kinship::Below);
        assert_eq!(below, Some(GroupNr(8)));
    }

    #[test]
    fn metadata_of_a_flex_group_stays_together_in_front_of_the_data() {
        let placement = Placement::new(&geometry(13, 1024), 128);
        let goal = |group, content| placement.goal(GroupNr(group), content).0;
        assert_eq!(goal(6, Content::Metadata), 4);
        assert_eq!(goal(6, Content::Data), 5);
        assert_eq!(
            goal(12, Content::Data),
            12,
            "the last flex group has one group"
        );
        let alone = Layout {
            s_log_groups_per_flex: None,
            ..*geometry(13, 1024).layout()
        };
        let placement = Placement::new(&Geometry::new(alone).unwrap(), 128);
        assert_eq!(placement.goal(GroupNr(6), Content::Data), GroupNr(6));
    }

    #[test]
    fn a_file_begins_beside_its_directory() {
        let placement = Placement::new(&geometry(12, 1024), 128);
        let core = CoreNr::current();
        let mut groups: Vec<_> = placement
            .for_file(GroupNr(5), core)
            .take(4)
            .map(|group| group.0)
            .collect();
        assert_eq!(groups[0], 4 + len32(core.index()) % 4);
        groups.sort_unstable();
        assert_eq!(groups, [4, 5, 6, 7]);
    }

    proptest! {
        #[test]
        fn the_last_free_inode_is_found(
            groups in 1_u32..40,
            at in any::<u32>(),
            parent in any::<u32>(),
            hash in any::<u32>(),
        ) {
            let placement = Placement::new(&geometry(groups, 64), 128);
            let mut counts = Counts(vec![GroupCounts::default(); groups as usize]);
            let (at, parent) = (at % groups, GroupNr(parent % groups));
            counts.0[at as usize].free_inodes = 1;
            for kinship in [Kinship::TopLevel(hash), Kinship::Below] {
                let group = placement.for_directory(&counts, parent, kinship);
                prop_assert_eq!(group, Some(GroupNr(at)));
            }
            let mut files = placement.for_file(parent, CoreNr::current());
            prop_assert!(files.any(|group| group == GroupNr(at)));
            counts.0[at as usize].free_inodes = 0;
            prop_assert_eq!(placement.for_directory(&counts, parent, Kinship::Below), None);
        }
    }
}
