//! **Purpose.** Opening, mounting, recovering and unmounting a file system.
//!
//! | module | responsibility |
//! |---|---|
//! | `open`, `open_options` | opens for reading |
//! | `read_write`, `options`, `modes` | begins and ends a read-write mount |
//! | `state` | the state of a read-write mount |
//! | `replay`, `damage` | replays the journal in memory |
//! | `recovery` | finishes at mount what a crash interrupted |
//! | `fast_commit`, `before_fast_commits` | the overlay of the changes of fast commits |
//! | `fast_commit_replay`, `fast_commit_parts` | writes the changes of fast commits |
//! | `one_transaction` | writes changes that were made in memory in one transaction |
//! | `mark`, `superblock` | marks a mount in the superblock, and changes its fields in plans |
//! | `errors`, `error_policy` | handles errors: notes them, stops writing |
//! | `freeze`, `freezer` | freezes the file system |
//! | `mmp` | keeps other hosts away |
//! | `trim`, `discards` | discards free blocks on the device |
//! | `statfs` | how full the file system is |
//! | `metadata_reserve` | clusters that are kept for nodes of extent trees |
//! | `stripe` | the stripe of the array below |
//! | `tune` | tunables by name |
//! | `clock` | the time of stamps |
//! | `host` | what differs between operating systems |

mod before_fast_commits;
pub(crate) mod clock;
pub(crate) mod damage;
pub(crate) mod discards;
pub(crate) mod error_policy;
pub(crate) mod errors;
pub(crate) mod fast_commit;
pub(crate) mod fast_commit_parts;
pub(crate) mod fast_commit_replay;
pub(crate) mod freeze;
pub(crate) mod freezer;
mod host;
pub(crate) mod mark;
pub(crate) mod metadata_reserve;
pub(crate) mod mmp;
pub(crate) mod modes;
pub(crate) mod one_transaction;
pub(crate) mod open;
pub(crate) mod open_options;
pub(crate) mod options;
pub(crate) mod read_write;
pub(crate) mod recovery;
pub(crate) mod replay;
pub(crate) mod state;
pub(crate) mod statfs;
mod stripe;
pub(crate) mod superblock;
pub(crate) mod trim;
pub(crate) mod tune;
