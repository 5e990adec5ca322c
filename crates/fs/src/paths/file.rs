//! **Purpose.** Open files with a position, for everything that takes
//! `std::io::{Read, Write, Seek}`.
//!
//! **Model.** A [`File`] keeps its inode open, so it can be used after its last name is removed.
//! Nothing is buffered here: each read and each write is a call of [`Fs`] by inode number.
//!
//! **Locking.** The position has a lock, which is held during a read or a write that moves it, as
//! in Linux (`f_pos_lock`). Calls with an offset of their own take no lock of the file object.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, SeekFrom, Write};
use std::ops::Deref;

use fourscore_ondisk::InodeNr;
use fourscore_sync::{Arc, Mutex};

use crate::facade::open_inode::OpenInode;
use crate::file::write;
use crate::inode::stat::Stat;
use crate::paths::options::Access;
use crate::{Error, Fs, Result};

/// An open file, as [`std::fs::File`] is one of the host. [`Paths`](crate::Paths) opens files.
///
/// It implements [`Read`], [`Write`] and [`Seek`](io::Seek), for `&File` as well, whose users share
/// one position. It buffers nothing: wrap it in [`BufReader`](io::BufReader) or
/// [`BufWriter`](io::BufWriter) for many small reads or writes. A write is visible to all threads
/// when it returns, and durable after [`File::sync_all`].
///
/// The file is closed when this is dropped; [`File::close`] also returns whether that succeeded. A
/// file whose last name was removed is freed then. `F` is the reference to the file system, as in
/// [`OpenInode`]. Reading does not change the time of last access.
pub struct File<F: Deref<Target = Fs> = Arc<Fs>> {
    inode: OpenInode<F>,
    access: Access,
    position: Mutex<u64>,
}

impl<F: Deref<Target = Fs>> File<F> {
    pub(crate) fn new(inode: OpenInode<F>, access: Access) -> Self {
        Self {
            inode,
            access,
            position: Mutex::new(0),
        }
    }

    fn fs(&self) -> &Fs {
        self.inode.fs()
    }

    fn readable(&self) -> Result<InodeNr> {
        match self.access.reads {
            true => Ok(self.inode()),
            false => Err(Error::NotOpenFor("reading")),
        }
    }

    fn writable(&self) -> Result<InodeNr> {
        match self.access.writes || self.access.appends {
            true => Ok(self.inode()),
            false => Err(Error::NotOpenFor("writing")),
        }
    }

    /// Returns the inode's number, for the calls of [`Fs`]. It is valid as long as the file is
    /// open.
    #[must_use]
    pub fn inode(&self) -> InodeNr {
        self.inode.inode()
    }

    /// Returns the attributes of the file.
    ///
    /// # Errors
    /// As [`Fs::stat`].
    pub fn metadata(&self) -> Result<Stat> {
        self.fs().stat(self.inode())
    }

    /// Reads at `offset` (bytes) into `buf`, and leaves the position as it is. Returns the number
    /// of bytes read; it is less than the buffer only at the end of the file.
    ///
    /// # Errors
    /// As [`Fs::read_at`]; `NotOpenFor` without [`read`](crate::FileOptions::read).
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.fs().read_at(self.readable()?, buf, offset)
    }

    /// Reads at `offset` (bytes) until `buf` is full, and leaves the position as it is.
    ///
    /// # Errors
    /// As [`File::read_at`]; `Io` of the kind `UnexpectedEof` if the file ends before.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self.read_at(buf, offset)? == buf.len() {
            true => Ok(()),
            false => Err(Error::Io(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Writes at `offset` (bytes), also if the file is open for appending, and leaves the position
    /// as it is. Returns the number of bytes written: fewer than all if there was no space for
    /// more.
    ///
    /// # Errors
    /// As [`Fs::write_at`]; `NotOpenFor` if the file is not open for writing.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.fs().write_at(self.writable()?, data, offset)
    }

    /// As [`File::write_at`], but an error if less than all of the data was written.
    ///
    /// # Errors
    /// As [`Fs::write_all_at`]; `NotOpenFor` if the file is not open for writing.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.fs().write_all_at(self.writable()?, data, offset)
    }

    /// Sets the size in bytes. Bytes between the old end and a new end after it read as zeroes. The
    /// position stays as it is.
    ///
    /// # Errors
    /// As [`Fs::truncate`]; `InvalidArgument` if the file is not open for writing.
    pub fn set_len(&self, size: u64) -> Result<()> {
        match self.writable() {
            Ok(inode) => self.fs().truncate(inode, size),
            Err(_) => Err(Error::InvalidArgument("the file is not open for writing")),
        }
    }

    /// Makes all changes of the file durable, data and metadata. In a file system that was opened
    /// for reading there are none.
    ///
    /// # Errors
    /// As [`Fs::fsync`].
    pub fn sync_all(&self) -> Result<()> {
        match self.fs().mount {
            Some(_) => self.fs().fsync(self.inode()),
            None => Ok(()),
        }
    }

    /// Makes the data durable, with the metadata that is needed to read it.
    ///
    /// # Errors
    /// As [`Fs::fdatasync`].
    pub fn sync_data(&self) -> Result<()> {
        match self.fs().mount {
            Some(_) => self.fs().fdatasync(self.inode()),
            None => Ok(()),
        }
    }

    /// Closes the file.
    ///
    /// # Errors
    /// As [`OpenInode::close`].
    pub fn close(self) -> Result<()> {
        self.inode.close()
    }

    /// Reads with `read` at the position, and moves it by what was read.
    fn advance(&self, read: impl FnOnce(InodeNr, u64) -> Result<usize>) -> io::Result<usize> {
        let inode = self.readable()?;
        let mut position = self.position.lock();
        let len = read(inode, *position)?;
        *position += len as u64;
        Ok(len)
    }

    fn write_at_position(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let inode = self.writable()?;
        let mut position = self.position.lock();
        let written = if self.access.appends {
            // One buffer, since only that is atomic.
            let data = bufs.iter().find(|buf| !buf.is_empty());
            let data: &[u8] = data.map_or(&[], |data| data);
            let appended = write::append_part(self.fs().writable()?, inode, data)?;
            *position = appended.offset;
            appended.bytes
        } else {
            self.fs().write_vectored_at(inode, bufs, *position)?
        };
        *position += written as u64;
        Ok(written)
    }
}

impl<F: Deref<Target = Fs>> Read for &File<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.advance(|inode, offset| self.fs().read_at(inode, buf, offset))
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.advance(|inode, offset| self.fs().read_vectored_at(inode, bufs, offset))
    }
}

impl<F: Deref<Target = Fs>> Write for &File<F> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_at_position(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_at_position(bufs)
    }

    /// Does nothing: no data waits here. [`File::sync_all`] makes data durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: Deref<Target = Fs>> io::Seek for &File<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.size_bytes.checked_add_signed(by),
        };
        // Offsets of files are positive numbers of 64 bits with a sign, as in Linux.
        let target = target.filter(|&target| i64::try_from(target).is_ok());
        *position = target.ok_or(Error::InvalidArgument("a position outside of any file"))?;
        Ok(*position)
    }
}

impl<F: Deref<Target = Fs>> Read for File<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl<F: Deref<Target = Fs>> Write for File<F> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: Deref<Target = Fs>> io::Seek for File<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        io::Seek::seek(&mut &*self, to)
    }
}

impl<F: Deref<Target = Fs>> fmt::Debug for File<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("inode", &self.inode())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
