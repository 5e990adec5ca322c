//! **Purpose.** Data of files: read, written, truncated, made durable.
//!
//! | module | responsibility |
//! |---|---|
//! | `read`, `scatter` | reads data, lists extents and holes |
//! | `write`, `data`, `claim`, `finish` | a write in three steps: blocks are claimed, data is written, the extent is inserted |
//! | `truncate` | changes the size |
//! | `prepare` | what all changes of data begin with |
//! | `fallocate` | preallocates, punches, zeroes and moves ranges |
//! | `preallocation` | gives back the space that a file has ahead of need |
//! | `copy` | copies between files, writes of several buffers |
//! | `inline`, `inline_change` | data that lies inside the inode |
//! | `journaled`, `journal_data` | data that goes through the journal |
//! | `symlink` | targets of symbolic links |
//! | `sync` | fsync, fdatasync, sync |

pub(crate) mod claim;
pub(crate) mod copy;
pub(crate) mod data;
pub(crate) mod fallocate;
pub(crate) mod finish;
pub(crate) mod inline;
pub(crate) mod inline_change;
pub(crate) mod journal_data;
pub(crate) mod journaled;
pub(crate) mod preallocation;
pub(crate) mod prepare;
pub(crate) mod read;
pub(crate) mod scatter;
pub(crate) mod symlink;
pub(crate) mod sync;
pub(crate) mod truncate;
pub(crate) mod write;

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
