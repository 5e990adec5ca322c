//! **Purpose.** The concurrent oracle: checks the results of calls while other threads change the
//! same files and directories.
//!
//! **Model.** A round makes a small file system of a random shape on a device full of poison. Some
//! threads run random calls on shared files and directories, and record the begin, the end and the
//! result of each call. The judge then decides whether all results together are possible. The calls
//! follow from a seed; the timing of the threads does not.
//!
//! Each rule of the judge rejects only results that are wrong in every order of the calls. The
//! rules:
//!
//! - no call fails with an error of a corrupted file system or a failed device, and the superblock
//!   counts no error;
//! - a name is a register, whose calls must be linearizable; a listing has each name that existed
//!   all the time exactly once, and none that never existed;
//! - a cell of a file that is read holds the data of the last change before the read, or of a
//!   change that overlaps the read, but neither stale data of the device nor data of another file;
//! - sizes and extended attributes are registers as well;
//! - the file system only grows, and what a growth adds is seen at once, with its free space;
//! - at the end the directories form a tree, the checker finds nothing, and reading everything
//!   again gives a state that some order of the calls leaves.
//!
//! | module | responsibility |
//! |---|---|
//! | `shape` | what a round is: the file system, the mount, the threads |
//! | `one_attribute` | what files of the theme of that name have, and have left |
//! | `theme` | what the threads of a round mostly do |
//! | `device` | the device: with latency, and full of poison |
//! | `stamp` | data that names the write it comes from |
//! | `call` | calls and their results |
//! | `target` | the interface of a file system under test |
//! | `in_process` | the library as a target |
//! | `mounted` | a mount as a target, compared with the kernel's ext4 at the end |
//! | `shared` | state that the threads of a round share |
//! | `worker` | a thread of a round |
//! | `judge` | decides whether all results together are possible |
//! | `tree` | checks that the directories form a tree at the end |
//! | `round` | runs one round |
//! | [`campaign`] | runs rounds one after the other |
//! | `injected` | known faults that are injected to test the oracle |
//!
//! **Not here.** Crashes ([`crash`](crate::crash)), single-threaded comparison with a model
//! (`model`), the interleavings of single protocols (the shuttle models of crate `fourscore`).

mod call;
pub mod campaign;
mod device;
mod in_process;
mod injected;
mod judge;
mod mounted;
mod one_attribute;
mod round;
mod shape;
mod shared;
mod stamp;
mod target;
mod theme;
mod tree;
mod worker;

pub use campaign::{Campaign, Tally};
pub use injected::InjectedFault;
pub use round::Through;
pub use theme::Theme;
