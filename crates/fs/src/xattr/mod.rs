//! **Purpose.** Extended attributes and access control lists.
//!
//! | module | responsibility |
//! |---|---|
//! | `get`, `format` | reads attributes |
//! | `change` | sets and removes attributes |
//! | `set` | plans changes of attributes in inodes and blocks |
//! | `ea_inode`, `gone_value` | values in inodes of their own |
//! | `acl` | access control lists |

pub(crate) mod acl;
pub(crate) mod change;
pub(crate) mod ea_inode;
pub(crate) mod format;
pub(crate) mod get;
pub(crate) mod gone_value;
pub(crate) mod set;
