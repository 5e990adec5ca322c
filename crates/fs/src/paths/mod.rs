//! **Purpose.** Files by path: calls in the manner of `std::fs`, over the calls that take inode
//! numbers.
//!
//! **Model.** A path is resolved, what it refers to is pinned, and the path is resolved again. If
//! it still refers to the same inode, the call by inode number follows. A pinned number is not
//! reused, so no call changes a file or a directory to which its path never referred, whatever
//! other threads do to names meanwhile.
//!
//! | module | responsibility |
//! |---|---|
//! | `as_path` | what may be given as a path |
//! | `place` | resolves a path, or its parent, safely beside threads that change names |
//! | `options` | how a file is opened |
//! | `file` | open files with a position: `std::io::{Read, Write, Seek}` |
//! | `open` | opens a file by its path |
//! | `content` | reads, writes and copies whole files |
//! | `names` | makes, renames and removes names |
//! | `remove` | removes a directory with everything in it |
//! | `walk` | iterates over everything below a directory |
//! | `view` | the public calls: [`Paths`](view::Paths), one line each |
//!
//! **Not here.** Permission checks: as everywhere in this crate, the callers make them.
//!
//! **References.** path_resolution(7); the documentation of `std::fs`.

pub(crate) mod as_path;
mod content;
pub(crate) mod file;
mod names;
mod open;
pub(crate) mod options;
mod place;
mod remove;
pub(crate) mod view;
pub(crate) mod walk;
