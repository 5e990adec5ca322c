//! **Purpose.** Applies a plan: all of its changes are made in one handle and become visible in the
//! order that readers rely on.
//!
//! **Not here.** Making a plan ([`crate::txn::plan`]); the readers' side of the order
//! ([`crate::inode::consistent`]).
//!
//! **Model.**
//!
//! ```text
//! start a handle with the credits that the plan needs
//!   -> join: every block enters the transaction      a block that left the cache: restart
//!            new blocks enter last                   not refused
//!   -> make visible: memory operations only          not refused, see below
//!   -> stop the handle
//! ```
//!
//! A change is refused only if another operation has freed its block since it joined: the image has
//! two structures that use one block ([`crate::txn::refused`]). Then the journal is aborted, and
//! the steps go on to their end, as half of them would leave memory in a state that no reader
//! expects.
//!
//! A block that was refused is loaded again, and stays in the cache until the plan ends
//! ([`fourscore_block::Kept`]), however small the cache is and whatever other threads load. So the
//! next restart is for another block, and there are at most as many restarts as blocks.
//!
//! The blocks that joined before one was refused stay in their transaction, which may be committed
//! before the plan is applied, or without it. So what joins is valid without the plan: a block has
//! the content and tag of its last change, a bitmap that was never written its initial bytes.
//!
//! **Invariants.** The order in which a plan becomes visible is stated in
//! [`crate::inode::consistent`]. All steps are in one handle, so a transaction is sealed before all
//! of them or after all of them.
//!
//! **Locking.** The caller holds the locks of the inodes that change. Locks of buffers and groups
//! are taken, one at a time.

use std::mem;

use fourscore_journal::{Credits, Handle, ModifyError};
use fourscore_mballoc::Stamp;
use fourscore_ondisk::{PhysBlock, Tid};

use crate::Result;
use crate::dir::departure::Departure;
use crate::dir::touch::Touch;
use crate::group::table::BitsChange;
use crate::inode::cell::Pinned;
use crate::inode::forget;
use crate::inode::last_change::LastChange;
use crate::inode::sequence::Change;
use crate::mount::state::Mount;
use crate::txn::faults::{self, Sabotage};
use crate::txn::memory::{Readers, Region, RegionKind, Stage};
use crate::txn::plan::Plan;
use crate::txn::refused::{Applying, Refused};
use crate::xattr::held;

/// The most inodes that readers may see and that one operation changes: both directories of a
/// rename, the renamed inode, and the replaced one.
const MOST_CHANGES: usize = 4;

/// What is published with a plan.
#[derive(Clone, Copy)]
pub(crate) struct Publication<'s> {
    /// The inodes whose sequence counts are raised, if the plan says so. The caller holds their
    /// locks exclusively.
    pub(crate) changes: &'s [&'s Pinned],
    /// The directory that is touched, if its slot is not in the plan.
    pub(crate) touch: Option<&'s Touch<'s>>,
}

impl<'s> Publication<'s> {
    /// Publishes nothing: no reader sees what changes.
    pub(crate) fn nothing() -> Self {
        Self::of(&[])
    }

    /// Publishes a change of inodes that the caller has locked exclusively.
    pub(crate) fn of(changes: &'s [&'s Pinned]) -> Self {
        debug_assert!(
            changes.len() <= MOST_CHANGES,
            "more inodes than an operation has"
        );
        Self {
            changes,
            touch: None,
        }
    }

    /// Adds a directory whose lock is shared with other threads.
    pub(crate) fn touching(self, touch: Option<&'s Touch<'s>>) -> Self {
        Self { touch, ..self }
    }
}

impl Plan<'_> {
    /// Returns how many blocks the plan adds to a transaction, or more: blocks that it adds twice
    /// are counted twice.
    pub(crate) fn size(&self) -> usize {
        /// A bitmap and its descriptor.
        const BLOCKS_OF_BITS: usize = 2;
        let bits = [
            self.memory.claims.len(),
            self.memory.frees.len(),
            self.memory.inodes.len(),
        ];
        let bits = bits.iter().sum::<usize>() + self.memory.freed_inodes.len();
        let revokes = self.memory.revoked.len();
        self.memory.regions.len()
            + BLOCKS_OF_BITS * bits
            + revokes.div_ceil(self.mount.revokes_per_credit())
    }

    /// Returns how many blocks the plan adds to a transaction at most.
    fn credits(&mut self) -> Credits {
        /// Up to this size duplicates are not searched for: credits that are not used are returned.
        const FEW: usize = 16;
        let charged = self.charged_blocks();
        let size = self.size() + charged;
        if size <= FEW {
            return Credits(u32::try_from(size).unwrap_or(u32::MAX));
        }
        let mut blocks = mem::take(&mut self.memory.blocks);
        blocks.extend(self.valid_regions().map(|region| region.buffer.block()));
        blocks.extend(self.all_bits().flat_map(BitsChange::blocks));
        blocks.sort_unstable();
        blocks.dedup();
        let revokes = self.memory.revoked.len();
        let credits = blocks.len() + charged + revokes.div_ceil(self.mount.revokes_per_credit());
        self.memory.blocks = blocks;
        Credits(u32::try_from(credits).unwrap_or(u32::MAX))
    }

    fn valid_regions(&self) -> impl Iterator<Item = &Region> {
        self.memory.regions.iter().filter(|region| !region.is_void)
    }

    fn all_bits(&self) -> impl Iterator<Item = &BitsChange> {
        let claimed = self.memory.claims.iter().map(|(_, bits)| bits);
        let freed = self.memory.frees.iter().map(|free| &free.bits);
        let inodes = self.memory.inodes.iter().chain(&self.memory.freed_inodes);
        claimed.chain(freed).chain(inodes.map(|(_, bits)| bits))
    }

    /// Makes all changes in one handle, and notes its transaction in `last`. For changed inodes
    /// that are not in memory, and have no new version to publish.
    ///
    /// # Errors
    /// The journal was aborted, the plan is too large for it, a block cannot be read again, or a
    /// limit of quota would be exceeded. In these cases nothing was changed. `Corrupt` if one of
    /// its blocks was freed meanwhile: then the journal was aborted by this plan.
    pub(crate) fn apply(self, last: &[&LastChange]) -> Result<Tid> {
        self.apply_publishing(last, Publication::nothing(), || ())
    }

    /// Makes all changes as `Plan::apply` does, and publishes the new versions of the changed
    /// inodes by calling `publish`. It is called inside the handle, so it must do memory operations
    /// only.
    ///
    /// # Errors
    /// As [`Plan::apply`]; `publish` was called only if a block was freed meanwhile.
    pub(crate) fn apply_publishing(
        mut self,
        last: &[&LastChange],
        publication: Publication<'_>,
        publish: impl FnOnce(),
    ) -> Result<Tid> {
        self.try_to_apply(last, publication, publish)
    }

    /// Makes all changes and publishes them. After an error the plan still has its claims, for
    /// callers that must undo something before it returns them. A plan that was applied is empty.
    pub(crate) fn try_to_apply(
        &mut self,
        last: &[&LastChange],
        publication: Publication<'_>,
        publish: impl FnOnce(),
    ) -> Result<Tid> {
        self.charge()?;
        let credits = self.credits();
        loop {
            let mut handle = self.mount.start(credits)?;
            match self.join(&mut handle) {
                Ok(()) => {
                    last.iter().for_each(|last| last.note(&handle));
                    self.list_unit(handle.tid(), last);
                    let made = self.make_visible(&mut handle, publication, publish);
                    let tid = handle.stop();
                    held::carry_out(self.mount, &mut self.memory.xattrs.notes);
                    if let Some(orphan_update) = self.orphan_update.take() {
                        self.mount.orphans().done(orphan_update);
                    }
                    forget::forget_values(self.mount, mem::take(&mut self.gone_values));
                    return made.map(|()| tid);
                }
                Err(refused) => {
                    drop(handle);
                    self.restart(&refused)?;
                }
            }
        }
    }

    /// Adds all blocks to the transaction: those that this plan has allocated last, when none of
    /// the others can be refused any more.
    fn join(&mut self, handle: &mut Handle<'_>) -> std::result::Result<(), Refused> {
        for region in self
            .valid_regions()
            .filter(|region| !region.origin.is_fresh())
        {
            handle
                .join(&region.buffer)
                .map_err(|error| Refused::new(error, region.buffer.block()))?;
        }
        let groups = self.mount.groups();
        self.all_bits()
            .try_for_each(|bits| groups.join(handle, bits))?;
        self.join_charges(handle)?;
        self.join_fresh(handle)
    }

    /// Adds the blocks that this plan has allocated. A buffer that has left the cache is made
    /// again, and not refused: a restart would leave those that have joined in a transaction in
    /// which the plan is not applied. Nothing would revoke such a copy in the log, and a later
    /// transaction that allocates the block may write it to its home location.
    fn join_fresh(&mut self, handle: &mut Handle<'_>) -> std::result::Result<(), Refused> {
        let buffers = &self.mount.core.buffers;
        for region in &mut self.memory.regions {
            if region.is_void || !region.origin.is_fresh() {
                continue;
            }
            let block = region.buffer.block();
            while let Err(error) = handle.join(&region.buffer) {
                if error == ModifyError::OutOfCredits {
                    return Err(Refused::new(error, block));
                }
                region.buffer = region.origin.make(buffers, block);
            }
        }
        Ok(())
    }

    /// Prepares another attempt, for which the refused block stays in the cache.
    fn restart(&mut self, refused: &Refused) -> Result<()> {
        refused.check_may_restart()?;
        self.mount.count_retry();
        loop {
            self.reload(refused.block)?;
            // It may leave the cache again before it is kept.
            if let Some(kept) = self.mount.core.buffers.keep(refused.block) {
                self.kept_buffers.push(kept);
                // Another thread may have loaded the buffer that is kept.
                return self.reload(refused.block);
            }
        }
    }

    /// Loads a block of the plan again.
    fn reload(&mut self, refused: PhysBlock) -> Result<()> {
        self.reload_charges(refused)?;
        let buffers = &self.mount.core.buffers;
        for region in &mut self.memory.regions {
            if region.buffer.block() == refused {
                region.buffer = buffers.load(refused)?;
            }
        }
        let groups = self.mount.groups();
        let claimed = self.memory.claims.iter_mut().map(|(_, bits)| bits);
        let freed = self.memory.frees.iter_mut().map(|free| &mut free.bits);
        let inodes = self
            .memory
            .inodes
            .iter_mut()
            .chain(&mut self.memory.freed_inodes);
        claimed
            .chain(freed)
            .chain(inodes.map(|(_, bits)| bits))
            .filter(|bits| bits.blocks().contains(&refused))
            .try_for_each(|bits| groups.reload(bits, refused))
    }

    /// Makes all changes visible, in the order that [`crate::inode::consistent`] states. All blocks
    /// have joined.
    ///
    /// # Errors
    /// `Corrupt` if a block was freed since it joined. All steps have been taken all the same, and
    /// the journal was aborted.
    fn make_visible(
        &mut self,
        handle: &mut Handle<'_>,
        publication: Publication<'_>,
        publish: impl FnOnce(),
    ) -> Result<()> {
        let tid = handle.tid();
        let mut applying = Applying::in_handle(handle);
        let early = match self.memory.frees.is_empty() {
            true => None,
            false => stamp_before_publish(self.mount),
        };
        let departures = mem::take(&mut self.memory.departures);
        departures
            .iter()
            .for_each(|name| name.begin(&self.mount.core));
        let raised: [Option<Change<'_>>; MOST_CHANGES] = std::array::from_fn(|nth| {
            let inode = publication
                .changes
                .get(nth)
                .filter(|_| self.raises_sequence);
            inode.map(|inode| inode.change_sequence())
        });
        self.change_blocks(&mut applying, publication.touch);
        if self.mount.core.faults.lacks(Sabotage::UnsequencedKeyChange) {
            faults::pass_time();
        }
        self.count_charges();
        publish();
        for value in &self.gone_values {
            value.publish_end();
        }
        self.forget_revoked(&mut applying);
        drop(raised);
        if self.counts_free {
            let changes = publication.changes.iter();
            changes.for_each(|inode| inode.count_free());
        }
        departures.iter().for_each(Departure::end);
        self.memory.departures = departures;
        let frees = &self.memory.frees;
        let stamp = match frees.iter().any(|free| free.readers == Readers::Possible) {
            true => early.unwrap_or_else(|| self.mount.stamp()),
            false => Stamp::default(),
        };
        self.hand_over_clusters(tid, stamp);
        applying.end()
    }

    /// Changes the buffers of all blocks: first those that nothing refers to yet.
    fn change_blocks(&mut self, applying: &mut Applying<'_, '_>, touch: Option<&Touch<'_>>) {
        let groups = self.mount.groups();
        self.all_bits()
            .for_each(|bits| applying.make(|handle| groups.make(handle, bits)));
        let dirs = self.memory.inodes.iter().map(|entry| (entry, 1));
        let dirs = dirs.chain(self.memory.freed_inodes.iter().map(|entry| (entry, -1)));
        for ((claim, bits), change) in dirs {
            if claim.is_directory {
                applying.make(|handle| groups.change_used_dirs(handle, bits, change));
            }
        }
        if self.mount.core.faults.lacks(Sabotage::NameBeforeInode) {
            return self.valid_regions().for_each(|region| {
                applying.make(|handle| self.put_region(handle, region, touch));
                faults::pass_time();
            });
        }
        for stage in [Stage::NewBlock, Stage::NewInode, Stage::Rest] {
            let regions = self.valid_regions();
            for region in regions.filter(|region| region.stage() == stage) {
                applying.make(|handle| self.put_region(handle, region, touch));
            }
        }
    }

    fn put_region(
        &self,
        handle: &mut Handle<'_>,
        region: &Region,
        touch: Option<&Touch<'_>>,
    ) -> std::result::Result<(), Refused> {
        let own = self.memory.of(region);
        let made = handle.modify(&region.buffer, region.tag, |bytes| {
            region.put(own, bytes, self.mount.core.superblock());
            if let (RegionKind::Touched, Some(touch)) = (region.kind, touch) {
                touch.make(&mut bytes[region.offset..], &self.mount.core);
            }
        });
        made.map_err(|error| Refused::new(error, region.buffer.block()))
    }

    /// Forgets the metadata in blocks that hold no metadata any more.
    fn forget_revoked(&self, applying: &mut Applying<'_, '_>) {
        for &block in &self.memory.revoked {
            applying.make(|handle| {
                let forgotten = handle.forget(&self.mount.core.buffers, block);
                forgotten.map_err(|error| Refused::new(error, block))
            });
        }
    }

    /// Marks claims as used by the transaction `tid`, and passes frees to the allocator: their
    /// clusters are free once `tid` is durable and the grace period of `stamp` has ended, which is
    /// not awaited for clusters without readers.
    fn hand_over_clusters(&mut self, tid: Tid, stamp: Stamp) {
        let allocator = self.mount.allocator();
        for (claim, _) in self.memory.claims.drain(..) {
            allocator.mark(claim, tid);
        }
        let (tid, stamp) = match self.mount.core.faults.lacks(Sabotage::EarlyReuse) {
            true => (self.mount.journal().committed_tid(), Stamp(0)),
            false => (tid, stamp),
        };
        for free in self.memory.frees.drain(..) {
            let stamp = match free.readers {
                Readers::Possible => stamp,
                Readers::None => Stamp(0),
            };
            allocator.finish_free(free.freeing, tid, stamp);
        }
        self.memory.inodes.clear();
    }
}

/// With the fault `StampBeforePublish`, returns the stamp of frees, taken before the change is
/// published. A running commit then has time to end before the change is published.
pub(crate) fn stamp_before_publish(mount: &Mount) -> Option<Stamp> {
    mount
        .core
        .faults
        .lacks(Sabotage::StampBeforePublish)
        .then(|| {
            let early = mount.stamp();
            faults::pass_time();
            early
        })
}

#[cfg(all(test, not(feature = "shuttle")))]
mod freed_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod restart_tests;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
