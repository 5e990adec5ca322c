//! **Purpose.** Adds entries to quota files.
//!
//! **Not here.** Usage, which is written by the seal ([`crate::quota::counts`]).
//!
//! **Model.** A new entry is a plan of its own, made while another plan waits to be applied. It
//! changes only words of the tree and the new entry, so it covers nothing that a seal writes.
//! Blocks that the file does not have yet are mapped before, by plans of their own: blocks of
//! zeroes behind those that the header counts, which a crash may leave there.
//!
//! **Locking.** The lock of insertion, which stands for the lock of the file's inode: nothing else
//! changes it.

use fourscore_ondisk::LogicalBlock;
use fourscore_ondisk::geometry::BytePlace;
use fourscore_ondisk::quota::{self, EntryAt, GraceTimes, QUOTA_BLOCK_BYTES};
use fourscore_sync::{Arc, Mutex, OnceLock, epoch};

use crate::map::mapping::Target;
use crate::map::{lookup, update};
use crate::mount::state::Mount;
use crate::quota::counts::Local;
use crate::quota::dquot::{Dquot, entry_tag};
use crate::quota::file::{self, QuotaFile, logical_of};
use crate::quota::limits::Exact;
use crate::quota::state::{OpenFile, Quota};
use crate::quota::usage::Key;
use crate::txn::apply::Publication;
use crate::txn::plan::Plan;
use crate::txn::slot;
use crate::{Error, Result};

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
        let _inserting = self.lock_insertion();
        if let Some(dquot) = known() {
            return Ok(dquot);
        }
        let OpenFile { file, .. } = self.open_file(key.kind)?;
        let place = match file.find(&mount.core, key.id)? {
            Some(place) => place,
            None => file.add(mount, key.id)?,
        };
        // No plan has changed the usage yet, so the entry has all of it.
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
        self.known.lock().insert(key, Arc::clone(&dquot));
        Ok(dquot)
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
        let mut plan = Plan::inside_another(mount);
        for change in &insertion.changes {
            let at = EntryAt {
                block: change.block,
                offset: change.offset,
            };
            let place = self.place_of(core, &inode, at)?;
            let range = place.offset_bytes..place.offset_bytes + change.bytes.len();
            let region = plan.part(place.block, range, entry_tag())?;
            plan.bytes_mut(region)[..change.bytes.len()].copy_from_slice(&change.bytes);
        }
        plan.apply(&[])?;
        self.place_of(core, &inode, insertion.entry)
    }

    /// Maps a block of zeroes at `logical`, unless one is mapped there, and has the size include
    /// it, up to `blocks` blocks of 1 KiB. A plan of its own: what the next one finds in the map
    /// must be in its blocks.
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
