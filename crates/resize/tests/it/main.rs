//! **Purpose.** The integration tests of this crate: `cargo test -p fourscore-resize --test it`.
//! Those of file systems at rest are in crate `cli` (`resize`), those of crashes in crate `proof`.

mod mounted;
