//! **Purpose.** jbd2 without a file system: concurrent handles, group commit, checkpoints and
//! recovery. It knows blocks, not inodes.
//!
//! **Not here.** The layout of the journal's blocks (`fourscore_ondisk::jbd2`), how a buffer keeps
//! the versions of two transactions apart (`fourscore_block::buffer`), and the meaning of
//! fast-commit records for inodes and directories (crate `fs`).
//!
//! | module | responsibility |
//! |---|---|
//! | `journal` | a journal open for writing: opening, closing, aborting |
//! | `handle` | handles: one operation's membership in the running transaction |
//! | `gate` | admission of handles to the running transaction |
//! | `credits` | the size limit of a transaction, and the credits of handles |
//! | `transaction` | per-core lists of the running transaction's changes |
//! | `seal` | ending the running transaction and starting the next; the file system's hook |
//! | `commit` | making sealed transactions durable; group commit |
//! | `area` | writing fast commits |
//! | `frame` | writing a transaction as blocks of the log |
//! | `new_blocks` | writing new blocks to their home locations in place of the log |
//! | `flights` | batches in flight |
//! | `in_place` | committing without a log |
//! | `checkpoint` | space in the log: writing committed blocks to their home locations |
//! | `superblock` | the journal's superblock: the log tail |
//! | [`log`] | the location of the journal's blocks, reading them, internal and external journals |
//! | `ring` | positions in the log |
//! | [`recovery`] | finding the blocks that a replay of the log writes |
//! | `replay` | writing them |
//! | [`fast_commit`] | finding the valid records of the fast-commit area |
//! | `stats`, `error` | statistics of commits, and errors |
//! | `sabotage` | injected faults, for the crash tests |
//!
//! # Theory of operation
//! ```text
//! handles ->  RUNNING  --seal-->  COMMITTING  --commit block durable-->  COMMITTED  --> free
//!             T+1, gate open      T, no handle                          T-1, T-2, ..
//!             in memory           being logged                          in the log, being
//!                                                                       checkpointed
//! ```
//! At any time there is one running transaction, at most one committing, and any number that are
//! committed and not checkpointed. Their tids are consecutive, and the log holds them in this
//! order. To *seal* a transaction is to end it and to start the next one (jbd2 goes through
//! `T_LOCKED`, `T_SWITCH` and `T_FLUSH`).
//!
//! **Running.** A handle joins by a read-modify-write of its core's slot and changes buffers, which
//! remember their transaction. The first change of a buffer puts it on a list of this core. Nothing
//! else is shared: handles on different cores that change different buffers write no common cache
//! line.
//!
//! **Sealing.** The gate closes, and opens when every handle has left, the lists are detached and
//! the credits are reset. *No handle of T+1 runs before T has drained*: if one did, a handle of T
//! that still runs could read its changes, or change a buffer after it, and T would be committed
//! with half of an operation of T+1, or with changes that depend on it. The time under the closed
//! gate does not depend on the number of changes.
//!
//! **Committing.** The buffers of T are sealed one by one while handles of T+1 run, and written to
//! the log piece by piece, so that a piece fits into a core's cache. A handle that wants to change
//! a buffer that T has dirtied, and that is not sealed yet, first saves T's version; the tids
//! decide that under the buffer's lock. So no handle waits for the commit's I/O. The file system's
//! hook writes checksums into the sealed bytes, once.
//!
//! **Committed.** The bytes stay in memory until they are durable at their home locations. A block
//! that is committed again moves to the newer transaction; one that is revoked is dropped.
//!
//! # Invariants
//! 1. All changes of one handle are in one transaction; a transaction is replayed as a whole or not
//!    at all.
//! 2. running share + committing share + blocks in use <= blocks of the log. A transaction is
//!    opened only when its whole share is free, so a handle that started can finish.
//! 3. For every block, the home location holds the version of the latest durable commit, or that
//!    version is in the log after the durable tail.
//! 4. A freed block is allocated again (`on_commit`) only when its revoke record is durable and no
//!    checkpoint of it is in flight.
//!
//! Without a log ([`Journal::without_log`]) 2 and 3 do not hold: a crash may leave a part of the
//! last transaction in place. See `in_place` for the guarantees instead.
//!
//! # Why waiting for space ends
//! A starting handle waits for a seal; a seal waits for handles that are open, for the commit
//! before it, and for log space; log space waits for a checkpoint; a checkpoint waits for the
//! device only. Open handles wait for none of these: their credits are reserved, and assertions in
//! `handle` panic if a thread with an open handle would wait. A checkpoint needs no handle, no
//! buffer and no commit, since the bytes that it writes are sealed and in memory. So the chain has
//! no cycle. In front of a fast-commit area, where the log wraps around only when it is empty, log
//! space may wait for a checkpoint of everything that is committed, and still for nothing else.
//!
//! # Crash safety
//! `commit`, `checkpoint`, `area` and `in_place` state the order of their writes and flushes.
//! docs/internals/journal.md has a table of what each flush prevents.
//!
//! # Lock order
//! role of committer -> role of checkpointer -> superblock -> {queue, lists of the log space, lists
//! of a core, gate, statistics}. The last are leaves, except the queue, under which the gate is
//! read for an abort. A buffer's lock is a leaf as well; the file system's `finish` runs under it.
#![forbid(unsafe_code)]

mod area;
mod checkpoint;
mod commit;
mod credits;
mod error;
pub mod fast_commit;
mod flights;
mod frame;
mod gate;
mod handle;
mod in_place;
mod journal;
pub mod log;
mod new_blocks;
pub mod recovery;
mod replay;
mod ring;
mod sabotage;
mod seal;
mod stats;
mod superblock;
mod transaction;

pub use commit::Covered;
pub use credits::Credits;
pub use error::{AbortCause, During, Error};
pub use fast_commit::FastCommits;
pub use handle::{Extended, Handle, LastTid, ModifyError};
pub use journal::{
    Background, Batching, FastCommitArea, Flushed, Journal, JournalOptions, NewChecksums,
};
pub use log::{JournalMap, JournalRun, Log};
pub use recovery::{LoggedCopy, Recovered, recover, salvage};
pub use replay::{replay, replay_before_fast_commits, replay_salvaged};
#[cfg(feature = "sabotage")]
pub use sabotage::Sabotage;
pub use seal::{FastCommit, FastCommitRequest, NoHook, SealHook, Sealing};
pub use stats::JournalStats;
pub use transaction::{BeforeCommit, OnCommit};

#[cfg(all(test, feature = "count"))]
mod count_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod device_tests;
#[cfg(all(test, feature = "shuttle"))]
mod model_tests;
#[cfg(test)]
mod testing;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
