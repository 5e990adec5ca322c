//! **Purpose.** The targets: functions that take any bytes, and the table of them.
//!
//! Beside "no panic, no endless loop", each checks what must hold for whatever it accepts: numbers
//! lie where the geometry says, what was sealed verifies, what was listed is found.
//!
//! | module | responsibility |
//! |---|---|
//! | [`superblock`] | superblock and geometry |
//! | [`group`] | group descriptors and the checksums of bitmaps |
//! | [`inode`] | inodes, and what lies inside them |
//! | [`map`] | extent trees and block maps |
//! | [`directory`] | directory blocks, hash indexes, hashes, casefolding |
//! | [`attributes`] | extended attributes, ACLs, encryption contexts, verity, inline data |
//! | [`jbd2`] | the blocks of a journal |
//! | [`fast_commit`] | fast-commit records |
//! | [`orphan_mmp`] | blocks of the orphan file, MMP blocks |
//! | [`recovery`] | recovery of forged logs |
//! | [`image`] | open, walk, read everything |
//! | [`check`] | check everything |

pub mod attributes;
pub mod check;
pub mod directory;
pub mod fast_commit;
pub mod group;
pub mod image;
pub mod inode;
pub mod jbd2;
pub mod map;
pub mod orphan_mmp;
pub mod recovery;
pub mod superblock;

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets, by name.
pub const ALL: &[Target] = &[
    ("attributes", attributes::run),
    ("check", check::run),
    ("directory", directory::run),
    ("fast_commit", fast_commit::run),
    ("group", group::run),
    ("image", image::run),
    ("inode", inode::run),
    ("jbd2", jbd2::run),
    ("map", map::run),
    ("orphan_mmp", orphan_mmp::run),
    ("recovery", recovery::run),
    ("superblock", superblock::run),
];

/// Bit of the second byte of an input: renew checksums before parsing.
pub const SEAL: u8 = 1;
