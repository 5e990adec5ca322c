//! **Purpose.** Reads the parts of an image that the report needs, past the library's caches: it
//! reads each of them once.

use std::io;

use fourscore::{Error, InodeNr, PhysBlock, Superblock};
use fourscore_ondisk::checksum::ChecksumSeed;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::Inode;
use fourscore_ondisk::xattr::{self, EaInodes};
use fourscore_ondisk::{Corrupt, Geometry};

use crate::image::Image;

/// An image, seen as blocks and inodes.
#[derive(Clone, Copy)]
pub(super) struct Volume<'a> {
    pub(super) image: &'a Image,
}

impl<'a> Volume<'a> {
    pub(super) fn superblock(self) -> &'a Superblock {
        self.image.fs.superblock()
    }

    pub(super) fn geometry(self) -> &'a Geometry {
        self.image.fs.geometry()
    }

    pub(super) fn block_bytes(self) -> usize {
        self.geometry().block_size().bytes()
    }

    pub(super) fn seed(self) -> ChecksumSeed {
        self.superblock().checksum_seed()
    }

    /// The inodes that may hold values.
    pub(super) fn ea_inodes(self) -> EaInodes {
        let sb = self.superblock();
        if sb.features().incompat.contains(Incompat::EA_INODE) {
            EaInodes::Between {
                first: sb.first_inode(),
                last: InodeNr(self.geometry().inodes()),
            }
        } else {
            EaInodes::Absent
        }
    }

    /// Fills `buffer` from the start of a block.
    pub(super) fn read(self, block: PhysBlock, buffer: &mut [u8]) -> io::Result<()> {
        let offset = self.geometry().block_size().offset(block);
        self.image.fs.device().read_at(buffer, offset)
    }

    /// Reads a block of attributes into `buffer`, and checks it.
    pub(super) fn read_attributes(
        self,
        block: PhysBlock,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        buffer.resize(self.block_bytes(), 0);
        self.read(block, buffer)?;
        let seed = self.superblock().has_metadata_csum().then(|| self.seed());
        xattr::check_block(buffer, block, self.ea_inodes(), seed).map_err(Corrupt::from)?;
        Ok(())
    }

    /// Reads an inode from its table.
    pub(super) fn read_inode(self, nr: InodeNr) -> Result<Inode, Error> {
        let geometry = self.geometry();
        let (group, index) = geometry.inode_group(nr).ok_or(Error::NotFound)?;
        let table = self.image.fs.group(group)?.inode_table();
        let place = geometry.inode_place(table, index);
        let offset = geometry.block_size().offset(place.block) + place.offset_bytes as u64;
        let mut bytes = vec![0; geometry.inode_size_bytes()];
        self.image.fs.device().read_at(&mut bytes, offset)?;
        let parsed = Inode::parse(&bytes, nr, self.superblock());
        Ok(parsed.map_err(|error| Corrupt::from(error).in_inode(nr))?)
    }
}
