//! **Purpose.** TODO-HEADER.

pub(crate) mod access_times;
pub(crate) mod alloc;
pub(crate) mod attributes;
pub(crate) mod cache;
pub(crate) mod cached;
pub(crate) mod cell;
pub(crate) mod consistent;
pub(crate) mod flags;
pub(crate) mod lazy_times;
pub(crate) mod orphan_list;
pub(crate) mod orphan_slots;
pub(crate) mod orphans;
pub(crate) mod permission;
pub(crate) mod sequence;
pub(crate) mod stat;
