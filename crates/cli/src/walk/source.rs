//! **Purpose.** What a walk asks of a tree.

use crate::facts::Facts;
use crate::failure::Result;
use crate::tree::listing::Listing;
use crate::walk::line::Attributes;

/// An object, seen from an open directory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry<'e> {
    /// The open object itself, used for the root of the walk.
    Itself,
    /// An entry of the open directory: its name and the inode number the directory gives.
    Named(&'e [u8], u64),
}

/// A tree that can be walked by many threads.
pub(crate) trait Source: Sync {
    /// Whether an object of another kind than its directory says is damage. On the host a program
    /// such as fakeroot may show a file as a device.
    const KINDS_AGREE: bool;
    /// A directory that is to be walked.
    type Directory: Send;
    /// A directory (or, for the root, any object) that is being walked.
    type Open: Send + Sync;
    /// Buffers of one thread.
    type Scratch: Default;

    /// Opens what the walk starts from.
    fn root(&self) -> Result<Self::Open>;

    /// The directory that the walk starts from.
    fn root_directory(&self) -> Self::Directory;

    /// Opens a directory; an error if the walk has been there before.
    fn open(&self, directory: &Self::Directory) -> Result<Self::Open>;

    /// Adds all entries but `.` and `..` to `listing`.
    fn list(
        &self,
        open: &Self::Open,
        listing: &mut Listing,
        scratch: &mut Self::Scratch,
    ) -> Result<()>;

    /// What stat tells about an object, never following a symbolic link.
    fn facts(
        &self,
        open: &Self::Open,
        entry: Entry<'_>,
        scratch: &mut Self::Scratch,
    ) -> Result<Facts>;

    /// Writes the target of a symbolic link to `target`, which is empty.
    fn target(
        &self,
        open: &Self::Open,
        entry: Entry<'_>,
        facts: &Facts,
        target: &mut Vec<u8>,
    ) -> Result<()>;

    /// Adds the extended attributes, in any order.
    fn attributes(
        &self,
        open: &Self::Open,
        entry: Entry<'_>,
        scratch: &mut Self::Scratch,
        attributes: &mut Attributes,
    ) -> Result<()>;

    /// SHA-256 of the content of a regular file.
    fn sha256(
        &self,
        open: &Self::Open,
        entry: Entry<'_>,
        facts: &Facts,
        scratch: &mut Self::Scratch,
    ) -> Result<[u8; 32]>;

    /// The directory `name` inside of an open one.
    fn child(&self, open: &Self::Open, name: &[u8], inode: u64) -> Result<Self::Directory>;
}
