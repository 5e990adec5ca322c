//! **Purpose.** The errors of the allocator.

use fourscore_ondisk::{GroupNr, PhysBlock, Tid};

use crate::geometry::{ClusterCount, Run};
use crate::source::SourceError;

/// Why a request, a claim or a free failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too few clusters were free or becoming free at one moment of the call ([`crate::shortage`]).
    #[error("no space: {wanted} clusters wanted, {available} free for this caller")]
    NoSpace {
        /// Clusters that were requested.
        wanted: u64,
        /// Clusters that were available.
        available: u64,
    },
    /// Too few free clusters now, but enough are coming: freed clusters are pending, some are being
    /// discarded, some are kept for a favoured thread, or concurrent requests move preallocations.
    /// The caller should commit, wait
    /// ([`Allocator::wait_for_grace_period`](crate::Allocator::wait_for_grace_period)) and retry.
    /// Many threads may get this error at once; one commit of `tid` serves them all.
    #[error(
        "no space before a commit: {wanted} clusters wanted, {available} free, {waiting} pending"
    )]
    CommitFirst {
        /// Clusters that were requested.
        wanted: u64,
        /// Clusters that were available.
        available: u64,
        /// Clusters that wait for a commit, a grace period or a discard.
        waiting: u64,
        /// The newest transaction that some of them wait for: once its commit is durable, none of
        /// them waits for a commit. `None` if all wait for grace periods only.
        tid: Option<Tid>,
    },
    /// There is space, but no free run is as long, as aligned or as low as the caller needs.
    #[error("no {min_len} contiguous free clusters")]
    NotContiguous {
        /// The shortest length that the caller accepts.
        min_len: ClusterCount,
    },
    /// The request contradicts itself.
    #[error("bad request: {0}")]
    BadRequest(RequestProblem),
    /// A group's metadata is wrong.
    #[error("group {group}: {problem}")]
    Group {
        /// The group.
        group: GroupNr,
        /// What is wrong.
        problem: GroupProblem,
    },
    /// The clusters to free are free already: two files refer to them, or a bitmap is wrong.
    #[error("group {}: clusters {} to {} are not in use", run.group, run.start, run.end() - 1)]
    NotInUse {
        /// The clusters to free.
        run: Run,
    },
    /// Blocks outside of the file system.
    #[error("{clusters} clusters from block {block} on are not all inside the file system")]
    Outside {
        /// The first block.
        block: PhysBlock,
        /// How many clusters from there on.
        clusters: u64,
    },
    /// The bitmap of a group could not be read.
    #[error("group {group}: cannot read the block bitmap: {error}")]
    Source {
        /// The group.
        group: GroupNr,
        /// Why.
        error: SourceError,
    },
}

/// What is wrong with a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupProblem {
    /// The bitmap does not have as many free clusters as the descriptor says.
    #[error("the block bitmap has {found} free clusters, the descriptor says {expected}")]
    FreeCount {
        /// By the bitmap.
        found: u32,
        /// By the descriptor.
        expected: u32,
    },
    /// A problem was reported before; nothing is allocated or freed in the group.
    #[error("unusable since its bitmap was found wrong")]
    Unusable,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestProblem {
    /// Its length or minimum length is 0.
    #[error("a length of 0")]
    Empty,
    /// Its minimum length is above its length.
    #[error("min_len is more than len")]
    MinLenAboveLen,
    /// The alignment is not a power of two.
    #[error("the alignment is not a power of two")]
    Alignment,
    /// It is for more clusters than its reservation has.
    #[error("more clusters than reserved")]
    NotReserved,
}
