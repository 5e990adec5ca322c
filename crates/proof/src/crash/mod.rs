//! **Purpose.** The crash harness of the whole file system: records workloads, recovers every crash
//! state of them, checks it, and compares it with a model.
//!
//! **Not here.** How crash states are generated (`testkit::explore`), and the journal alone
//! (`testkit::journal_alone`).
//!
//! | module | responsibility |
//! |---|---|
//! | [`workload`] | derives the file system, the threads and their steps from a seed |
//! | `catalogue` | the named operations, on a small set of files |
//! | `few_files` | random calls on a few files, with many fsyncs |
//! | `few_blocks` | random calls on files that need each other's blocks |
//! | `base` | the file systems that histories begin with |
//! | `tree` | names, inodes and data, as expected and as found |
//! | `injected` | known faults that are injected to test the harness |
//! | `timeline` | the expected tree after each call of a thread, and what is durable then |
//! | `holes` | ranges of files that have no blocks |
//! | `judge` | decides whether a recovered state is correct |
//! | `effects` | the inodes and names that a call changes, and what it vouches for |
//! | `call_sets` | decides whether a state recovered from fast commits is correct |
//! | `notes` | marks of threads in a recording |
//! | `external` | checks of a state by e2fsck and the kernel |
//! | `known_bugs` | recognises the bugs of others that docs/FINDINGS.md lists |
//! | `outcomes` | explores the states of one change that is found whole or not at all |
//! | `relocation` | the test of a shrink that moves what lies behind the new end |
//! | `resize` | the test of changes of the size |
//! | `staged` | the test of changes that are made all at once |
//! | `tune` | the test of features that are switched |
//! | [`session`] | a recorded history: explores, saves and shortens it |
//! | [`campaign`] | runs many seeds on all cores |
//! | [`kernel`] | the same for the kernel's own ext4 |
//! | [`faults`] | failing devices, little memory, little space |
//!
//! # What is checked
//! A crash state is mounted, which recovers it, read, unmounted, and checked by `fourscore-check`,
//! which finds leaked and shared blocks. For each thread, the tree that was found must satisfy:
//!
//! - **One version**: its names and inodes are those after one of the calls, so that each call
//!   happened completely or not at all, and nothing else has changed.
//! - **Durability**: the version is not older than the one that was reported durable. An fsync
//!   makes the last call durable that changed the inode or its names; sync and unmount make all
//!   calls durable.
//! - **No foreign data**: each sector of a file holds the data of that version, or data that a
//!   later call wrote to the same place of the file, since data is written to its home location at
//!   once. With `data=journal` only the version counts. All free blocks of the initial image hold a
//!   poison, so that blocks which were never written are seen.
//!
//! With fast commits a tree is not one version, but the result of a set of calls (`call_sets`).
//!
//! Without a journal, e2fsck repairs a state first. Then every file must be there that was durable
//! and not changed since, nor a directory above it; no directory has a name that it never had; and
//! no file holds data that was never written to it.
//!
//! One state of fifty is also checked by others: `e2fsck -fn` must find nothing in what we
//! recovered, and the kernel must recover the crashed state to the same tree. With fast commits
//! `e2fsck -fp` must recover it to the same tree, too.

mod base;
mod call_sets;
pub mod campaign;
mod catalogue;
mod effects;
mod external;
pub mod faults;
mod few_blocks;
mod few_files;
mod holes;
mod injected;
mod judge;
pub mod kernel;
mod known_bugs;
mod notes;
pub mod session;
mod timeline;
mod tree;
pub mod workload;

pub use campaign::{Campaign, Finding, Log, Tally};
pub use injected::InjectedFault;
pub use session::Session;
pub use workload::{Format, Workload};

#[cfg(test)]
mod outcomes;
#[cfg(test)]
mod relocation;
#[cfg(test)]
mod resize;
#[cfg(test)]
mod staged;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tune;
