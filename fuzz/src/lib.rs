//! **Purpose.** Fuzz targets as ordinary functions: for each family of parsers, for recovery of the
//! journal, and for "open, walk, read everything".
//!
//! **Model.** A parser's target turns its input into the bytes of one structure. The targets
//! `recovery` and `image` start from a small real image that is compiled in: their input is a list
//! of patches to it. Where a structure has a checksum, it is renewed after the change (a bit of the
//! input says whether), because otherwise every input would end at the first checksum.
//!
//! ```text
//! images/NAME.sparse -> seed image -> + patches -> + new checksums -> device -> Fs
//! ```
//!
//! The seed images and the regressions are in git; inputs that are cut out of the images
//! ([`seeds`]) are made when they are needed.
//!
//! | module | responsibility |
//! |---|---|
//! | [`targets`] | the targets, and the table of them |
//! | [`input`] | taking an input apart |
//! | [`sparse`] | images without their zeroes, as they are in git |
//! | [`images`] | the seed images, and what they hold where |
//! | [`device`] | a seed image with changed blocks as a device |
//! | [`patch`] | the changes that an input asks for |
//! | [`seal`] | which checksums an image has, and renewing them |
//! | [`walk`] | reading everything, within bounds |
//! | [`seeds`] | first inputs for every target |
//!
//! # Invariants
//! A target returns for every input, in milliseconds and with a few MiB of memory: what does not is
//! a fault of the code under test, or of the bounds in [`walk`].
#![forbid(unsafe_code)]

pub mod device;
pub mod images;
pub mod input;
pub mod patch;
pub mod seal;
pub mod seeds;
pub mod sparse;
pub mod targets;
pub mod walk;
