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

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::dirent::{DirFormat, DirentError, MAX_NAME_BYTES, NameForm, TypeByte};
use fourscore_ondisk::features::{Compat, Incompat};
use fourscore_ondisk::htree::IndexLevels;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock, htree};
use fourscore_sync::epoch::Guard;

use crate::dir::blocks::{Course, Left, Through, break_if};
use crate::dir::names::Wanted;
use crate::inode::cache::{CachedInode, Layout};
use crate::map::lookup::Target;
use crate::{Error, Fs, Result};

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

impl Fs {
    /// The inode that `name` leads to in directory `dir`.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`.
    pub fn lookup(&self, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
        self.find_name(dir, name, Keep::Found)
    }

    /// As [`Fs::lookup`], for whoever asks for many names once, such as a walk of the whole tree:
    /// the name is found in the cache of names, if it is there, but does not enter it.
    ///
    /// # Errors
    /// As [`Fs::lookup`].
    pub fn lookup_once(&self, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
        self.find_name(dir, name, Keep::Nothing)
    }

    /// Where the name leads by the blocks of `dir`. For [`Fs::find_name`] and holders of the lock.
    pub(crate) fn look_up_once(
        &self,
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
        let wanted = self.wanted(dir, name);
        if let Some(changes) = self.dir_changes(dir.nr())
            && let Some(now) = changes.find(&wanted, name)
        {
            return now.ok_or(Error::NotFound);
        }
        if self.is_indexed(dir) && (name == b".." || wanted.hash_input().is_some()) {
            if let Some(inode) = self.search_index(dir, &wanted, guard)? {
                return Ok(inode);
            }
            if !wanted.hash_may_mislead() {
                return Err(Error::NotFound);
            }
        }
        self.search_blocks(dir, &wanted, guard)?
            .ok_or(Error::NotFound)
    }

    /// The inode of the name, which may be in any block of the directory.
    fn search_blocks(
        &self,
        dir: &CachedInode,
        wanted: &Wanted<'_>,
        guard: &Guard,
    ) -> Result<Option<InodeNr>> {
        let format = self.dir_format(dir);
        let mut found = None;
        if dir.layout() == Layout::Inline {
            self.visit_inline_entries(dir, &format, &mut |entry| {
                let here = wanted.matches(entry);
                found = here.then_some(entry.inode);
                Ok(break_if(here))
            })?;
            return Ok(found);
        }
        if self.size_in_blocks(dir)? == LogicalBlock(1) && !dir.has(InodeFlags::INDEX_FL) {
            return self.search_leaf(dir, &format, LogicalBlock(0), wanted, guard);
        }
        let mut course = Course::default();
        let mut left = Left::More;
        while left == Left::More {
            let cache = &mut Through::Cache;
            left = self.visit_blocks(dir, &format, &mut course, cache, guard, &mut |listed| {
                let entry = wanted.find_in(&format, listed.bytes);
                let entry = entry.map_err(|error| listed.broken(dir, error))?;
                found = entry.map(|entry| entry.inode);
                Ok(break_if(found.is_some()))
            })?;
            course.accept();
        }
        Ok(found)
    }

    /// The inode of the name, if it is in block `at`, which is a leaf.
    pub(crate) fn search_leaf(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        at: LogicalBlock,
        wanted: &Wanted<'_>,
        guard: &Guard,
    ) -> Result<Option<InodeNr>> {
        let block = self.dir_place(dir, at, guard)?;
        let found = self.look_at_leaf(dir, format, block, guard, |bytes| {
            let entry = wanted.find_in(format, bytes)?;
            Ok(entry.map(|entry| entry.inode))
        })?;
        Ok(found.map_err(|error: DirentError| Corrupt::from(error).in_inode(dir.nr()))?)
    }

    /// What `look` makes of a leaf of `dir`. One in which names are being made stays as it is: who
    /// looks for a name before he makes it would else have the leaf copied for each. So `look` may
    /// run under the lock of the leaf's buffer, and is to be about bytes only.
    pub(crate) fn look_at_leaf<R>(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        block: PhysBlock,
        guard: &Guard,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let tag = VerifiedAs::new(Structure::DirectoryLeaf, dir.nr());
        let check = |bytes: &[u8]| self.check_bytes(dir, format, DirBlock::Leaf, bytes);
        self.look_at_metadata(block, tag, guard, check, look)
    }

    /// Where block `at` of a directory is.
    pub(crate) fn dir_place(
        &self,
        dir: &CachedInode,
        at: LogicalBlock,
        guard: &Guard,
    ) -> Result<PhysBlock> {
        match self.map(dir, at, guard)?.target {
            Target::Written(block) => Ok(block),
            Target::Hole | Target::Unwritten(_) => {
                let error = RelationError::DirectoryHole { found: at };
                Err(Corrupt::from(error).in_inode(dir.nr()).into())
            }
        }
    }

    pub(crate) fn directory<'g>(&self, dir: &'g CachedInode) -> Result<&'g CachedInode> {
        if dir.file_type() == FileType::Directory {
            Ok(dir)
        } else {
            Err(Error::NotADirectory)
        }
    }

    pub(crate) fn is_indexed(&self, dir: &CachedInode) -> bool {
        let compat = self.superblock().features().compat;
        let indexed = compat.contains(Compat::DIR_INDEX) && dir.has(InodeFlags::INDEX_FL);
        indexed && dir.layout() != Layout::Inline
    }

    pub(crate) fn dir_format(&self, dir: &CachedInode) -> DirFormat {
        let incompat = self.superblock().features().incompat;
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
        let inodes_count = InodeNr(self.geometry().inodes());
        DirFormat {
            names,
            type_byte,
            inodes_count,
            seed: dir.seed(),
        }
    }

    /// The number of blocks of a file that has no holes, such as a directory.
    pub(crate) fn size_in_blocks(
        &self,
        inode: &CachedInode,
    ) -> std::result::Result<LogicalBlock, Corrupt> {
        let block_bytes = self.geometry().block_size().bytes() as u64;
        let blocks = inode.size_bytes() / block_bytes;
        let limit = self.geometry().blocks().0;
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
        &self,
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
        self.metadata(block, structure, dir.nr(), guard, |bytes| {
            self.check_bytes(dir, format, what, bytes)
        })
    }

    /// Whether `bytes` are `what` of the directory `dir`.
    pub(crate) fn check_bytes(
        &self,
        dir: &CachedInode,
        format: &DirFormat,
        what: DirBlock,
        bytes: &[u8],
    ) -> std::result::Result<(), Corrupt> {
        let end = self.size_in_blocks(dir)?;
        match what {
            DirBlock::Leaf => format.check_block(bytes).map_err(Corrupt::from),
            DirBlock::Root => {
                htree::check_root(bytes, format, self.index_levels(), end).map_err(Corrupt::from)
            }
            DirBlock::Node => htree::check_node(bytes, format, end).map_err(Corrupt::from),
        }
        .map_err(|corrupt| corrupt.in_inode(dir.nr()))
    }

    pub(crate) fn index_levels(&self) -> IndexLevels {
        if self
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
}
