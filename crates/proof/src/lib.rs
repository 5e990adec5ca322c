//! **Purpose.** Proof of the whole file system: comparison with a model, in single calls, in every
//! crash state, among concurrent threads, and under a process that is killed.
//!
//! | module | responsibility |
//! |---|---|
//! | `model` | a file system in memory, and the same calls done on both |
//! | `sound` | runs the checker |
//! | [`crash`] | the crash harness of the whole file system |
//! | [`concurrent`] | the concurrent oracle: results of calls while other threads change the same |
//! | [`torture`] | the torture test: every kind of operation, in a process that is killed |
//!
//! **Not here.** How crash states are generated, images, and other programs (`testkit`).
#![forbid(unsafe_code)]

pub mod concurrent;
pub mod crash;
mod model;
mod sound;
pub mod torture;

use fourscore::NewAttributes;

pub use model::{Id, Model, Numbers, Pair, Rules};

/// Attributes of inodes that root creates.
const BY_ROOT: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);
