//! **Purpose.** All of the command's integration tests, a module for each subject:
//! `cargo test -p fourscore-cli --test it cp` runs the tests of one. Each module says in its
//! header what it shows.
//!
//! **Model.** They are one binary because linking takes long and each binary is large, and because
//! cargo runs binaries one after the other, so that the last test of each would leave cores idle.
//! Tests may run beside any other of the binary: none may change the state of its process (the
//! current directory, the environment, the umask, limits) or measure it.
//!
//! `count` is a binary of its own, because it needs a build of the command with another feature.
//!
//! | module | what the tests share |
//! |---|---|
//! | `common` | runs of the command |
//! | `mounted` | mounts by the command |
//! | `debugfs` | the command under the names of e2fsprogs (also tests) |
//! | `place` | a folder with a source tree and images |
//! | `oracle` | walks of images and of the kernel's mounts |
//! | `workload` | programs that run on a mount and may be killed |

mod bench;
mod build;
mod build_failures;
mod build_inverse;
mod build_outputs;
mod check;
mod common;
mod conform;
mod conform_databases;
mod conform_posix;
mod cp;
mod cp_as_gnu;
mod debugfs;
mod documents;
mod dumpe2fs;
mod edit;
mod external_journal;
mod fakeroot;
mod formats;
mod hostile;
mod hosts;
mod lab;
mod lab_report;
mod lab_scratch;
mod manifest;
mod manual;
mod matrix;
mod mkfs;
mod mount;
mod mount_end;
mod mount_fuzz;
mod mount_live;
mod mount_names;
mod mount_options;
mod mount_ring;
mod mount_sandbox;
mod mount_twin;
mod mounted;
mod oracle;
mod oracles;
mod partitions;
mod place;
mod quota;
mod reading;
mod resize;
mod resize_device;
mod resize_mounted;
mod stats;
mod superblock_fields;
mod trees;
mod tune;
mod tune_features;
mod usage;
mod verbosity;
mod workload;
mod xattr_report;
