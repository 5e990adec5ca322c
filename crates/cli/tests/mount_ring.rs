//! `fourscore mount` over FUSE rings: all tests of `mount` again.

#[path = "mount.rs"]
mod mount;
