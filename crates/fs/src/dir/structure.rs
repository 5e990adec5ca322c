//! **Purpose.** The structure of a directory: its format, its blocks, and the checks that each kind
//! of block must pass.
//!
//! **Not here.** The format of entries and index blocks (`fourscore_ondisk::dirent`, `htree`).
//!
//! **Invariants.** A directory with a hole is `Corrupt`, and so is one with more blocks than the
//! file system.

use fourscore_block::Structure;
use fourscore_ondisk::dirent::{DirFormat, NameForm, TypeByte};
use fourscore_ondisk::dirhash::{HashAlgorithm, NameHasher};
use fourscore_ondisk::features::{Compat, Incompat};
use fourscore_ondisk::htree::{self, IndexLevels};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock};

use crate::core::Core;
use crate::dir::structure;
use crate::guard::Guard;
use crate::inode::cached::{CachedInode, Layout};
use crate::map::lookup;
use crate::map::mapping::Target;
use crate::{Result, metadata};

/// The kind of a block of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirBlock {
    /// A block of entries.
    Leaf,
    /// The root of the index, which begins with `.` and `..`.
    Root,
    /// An index block below the root.
    Node,
}

/// Returns the physical block of block `at` of a directory; a hole is `Corrupt`.
pub(crate) fn dir_place(
    core: &Core,
    dir: &CachedInode,
    at: LogicalBlock,
    guard: &Guard,
) -> Result<PhysBlock> {
    match lookup::map(core, dir, at, guard)?.target {
        Target::Written(block) => Ok(block),
        Target::Hole | Target::Unwritten(_) => {
            let error = RelationError::DirectoryHole { found: at };
            Err(Corrupt::from(error).in_inode(dir.nr()).into())
        }
    }
}

pub(crate) fn is_indexed(core: &Core, dir: &CachedInode) -> bool {
    let compat = core.superblock().features().compat;
    let indexed = compat.contains(Compat::DIR_INDEX) && dir.has(InodeFlags::INDEX_FL);
    indexed && dir.layout() != Layout::Inline
}

pub(crate) fn dir_format(core: &Core, dir: &CachedInode) -> DirFormat {
    let incompat = core.superblock().features().incompat;
    let names = match (
        dir.has(InodeFlags::ENCRYPT_FL),
        dir.has(InodeFlags::CASEFOLD_FL),
    ) {
        (false, _) => NameForm::Plain,
        (true, false) => NameForm::Encrypted,
        (true, true) => NameForm::EncryptedHashed,
    };
    let type_byte = if incompat.contains(Incompat::FILETYPE) {
        TypeByte::Present
    } else {
        TypeByte::Absent
    };
    let inodes_count = InodeNr(core.geometry().inodes());
    DirFormat {
        names,
        type_byte,
        inodes_count,
        seed: dir.seed(),
    }
}

/// Returns the number of blocks of a file that has no holes, such as a directory.
pub(crate) fn size_in_blocks(
    core: &Core,
    inode: &CachedInode,
) -> std::result::Result<LogicalBlock, Corrupt> {
    let block_bytes = core.geometry().block_size().bytes() as u64;
    let blocks = inode.size_bytes() / block_bytes;
    let limit = core.geometry().blocks().0;
    u32::try_from(blocks)
        .ok()
        .filter(|_| blocks <= limit)
        .map(LogicalBlock)
        .ok_or_else(|| {
            let error = RelationError::DirectorySize {
                found_bytes: inode.size_bytes(),
                limit,
            };
            Corrupt::from(error).in_inode(inode.nr())
        })
}

pub(crate) fn check_dir_block<'g>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    block: PhysBlock,
    what: DirBlock,
    guard: &'g Guard,
) -> Result<&'g [u8]> {
    let structure = match what {
        DirBlock::Leaf => Structure::DirectoryLeaf,
        DirBlock::Root | DirBlock::Node => Structure::DirectoryIndex,
    };
    metadata::metadata(core, block, structure, dir.nr(), guard, |bytes| {
        check_bytes(core, dir, format, what, bytes)
    })
}

/// Checks that `bytes` are a block of the kind `what` of the directory `dir`.
pub(crate) fn check_bytes(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    what: DirBlock,
    bytes: &[u8],
) -> std::result::Result<(), Corrupt> {
    let end = size_in_blocks(core, dir)?;
    match what {
        DirBlock::Leaf => format.check_block(bytes).map_err(Corrupt::from),
        DirBlock::Root => {
            htree::check_root(bytes, format, index_levels(core), end).map_err(Corrupt::from)
        }
        DirBlock::Node => htree::check_node(bytes, format, end).map_err(Corrupt::from),
    }
    .map_err(|corrupt| corrupt.in_inode(dir.nr()))
}

pub(crate) fn index_levels(core: &Core) -> IndexLevels {
    if core
        .superblock()
        .features()
        .incompat
        .contains(Incompat::LARGEDIR)
    {
        IndexLevels::Three
    } else {
        IndexLevels::Two
    }
}

/// Returns the hash algorithm of an indexed directory that is encrypted; `None` if it is not
/// encrypted.
pub(crate) fn index_algorithm(
    core: &Core,
    dir: &CachedInode,
    guard: &Guard,
) -> Result<Option<HashAlgorithm>> {
    if !dir.is_encrypted() {
        return Ok(None);
    }
    let format = structure::dir_format(core, dir);
    let root = indexed_block(core, dir, &format, LogicalBlock(0), DirBlock::Root, guard)?;
    let info = htree::root_info(root).map_err(|e| Corrupt::from(e).in_inode(dir.nr()))?;
    Ok(Some(info.algorithm))
}

/// Returns the hash function of a directory; `None` for the one that needs an encryption key.
pub(crate) fn hasher(core: &Core, algorithm: HashAlgorithm) -> Option<NameHasher> {
    NameHasher::seeded(
        algorithm,
        core.superblock().hash_sign(),
        core.superblock().hash_seed(),
    )
}

/// Reads block `at` of an indexed directory, which is of the kind `what` according to its index.
pub(crate) fn indexed_block<'g>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    at: LogicalBlock,
    what: DirBlock,
    guard: &'g Guard,
) -> Result<&'g [u8]> {
    let block = structure::dir_place(core, dir, at, guard)?;
    structure::check_dir_block(core, dir, format, block, what, guard)
}
