//! **Purpose.** Renews the checksums of attribute values that are in inodes of their own.

use fourscore_ondisk::checksum::ChecksumSeed;
use fourscore_ondisk::extent::Node;
use fourscore_ondisk::geometry::BytePlace;
use fourscore_ondisk::inode::{Inode, RawInode};
use fourscore_ondisk::xattr::EaInode;
use zerocopy::FromBytes;

use crate::device::Patched;

/// A value.
#[derive(Debug)]
pub(super) struct Value {
    inode: BytePlace,
    /// The blocks of the value, which has no holes.
    blocks: Vec<usize>,
    len_bytes: usize,
}

impl Value {
    /// The value in the inode at `place`; `None` if its extent tree has nodes outside of the inode.
    pub(super) fn find(inode: &Inode, place: BytePlace) -> Option<Self> {
        let Ok(Node::Leaf(leaf)) = Node::parse(inode.i_block()) else {
            return None;
        };
        let blocks = leaf
            .iter()
            .flat_map(|extent| {
                (0..u64::from(extent.blocks)).map(move |nth| extent.physical.0 + nth)
            })
            .map(usize::try_from);
        Some(Self {
            inode: place,
            blocks: blocks.collect::<Result<_, _>>().ok()?,
            len_bytes: usize::try_from(inode.size_bytes()).ok()?,
        })
    }

    /// Renews the checksum, if the value or the seed of checksums has changed.
    pub(super) fn seal(&self, device: &mut Patched, seed: ChecksumSeed, is_other_seed: bool) {
        let is_changed = self.blocks.iter().any(|&block| device.is_changed(block));
        if !is_changed && !is_other_seed {
            return;
        }
        let mut value: Vec<u8> = Vec::new();
        for &block in &self.blocks {
            value.extend_from_slice(device.block(block));
        }
        value.truncate(self.len_bytes);
        let block = usize::try_from(self.inode.block.0).unwrap_or(0);
        let block = device.block_mut(block);
        let bytes = block.get_mut(self.inode.offset_bytes..).unwrap_or_default();
        if let Ok((inode, _)) = RawInode::mut_from_prefix(bytes) {
            let mut facts = EaInode::of(inode);
            facts.value_hash = EaInode::hash_of(&value, seed);
            facts.put(inode);
        }
    }
}
