//! **Purpose.** Maps of files: from logical to physical blocks.
//!
//! | module | responsibility |
//! |---|---|
//! | `mapping` | the result of a lookup |
//! | `run` | runs of adjacent blocks |
//! | `lookup` | looks a block up |
//! | `form` | extent tree or pointers |
//! | `update` | changes a map of either form |
//! | `extents`, `cut` | changes of extent trees |
//! | `in_place` | marks unwritten blocks as written where no space is left for a node |
//! | `pointers` | changes of direct and indirect pointers |
//! | `clusters`, `release`, `account` | clusters that blocks of a file share |

pub(crate) mod account;
pub(crate) mod clusters;
pub(crate) mod cut;
pub(crate) mod extents;
pub(crate) mod form;
pub(crate) mod in_place;
pub(crate) mod lookup;
pub(crate) mod mapping;
pub(crate) mod pointers;
pub(crate) mod release;
pub(crate) mod run;
pub(crate) mod update;
