//! **Purpose.** Finds a name in a directory.
//!
//! **Not here.** Listing names ([`crate::dir::listing`]), visiting the blocks of a directory
//! ([`crate::dir::blocks`]).
//!
//! **Model.** A directory has one of three forms: entries in inline data, blocks of entries, or
//! blocks of entries with a hash index over them. A lookup consults the name cache first. A search
//! in an indexed directory follows the hash of the name.
//!
//! ```text
//! lookup:  inline -> scan      indexed -> hash, descend, scan one leaf (or the next, if the
//!          blocks -> scan                  hash goes on there)
//! ```
//!
//! **Invariants.** A search visits each leaf at most once, whatever the index says.
//!
//! **Locking.** None: see [`crate::inode::consistent`].

use fourscore_ondisk::dirent::MAX_NAME_BYTES;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock};
use fourscore_sync::{epoch, thread};

use crate::core::Core;
use crate::dir::blocks::{self, Course, Left, Through, break_if};
use crate::dir::name_cache::{Moment, NameKey};
use crate::dir::wanted::Wanted;
use crate::dir::{departure, index, leaf_search, names, structure};
use crate::file::inline;
use crate::guard::{Guard, Loader, with_guard};
use crate::inode::cache;
use crate::inode::cached::{CachedInode, Layout};
use crate::inode::cell::InodeCell;
use crate::inode::consistent::{self, UNLOCKED_ATTEMPTS, read_locked};
use crate::inode::sequence::Sequence;
use crate::{Error, Result};

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode that the name refers to.
    pub inode: InodeNr,
    /// The name as users see it: any bytes but `/` and NUL. `.` and `..` are entries as well. In an
    /// encrypted directory, the form that Linux presents without the key.
    pub name: &'a [u8],
    /// The type of the inode, if the directory stores it.
    pub file_type: Option<FileType>,
}

/// A name in a directory, with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedDirEntry {
    /// The inode that the name refers to.
    pub inode: InodeNr,
    /// The name, as in [`DirEntry::name`].
    pub name: Vec<u8>,
    /// The type of the inode, if the directory stores it.
    pub file_type: Option<FileType>,
}

impl DirEntry<'_> {
    /// Returns a copy that owns its bytes.
    #[must_use]
    pub fn to_owned(&self) -> OwnedDirEntry {
        OwnedDirEntry {
            inode: self.inode,
            name: self.name.to_vec(),
            file_type: self.file_type,
        }
    }
}

/// What a lookup stores in the name cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The name, if it is found.
    Found,
    /// Nothing: the name is looked up once, or is about to be removed.
    Nothing,
}

/// See [`Fs::lookup`](crate::Fs::lookup).
pub(crate) fn lookup(core: &Core, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
    find_name(core, dir, name, Keep::Found)
}

/// See [`Fs::lookup_once`](crate::Fs::lookup_once).
pub(crate) fn lookup_once(core: &Core, dir: InodeNr, name: &[u8]) -> Result<InodeNr> {
    find_name(core, dir, name, Keep::Nothing)
}

/// Returns the inode that the name refers to, according to the blocks of `dir`. The callers are
/// [`find::find_name`](crate::dir::find::find_name) and holders of the directory's lock.
///
/// # Errors
/// `Corrupt` also if the inode must not have a name, so that no operation changes such an inode
/// through a name.
pub(crate) fn look_up_once(
    core: &Core,
    dir: &CachedInode,
    name: &[u8],
    guard: &Guard,
) -> Result<InodeNr> {
    let found = search(core, dir, name, guard)?;
    // The file system may have grown during the search: the superblock of now is compared.
    match core.superblock().may_be_named(found) {
        true => Ok(found),
        false => Err(named_reserved(dir, found)),
    }
}

#[cold]
fn named_reserved(dir: &CachedInode, found: InodeNr) -> Error {
    let error = Corrupt::from(RelationError::NamedReserved { found });
    error.in_inode(dir.nr()).into()
}

/// Returns the inode that the name refers to, even one that must not have a name.
fn search(core: &Core, dir: &CachedInode, name: &[u8], guard: &Guard) -> Result<InodeNr> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::NameTooLong);
    }
    if name == b"." {
        return Ok(dir.nr());
    }
    let wanted = names::wanted(core, dir, name);
    if let Some(changes) = core.dir_changes(dir.nr())
        && let Some(now) = changes.find(&wanted, name)
    {
        return now.ok_or(Error::NotFound);
    }
    if structure::is_indexed(core, dir) && (name == b".." || wanted.hash_input().is_some()) {
        if let Some(inode) = index::search_index(core, dir, &wanted, guard)? {
            return Ok(inode);
        }
        if !wanted.hash_may_mislead() {
            return Err(Error::NotFound);
        }
    }
    search_blocks(core, dir, &wanted, guard)?.ok_or(Error::NotFound)
}

/// Returns the inode of the name, which may be in any block of the directory.
fn search_blocks(
    core: &Core,
    dir: &CachedInode,
    wanted: &Wanted<'_>,
    guard: &Guard,
) -> Result<Option<InodeNr>> {
    let format = structure::dir_format(core, dir);
    let mut found = None;
    if dir.layout() == Layout::Inline {
        inline::visit_inline_entries(core, dir, &format, &mut |entry| {
            let here = wanted.matches(entry);
            found = here.then_some(entry.inode);
            Ok(break_if(here))
        })?;
        return Ok(found);
    }
    if structure::size_in_blocks(core, dir)? == LogicalBlock(1) && !dir.has(InodeFlags::INDEX_FL) {
        return leaf_search::search_leaf(core, dir, &format, LogicalBlock(0), wanted, guard);
    }
    let mut course = Course::default();
    let mut left = Left::More;
    while left == Left::More {
        left = blocks::visit_blocks(
            core,
            dir,
            &format,
            &mut course,
            Through::Cache,
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

/// The result of one attempt to find a name without a lock.
enum Attempt<'n> {
    /// The name was found or is missing.
    Ended(Result<InodeNr>),
    /// The name was found, and its inode is not in memory. Once the inode is loaded, the name is
    /// cached under the key, unless a name has departed since the moment.
    FoundAbsent(InodeNr, Option<(NameKey<'n>, Moment)>),
    /// The directory seems to be damaged, which is checked under its lock.
    FoundDamage,
    /// The directory changed meanwhile.
    Overtaken,
}

fn try_to_find<'n>(
    core: &Core,
    dir: InodeNr,
    name: &'n [u8],
    keep: Keep,
    begun: &mut Option<Sequence>,
    guard: &Guard,
) -> Result<Attempt<'n>> {
    let cell = cache::cell(core, dir, guard)?;
    // The moment is read first: the result is cached only if no name has departed since.
    let sequence = *begun.insert(cell.sequence().begin());
    let moment = cell.departures().moment();
    let here = cell.version(guard)?.not_a_value()?.as_directory()?;
    let key = departure::name_key(core, here, name);
    if let Some(known) = key.and_then(|key| core.names.get(&key, guard)) {
        return Ok(Attempt::Ended(Ok(known)));
    }
    match look_up_once(core, here, name, guard) {
        _ if !cell.sequence().is_still(sequence) => Ok(Attempt::Overtaken),
        Ok(inode) => {
            if keep == Keep::Found {
                // A name in the name cache has passed this check.
                match core.inodes.get(&inode, guard) {
                    Some(cell) if is_value(cell, guard) => return Ok(Attempt::FoundDamage),
                    Some(_) => {}
                    None => return Ok(Attempt::FoundAbsent(inode, key.zip(moment))),
                }
            }
            if let (Keep::Found, Some(key), Some(moment)) = (keep, key, moment) {
                departure::keep_name(core, &key, inode, moment, guard);
            }
            Ok(Attempt::Ended(Ok(inode)))
        }
        Err(Error::Corrupt(_)) if core.rechecks_damage() => Ok(Attempt::FoundDamage),
        Err(error) => Ok(Attempt::Ended(Err(error))),
    }
}

/// Whether an inode in memory holds the value of an attribute. No name should refer to such an
/// inode, but the inode of a name may have been deleted and its number reused for one.
fn is_value(cell: &InodeCell, guard: &epoch::Guard) -> bool {
    cell.version(guard)
        .is_ok_and(|inode| inode.not_a_value().is_err())
}

/// Returns the inode that `name` refers to in the directory `dir`. The caller holds no lock of a
/// directory and no epoch guard.
///
/// # Errors
/// `NotFound`, `NotADirectory`, `NameTooLong`.
pub(crate) fn find_name(core: &Core, dir: InodeNr, name: &[u8], keep: Keep) -> Result<InodeNr> {
    let (mut attempt, mut loader) = (0, Loader::default());
    while attempt < UNLOCKED_ATTEMPTS {
        let guard = loader.pin();
        let mut begun = None;
        let mut found = try_to_find(core, dir, name, keep, &mut begun, &guard);
        if let Some(missed) = loader.unpin(guard) {
            found = match loader.load(core, missed) {
                Ok(()) => continue,
                // It may have belonged to the directory before a change.
                Err(_) if begun.is_some_and(|begun| !consistent::has_kept(core, dir, begun)) => {
                    Ok(Attempt::Overtaken)
                }
                Err(error) => Err(error),
            };
        }
        match found? {
            Attempt::Ended(found) => return found,
            Attempt::FoundDamage => break,
            Attempt::FoundAbsent(inode, key) => {
                // An inode that cannot be loaded has its name nevertheless.
                if let Ok(cell) = cache::load_cell(core, inode) {
                    let guard = epoch::pin();
                    if is_value(&cell, &guard) {
                        break;
                    }
                    if let Some((key, moment)) = key {
                        departure::keep_name(core, &key, inode, moment, &guard);
                    }
                }
                return Ok(inode);
            }
            Attempt::Overtaken => thread::back_off(attempt),
        }
        attempt += 1;
    }
    // A name in a locked directory keeps its inode, so an inode that holds a value is damage then.
    read_locked(core, dir, |dir, guard| {
        let inode = look_up_pinned(core, dir, name, guard)?;
        match core.inodes.get(&inode, guard) {
            Some(cell) if is_value(cell, guard) => Err(cell.version(guard)?.named_value()),
            _ => Ok(inode),
        }
    })
}

/// As `find_name`, for a caller that holds the directory's lock, shared or exclusive, and no guard.
pub(crate) fn look_up_locked(core: &Core, dir: &CachedInode, name: &[u8]) -> Result<InodeNr> {
    with_guard(core, |guard| look_up_pinned(core, dir, name, guard))
}

/// As [`look_up_locked`], under the guard of the caller.
pub(crate) fn look_up_pinned(
    core: &Core,
    dir: &CachedInode,
    name: &[u8],
    guard: &Guard,
) -> Result<InodeNr> {
    let dir = dir.as_directory()?;
    let key = departure::name_key(core, dir, name);
    match key.and_then(|key| core.names.get(&key, guard)) {
        Some(known) => Ok(known),
        None => look_up_once(core, dir, name, guard),
    }
}
