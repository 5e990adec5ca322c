//! **Purpose.** The epoch guard of a reader. A reader that misses a cache drops its guard, loads
//! what is missing, and restarts, so no guard is held while the device is read.
//!
//! **Model.** Code that reads metadata takes a [`Guard`], and all that it finds lives as long as
//! the guard. If a block or an inode is not in memory, the code notes that in the guard and fails.
//! The functions that pin ([`with_guard`] and [`crate::inode::consistent`]) then drop the guard,
//! load it with [`Loader::load`], and call the code again:
//!
//! ```text
//! pin --> read ---------------- found or failed --> return
//!  ^        `- not in memory --> unpin --> load from the device -.
//!  '-------------------------------------------------------------'
//! ```
//!
//! A guard keeps alive all memory that other threads retire meanwhile, and the blocks that they
//! free cannot be reused. If a guard were held while a slow device is read, or one that hangs, all
//! threads would lack that memory and those blocks.
//!
//! **Invariants.**
//! - The result of code that noted a miss is discarded, whether or not the code passed the failure
//!   on to its caller.
//! - A reader makes progress: after [`MISSES_UNPINNED`] misses its guard loads while pinned. Only a
//!   cache that is too small to hold what one reader needs leads to that.
//!
//! **Locking.** None.

use std::cell::Cell;
use std::ops::Deref;

use fourscore_block::{BlockDevice as _, Buffer};
use fourscore_ondisk::{BlockCount, InodeNr, PhysBlock};
use fourscore_sync::epoch;

use crate::core::Core;
use crate::{Error, Result};

/// How many misses of one reader are loaded without a guard. A walk from an inode to the last leaf
/// of its map or index needs less than a dozen blocks.
pub(crate) const MISSES_UNPINNED: u32 = 64;

/// An epoch guard that notes what its holder did not find in memory.
pub(crate) struct Guard {
    epoch: epoch::Guard,
    missed: Cell<Option<Missed>>,
    on_miss: OnMiss,
    /// Where the blocks begin that were read ahead last.
    read_ahead: Option<PhysBlock>,
    data: Loaded,
}

/// What was not in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Missed {
    /// A block of metadata.
    Block(PhysBlock),
    /// Blocks of metadata that are read ahead together, as far as they can be read.
    Ahead(PhysBlock, BlockCount),
    /// An inode, and the function that loads it into the inode cache.
    Inode(InodeNr, fn(&Core, InodeNr) -> Result<()>),
    /// Bytes of the device that are not cached: data.
    Data { offset: u64, len: usize },
    /// As `Data`, for a reader that can do without the bytes if they cannot be read.
    Hint { offset: u64, len: usize },
}

/// What happens when something is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnMiss {
    /// The reader fails and restarts without the guard.
    Fail,
    /// It is loaded under the guard.
    Load,
}

impl Deref for Guard {
    type Target = epoch::Guard;

    fn deref(&self) -> &epoch::Guard {
        &self.epoch
    }
}

impl Guard {
    /// Returns the buffer of `block`.
    ///
    /// # Errors
    /// The block is not in memory and was noted as missed; or it cannot be read.
    pub(crate) fn buffer<'g>(&'g self, core: &Core, block: PhysBlock) -> Result<&'g Buffer> {
        loop {
            if let Some(buffer) = core.buffers.cached(block, self) {
                return Ok(buffer);
            }
            self.miss(Missed::Block(block))?;
            // It is in memory afterwards, unless the cache is so small that it was evicted again.
            core.buffers.load_pinned(block)?;
        }
    }

    /// Reads blocks of metadata ahead, once: a block that cannot be read is missed on its own when
    /// it is needed.
    ///
    /// # Errors
    /// They were noted as missed.
    pub(crate) fn read_ahead(
        &self,
        core: &Core,
        first: PhysBlock,
        count: BlockCount,
    ) -> Result<()> {
        if self.read_ahead == Some(first) {
            return Ok(());
        }
        self.miss(Missed::Ahead(first, count))?;
        core.buffers.read_ahead(first, count);
        Ok(())
    }

    /// Returns `len` bytes of data from byte `offset` of the device on.
    ///
    /// # Errors
    /// They are not loaded and were noted as missed.
    pub(crate) fn data(&self, offset: u64, len: usize) -> Result<&[u8]> {
        match self.data.find(offset, len) {
            Some(Some(bytes)) => Ok(bytes),
            _ => Err(self.note(Missed::Data { offset, len })),
        }
    }

    /// As [`Guard::data`]; `None` if the bytes could not be read.
    ///
    /// # Errors
    /// They are not loaded and were noted as missed.
    pub(crate) fn data_if_readable(&self, offset: u64, len: usize) -> Result<Option<&[u8]>> {
        match self.data.find(offset, len) {
            Some(found) => Ok(found),
            None => Err(self.note(Missed::Hint { offset, len })),
        }
    }

    /// Notes that something is not in memory.
    ///
    /// # Errors
    /// Always, unless the caller is to load it under the guard.
    pub(crate) fn miss(&self, missed: Missed) -> Result<()> {
        match self.on_miss {
            OnMiss::Load => Ok(()),
            OnMiss::Fail => Err(self.note(missed)),
        }
    }

    fn note(&self, missed: Missed) -> Error {
        self.missed.set(Some(missed));
        Error::Internal("a read that missed the cache was not restarted")
    }

    /// Whether data was loaded for the holder.
    pub(crate) fn has_data(&self) -> bool {
        let mut data = self.data.0.iter();
        data.any(|data| !data.pieces.is_empty())
    }
}

/// Data that was read from the device for one reader. Few readers have any.
#[derive(Debug, Default)]
struct Loaded(Option<Box<Data>>);

#[derive(Debug, Default)]
struct Data {
    pieces: Vec<Piece>,
    /// The memory of data that was forgotten, for the next piece.
    spare: Vec<u8>,
}

/// Bytes of the device.
#[derive(Debug)]
struct Piece {
    offset: u64,
    bytes: Vec<u8>,
    /// Whether they could be read.
    is_read: bool,
}

impl Loaded {
    /// Returns the bytes; `None` if they were not loaded, `Some(None)` if that failed.
    fn find(&self, offset: u64, len: usize) -> Option<Option<&[u8]>> {
        let mut all = self.0.iter().flat_map(|data| data.pieces.iter());
        let is_it = |piece: &&Piece| piece.offset == offset && piece.bytes.len() == len;
        // The last one: bytes that could not be read may have been read since.
        let found = all.rfind(is_it);
        found.map(|piece| piece.is_read.then_some(&piece.bytes[..]))
    }
}

/// Loads what one reader misses.
#[derive(Debug, Default)]
pub(crate) struct Loader {
    misses: u32,
    read_ahead: Option<PhysBlock>,
    data: Loaded,
}

impl Loader {
    /// A loader that reads data into `buf` first; [`Loader::into_buffer`] returns it.
    pub(crate) fn with_buffer(buf: Vec<u8>) -> Self {
        let data = Data {
            spare: buf,
            ..Data::default()
        };
        Self {
            data: Loaded(Some(Box::new(data))),
            ..Self::default()
        }
    }

    /// Returns the memory of the buffer, for another loader.
    pub(crate) fn into_buffer(mut self) -> Vec<u8> {
        self.forget_data();
        self.data.0.map_or_else(Vec::new, |data| data.spare)
    }

    /// As [`with_guard`], for a reader that reads several pieces with one loader.
    pub(crate) fn run<T>(
        &mut self,
        core: &Core,
        mut look: impl FnMut(&Guard) -> Result<T>,
    ) -> Result<T> {
        loop {
            let guard = self.pin();
            let found = look(&guard);
            let Some(missed) = self.unpin(guard) else {
                return found;
            };
            self.load(core, missed)?;
        }
    }

    /// Begins the next piece of a read.
    pub(crate) fn next_piece(&mut self) {
        self.misses = 0;
        self.forget_data();
    }

    /// Pins the epoch for the reader.
    #[inline]
    pub(crate) fn pin(&mut self) -> Guard {
        Guard {
            epoch: epoch::pin(),
            missed: Cell::new(None),
            on_miss: match self.misses < MISSES_UNPINNED {
                true => OnMiss::Fail,
                false => OnMiss::Load,
            },
            read_ahead: self.read_ahead,
            data: std::mem::take(&mut self.data),
        }
    }

    /// Ends the reader's guard. Returns what the reader has missed.
    #[inline]
    pub(crate) fn unpin(&mut self, guard: Guard) -> Option<Missed> {
        self.data = guard.data;
        guard.missed.get()
    }

    /// Loads what the reader has missed. The caller holds no guard.
    ///
    /// # Errors
    /// `Io`; for an inode also `NotFound` if it is not in use, and `Corrupt`.
    #[cold]
    pub(crate) fn load(&mut self, core: &Core, missed: Missed) -> Result<()> {
        epoch::assert_not_pinned();
        self.misses += 1;
        match missed {
            Missed::Block(block) => drop(core.buffers.load(block)?),
            Missed::Ahead(first, count) => {
                core.buffers.read_ahead(first, count);
                self.read_ahead = Some(first);
            }
            Missed::Inode(nr, load_inode) => load_inode(core, nr)?,
            Missed::Data { offset, len } => self.read(core, offset, len)?,
            Missed::Hint { offset, len } => {
                if self.read(core, offset, len).is_err() {
                    self.data().pieces.push(Piece {
                        offset,
                        bytes: vec![0; len],
                        is_read: false,
                    });
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, core: &Core, offset: u64, len: usize) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.data().spare);
        bytes.resize(len, 0);
        core.device.read_at(&mut bytes, offset)?;
        self.data().pieces.push(Piece {
            offset,
            bytes,
            is_read: true,
        });
        Ok(())
    }

    fn data(&mut self) -> &mut Data {
        self.data.0.get_or_insert_default()
    }

    /// Discards data that was read: its blocks may belong to another inode now.
    pub(crate) fn forget_data(&mut self) {
        if let Some(data) = &mut self.data.0
            && let Some(piece) = data.pieces.drain(..).next_back()
        {
            data.spare = piece.bytes;
        }
    }
}

/// Returns the result of `look`, which is called with a guard, and again with another one for each
/// block or inode that was not in memory. The caller holds no guard. What `look` reads must be one
/// object, or must not change meanwhile; for anything else see [`crate::inode::consistent`].
///
/// # Errors
/// Those of `look`; what was missed cannot be loaded.
pub(crate) fn with_guard<T>(core: &Core, look: impl FnMut(&Guard) -> Result<T>) -> Result<T> {
    Loader::default().run(core, look)
}
