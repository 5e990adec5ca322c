//! **Purpose.** Makes ext2, ext3 and ext4 file systems as mke2fs makes them, byte for byte.
//!
//! ```no_run
//! use fourscore_block::{DeviceOptions, create_image};
//! use fourscore_mkfs::{Layout, OldContent, Options, Profile};
//!
//! let device = create_image("new.ext4".as_ref(), 1 << 30, DeviceOptions::read_write())?;
//! let options = Options {
//!     label: b"data".to_vec(),
//!     old_content: OldContent::AllZero,
//!     ..Options::default()
//! };
//! let layout = Layout::new(&options, &Profile::system()?, 1 << 30)?;
//! layout.write(&device)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Not here.** Filling the file system with files (crate `build`); the search for bad blocks;
//! undo files.
//!
//! **Model.** [`Options`] and [`Profile`] become a [`Layout`]: a pure computation that places every
//! block of metadata where mke2fs 1.47 places it. It finds everything that is wrong with the
//! options before anything is written; only [`Layout::write`] changes the device. With UUID, hash
//! seed and time given, the same options make the same bytes.
//!
//! Each module uses only modules above it in this table:
//!
//! | module | responsibility |
//! |---|---|
//! | `signature` | recognises what a device holds already |
//! | `error` | why no file system is made |
//! | `external_journal` | the journal on another device that a file system uses |
//! | `options` | the options of a user, typed |
//! | `text` | options as text, in the spelling of mke2fs |
//! | `profile` | mke2fs.conf |
//! | `identity` | UUID, hash seed and time |
//! | `resolve` | determines the parameters from options, profile and size |
//! | `sizes` | groups, inodes per group, reserved blocks |
//! | `superblock` | the superblock, apart from fields that depend on places |
//! | `space` | which blocks are taken |
//! | `tables` | places bitmaps and inode tables |
//! | `draft` | a layout under construction |
//! | `mapping` | allocates blocks for files |
//! | `inodes` | inodes in their final form |
//! | `root` | root directory and lost+found |
//! | `journal` | the journal inside the file system |
//! | `hidden` | resize inode, MMP block, orphan file |
//! | `quota` | quota files |
//! | `layout` | all of it together |
//! | `fill` | file systems that are filled while they are made |
//! | `write` | writes a layout to the device |
//! | `journal_device` | makes journals on a device of their own |
//! | `report` | the lines that mke2fs prints |
//! | `tune` | changes of the superblock of an existing file system, as tune2fs makes them |
//!
//! Differences from mke2fs that remain on purpose: `s_kbytes_written` counts the bytes that this
//! crate writes; the MMP block carries the time that was asked for; an image file made by the
//! caller counts as zeroed, so its inode tables are marked as such; a superblock copy is followed
//! by zeroes to the end of its block.
//!
//! Options that mke2fs rounds, cuts off or ignores are refused instead: sizes of clusters that are
//! no power of 2, labels that are too long, unknown usage types, stripes that are no multiple of
//! the stride, quota types and orphan files without their features. A journal on a device of its
//! own serves one file system, as the kernel wants it.
//!
//! **Crash safety.** See `write`.
//!
//! **References.** mke2fs(8), mke2fs.conf(5); the sources of e2fsprogs 1.47.0 for the rules of
//! placing.
#![forbid(unsafe_code)]

mod draft;
mod error;
mod external_journal;
mod fill;
mod hidden;
mod identity;
mod inodes;
mod journal;
mod journal_device;
mod layout;
mod mapping;
mod options;
mod profile;
mod quota;
mod report;
mod resolve;
mod root;
mod signature;
mod sizes;
mod space;
mod superblock;
mod tables;
mod text;
mod tune;
mod write;

pub use error::{FormatError, FormatResult};
pub use external_journal::ExternalJournal;
pub use fill::{ReservedInodes, Skeleton, Usage};
pub use journal::JournalSize;
pub use journal_device::JournalDeviceLayout;
pub use layout::Layout;
pub use options::{
    Amount, BlockSizeWish, Choice, JournalOptions, OldContent, Options, Owner, QuotaTypes,
};
pub use profile::Profile;
pub use report::Report;
pub use signature::{Signature, find_signature};
pub use text::{parse_size, parse_uuid};
pub use tune::{FeatureChange, Reserved, Surroundings, Tuning, tune};
