//! **Purpose.** Transactions: an operation is planned, then applied in one handle.
//!
//! | module | responsibility |
//! |---|---|
//! | `plan`, `memory` | the changes of an operation before they are applied |
//! | `apply`, `refused` | applies them in one handle and publishes them in order |
//! | `slot` | the bytes of an inode in its table |
//! | `order`, `striped` | the order of locks, and lock striping |
//! | `seal` | checksums and group descriptors, computed once per commit |
//! | `grace` | when readers of freed blocks have ended (grace period) |
//! | `fast_commit` | fast commits: changes as records of inodes, ranges and names |
//! | `space` | waits for space that commits and readers release |
//! | `faults` | injected faults, for tests |

pub(crate) mod apply;
pub(crate) mod fast_commit;
pub(crate) mod faults;
pub(crate) mod grace;
pub(crate) mod memory;
pub(crate) mod order;
pub(crate) mod plan;
pub(crate) mod refused;
pub(crate) mod seal;
pub(crate) mod slot;
pub(crate) mod space;
pub(crate) mod striped;
