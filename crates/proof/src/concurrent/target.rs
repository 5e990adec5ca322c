//! **Purpose.** The interface of a file system under test, for the library and for a mount.
//!
//! **Model.** Names are relative to a directory; files are open. Errors are those of Linux.

use super::call::{Failure, Kind, Listed, Name, Range, Space};

/// The result of a call.
pub(super) type Answer<T> = Result<T, Failure>;

/// How data is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoMode {
    /// Through the page cache, if there is one.
    Buffered,
    /// Direct I/O, if the target supports it.
    Direct,
}

/// A file system that many threads use.
pub(super) trait Target: Send + Sync {
    /// A directory.
    type Dir: Clone + Send + Sync;
    /// An open file.
    type File: Send + Sync;

    /// Whether the kernel caches data and sizes. While a call changes the size, a read uses the
    /// kernel's size page by page, and fstat(2) may already return that of the server. A read
    /// copies from a page while a write copies into it, so it may see any byte old or new.
    const HAS_PAGE_CACHE: bool;
    /// Whether ranges can be collapsed and inserted.
    const HAS_MOVES: bool;

    fn root(&self) -> Self::Dir;
    fn number(&self, dir: &Self::Dir) -> u64;
    /// The directory under a name.
    fn open_dir(&self, dir: &Self::Dir, name: Name) -> Answer<Self::Dir>;

    /// Creates an inode; returns its number if the call provides it.
    fn make(&self, dir: &Self::Dir, name: Name, kind: Kind) -> Answer<Option<u64>>;
    /// Creates a file with a name and opens it; returns it with its number.
    fn create(&self, dir: &Self::Dir, name: Name) -> Answer<(Self::File, u64)>;
    /// Creates a file without a name.
    fn unnamed(&self, dir: &Self::Dir) -> Answer<Self::File>;
    /// Links an open file to another name; returns its number.
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
    /// Lists a directory: all of it, or at most `most` entries.
    fn list(&self, dir: &Self::Dir, most: Option<usize>) -> Answer<(Vec<(Name, u64)>, Listed)>;
    /// Gets the attributes of the inode with a number, if the target has such a call.
    fn stat_number(&self, number: u64) -> Answer<()>;

    fn read(&self, file: &Self::File, bytes: &mut [u8], offset: u64, how: IoMode) -> Answer<usize>;
    fn write(&self, file: &Self::File, bytes: &[u8], offset: u64, how: IoMode) -> Answer<()>;
    /// Appends, and returns the offset.
    fn append(&self, file: &Self::File, bytes: &[u8]) -> Answer<u64>;
    fn truncate(&self, file: &Self::File, size: u64) -> Answer<()>;
    fn change(&self, file: &Self::File, what: Range, offset: u64, len: u64) -> Answer<()>;
    fn copy(&self, from: (&Self::File, u64), to: (&Self::File, u64), len: u64) -> Answer<u64>;
    /// Reads the extents of a file, and returns their number.
    fn extents(&self, file: &Self::File) -> Answer<u64>;
    fn seek(&self, file: &Self::File, offset: u64, data: bool) -> Answer<Option<u64>>;
    fn size(&self, file: &Self::File) -> Answer<u64>;
    fn set_xattr(&self, file: &Self::File, name: &str, value: &[u8]) -> Answer<()>;
    fn remove_xattr(&self, file: &Self::File, name: &str) -> Answer<()>;
    fn xattr(&self, file: &Self::File, name: &str) -> Answer<Vec<u8>>;
    fn fsync(&self, file: &Self::File) -> Answer<()>;
    fn sync(&self) -> Answer<()>;
    fn stat_fs(&self) -> Answer<Space>;
    /// The blocks of the file system, those of the format itself included.
    fn fs_blocks(&self) -> u64;
    /// Makes the file system as large as possible with at most so many blocks; returns its size.
    fn grow_fs(&self, blocks: u64) -> Answer<u64>;
}
