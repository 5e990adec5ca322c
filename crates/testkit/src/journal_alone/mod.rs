//! **Purpose.** The journal alone under the crash harness: random transactions of several threads
//! over a few blocks, every crash state of them recovered and held against a model.
//!
//! **Not here.** The states ([`crate::explore`]), and file systems: these blocks belong to nobody.
//!
//! | module | responsibility |
//! |---|---|
//! | `setup` | what a seed decides: threads, sizes, formats |
//! | `place` | the device that a history begins with |
//! | `client` | the threads that use the journal, and keep the model |
//! | `model` | what the blocks may hold after a crash |
//! | `on_image` | the same on an ext4 image, for other people's recovery |
//! | [`session`] | a recorded history with its model: exploring it, saving it, going on from it |
//! | [`campaign`] | many seeds on all cores, and what was seen in them |
//!
//! # What is checked
//! For each crash state: the log is recovered as a writable mount does it. The blocks then equal
//! those after a prefix of the commits that holds every acknowledged one; data that was durable
//! is as it was, whatever older copies of its blocks the log holds; and data that metadata names
//! is there. A second recovery finds nothing to do.
//!
//! In one of four histories the journal's device breaks: the n-th write or flush fails, and all
//! after it. Then every thread is told that the journal was aborted, none waits for ever, every
//! block can still be read, and the states are as good as those of the other histories.
//!
//! For some of the states: the recovery is recorded as well, cut everywhere, and made again: the
//! result is the same. And one state of each history is gone on with: the next history begins on
//! the recovered device, with the old log's blocks still in it.

pub mod campaign;
mod client;
mod model;
mod on_image;
mod place;
pub mod session;
mod setup;

pub use campaign::{Campaign, Finding, Tally};
pub use session::{Sample, Session};
pub use setup::Breaking;

#[cfg(test)]
mod tests;
