//! `fourscore mount` over FUSE rings: all tests of `mount` again.

#[allow(
    clippy::duplicate_mod,
    reason = "the second module's tests use another transport"
)]
#[path = "mount.rs"]
mod mount;
