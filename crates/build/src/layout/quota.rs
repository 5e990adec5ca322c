//! **Purpose.** What every user, group and project uses, for quota files.
//!
//! **Model.** An object counts with its inode and with the space its inode tells, content, nodes of
//! its map and block of attributes together: a block of attributes counts for each that shares it,
//! and so does the inode of a large value. Files that users do not see are not counted.

use fourscore_ondisk::quota::{QuotaCounts, QuotaIds, QuotaUsage};

use super::place::{Forms, Placed};
use crate::tree::NodeId;

impl Forms {
    /// All owners of objects.
    pub(crate) fn owners(&self) -> QuotaUsage {
        self.usage(|_| QuotaCounts::default())
    }

    /// The space and inodes that each owner uses.
    pub(crate) fn quota(&self, placed: &Placed) -> QuotaUsage {
        self.usage(|node| QuotaCounts {
            inodes: 1 + self
                .set_of(node)
                .map_or(0, |set| set.values().count() as u64),
            bytes: placed.clusters(self, node) << (self.facts.cluster_log + self.facts.block_bits),
        })
    }

    fn usage(&self, counts_of: impl Fn(NodeId) -> QuotaCounts) -> QuotaUsage {
        let mut usage = QuotaUsage::default();
        // Neighbours mostly have the same owner.
        let mut ids = self.quota_ids(NodeId::ROOT);
        let mut sum = counts_of(NodeId::ROOT);
        for &node in self.numbers.order() {
            let (own, counts) = (self.quota_ids(node), counts_of(node));
            if own != ids {
                usage.add(ids, std::mem::take(&mut sum));
                ids = own;
            }
            sum.inodes += counts.inodes;
            sum.bytes += counts.bytes;
        }
        usage.add(ids, sum);
        usage
    }

    fn quota_ids(&self, node: NodeId) -> QuotaIds {
        let meta = self.tree.meta(node);
        let has_project = self.facts.project && self.facts.has_extra();
        QuotaIds {
            user: meta.uid,
            group: meta.gid,
            project: if has_project { meta.project } else { 0 },
        }
    }
}
