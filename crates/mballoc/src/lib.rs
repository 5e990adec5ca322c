//! **Purpose.** The multiblock allocator of ext4 for many cores: which clusters are free, and who
//! gets them.
//!
//! **Not here.** Inodes, the journal, devices. The file system offers bitmaps and descriptors
//! through [`GroupSource`], logs the [`Change`]s it is handed, and says when commits are durable.
//!
//! **Model.** See [`claim`] for the life of a cluster, [`group`](self) for its states, [`search`]
//! for how a group is chosen:
//!
//! ```text
//! reserve (tokens) -> allocate: inode preallocation | locality group | search -> Claim
//!    -> data written, bits set -> mark          or give_back
//! begin_free -> bits cleared -> finish_free -> waits in its group -> free, tokens return
//! ```
//!
//! **Invariants.** A cluster is handed out only if its bit is clear in the group's buddy, under
//! the group's lock. Tokens never exceed the clusters that are free or preallocated.
//!
//! **Locking.** No lock and no written cache line is shared by all cores on the paths of
//! allocation and free: tokens, locality groups and statistics lie with the cores, stream goals
//! with slots, and everything else with the group. What all cores read (group states, tunables,
//! the commit clock, the index) is written when a group is loaded, somebody tunes, a commit ends,
//! or a group changes bins. Order: inode's or core's list -> group -> core-local words; the lock of
//! the token pools is a leaf of its own.
//!
//! | module | responsibility |
//! |---|---|
//! | [`geometry`] | blocks, clusters, groups |
//! | [`bitset`] | a set of groups that is searched and changed without locks |
//! | [`order_index`] | groups in bins by what they have |
//! | [`buddy`] | free chunks of one group |
//! | [`run_tree`] | free extents of one group |
//! | [`pending`] | freed clusters that wait, and for what |
//! | `intervals`, `words`, `num` | small containers and conversions |
//! | `group` | one group and its lock |
//! | `table` | all groups: loading, evicting, locking |
//! | [`source`] | where bitmaps and descriptors come from |
//! | `prefetch` | having bitmaps before they are needed |
//! | [`tokens`] | the right to allocate |
//! | [`shortage`] | when there is no space, and waiting for it |
//! | [`request`] | what is asked for, and its size class |
//! | [`prealloc`] | clusters claimed ahead for inodes and cores |
//! | `stream` | where large files go on |
//! | [`criteria`] | the names of the ladder's steps |
//! | `search` | the ladder over the indexes |
//! | `reference` | the ladder as ext4 has it |
//! | [`claim`] | claims, frees under way, changes to log |
//! | [`placement`] | groups for new inodes |
//! | [`allocator`] | the whole |
//! | `trim` | free runs shown to who tells the device |
//! | [`report`] | mb_groups, mb_structs_summary |
//! | [`stats`] | mb_stats |
//! | [`tunables`] | names, bounds, defaults |
//! | [`error`] | why it refuses |
#![forbid(unsafe_code)]

pub mod allocator;
pub mod bitset;
pub mod buddy;
pub mod claim;
pub mod criteria;
pub mod error;
pub mod geometry;
mod group;
mod intervals;
#[cfg(all(test, feature = "shuttle"))]
mod model;
mod num;
pub mod order_index;
pub mod pending;
pub mod placement;
pub mod prealloc;
mod prefetch;
mod reference;
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
pub use pending::Stamp;
pub use placement::{GroupCounts, InodeSource, Kinship, Placement, Totals};
pub use prealloc::FilePrealloc;
pub use request::{Content, Neighbour, Reach, Request, Sizing, Writers};
pub use source::{BitmapState, Descriptor, GroupSource, SourceError};
pub use tokens::{Privilege, Reservation};
pub use tunables::{Tunable, Tunables};
