//! `fourscore mount` over rings: every test of `mount` once more.

#[path = "mount.rs"]
mod mount;
