//! **Purpose.** Plans where the attributes of an inode that do not fit into it are stored: in the
//! block that it has, in one with equal attributes that exists, or in a new one.
//!
//! **Not here.** What the attributes are after the change ([`crate::xattr::set`]); finding an equal
//! block ([`crate::xattr::share`]).
//!
//! **Model.** A change of attributes edits a [`Draft`], a copy of the inode's block. The draft is
//! settled once, when it is complete, so a change of several attributes moves the inode once:
//!
//! ```text
//! old block      draft      equal block known     then
//! any            empty      -                     the inode leaves its block
//! any            content    yes                   it leaves its block and joins the equal one
//! of one inode   content    no                    the block is changed in place
//! shared, none   content    no                    it leaves its block and gets a new one
//! ```
//!
//! An inode that leaves its block takes a user from it; with the last one the block is freed, and
//! so are the values of its entries. The block counts in `i_blocks` of each of its users.
//!
//! The attributes of an inode that is deleted are freed in steps, since its values may be more than
//! one transaction has space for. Each step drops users of values, first those of the block, and
//! takes their entries out of the block or the inode, with what they count in `i_blocks`:
//!
//! ```text
//! block: a b c d   ->  block: c d  ->  no block     ->  no block
//! inode: e f g         inode: e f g    inode: f g       the inode is freed
//! ```
//!
//! **Invariants.**
//! - `h_refcount` of a block is the number of inodes that use it. A block that several inodes use
//!   does not change but for this count.
//! - The entries of an inode's block do not change without the inode's lock: another inode can join
//!   the block, but not change it. So the draft is made without the block's lock, and the content
//!   is compared again under it. If it has changed, the count was wrong.
//! - An entry in a block counts once as a user of its value, however many inodes use the block.
//! - After each step of a deletion the inode counts as a user of the values of the entries that are
//!   left, and of no others.
//!
//! **Locking.** The inode's lock, then the locks of values and of at most two blocks
//! ([`crate::xattr::held`]).
//!
//! **Readers.** No thread reads the attributes of an inode whose deletion has begun: its end is
//! published with the first step, or before it, and the sequence count is raised then. So a reader
//! that holds an older version begins again, and finds that the inode is gone.
//!
//! **Crash safety.** An inode that is not freed in one step is on the orphan list since the first.
//! Between steps its attributes are valid, and fewer than before.

use std::mem;

use fourscore_block::{Structure, VerifiedAs};
use fourscore_mballoc::{Content as Wanted, Reach};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::xattr::{self, MAX_BLOCK_REFS, REFCOUNT, SharedContent, Xattrs, XattrsMut};
use fourscore_ondisk::{Corrupt, Inode, InodeNr, PhysBlock};

use crate::group::change;
use crate::map::account::{self, Freed};
use crate::mount::superblock;
use crate::txn::plan::{Plan, RegionId};
use crate::txn::slot::{self, Slot};
use crate::xattr::ea_inode::ValueEntry;
use crate::xattr::held::Note;
use crate::xattr::share::{Candidate, Look, Miss, Sharing, Users};
use crate::xattr::{ea_inode, get};
use crate::{Error, Result};

/// The attributes in an inode's block after a change that is being planned.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) slot: Slot,
    /// The block that the inode has.
    old: Option<PhysBlock>,
    /// Its content; empty if it has none.
    before: Vec<u8>,
    /// Whether making the draft has read the block from the device.
    is_loaded: bool,
    /// The content after the change; empty if there are no attributes left.
    pub(crate) after: Vec<u8>,
    /// Inodes of values that got a user for an entry of this change.
    pub(crate) gained: Vec<InodeNr>,
    /// Inodes of values that entries of the inode itself do not refer to any more.
    pub(crate) lost_in_inode: Vec<InodeNr>,
    /// Inodes of values that entries of the block do not refer to any more.
    pub(crate) lost_in_block: Vec<InodeNr>,
}

/// The block that an inode has, under its lock.
#[derive(Clone, Copy, Debug)]
struct Old {
    at: PhysBlock,
    region: RegionId,
    users: u32,
}

/// Whether the region of an inode's block holds all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// Only the count of users is changed.
    Count,
    /// The content is changed if the inode is its only user.
    All,
}

impl Draft {
    /// Begins a change of the attributes of `inode`, whose slot is in the plan, and locks the
    /// values that it may concern.
    pub(crate) fn of(plan: &mut Plan<'_>, slot: Slot, inode: &Inode) -> Result<Self> {
        let mut draft = Self {
            slot,
            old: inode.file_acl(),
            before: emptied(&mut plan.memory.xattrs.before),
            is_loaded: false,
            after: emptied(&mut plan.memory.xattrs.after),
            gained: Vec::new(),
            lost_in_inode: Vec::new(),
            lost_in_block: Vec::new(),
        };
        if let Some(at) = draft.old {
            draft.read(plan, at)?;
        }
        if ea_inode::has_value_inodes(&plan.mount.core) {
            let area = inode.xattr_area().map(Xattrs::in_inode);
            let mut values = Vec::new();
            for xattrs in area.into_iter().chain(draft.old_xattrs()?) {
                values.extend(ea_inode::values_of(&xattrs, slot.nr)?);
            }
            plan.xattrs.lock_values(values.into_iter());
        }
        Ok(draft)
    }

    /// Reads the block that the inode has.
    fn read(&mut self, plan: &Plan<'_>, at: PhysBlock) -> Result<()> {
        let core = &*plan.mount.core;
        if !core.geometry().data_blocks().contains(&at) {
            let error = RelationError::XattrBlock {
                found: at,
                blocks: core.geometry().data_blocks(),
            };
            return Err(Corrupt::from(error).in_inode(self.slot.nr).into());
        }
        let (before, is_loaded, nr) = (&mut self.before, &mut self.is_loaded, self.slot.nr);
        let check = |bytes: &[u8]| {
            *is_loaded = true;
            get::check_xattr_block(core, at, bytes)
                .map_err(|corrupt| corrupt.in_block(at).in_inode(nr))
        };
        let buffer = core.buffers.load(at)?;
        buffer.look_verified(tag(), check, |bytes| before.extend_from_slice(bytes))?;
        self.after.extend_from_slice(&self.before);
        Ok(())
    }

    fn old_xattrs(&self) -> Result<Option<Xattrs<'_>>> {
        if self.before.is_empty() {
            return Ok(None);
        }
        let xattrs = Xattrs::in_block(&self.before);
        Ok(Some(xattrs.map_err(|error| {
            Corrupt::from(error).in_inode(self.slot.nr)
        })?))
    }

    /// The attributes of the block after the change, if there are any.
    pub(crate) fn block(&self) -> Option<&[u8]> {
        (!self.after.is_empty()).then_some(&self.after[..])
    }

    /// Plans the change.
    pub(crate) fn settle(mut self, plan: &mut Plan<'_>) -> Result<()> {
        if self.after != self.before {
            plan.raise_sequence();
            match self.after.is_empty() {
                true => self.leave(plan)?,
                false => self.store(plan)?,
            }
        } else {
            // The value that an entry had already was set again, and has got a user too many.
            for nr in mem::take(&mut self.gained) {
                ea_inode::drop_value_user(plan, nr)?;
            }
        }
        for nr in mem::take(&mut self.lost_in_inode) {
            ea_inode::drop_value_user(plan, nr)?;
        }
        self.keep_memory(plan);
        Ok(())
    }

    /// Keeps the memory of the draft for the thread's next one.
    fn keep_memory(self, plan: &mut Plan<'_>) {
        (plan.memory.xattrs.before, plan.memory.xattrs.after) = (self.before, self.after);
    }

    /// Plans that the attributes of an inode that is being deleted are freed, as far as the plan
    /// has space: the inode leaves its block, and its values lose a user. `inode` is the inode as
    /// it is in the plan. If values are left, the entries of the others are removed.
    pub(crate) fn free(mut self, plan: &mut Plan<'_>, inode: &Inode) -> Result<Freed> {
        let mut freed = match self.old {
            Some(at) => self.free_block(plan, at)?,
            None => Freed::All,
        };
        if freed == Freed::All {
            freed = self.free_in_inode(plan, inode)?;
        }
        self.keep_memory(plan);
        Ok(freed)
    }

    /// Plans that an inode that is being deleted leaves its block. The last user of a block frees
    /// its values first; what is left of them stays in the block.
    fn free_block(&mut self, plan: &mut Plan<'_>, at: PhysBlock) -> Result<Freed> {
        plan.xattrs.lock_blocks(Some(at), None);
        let values = self.values_in_block(plan)?;
        let extent = match values.is_empty() {
            true => Extent::Count,
            false => Extent::All,
        };
        let old = self.open(plan, at, extent)?;
        if old.users > 1 {
            self.drop_user(plan, old)?;
            return Ok(Freed::All);
        }
        let count = ea_inode::drop_users_in_steps(plan, &values)?;
        self.note_end(plan, at);
        let Some(gone) = values.get(..count).filter(|_| count < values.len()) else {
            plan.free_metadata(at)?;
            return Ok(Freed::All);
        };
        let xattrs = XattrsMut::in_block(&mut self.after);
        let xattrs = xattrs.map_err(|error| Corrupt::from(error).in_inode(self.slot.nr))?;
        ea_inode::remove_entries(xattrs, self.slot.nr, gone)?;
        plan.bytes_mut(old.region).copy_from_slice(&self.after);
        ea_inode::refund_values(plan, self.slot, gone)?;
        Ok(Freed::Part)
    }

    /// Plans that the values of entries in an inode that is being deleted, and that has left its
    /// block, lose a user.
    fn free_in_inode(&self, plan: &mut Plan<'_>, inode: &Inode) -> Result<Freed> {
        let Some(area) = inode.xattr_area() else {
            return Ok(Freed::All);
        };
        if !ea_inode::has_value_inodes(&plan.mount.core) {
            return Ok(Freed::All);
        }
        let values = ea_inode::entries_of(&Xattrs::in_inode(area), self.slot.nr)?;
        let count = ea_inode::drop_users_in_steps(plan, &values)?;
        let Some(gone) = values.get(..count).filter(|_| count < values.len()) else {
            return Ok(Freed::All);
        };
        let nr = self.slot.nr;
        slot::edit(plan, self.slot, |inode| {
            let area = inode.xattr_area_mut().unwrap_or_default();
            let xattrs = XattrsMut::in_inode(area);
            let xattrs = xattrs.map_err(|error| Corrupt::from(error).in_inode(nr))?;
            ea_inode::remove_entries(xattrs, nr, gone)
        })??;
        ea_inode::refund_values(plan, self.slot, gone)?;
        if self.old.is_some() {
            account::count_clusters(plan, self.slot, -1)?;
            ea_inode::refund_values(plan, self.slot, &self.values_in_block(plan)?)?;
            set_file_acl(plan, self.slot, None)?;
        }
        Ok(Freed::Part)
    }

    /// Returns the entries of the block that have their values in inodes.
    fn values_in_block(&self, plan: &Plan<'_>) -> Result<Vec<ValueEntry>> {
        match self.old_xattrs()? {
            Some(xattrs) if ea_inode::has_value_inodes(&plan.mount.core) => {
                ea_inode::entries_of(&xattrs, self.slot.nr)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Plans that the inode has no block any more.
    fn leave(&mut self, plan: &mut Plan<'_>) -> Result<()> {
        let Some(at) = self.old else { return Ok(()) };
        plan.xattrs.lock_blocks(Some(at), None);
        let old = self.open(plan, at, Extent::Count)?;
        self.drop_user(plan, old)?;
        account::count_clusters(plan, self.slot, -1)?;
        set_file_acl(plan, self.slot, None)
    }

    /// Plans that the inode has a block with the content after the change.
    fn store(&mut self, plan: &mut Plan<'_>) -> Result<()> {
        xattr::put_users(self.after.get_mut(REFCOUNT).unwrap_or_default(), 1);
        let content = SharedContent::of(&self.after);
        let sharing = plan.mount.sharing().zip(content);
        let (look, key) = match sharing {
            Some((sharing, content)) => sharing.look(plan.mount.space_for_sharing(), || {
                sharing.key_of_block(&content)
            }),
            None => (Look::Bypassed, None),
        };
        let candidate = match look {
            Look::Found(candidate) if Some(block_at(&candidate)) != self.old => Some(candidate),
            _ => None,
        };
        plan.xattrs
            .lock_blocks(self.old, candidate.as_ref().map(block_at));
        let mut offer = match look {
            Look::Absent(users) => Some(users),
            Look::Found(_) => Some(Users::All),
            Look::Bypassed => None,
        };
        if let (Some((sharing, content)), Some(_)) = (sharing, offer) {
            match candidate.map(|candidate| take(plan, sharing, &candidate, &content)) {
                Some(Ok(Ok(at))) => return self.move_to(plan, at),
                Some(Ok(Err(users))) => offer = Some(users),
                Some(Err(error)) => return Err(error),
                None => sharing.count_absent(),
            }
        }
        let at = self.write(plan)?;
        if let (Some(users), Some(key)) = (offer, key)
            && plan.xattrs.try_lock_block(at)
        {
            let place = at.0;
            plan.note_xattrs(Note::Came { key, place, users });
        }
        Ok(())
    }

    /// Plans that the inode leaves its block for `at`, which has got a user for it.
    fn move_to(&mut self, plan: &mut Plan<'_>, at: PhysBlock) -> Result<()> {
        match self.old {
            Some(old) => {
                let old = self.open(plan, old, Extent::Count)?;
                self.drop_user(plan, old)?;
            }
            None => account::count_clusters(plan, self.slot, 1)?,
        }
        // The entries of the block count as users of their values already.
        for nr in mem::take(&mut self.gained) {
            ea_inode::drop_value_user(plan, nr)?;
        }
        superblock::set_ext_attr(plan)?;
        set_file_acl(plan, self.slot, Some(at))
    }

    /// Plans that the content is stored in the inode's block, or in a new one if it has none of its
    /// own. Returns the block.
    fn write(&mut self, plan: &mut Plan<'_>) -> Result<PhysBlock> {
        let Some(at) = self.old else {
            account::count_clusters(plan, self.slot, 1)?;
            return self.write_new(plan);
        };
        let old = self.open(plan, at, Extent::All)?;
        if old.users == 1 {
            plan.bytes_mut(old.region).copy_from_slice(&self.after);
            self.note_end(plan, at);
            for nr in mem::take(&mut self.lost_in_block) {
                ea_inode::drop_value_user(plan, nr)?;
            }
            return Ok(at);
        }
        if ea_inode::has_value_inodes(&plan.mount.core) {
            self.count_copies(plan)?;
        }
        self.drop_user(plan, old)?;
        self.write_new(plan)
    }

    /// Counts each entry of the new block as a user of its value, unless the value has got a user
    /// for that entry already (`gained`).
    ///
    /// # Errors
    /// `NoSpace`, as in Linux, if no transaction has space for so many values. Only another program
    /// shares such a block: [`SharedContent`] limits the number of entries of what is shared here.
    fn count_copies(&self, plan: &mut Plan<'_>) -> Result<()> {
        let xattrs = Xattrs::in_block(&self.after);
        let xattrs = xattrs.map_err(|error| Corrupt::from(error).in_inode(self.slot.nr))?;
        let mut counted = self.gained.clone();
        for nr in ea_inode::values_of(&xattrs, self.slot.nr)? {
            match counted.iter().position(|&gained| gained == nr) {
                Some(at) => drop(counted.swap_remove(at)),
                None => ea_inode::add_value_user(plan, nr)?,
            }
        }
        match plan.may_fit() {
            true => Ok(()),
            false => Err(Error::NoSpace),
        }
    }

    /// Allocates a block for the content.
    fn write_new(&self, plan: &mut Plan<'_>) -> Result<PhysBlock> {
        let nr = self.slot.nr;
        let geometry = plan.mount.core.geometry();
        superblock::set_ext_attr(plan)?;
        let (group, _) = geometry.inode_group(nr).ok_or(Error::NotFound)?;
        let group = plan
            .mount
            .inodes()
            .placement()
            .goal(group, Wanted::Metadata);
        let goal = geometry.group_first_block(group);
        let (at, region) = plan.allocate_metadata(nr, Reach::Full, goal, tag())?;
        plan.bytes_mut(region).copy_from_slice(&self.after);
        set_file_acl(plan, self.slot, Some(at))?;
        Ok(at)
    }

    /// Adds the inode's block, whose lock the plan holds, to the plan: all of it if it may be
    /// changed, else the count of its users.
    fn open(&self, plan: &mut Plan<'_>, at: PhysBlock, extent: Extent) -> Result<Old> {
        let place = |corrupt: Corrupt| corrupt.in_block(at).in_inode(self.slot.nr);
        if !change::is_in_use(plan.mount, at)? {
            return Err(place(RelationError::XattrBlockFree { found: at }.into()).into());
        }
        let mount = plan.mount;
        let check = |bytes: &[u8]| get::check_xattr_block(&mount.core, at, bytes).map_err(place);
        let opened = plan.chosen_part(at, tag(), check, |bytes| {
            if content_bytes(bytes) != content_bytes(&self.before) {
                return Err(place(RelationError::XattrBlockChanged { found: at }.into()).into());
            }
            let users = xattr::users(bytes).map_err(|error| place(error.into()))?;
            let range = match extent {
                Extent::All if users == 1 => 0..bytes.len(),
                _ => REFCOUNT,
            };
            Ok(Some((users, range)))
        })?;
        let (users, region) = opened.ok_or(Error::NotFound)?;
        Ok(Old { at, region, users })
    }

    /// Counts one user less for the block `old`. With the last user the block is freed, and so are
    /// the values of its entries.
    fn drop_user(&self, plan: &mut Plan<'_>, old: Old) -> Result<()> {
        if old.users > 1 {
            xattr::put_users(plan.bytes_mut(old.region), old.users - 1);
            if let Some(sharing) = plan.mount.sharing() {
                sharing.counts.block_losses.add(1);
                let is_news = old.users == MAX_BLOCK_REFS || self.is_loaded;
                if is_news && !sharing.is_paused() {
                    let content = SharedContent::of(&self.before);
                    let key = content.map(|content| sharing.key_of_block(&content));
                    let (place, users) = (old.at.0, Users::All);
                    let came = |key| Note::Came { key, place, users };
                    key.map(came)
                        .into_iter()
                        .for_each(|note| plan.note_xattrs(note));
                }
            }
            return Ok(());
        }
        self.note_end(plan, old.at);
        if let Some(xattrs) = self.old_xattrs()?
            && ea_inode::has_value_inodes(&plan.mount.core)
        {
            for nr in ea_inode::values_of(&xattrs, self.slot.nr)? {
                ea_inode::drop_value_user(plan, nr)?;
            }
        }
        plan.free_metadata(old.at)
    }

    /// Notes that the block `at` has lost the content that it had.
    fn note_end(&self, plan: &mut Plan<'_>, at: PhysBlock) {
        let sharing = plan.mount.sharing();
        let content = SharedContent::unchecked(&self.before);
        if let Some((sharing, content)) = sharing.zip(content) {
            let key = sharing.key_of_block(&content);
            plan.note_xattrs(Note::Ended { key, place: at.0 });
        }
    }
}

/// Takes a buffer to be filled.
fn emptied(memory: &mut Vec<u8>) -> Vec<u8> {
    memory.clear();
    mem::take(memory)
}

/// Gives the block of a candidate a user, under its lock. If that cannot be, returns for which
/// users the new block is to be offered.
fn take(
    plan: &mut Plan<'_>,
    sharing: &Sharing,
    candidate: &Candidate,
    content: &SharedContent<'_>,
) -> Result<std::result::Result<PhysBlock, Users>> {
    let (at, core) = (block_at(candidate), &plan.mount.core);
    let is_in_use = || change::is_in_use(plan.mount, at);
    if !sharing.still_has(candidate) || !sharing.has_proof(candidate, is_in_use)? {
        return Ok(Err(sharing.count_miss(candidate, Miss::Vanished)));
    }
    let check = |bytes: &[u8]| get::check_xattr_block(core, at, bytes);
    let space = plan.mount.space_for_sharing();
    let mut miss = Miss::Unequal;
    let taken = plan.chosen_part(at, tag(), check, |bytes| {
        let users = xattr::users(bytes).map_err(Corrupt::from)?;
        if SharedContent::of(bytes).as_ref() != Some(content) {
            return Ok(None);
        }
        if users >= MAX_BLOCK_REFS {
            miss = Miss::AtLimit;
            return Ok(None);
        }
        if sharing.wants_own(candidate, users.into(), space) {
            miss = Miss::Own;
            return Ok(None);
        }
        Ok(Some((users + 1, REFCOUNT)))
    });
    let taken = match taken {
        // Damage of a block that this inode need not use.
        Err(Error::Corrupt(_)) => None,
        taken => taken?,
    };
    let Some((users, region)) = taken else {
        if miss == Miss::AtLimit {
            // At once: the plan may fail, and be repeated.
            sharing.leave(candidate.key, at.0);
        }
        return Ok(Err(sharing.count_miss(candidate, miss)));
    };
    xattr::put_users(plan.bytes_mut(region), users);
    sharing.count_hit();
    sharing.counts.block_users.add(1);
    plan.note_xattrs(Note::Taken(*candidate));
    if users == MAX_BLOCK_REFS {
        let (key, place) = (candidate.key, at.0);
        plan.note_xattrs(Note::Left { key, place });
    }
    Ok(Ok(at))
}

fn block_at(candidate: &Candidate) -> PhysBlock {
    PhysBlock(candidate.place())
}

/// The bytes of a block that its users do not change: all but the header.
fn content_bytes(block: &[u8]) -> &[u8] {
    const HEADER_BYTES: usize = 32;
    block.get(HEADER_BYTES..).unwrap_or_default()
}

fn set_file_acl(plan: &mut Plan<'_>, slot: Slot, block: Option<PhysBlock>) -> Result<()> {
    let set = slot::edit(plan, slot, |inode| inode.set_file_acl(block))?;
    set.map_err(|_| Error::Internal("a block of attributes that the inode cannot name"))
}

/// Blocks are shared, so the tag names no inode.
fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::Xattrs, InodeNr(0))
}
