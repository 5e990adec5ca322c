//! **Purpose.** The theme of a round: what its threads mostly do.

use clap::ValueEnum;

/// What the threads mostly do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Theme {
    /// Directories are moved into each other, and inode numbers are reused.
    Tree,
    /// Names are created, removed and replaced.
    Names,
    /// One name is created and removed, while others look it up.
    NewNames,
    /// Directories grow and are listed.
    Listings,
    /// Files are read while they are changed.
    Content,
    /// Ranges are copied from and into files that are punched and written.
    Copies,
    /// Directories grow and are listed while their inodes are evicted and read again.
    Eviction,
    /// Files get and lose attributes of few values, so that they share blocks.
    Attributes,
    /// Few files get and lose one attribute of one value, so that a block gets a user while it
    /// loses its last one.
    OneAttribute,
    /// Blocks are freed and reused while slow reads are in progress.
    Reuse,
    /// The file system grows, from almost full or not, while all else is done.
    Growth,
    /// All of it.
    Everything,
}
