//! **Purpose.** TODO-HEADER.

pub(crate) mod errors;
pub(crate) mod fast_commit;
pub(crate) mod fast_commit_replay;
pub(crate) mod freeze;
pub(crate) mod mark;
pub(crate) mod mmp;
pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod read_write;
pub(crate) mod recovery;
pub(crate) mod replay;
pub(crate) mod state;
pub(crate) mod statfs;
pub(crate) mod superblock;
pub(crate) mod trim;
