//! **Purpose.** The layout of the image: inode numbers, formats of directories and attributes, and
//! the blocks of everything.
//!
//! | module | responsibility |
//! |---|---|
//! | `facts` | parameters of the file system that the layout depends on |
//! | `numbers` | the order of all objects, and inode numbers |
//! | `directory` | decides the format of directories and encodes them |
//! | `xattr` | extended attributes in inodes and in shared blocks |
//! | `values` | large attribute values, in inodes of their own |
//! | `content` | which blocks of a file have data |
//! | `pool` | allocates free blocks |
//! | `draft` | data that is written to the image before the layout is known |
//! | `place` | allocates the blocks of every object |
//! | `quota` | usage of each user, group and project |
//! | `mapping` | extent trees and block maps |
//! | `size` | determines the size of the file system |
//!
//! **Not here.** Geometry and hidden files (`fourscore_mkfs`), writing (`write`).
//!
//! **Model.** The layout is complete before the image is written, except for the blocks of streamed
//! data. It is computed in this order: inode numbers, formats, the number of blocks needed, the
//! size, the allocation. It depends only on the sorted tree, the options and the order of streamed
//! data, and not on the number of threads.

mod content;
mod directory;
mod draft;
mod facts;
mod mapping;
mod numbers;
mod place;
mod pool;
mod quota;
mod size;
mod values;
mod xattr;

pub(crate) use directory::Shape;
pub(crate) use draft::{DraftFile, DraftSpace};
pub(crate) use facts::EXTRA_ISIZE;
pub(crate) use mapping::{IBlock, Run};
pub(crate) use numbers::Numbers;
pub(crate) use place::{Forms, Placed, SharedBlock};
pub(crate) use size::{ImageLayout, compute_layout, image_seconds};
pub use xattr::XattrProblem;
