//! The view of readers while other threads write: one test for each known fault of this kind.
//!
//! **Model.** A scenario is a function that fails with an observation that is impossible in a
//! correct file system. If possible, the order of the threads' steps is forced: a reader is stopped
//! at a read of the device ([`disk`]), or in the callback of a listing, while the writer continues.
//! Where a thread cannot be stopped between the two steps that matter, both threads run in a loop
//! for a time.
//!
//! A build with the feature `sabotage` also runs the scenarios with the injected fault, and expects
//! that they fail (the modules `put_back`).
//!
//! | module | responsibility |
//! |---|---|
//! | `content` | reads and copies while the map changes |
//! | `names` | concurrent lookups, renames and removals |
//! | `tree` | renames of directories whose numbers are reused |
//! | `listings` | listings during splits and removals |
//! | `disk` | file systems in memory, and reads that are stopped |

mod content;
mod disk;
mod listings;
mod names;
mod tree;
mod values;
