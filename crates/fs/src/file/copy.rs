//! **Purpose.** Writes of several buffers at once, and copies from one file to another or inside of
//! one: pwritev(2) and copy_file_range(2).
//!
//! **Model.** A copy goes through a buffer, piece by piece. Holes and preallocated parts of the
//! source become holes, so that a copy takes no more space than its source. Linux copies zeroes
//! there; a reader cannot tell the difference.
//!
//! **Locking.** Several buffers are written under one hold of the inode's lock, so that no other
//! thread writes between them. A copy reads each piece of the source as any reader does
//! ([`crate::inode::consistent`]) and takes the lock of the target to write it. Data that is
//! written to either file meanwhile may be in the copy or not, as in Linux.
//!
//! **Crash safety.** As with single writes: after a crash a part at the front is there.
//!
//! **References.** copy_file_range(2), pwritev(2); `generic_copy_file_checks` of Linux.

use std::io::IoSlice;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_sync::epoch;

use crate::core::Core;
use crate::file::data::Data;
use crate::file::write::{self, Decided, Progress};
use crate::file::{fallocate, inline_change, read, truncate};
use crate::inode::{cache, stat};
use crate::map::update;
use crate::mount::errors;
use crate::mount::state::Mount;
use crate::txn::faults::Sabotage;
use crate::{Error, Fallocate, Result, Seek};

/// Buffers of at least this length are written as they are. Shorter ones are gathered, since each
/// separate write costs a plan and a handle.
const ALONE_BYTES: usize = 64 << 10;
/// The most bytes that are gathered, or copied, at once.
const PIECE_BYTES: usize = 1 << 20;

/// See [`Fs::write_vectored_at`](crate::Fs::write_vectored_at).
pub(crate) fn write_vectored_at(
    mount: &Mount,
    inode: InodeNr,
    bufs: &[IoSlice<'_>],
    offset: u64,
) -> Result<usize> {
    errors::noting(mount, write_gathered(mount, inode, bufs, offset))
}

fn write_gathered(
    mount: &Mount,
    inode: InodeNr,
    bufs: &[IoSlice<'_>],
    offset: u64,
) -> Result<usize> {
    let total = bufs
        .iter()
        .try_fold(0_usize, |sum, buf| sum.checked_add(buf.len()));
    let total = total.ok_or(Error::FileTooLarge)?;
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let mut locked = pinned.lock();
    let end = offset.checked_add(total as u64);
    let limit = update::max_file_bytes(&mount.core, pinned.version(&epoch::pin())?);
    if end.is_none_or(|end| end > limit) {
        return Err(Error::FileTooLarge);
    }
    let mut done = 0;
    let mut write = |bytes: &[u8]| -> Result<Progress> {
        let offset = offset + done as u64;
        let piece = Data { bytes, offset };
        let mut written =
            write::write_locked(mount, pinned.locked(&mut locked), piece, Decided::Now)?;
        done += written.bytes;
        written.bytes = done;
        Ok(written)
    };
    let mut gathered = Vec::new();
    for buf in bufs {
        let is_alone = buf.len() >= ALONE_BYTES;
        if is_alone || gathered.len() + buf.len() > PIECE_BYTES {
            let written = write(&gathered)?;
            if written.stopped.is_some() {
                return written.part();
            }
            gathered.clear();
        }
        if !is_alone {
            gathered.extend_from_slice(buf);
            continue;
        }
        let written = write(buf)?;
        if written.stopped.is_some() {
            return written.part();
        }
    }
    // Also when there is no data, so that a file that cannot be written to is refused.
    write(&gathered)?.part()
}

/// A byte of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BytePosition {
    pub(crate) inode: InodeNr,
    pub(crate) offset: u64,
}

impl BytePosition {
    fn plus(self, bytes: u64) -> Self {
        Self {
            offset: self.offset + bytes,
            ..self
        }
    }
}

/// See [`Fs::copy_file_range`](crate::Fs::copy_file_range).
pub(crate) fn copy_file_range(
    mount: &Mount,
    from: BytePosition,
    to: BytePosition,
    len: u64,
) -> Result<u64> {
    let (from_offset, to_offset) = (from.offset, to.offset);
    let (source_bytes, limit) =
        errors::noting(mount, check_copy(&mount.core, from.inode, to.inode))?;
    let end = |offset: u64| offset.checked_add(len).ok_or(Error::OffsetOverflow);
    let (from_end, to_end) = (end(from_offset)?, end(to_offset)?);
    let len = from_end.min(source_bytes).saturating_sub(from_offset);
    if to_offset >= limit {
        return Err(Error::FileTooLarge);
    }
    let len = len.min(to_end - to_offset);
    let len = len.min(limit - to_offset);
    if from.inode == to.inode && to_offset < from_offset + len && from_offset < to_offset + len {
        return Err(Error::InvalidArgument("the ranges overlap"));
    }
    let mut done = 0;
    let mut buffer = Vec::new();
    while done < len {
        let (source, target) = (from.plus(done), to.plus(done));
        let copied = copy_piece(mount, source, target, len - done, &mut buffer);
        match errors::noting(mount, copied) {
            Ok(0) => break,
            Ok(copied) => done += copied,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Refuses files that cannot be copied from or to. Returns the size of the source, and the largest
/// size that the target can have, in bytes.
fn check_copy(core: &Core, from: InodeNr, to: InodeNr) -> Result<(u64, u64)> {
    let (source, target) = (
        &cache::inode_copy(core, from)?,
        &cache::inode_copy(core, to)?,
    );
    for inode in [source, target] {
        match inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsADirectory),
            _ => return Err(Error::InvalidArgument("not a regular file")),
        }
    }
    if source.is_encrypted() {
        return Err(Error::NoKey { inode: from });
    }
    if target.has(InodeFlags::IMMUTABLE_FL) || target.has(InodeFlags::VERITY_FL) {
        return Err(Error::NotPermitted);
    }
    Ok((source.size_bytes(), update::max_file_bytes(core, target)))
}

/// Copies the hole, or a piece of the data, at the front of a range. Returns its length in bytes: 0
/// if the source has become shorter meanwhile. Corruption that is found in the source was verified
/// under its lock, so it may be noted.
fn copy_piece(
    mount: &Mount,
    source: BytePosition,
    target: BytePosition,
    len: u64,
    buffer: &mut Vec<u8>,
) -> Result<u64> {
    let (from, at) = (source.inode, source.offset);
    let limit = at + len;
    let data = read::seek(&mount.core, from, at, Seek::Data)?
        .unwrap_or(limit)
        .min(limit);
    if data > at {
        make_hole(mount, target, data - at)?;
        return Ok(data - at);
    }
    let hole = read::seek(&mount.core, from, at, Seek::Hole)?
        .unwrap_or(limit)
        .min(limit);
    let wanted = usize::try_from(hole - at).unwrap_or(usize::MAX);
    buffer.resize(wanted.min(PIECE_BYTES), 0);
    let got = match mount.core.faults.lacks(Sabotage::CopyWithoutLock) {
        true => read_at_once(&mount.core, from, buffer, at)?,
        false => read::read_at(&mount.core, from, buffer, at)?,
    };
    let piece = Data {
        bytes: &buffer[..got],
        offset: target.offset,
    };
    let written = write::write_piece(mount, target.inode, piece)?;
    Ok(written.part()? as u64)
}

/// Reads without checking the sequence count: an injected fault.
fn read_at_once(core: &Core, inode: InodeNr, buffer: &mut [u8], offset: u64) -> Result<usize> {
    read::read_unchecked(core, &cache::inode_copy(core, inode)?, buffer, offset)
}

/// Makes a range read as zeroes, in a file that a write could change there. The file is long enough
/// for the range afterwards.
fn make_hole(mount: &Mount, at: BytePosition, len: u64) -> Result<()> {
    let BytePosition { inode, offset } = at;
    let size = stat::stat(&mount.core, inode)?.size_bytes;
    if offset < size {
        fallocate::change_range(mount, inode, Fallocate::PunchHole, offset, len)?;
    }
    let pinned = cache::pin_inode(&mount.core, inode)?;
    let mut locked = pinned.lock();
    let end = offset + len;
    let (is_long_enough, is_longer_than_inside) = {
        let inode = &pinned.copy_if(|inode| write::check_may_write(inode, offset, Decided::Now))?;
        let is_longer = inline_change::is_longer_than_inside(&mount.core, inode, end)?;
        (end <= inode.size_bytes(), is_longer)
    };
    if is_long_enough {
        return Ok(());
    }
    truncate::end_truncation(mount, pinned.locked(&mut locked))?;
    if is_longer_than_inside {
        mount
            .space
            .retried(|| inline_change::move_out(mount, pinned.locked(&mut locked)))?;
    }
    truncate::truncate_locked(mount, pinned.locked(&mut locked), end)
}
