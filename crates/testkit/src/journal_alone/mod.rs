//! **Purpose.** Crash tests of the journal without a file system: several threads run random
//! transactions over a few blocks, every crash state is recovered, and the blocks are compared with
//! a model.
//!
//! **Not here.** Making the crash states ([`crate::explore`]), and file systems: these blocks
//! belong to none.
//!
//! | module | responsibility |
//! |---|---|
//! | `setup` | the parameters drawn from a seed: threads, sizes, formats |
//! | `place` | the layout of the device that a history begins with |
//! | `client` | the threads that use the journal and update the model |
//! | `model` | the permitted contents of the blocks after a crash |
//! | `on_image` | the same on an ext4 image, for recovery by other programs |
//! | [`session`] | a recorded history with its model: explored, saved, continued |
//! | [`campaign`] | many seeds on all cores, and the sum of their results |
//!
//! # What is checked
//! For each crash state: the log is recovered as a writable mount does it. The blocks then equal
//! those after a prefix of the commits that includes every acknowledged one. Durable data is
//! unchanged, even if the log holds older copies of its blocks. Data that metadata refers to is
//! complete. A second recovery has nothing to replay.
//!
//! In one of four histories the journal's device fails: the n-th write or flush fails, and all
//! after it. Then every thread gets an abort error, none waits for ever, every block can still be
//! read, and the crash states meet the same conditions.
//!
//! For some of the states the recovery is recorded as well, cut at each point and repeated: the
//! result is the same. One state of each history is continued: the next history begins on the
//! recovered device, which still holds the blocks of the old log.

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
