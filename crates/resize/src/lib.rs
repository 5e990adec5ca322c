//! **Purpose.** Changes the size of an ext2, ext3 or ext4 file system: of one that is not mounted,
//! and makes one larger that is. Also changes the length of its group descriptors (`64bit`).
//!
//! ```no_run
//! use std::sync::Arc;
//! use fourscore_block::{DeviceOptions, open_path};
//! use fourscore_ondisk::BlockCount;
//! use fourscore_resize::Resizer;
//!
//! let device = open_path("disk.ext4".as_ref(), DeviceOptions::read_write())?;
//! let mut resizer = Resizer::open(Arc::new(device))?;
//! resizer.resize(BlockCount(1 << 20))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Not here.** The size of the image file or partition (the caller makes it fit), and what is
//! wrong with a damaged file system (`fourscore_check`).
//!
//! **Model.** A resize is a sequence of steps, each of which leaves a valid file system: see
//! `volume`. Groups are added by one step; they are taken away by a few, each after the steps that
//! move what is in them.
//!
//! | module | responsibility |
//! |---|---|
//! | `volume` | a file system at rest, its changed blocks, and how a step becomes durable |
//! | `target` | counts of the new size |
//! | `grow` | new groups, also of a mounted file system |
//! | `desc_table` | the blocks of descriptors in bitmaps |
//! | `resize_inode` | the blocks reserved for descriptors |
//! | `shrink` | moves what lies behind the new end, and cuts |
//! | `wide` | descriptors of 64 or of 32 bytes |
//! | `space` | free clusters in front of the new end |
//! | `inodes`, `map` | inodes in use, and their maps |
//! | `bitmap` | bits of bitmaps |
//! | `faults` | injected faults, by which tests are tested |
//! | `resizer` | the public calls |
//! | `error` | why a size is not changed |
//!
//! **Invariants.** Bytes of the image are not trusted: a damaged image ends in an error.
//!
//! **Locking.** None: one thread owns the file system, or has it from the mount
//! ([`fourscore::Growth`]).
#![forbid(unsafe_code)]

mod bitmap;
mod desc_table;
mod error;
mod faults;
mod grow;
mod inodes;
mod map;
mod resize_inode;
mod resizer;
mod shrink;
mod space;
mod target;
mod volume;
mod wide;

pub use error::{ResizeError, Result};
#[cfg(feature = "sabotage")]
pub use faults::Sabotage;
pub use grow::mounted::grow_mounted;
pub use resizer::Resizer;
pub use wide::Width;
