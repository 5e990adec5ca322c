//! **Purpose.** The interface of trees that can be walked.

use crate::facts::Facts;
use crate::failure::Result;
use crate::tree::listing::Listing;
use crate::walk::line::Attributes;

/// An object relative to an open directory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry<'e> {
    /// The open object itself, for the root of the walk.
    Itself,
    /// An entry of the open directory: its name and the inode number in the directory.
    Named(&'e [u8], u64),
}

/// A tree that can be walked by many threads.
pub(crate) trait Source: Sync {
    /// Whether it is an error if directory entry and inode differ in type. On the host a program
    /// such as fakeroot may show a file as a device.
    const KINDS_AGREE: bool;
    /// A directory that has not been opened.
    type Directory: Send;
    /// An open directory or, for the root, any open object.
    type Open: Send + Sync;
    /// Buffers of one thread.
    type Scratch: Default;

    /// Opens the root of the walk.
    fn root(&self) -> Result<Self::Open>;

    /// The root of the walk as a directory.
    fn root_directory(&self) -> Self::Directory;

    /// Opens a directory; an error if the walk has opened it before.
    fn open(&self, directory: &Self::Directory) -> Result<Self::Open>;

    /// Adds all entries but `.` and `..` to `listing`.
    fn list(
        &self,
        open: &Self::Open,
        listing: &mut Listing,
        scratch: &mut Self::Scratch,
    ) -> Result<()>;

    /// The attributes of an object; a symbolic link is not followed.
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

    /// SHA-256 of the data of a regular file.
    fn sha256(
        &self,
        open: &Self::Open,
        entry: Entry<'_>,
        facts: &Facts,
        scratch: &mut Self::Scratch,
    ) -> Result<[u8; 32]>;

    /// The directory `name` in an open one.
    fn child(&self, open: &Self::Open, name: &[u8], inode: u64) -> Result<Self::Directory>;
}
