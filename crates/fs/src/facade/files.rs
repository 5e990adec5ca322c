//! **Purpose.** File data: the public calls of [`Fs`].
//!
//! **Not here.** The work itself: each call passes the core or the mount to a module of `file`.
//!
//! **Invariants.** Calls that change something fail with `ReadOnly` if the file system was opened
//! for reading.

use std::io::{IoSlice, IoSliceMut};
use std::ops::ControlFlow;

use fourscore_ondisk::extent::Extent;
use fourscore_ondisk::{InodeNr, LogicalBlock};

use crate::file::copy::BytePosition;
use crate::file::fallocate::{self, Fallocate};
use crate::file::finish::WrittenAt;
use crate::file::read::{self, Seek};
use crate::file::write::{self, WriteOutcome};
use crate::file::{copy, preallocation, symlink, sync, truncate};
use crate::inode::caller::Caller;
use crate::{Fs, Result};

impl Fs {
    /// Writes like [`Fs::write_at`] from several buffers, one after the other. No other write to
    /// the file comes between them.
    ///
    /// # Errors
    /// As [`Fs::write_at`].
    pub fn write_vectored_at(
        &self,
        inode: InodeNr,
        bufs: &[IoSlice<'_>],
        offset: u64,
    ) -> Result<usize> {
        copy::write_vectored_at(self.writable()?, inode, bufs, offset)
    }

    /// Copies up to `len` bytes from one range of a regular file to another, each given by an inode
    /// and an offset in bytes; the target grows as needed. Returns the number of bytes copied. It
    /// is less than `len` only if the source ends or an error occurred after a part was copied.
    /// Durable after [`Fs::fsync`] of the target.
    ///
    /// # Errors
    /// `IsADirectory`; `InvalidArgument` for an inode that is not a regular file, and for ranges of
    /// one file that overlap; `OffsetOverflow` for a range without an end; `FileTooLarge`,
    /// `NoSpace`, `NotPermitted`, `NoKey`, `ReadOnly`.
    pub fn copy_file_range(
        &self,
        from: InodeNr,
        from_offset: u64,
        to: InodeNr,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let at = |inode, offset| BytePosition { inode, offset };
        let (from, to) = (at(from, from_offset), at(to, to_offset));
        copy::copy_file_range(self.writable()?, from, to, len)
    }

    /// Applies `what` to the `len` bytes of a regular file from `offset` on. Durable after
    /// [`Fs::fsync`].
    ///
    /// # Errors
    /// `IsADirectory`; `InvalidArgument` for an inode that is not a regular file, for a range that
    /// is empty, and for one that cannot be moved; `Unsupported` for all operations but `PunchHole`
    /// if the file is mapped by pointers, as in ext2 and ext3; `FileTooLarge`, `NoSpace`,
    /// `NotPermitted`, `ReadOnly`. With `NoSpace` a part at the front may be done.
    pub fn fallocate(&self, inode: InodeNr, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        fallocate::fallocate(self.writable()?, inode, what, offset, len)
    }

    /// Gives back the space that was preallocated for a file, for a caller that has written it and
    /// does not open files: a server whose client has closed the file, say. Changes nothing that is
    /// visible or durable, and does nothing while another thread changes the file.
    ///
    /// # Errors
    /// `NotFound` if no such inode is in use; `ReadOnly`; `Corrupt`, `Io`.
    pub fn end_writing(&self, inode: InodeNr) -> Result<()> {
        preallocation::end_writing(self.writable()?, inode)
    }

    /// Reads from a regular file at `offset` (bytes) into `buf`, as many bytes as there are.
    /// Returns the number of bytes read; it is less than the buffer only at the end of the file.
    ///
    /// # Errors
    /// `IsADirectory`; `InvalidArgument` for an inode that is neither a file nor a directory;
    /// `NoKey` for an encrypted file.
    pub fn read_at(&self, inode: InodeNr, buf: &mut [u8], offset: u64) -> Result<usize> {
        read::read_at(&self.core, inode, buf, offset)
    }

    /// Reads like [`Fs::read_at`] into several buffers, one after the other.
    ///
    /// # Errors
    /// As [`Fs::read_at`].
    pub fn read_vectored_at(
        &self,
        inode: InodeNr,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<usize> {
        read::read_vectored_at(&self.core, inode, bufs, offset)
    }

    /// Calls `visit` for each extent of a file from logical block `from` on, in order. Holes are
    /// left out, blocks after the end of the file are included. Extents are reported as they are on
    /// disk; the runs of a block map are reported as extents. Inline data has none.
    ///
    /// If other threads change the file meanwhile, each piece of 1024 extents belongs to one state
    /// of the file; [`Fs::extents`] returns all of them in one state.
    ///
    /// # Errors
    /// The errors of reading the map.
    pub fn for_each_extent(
        &self,
        inode: InodeNr,
        from: LogicalBlock,
        visit: impl FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        read::for_each_extent(&self.core, inode, from, visit)
    }

    /// Returns the extents of a file, as [`Fs::for_each_extent`] reports them, all in one state of
    /// the file.
    ///
    /// # Errors
    /// The errors of reading the map.
    pub fn extents(&self, inode: InodeNr) -> Result<Vec<Extent>> {
        read::extents(&self.core, inode)
    }

    /// Returns the first byte at or after `offset` that is data, or hole, within the file's size.
    /// Unwritten blocks count as holes, as they do for the kernel while nothing is cached. Returns
    /// `None` if there is no such byte, or `offset` is not in the file: `ENXIO`.
    ///
    /// # Errors
    /// `InvalidArgument` for anything but a regular file.
    pub fn seek(&self, inode: InodeNr, offset: u64, what: Seek) -> Result<Option<u64>> {
        read::seek(&self.core, inode, offset, what)
    }

    /// Returns the target of a symbolic link. For an encrypted one, the form that Linux presents
    /// without the key.
    ///
    /// # Errors
    /// `InvalidArgument` for anything but a symbolic link.
    pub fn read_link(&self, inode: InodeNr) -> Result<Vec<u8>> {
        symlink::read_link(&self.core, inode)
    }

    /// Makes all changes of `inode` durable, data and metadata.
    ///
    /// # Errors
    /// `Io` if the device fails.
    pub fn fsync(&self, inode: InodeNr) -> Result<()> {
        sync::fsync(self.writable()?, inode)
    }

    /// Makes the data of a regular file durable, with the metadata that is needed to read it: size
    /// and map, but not times, owner and permissions. For any other inode, makes all changes
    /// durable.
    ///
    /// # Errors
    /// `Io` if the device fails.
    pub fn fdatasync(&self, inode: InodeNr) -> Result<()> {
        sync::fdatasync(self.writable()?, inode)
    }

    /// Makes all changes so far durable.
    ///
    /// # Errors
    /// `Io` if the device fails; then the journal is aborted.
    pub fn sync(&self) -> Result<()> {
        sync::sync(self.writable()?)
    }

    /// Writes `data` at `offset` (bytes) into a regular file, which grows as needed. Returns the
    /// number of bytes written: as in write(2), fewer than all if there was space for a part at the
    /// front only ([`Fs::write_all_at`] returns an error then). Durable after [`Fs::fsync`].
    ///
    /// # Errors
    /// `IsADirectory`, `InvalidArgument` for an inode that is not a regular file, `NoSpace`,
    /// `QuotaExceeded`, `FileTooLarge`, `ReadOnly`; `NotPermitted` if the inode's flags forbid it.
    /// With `NoSpace` and `QuotaExceeded` nothing was written.
    pub fn write_at(&self, inode: InodeNr, data: &[u8], offset: u64) -> Result<usize> {
        write::write_at(self.writable()?, inode, data, offset)
    }

    /// As [`Fs::write_at`], but an error if less than all of `data` was written.
    ///
    /// # Errors
    /// As [`Fs::write_at`]. With `NoSpace` and `QuotaExceeded` a part at the front may be written;
    /// where the file has grown, its size shows how much.
    pub fn write_all_at(&self, inode: InodeNr, data: &[u8], offset: u64) -> Result<()> {
        write::write_all_at(self.writable()?, inode, data, offset)
    }

    /// As [`Fs::write_at`], on behalf of `caller`: set-id bits and capabilities of the file that a
    /// write by that caller removes are removed, at the latest when the data becomes visible.
    ///
    /// # Errors
    /// As [`Fs::write_at`]. After an error the file has its privileges still. They may be gone only
    /// after `Io` and `Corrupt`.
    pub fn write_at_as(
        &self,
        caller: &Caller<'_>,
        inode: InodeNr,
        data: &[u8],
        offset: u64,
    ) -> Result<WriteOutcome> {
        write::write_at_as(self.writable()?, caller, inode, data, offset)
    }

    /// As [`Fs::write_at`], for a caller that has cached data which users wrote earlier: flags that
    /// the file got since then do not prevent this write. Linux, too, checks when data is written
    /// and not when its page cache writes it back. `written_at` says whether the call sets the
    /// file's times or the caller does.
    ///
    /// Calls for one file run concurrently if they overwrite blocks that the file has. If two of
    /// them write the same bytes at the same time, either result may be kept.
    ///
    /// # Errors
    /// As [`Fs::write_all_at`], also in that a write of just a part is an error. Of the flags only
    /// that of verity leads to `NotPermitted`.
    pub fn write_back_at(
        &self,
        inode: InodeNr,
        data: &[u8],
        offset: u64,
        written_at: WrittenAt,
    ) -> Result<usize> {
        write::write_back_at(self.writable()?, inode, data, offset, written_at)
    }

    /// Writes all of `data` after the end of a regular file, and returns the offset at which it
    /// begins.
    ///
    /// # Errors
    /// As [`Fs::write_all_at`].
    pub fn append(&self, inode: InodeNr, data: &[u8]) -> Result<u64> {
        write::append(self.writable()?, inode, data)
    }

    /// Sets the size of a regular file in bytes. Bytes between the old end and a new end after it
    /// read as zeroes; blocks after the new end are freed.
    ///
    /// # Errors
    /// As [`Fs::write_at`].
    pub fn truncate(&self, inode: InodeNr, size: u64) -> Result<()> {
        truncate::truncate(self.writable()?, inode, size)
    }
}
