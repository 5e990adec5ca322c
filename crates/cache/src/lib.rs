//! **Purpose.** A cache for metadata (blocks, inodes, names) whose hits write no shared memory:
//! [`ClockCache`].
//!
//! **Not here.** What a value is, how it is read from a device, and whether it is dirty: users
//! supply a loader and an eviction hook.
//!
//! **Model.** A hash table with a fixed number of buckets. A bucket is an immutable short list of
//! entries `{ key, value, weight, referenced }` in an
//! [`EpochCell`](fourscore_sync::epoch::EpochCell). A reader pins an epoch, loads the bucket,
//! compares keys and borrows the value from its guard. A writer makes a changed copy of the bucket
//! and exchanges it. An insertion holds the lock of the shard that owns the bucket; a removal does
//! not. Each shard owns a run of buckets, an equal share of the byte budget, and a clock hand. Each
//! key has a number, and eight neighbouring numbers use the eight buckets of one cache line.
//!
//! ```text
//! hash(number / 8): | shard bits | rest of the line's index | unused |
//! buckets:   [ shard 0: b0 .. b7 | b8 .. | shard 1: .. | .. ]      each -> { first entry, others }
//! ```
//!
//! **Invariants.**
//! - A key has at most one entry, in the bucket of its hash.
//! - The weight of a shard is at least that of its entries. It is at most the shard's share of the
//!   budget, unless entries refuse eviction or a single entry weighs more.
//! - At most one loader runs for a key at a time, and its value is not inserted if the key was
//!   removed meanwhile. While a key has an entry, no loader can insert a value for it.
//!
//! **Locking.** A hit takes no lock and writes nothing but the entry's `referenced` flag, and that
//! only when it is clear: once per sweep of the clock hand, whatever the number of cores that hit.
//! A removal writes the bucket, whose cache line is used only by neighbouring numbers: so removals
//! of inodes by different cores do not meet. A shard's lock is a leaf: under it run only the
//! eviction hook and memory allocation, never a loader. The flag is the only relaxed atomic here,
//! and no argument depends on its order: a flag that is lost or late costs one eviction too early.
//! All other state is published through the epoch cells and the shard locks, so the shuttle tests,
//! which know sequential consistency only, miss nothing that a loom model would find.
//!
//! **Cost.** On one core of a server a hit takes about 7 ns with a guard of its own and 2.5 ns
//! under a guard held already; counting it adds 1.5 to 3 ns, and a reference to the value
//! ([`ClockCache::get_arc`]) 5 ns. An insertion that evicts takes about 200 ns.
//! `cargo run --release -p fourscore-lab --example cache_hit_cost` prints the figures.
//!
//! | module | responsibility |
//! |---|---|
//! | `table` | the cache itself: lookup, insertion, removal, loading |
//! | `bucket` | immutable lists of entries |
//! | `clock` | a shard's weight and its eviction |
//! | `load` | at most one loader for each key |
//! | `hash` | the keyed hash |
#![forbid(unsafe_code)]

mod bucket;
mod clock;
mod hash;
mod load;
mod table;

pub use hash::{Folder, Seed};
pub use table::{ClockCache, Config, HitCounting, Stats};
