//! **Purpose.** The part of a plan that is about shared attributes: the locks of blocks and of
//! inodes of values, and notes for the sharing cache, which count once the plan has been applied.
//!
//! **Model.** A plan takes the locks of all values that it may change first, then those of the
//! blocks: the one that the inode leaves and the one that it moves to. It keeps them until it is
//! dropped, so that its notes are true until the cache has them.
//!
//! A block or value that the plan makes is locked too, if it is offered to the cache. The inode
//! that gets it may be new and not locked. Once the inode's name is visible, another thread may
//! remove the attributes, and so free what this plan is about to offer.
//!
//! **Locking.** Locks of one kind are taken in their own order, each once. A value that is found
//! when locks are held already is locked only if that needs no waiting, or is next in the order. A
//! new block is locked only if that needs no waiting.

use fourscore_ondisk::{InodeNr, PhysBlock};
use fourscore_sync::MutexGuard;

use crate::mount::state::Mount;
use crate::txn::faults::Sabotage;
use crate::txn::striped::{LockNr, StripeGuard};
use crate::xattr::share::{Candidate, ShareKey, Users};

/// The locks of a plan.
#[derive(Debug)]
pub(crate) struct XattrLocks<'f> {
    mount: &'f Mount,
    values: Vec<(LockNr, ValueGuard<'f>)>,
    blocks: [Option<(LockNr, StripeGuard<'f>)>; 2],
    /// The lock of a new block. It was free, so its place in the order did not matter.
    new_block: Option<MutexGuard<'f, ()>>,
}

/// The lock of an inode that holds a value.
#[derive(Debug)]
enum ValueGuard<'f> {
    InOrder {
        _guard: StripeGuard<'f>,
    },
    /// It was free, so its place in the order did not matter.
    Tried {
        _guard: MutexGuard<'f, ()>,
    },
}

/// A note for the cache, which counts once the plan has been applied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// A place can have more users: it is new, was loaded, or has lost one of the most it may have.
    Came {
        key: ShareKey,
        place: u64,
        users: Users,
    },
    /// A place has the most users that it may have.
    Left { key: ShareKey, place: u64 },
    /// A place has lost its last user, or has another content.
    Ended { key: ShareKey, place: u64 },
    /// A place that was found has got a user.
    Taken(Candidate),
}

impl<'f> XattrLocks<'f> {
    pub(crate) fn new(mount: &'f Mount) -> Self {
        Self {
            mount,
            values: Vec::new(),
            blocks: [None, None],
            new_block: None,
        }
    }

    /// Locks inodes of values until the plan has been applied. To be called once, before all other
    /// locks.
    pub(crate) fn lock_values(&mut self, values: impl Iterator<Item = InodeNr>) {
        debug_assert!(self.values.is_empty() && !self.has_blocks());
        let locks = self.mount.values();
        let mut wanted: Vec<LockNr> = values.map(|nr| locks.nth(nr.0.into())).collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.values.extend(wanted.into_iter().map(|nth| {
            let _guard = locks.lock_nth(nth);
            (nth, ValueGuard::InOrder { _guard })
        }));
    }

    /// Locks the inode of one more value. Returns whether it is locked: a lock that comes before
    /// one that the plan holds is not waited for.
    pub(crate) fn try_lock_value(&mut self, value: InodeNr) -> bool {
        debug_assert!(!self.has_blocks(), "blocks come after values");
        let locks = self.mount.values();
        let nth = locks.nth(value.0.into());
        let last = self.values.iter().map(|(held, _)| *held).max();
        let guard = match last {
            _ if self.holds_value(value) => return true,
            Some(last) if nth < last => {
                let Some(_guard) = locks.try_lock_nth(nth) else {
                    return false;
                };
                ValueGuard::Tried { _guard }
            }
            _ => {
                let _guard = locks.lock_nth(nth);
                ValueGuard::InOrder { _guard }
            }
        };
        self.values.push((nth, guard));
        true
    }

    /// Locks the inode of a value that the plan makes, to offer it. Returns whether it is locked.
    pub(crate) fn try_lock_new_value(&mut self, value: InodeNr) -> bool {
        self.mount.core.faults.lacks(Sabotage::OfferedUnlocked) || self.try_lock_value(value)
    }

    /// Whether the plan has locked the inode of a value.
    pub(crate) fn holds_value(&self, value: InodeNr) -> bool {
        let nth = self.mount.values().nth(value.0.into());
        self.values.iter().any(|(held, _)| *held == nth)
    }

    /// Locks the block of attributes that an inode has, and the one that it may move to, until the
    /// plan has been applied. To be called once.
    pub(crate) fn lock_blocks(&mut self, old: Option<PhysBlock>, new: Option<PhysBlock>) {
        debug_assert!(!self.has_blocks(), "a plan moves one inode");
        let locks = self.mount.xattr_blocks();
        let nth = |block: PhysBlock| locks.nth(block.0);
        let (mut first, mut second) = (old.map(nth), new.map(nth));
        let is_ordered = !self.mount.core.faults.lacks(Sabotage::UnorderedXattrLocks);
        if is_ordered && first > second {
            (first, second) = (second, first);
        }
        if first == second {
            second = None;
        }
        self.blocks = [first, second].map(|nth| Some((nth?, locks.lock_nth(nth?))));
    }

    /// Locks the block that the plan makes. Returns whether it is locked: a lock that another plan
    /// holds is not waited for. To be called last, and once.
    pub(crate) fn try_lock_block(&mut self, block: PhysBlock) -> bool {
        debug_assert!(self.new_block.is_none(), "a plan makes one block");
        let locks = self.mount.xattr_blocks();
        let nth = locks.nth(block.0);
        let is_held = self.blocks.iter().flatten().any(|(held, _)| *held == nth);
        if is_held || self.mount.core.faults.lacks(Sabotage::OfferedUnlocked) {
            return true;
        }
        self.new_block = locks.try_lock_nth(nth);
        self.new_block.is_some()
    }

    fn has_blocks(&self) -> bool {
        self.blocks.iter().any(Option::is_some)
    }
}

/// Enters the notes of a plan that has been applied into the cache. The plan still holds its locks.
pub(crate) fn carry_out(mount: &Mount, notes: &mut Vec<Note>) {
    let Some(sharing) = mount.sharing() else {
        return notes.clear();
    };
    for note in notes.drain(..) {
        match note {
            Note::Came { key, place, users } => sharing.come(key, place, users),
            Note::Left { key, place } => sharing.leave(key, place),
            Note::Ended { key, place } => sharing.end(key, place),
            Note::Taken(candidate) => sharing.taken(&candidate),
        }
    }
}
