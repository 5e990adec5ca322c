//! **Purpose.** Images, oracles and generators for the tests of all crates.
//!
//! Independent programs write the images that fourscore reads, and judge those that it writes:
//! mke2fs makes images, the kernel or debugfs fills them, and the kernel, e2fsck, debugfs and
//! dumpe2fs are the oracles.
//!
//! **Not here.** Devices that record or fail (crate `block`), the measuring runner (crate `lab`).
//!
//! | module | responsibility |
//! |---|---|
//! | [`tools`] | programs and privileges a test needs; skipping loudly, failing on CI |
//! | [`scratch`] | temporary folders, in memory where there is enough |
//! | [`image`] | image files, made by mke2fs |
//! | [`mount`] | kernel mounts, unmounted on drop |
//! | [`loop_device`] | loop devices over image files |
//! | [`oracle`] | e2fsck, debugfs, dumpe2fs |
//! | [`other_host`] | another host that has an image (feature `mmp`) |
//! | [`matrix`] | the named configurations that tests run on |
//! | [`populate`] | a tree with one of everything ext4 can store |
//! | [`damage`] | damaged images, by a mutator of on-disk structures |
//! | [`worker_pool`] | a worker pool with a watchdog |
//! | [`programs`] | shared code of the harness's programs |
//! | [`crash`] | images of file systems that crashed under load |
//! | [`journal_alone`] | crash tests of the journal without a file system |
//! | [`explore`] | all crash states of a recorded device |
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
pub mod damage;
pub mod explore;
pub mod image;
pub mod journal_alone;
pub mod loop_device;
pub mod matrix;
pub mod mount;
pub mod oracle;
pub mod other_host;
pub mod populate;
pub mod programs;
pub mod scratch;
pub mod tools;
pub mod worker_pool;

pub use image::{Image, ImageBuilder, MiB};
pub use loop_device::LoopDevice;
pub use mount::{Access, KernelMount};
