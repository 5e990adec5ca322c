//! **Purpose.** TODO-HEADER.

pub(crate) mod acl;
pub(crate) mod change;
pub(crate) mod ea_inode;
pub(crate) mod get;
pub(crate) mod gone_value;
pub(crate) mod set;
