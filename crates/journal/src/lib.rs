//! To be described.
#![forbid(unsafe_code)]
