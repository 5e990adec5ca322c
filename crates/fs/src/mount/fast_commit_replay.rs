//! **Purpose.** Writing what fast commits changed, when a file system is mounted for writing.
//!
//! **Not here.** What the records say ([`crate::mount::fast_commit`]), and which of them count (crate
//! `journal`).
//!
//! **Model.** The changes are known already: inodes, runs of maps, names. They are made as
//! operations make them, by plans, but all in one transaction: the very one to which the fast
//! commits belong. When it is committed it takes their place, as any full commit does.
//!
//! ```text
//! blocks that the runs name are claimed -> inodes and maps -> names -> what is gone -> commit
//! ```
//!
//! Blocks are claimed before anything else is allocated, so that no tree or directory grows into
//! them. An inode without a name left goes on record, and is freed with the other orphans.
//!
//! A block that is to be claimed may be one that another inode loses: then that is freed first
//! ([`lost`]).
//!
//! **Crash safety.** Until the commit is durable the fast commits count, and nothing but the
//! journal was written; so a recovery that is cut is made again. More than one transaction has room
//! for is refused.

mod lost;

use fourscore_journal::{Background, JournalOptions, Log};
use fourscore_mballoc::{ClusterCount, LogicalCluster, Request, Sizing};
use fourscore_ondisk::dirent::write::NewEntry;
use fourscore_ondisk::extent::{Extent, ExtentState, MAX_UNWRITTEN_BLOCKS};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::jbd2::JournalError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock};
use fourscore_sync::epoch;

use crate::dir::create::{check_key, entry_type};
use crate::dir::entries::ChangedDir;
use crate::inode::cache::{CachedInode, Layout};
use crate::inode::orphans::OrphanPlace;
use crate::map::lookup::{Mapping, Target};
use crate::map::update::Freed;
use crate::mount::fast_commit::{
    Base, DirChanges, FastCommitOverlay, InodeChange, InodePatch, RangeEdits,
};
use crate::mount::options::MountOptions;
use crate::mount::writer::{Scope, Writer};
use crate::txn::plan::Plan;
use crate::txn::slot::Slot;
use crate::{Error, FileType, Fs, Result};

/// One change of a map.
#[derive(Clone, Copy, Debug)]
enum Piece {
    Unmap(LogicalBlock, LogicalBlock),
    Map(Extent),
    SetState(LogicalBlock, LogicalBlock, ExtentState),
}

/// A part of a run that inodes are told to map, all of which lay in one way before.
struct Part {
    at: LogicalBlock,
    end: LogicalBlock,
    /// Where it goes, if it is not to be a hole.
    physical: Option<PhysBlock>,
    before: Lay,
}

impl Part {
    fn blocks(&self) -> u32 {
        self.end.0 - self.at.0
    }
}

/// Where blocks of a file lay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lay {
    Nowhere,
    Elsewhere,
    /// Where they go.
    There,
}

/// An inode that is going to be changed.
struct Pending<'f> {
    plan: Plan<'f>,
    slot: Slot,
    pieces: Vec<Piece>,
}

impl Fs {
    /// Makes the changes of `overlay` on `fs`, whose log was replayed but for them, and leaves the
    /// journal empty.
    ///
    /// # Errors
    /// `ReadOnly` if they are more than one transaction of the journal has room for; `Corrupt` for
    /// records that contradict the file system. Nothing is changed then.
    pub(crate) fn write_fast_commits(
        fs: Self,
        log: Log,
        overlay: &FastCommitOverlay,
    ) -> Result<()> {
        // Nothing is committed before all is done.
        let journal = JournalOptions {
            background: Background::None,
            ..JournalOptions::default()
        };
        // Linux claims them without asking how much is left.
        let options = MountOptions::new().journal(journal).use_reserve();
        let device = fourscore_sync::clone_arc(fs.device());
        let fs = Self::with_writer(fs, Some(log), (&options, device), Scope::OneTransaction)?;
        fs.make_changes(overlay)?;
        fs.unmount()
    }

    fn make_changes(&self, overlay: &FastCommitOverlay) -> Result<()> {
        let writer = self.writer()?;
        for (nr, change) in overlay.changed_inodes() {
            if let InodeChange::Patched(patch) = change
                && patch.base == Base::Zeroes
            {
                self.free_life(writer, nr)?;
            }
        }
        self.free_what_is_wanted(writer, overlay)?;
        let mut pending = Vec::new();
        for (nr, change) in overlay.changed_inodes() {
            if let InodeChange::Patched(patch) = change {
                let runs = overlay.ranges_of(nr);
                pending.push((nr, self.plan_inode_change(writer, nr, Some(patch), runs)?));
            }
        }
        for (nr, runs) in overlay.changed_maps() {
            if overlay.change_of(nr).is_none() {
                pending.push((nr, self.plan_inode_change(writer, nr, None, Some(runs))?));
            }
        }
        for (nr, change) in pending {
            self.change_inode(change, overlay.made_in(nr))?;
        }
        for (dir, names) in overlay.changed_dirs() {
            self.change_names(writer, dir, names)?;
        }
        for (nr, change) in overlay.changed_inodes() {
            if *change == InodeChange::Deleted {
                self.put_on_record(writer, nr)?;
            }
        }
        Ok(())
    }

    /// An inode as it was before the fast commits; `None` if they made it, or it is gone.
    fn before(&self, overlay: &FastCommitOverlay, nr: InodeNr) -> Result<Option<CachedInode>> {
        match overlay.change_of(nr) {
            Some(InodeChange::Deleted) => Ok(None),
            Some(InodeChange::Patched(patch)) if patch.base == Base::Zeroes => Ok(None),
            _ => CachedInode::new(self.load_inode(nr)?, self).map(Some),
        }
    }

    /// Frees what an inode number stood for before the fast commits took it away, or gave it to
    /// another inode.
    fn free_life(&self, writer: &Writer, nr: InodeNr) -> Result<()> {
        let Some((group, index)) = self.geometry().inode_group(nr) else {
            return Err(Error::NotFound);
        };
        if !self.inode_bitmap(group)?.is_used(index.0) {
            return Ok(());
        }
        let place = self.place_on_record(writer, nr);
        let inode = CachedInode::new(self.load_inode(nr)?, self)?;
        let mut plan = Plan::new(self, writer).in_one_step();
        let slot = plan.slot(nr)?;
        let freed = plan.free_map(&inode, slot, LogicalBlock(0))?;
        debug_assert_eq!(freed, Freed::All);
        self.plan_end(&mut plan, &inode, slot, place)?;
        self.carry_out_here(plan)
    }

    fn place_on_record(&self, writer: &Writer, nr: InodeNr) -> Option<OrphanPlace> {
        let all = writer.orphans().all().into_iter();
        all.filter(|&(found, _)| found == nr)
            .map(|(_, place)| place)
            .next()
    }

    /// Plans the new bytes of an inode, and claims the blocks that its map will name.
    fn plan_inode_change<'f>(
        &'f self,
        writer: &'f Writer,
        nr: InodeNr,
        patch: Option<&InodePatch>,
        runs: Option<&RangeEdits>,
    ) -> Result<Pending<'f>> {
        let mut plan = Plan::new(self, writer).in_one_step();
        let is_new = patch.is_some_and(|patch| patch.base == Base::Zeroes);
        if is_new {
            let file_type = patch.and_then(InodePatch::file_type);
            let is_directory = file_type == Some(FileType::Directory);
            let claim = writer.inodes().take(self, writer, nr, is_directory)?;
            plan.use_inode(claim)?;
        }
        let slot = plan.slot(nr)?;
        let before = match is_new {
            true => None,
            false => {
                let inode = plan.inode(slot)?;
                Some(CachedInode::new(inode, self)?)
            }
        };
        if let Some(patch) = patch {
            self.plan_patch(&mut plan, slot, patch, before.as_ref())?;
        }
        let mut pieces = Vec::new();
        for run in runs.map_or(&[][..], RangeEdits::runs) {
            self.plan_run(&mut plan, nr, before.as_ref(), run, &mut pieces)?;
        }
        Ok(Pending { plan, slot, pieces })
    }

    /// Lays the record over an inode's slot. What it takes of space follows from its map.
    fn plan_patch(
        &self,
        plan: &mut Plan<'_>,
        slot: Slot,
        patch: &InodePatch,
        before: Option<&CachedInode>,
    ) -> Result<()> {
        let in_inode = |error| Corrupt::from(error).in_inode(slot.nr);
        let bytes = plan.slot_bytes_mut(slot);
        let new = patch.apply(bytes, slot.nr, self.superblock());
        bytes.copy_from_slice(&new.map_err(in_inode)?);
        if before.is_none() {
            plan.set_next_orphan(slot, None)?;
        }
        let is_directory = plan.inode(slot)?.file_type() == Some(FileType::Directory);
        let now_inline = self.has_inline_data()
            && plan
                .inode(slot)?
                .flags()
                .contains(InodeFlags::INLINE_DATA_FL);
        let was_inline = before.map(|before| before.layout() == Layout::Inline);
        if is_directory && was_inline.is_some_and(|was_inline| was_inline != now_inline) {
            // Names that have moved are not among those that come one by one.
            return Err(Error::ReadOnly(
                "the fast commits in the journal move a directory out of its inode".into(),
            ));
        }
        let sectors = before.map_or(0, |inode| inode.on_disk().sectors());
        let file_acl = before.and_then(|inode| inode.on_disk().file_acl());
        plan.edit(slot, |inode| {
            // They were there before, or are less.
            let _ = inode.set_sectors(sectors);
            let _ = inode.set_file_acl(file_acl);
            match before {
                // All its names are in the record.
                _ if now_inline => {}
                None if is_directory => {
                    // Its names come one by one.
                    let _ = inode.set_size_bytes(0);
                    inode.set_flags(inode.flags() - InodeFlags::INDEX_FL);
                }
                Some(before) if is_directory => {
                    let _ = inode.set_size_bytes(before.size_bytes());
                    let index = before.on_disk().flags() & InodeFlags::INDEX_FL;
                    inode.set_flags((inode.flags() - InodeFlags::INDEX_FL) | index);
                }
                _ => {}
            }
        })
    }

    /// Plans the change of one run of a map.
    fn plan_run(
        &self,
        plan: &mut Plan<'_>,
        nr: InodeNr,
        before: Option<&CachedInode>,
        run: &Mapping,
        pieces: &mut Vec<Piece>,
    ) -> Result<()> {
        let state = match run.target {
            Target::Unwritten(_) => ExtentState::Unwritten,
            Target::Hole | Target::Written(_) => ExtentState::Written,
        };
        for part in self.parts(before, run)? {
            let Part { at, end, .. } = part;
            match part.before {
                Lay::There => {
                    pieces.push(Piece::SetState(at, end, state));
                    continue;
                }
                Lay::Elsewhere => pieces.push(Piece::Unmap(at, end)),
                Lay::Nowhere => {}
            }
            if let Some(physical) = part.physical {
                let extent = Extent {
                    logical: at,
                    physical,
                    blocks: part.blocks(),
                    state,
                };
                claim_extent(plan, nr, extent, pieces)?;
            }
        }
        Ok(())
    }

    /// A run by how its parts lay before. What is to be a hole is one part: a record may make one
    /// of a whole file.
    fn parts(&self, before: Option<&CachedInode>, run: &Mapping) -> Result<Vec<Part>> {
        let first = match run.target {
            Target::Written(first) | Target::Unwritten(first) => first,
            Target::Hole => {
                return Ok(vec![Part {
                    at: run.logical,
                    end: run.end(),
                    physical: None,
                    before: Lay::Elsewhere,
                }]);
            }
        };
        let guard = epoch::pin();
        let mut parts = Vec::new();
        let mut at = run.logical;
        while at < run.end() {
            let found = match before {
                Some(inode) => Some(self.map(inode, at, &guard)?),
                None => None,
            };
            let left = run.end().0 - at.0;
            let blocks = found.map_or(left, |found| found.blocks.min(left));
            let end = LogicalBlock(at.0 + blocks);
            let skipped = u64::from(at.0 - run.logical.0);
            let physical = PhysBlock(first.0 + skipped);
            let mapped = found.and_then(|found| found.extent());
            parts.push(Part {
                at,
                end,
                physical: Some(physical),
                before: match mapped {
                    None => Lay::Nowhere,
                    Some(mapped) if mapped.physical == physical => Lay::There,
                    Some(_) => Lay::Elsewhere,
                },
            });
            at = end;
        }
        Ok(parts)
    }

    /// Makes the changes of an inode and its map. A directory that is new begins empty.
    fn change_inode(&self, change: Pending<'_>, made_in: Option<InodeNr>) -> Result<()> {
        let Pending {
            mut plan,
            slot,
            pieces,
        } = change;
        let inode = plan.version(slot)?;
        let was = self.content_of(&inode);
        for piece in pieces {
            match piece {
                Piece::Unmap(start, end) => {
                    plan.unmap(&inode, slot, (start, end), was)?;
                }
                Piece::Map(extent) => plan.map_extent(&inode, slot, extent)?,
                Piece::SetState(start, end, state) => {
                    plan.set_state(&inode, slot, start..end, state)?;
                }
            }
        }
        if let Some(parent) = made_in
            && inode.layout() != Layout::Inline
        {
            let mut dir = ChangedDir::new(self, &inode, slot)?;
            plan.init_directory(&mut dir, parent)?;
        }
        plan.end(slot)?;
        self.carry_out_here(plan)
    }

    /// Adds and removes names of a directory, which keeps its times.
    fn change_names(&self, writer: &Writer, dir: InodeNr, names: &DirChanges) -> Result<()> {
        let pinned = self.pin_directory(dir)?;
        let locked = pinned.lock();
        for (name, now) in names.changed_names() {
            let parent = &self.directory_to_change(&pinned)?;
            check_key(parent)?;
            let before = match self.look_up_locked(parent, name, &epoch::pin()) {
                Ok(found) => Some(found),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error),
            };
            let mut plan = Plan::new(self, writer);
            let slot = plan.slot(dir)?;
            let mut changed = ChangedDir::new(self, parent, slot)?;
            match (before, now) {
                (None, None) => continue,
                (Some(_), None) => plan.remove_name(&changed, name)?,
                (Some(_), Some((inode, kind))) => {
                    plan.redirect_name(&changed, name, inode, entry_type(kind))?;
                }
                (None, Some((inode, kind))) => {
                    let entry = NewEntry::new(inode, name, entry_type(kind));
                    plan.add_name(&mut changed, &entry.ok_or(Error::NameTooLong)?)?;
                }
            }
            let version = plan.version(slot)?;
            self.carry_out_here(plan)?;
            pinned.publish(Some(version));
        }
        drop(locked);
        Ok(())
    }

    /// Puts an inode that has lost its last name on record.
    fn put_on_record(&self, writer: &Writer, nr: InodeNr) -> Result<()> {
        let Some((group, index)) = self.geometry().inode_group(nr) else {
            return Ok(());
        };
        if !self.inode_bitmap(group)?.is_used(index.0) || self.load_inode(nr)?.links_count() == 0 {
            // It came and went between two commits, or was on record before.
            return Ok(());
        }
        let mut plan = Plan::new(self, writer);
        let slot = plan.slot(nr)?;
        plan.edit(slot, |inode| inode.set_links_count(0))?;
        if self.place_on_record(writer, nr).is_none() {
            plan.add_orphan(slot)?;
        }
        plan.end(slot)?;
        self.carry_out_here(plan)
    }

    fn carry_out_here(&self, plan: Plan<'_>) -> Result<()> {
        plan.carry_out(&[]).map(drop)
    }
}

/// Claims the blocks of an extent, and plans to map them.
fn claim_extent(
    plan: &mut Plan<'_>,
    nr: InodeNr,
    extent: Extent,
    pieces: &mut Vec<Piece>,
) -> Result<()> {
    let mut done = 0;
    while done < extent.blocks {
        let wanted = (extent.blocks - done).min(MAX_UNWRITTEN_BLOCKS.into());
        let logical = LogicalBlock(extent.logical.0 + done);
        let goal = PhysBlock(extent.physical.0 + u64::from(done));
        let len = ClusterCount(wanted);
        let mut request = Request::data(nr, LogicalCluster(logical.0), len, goal);
        request.sizing = Sizing::GoalOnly;
        let (physical, blocks) = match plan.allocate(&request, None) {
            Err(Error::NoSpace) => {
                let error = JournalError::FastCommitInUse { block: goal };
                return Err(Corrupt::from(error).in_inode(nr).into());
            }
            claimed => claimed?,
        };
        pieces.push(Piece::Map(Extent {
            logical,
            physical,
            blocks,
            state: extent.state,
        }));
        done += blocks;
    }
    Ok(())
}
