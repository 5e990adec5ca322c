//! **Purpose.** The torture test: every kind of operation at once on one image, by a process that
//! kills itself at a random moment; the image is recovered, checked and used again.
//!
//! **Model.** A supervisor makes an image and runs one process after the other on it. Such a *life*
//! mounts the image again and again, with random options, and works on it with many threads: exact
//! threads with a tree and a model each, wild threads on names that all of them share, keepers of
//! the *vault*, whose files are synced and known byte for byte, and a caretaker that freezes,
//! trims, fills, sets tunables and removes what earlier lives left. After each kill the image is
//! checked as it is, recovered (by us, by e2fsck or by the kernel), checked by us and by `e2fsck
//! -fn`, and the vault is compared with the notes that its keepers wrote before and after each
//! sync.
//!
//! **Not here.** Lost and reordered writes: a process that is killed loses no write that it has
//! passed to the host. [`crash`](crate::crash) covers those; this test covers threads, time and
//! space.
//!
//! | module | responsibility |
//! |---|---|
//! | `shape` | images and mount options, drawn from a seed |
//! | `vault` | files whose durable state is known, and the notes about them |
//! | `wild` | calls on shared names, with any result |
//! | `care` | operations on the file system as a whole, and removal |
//! | [`life`] | the process that is killed |
//! | [`supervisor`] | runs lives one after the other, and the checks in between |

mod care;
pub mod life;
mod shape;
pub mod supervisor;
mod vault;
mod wild;

pub use life::Life;
pub use supervisor::{Tally, Torture};
