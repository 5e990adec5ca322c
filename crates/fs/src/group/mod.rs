//! **Purpose.** Block groups: descriptors, bitmaps and their changes.
//!
//! | module | responsibility |
//! |---|---|
//! | `descriptor` | reads descriptors and bitmaps |
//! | `table` | the state of the groups of a mounted file system |
//! | `change` | loads that state and plans changes of bitmaps |
//! | `prefetch` | reads bitmaps ahead |
//! | `load_all` | loads all bitmaps after a mount |

pub(crate) mod change;
pub(crate) mod descriptor;
pub(crate) mod load_all;
pub(crate) mod prefetch;
pub(crate) mod table;
