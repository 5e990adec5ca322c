//! **Purpose.** The public calls of [`Fs`](crate::Fs), by subject. Each call has one line, which
//! names the module that does the work.
//!
//! | module | calls |
//! |---|---|
//! | `whole` | opening, mounting, maintenance |
//! | `stats` | statistics |
//! | `names` | directories and names |
//! | `files` | file data |
//! | `inodes` | inodes and their attributes, permissions |
//! | `quota` | usage and limits |
//! | `xattrs` | extended attributes |
//! | `open_inode` | inodes that are kept open |
//! | `staged` | changes that become durable all together or not at all |
//! | `replace` | blocks of metadata that are replaced at once |

mod files;
mod inodes;
mod names;
pub(crate) mod open_inode;
mod quota;
pub(crate) mod replace;
pub(crate) mod staged;
pub(crate) mod stats;
mod whole;
mod xattrs;
