//! **Purpose.** All of the integration tests of building images, a module for each subject:
//! `cargo test -p fourscore-build --test it oci` runs the tests of one. Each module says in its
//! header what it shows.
//!
//! **Model.** They are one binary because linking takes long and each binary is large, and because
//! cargo runs binaries one after the other, so that the last test of each would leave cores idle.
//! Tests may run beside any other of the binary: none may change the state of its process (the
//! current directory, the environment, the umask, limits) or measure it.
//!
//! `large` is a binary of its own, because it measures the memory of its process.
//!
//! | module | what the tests share |
//! |---|---|
//! | `common` | listings of trees |
//! | `cases` | source trees, images of them, and comparison |

mod cases;
mod common;
mod features;
mod images;
mod oci;
mod sizes;
mod stream;
mod tar;
