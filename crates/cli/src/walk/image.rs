//! **Purpose.** An image as a source of the walk.
//!
//! **Invariants.** A directory is walked once. A second entry for it, which only a corrupt image
//! has, is reported and not followed, so the walk ends on any image.
//!
//! **Locking.** The set of directories that have been walked is sharded by inode number. One lock
//! is taken per directory.

use std::collections::HashSet;
use std::ops::ControlFlow;

use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr};
use fourscore_sync::{CachePadded, Mutex};

use crate::content::{Stopped, for_each_run, read_exactly};
use crate::facts::{Facts, Kind};
use crate::failure::{Failure, Result};
use crate::image::Image;
use crate::tree::listing::Listing;
use crate::walk::hash::{ContentHash, READ_BYTES};
use crate::walk::line::Attributes;
use crate::walk::source::{Entry, Source};

const SHARDS: usize = 64;

/// The tree below one object of an image.
pub(crate) struct ImageTree<'i> {
    image: &'i Image,
    root: InodeNr,
    seen: Seen,
}

/// The directories that have been walked.
pub(crate) struct Seen {
    shards: [CachePadded<Mutex<HashSet<u32>>>; SHARDS],
}

impl Default for Seen {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| CachePadded::default());
        Self { shards }
    }
}

impl<'i> ImageTree<'i> {
    /// The tree at and below `root`.
    pub(crate) fn new(image: &'i Image, root: InodeNr) -> Self {
        Self {
            image,
            root,
            seen: Seen::default(),
        }
    }
}

fn why(error: fourscore::Error) -> Failure {
    Failure::new("", error)
}

/// The inode of an entry; `Itself` is the open object.
pub(crate) fn inode_of(open: InodeNr, entry: Entry<'_>) -> Result<InodeNr> {
    match entry {
        Entry::Itself => Ok(open),
        Entry::Named(_, inode) => u32::try_from(inode)
            .map(InodeNr)
            .map_err(|error| Failure::new("", error)),
    }
}

/// The kind in a directory entry.
fn kind_of(file_type: FileType) -> Kind {
    match file_type {
        FileType::Regular => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::CharDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Symlink => Kind::Symlink,
    }
}

/// Adds the entries of a directory of `image` without `.` and `..` to `listing`. `buffer` is
/// reused.
pub(crate) fn list(
    image: &Image,
    dir: InodeNr,
    listing: &mut Listing,
    buffer: &mut Vec<u8>,
) -> Result<()> {
    image
        .fs
        .scan_entries(dir, buffer, |entry| {
            if entry.name != b"." && entry.name != b".." {
                listing.push(
                    entry.name,
                    entry.inode.0.into(),
                    entry.file_type.map(kind_of),
                );
            }
            ControlFlow::Continue(())
        })
        .map_err(why)
}

/// Adds the extended attributes of an inode.
pub(crate) fn attributes(image: &Image, inode: InodeNr, into: &mut Attributes) -> Result<()> {
    for xattr in image.fs.xattrs(inode).map_err(why)? {
        into.push(&xattr.name, &xattr.value);
    }
    Ok(())
}

impl Source for ImageTree<'_> {
    const KINDS_AGREE: bool = true;
    type Directory = InodeNr;
    type Open = InodeNr;
    type Scratch = Vec<u8>;

    fn root(&self) -> Result<InodeNr> {
        Ok(self.root)
    }

    fn root_directory(&self) -> InodeNr {
        self.root
    }

    fn open(&self, directory: &InodeNr) -> Result<InodeNr> {
        self.seen.visit(*directory)?;
        Ok(*directory)
    }

    fn list(&self, open: &InodeNr, listing: &mut Listing, buffer: &mut Vec<u8>) -> Result<()> {
        list(self.image, *open, listing, buffer)
    }

    fn facts(&self, open: &InodeNr, entry: Entry<'_>, _: &mut Vec<u8>) -> Result<Facts> {
        // Most inodes are read once, which `scan` is for; only directories and links are read
        // again.
        let scanned = self.image.fs.scan(inode_of(*open, entry)?).map_err(why)?;
        Ok(Facts {
            may_have_attributes: scanned.has_xattrs,
            ..Facts::from(&scanned.stat)
        })
    }

    fn target(
        &self,
        open: &InodeNr,
        entry: Entry<'_>,
        _: &Facts,
        target: &mut Vec<u8>,
    ) -> Result<()> {
        *target = self
            .image
            .fs
            .read_link(inode_of(*open, entry)?)
            .map_err(why)?;
        Ok(())
    }

    fn attributes(
        &self,
        open: &InodeNr,
        entry: Entry<'_>,
        _: &mut Vec<u8>,
        into: &mut Attributes,
    ) -> Result<()> {
        attributes(self.image, inode_of(*open, entry)?, into)
    }

    fn sha256(
        &self,
        open: &InodeNr,
        entry: Entry<'_>,
        _: &Facts,
        buffer: &mut Vec<u8>,
    ) -> Result<[u8; 32]> {
        let fs = &self.image.fs;
        let stat = fs.stat(inode_of(*open, entry)?).map_err(why)?;
        buffer.resize(READ_BYTES, 0);
        let mut hash = ContentHash::new(stat.size_bytes);
        let mut at = 0;
        let visited = for_each_run(fs, &stat, |run| {
            hash.update_zeros(run.offset - at);
            at = run.offset;
            let end = run.offset + run.len_bytes;
            while at < end {
                let len = usize::try_from(end - at).map_or(READ_BYTES, |len| len.min(READ_BYTES));
                read_exactly(fs, stat.inode, &mut buffer[..len], at)?;
                hash.update(&buffer[..len]);
                at += len as u64;
            }
            Ok(())
        });
        visited.map_err(|stopped| match stopped {
            Stopped::Fs(error) | Stopped::Visitor(error) => why(error),
        })?;
        hash.update_zeros(stat.size_bytes - at);
        Ok(hash.finish())
    }

    fn child(&self, _open: &InodeNr, _name: &[u8], inode: u64) -> Result<InodeNr> {
        inode_of(self.root, Entry::Named(b"", inode))
    }
}

impl Seen {
    /// Adds `directory` to the set; an error if it is in it.
    pub(crate) fn visit(&self, directory: InodeNr) -> Result<()> {
        let shard = self.shards.get(directory.0 as usize % SHARDS);
        let new = shard.is_some_and(|shard| shard.lock().insert(directory.0));
        if new {
            Ok(())
        } else {
            let error = Corrupt::from(RelationError::DirectoryLoop).in_inode(directory);
            Err(Failure::new("", error))
        }
    }
}
