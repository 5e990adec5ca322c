//! Random operations: they are applied to a file system and to a model of one, which must agree;
//! e2fsck and the kernel check the resulting images.
//!
//! | module | responsibility |
//! |---|---|
//! | `histories` | short histories that shrink, and long ones |
//! | `configs` | the configurations that are writable, and those that are refused by name |
//! | `threads` | 64 threads, each in a tree of its own |
//! | `shared` | 64 threads in the same directories |
//! | `linear` | whether the results of several threads can have happened one after the other |
//! | `interchange` | file systems left dirty by us or the kernel, recovered by us, the kernel and
//! e2fsck |
//! | `images` | opening and mounting |
//! | `common` | what the tests of the library share |
//! | `tree`, `recovered` | trees as the kernel and as we see them |

mod configs;
mod histories;
mod images;
mod interchange;
mod linear;
mod shared;
mod threads;

pub(crate) use histories::history;
