//! **Purpose.** The file system held against a model of one, and every state in which a crash may
//! leave it.
//!
//! | module | responsibility |
//! |---|---|
//! | `model` | a file system in memory, and the same calls done to both |
//! | `sound` | what the checker says |
//! | [`crash`] | the whole file system under the crash harness |
//! | [`concurrent`] | what calls see while other threads change the same |
//! | [`torture`] | everything at once, by a process that is killed |
//!
//! **Not here.** The crash states themselves, images and other people's programs (`testkit`).
#![forbid(unsafe_code)]

pub mod concurrent;
pub mod crash;
mod model;
mod sound;
pub mod torture;

use fourscore::NewAttributes;

pub use model::{Id, Model, Numbers, Pair, Rules};

/// What the super-user makes.
const BY_ROOT: NewAttributes = NewAttributes {
    permissions: 0o755,
    umask: 0,
    uid: 0,
    gid: 0,
};
