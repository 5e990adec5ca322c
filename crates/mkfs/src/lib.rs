//! **Purpose.** Making file systems: everything mke2fs does for ext2, ext3 and ext4.
//!
//! ```no_run
//! use fourscore_block::{DeviceOptions, create_image};
//! use fourscore_mkfs::{OldContent, Options, Plan, Profile};
//!
//! let device = create_image("new.ext4".as_ref(), 1 << 30, DeviceOptions::read_write())?;
//! let options = Options {
//!     label: b"data".to_vec(),
//!     old_content: OldContent::AllZero,
//!     ..Options::default()
//! };
//! let plan = Plan::new(&options, &Profile::system()?, 1 << 30)?;
//! plan.write(&device)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Not here.** Filling the file system; looking for bad blocks; undo files.
//!
//! **Model.** [`Options`] and [`Profile`] become a [`Plan`]: a pure computation that places every
//! block of metadata where mke2fs 1.47 places it, and finds everything that could be wrong before
//! anything is written. Only [`Plan::write`] touches the device. With UUID, hash seed and time
//! given, the same options make the same bytes.
//!
//! | module | responsibility |
//! |---|---|
//! | `options` | what a user may ask |
//! | `text` | the same as text, in mke2fs's spelling |
//! | `profile` | mke2fs.conf |
//! | `resolve` | wishes, profile and size brought together: parameters that go together |
//! | `sizes` | groups, inodes, reserved blocks |
//! | `superblock` | the superblock, as far as it does not depend on places |
//! | `space` | which blocks are taken |
//! | `tables` | where bitmaps and inode tables go |
//! | `files` | root, lost+found, resize inode, journal, orphan file |
//! | `journal_device` | journals on a device of their own |
//! | `mapping` | extent trees and block maps |
//! | `quota` | quota files |
//! | `plan` | all of it together |
//! | `fill` | file systems that a builder fills while they are made |
//! | `write` | to the device; below it `groups`: descriptors and bitmaps |
//! | `report` | what mke2fs says about it |
//! | `signature` | what a device holds already |
//! | `error` | why no file system is made |
//!
//! Differences from mke2fs that remain on purpose: `s_kbytes_written` counts what is written here;
//! the MMP block carries the time that was asked for; an image file made by the caller counts as
//! zeroed, so its inode tables are marked as such; a superblock copy is followed by zeroes to the
//! end of its block. What mke2fs rounds, cuts off, warns of or forgets is refused instead: sizes of
//! clusters that are no power of 2, labels that are too long, unknown usage types, stripes that are
//! no multiple of the stride, quota types and orphan files without their features. A journal on a
//! device of its own serves one file system, as the kernel wants it.
//!
//! **Crash safety.** See `write`.
//!
//! **References.** mke2fs(8), mke2fs.conf(5); the sources of e2fsprogs 1.47.0 for the rules of
//! placing.
#![forbid(unsafe_code)]

mod error;
mod files;
mod fill;
mod journal_device;
mod mapping;
mod options;
mod plan;
mod profile;
mod quota;
mod report;
mod resolve;
mod signature;
mod sizes;
mod space;
mod superblock;
mod tables;
mod text;
mod write;

pub use error::{FormatError, FormatResult};
pub use fill::{ReservedInodes, Skeleton, Usage};
pub use journal_device::{ExternalJournal, JournalDevicePlan};
pub use options::{
    Amount, BlockSizeWish, Choice, JournalOptions, OldContent, Options, Owner, QuotaTypes,
};
pub use plan::Plan;
pub use profile::Profile;
pub use quota::{QuotaCounts, QuotaIds, QuotaUsage};
pub use report::Report;
pub use signature::{Signature, find_signature};
pub use text::{parse_size, parse_uuid};
