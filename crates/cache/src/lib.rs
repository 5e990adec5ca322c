//! A sharded cache for metadata whose hits write no shared memory.
#![forbid(unsafe_code)]
