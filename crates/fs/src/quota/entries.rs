//! **Purpose.** Adds entries to quota files, and removes those without usage and limits.
//!
//! **Not here.** Usage, which is written by the seal ([`crate::quota::counts`]).
//!
//! **Model.** A new entry is a plan of its own, made while another plan waits to be applied. It
//! changes only words of the tree and the new entry, so it covers nothing that a seal writes.
//! Blocks that the file lacks are mapped before, by plans of their own. Until the entry is added
//! they hold zeroes and the header does not count them; a crash may leave them so.
//!
//! Before an entry is added, a few that are idle are removed ([`crate::quota::idle`]), each by a
//! plan of its own. So a caller that gives objects one identifier after the other, as the owner of
//! a file may do with its project, does not fill the file system with entries, which are charged to
//! no owner. An entry whose usage changes in the running transaction stays until that is sealed. So
//! a transaction in which many entries were added is committed.
//!
//! **Invariants.** An identifier is forgotten, and its entry removed, only while nothing but the
//! table of known identifiers refers to it: then no plan is about to change its usage, and no count
//! waits for a seal. All other references come from that table, so there can be no new one; a
//! thread that finds the identifier in no table waits for the lock of insertion.
//!
//! **Locking.** The lock of insertion, which stands for the lock of the file's inode: nothing else
//! changes it. Under it the locks of the tables, one at a time.

use fourscore_ondisk::LogicalBlock;
use fourscore_ondisk::geometry::BytePlace;
use fourscore_ondisk::quota::{
    self, Change, EntryAt, GraceTimes, QUOTA_BLOCK_BYTES, QuotaFileError,
};
use fourscore_sync::{Arc, Mutex, OnceLock, epoch};

use crate::inode::cached::CachedInode;
use crate::map::mapping::Target;
use crate::map::{lookup, update};
use crate::mount::state::Mount;
use crate::quota::counts::Local;
use crate::quota::dquot::{Dquot, entry_tag};
use crate::quota::file::{self, QuotaFile, logical_of};
use crate::quota::limits::Exact;
use crate::quota::state::{Insertions, OpenFile, Quota};
use crate::quota::usage::Key;
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, Result};

/// The most idle entries that are removed before one is added. More than one, so that the number of
/// entries shrinks where many have become idle.
const REMOVED_AT_ONCE: usize = 4;

/// The most entries that are added before the transaction is committed.
const MOST_ADDED: u32 = 512;

/// At this many known identifiers those that are not in use are forgotten.
const MANY_KNOWN: usize = 16 << 10;

impl Quota {
    /// Returns the counts of this core for `key`.
    pub(super) fn local(&self, mount: &Mount, key: Key) -> Result<Arc<Local>> {
        if let Some(local) = self.counts.known(key) {
            return Ok(local);
        }
        let dquot = self.dquot(mount, key)?;
        Ok(self.counts.enter(dquot))
    }

    /// Returns the identifier of `key`, which gets an entry if it has none.
    pub(super) fn dquot(&self, mount: &Mount, key: Key) -> Result<Arc<Dquot>> {
        let known = || self.known.lock().get(&key).cloned();
        if let Some(dquot) = known() {
            return Ok(dquot);
        }
        let mut insertions = self.lock_insertion();
        if insertions.are_too_many(mount) {
            drop(insertions);
            mount.journal().commit()?;
            insertions = self.lock_insertion();
        }
        if let Some(dquot) = known() {
            return Ok(dquot);
        }
        let OpenFile { file, .. } = self.open_file(key.kind)?;
        let place = match file.find(&mount.core, key.id)? {
            Some(place) => place,
            None => {
                self.remove_idle(mount, REMOVED_AT_ONCE)?;
                let place = file.add(mount, key.id)?;
                insertions.count(mount);
                // The plan that needs it may fail.
                self.counts.idle.note(key);
                place
            }
        };
        // No change of the usage waits for a seal, so the entry has all of it.
        let entry = file::entry_at(&mount.core, place)?;
        let exact = OnceLock::new();
        if self.enforced.has(key.kind) && !entry.limits.are_none() {
            exact.get_or_init(|| Exact::new(entry));
        }
        let dquot = Arc::new(Dquot {
            key,
            place,
            exact,
            sealed: Mutex::default(),
        });
        let mut all = self.known.lock();
        all.insert(key, Arc::clone(&dquot));
        let are_many = all.len() > insertions.most_known.max(MANY_KNOWN);
        drop(all);
        if are_many {
            insertions.most_known = 2 * self.forget_unused();
        }
        Ok(dquot)
    }

    /// Forgets the identifiers that are not in use, and returns how many are left. The caller holds
    /// the lock of insertion.
    pub(super) fn forget_unused(&self) -> usize {
        self.counts.forget_all();
        let mut known = self.known.lock();
        known.retain(|_, dquot| Arc::get_mut(dquot).is_none());
        known.len()
    }

    /// Looks at up to `most` identifiers whose entries may be idle, and removes those that are. The
    /// caller holds the lock of insertion.
    fn remove_idle(&self, mount: &Mount, most: usize) -> Result<()> {
        if mount.only.is_some() {
            // Its one transaction has no space for more than it must have.
            return Ok(());
        }
        for _ in 0..most {
            let Some(key) = self.counts.idle.take() else {
                break;
            };
            if !self.forget(key) {
                self.counts.idle.note(key);
                continue;
            }
            let OpenFile { file, .. } = self.open_file(key.kind)?;
            let Some(place) = file.find(&mount.core, key.id)? else {
                continue;
            };
            if file::entry_at(&mount.core, place)?.is_idle() {
                file.remove(mount, key.id)?;
            }
        }
        Ok(())
    }

    /// Forgets an identifier unless it is in use; returns whether it is not known any more.
    fn forget(&self, key: Key) -> bool {
        self.counts.forget(key);
        let mut known = self.known.lock();
        let is_in_use = known
            .get_mut(&key)
            .is_some_and(|dquot| Arc::get_mut(dquot).is_none());
        if !is_in_use {
            known.remove(&key);
        }
        !is_in_use
    }

    /// Removes the entries on the list of idle ones at the end of a mount, since the next mount
    /// does not have that list. All changes must be committed before.
    pub(crate) fn remove_all_idle(&self, mount: &Mount) -> Result<()> {
        let _inserting = self.lock_insertion();
        self.remove_idle(mount, self.counts.idle.len())
    }
}

impl Insertions {
    /// Whether the running transaction should be committed before another entry is added.
    fn are_too_many(&self, mount: &Mount) -> bool {
        let is_running = self.tid == Some(mount.journal().running_tid());
        is_running && self.entries >= MOST_ADDED && mount.only.is_none()
    }

    /// Counts an entry that was added.
    fn count(&mut self, mount: &Mount) {
        let running = Some(mount.journal().running_tid());
        if self.tid != running {
            (self.tid, self.entries) = (running, 0);
        }
        self.entries = self.entries.saturating_add(1);
    }
}

impl QuotaFile {
    /// Adds an entry for `id`, which has none. Returns where it is.
    pub(super) fn add(self, mount: &Mount, id: u32) -> Result<BytePlace> {
        let core = &*mount.core;
        let inode = self.load(core)?;
        let read = &mut |number| self.read_block(core, &inode, number);
        let insertion = quota::insert(id, read).map_err(|error| self.failed(error))?;
        for change in &insertion.changes {
            let (logical, _) = logical_of(core, change.block)?;
            self.grow_to(mount, logical, insertion.blocks)?;
        }
        let inode = self.load(core)?;
        self.apply_changes(mount, &inode, &insertion.changes)?;
        self.place_of(core, &inode, insertion.entry)
    }

    /// Removes the entry of `id`, which has neither usage nor limits.
    fn remove(self, mount: &Mount, id: u32) -> Result<()> {
        let core = &*mount.core;
        let inode = self.load(core)?;
        let read = &mut |number| self.read_block(core, &inode, number);
        let changes = quota::remove(id, read).map_err(|error| self.failed(error))?;
        self.apply_changes(mount, &inode, &changes)
    }

    /// Makes changes of the file in a plan of their own.
    fn apply_changes(self, mount: &Mount, inode: &CachedInode, changes: &[Change]) -> Result<()> {
        let mut plan = Plan::inside_another(mount);
        for change in changes {
            let at = EntryAt {
                block: change.block,
                offset: change.offset,
            };
            let place = self.place_of(&mount.core, inode, at)?;
            let range = place.offset_bytes..place.offset_bytes + change.bytes.len();
            let region = plan.part(place.block, range, entry_tag())?;
            let bytes = plan.bytes_mut(region);
            if bytes.len() != change.bytes.len() {
                // Two blocks of the file are mapped to one place.
                return Err(self.broken(QuotaFileError::SharedNode));
            }
            bytes.copy_from_slice(&change.bytes);
        }
        plan.apply(&[])?;
        Ok(())
    }

    /// Maps a block of zeroes at `logical`, unless one is mapped there, and sets the size to its
    /// end, at most to `blocks` blocks of 1 KiB. This is a plan of its own, because the next plan
    /// must find the block in the map.
    fn grow_to(self, mount: &Mount, logical: LogicalBlock, blocks: u32) -> Result<()> {
        let core = &*mount.core;
        let inode = self.load(core)?;
        let block_bytes = core.geometry().block_size().bytes() as u64;
        let wanted = u64::from(blocks) * QUOTA_BLOCK_BYTES as u64;
        let size = wanted.min((u64::from(logical.0) + 1) * block_bytes);
        let mapped = lookup::map_locked(core, &inode, logical)?.target;
        let is_mapped = matches!(mapped, Target::Written(_));
        if is_mapped && size <= inode.size_bytes() {
            return Ok(());
        }
        let mut plan = Plan::inside_another(mount);
        let slot = slot::slot(&mut plan, self.inode)?;
        if !is_mapped {
            update::new_block(&mut plan, &inode, slot, logical, entry_tag())?;
        }
        let size = size.max(inode.size_bytes());
        slot::edit(&mut plan, slot, |inode| inode.set_size_bytes(size))?
            .map_err(|_| Error::FileTooLarge)?;
        let version = slot::version(&mut plan, slot)?;
        plan.apply_publishing(&[], Publication::nothing(), || {
            let guard = epoch::pin();
            if let Some(cell) = core.inodes.get(&self.inode, &guard) {
                cell.replace_hidden(version);
            }
        })?;
        Ok(())
    }

    /// Stores grace times in the header.
    pub(super) fn put_grace(self, mount: &Mount, times: GraceTimes) -> Result<()> {
        let core = &*mount.core;
        let inode = self.load(core)?;
        let at = EntryAt {
            block: 0,
            offset: 0,
        };
        let place = self.place_of(core, &inode, at)?;
        let mut plan = Plan::inside_another(mount);
        /// The words up to the lists, which insertions change.
        const FIXED_BYTES: usize = 16;
        let range = place.offset_bytes..place.offset_bytes + FIXED_BYTES;
        let region = plan.part(place.block, range, entry_tag())?;
        let mut first = [0; QUOTA_BLOCK_BYTES];
        first[..FIXED_BYTES].copy_from_slice(plan.bytes(region));
        quota::put_grace_times(&mut first, times);
        plan.bytes_mut(region)
            .copy_from_slice(&first[..FIXED_BYTES]);
        plan.apply(&[])?;
        Ok(())
    }
}
