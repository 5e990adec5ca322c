//! **Purpose.** File data and symbolic links: OPEN, RELEASE, READ, WRITE, FSYNC, FALLOCATE, LSEEK,
//! COPY_FILE_RANGE, READLINK.

use fourscore::{Caller, Error, Fallocate, FileType, Fs, InodeNr, Seek, Stat, WrittenAt};
use fourscore_ondisk::extent::LOGICAL_END;
use fourscore_ondisk::inode::InodeFlags;

use super::durable::DIRECT_HANDLE;
use super::{Call, Server};
use crate::abi::{
    CopyFileRangeIn, CopyFileRangeOut, FSYNC_FDATASYNC, FallocateIn, FsyncIn, LseekIn, LseekOut,
    OPEN_KILL_SUIDGID, OpenIn, OpenOut, ReadIn, ReleaseIn, WRITE_CACHE, WRITE_KILL_SUIDGID,
    WriteIn, WriteOut, fopen, init, opcode,
};
use crate::reply::{Errno, Reply};

const O_ACCMODE: u32 = 0o3;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
const O_NOATIME: u32 = 0o1_000_000;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The modes of fallocate(2), by their flags.
const MODES: [(u32, Fallocate); 7] = [
    (0, Fallocate::Allocate),
    (1, Fallocate::AllocateKeepSize),
    (1 | 2, Fallocate::PunchHole),
    (8, Fallocate::CollapseRange),
    (16, Fallocate::ZeroRange),
    (1 | 16, Fallocate::ZeroRangeKeepSize),
    (32, Fallocate::InsertRange),
];

/// Refuses files whose content cannot be changed.
fn check_content_may_change(stat: &Stat) -> Result<(), Errno> {
    match stat.file_type {
        FileType::Regular => {}
        FileType::Directory => return Err(Error::IsADirectory.into()),
        _ => return Err(Errno::INVAL),
    }
    let is_fixed = InodeFlags::IMMUTABLE_FL | InodeFlags::VERITY_FL;
    if stat.flags.intersects(is_fixed) {
        return Err(Errno::PERM);
    }
    if stat.flags.contains(InodeFlags::ENCRYPT_FL) {
        return Err(Error::NoKey { inode: stat.inode }.into());
    }
    Ok(())
}

impl Server<'_> {
    /// Opens a file. It needs no state of its own: the inode is open as long as the kernel knows
    /// it. Refuses what the kernel cannot check: the flags of chattr(1).
    pub(super) fn open(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: OpenIn = call.arguments.take()?;
        let stat = self.fs.stat(call.inode)?;
        let truncates = wanted.flags & O_TRUNC != 0;
        let writes = wanted.flags & O_ACCMODE != 0 || truncates;
        let only_grows = stat.flags.contains(InodeFlags::APPEND_FL);
        let is_fixed = InodeFlags::IMMUTABLE_FL | InodeFlags::VERITY_FL;
        if writes && stat.flags.intersects(is_fixed) {
            return Err(Errno::PERM);
        }
        if writes && only_grows && (wanted.flags & O_APPEND == 0 || truncates) {
            return Err(Errno::PERM);
        }
        if stat.flags.contains(InodeFlags::ENCRYPT_FL) && stat.file_type == FileType::Regular {
            return Err(Error::NoKey { inode: call.inode }.into());
        }
        if truncates && stat.file_type == FileType::Regular {
            let writer = match wanted.open_flags & OPEN_KILL_SUIDGID {
                0 => Caller::ROOT,
                _ => Self::without_set_id(&call.header),
            };
            self.cut(call.inode, 0, &writer)?;
        }
        self.note_open(&stat, wanted.flags);
        // Write-back of whole pages would begin before the end of an append-only file.
        let (fh, direct_io) = match writes && only_grows {
            true => (DIRECT_HANDLE, fopen::DIRECT_IO),
            false => (0, 0),
        };
        reply.push(&OpenOut {
            fh,
            open_flags: fopen::KEEP_CACHE | direct_io,
            ..OpenOut::default()
        })
    }

    /// Sets the size of a file for `writer`. As in Linux, privileges are removed after that: a call
    /// which is refused removes none.
    pub(super) fn cut(
        &self,
        inode: InodeNr,
        size_bytes: u64,
        writer: &Caller<'_>,
    ) -> Result<(), Errno> {
        self.fs.truncate(inode, size_bytes)?;
        self.clear_privileges(inode, writer)
    }

    /// Gives back the space that was preallocated for a file that was open for writing. Another
    /// writer of the same file gets new space with its next write.
    pub(super) fn release(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let released: ReleaseIn = call.arguments.take()?;
        if released.flags & O_ACCMODE != 0 && !self.is_read_only {
            self.fs.end_writing(call.inode)?;
        }
        Ok(())
    }

    /// Counts an open for reading as an access, because reads from the page cache are not seen
    /// here. For its own ioctls the kernel opens files too, with no flag at all, while open(2) of a
    /// 64-bit program sets one; these opens do not count.
    fn note_open(&self, before: &Stat, flags: u32) {
        if flags == 0 || flags & O_ACCMODE != 0 {
            return;
        }
        self.note_access(before.inode, flags);
        // After a READ the kernel invalidates the access time by itself.
        let after = self.fs.stat(before.inode);
        if after.is_ok_and(|after| after.atime != before.atime) {
            self.invalidate_attributes(before.inode);
        }
    }

    pub(super) fn read(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: ReadIn = call.arguments.take()?;
        let space = reply.space(wanted.size as usize)?;
        let len = self.fs.read_at(call.inode, space, wanted.offset)?;
        reply.grow(len);
        self.note_access(call.inode, wanted.flags);
        Ok(())
    }

    /// Updates the access time. An error of that does not fail the read.
    pub(super) fn note_access(&self, inode: InodeNr, open_flags: u32) {
        if !self.is_read_only
            && open_flags & O_NOATIME == 0
            && let Err(error) = self.fs.accessed(inode)
        {
            tracing::debug!(inode = inode.0, %error, "the access time is not updated");
        }
    }

    pub(super) fn write(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: WriteIn = call.arguments.take()?;
        let data = call.arguments.bytes(wanted.size)?;
        // For cached writes the kernel has cleared set-id bits at the time of write(2). They may
        // have been set again since, and flags that would refuse the write now may have been set
        // too: neither matters to the write-back. With the writeback cache the kernel sends the
        // file's times separately.
        let written = if wanted.write_flags & WRITE_CACHE == 0 {
            let writer = match wanted.write_flags & WRITE_KILL_SUIDGID {
                0 => Caller::ROOT,
                _ => Self::without_set_id(&call.header),
            };
            self.write_for(&writer, call.inode, data, wanted.offset)?
        } else {
            let written_at = match self.agreed.has(init::WRITEBACK_CACHE) {
                true => WrittenAt::ByCaller,
                false => WrittenAt::Now,
            };
            self.fs
                .write_back_at(call.inode, data, wanted.offset, written_at)?
        };
        reply.push(&WriteOut {
            size: u32::try_from(written).unwrap_or(wanted.size),
            padding: 0,
        })
    }

    /// Writes for a caller that waits. Returns the number of bytes written: fewer than all if there
    /// was no space for more.
    fn write_for(
        &self,
        writer: &Caller<'_>,
        inode: InodeNr,
        data: &[u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        match self.fs.write_at_as(writer, inode, data, offset) {
            Ok(written) => {
                self.note_privileges(inode, written.privileges);
                Ok(written.bytes)
            }
            Err(error) => {
                // After an error of the device the privileges may be gone.
                self.invalidate_attributes(inode);
                Err(error.into())
            }
        }
    }

    /// FSYNC and FSYNCDIR; for the root directory, syncs the whole file system.
    pub(super) fn fsync(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let wanted: FsyncIn = call.arguments.take()?;
        if self.is_read_only {
            return Ok(());
        }
        let sync = match (call.inode, wanted.fsync_flags & FSYNC_FDATASYNC) {
            (InodeNr::ROOT, _) => return self.sync(),
            (_, 0) => Fs::fsync,
            _ => Fs::fdatasync,
        };
        Ok(sync(self.fs, call.inode)?)
    }

    pub(super) fn readlink(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let target = self.fs.read_link(call.inode)?;
        self.note_access(call.inode, 0);
        reply.push_bytes(&target)
    }

    pub(super) fn fallocate(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let wanted: FallocateIn = call.arguments.take()?;
        let what = MODES.iter().find(|(flags, _)| *flags == wanted.mode);
        let (_, what) = what.ok_or(Errno::OPNOTSUPP)?;
        let (offset, len) = (wanted.offset, wanted.length);
        self.check_fallocate(&call, *what, offset.checked_add(len))?;
        self.clear_privileges(call.inode, &Self::writer_of(&call.header))?;
        Ok(self.fs.fallocate(call.inode, *what, offset, len)?)
    }

    /// Refuses what the file's flags and form forbid. Privileges are removed after this check, and
    /// before the call, which may move data within the file.
    fn check_fallocate(
        &self,
        call: &Call<'_>,
        what: Fallocate,
        end: Option<u64>,
    ) -> Result<(), Errno> {
        let stat = self.fs.stat(call.inode)?;
        check_content_may_change(&stat)?;
        let only_adds = matches!(what, Fallocate::Allocate | Fallocate::AllocateKeepSize);
        if stat.flags.contains(InodeFlags::APPEND_FL) && !only_adds {
            return Err(Errno::PERM);
        }
        let limit = u64::from(LOGICAL_END.0) << self.fs.geometry().block_size().bits();
        if end.is_none_or(|end| end > limit) {
            return Err(Error::FileTooLarge.into());
        }
        let by_extents = InodeFlags::EXTENTS_FL | InodeFlags::INLINE_DATA_FL;
        if !stat.flags.intersects(by_extents) && what != Fallocate::PunchHole {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    pub(super) fn lseek(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: LseekIn = call.arguments.take()?;
        if self.agreed.has(init::WRITEBACK_CACHE) {
            return Err(Errno::NOSYS);
        }
        let what = match wanted.whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        let found = self.fs.seek(call.inode, wanted.offset, what)?;
        let offset = found.ok_or(Errno::NXIO)?;
        reply.push(&LseekOut { offset })
    }

    pub(super) fn copy_file_range(
        &self,
        mut call: Call<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let wanted: CopyFileRangeIn = call.arguments.take()?;
        let target = self.nodes.inode(wanted.nodeid_out)?;
        let is_short = call.header.opcode == opcode::COPY_FILE_RANGE;
        // The older reply has a 32-bit count.
        let most = if is_short {
            u64::from(u32::MAX)
        } else {
            u64::MAX
        };
        self.check_copy(call.inode, target, wanted.off_out)?;
        self.clear_privileges(target, &Self::writer_of(&call.header))?;
        let copied = self.fs.copy_file_range(
            call.inode,
            wanted.off_in,
            target,
            wanted.off_out,
            wanted.len.min(most),
        )?;
        match u32::try_from(copied) {
            Ok(size) if is_short => reply.push(&WriteOut { size, padding: 0 }),
            _ => reply.push(&CopyFileRangeOut {
                bytes_copied: copied,
            }),
        }
    }

    /// Refuses what the flags of source and target forbid, before privileges are removed.
    fn check_copy(&self, source: InodeNr, target: InodeNr, offset: u64) -> Result<(), Errno> {
        let source = self.fs.stat(source)?;
        if source.flags.contains(InodeFlags::ENCRYPT_FL) {
            let inode = source.inode;
            return Err(Error::NoKey { inode }.into());
        }
        let target = self.fs.stat(target)?;
        check_content_may_change(&target)?;
        let only_grows = target.flags.contains(InodeFlags::APPEND_FL);
        match only_grows && offset < target.size_bytes {
            true => Err(Errno::PERM),
            false => Ok(()),
        }
    }
}
