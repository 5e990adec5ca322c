//! **Purpose.** TODO-HEADER.

pub(crate) mod claim;
pub(crate) mod copy;
pub(crate) mod fallocate;
pub(crate) mod finish;
pub(crate) mod inline;
pub(crate) mod inline_change;
pub(crate) mod journaled;
pub(crate) mod read;
pub(crate) mod scatter;
pub(crate) mod symlink;
pub(crate) mod sync;
pub(crate) mod truncate;
pub(crate) mod write;
