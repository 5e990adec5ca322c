//! **Purpose.** The multiblock allocator (ext4's mballoc) for many cores: tracks free clusters in
//! buddies and allocates them to files.
//!
//! **Not here.** Inodes, the journal, devices. The file system supplies bitmaps and descriptors
//! through [`GroupSource`], logs the [`Change`]s that the allocator returns, and reports durable
//! commits.
//!
//! **Model.** [`claim`] has the life cycle of a cluster, `group` its states, `search` the choice of
//! a group:
//!
//! ```text
//! reserve (tokens) -> allocate: inode preallocation | locality group | search -> Claim
//!    -> data written, bits set -> mark          or give_back
//! begin_free -> bits cleared -> finish_free -> pending in its group -> free, tokens return
//! ```
//!
//! **Invariants.** A cluster is allocated only if its bit is clear in the group's buddy, under the
//! group's lock. Tokens never exceed the clusters that are free or preallocated.
//!
//! **Locking.** Allocation and free take no lock and write no cache line that all cores share:
//! tokens, locality groups and statistics are per core, stream goals per slot, everything else per
//! group. Data that all cores read (group states, tunables, the commit clock, the index) is written
//! only when a group is loaded, a tunable is set, a commit ends, or a group changes bins. Lock
//! order: preallocation list of an inode or core -> group -> per-core words; the lock of the token
//! pools is a leaf of its own.
//!
//! | module | responsibility |
//! |---|---|
//! | [`geometry`] | blocks, clusters, groups |
//! | [`bitset`] | a lock-free set of groups |
//! | [`order_index`] | groups binned by their free space |
//! | [`buddy`] | free chunks of one group |
//! | [`run_tree`] | free extents of one group |
//! | [`pending`] | freed clusters that wait for a commit or a grace period |
//! | `intervals`, `words`, `num` | small containers and conversions |
//! | `group` | one group and its lock |
//! | `table` | all groups: loading, evicting, locking |
//! | [`source`] | the interface to bitmaps and descriptors |
//! | `prefetch` | reading bitmaps ahead |
//! | [`tokens`] | reservation of space: per-core counts of free clusters |
//! | [`shortage`] | out of space, and waiting for space that is coming |
//! | [`request`] | requests and their normalization |
//! | [`prealloc`] | preallocations of inodes and locality groups |
//! | `stream` | goals of stream allocation |
//! | [`criteria`] | the names of the criteria |
//! | `search` | the search by criteria over the indexes |
//! | `ext4_scan` | the search as ext4 does it, selected by tunables |
//! | [`claim`] | claims, frees in progress, changes to log |
//! | [`placement`] | groups for new inodes (Orlov) |
//! | [`allocator`] | the allocator's interface |
//! | `grow` | more groups while the allocator is in use |
//! | `trim` | visiting free runs to discard them |
//! | [`report`] | mb_groups, mb_structs_summary |
//! | [`stats`] | mb_stats |
//! | [`tunables`] | names, bounds, defaults |
//! | [`error`] | errors |
#![forbid(unsafe_code)]

pub mod allocator;
pub mod bitset;
pub mod buddy;
pub mod claim;
pub mod criteria;
pub mod error;
mod ext4_scan;
pub mod geometry;
mod group;
mod grow;
mod intervals;
#[cfg(all(test, feature = "shuttle"))]
mod model;
mod num;
pub mod order_index;
pub mod pending;
pub mod placement;
pub mod prealloc;
mod prefetch;
pub mod report;
pub mod request;
pub mod run_tree;
mod search;
pub mod shortage;
pub mod source;
pub mod stats;
mod stream;
mod table;
#[cfg(test)]
mod testdisk;
pub mod tokens;
mod trim;
pub mod tunables;
mod words;

pub use allocator::{Allocator, Options};
pub use claim::{Change, ChangeKind, Claim, Freeing};
pub use error::{Error, GroupProblem, RequestProblem};
pub use geometry::{ClusterCount, Geometry, Layout, LogicalCluster, Run};
pub use group::GROUP;
pub use grow::Growth;
pub use pending::Stamp;
pub use placement::{GroupCounts, InodeSource, Kinship, Placement, Totals};
pub use prealloc::FilePrealloc;
pub use request::{Content, Neighbour, Reach, Request, Sizing, Writers};
pub use source::{BitmapState, Descriptor, GroupSource, ReadError, SourceError};
pub use tokens::{Privilege, Reservation};
pub use tunables::{Tunable, Tunables};
