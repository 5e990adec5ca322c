//! **Purpose.** Directories: finds, lists, makes, moves and removes names.
//!
//! | module | responsibility |
//! |---|---|
//! | `find` | finds a name: in the name cache, in the index, in blocks |
//! | `path` | walks a path to an inode |
//! | `listing` | lists a directory, also while it changes |
//! | `blocks` | visits the blocks of a directory |
//! | `structure` | the format of a directory and the checks of its blocks |
//! | `index` | finds a name through the hash index |
//! | `leaf_search` | looks for a name in one leaf block |
//! | `names`, `wanted` | which names are equal, and how encrypted ones are presented |
//! | `name_cache`, `departure` | the name cache, and names that enter and leave it |
//! | `create`, `new_inode` | new inodes and their names, links |
//! | `remove`, `lost_name` | unlink, rmdir, and the end of an inode without a name |
//! | `rename`, `exchange` | rename |
//! | `changed`, `entries`, `grow`, `inline_names` | plan changes of the entries of a directory |
//! | `leaf`, `touch` | add and remove names in one leaf while other leaves change |

pub(crate) mod blocks;
pub(crate) mod changed;
pub(crate) mod create;
pub(crate) mod departure;
pub(crate) mod entries;
pub(crate) mod exchange;
pub(crate) mod find;
pub(crate) mod grow;
pub(crate) mod index;
pub(crate) mod inline_names;
pub(crate) mod leaf;
pub(crate) mod leaf_search;
pub(crate) mod listing;
pub(crate) mod lost_name;
pub(crate) mod name_cache;
pub(crate) mod names;
pub(crate) mod new_inode;
pub(crate) mod path;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod structure;
pub(crate) mod touch;
pub(crate) mod wanted;
