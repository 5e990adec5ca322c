//! **Purpose.** Computes which logical blocks of an object have data.

use fourscore_ondisk::inode::FileType;

use super::directory::Shape;
use super::facts::Facts;
use crate::error::{BuildError, BuildResult};
use crate::source::is_id;
use crate::tree::{Content, NodeId, Stored, Tree};

/// Largest length of a link target in the inode, without its terminating NUL.
pub(crate) const FAST_TARGET_BYTES: usize = 59;

/// A range of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) blocks: u64,
}

impl Range {
    fn end(self) -> u64 {
        self.first + self.blocks
    }
}

/// Collects the logical blocks of an object that have data: sorted, with gaps between ranges.
pub(crate) fn ranges(
    tree: &Tree,
    facts: &Facts,
    shapes: &[Shape],
    node: NodeId,
    out: &mut Vec<Range>,
) {
    out.clear();
    let mut whole = |blocks: u64| {
        if blocks > 0 {
            out.push(Range { first: 0, blocks });
        }
    };
    match &tree.node(node).stored {
        Stored::Directory(list) => {
            whole(
                shapes
                    .get(*list as usize)
                    .map_or(0, |shape| shape.blocks().into()),
            );
        }
        Stored::Symlink(target) => {
            whole(u64::from(tree.text(*target).len() > FAST_TARGET_BYTES));
        }
        Stored::File(Content::Sparse(sparse)) => {
            let parts = sparse.pieces.iter();
            let parts = parts.map(|piece| piece.at..piece.at + piece.len_bytes);
            ranges_of_parts(parts, facts.block_bits, out);
        }
        Stored::File(content) => whole(facts.blocks(content.len_bytes())),
        Stored::CharDevice(_) | Stored::BlockDevice(_) | Stored::Fifo | Stored::Socket => {}
    }
}

/// Collects the blocks of these byte ranges of a file, which must be in order.
pub(crate) fn ranges_of_parts(
    parts: impl Iterator<Item = std::ops::Range<u64>>,
    block_bits: u32,
    out: &mut Vec<Range>,
) {
    out.clear();
    for part in parts.filter(|part| !part.is_empty()) {
        let first = part.start >> block_bits;
        let end = part.end.div_ceil(1 << block_bits);
        match out.last_mut() {
            Some(last) if first <= last.end() => {
                last.blocks = last.blocks.max(end - last.first);
            }
            _ => out.push(Range {
                first,
                blocks: end - first,
            }),
        }
    }
}

/// The size in the inode of an object.
pub(crate) fn size_bytes(tree: &Tree, facts: &Facts, shapes: &[Shape], node: NodeId) -> u64 {
    match &tree.node(node).stored {
        Stored::Directory(list) => {
            let shape = shapes.get(*list as usize);
            shape.map_or(0, |shape| shape.size_bytes(facts))
        }
        Stored::Symlink(target) => tree.text(*target).len() as u64,
        Stored::File(content) => content.len_bytes(),
        Stored::CharDevice(_) | Stored::BlockDevice(_) | Stored::Fifo | Stored::Socket => 0,
    }
}

/// Checks that the format can hold an object, and that its owner can exist.
pub(crate) fn check(tree: &Tree, facts: &Facts, node: NodeId) -> BuildResult<()> {
    /// The largest link count of an ext4 inode.
    const MAX_LINKS: u32 = 65_000;
    let meta = tree.meta(node);
    for (kind, id) in [("user", meta.uid), ("group", meta.gid)] {
        if !is_id(id) {
            let path = tree.path_of(node);
            return Err(BuildError::Owner { path, kind, id });
        }
    }
    let links = tree.links(node);
    let is_directory = tree.file_type(node) == FileType::Directory;
    if links > MAX_LINKS && !is_directory {
        return Err(BuildError::TooManyLinks {
            path: tree.path_of(node),
            links: links.into(),
            most: MAX_LINKS.into(),
        });
    }
    match &tree.node(node).stored {
        Stored::File(content) => {
            let len_bytes = content.len_bytes();
            if facts.blocks(len_bytes) > facts.logical_end() {
                let path = tree.path_of(node);
                return Err(BuildError::FileTooLarge { path, len_bytes });
            }
        }
        Stored::Symlink(target) => {
            let length = tree.text(*target).len();
            // The kernel requires a terminating NUL in the block.
            if length >= facts.block_bytes() {
                let path = tree.path_of(node);
                return Err(BuildError::TargetTooLong { path, length });
            }
        }
        Stored::CharDevice(number) | Stored::BlockDevice(number)
            if number.to_i_block().is_none() =>
        {
            let path = tree.path_of(node);
            return Err(BuildError::DeviceNumber { path });
        }
        _ => {}
    }
    Ok(())
}
