//! **Purpose.** Directories: their forms, and finding a name.
//!
//! **Not here.** Listing names ([`crate::dir::listing`]), going through the blocks
//! ([`crate::dir::blocks`]).
//!
//! **Model.** A directory is one of three things: inline data with entries in it, blocks of
//! entries, or such blocks with an index of hashes over them. A search in an indexed one follows
//! the hash of the name.
//!
//! ```text
//! lookup:  inline -> scan      indexed -> hash, descend, scan one leaf (or the next, if the
//!          blocks -> scan                  hash goes on there)
//! ```
//!
//! **Invariants.** A search visits each leaf at most once, whatever the index says.
//!
//! **Locking.** None: see [`crate::inode::consistent`].

use crate::core::Core;
use crate::dir::blocks::{Course, Left, Through, break_if};
use crate::dir::names::Wanted;
use crate::dir::{blocks, index, name_cache, names};
use crate::file::inline;
use crate::inode::cache;
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::consistent::{UNLOCKED_ATTEMPTS, read_locked};
use crate::map::lookup;
use crate::map::lookup::Target;
use crate::mount::fast_commit;
use crate::{Error, Result, metadata};
use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::dirent::{DirFormat, DirentError, MAX_NAME_BYTES, NameForm, TypeByte};
use fourscore_ondisk::features::{Compat, Incompat};
use fourscore_ondisk::htree::IndexLevels;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock, htree};
use fourscore_sync::epoch;
use fourscore_sync::epoch::Guard;
use fourscore_sync::thread;

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode it leads to.
    pub inode: InodeNr,
    /// The name as a user sees it: any bytes but `/` and NUL. `.` and `..` are entries as well.
    /// In an encrypted directory, the form Linux shows without the key.
    pub name: &'a [u8],
    /// The type of the inode, where the directory tells it.
    pub file_type: Option<FileType>,
}

/// A name in a directory, with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedDirEntry {
    /// The inode it leads to.
    pub inode: InodeNr,
    /// The name, as in [`DirEntry::name`].
    pub name: Vec<u8>,
    /// The type of the inode, where the directory tells it.
    pub file_type: Option<FileType>,
}

impl DirEntry<'_> {
    /// The same with bytes of its own.
    #[must_use]
    pub fn to_owned(&self) -> OwnedDirEntry {
        OwnedDirEntry {
            inode: self.inode,
            name: self.name.to_vec(),
            file_type: self.file_type,
        }
    }
}

/// What a look for a name leaves in the cache of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The name, if it is found.
    Found,
    /// Nothing: it is looked for once, or because it is about to go.
    Nothing,
}

/// What a block of a directory is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirBlock {
    /// Entries.
    Leaf,
    /// The root of the index, which begins with `.` and `..`.
    Root,
    /// An index block below the root.
    Node,
}

/// See [`Fs::lookup`](crate::Fs::lookup).
pub(crate) fn lookup(core: &Core, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
    find_name(core, dir, name, Keep::Found)
}

/// See [`Fs::lookup_once`](crate::Fs::lookup_once).
pub(crate) fn lookup_once(core: &Core, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
    find_name(core, dir, name, Keep::Nothing)
}

/// Where the name leads by the blocks of `dir`. For [`Fs::find_name`] and holders of the lock.
pub(crate) fn look_up_once(
    core: &Core,
    dir: &CachedInode,
    name: &[u8],
    guard: &Guard,
) -> Result<InodeNr> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::NameTooLong);
    }
    if name == b"." {
        return Ok(dir.nr());
    }
    let wanted = names::wanted(core, dir, name);
    if let Some(changes) = fast_commit::dir_changes(core, dir.nr())
        && let Some(now) = changes.find(&wanted, name)
    {
        return now.ok_or(Error::NotFound);
    }
    if is_indexed(core, dir) && (name == b".." || wanted.hash_input().is_some()) {
        if let Some(inode) = index::search_index(core, dir, &wanted, guard)? {
            return Ok(inode);
        }
        if !wanted.hash_may_mislead() {
            return Err(Error::NotFound);
        }
    }
    search_blocks(core, dir, &wanted, guard)?.ok_or(Error::NotFound)
}

/// The inode of the name, which may be in any block of the directory.
fn search_blocks(
    core: &Core,
    dir: &CachedInode,
    wanted: &Wanted<'_>,
    guard: &Guard,
) -> Result<Option<InodeNr>> {
    let format = dir_format(core, dir);
    let mut found = None;
    if dir.layout() == Layout::Inline {
        inline::visit_inline_entries(core, dir, &format, &mut |entry| {
            let here = wanted.matches(entry);
            found = here.then_some(entry.inode);
            Ok(break_if(here))
        })?;
        return Ok(found);
    }
    if size_in_blocks(core, dir)? == LogicalBlock(1) && !dir.has(InodeFlags::INDEX_FL) {
        return search_leaf(core, dir, &format, LogicalBlock(0), wanted, guard);
    }
    let mut course = Course::default();
    let mut left = Left::More;
    while left == Left::More {
        let cache = &mut Through::Cache;
        left = blocks::visit_blocks(
            core,
            dir,
            &format,
            &mut course,
            cache,
            guard,
            &mut |listed| {
                let entry = wanted.find_in(&format, listed.bytes);
                let entry = entry.map_err(|error| listed.broken(dir, error))?;
                found = entry.map(|entry| entry.inode);
                Ok(break_if(found.is_some()))
            },
        )?;
        course.accept();
    }
    Ok(found)
}

/// The inode of the name, if it is in block `at`, which is a leaf.
pub(crate) fn search_leaf(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    at: LogicalBlock,
    wanted: &Wanted<'_>,
    guard: &Guard,
) -> Result<Option<InodeNr>> {
    let block = dir_place(core, dir, at, guard)?;
    let found = look_at_leaf(core, dir, format, block, guard, |bytes| {
        let entry = wanted.find_in(format, bytes)?;
        Ok(entry.map(|entry| entry.inode))
    })?;
    Ok(found.map_err(|error: DirentError| Corrupt::from(error).in_inode(dir.nr()))?)
}

/// What `look` makes of a leaf of `dir`. One in which names are being made stays as it is: who
/// looks for a name before he makes it would else have the leaf copied for each. So `look` may
/// run under the lock of the leaf's buffer, and is to be about bytes only.
pub(crate) fn look_at_leaf<R>(
    core: &Core,
    dir: &CachedInode,
    format: &DirFormat,
    block: PhysBlock,
    guard: &Guard,
    look: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    let tag = VerifiedAs::new(Structure::DirectoryLeaf, dir.nr());
    let check = |bytes: &[u8]| check_bytes(core, dir, format, DirBlock::Leaf, bytes);
    metadata::look_at_metadata(core, block, tag, guard, check, look)
}

/// Where block `at` of a directory is.
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

pub(crate) fn directory<'g>(_core: &Core, dir: &'g CachedInode) -> Result<&'g CachedInode> {
    if dir.file_type() == FileType::Directory {
        Ok(dir)
    } else {
        Err(Error::NotADirectory)
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

/// The number of blocks of a file that has no holes, such as a directory.
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

/// Whether `bytes` are `what` of the directory `dir`.
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

/// Where `name` leads in the directory `dir`. The caller holds no lock of a directory and no
/// epoch guard.
///
/// # Errors
/// `NotFound`, `NotADirectory`, `NameTooLong`.
pub(crate) fn find_name(core: &Core, dir: InodeNr, name: &[u8], keep: Keep) -> Result<InodeNr> {
    for attempt in 0..UNLOCKED_ATTEMPTS {
        let guard = epoch::pin();
        let cell = cache::cell(core, dir, &guard)?;
        // The moment first: what is found behind it is kept only if no name has left since.
        let (begun, moment) = (cell.sequence().begin(), cell.departures().moment());
        let here = directory(core, cell.version(&guard)?.not_a_value()?)?;
        let key = name_cache::name_key(core, here, name);
        if let Some(known) = key.and_then(|key| core.names.get(&key, &guard)) {
            return Ok(known);
        }
        match look_up_once(core, here, name, &guard) {
            // Found in a block that the directory has, or had when this began.
            Ok(inode) => {
                // A name in the cache of names has passed this.
                if keep == Keep::Found
                    && let Ok(found) = cache::any_inode(core, inode, &guard)
                {
                    found.not_a_value()?;
                }
                if let (Keep::Found, Some(key), Some(moment)) = (keep, key, moment) {
                    name_cache::keep_name(core, &key, inode, moment, &guard);
                }
                return Ok(inode);
            }
            Err(error) => {
                if begun.is_some_and(|begun| cell.sequence().is_still(begun)) {
                    if matches!(error, Error::Corrupt(_)) && core.looks_again_at_damage() {
                        break;
                    }
                    return Err(error);
                }
            }
        }
        drop(guard);
        thread::back_off(attempt);
    }
    read_locked(core, dir, |dir, guard| {
        look_up_locked(core, dir, name, guard)
    })
}

/// The same for the holder of the directory's lock, shared or alone.
pub(crate) fn look_up_locked(
    core: &Core,
    dir: &CachedInode,
    name: &[u8],
    guard: &Guard,
) -> Result<InodeNr> {
    let dir = directory(core, dir)?;
    let key = name_cache::name_key(core, dir, name);
    match key.and_then(|key| core.names.get(&key, guard)) {
        Some(known) => Ok(known),
        None => look_up_once(core, dir, name, guard),
    }
}
