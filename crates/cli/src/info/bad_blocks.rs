//! **Purpose.** The blocks that are marked as bad: those of inode 1.
//!
//! **Model.** The inode has neither type nor links, so it is no file that the library opens. It has
//! a block map of indirect blocks; it is not changed by a mount, so it is never in the journal.
//!
//! **Invariants.** A map block is read once, so that a damaged map ends.
//!
//! **References.** The kernel's documentation of ext4, "Special inodes" and "Direct/Indirect Block
//! Addressing".

use std::collections::HashSet;

use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{GroupNr, PhysBlock};

use crate::failure::Result;
use crate::image::Image;

/// The bytes of an inode that every size of inodes has.
const INODE_BYTES: usize = 128;
const FLAGS_AT: usize = 32;
const MAP_AT: usize = 40;
/// The pointers of the map: to data, then to blocks of pointers of one, two and three levels.
const DIRECT: usize = 12;
const POINTERS: usize = 15;

/// The bad blocks, in the order of the map.
///
/// # Errors
/// The map cannot be read, or is damaged.
pub(super) fn list(image: &Image) -> Result<Vec<u32>> {
    let failed = |why: &dyn std::fmt::Display| image.failure(b"bad blocks", why);
    let desc = image.fs.group(GroupNr(0)).map_err(|why| failed(&why))?;
    let size = image.fs.geometry().block_size();
    let mut inode = [0; INODE_BYTES];
    let read = image
        .fs
        .device()
        .read_at(&mut inode, size.offset(desc.inode_table()));
    read.map_err(|why| failed(&why))?;
    let flags = pointers(&inode[FLAGS_AT..]).next().unwrap_or(0);
    if flags & InodeFlags::EXTENTS_FL.bits() != 0 {
        return Err(failed(&"the map is one of extents, which no program makes"));
    }
    let mut walk = Walk {
        image,
        seen: HashSet::new(),
        found: Vec::new(),
    };
    for (nr, pointer) in pointers(&inode[MAP_AT..]).take(POINTERS).enumerate() {
        let levels = (nr + 1).saturating_sub(DIRECT);
        walk.visit(pointer, levels).map_err(|why| failed(&why))?;
    }
    Ok(walk.found)
}

/// The little-endian numbers of 32 bits.
fn pointers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|&word| u32::from_le_bytes(word))
}

struct Walk<'i> {
    image: &'i Image,
    /// Blocks of pointers that were read.
    seen: HashSet<u32>,
    found: Vec<u32>,
}

impl Walk<'_> {
    /// Follows a pointer through so many levels of blocks.
    fn visit(&mut self, pointer: u32, levels: usize) -> std::result::Result<(), String> {
        if pointer == 0 {
            return Ok(());
        }
        if levels == 0 {
            self.found.push(pointer);
            return Ok(());
        }
        let geometry = self.image.fs.geometry();
        if u64::from(pointer) >= geometry.blocks().0 || !self.seen.insert(pointer) {
            return Err(format!("the block map is damaged at block {pointer}"));
        }
        let size = geometry.block_size();
        let mut block = vec![0; size.bytes()];
        let at = size.offset(PhysBlock(pointer.into()));
        let read = self.image.fs.device().read_at(&mut block, at);
        read.map_err(|why| why.to_string())?;
        pointers(&block).try_for_each(|pointer| self.visit(pointer, levels - 1))
    }
}
