//! **Purpose.** All of the checker's integration tests, a module for each subject:
//! `cargo test -p fourscore-check --test it agreement` runs the tests of one. Each module
//! says in its header what it shows.
//!
//! **Model.** They are one binary because linking takes long and each binary is large, and because
//! cargo runs binaries one after the other, so that the last test of each would leave cores idle.
//! Tests may run beside any other of the binary: none may change the state of its process (the
//! current directory, the environment, the umask, limits) or measure it.
//!
//! | module | what the tests share |
//! |---|---|
//! | `common` | reports of images |

mod agreement;
mod clean;
mod common;
mod fast_commits;
mod invariants;
mod portable;
mod recovered;
mod repair;
