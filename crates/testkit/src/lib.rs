//! **Purpose.** Images, oracles and generators for the tests of all crates.
//!
//! What fourscore reads must be what other people's programs wrote, and what it says must be what
//! they say: mke2fs makes the images, the kernel or debugfs fills them, and the kernel, e2fsck,
//! debugfs and dumpe2fs are the oracles.
//!
//! **Not here.** Devices that record or fail (crate `block`), the measuring runner (crate `lab`).
//!
//! | module | responsibility |
//! |---|---|
//! | [`tools`] | programs and privileges a test needs; skipping loudly, failing on CI |
//! | [`scratch`] | folders that disappear, in memory where the machine has room |
//! | [`image`] | image files, made by mke2fs |
//! | [`mount`] | mounts of the kernel, undone on drop |
//! | [`loop_device`] | block devices that are image files |
//! | [`oracle`] | e2fsck, debugfs, dumpe2fs |
//! | [`matrix`] | the named configurations that everything is tested on |
//! | [`populate`] | a tree with one of everything ext4 can store |
//! | [`damage`] | damaged images, by a mutator that knows the structures |
//! | [`crew`] | work on all cores, under a watch |
//! | [`programs`] | what the programs of the harness have in common |
//! | [`crash`] | images whose file system died under load |
//! | [`journal_alone`] | the journal without a file system under the crash harness |
//! | [`explore`] | every state in which a crash may leave a device, from a recording |
//!
//! A test of the whole matrix looks like this:
//!
//! ```no_run
//! use fourscore_testkit::{matrix, require, tools::Need};
//!
//! # fn read_everything(_: &std::path::Path) -> anyhow::Result<()> { Ok(()) }
//! fn every_image_is_read() {
//!     require!(Need::Program("mke2fs"), Need::KernelMount);
//!     matrix::assert_all(|config| read_everything(config.populated()?.image.path()));
//! }
//! ```
#![forbid(unsafe_code)]

pub mod crash;
pub mod crew;
pub mod damage;
pub mod explore;
pub mod image;
pub mod journal_alone;
pub mod loop_device;
pub mod matrix;
pub mod mount;
pub mod oracle;
pub mod populate;
pub mod programs;
pub mod scratch;
pub mod tools;

pub use image::{Image, ImageBuilder, MiB};
pub use loop_device::LoopDevice;
pub use mount::{Access, KernelMount};
