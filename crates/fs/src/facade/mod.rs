//! **Purpose.** The public calls of [`Fs`](crate::Fs), by subject: one line each, which names the
//! module that does the work.
//!
//! | module | calls |
//! |---|---|
//! | `whole` | opening, mounting, statistics, maintenance |
//! | `names` | directories and names |
//! | `files` | contents of files |
//! | `inodes` | inodes and their attributes, permissions |
//! | `xattrs` | extended attributes |
//! | `open_inode` | inodes that are held open |

mod files;
mod inodes;
mod names;
pub(crate) mod open_inode;
mod whole;
mod xattrs;
