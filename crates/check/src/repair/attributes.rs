//! **Purpose.** Patches of extended attributes: an area that is not sound is emptied, a block that
//! is not is taken from all inodes that use it.

use std::collections::BTreeSet;

use fourscore_ondisk::dirhash::CharSign;
use fourscore_ondisk::inode::GOOD_OLD_INODE_SIZE_BYTES;
use fourscore_ondisk::xattr::{self, HashedValue, Value, Xattrs};
use fourscore_ondisk::{InodeNr, PhysBlock};

use super::editor::{Editor, Patch};
use crate::finding::Finding;
use crate::inode::InodeView;

impl Editor<'_> {
    /// Empties the area that a finding about an attribute of an inode is about: that in the inode
    /// if it shows the fault, else the block.
    pub(super) fn drop_attributes(&self, nr: InodeNr, finding: &Finding) -> Patch {
        let (in_inode, block) = self.with_inode(nr, |inode| {
            let area = inode.xattr_area().unwrap_or(&[]);
            (shows(area, finding), inode.file_acl(&self.volume.sb))
        })?;
        if in_inode || block.0 == 0 {
            return self.empty_inode_area(nr);
        }
        self.drop_block(block)
    }

    /// Removes all attributes inside an inode.
    pub(super) fn empty_inode_area(&self, nr: InodeNr) -> Patch {
        self.edit_inode(nr, |bytes| {
            let extra = InodeView::new(bytes, nr).and_then(|view| view.extra_isize());
            let start = GOOD_OLD_INODE_SIZE_BYTES + usize::from(extra.unwrap_or(0));
            if let Some(area) = bytes.get_mut(start..) {
                area.fill(0);
            }
        })
    }

    /// Removes an attribute block from all inodes that name it.
    pub(super) fn drop_block(&self, block: PhysBlock) -> Patch {
        let mut users = BTreeSet::new();
        let all = 0..self.state.used.len();
        let mut bytes = Vec::new();
        self.state.used.runs_in(all, |run| {
            for nr in run {
                let nr = InodeNr(u32::try_from(nr).unwrap_or(u32::MAX));
                let read = self.volume.read_inode(nr, &mut bytes);
                let view = read.and_then(|()| InodeView::new(&bytes, nr));
                if view.is_some_and(|view| view.file_acl(&self.volume.sb) == block) {
                    users.insert(nr);
                }
            }
        });
        users.into_iter().try_for_each(|nr| self.drop_acl(nr))
    }

    /// Sets `i_file_acl` of an inode to 0.
    pub(super) fn drop_acl(&self, nr: InodeNr) -> Patch {
        self.edit_base(nr, |base| {
            base.i_file_acl_lo = 0.into();
            base.i_file_acl_high = 0.into();
        })
    }

    /// Whether an attribute block is sound by itself.
    pub(super) fn is_attribute_block(&self, block: PhysBlock) -> bool {
        let (ea_inodes, seed) = (self.volume.ea_inodes(), self.volume.seed());
        let checked = |bytes: &Vec<u8>| xattr::check_block(bytes, block, ea_inodes, seed).is_ok();
        self.volume.physical().contains(&block)
            && self.read_block(block).is_ok_and(|bytes| checked(&bytes))
    }
}

/// Whether the area of attributes inside an inode shows the fault of a finding.
fn shows(area: &[u8], finding: &Finding) -> bool {
    let xattrs = Xattrs::in_inode(area);
    let mut entries = xattrs.entries().map_while(Result::ok);
    match finding {
        Finding::XattrInInode { .. } => true,
        Finding::XattrHash { at, found, .. } => entries.any(|entry| {
            let is_it = u32::try_from(entry.at) == Ok(*at) && entry.hash == *found && *found != 0;
            let Value::Inline(value) = entry.value else {
                return false;
            };
            let hash =
                xattr::entry_hash(entry.name, HashedValue::Inline(value), CharSign::Unsigned);
            is_it && hash != *found
        }),
        Finding::XattrValueInode { value, .. } => entries
            .any(|entry| matches!(entry.value, Value::Inode { inode, .. } if inode == *value)),
        Finding::XattrCollision { .. } => {
            let mut places: Vec<(usize, usize)> = xattrs
                .entries()
                .map_while(Result::ok)
                .filter_map(|entry| match entry.value {
                    Value::Inline(value) if !value.is_empty() => {
                        let at = xattrs.value_place(&entry)?;
                        Some((at, at + value.len().next_multiple_of(4)))
                    }
                    _ => None,
                })
                .collect();
            places.sort_unstable();
            places.windows(2).any(|pair| pair[1].0 < pair[0].1)
        }
        _ => false,
    }
}
