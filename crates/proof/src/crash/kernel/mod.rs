//! **Purpose.** The harness serves others: workloads done to the kernel's own ext4, every crash
//! state of what it wrote, recovered by us, by the kernel and by e2fsck, and held against the same
//! model.
//!
//! **Not here.** The states, the workloads, the trees and how they are judged: those of the modules
//! beside this one.
//!
//! | module | responsibility |
//! |---|---|
//! | `stage` | a recording device that the kernel has mounted |
//! | `workload` | what a seed decides |
//! | [`session`] | a recorded history: exploring it, saving it, making it shorter |
//! | [`campaign`] | many seeds |
//!
//! # How it is recorded
//! ```text
//!   calls -> the kernel's ext4 -> loop device -> file of a FUSE mount of ours -> RecordingDevice
//! ```
//! The file is one device (`fourscore_fuse::device_file`): each write of the loop device is a write
//! of it, each flush is an fsync and so a flush. A loop device has no FUA, so the kernel makes a
//! write and a flush of each such write. Begin and return of each call are noted in between.
//!
//! # What is promised
//! The file system is mounted with `nodelalloc`, so that blocks and size are those of the call,
//! with `noatime`, `noinit_itable`, and one commit in 300 s unless somebody asks for one. There is
//! one thread, so nothing is committed in the middle of a call. Then what a crash leaves is judged
//! as ours is, with these differences, each of which Linux documents or has for good reason:
//!
//! - **fsync vouches for an inode.** It commits everything before the last change of that inode. A
//!   call that only replaced content, or set what was set, has not changed it. One that filled a
//!   hole has; whether one did in a file that fallocate was used on is not known, and so it is not
//!   held to have (`holes`).
//! - **Content that is replaced is written late**, when its file is synced: until then a sector may
//!   be of any version since. With journaled content the version alone counts.
//! - **The end of a file's last block** belongs to the block, which is not new: what was appended
//!   there may read as zeroes until the file is synced.
//! - **A flush covers what was answered.** The recording device answers each write at once, so a
//!   recorded flush also covers writes that the kernel has begun before it and not waited for. A
//!   real device may leave those out: a kernel that flushes too early, while writes it needs are
//!   still on their way, is not found here.
//! - **What a program cannot do in one step** is done otherwise, or not at all (`Call::by_host`).

pub mod campaign;
pub mod session;
mod stage;
#[cfg(test)]
mod tests;
mod workload;

pub use campaign::{KernelCampaign, KernelFinding, KernelTally};
pub use session::KernelSession;
pub use workload::of_seed;

/// What nothing of this can be done without.
pub const NEEDS: [fourscore_testkit::tools::Need; 4] = {
    use fourscore_testkit::tools::Need;
    [
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::KernelMount,
        Need::Fuse,
    ]
};
