//! **Purpose.** jbd2 without a file system: concurrent handles, group commit, checkpoints and
//! recovery. Knows blocks, not inodes.
//!
//! **Not here.** The bytes of the journal's blocks (`fourscore_ondisk::jbd2`), how a buffer keeps
//! the contents of two transactions apart (`fourscore_block::buffer`), and what fast-commit
//! records mean for inodes and directories (crate `fs`).
//!
//! | module | responsibility |
//! |---|---|
//! | `journal` | a journal that is being written: its parts, its beginning and its end |
//! | `handle` | the part of one operation in the running transaction |
//! | `gate` | who may be inside the running transaction |
//! | `credits` | how many blocks a transaction may come to, and who may add them |
//! | `transaction` | what the running transaction's handles did, per core |
//! | `seal` | the moment between two transactions, and what the file system adds at it |
//! | `commit` | making sealed transactions durable, and serving all who wait |
//! | `frame` | a transaction as blocks of the log |
//! | `in_place` | a transaction where there is no log |
//! | `checkpoint` | space in the log: committed blocks on the way to their places |
//! | `superblock` | where recovery would begin |
//! | [`log`] | where the journal's blocks are, reading them, internal and external journals |
//! | `ring` | positions in the log |
//! | [`recovery`] | a plan of what replaying the log would write |
//! | `replay` | carrying the plan out |
//! | [`fast_commit`] | which records of the fast-commit area count |
//! | `stats` | what commits cost |
//! | `sabotage` | steps left out on purpose, for the crash tests |
//!
//! # Theory of operation
//! ```text
//! handles ->  RUNNING  --seal-->  COMMITTING  --commit block durable-->  COMMITTED  --> free
//!             T+1, gate open      T, no handle                          T-1, T-2, ..
//!             in memory           being logged                          in the log, on the
//!                                                                       way to their places
//! ```
//! At any time there is one running transaction, at most one that commits, and any number that are
//! committed and not checkpointed. Their numbers are consecutive, and the log holds them in this
//! order.
//!
//! **Running.** A handle joins by a read-modify-write of its core's slot and changes buffers,
//! which remember their transaction. The first change of a buffer puts it on a list of this core.
//! Nothing else is shared: handles on different cores that change different buffers write no
//! common cache line.
//!
//! **Sealing.** The gate closes, and opens when every handle has left, the lists were detached and
//! the credits begun anew. *No handle of T+1 runs before T has drained*: if one did, a handle of T
//! that still runs could read what it wrote, or change a buffer after it, and T would be committed
//! with half of an operation of T+1, or with changes that rest on it. Nothing under the closed
//! gate depends on how much was changed.
//!
//! **Committing.** The buffers of T are sealed one by one while handles of T+1 run, and written
//! to the log piece by piece, so that no more of them is touched at once than a core's cache
//! holds. A handle that wants to change a buffer that T has dirtied, and that is not sealed yet,
//! first puts T's content aside; the tids decide that under the buffer's lock. So nobody waits for
//! the commit's I/O. Checksums are written into the sealed bytes by the file system's hook, once.
//!
//! **Committed.** The bytes stay in memory until they are durable in their places. A block that is
//! committed again moves to the newer transaction; one that is revoked is dropped.
//!
//! # Invariants
//! 1. What is in one handle is in one transaction; what is durable of a transaction's log is
//!    replayed as a whole or not at all.
//! 2. running share + committing share + blocks in use <= blocks of the log. A transaction is
//!    opened only when its whole share is free, so a handle that started can finish.
//! 3. A place on the device of the file system holds what a durable commit left there, or the
//!    block is in the log behind the durable tail.
//! 4. A freed block is given out again (`on_commit`) only when its revoke record is durable and no
//!    checkpoint of it is in flight.
//!
//! Without a log ([`Journal::without_log`]) 2 and 3 do not hold: a crash may leave a part of the
//! last transaction in place. See `in_place` for what holds instead.
//!
//! # Why waiting for space ends
//! A starting handle waits for a seal; a seal waits for handles that are open, for the commit
//! before it, and for log space; log space waits for a checkpoint; a checkpoint waits for the
//! device only. Open handles wait for nothing of these: their credits were reserved, and the
//! assertions in `handle` refuse a thread that would wait inside. A checkpoint needs no handle, no
//! buffer and no commit, since the bytes that it writes are sealed and at hand. So the chain has
//! no cycle.
//!
//! # Crash safety: what each flush is for
//! | step | without it |
//! |---|---|
//! | superblock says where the log begins, FUA, before the first commit | recovery takes the journal for empty and drops acknowledged commits |
//! | flush between a transaction's blocks and its commit block | recovery replays blocks that never arrived (with checksums: drops the commit) |
//! | commit block with FUA | `fsync` returns before the commit is durable |
//! | flush between writes in place and the new tail | neither the place nor the log has the block |
//! | tail with FUA, before the blocks it frees are used again | recovery begins in the middle of a newer transaction |
//! | flush of the file system's device before the commit block, with an external journal | a commit exposes data that is not there |
//!
//! # Lock order
//! role of committer -> role of checkpointer -> superblock -> {queue, lists of the log space,
//! lists of a core, gate, statistics}: the last are leaves, but for the queue, under which an
//! abort is looked up. A buffer's lock is a leaf as well; the file system's `finish` runs under it.
#![forbid(unsafe_code)]

mod checkpoint;
mod commit;
mod credits;
mod error;
pub mod fast_commit;
mod frame;
mod gate;
mod handle;
mod in_place;
mod journal;
pub mod log;
pub mod recovery;
mod replay;
mod ring;
mod sabotage;
mod seal;
mod stats;
mod superblock;
mod transaction;

pub use credits::Credits;
pub use error::{AbortCause, During, Error};
pub use fast_commit::FastCommits;
pub use handle::{Extended, Handle, LastTid, ModifyError};
pub use journal::{Background, Batching, FastCommitArea, Journal, JournalOptions, NewChecksums};
pub use log::{JournalMap, JournalRun, Log};
pub use recovery::{LoggedCopy, Recovered, recover};
pub use replay::{replay, replay_before_fast_commits};
#[cfg(feature = "sabotage")]
pub use sabotage::Sabotage;
pub use seal::{NoHook, SealHook, Sealing};
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
