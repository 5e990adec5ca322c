//! **Purpose.** From a tree of files to a finished image of ext2, ext3 or ext4, on all cores and
//! in one pass over the data.
//!
//! | module | responsibility |
//! |---|---|
//! | [`source`] | what the image is made of: tar archives and more, laid over each other |
//! | [`tree`] | what the image shall hold: the overlay of all sources, in memory |
//!
//! **Not here.** The geometry and the files that every file system has (crate `fs`, module
//! `format`), the command line.
#![forbid(unsafe_code)]

pub mod source;
pub mod tree;

pub use tree::{Content, Kind, Meta, NodeId, Tree, TreeError, Xattrs};
