//! **Purpose.** The unit of a plan: what its operation notes while it is planned, and what is added
//! when the plan is applied.
//!
//! **Model.** Names and maps are noted where they are planned. Everything else is found when the
//! plan is applied: the slots of its inodes are compared with what lies in their blocks, and what a
//! plan frees or puts on the orphan list taints the unit. So an operation that knows nothing of
//! fast commits is left out of them.

use fourscore_block::Structure;
use fourscore_ondisk::dirent::edit::Removal;
use fourscore_ondisk::dirent::{DirFormat, DirentError};
use fourscore_ondisk::extent::Extent;
use fourscore_ondisk::inode::{FileType, InodeFlags, RawInode};
use fourscore_ondisk::{InodeNr, Tid};
use zerocopy::FromBytes;

use crate::inode::cached::{CachedInode, Layout};
use crate::inode::last_change::LastChange;
use crate::mount::modes::DataMode;
use crate::txn::fast_commit::note::{Life, Note, Room, Space};
use crate::txn::fast_commit::reason::Reason;
use crate::txn::fast_commit::slots::{self, Beside, Verdict};
use crate::txn::memory::{Region, RegionKind};
use crate::txn::plan::Plan;

impl Plan<'_> {
    /// Notes that an extent of a file is mapped, or has another state than before.
    pub(crate) fn note_range(&mut self, inode: &CachedInode, extent: Extent) {
        if self.is_noted() && inode.file_type() == FileType::Regular {
            let nr = inode.nr();
            self.memory.notes.push(Note::Range { nr, extent });
        }
    }

    /// Notes that `name` was added to the directory `dir`, and refers to the inode `nr`.
    pub(crate) fn note_added(&mut self, dir: &CachedInode, name: &[u8], nr: InodeNr, room: Room) {
        if self.may_note_names(dir) {
            let (dir, name) = (dir.nr(), self.memory.notes.keep(name));
            let note = Note::Added {
                dir,
                nr,
                name,
                room,
            };
            self.memory.notes.push(note);
        }
    }

    /// Notes that `name` was removed from the directory `dir`.
    pub(crate) fn note_removed(
        &mut self,
        dir: &CachedInode,
        name: &[u8],
        space: Space,
        removed: &Removal,
    ) {
        if self.may_note_names(dir) {
            // The free space in front of it and behind it became one with it.
            let freed = u32::try_from(removed.range().len()).unwrap_or(u32::MAX);
            let (dir, name) = (dir.nr(), self.memory.notes.keep(name));
            let note = Note::Removed {
                dir,
                nr: removed.inode,
                name,
                space,
                freed,
            };
            self.memory.notes.push(note);
        }
    }

    /// Notes that `name` in the directory `dir` referred to the inode `before`, and refers to
    /// another one now.
    pub(crate) fn note_redirected(&mut self, dir: &CachedInode, name: &[u8], before: InodeNr) {
        if self.may_note_names(dir) {
            let (dir, name) = (dir.nr(), self.memory.notes.keep(name));
            let note = Note::Removed {
                dir,
                nr: before,
                name,
                space: Space::All,
                freed: 0,
            };
            self.memory.notes.push(note);
            let why = Reason::CrossRename;
            self.memory.notes.push(Note::TaintAll { why });
        }
    }

    /// Notes that no record expresses what happens to the inode `nr`.
    pub(crate) fn taint(&mut self, nr: InodeNr, why: Reason) {
        if self.is_noted() {
            self.memory.notes.push(Note::Taint { nr, why });
        }
    }

    /// Whether changes are noted: there are fast commits.
    pub(crate) fn is_noted(&self) -> bool {
        self.mount.fast_commits().is_some()
    }

    /// Whether names of `dir` are noted; taints the directory where no record expresses them.
    fn may_note_names(&mut self, dir: &CachedInode) -> bool {
        if !self.is_noted() {
            return false;
        }
        let is_unusual = dir.has(InodeFlags::ENCRYPT_FL)
            || dir.has(InodeFlags::CASEFOLD_FL)
            || dir.layout() == Layout::Inline;
        if is_unusual {
            self.taint(dir.nr(), Reason::Names);
        }
        !is_unusual
    }

    /// Lists the unit of this plan, whose blocks have all joined the transaction `tid`. Called
    /// before its changes are visible.
    pub(crate) fn list_unit(&mut self, tid: Tid, last: &[&LastChange]) {
        let mount = self.mount;
        let Some(fast_commits) = mount.fast_commits() else {
            return;
        };
        self.add_slots();
        self.taint_what_is_unsaid();
        fast_commits.list(tid, &self.memory.notes, last);
    }

    /// Taints the unit if it frees something, or changes the orphan list or the superblock.
    fn taint_what_is_unsaid(&mut self) {
        let memory = &self.memory;
        let changes_orphans = self.orphan_update.is_some()
            || memory
                .regions
                .iter()
                .any(|region| matches!(region.kind, RegionKind::Link(..)));
        let changes_superblock = memory.changes(Structure::Superblock);
        let why = if changes_orphans || !memory.freed_inodes.is_empty() {
            Reason::LastName
        } else if changes_superblock {
            Reason::Fields
        } else if !memory.frees.is_empty() || !memory.revoked.is_empty() {
            Reason::RangeOperation
        } else {
            return;
        };
        self.memory.notes.push(Note::TaintAll { why });
    }

    /// Notes the slots of inodes that change. If a block of attributes changes, they are tainted,
    /// whatever their slots say: its content is in no record, nor is the count of its users, when
    /// an inode joins it or leaves it.
    fn add_slots(&mut self) {
        let mount = self.mount;
        let memory = &mut self.memory;
        let changes_xattrs = memory.changes(Structure::Xattrs);
        let (bytes, notes) = (&memory.bytes, &mut memory.notes);
        for region in memory.regions.iter().filter(|region| !region.is_void) {
            let (RegionKind::Slot(nr) | RegionKind::WholeSlot(nr)) = region.kind else {
                continue;
            };
            if changes_xattrs {
                let why = Reason::Xattr;
                notes.push(Note::Taint { nr, why });
                continue;
            }
            let is_new = memory.inodes.iter().any(|(claim, _)| claim.nr == nr);
            let life = if is_new { Life::New } else { Life::Existing };
            let new = &bytes[region.bytes.clone()];
            let beside = Beside {
                maps_blocks: notes.has_range_of(nr),
                changes_names: notes.has_name_in(nr),
                journals: mount.data == DataMode::Journal || journals_itself(new),
            };
            let verdict = of_region(region, |old| slots::verdict(old, new, life, beside));
            match verdict {
                Verdict::Image { len } => {
                    let bytes = notes.keep(&new[..len]);
                    notes.push(Note::Image { nr, life, bytes });
                }
                Verdict::Unsaid => {}
                Verdict::Tainted(why) => notes.push(Note::Taint { nr, why }),
            }
        }
    }
}

/// Calls `look` with what lies in the place of a region.
fn of_region<R>(region: &Region, look: impl FnOnce(&[u8]) -> R) -> R {
    let range = region.offset..region.offset + region.bytes.len();
    region
        .buffer
        .look(|block| look(block.get(range).unwrap_or_default()))
}

fn journals_itself(slot: &[u8]) -> bool {
    let flags = RawInode::ref_from_prefix(slot).map_or(0, |(raw, _)| raw.i_flags.get());
    InodeFlags::from_bits_retain(flags).contains(InodeFlags::JOURNAL_DATA_FL)
}

impl Room {
    /// Returns the space that `name` takes in `block`, which is one of `space`.
    ///
    /// # Errors
    /// If a record is corrupt, which is impossible in a checked block.
    pub(crate) fn of(
        space: Space,
        format: &DirFormat,
        block: &[u8],
        name: &[u8],
    ) -> Result<Self, DirentError> {
        let bytes = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        Ok(Self {
            space,
            gap: bytes(format.largest_room_bytes(block)?),
            needed: bytes(format.needed_bytes(name)),
        })
    }

    /// The space of a name that takes the place of an entry, or for which the directory grows.
    pub(crate) const fn none() -> Self {
        Self {
            space: Space::All,
            gap: 0,
            needed: 0,
        }
    }
}
