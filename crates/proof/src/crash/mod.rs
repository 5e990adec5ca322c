//! **Purpose.** The whole file system under the crash harness: workloads recorded, and every crash
//! state of them recovered, checked, and held against a model.
//!
//! **Not here.** The states (`testkit::explore`), and the journal alone (`testkit::journal_alone`).
//!
//! | module | responsibility |
//! |---|---|
//! | [`workload`] | what a seed decides: the file system, the threads and what they do |
//! | `catalogue` | the operations by name, on a small set of files |
//! | `base` | the file systems that histories begin with |
//! | `tree` | names, inodes and contents, as expected and as found |
//! | `breaking` | steps that are left out on purpose |
//! | `timeline` | how a thread's tree looks after each of its calls, and what is promised when |
//! | `holes` | where a file has no blocks yet |
//! | `judge` | whether a recovered state is a good one |
//! | `notes` | what threads note in a recording |
//! | `outside` | what e2fsck and the kernel say of a state |
//! | `told` | which of what they say docs/FINDINGS.md tells of |
//! | [`session`] | a recorded history: exploring it, saving it, making it shorter |
//! | [`campaign`] | many seeds on all cores |
//! | [`kernel`] | the same for the kernel's own ext4 |
//! | [`faults`] | devices that fail, little memory, no room |
//!
//! # What is checked
//! A crash state is mounted, which recovers it, looked at, unmounted, and checked by
//! `fourscore-check`, which finds what is leaked or shared. What was found must be, for each
//! thread:
//!
//! - **a version**: the names and inodes of its tree are those after one of its calls, so each call
//!   happened wholly or not at all, and nothing else changed;
//! - **new enough**: not older than what was acknowledged. A call of fsync vouches for the last
//!   call before it that changed the inode, its names included; sync and unmounting for everything;
//! - **its own**: each sector of a file holds what the version says, or what a later call wrote
//!   there to the same file, since data goes to its place at once. With journaled data the version
//!   alone counts. All free blocks of the image held a poison before, so that what is not written
//!   shows.
//!
//! Without a journal e2fsck repairs a state first. Then every file is there that was durable and
//! not touched since, nor a directory above it, no directory has a name that it never had, and no
//! file holds what is not its own.
//!
//! One state of fifty is also given to others: `e2fsck -fn` finds nothing in what we recovered, and
//! the kernel recovers the crashed state to the same tree.

mod base;
mod breaking;
pub mod campaign;
mod catalogue;
pub mod faults;
mod holes;
mod judge;
pub mod kernel;
mod notes;
mod outside;
pub mod session;
mod timeline;
mod told;
mod tree;
pub mod workload;

pub use breaking::Breaking;
pub use campaign::{Campaign, Finding, Tally};
pub use session::Session;
pub use workload::{Format, Workload};

#[cfg(test)]
mod tests;
