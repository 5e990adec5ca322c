//! **Purpose.** Torture: everything at once on one image, by a process that kills itself at some
//! moment; what it leaves is recovered, checked and gone on with.
//!
//! **Model.** A supervisor makes an image and lets one process after the other live on it. A life
//! mounts the image with options of its own, again and again, and works on it with many threads:
//! exact ones with a tree and a model each, wild ones on names that all of them share, vault
//! keepers whose files are synced and known byte for byte, and a caretaker that freezes, trims,
//! fills, turns tunables and removes what earlier lives left. After each death the image is checked
//! as it lies, recovered (by us, by e2fsck or by the kernel in turn), checked by us and by
//! `e2fsck -fn`, and the vault is held against what its keepers noted before and after each sync.
//!
//! **Not here.** Lost and reordered writes: a process that dies loses nothing that it gave to the
//! host. That is what [`crash`](crate::crash) is for; here it is threads, time and space.
//!
//! | module | responsibility |
//! |---|---|
//! | `shape` | images and mount options, drawn from a seed |
//! | `vault` | files of which it is known what is durable, and the notes about them |
//! | `wild` | calls on shared names, whatever they answer |
//! | `care` | what is done to the file system as a whole, and removing |
//! | [`life`] | the process that is killed |
//! | [`supervisor`] | lives one after the other, and what is looked at in between |

mod care;
pub mod life;
mod shape;
pub mod supervisor;
mod vault;
mod wild;

pub use life::Life;
pub use supervisor::{Tally, Torture};
