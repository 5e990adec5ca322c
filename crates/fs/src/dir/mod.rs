//! **Purpose.** TODO-HEADER.

pub(crate) mod blocks;
pub(crate) mod create;
pub(crate) mod entries;
pub(crate) mod exchange;
pub(crate) mod find;
pub(crate) mod index;
pub(crate) mod leaf;
pub(crate) mod listing;
pub(crate) mod name_cache;
pub(crate) mod names;
pub(crate) mod path;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod touch;
