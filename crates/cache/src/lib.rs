//! **Purpose.** A cache for metadata (blocks, inodes, names) whose hits write no shared memory:
//! [`ClockCache`].
//!
//! **Not here.** What a value is, how it is read from a device, whether it is dirty: the users
//! say so through a loader and a hook.
//!
//! **Model.** A table of buckets fixed in number. A bucket is an immutable short list of entries
//! `{ key, value, weight, referenced }` in an [`EpochCell`](fourscore_sync::epoch::EpochCell).
//! A reader pins, loads the bucket, compares keys and borrows the value from its guard. A writer
//! copies the bucket with its change and exchanges it; who puts something in holds the lock of the
//! shard the bucket belongs to, who takes something out does not.
//! Each shard owns a run of buckets, an equal share of the byte budget, and a clock hand. Keys have
//! numbers; eight neighbours have the eight buckets of a cache line.
//!
//! ```text
//! hash(number / 8): | shard bits | rest of the line's index | unused |
//! buckets:   [ shard 0: b0 .. b7 | b8 .. | shard 1: .. | .. ]      each -> { first entry, others }
//! ```
//!
//! **Invariants.**
//! - A key has at most one entry, in the bucket its hash says.
//! - A shard believes that its entries weigh as much as they do, or more; what it believes is at
//!   most its share of the budget, unless entries refuse eviction or one entry alone weighs more.
//! - At most one loader runs for a key at a time, and what it loads is not put in if the key was
//!   removed meanwhile. While a key has an entry, no loader of it can put anything in.
//!
//! **Locking.** A hit takes no lock and writes nothing but the entry's `referenced` flag, and that
//! only when it is clear: once per sweep of the clock hand, however many cores hit. To take a value
//! out writes the bucket, a line that only neighbours share: so inodes of different cores come and
//! go apart. A shard's lock is a leaf: under it run only the eviction hook and memory allocation,
//! never a loader. The flag is the only relaxed atomic here, and no argument rests on its order:
//! a flag that is lost or late costs one eviction too early. Everything else is published through
//! the epoch cells and the shard locks, so the shuttle tests, which know sequential consistency
//! only, miss nothing a loom model would find.
//!
//! **Cost.** On one core of a server a hit takes about 7 ns with a guard of its own and 2.5 ns
//! under a guard held already; counting it adds 1.5 to 3 ns, a share in the value
//! ([`ClockCache::get_arc`]) 5 ns. An insertion that evicts takes some 200 ns.
//! `cargo run --release -p fourscore-lab --example cache_hit_cost` prints the figures.
//!
//! | module | responsibility |
//! |---|---|
//! | `table` | the cache itself: lookup, insertion, removal, loading |
//! | `bucket` | immutable lists of entries |
//! | `clock` | a shard's books and its eviction |
//! | `flight` | one loader for each key |
//! | `hash` | the seeded hash |
#![forbid(unsafe_code)]

mod bucket;
mod clock;
mod flight;
mod hash;
mod table;

pub use hash::Seed;
pub use table::{ClockCache, Config, HitCounting, Stats};
