//! **Purpose.** Quota: what each user, group and project uses, and what they may use (features
//! `quota` and `project`).
//!
//! | module | responsibility |
//! |---|---|
//! | `usage` | whose usage changes, and by how much |
//! | `limits` | limits, grace times, and callers that are exempt from them |
//! | `dquot` | identifiers and their entries |
//! | `counts` | the changes of each core, and their sum at the seal of a transaction |
//! | `file` | reading quota files |
//! | `state` | the quota of a mount |
//! | `idle` | identifiers whose entries may be removed |
//! | `entries` | adding entries to quota files, and removing them |
//! | `memory`, `charge` | the changes of usage that a plan makes |
//! | `control` | reading usage, setting limits |
//!
//! **Not here.** The bytes of quota files (`fourscore_ondisk::quota`).
//!
//! **Model.** An inode is charged with itself, with the space in its `i_blocks`, and with one inode
//! for each attribute whose value is in an inode of its own. Its space includes those values and
//! its block of attributes, even if they are shared. Inodes that no user sees (below the first
//! inode of users, except the root; quota files, the orphan file, values of attributes) are not
//! charged. So the change of usage follows from the slots of a plan before and after it:
//!
//! ```text
//! plan -> slots before and after -> changes by user, group, project -> limits -> handle
//!   handle: the blocks of the entries join; the changes are added on this core
//! seal: the changes of all cores are added to the entries, in the same transaction
//! ```
//!
//! An entry is added to its file, by a plan of its own, before the first plan that changes it. One
//! that has neither usage nor limits is removed when another one is added, or at the end of the
//! mount.
//!
//! **Limits.** An identifier without limits has only the changes per core. One with limits also has
//! an exact count under a lock of its own: a plan adds what it takes before its handle, and is
//! refused if that passes a limit; what it gives back is subtracted in its handle. So no number of
//! threads exceeds a hard limit. As in Linux, limits are kept only with the mount options
//! `usrquota`, `grpquota` and `prjquota`, while usage is counted in any case.
//!
//! **Fast commits.** Their records have no usage, so a mount that counts usage makes none. Records
//! of the kernel are replayed by plans, which count usage as all plans do.
//!
//! **Crash safety.** Usage is in the transaction of the inodes that it belongs to. A mount does not
//! compare the two, as the kernel does not: files that another program has let go stale are
//! reported by `fourscore check` and repaired by e2fsck. A broken file is refused.
//!
//! **Locking.** The lock of insertion stands between inodes of a group and buffers; the others are
//! leaves. `setting` is taken by threads that hold no other lock.
//!
//! **References.** `Documentation/filesystems/quota.rst` of the kernel; quotactl(2).

mod charge;
pub(crate) mod control;
mod counts;
mod dquot;
mod entries;
mod file;
mod idle;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod state;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
mod usage;
