//! **Purpose.** The data of a file of an image as runs with holes between them. A run has its
//! offset on the device, so that it can be spliced from there.
//!
//! **Model.** Unwritten extents are holes. Blocks past the file's size are left out. Inline data is
//! one run without an offset on the device. A callback visits the runs, so memory does not grow
//! with the number of extents.

use std::ops::ControlFlow;

use fourscore::{Fs, Stat};
use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, LogicalBlock};

/// A range of a file that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first byte, counted from the start of the file.
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
    /// Offset on the device, if the data is stored there as it is read.
    pub(crate) device_offset: Option<u64>,
}

impl Run {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len_bytes)
    }

    /// Whether `next` begins where this ends, in the file and on the device.
    fn continues_with(&self, next: &Self) -> bool {
        let device_end = self
            .device_offset
            .map(|at| at.saturating_add(self.len_bytes));
        self.end() == next.offset && device_end == next.device_offset && device_end.is_some()
    }
}

/// An error of the file system or of the visitor.
pub(crate) enum Stopped<E> {
    Fs(fourscore::Error),
    Visitor(E),
}

/// Calls `visit` for the runs of a regular file in order. Runs that are adjacent on the device are
/// joined.
pub(crate) fn for_each_run<E>(
    fs: &Fs,
    stat: &Stat,
    mut visit: impl FnMut(Run) -> Result<(), E>,
) -> Result<(), Stopped<E>> {
    let size = stat.size_bytes;
    if stat
        .flags
        .intersects(InodeFlags::INLINE_DATA_FL | InodeFlags::ENCRYPT_FL)
    {
        // Encrypted data is one run as well: reading it returns the error.
        let run = Run {
            offset: 0,
            len_bytes: size,
            device_offset: None,
        };
        return if size == 0 {
            Ok(())
        } else {
            visit(run).map_err(Stopped::Visitor)
        };
    }
    let block_size = fs.geometry().block_size();
    let mut pending: Option<Run> = None;
    let mut stopped = None;
    let in_order = fs.for_each_extent(stat.inode, LogicalBlock(0), |extent| {
        let offset = u64::from(extent.logical.0) << block_size.bits();
        if offset >= size {
            return ControlFlow::Break(());
        }
        if extent.state != ExtentState::Written {
            return ControlFlow::Continue(());
        }
        let len = u64::from(extent.blocks) << block_size.bits();
        let run = Run {
            offset,
            len_bytes: len.min(size - offset),
            device_offset: Some(block_size.offset(extent.physical)),
        };
        match &mut pending {
            Some(before) if before.continues_with(&run) => before.len_bytes += run.len_bytes,
            _ => {
                if let Some(before) = pending.replace(run)
                    && let Err(error) = visit(before)
                {
                    stopped = Some(error);
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    });
    if let Some(error) = stopped {
        return Err(Stopped::Visitor(error));
    }
    in_order.map_err(Stopped::Fs)?;
    pending.map_or(Ok(()), |run| visit(run).map_err(Stopped::Visitor))
}

/// Reads exactly `buffer.len()` bytes at `offset` of a file.
pub(crate) fn read_exactly(
    fs: &Fs,
    inode: InodeNr,
    mut buffer: &mut [u8],
    mut offset: u64,
) -> fourscore::Result<()> {
    while !buffer.is_empty() {
        let count = fs.read_at(inode, buffer, offset)?;
        if count == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        buffer = buffer.get_mut(count..).unwrap_or_default();
        offset = offset.saturating_add(count as u64);
    }
    Ok(())
}
