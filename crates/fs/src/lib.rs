//! ext4 in user space, made for many cores.
#![forbid(unsafe_code)]
