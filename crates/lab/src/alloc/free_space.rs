//! **Purpose.** A histogram of the free extents of a file system, with the buckets of e2freefrag.

use std::io;

use fourscore_mballoc::Allocator;
use fourscore_ondisk::GroupNr;
use serde_json::{Value, json};

/// Powers of two of a length in clusters that a group can hold.
const BUCKETS: usize = 20;

/// Free extents of `2^i` to `2^(i+1) - 1` clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Number of extents.
    pub extents: u64,
    /// Clusters in them.
    pub clusters: u64,
}

/// Free extents by length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// `[i]` counts extents of `2^i` to `2^(i+1) - 1` clusters.
    pub buckets: [Bucket; BUCKETS],
    /// Clusters of the shortest extent; 0 if there is none.
    pub min: u64,
    /// Clusters of the longest extent.
    pub max: u64,
}

impl FreeSpace {
    /// Counts the free extents of all groups, which loads their bitmaps.
    ///
    /// # Errors
    /// The error of the first group that cannot be loaded.
    pub fn of(allocator: &Allocator) -> io::Result<Self> {
        let mut space = Self::default();
        for group in (0..allocator.geometry().groups()).map(GroupNr) {
            let counted = allocator.free_extents(group, |len| space.add(u64::from(len)));
            counted.map_err(io::Error::other)?;
        }
        Ok(space)
    }

    /// Counts one extent of `clusters` clusters, at least one.
    fn add(&mut self, clusters: u64) {
        let bucket = &mut self.buckets[(clusters.ilog2() as usize).min(BUCKETS - 1)];
        bucket.extents += 1;
        bucket.clusters += clusters;
        self.min = if self.min == 0 {
            clusters
        } else {
            self.min.min(clusters)
        };
        self.max = self.max.max(clusters);
    }

    /// Free extents.
    #[must_use]
    pub fn extents(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.extents).sum()
    }

    /// Free clusters.
    #[must_use]
    pub fn clusters(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.clusters).sum()
    }

    /// Mean clusters of a free extent.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.clusters() / self.extents().max(1)
    }

    /// The histogram as JSON with stable names, without empty buckets.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let bucket = |(log, bucket): (usize, &Bucket)| {
            (bucket.extents > 0).then(|| {
                json!({
                    "min_clusters": 1_u64 << log,
                    "free_extents": bucket.extents,
                    "free_clusters": bucket.clusters,
                })
            })
        };
        json!({
            "free_extents": self.extents(),
            "free_clusters": self.clusters(),
            "mean_clusters": self.mean(),
            "histogram": self.buckets.iter().enumerate().filter_map(bucket).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_fall_into_powers_of_two() {
        let mut space = FreeSpace::default();
        [1, 3, 2, 700].into_iter().for_each(|len| space.add(len));
        assert_eq!(
            (space.extents(), space.clusters(), space.mean()),
            (4, 706, 176)
        );
        assert_eq!((space.min, space.max), (1, 700));
        let two = Bucket {
            extents: 2,
            clusters: 5,
        };
        assert_eq!(space.buckets[1], two);
        let json = space.to_json();
        assert_eq!(json["histogram"][2]["min_clusters"], 512);
        assert_eq!(json["histogram"].as_array().map(Vec::len), Some(3));
    }
}
