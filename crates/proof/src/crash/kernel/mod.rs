//! **Purpose.** The crash harness for the kernel's own ext4: records workloads on it, recovers
//! every crash state of what it wrote with our library, the kernel and e2fsck, and compares the
//! results with the same model.
//!
//! **Not here.** Crash states, workloads, trees and the comparison: the modules of the parent do
//! that.
//!
//! | module | responsibility |
//! |---|---|
//! | `stage` | a recording device that the kernel has mounted |
//! | `workload` | derives the workload from a seed |
//! | [`session`] | a recorded history: explores, saves and shortens it |
//! | [`campaign`] | runs many seeds |
//!
//! # How a history is recorded
//! ```text
//!   calls -> the kernel's ext4 -> loop device -> file of a FUSE mount of ours -> RecordingDevice
//! ```
//! The file is the device (`fourscore_fuse::device_file`): each write of the loop device is a write
//! to it, each flush is an fsync and so a flush. A loop device has no FUA, so the kernel replaces
//! it by a write and a flush. Begin and return of each call are noted in the recording.
//!
//! # What is expected
//! The file system is mounted with `nodelalloc`, so that blocks and size change within the call,
//! with `noatime`, `noinit_itable`, and a commit interval of 300 s. There is one thread, so that no
//! commit happens in the middle of a call. What a crash leaves is judged like our own states, with
//! these differences, each of which Linux documents or has for good reason:
//!
//! - **fsync makes an inode durable.** It commits everything before the last change of that inode.
//!   A call that only replaced data, or set an attribute to the value that it has, has not changed
//!   it. One that filled a hole has. In a file on which fallocate was used it is not known whether
//!   a write filled a hole, and the write is taken not to have changed the inode (`holes`).
//! - **Replaced data is written late**, when its file is synced: until then a sector may be of any
//!   version since. With `data=journal` only the version counts.
//! - **The end of a file's last block** belongs to a block that is not new: data that was appended
//!   there may read as zeroes until the file is synced.
//! - **A flush covers all writes that were answered.** The recording device answers each write at
//!   once, so a recorded flush also covers writes that the kernel has submitted before it without
//!   waiting for them. A real device may leave those out: a kernel that flushes too early, while
//!   writes that it needs are in flight, is not found here.
//! - **Calls that a program cannot do in one step** are done differently, or not at all
//!   (`Call::by_host`).

pub mod campaign;
pub mod session;
mod stage;
#[cfg(test)]
mod tests;
mod workload;

pub use campaign::{KernelCampaign, KernelFinding, KernelTally};
pub use session::KernelSession;
pub use workload::of_seed;

/// What the machine must have for this.
pub const NEEDS: [fourscore_testkit::tools::Need; 4] = {
    use fourscore_testkit::tools::Need;
    [
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount,
        Need::Fuse,
    ]
};
