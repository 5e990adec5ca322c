//! **Purpose.** The integration tests of the crate `fourscore`, a module for each subject:
//! `cargo test -p fourscore-proof --test it orphans` runs the tests of one. Each module says in its
//! header what it shows.
//!
//! They are tests of this crate because some compare the file system with the model: as tests of
//! `fourscore` they would have this crate, and all that it needs, compiled for every build of the
//! library with another feature.
//!
//! **Model.** They are one binary because linking takes long and each binary is large, and because
//! cargo runs binaries one after the other, so that the last test of each would leave cores idle.
//! Tests may run beside any other of the binary: none may change the state of its process (the
//! current directory, the environment, the umask, limits) or measure it.
//!
//! Binaries of their own, each for the reason in its header: `count*` and `shuttle` in `crates/fs`
//! need a build of the library with another feature, `readers_beside_writers`, also there, is built
//! a second time with faults injected, and `xattrs` changes the umask of its process.
//!
//! | module | what the tests share |
//! |---|---|
//! | `common` | opening file systems on images, and reading what is in them |
//! | `outcome` | results reduced to their errno |
//! | `tree` | the objects of a tree, as read through the kernel and through us |

mod allocation;
mod bigalloc;
mod block_maps;
mod common;
mod copies;
mod crashed;
mod creators;
mod damaged_xattrs;
mod data_modes;
mod device;
mod errno;
mod errors;
mod external_journal;
mod fallocate;
mod fast_commit;
mod fast_commits_elsewhere;
mod fast_commits_written;
mod flags;
mod guards;
mod inline;
mod many_values;
mod no_journal;
mod operations;
mod orphans;
mod outcome;
mod paths;
mod permissions;
mod profile;
mod quota;
mod random;
mod reused_space;
mod sealed;
mod shared_blocks;
mod shared_xattrs;
mod tree;
mod value_inodes;
mod write;
mod write_over;
