//! **Purpose.** Inodes whose `i_block` is not a map: symbolic links, devices, pipes and sockets.

use fourscore_ondisk::PhysBlock;
use fourscore_ondisk::extent::Node;
use fourscore_ondisk::inline::InlineData;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::xattr::Xattrs;

use super::Scanner;
use crate::finding::Finding;
use crate::inode::InodeView;

const FIXED: InodeFlags = InodeFlags::IMMUTABLE_FL.union(InodeFlags::APPEND_FL);
const MAPPED: InodeFlags = InodeFlags::EXTENTS_FL.union(InodeFlags::INLINE_DATA_FL);

impl Scanner<'_> {
    /// Checks a device, pipe or socket.
    pub(super) fn special(&mut self, inode: &InodeView<'_>) {
        let (nr, flags) = (inode.number, inode.flags().bits());
        let fixed_with_blocks =
            inode.flags().intersects(FIXED) && (4..15).any(|word| inode.block_word(word) != 0);
        let indexed = inode.has(InodeFlags::INDEX_FL);
        if inode.flags().intersects(MAPPED) || indexed || fixed_with_blocks {
            self.state.bad.insert(nr.0.into());
            self.findings
                .push(Finding::SpecialMapped { inode: nr, flags });
        }
        self.no_fixed_flags(inode);
        let found = inode.size_bytes();
        if found != 0 {
            self.findings
                .push(Finding::SpecialSize { inode: nr, found });
        }
    }

    fn no_fixed_flags(&mut self, inode: &InodeView<'_>) {
        if inode.flags().intersects(FIXED) {
            let (inode, flags) = (inode.number, inode.flags().bits());
            self.findings
                .push(Finding::SpecialImmutable { inode, flags });
        }
    }

    /// Checks a symbolic link.
    pub(super) fn symlink(&mut self, inode: &InodeView<'_>) {
        match self.link_fault(inode) {
            None => self.no_fixed_flags(inode),
            Some(why) => {
                let inode = inode.number;
                self.state.bad.insert(inode.0.into());
                self.findings.push(Finding::Symlink { inode, why });
            }
        }
    }

    /// The fault of the target.
    fn link_fault(&mut self, inode: &InodeView<'_>) -> Option<&'static str> {
        let size = inode.size_bytes();
        if size == 0 || inode.base.i_size_high.get() != 0 {
            return Some("its size is 0 or more than 32 bits");
        }
        if inode.has(InodeFlags::INDEX_FL) {
            return Some("flagged as a hashed directory");
        }
        if inode.has(InodeFlags::INLINE_DATA_FL) {
            let xattrs = Xattrs::in_inode(inode.xattr_area().unwrap_or(&[]));
            let data = InlineData::find(&inode.base.i_block, &xattrs);
            let fits = data.is_ok_and(|data| data.capacity_bytes() as u64 == size);
            return (!fits).then_some("its size is not that of its inline data");
        }
        let encrypted = inode.has(InodeFlags::ENCRYPT_FL);
        if inode.is_fast_symlink() {
            let sound = target_fits(&inode.base.i_block, size, encrypted);
            return (!sound).then_some("its target is not as long as its size");
        }
        let Some(block) = self.only_block(inode) else {
            return Some("it must have exactly one block");
        };
        self.block.resize(self.volume.block_bytes(), 0);
        if self.volume.read(block, &mut self.block).is_err() {
            return Some("its block cannot be read");
        }
        let sound = target_fits(&self.block, size, encrypted);
        (!sound).then_some("its target is not as long as its size")
    }

    /// The only block of a long link; `None` if it maps anything else.
    fn only_block(&self, inode: &InodeView<'_>) -> Option<PhysBlock> {
        let block = if inode.has(InodeFlags::EXTENTS_FL) {
            let Ok(Node::Leaf(leaf)) = Node::parse(&inode.base.i_block) else {
                return None;
            };
            let extent = leaf.get(0).filter(|_| leaf.len() == 1)?;
            (extent.logical.0 == 0 && extent.blocks == 1).then_some(extent.physical)?
        } else {
            let alone = (1..15).all(|word| inode.block_word(word) == 0);
            PhysBlock(alone.then(|| inode.block_word(0))?.into())
        };
        self.volume.physical().contains(&block).then_some(block)
    }
}

/// Whether the target in `bytes` has this length and ends inside them.
fn target_fits(bytes: &[u8], size: u64, encrypted: bool) -> bool {
    let length = match (encrypted, bytes) {
        (true, [low, high, ..]) => usize::from(u16::from_le_bytes([*low, *high])) + 2,
        (true, _) => return false,
        (false, _) => bytes.iter().take_while(|&&byte| byte != 0).count(),
    };
    length < bytes.len() && length as u64 == size
}

#[cfg(test)]
mod tests {
    use super::target_fits;

    #[test]
    fn targets_end_inside_their_buffer() {
        let plain = |bytes: &[u8], size| target_fits(bytes, size, false);
        assert!(plain(b"abc\0", 3) && !plain(b"abc\0", 2) && !plain(b"abcd", 4));
        assert!(target_fits(b"\x01\0x\0", 3, true) && !target_fits(b"\x02\0xy", 4, true));
    }
}
