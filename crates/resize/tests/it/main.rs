//! **Purpose.** The integration tests of this crate: `cargo test -p fourscore-resize --test it`.
//! Most of those of file systems at rest are in crate `cli` (`resize`, `tune`), those of crashes in
//! crate `proof`.

mod at_rest;
mod hosts;
mod mounted;
