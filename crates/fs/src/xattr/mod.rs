//! **Purpose.** TODO-HEADER.

pub(crate) mod acl;
pub(crate) mod ea_inode;
pub(crate) mod get;
pub(crate) mod set;
