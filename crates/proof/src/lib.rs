//! **Purpose.** The file system held against a model of one, and every state in which a crash may
//! leave it.
//!
//! | module | responsibility |
//! |---|---|
//! | `model` | a file system in memory, and the same calls done to both |
//! | [`crash`] | the whole file system under the crash harness |
//!
//! **Not here.** The crash states themselves, images and other people's programs (`testkit`).
#![forbid(unsafe_code)]

pub mod crash;
mod model;

pub use model::{Id, Model, Numbers, Pair, Rules};
