//! **Purpose.** Extended attributes and access control lists.
//!
//! | module | responsibility |
//! |---|---|
//! | `get`, `format` | reads attributes |
//! | `change` | sets and removes attributes |
//! | `set` | plans changes of attributes, in the inode and in a draft of its block |
//! | `settle` | plans where a draft goes: into the inode's block, an equal one or a new one |
//! | `share` | the cache of blocks and values to share |
//! | `held`, `shared` | the locks of blocks and values, and a plan's notes for the cache |
//! | `offer` | offers what readers load to the cache |
//! | `ea_inode`, `gone_value` | values in inodes of their own |
//! | `acl` | access control lists |

pub(crate) mod acl;
pub(crate) mod change;
pub(crate) mod ea_inode;
pub(crate) mod format;
pub(crate) mod get;
pub(crate) mod gone_value;
pub(crate) mod held;
pub(crate) mod offer;
pub(crate) mod set;
pub(crate) mod settle;
pub(crate) mod share;
pub(crate) mod shared;
