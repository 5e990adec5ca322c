//! **Purpose.** Inodes: in memory, on the orphan list, and their attributes.
//!
//! | module | responsibility |
//! |---|---|
//! | `cached` | a decoded inode |
//! | `cell` | an inode in memory: its version and its lock |
//! | `last_change` | the transaction and the time of its last change |
//! | `cache` | finds, loads and pins inodes |
//! | `sequence`, `reuse`, `consistent` | reads that run in parallel with writers |
//! | `stat` | stat |
//! | `alloc`, `free_inodes` | allocates inode numbers |
//! | `end`, `forget` | deletes inodes: on disk, then in memory |
//! | `orphans`, `orphan_list`, `orphan_plan`, `orphan_slots` | the orphan list |
//! | `attributes`, `access_times`, `flags` | changes of attributes |
//! | `lazy_times`, `lazy_list` | times that are written later (`lazytime`) |
//! | `caller`, `permission`, `immutable` | permissions, and operations forbidden to all callers |

pub(crate) mod access_times;
pub(crate) mod alloc;
pub(crate) mod attributes;
pub(crate) mod cache;
pub(crate) mod cached;
pub(crate) mod caller;
pub(crate) mod cell;
pub(crate) mod consistent;
pub(crate) mod end;
pub(crate) mod flags;
pub(crate) mod forget;
pub(crate) mod free_inodes;
pub(crate) mod immutable;
pub(crate) mod last_change;
pub(crate) mod lazy_list;
pub(crate) mod lazy_times;
pub(crate) mod orphan_list;
pub(crate) mod orphan_plan;
pub(crate) mod orphan_slots;
pub(crate) mod orphans;
pub(crate) mod permission;
pub(crate) mod reuse;
pub(crate) mod sequence;
pub(crate) mod stat;
