//! **Purpose.** Where everything goes: inode numbers, blocks of directories, attributes and files.
//!
//! | module | responsibility |
//! |---|---|
//! | `facts` | what the superblock says about forms |
//! | `numbers` | the order of all objects, and inode numbers |
//! | `directory` | directories and their indexes in final form |
//! | `xattr` | attributes inside inodes and in shared blocks |
//! | `values` | large values of attributes, in inodes of their own |
//! | `content` | which blocks of a file hold data |
//! | `pool` | handing out free blocks |
//! | `draft` | contents that lie in the image before all of that is known |
//! | `place` | the blocks of every object |
//! | `quota` | what everybody uses |
//! | `mapping` | extent trees and block maps |
//! | `size` | how large the file system must be |
//!
//! **Not here.** Geometry and hidden files (`fourscore_mkfs`), writing (`write`).
//!
//! **Model.** Nothing is changed after it is decided, and everything but the places of contents
//! that can be read only once is decided before the first byte is written: numbers, then forms,
//! then how many blocks are needed, then the size, then the places. All of it follows from the
//! sorted tree, the options and the order of such contents alone, so it does not depend on threads.

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
pub(crate) use draft::DraftSpace;
pub(crate) use facts::EXTRA_ISIZE;
pub(crate) use mapping::{IBlock, Run};
pub(crate) use numbers::Numbers;
pub(crate) use place::{Forms, Placed, SharedBlock};
pub(crate) use size::{Settled, image_seconds, settle};
pub use xattr::XattrProblem;
