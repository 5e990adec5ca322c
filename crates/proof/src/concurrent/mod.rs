//! **Purpose.** What calls see of a file system that other threads change at the same time.
//!
//! **Model.** A round makes a small file system of a drawn shape on a device full of poison. Some
//! threads do drawn calls on files and directories that they share, and note of each call when it
//! began, when it ended, and what it was answered. Then it is judged whether all answers together
//! can have been. What is drawn follows from a seed; how the threads meet does not.
//!
//! Each rule of the judge refuses only what is wrong whatever the order of the calls was: where it
//! cannot know it says nothing. What it holds on to:
//!
//! - an error that speaks of a broken file system or device never comes, nor is it noted;
//! - a name is a register, whose calls some order must explain; a listing sees each name that was
//!   there all the time, once, and none that never was;
//! - a cell of a file that is read holds what the last change before the read left, or what a
//!   change made that ran beside the read; never what was on the device before, nor what another
//!   file holds;
//! - sizes and attributes are registers as well;
//! - at the end the tree is a tree, the checker is content, and reading all again gives what some
//!   order of the calls leaves.
//!
//! | module | responsibility |
//! |---|---|
//! | `shape` | what a round is: the file system, the mount, the threads |
//! | `device` | the device: slow, and full of poison |
//! | `stamp` | content that tells where it comes from |
//! | `call` | calls and their answers |
//! | `target` | what a file system under test has to do |
//! | `in_process` | the library as a target |
//! | `mounted` | a mount as a target, and the kernel's ext4 as its mirror |
//! | `shared` | what the threads of a round share |
//! | `worker` | a thread of a round |
//! | `judge` | whether all answers together can have been |
//! | `tree` | whether the tree is a tree at the end |
//! | `round` | one round |
//! | [`campaign`] | rounds one after the other |
//! | `injected` | faults that are put back on purpose |
//!
//! **Not here.** Crashes ([`crash`](crate::crash)), one thread's results held against a model
//! (`model`), the interleavings of a protocol one by one (the shuttle models of crate `fourscore`).

mod call;
pub mod campaign;
mod device;
mod in_process;
mod injected;
mod judge;
mod mounted;
mod round;
mod shape;
mod shared;
mod stamp;
mod target;
mod tree;
mod worker;

pub use campaign::{Campaign, Tally};
pub use injected::InjectedFault;
pub use round::Through;
pub use shape::Theme;
