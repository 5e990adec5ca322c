//! The view of readers while other threads write: one test for each known fault of this kind.
//!
//! **Model.** A scenario is a function that fails with an observation that is impossible in a
//! correct file system. If possible, the order of the threads' steps is forced: a reader is stopped
//! at a read of the device ([`disk`]), or in the callback of a listing, while the writer continues.
//! Where a thread cannot be stopped between the two steps that matter, both threads run in a loop
//! for a time.
//!
//! A build with the feature `sabotage` also runs the scenarios with the injected fault, and expects
//! that they fail (the modules `put_back`). Therefore this is a binary of its own, the only
//! one that is built twice.
//!
//! | module | responsibility |
//! |---|---|
//! | `content` | reads and copies while the map changes |
//! | `names` | concurrent lookups, renames and removals |
//! | `tree` | renames of directories whose numbers are reused |
//! | `listings` | listings during splits and removals |
//! | `disk` | file systems in memory, and reads that are stopped |

/// Makes the module `put_back`: each of its tests runs a scenario on a mount with an injected
/// fault, and expects that it fails.
#[cfg(feature = "sabotage")]
macro_rules! put_back {
    ($($test:ident: $fault:ident, $options:expr, $scenario:expr;)*) => {
        mod put_back {
            use super::*;

            $(#[test]
            fn $test() {
                require!(Need::Program("mke2fs"));
                let scenario: fn(&MountOptions) -> Result<()> = $scenario;
                let fault = fourscore::Sabotage::$fault;
                let options = $options.sabotage(Some(fault));
                println!("{:#}", scenario(&options).unwrap_err());
            })*
        }
    };
}

mod content;
mod disk;
mod listings;
mod names;
mod tree;
mod values;
