//! What readers see while others write: one test for each fault of this kind that there was.
//!
//! **Model.** A scenario is a function that fails with what a reader saw that cannot have been.
//! Where it can be, the order of the threads' steps is forced: a reader is stopped at a read of the
//! device ([`disk`]), or in the callback of a listing, while the writer goes on. Where nothing
//! stops a thread between the two steps that matter, both run in a loop for a time.
//!
//! A build with the feature `sabotage` also runs the scenarios with the fault put back, and expects
//! that they fail (the modules `put_back`).
//!
//! | module | responsibility |
//! |---|---|
//! | `content` | reads and copies beside changes of the map |
//! | `names` | looking up, renaming and removing beside each other |
//! | `tree` | renamings of directories whose numbers are used again |
//! | `listings` | listings beside splits and removals |
//! | `disk` | file systems in memory, and reads that are stopped |

mod content;
mod disk;
mod listings;
mod names;
mod tree;
