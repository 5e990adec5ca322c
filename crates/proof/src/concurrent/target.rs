//! **Purpose.** What a file system under test has to do, in a library or below a mount.
//!
//! **Model.** Names are those of a directory; files are open. The errors of the two are those of
//! Linux.

use super::call::{Failure, Kind, Listed, Name, Range};

/// The answer of a call.
pub(super) type Answer<T> = Result<T, Failure>;

/// How a file comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// As a program does that does not care.
    Usual,
    /// Past what is cached, where there is such a way.
    Direct,
}

/// A file system that many threads use.
pub(super) trait Target: Send + Sync {
    /// A directory.
    type Dir: Clone + Send + Sync;
    /// An open file.
    type File: Send + Sync;

    /// Whether there are two sizes while a call changes the size: the kernel has its own, to which
    /// a read goes page by page, and fstat(2) may tell that of the server already.
    const KERNEL_KEEPS_SIZES: bool;
    /// Whether ranges can be taken out of files and put in.
    const HAS_MOVES: bool;

    fn root(&self) -> Self::Dir;
    fn number(&self, dir: &Self::Dir) -> u64;
    /// The directory under a name.
    fn open_dir(&self, dir: &Self::Dir, name: Name) -> Answer<Self::Dir>;

    /// Makes something; gives its number, where the call tells it.
    fn make(&self, dir: &Self::Dir, name: Name, kind: Kind) -> Answer<Option<u64>>;
    /// Makes a file with a name and opens it; gives its number.
    fn create(&self, dir: &Self::Dir, name: Name) -> Answer<(Self::File, u64)>;
    /// Makes a file without a name.
    fn unnamed(&self, dir: &Self::Dir) -> Answer<Self::File>;
    /// Gives an open file another name; gives its number.
    fn link(&self, file: &Self::File, dir: &Self::Dir, name: Name) -> Answer<u64>;
    fn file_number(&self, file: &Self::File) -> u64;
    fn unlink(&self, dir: &Self::Dir, name: Name) -> Answer<()>;
    fn rmdir(&self, dir: &Self::Dir, name: Name) -> Answer<()>;
    fn rename(
        &self,
        from: (&Self::Dir, Name),
        to: (&Self::Dir, Name),
        replaces: bool,
    ) -> Answer<()>;
    fn exchange(&self, one: (&Self::Dir, Name), other: (&Self::Dir, Name)) -> Answer<()>;
    fn lookup(&self, dir: &Self::Dir, name: Name) -> Answer<u64>;
    /// Follows a path from the root, a symbolic link at its end as well.
    fn resolve(&self, path: &[Name]) -> Answer<u64>;
    /// Lists a directory: all of it, or at least so many entries.
    fn list(&self, dir: &Self::Dir, most: Option<usize>) -> Answer<(Vec<(Name, u64)>, Listed)>;
    /// Looks at the inode with a number that was heard of, if the target has such a call.
    fn stat_number(&self, number: u64) -> Answer<()>;

    fn read(&self, file: &Self::File, bytes: &mut [u8], offset: u64, how: Reach) -> Answer<usize>;
    fn write(&self, file: &Self::File, bytes: &[u8], offset: u64, how: Reach) -> Answer<()>;
    /// Gives the offset.
    fn append(&self, file: &Self::File, bytes: &[u8]) -> Answer<u64>;
    fn truncate(&self, file: &Self::File, size: u64) -> Answer<()>;
    fn change(&self, file: &Self::File, what: Range, offset: u64, len: u64) -> Answer<()>;
    fn copy(&self, from: (&Self::File, u64), to: (&Self::File, u64), len: u64) -> Answer<u64>;
    /// Looks at where a file lies; gives the number of extents.
    fn extents(&self, file: &Self::File) -> Answer<u64>;
    fn seek(&self, file: &Self::File, offset: u64, data: bool) -> Answer<Option<u64>>;
    fn size(&self, file: &Self::File) -> Answer<u64>;
    fn set_xattr(&self, file: &Self::File, name: &str, value: &[u8]) -> Answer<()>;
    fn remove_xattr(&self, file: &Self::File, name: &str) -> Answer<()>;
    fn xattr(&self, file: &Self::File, name: &str) -> Answer<Vec<u8>>;
    fn fsync(&self, file: &Self::File) -> Answer<()>;
    fn sync(&self) -> Answer<()>;
    /// How many bytes are free; free blocks and free inodes are not more than there are.
    fn stat_fs(&self) -> Answer<u64>;
}
