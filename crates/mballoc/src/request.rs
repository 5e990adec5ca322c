//! **Purpose.** A request for clusters, and its normalization: which kind of preallocation serves
//! it, and how much is searched for.
//!
//! **Model.** Small files of one core share a locality group, so that they end up side by side;
//! larger ones stream, each with a preallocation of its own as long as the size class of the file.
//! Searching for a size class instead of the few clusters that are needed now is what keeps files
//! in one piece; the surplus is a preallocation, which costs nothing on disk.
//!
//! **References.** `ext4_mb_group_or_file` and `ext4_mb_normalize_request` in `fs/ext4/mballoc.c`
//! for the size classes.

use fourscore_ondisk::{InodeNr, PhysBlock};

use crate::error::RequestProblem;
use crate::geometry::{ClusterCount, Geometry, LogicalCluster};
use crate::tunables::{Tunable, Tunables};

/// What the clusters are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Data of a regular file.
    Data,
    /// Anything else: directories, tree blocks, xattr blocks. Neither preallocated nor trimmed.
    Metadata,
}

/// How much is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// The size class of the file: as much as it is likely to need.
    Normalize,
    /// The requested length (fallocate, the tail of a closed file).
    Exact,
    /// The requested length, at the goal or not at all.
    GoalOnly,
}

/// Which block numbers the file can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All.
    Full,
    /// Those below 2^32 (block-mapped files).
    Bits32,
}

/// Whether the file is likely to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// The file is open for writing.
    Open,
    /// The file is not open for writing: it will not grow.
    Closed,
}

/// An extent of the file beside the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// A mapped cluster of the file: the last one before the request, or the first one after it.
    pub logical: LogicalCluster,
    /// The block at which that cluster lies.
    pub block: PhysBlock,
}

/// A request for clusters.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Chooses the stream goal.
    pub inode: InodeNr,
    /// The first cluster of the file that is to be mapped.
    pub logical: LogicalCluster,
    /// The number of clusters; the claim may be shorter, but not below `min_len`.
    pub len: ClusterCount,
    /// The shortest claim that is of use; more than 1 requires contiguous clusters.
    pub min_len: ClusterCount,
    /// The claim starts at a multiple of this many clusters from the start of the file system, for
    /// atomic writes; a power of two.
    pub align: ClusterCount,
    /// The preferred block.
    pub goal: PhysBlock,
    /// The nearest mapped cluster before `logical`.
    pub left: Option<Neighbour>,
    /// The nearest mapped cluster after the request.
    pub right: Option<Neighbour>,
    /// What the clusters are for.
    pub content: Content,
    /// How much is searched for.
    pub sizing: Sizing,
    /// Which block numbers the file can hold.
    pub reach: Reach,
    /// Whether the file is open for writing.
    pub writers: Writers,
    /// The size of the file in clusters, rounded up.
    pub size: ClusterCount,
}

impl Request {
    /// A request for `len` clusters of data at `logical`, with default options.
    #[must_use]
    pub fn data(
        inode: InodeNr,
        logical: LogicalCluster,
        len: ClusterCount,
        goal: PhysBlock,
    ) -> Self {
        Self {
            inode,
            logical,
            len,
            min_len: ClusterCount(1),
            align: ClusterCount(1),
            goal,
            left: None,
            right: None,
            content: Content::Data,
            sizing: Sizing::Normalize,
            reach: Reach::Full,
            writers: Writers::Open,
            size: ClusterCount(logical.0.saturating_add(len.0)),
        }
    }

    /// A request for `len` clusters of metadata near `goal`.
    #[must_use]
    pub fn metadata(inode: InodeNr, len: ClusterCount, goal: PhysBlock) -> Self {
        let data = Self::data(inode, LogicalCluster(0), len, goal);
        Self {
            content: Content::Metadata,
            sizing: Sizing::Exact,
            ..data
        }
    }

    pub(crate) fn check(&self) -> Result<(), RequestProblem> {
        if self.len.0 == 0 || self.min_len.0 == 0 {
            return Err(RequestProblem::Empty);
        }
        if self.min_len > self.len {
            return Err(RequestProblem::MinLenAboveLen);
        }
        if !self.align.0.is_power_of_two() {
            return Err(RequestProblem::Alignment);
        }
        Ok(())
    }
}

/// What serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    /// A search for exactly the request.
    Direct,
    /// A search from the stream goal, with a preallocation of the inode's own if it is normalized.
    Stream,
    /// The locality group of this core.
    Locality,
}

/// Chooses the provider by the size that the file will have.
pub(crate) fn provider(request: &Request, tunables: &Tunables) -> Provider {
    let plain = request.content == Content::Data
        && request.sizing != Sizing::GoalOnly
        && request.align.0 == 1;
    if !plain {
        return Provider::Direct;
    }
    let end = request.logical.0.saturating_add(request.len.0);
    let closed = end == request.size.0 && request.writers == Writers::Closed;
    if end.max(request.size.0) <= tunables.get(Tunable::MbStreamReq)
        && tunables.get(Tunable::MbGroupPrealloc) > 0
    {
        Provider::Locality
    } else if closed {
        Provider::Direct
    } else {
        Provider::Stream
    }
}

/// A normalized request: the part of the file for which one contiguous run is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Its first cluster; not after the request's.
    pub(crate) start: u32,
    /// Its length; it ends after the request's start.
    pub(crate) len: u32,
}

/// Normalizes a request: returns the window of the file's size class, between its mapped neighbours
/// and within `free`, the part of the file around the request that no preallocation covers.
pub(crate) fn normalize(
    request: &Request,
    geometry: &Geometry,
    free: std::ops::Range<u32>,
) -> Window {
    let (start, len) = size_class(request, geometry);
    let per_group = geometry.clusters_per_group();
    // If groups are smaller than the alignment of the class, the window must not begin more than a
    // group's length before the request.
    let logical = request.logical.0;
    let start = start.max(logical - logical % per_group);
    let end = start.saturating_add(len);
    let left = request
        .left
        .map_or(0, |left| left.logical.0.saturating_add(1));
    let right = request.right.map_or(u32::MAX, |right| right.logical.0);
    let start = start.max(left).max(free.start).min(logical);
    // The window covers the request, unless the class has a fixed length that is shorter.
    let end = end
        .min(right)
        .min(free.end)
        .min(start.saturating_add(per_group))
        .max(logical.saturating_add(1));
    Window {
        start,
        len: end - start,
    }
}

/// Start and length of the size class, in clusters.
fn size_class(request: &Request, geometry: &Geometry) -> (u32, u32) {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    let cluster = geometry.cluster_bytes();
    let logical = u64::from(request.logical.0) * cluster;
    let asked = u64::from(request.len.0) * cluster;
    let size = (logical + asked).max(u64::from(request.size.0) * cluster);
    // ext4 takes two blocks' worth of bits as the largest free chunk, counted in KiB.
    let largest = 2 * geometry.layout().block_size.bytes() as u64;
    let aligned = |piece: u64| (logical / piece * piece, piece);
    let (start, bytes) = if size <= MIB {
        (0, size.next_power_of_two().max(16 * KIB))
    } else if size <= 4 * MIB || largest <= 2 * KIB {
        aligned(2 * MIB)
    } else if size <= 8 * MIB || largest <= 4 * KIB {
        aligned(4 * MIB)
    } else if asked <= 8 * MIB || largest <= 8 * KIB {
        aligned(8 * MIB)
    } else {
        (logical, asked)
    };
    let clusters = |bytes: u64| u32::try_from(bytes / cluster).unwrap_or(u32::MAX);
    // A piece shorter than a cluster is the cluster of the request.
    let start = if cluster > bytes {
        request.logical.0
    } else {
        clusters(start)
    };
    (start, clusters(bytes).max(1))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::geometry::Layout;
    use fourscore_ondisk::BlockSize;
    use proptest::prelude::*;

    fn geometry(log: u32, per_group: u32) -> Geometry {
        Geometry::new(Layout {
            s_blocks_count: u64::from(per_group) * 100,
            s_first_data_block: 0,
            block_size: BlockSize::from_log(log).unwrap(),
            s_clusters_per_group: per_group,
            cluster_bits: 0,
            s_log_groups_per_flex: None,
            stripe: 0,
        })
        .unwrap()
    }

    fn ask(logical: u32, len: u32, size: u32) -> Request {
        let request = Request::data(
            InodeNr(12),
            LogicalCluster(logical),
            ClusterCount(len),
            PhysBlock(0),
        );
        Request {
            size: ClusterCount(size),
            ..request
        }
    }

    #[test]
    fn the_size_classes_are_those_of_ext4() {
        let g = geometry(2, 32_768);
        let window = |logical, len, size| {
            let window = normalize(&ask(logical, len, size), &g, 0..u32::MAX);
            (window.start, window.len)
        };
        assert_eq!(window(0, 1, 1), (0, 4));
        assert_eq!(window(5, 1, 6), (0, 8));
        assert_eq!(window(17, 1, 20), (0, 32));
        assert_eq!(window(255, 1, 256), (0, 256));
        assert_eq!(window(700, 1, 701), (512, 512));
        assert_eq!(window(1500, 1, 1501), (1024, 1024));
        assert_eq!(window(5000, 1, 5001), (4096, 2048));
    }

    #[test]
    fn neighbours_and_preallocations_bound_the_window() {
        let g = geometry(2, 32_768);
        let mut request = ask(100, 4, 256);
        request.left = Some(Neighbour {
            logical: LogicalCluster(79),
            block: PhysBlock(1000),
        });
        request.right = Some(Neighbour {
            logical: LogicalCluster(200),
            block: PhysBlock(3000),
        });
        assert_eq!(
            normalize(&request, &g, 0..u32::MAX),
            Window {
                start: 80,
                len: 120
            }
        );
        assert_eq!(
            normalize(&request, &g, 90..150),
            Window { start: 90, len: 60 }
        );
    }

    #[test]
    fn small_files_share_and_large_ones_stream() {
        let tunables = Tunables::new(geometry(2, 32_768));
        assert_eq!(provider(&ask(0, 4, 4), &tunables), Provider::Locality);
        assert_eq!(provider(&ask(16, 1, 17), &tunables), Provider::Stream);
        let closed = Request {
            writers: Writers::Closed,
            ..ask(16, 1, 17)
        };
        assert_eq!(provider(&closed, &tunables), Provider::Direct);
        let exact = Request {
            content: Content::Metadata,
            ..ask(0, 1, 1)
        };
        assert_eq!(provider(&exact, &tunables), Provider::Direct);
        tunables.set(Tunable::MbGroupPrealloc, 0).unwrap();
        assert_eq!(provider(&ask(0, 4, 4), &tunables), Provider::Stream);
    }

    proptest! {
        #[test]
        fn the_window_holds_the_start_of_the_request(
            log in 0_u32..=6,
            per_group in 256_u32..8192,
            logical in any::<u32>(),
            len in 1_u32..100_000,
            size in any::<u32>(),
            left in 0_u32..1000,
            right in 0_u32..1000,
        ) {
            let logical = logical.min(u32::MAX - 200_000);
            let mut request = ask(logical, len, size);
            let at = |logical| Neighbour { logical: LogicalCluster(logical), block: PhysBlock(0) };
            request.left = (left < logical).then(|| at(logical - left - 1));
            request.right = Some(at(logical + len + right));
            let window = normalize(&request, &geometry(log, per_group), 0..u32::MAX);
            prop_assert!(window.start <= logical && logical < window.start + window.len);
            prop_assert!(window.len <= per_group);
            prop_assert!(request.left.is_none_or(|left| left.logical.0 < window.start));
            prop_assert!(window.start + window.len <= logical + len + right);
        }
    }
}
