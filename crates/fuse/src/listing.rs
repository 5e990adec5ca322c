//! **Purpose.** Listings of open directories, and the cookies with which the kernel continues a
//! listing.
//!
//! **Model.** The cookie of an entry is the hash of its name, 63 bits of it, and a listing is in
//! the order of cookies. So a cookie means the same position whatever was created or removed
//! meanwhile, in this open directory and in the next one. `.` and `..` come first. Names with equal
//! hashes, which only occur in a malicious image, get the cookies that follow.
//!
//! A listing is made when it is first read and whenever it is read from the start again, and is
//! kept in memory until the directory is closed.
//!
//! **Locking.** A shard's lock to find an open directory, then the directory's own.

use std::collections::HashMap;
use std::ops::ControlFlow;

use fourscore::{FileType, Fs, InodeNr};
use fourscore_ondisk::dirhash::{HashAlgorithm, NameHasher};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{Arc, CachePadded, CoreNr, Mutex};

use crate::reply::Errno;

const SHARDS: usize = 64;
/// The cookies of `.` and `..`; those of other names are greater.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const FIRST_HASH: u64 = 3;

/// A directory's names, in the order of their cookies.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    entries: Vec<Entry>,
    names: Vec<u8>,
    is_made: bool,
}

#[derive(Debug)]
struct Entry {
    cookie: u64,
    inode: InodeNr,
    file_type: Option<FileType>,
    name: std::ops::Range<usize>,
}

/// An entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed<'l> {
    /// The position after the entry.
    pub(crate) cookie: u64,
    pub(crate) inode: InodeNr,
    pub(crate) file_type: Option<FileType>,
    pub(crate) name: &'l [u8],
}

impl Listing {
    /// Makes the listing, if it is read from the start or was not made yet.
    ///
    /// # Errors
    /// As [`Fs::for_each_entry`].
    pub(crate) fn prepare(&mut self, fs: &Fs, dir: InodeNr, from: u64) -> Result<(), Errno> {
        if self.is_made && from != 0 {
            return Ok(());
        }
        *self = Self::default();
        let superblock = fs.superblock();
        let (chars, seed) = (superblock.hash_sign(), superblock.hash_seed());
        let hasher = NameHasher::seeded(HashAlgorithm::HalfMd4, chars, seed);
        let hasher = hasher.ok_or(Errno::INVAL)?;
        fs.for_each_entry(dir, |entry| {
            let start = self.names.len();
            self.names.extend_from_slice(entry.name);
            self.entries.push(Entry {
                cookie: cookie(&hasher, entry.name),
                inode: entry.inode,
                file_type: entry.file_type,
                name: start..self.names.len(),
            });
            ControlFlow::Continue(())
        })?;
        let names = &self.names;
        self.entries
            .sort_unstable_by_key(|entry| (entry.cookie, &names[entry.name.clone()]));
        let mut last = 0;
        for entry in &mut self.entries {
            entry.cookie = entry.cookie.max(last + 1);
            last = entry.cookie;
        }
        self.is_made = true;
        Ok(())
    }

    /// The entries after the cookie `from`.
    pub(crate) fn after(&self, from: u64) -> impl Iterator<Item = Listed<'_>> {
        let first = self.entries.partition_point(|entry| entry.cookie <= from);
        self.entries[first..].iter().map(|entry| Listed {
            cookie: entry.cookie,
            inode: entry.inode,
            file_type: entry.file_type,
            name: &self.names[entry.name.clone()],
        })
    }
}

fn cookie(hasher: &NameHasher, name: &[u8]) -> u64 {
    match name {
        b"." => DOT,
        b".." => DOT_DOT,
        _ => {
            let hash = hasher.hash(name);
            // The lowest bit of the hash is always clear; the highest bit of the cookie must be
            // clear, since the kernel's offsets are signed.
            let bits = u64::from(hash.hash >> 1) << 32 | u64::from(hash.minor_hash);
            bits.max(FIRST_HASH)
        }
    }
}

/// The open directories, by their file handles.
#[derive(Debug)]
pub(crate) struct Listings {
    shards: Box<[CachePadded<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    opened: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Mutex<Listing>>>>,
}

impl Listings {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
        }
    }

    fn shard(&self, handle: u64) -> &Shard {
        let index = usize::try_from(handle % SHARDS as u64).unwrap_or_default();
        &self.shards[index]
    }

    /// Opens a directory: returns a new file handle.
    pub(crate) fn open(&self) -> u64 {
        let index = CoreNr::current().index() % SHARDS;
        let shard = &self.shards[index];
        let number = shard.opened.fetch_add(1, Ordering::Relaxed);
        let handle = number * SHARDS as u64 + index as u64;
        shard.open.lock().insert(handle, Arc::default());
        handle
    }

    /// The listing of an open directory.
    ///
    /// # Errors
    /// `EBADF` for a handle that is not open.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<Mutex<Listing>>, Errno> {
        let open = self.shard(handle).open.lock();
        open.get(&handle).map(Arc::clone).ok_or(Errno::BADF)
    }

    pub(crate) fn close(&self, handle: u64) {
        let closed = self.shard(handle).open.lock().remove(&handle);
        drop(closed);
    }
}
