//! **Purpose.** TODO-HEADER.

pub(crate) mod copy;
pub(crate) mod fallocate;
pub(crate) mod inline;
pub(crate) mod inline_change;
pub(crate) mod journaled;
pub(crate) mod read;
pub(crate) mod symlink;
pub(crate) mod sync;
pub(crate) mod write;
