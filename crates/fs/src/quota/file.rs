//! **Purpose.** Reads quota files: checks them at a mount, and finds entries.
//!
//! **Not here.** The format (`fourscore_ondisk::quota`); adding entries
//! ([`crate::quota::entries`]).

use std::collections::BTreeMap;

use fourscore_ondisk::geometry::BytePlace;
use fourscore_ondisk::quota::{
    self, EntryAt, GraceTimes, InsertError, QUOTA_BLOCK_BYTES, QuotaEntry, QuotaFileError,
    QuotaKind,
};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock};

use crate::core::Core;
use crate::inode::cache;
use crate::inode::cached::CachedInode;
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::{Error, Result};

/// A quota file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaFile {
    pub(crate) kind: QuotaKind,
    pub(crate) inode: InodeNr,
}

impl QuotaFile {
    /// Checks the header, and returns the grace times.
    pub(crate) fn check(self, core: &Core) -> Result<GraceTimes> {
        let inode = self.load(core)?;
        let first = self.read_block(core, &inode, 0)?;
        let checked = quota::check_header(self.kind, blocks_of(&inode), &first);
        checked.map_err(|why| self.broken(why))
    }

    /// Returns all entries.
    pub(crate) fn entries(self, core: &Core) -> Result<BTreeMap<u32, QuotaEntry>> {
        let inode = self.load(core)?;
        let mut failed = None;
        let mut read = |number| match self.read_block(core, &inode, number) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                failed = Some(error);
                None
            }
        };
        let entries = quota::read_entries(self.kind, blocks_of(&inode), &mut read);
        match (entries, failed) {
            (Ok(entries), _) => Ok(entries),
            (Err(_), Some(error)) => Err(error),
            (Err(why), None) => Err(self.broken(why)),
        }
    }

    /// Returns where the entry of `id` is; `None` if it has none.
    pub(super) fn find(self, core: &Core, id: u32) -> Result<Option<BytePlace>> {
        let inode = self.load(core)?;
        let found = quota::look_up(id, &mut |number| self.read_block(core, &inode, number));
        match found.map_err(|error| self.failed(error))? {
            Some(at) => Ok(Some(self.place_of(core, &inode, at)?)),
            None => Ok(None),
        }
    }

    pub(super) fn load(self, core: &Core) -> Result<CachedInode> {
        CachedInode::new(cache::load_inode(core, self.inode)?, core.superblock())
    }

    pub(super) fn place_of(
        self,
        core: &Core,
        inode: &CachedInode,
        at: EntryAt,
    ) -> Result<BytePlace> {
        let (logical, within) = logical_of(core, at.block)?;
        match lookup::map_locked(core, inode, logical)?.target {
            Target::Written(block) => Ok(BytePlace {
                block,
                offset_bytes: within + at.offset,
            }),
            _ => Err(self.broken(QuotaFileError::Pointer)),
        }
    }

    pub(super) fn read_block(
        self,
        core: &Core,
        inode: &CachedInode,
        number: u32,
    ) -> Result<[u8; QUOTA_BLOCK_BYTES]> {
        let at = EntryAt {
            block: number,
            offset: 0,
        };
        let place = self.place_of(core, inode, at)?;
        let range = place.offset_bytes..place.offset_bytes + QUOTA_BLOCK_BYTES;
        let mut read = [0; QUOTA_BLOCK_BYTES];
        core.buffers.load(place.block)?.look(|bytes| {
            if let Some(bytes) = bytes.get(range) {
                read.copy_from_slice(bytes);
            }
        });
        Ok(read)
    }

    pub(super) fn failed(self, error: InsertError<Error>) -> Error {
        match error {
            InsertError::Read(error) => error,
            InsertError::File(why) => self.broken(why),
        }
    }

    pub(super) fn broken(self, why: QuotaFileError) -> Error {
        let error = RelationError::QuotaFile { why: why.as_str() };
        Corrupt::from(error).in_inode(self.inode).into()
    }
}

/// Returns the entry at `place`.
pub(super) fn entry_at(core: &Core, place: BytePlace) -> Result<QuotaEntry> {
    let buffer = core.buffers.load(place.block)?;
    let entry = buffer.look(|bytes| {
        let bytes = bytes.get(place.offset_bytes..).unwrap_or_default();
        QuotaEntry::of(bytes)
    });
    Ok(entry.map_or_else(QuotaEntry::default, |(_, entry)| entry))
}

/// Returns the number of blocks of 1 KiB that a quota file has.
fn blocks_of(inode: &CachedInode) -> u32 {
    let blocks = inode.size_bytes() / QUOTA_BLOCK_BYTES as u64;
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// Returns the block of the file that holds a block of 1 KiB, and the offset there.
pub(super) fn logical_of(core: &Core, number: u32) -> Result<(LogicalBlock, usize)> {
    let size = core.geometry().block_size();
    let at = u64::from(number) * QUOTA_BLOCK_BYTES as u64;
    let logical = u32::try_from(at >> size.bits()).map_err(|_| Error::FileTooLarge)?;
    let within = usize::try_from(at).unwrap_or(0) & (size.bytes() - 1);
    Ok((LogicalBlock(logical), within))
}
