//! **Purpose.** Values of extended attributes that are stored in inodes of their own (feature
//! `ea_inode`).
//!
//! **Not here.** When a value gets an inode ([`crate::xattr::set`]), and reading it
//! ([`crate::xattr::get`]).
//!
//! **Model.** A value that does not fit beside its entry is the data of an inode without a name.
//! That inode counts the entries that use it. An entry in an inode counts once; an entry in a block
//! of attributes counts once, however many inodes share the block. Equal values share one inode,
//! which the sharing cache finds by checksum and length ([`crate::xattr::share`]); it is deleted
//! with its last user. The space of a value is charged as if the value were not shared: it counts
//! in `i_blocks` of each inode that has the attribute.
//!
//! ```text
//! entry (hash of the value) -> inode (EA_INODE_FL, users, hash of the value) -> blocks
//! ```
//!
//! **Invariants.** The count in such an inode is the number of entries that refer to it. Its
//! `i_version` is a part of the count, so it does not increase with changes.
//!
//! **Locking.** Any operation may add a user. So the count is protected by a lock that is chosen by
//! the inode's number, and is held until the plan has been applied ([`crate::xattr::held`]).
//!
//! **Crash safety.** The value is submitted to the device before the transaction that contains the
//! attribute.

use fourscore_mballoc::{ClusterCount, Request, Sizing};
use fourscore_ondisk::extent::{Extent, ExtentState};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::{FileMode, FileType, InodeFlags, NewInode, RawInode};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::xattr::{self, EaInode, NameIndex, NewValue, Value, Was, Xattrs, XattrsMut};
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, PhysBlock, Timestamp};
use zerocopy::FromBytes;

use crate::core::Core;
use crate::group::change;
use crate::guard::with_guard;
use crate::inode::alloc::{self, Want};
use crate::inode::cached::CachedInode;
use crate::inode::{cache, end};
use crate::map::account::{self, Freed};
use crate::map::clusters::Clusters;
use crate::map::form::MapForm;
use crate::map::update;
use crate::mount::clock::now;
use crate::txn::plan::{NewContent, Plan};
use crate::txn::slot::{self, Slot};
use crate::xattr::gone_value::GoneValue;
use crate::xattr::held::Note;
use crate::xattr::share::{Candidate, Look, Miss, ShareKey, Sharing, Users};
use crate::xattr::{format, get};
use crate::{Error, Result};

/// The mode of an inode that holds a value, as in Linux.
const MODE: FileMode = FileMode(0o100_600);
/// The bytes of a block that an attribute with the shortest name needs besides its value.
const LEAST_AROUND_BYTES: usize = 32 + 20 + 4;

pub(crate) fn has_value_inodes(core: &Core) -> bool {
    let features = core.superblock().features();
    features.incompat.contains(Incompat::EA_INODE)
}

/// Whether a value is too large for any block, and the file system has the feature, so that the
/// value always gets an inode.
pub(crate) fn is_large_value(core: &Core, value: &[u8]) -> bool {
    let block_bytes = core.geometry().block_size().bytes();
    let longest = block_bytes.saturating_sub(LEAST_AROUND_BYTES);
    has_value_inodes(core) && value.len().next_multiple_of(4) > longest
}

/// Returns the number of clusters that are charged for a value of `bytes` bytes in its own inode.
fn value_clusters(core: &Core, bytes: u64) -> i64 {
    let clusters = bytes.div_ceil(core.geometry().cluster_size_bytes() as u64);
    i64::try_from(clusters).unwrap_or(i64::MAX)
}

/// Plans that an inode holds `value` for an attribute of the inode in `owner`, which is charged for
/// the space: an inode that holds an equal value, or a new one.
pub(crate) fn value_for(
    plan: &mut Plan<'_>,
    owner: Slot,
    value: &[u8],
) -> Result<(InodeNr, NewValue<'static>)> {
    let core = &*plan.mount.core;
    let checksum = EaInode::hash_of(value, core.superblock().checksum_seed());
    account::count_clusters(plan, owner, value_clusters(core, value.len() as u64))?;
    let nr = match share_value(plan, value, checksum)? {
        Equal::Shared(nr) => nr,
        Equal::None { offer } => {
            let nr = new_value(plan, owner, value, checksum)?;
            if let Some((key, users)) = offer
                && plan.xattrs.try_lock_new_value(nr)
            {
                let place = nr.0.into();
                plan.note_xattrs(Note::Came { key, place, users });
            }
            nr
        }
    };
    let new = NewValue::Inode {
        inode: nr,
        bytes: u32::try_from(value.len()).map_err(|_| Error::TooBig)?,
        hash: checksum,
    };
    Ok((nr, new))
}

/// The result of the search for an equal value.
enum Equal {
    /// This inode holds it, and has got a user.
    Shared(InodeNr),
    /// There is none that can be used. `offer` says how a new one is to be offered to the sharing
    /// cache, if at all.
    None { offer: Option<(ShareKey, Users)> },
}

/// Looks for an inode that holds `value`, and counts one more user of it.
fn share_value(plan: &mut Plan<'_>, value: &[u8], checksum: u32) -> Result<Equal> {
    let Some(sharing) = plan.mount.sharing() else {
        return Ok(Equal::None { offer: None });
    };
    let space = plan.mount.space_for_sharing();
    let (look, key) = sharing.look(space, || sharing.key_of_value(checksum, value.len() as u64));
    let users = match look {
        Look::Bypassed => return Ok(Equal::None { offer: None }),
        Look::Absent(users) => {
            sharing.count_absent();
            users
        }
        Look::Found(candidate) => match take_value(plan, sharing, &candidate, value, checksum)? {
            Ok(nr) => return Ok(Equal::Shared(nr)),
            Err(miss) => sharing.count_miss(&candidate, miss),
        },
    };
    let offer = key.map(|key| (key, users));
    Ok(Equal::None { offer })
}

/// Counts one more user of the value of a candidate, under its lock, if it is equal.
fn take_value(
    plan: &mut Plan<'_>,
    sharing: &Sharing,
    candidate: &Candidate,
    value: &[u8],
    checksum: u32,
) -> Result<std::result::Result<InodeNr, Miss>> {
    let Ok(nr) = u32::try_from(candidate.place()).map(InodeNr) else {
        return Ok(Err(Miss::Unequal));
    };
    if !plan.xattrs.try_lock_value(nr) {
        return Ok(Err(Miss::Busy));
    }
    // One that is not known any more may be in use all the same: below it is read from its inode.
    let is_in_use = || change::is_inode_in_use(plan.mount, nr);
    let is_known = sharing.still_has(candidate) && sharing.has_proof(candidate, is_in_use)?;
    if !is_known || plan.is_gone_value(nr) {
        return Ok(Err(Miss::Vanished));
    }
    let core = &*plan.mount.core;
    let bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
    let equal = with_guard(core, |guard| {
        let found = get::ea_inode_value(core, nr, bytes, None, guard)?;
        let facts = EaInode::of(cache::any_inode(core, nr, guard)?.on_disk().raw());
        Ok(facts.value_hash == checksum && found == value)
    });
    match equal {
        Ok(true) => {}
        // Damage of a value that this attribute need not use.
        Ok(false) | Err(Error::Corrupt(_) | Error::NotFound) => return Ok(Err(Miss::Unequal)),
        Err(error) => return Err(error),
    }
    let (slot, mut facts) = match value_inode(plan, nr) {
        Err(Error::Corrupt(_)) => return Ok(Err(Miss::Unequal)),
        found => found?,
    };
    if facts.refs == u64::MAX {
        return Ok(Err(Miss::Unequal));
    }
    if sharing.wants_own(candidate, facts.refs, plan.mount.space_for_sharing()) {
        return Ok(Err(Miss::Own));
    }
    facts.refs += 1;
    put_facts(plan, slot, facts)?;
    sharing.count_hit();
    plan.note_xattrs(Note::Taken(*candidate));
    Ok(Ok(nr))
}

/// Creates an inode that holds `value` for an attribute of the inode in `owner`.
fn new_value(plan: &mut Plan<'_>, owner: Slot, value: &[u8], checksum: u32) -> Result<InodeNr> {
    let (core, mount) = (&*plan.mount.core, plan.mount);
    let (group, _) = core
        .geometry()
        .inode_group(owner.nr)
        .ok_or(Error::NotFound)?;
    let claim = alloc::claim(mount, group, Want::File)?;
    let nr = claim.nr;
    plan.use_inode(claim)?;
    let slot = slot::slot(plan, nr)?;
    let generation = slot::next_generation(plan, slot);
    let form = MapForm::of_new(core.superblock());
    let owner_now = slot::inode(plan, owner)?;
    let made = NewInode {
        mode: MODE,
        uid: owner_now.uid(),
        gid: owner_now.gid(),
        generation,
        links: 1,
        flags: InodeFlags::EA_INODE_FL | form.flags(),
        project_id: 0,
        now: now(),
    };
    slot::init(plan, slot, &made, NewContent::mapped(form))?;
    write_value(plan, slot, value)?;
    let sized = slot::edit(plan, slot, |inode| {
        // The hash and the count are stored in the times below; the rest of the times is zero.
        let none = Timestamp::new(0, 0).unwrap_or(Timestamp::MIN);
        inode.set_atime(none);
        inode.set_ctime(none);
        inode.set_mtime(none);
        inode.set_size_bytes(value.len() as u64)
    })?;
    sized.map_err(|_| Error::TooBig)?;
    let facts = EaInode {
        refs: 1,
        value_hash: checksum,
        lustre_parent: InodeNr(0),
    };
    put_facts(plan, slot, facts)?;
    Ok(nr)
}

/// Writes a value to new blocks, which become the data of the inode in `slot`.
fn write_value(plan: &mut Plan<'_>, slot: Slot, value: &[u8]) -> Result<()> {
    let core = &*plan.mount.core;
    let block_size = core.geometry().block_size();
    let inode = CachedInode::new(slot::inode(plan, slot)?, core.superblock())?;
    let mut padded = value.to_vec();
    padded.resize(value.len().next_multiple_of(block_size.bytes()), 0);
    let mut goal = account::goal_behind(plan, &inode, LogicalBlock(0))?;
    let clusters = Clusters::of(core);
    let mut at = LogicalBlock(0);
    let mut rest = &padded[..];
    while !rest.is_empty() {
        let blocks = u32::try_from(rest.len() / block_size.bytes()).unwrap_or(u32::MAX);
        let len = clusters.count(&(at..LogicalBlock(at.0.saturating_add(blocks))));
        let mut request = Request::data(slot.nr, clusters.nr(at), len, goal);
        request.sizing = Sizing::Exact;
        request.reach = MapForm::of(&inode).reach();
        let (physical, found) = plan.allocate(&request, None)?;
        let blocks = blocks.min(clusters.blocks(ClusterCount(found), at));
        let extent = Extent {
            logical: at,
            physical,
            blocks,
            state: ExtentState::Written,
        };
        update::map_extent(plan, &inode, slot, extent)?;
        let (now, later) = rest.split_at(rest.len().min(blocks as usize * block_size.bytes()));
        core.device.write_at(now, block_size.offset(physical))?;
        goal = PhysBlock(physical.0 + u64::from(blocks));
        at = LogicalBlock(at.0 + blocks);
        rest = later;
    }
    Ok(())
}

/// Refunds the inode in `owner` for a value of `bytes` bytes that it does not have any more.
pub(crate) fn refund_value(plan: &mut Plan<'_>, owner: Slot, bytes: u32) -> Result<()> {
    let clusters = value_clusters(&plan.mount.core, bytes.into());
    account::count_clusters(plan, owner, -clusters)
}

/// Counts one more entry that has its value in inode `nr`.
pub(crate) fn add_value_user(plan: &mut Plan<'_>, nr: InodeNr) -> Result<()> {
    let (slot, mut facts) = value_inode(plan, nr)?;
    facts.refs = facts.refs.saturating_add(1);
    put_facts(plan, slot, facts)
}

/// Counts one entry less that has its value in inode `nr`; deletes the inode with the last entry.
pub(crate) fn drop_value_user(plan: &mut Plan<'_>, nr: InodeNr) -> Result<()> {
    if plan.is_gone_value(nr) {
        return Ok(());
    }
    plan.raise_sequence();
    let (slot, mut facts) = value_inode(plan, nr)?;
    if facts.refs > 1 {
        facts.refs -= 1;
        return put_facts(plan, slot, facts);
    }
    let core = &*plan.mount.core;
    // The pin keeps the version in memory, where readers find it until the plan is applied.
    let pinned = cache::pin_any_inode(core, nr)?;
    let inode = CachedInode::new(slot::inode(plan, slot)?, core.superblock())?;
    let freed = plan.with_any_size(|plan| update::free_map(plan, &inode, slot, LogicalBlock(0)))?;
    debug_assert_eq!(freed, Freed::All);
    slot::edit(plan, slot, |inode| inode.set_links_count(0))?;
    if let Some(sharing) = plan.mount.sharing() {
        let key = sharing.key_of_value(facts.value_hash, inode.size_bytes());
        let place = nr.0.into();
        plan.note_xattrs(Note::Ended { key, place });
    }
    end::end_inode(plan.mount, plan, &inode, slot, None)?;
    plan.add_gone_value(GoneValue { nr, pinned });
    Ok(())
}

/// Returns the inodes that hold the values of entries of inode `owner`, one for each such entry.
pub(crate) fn values_of(xattrs: &Xattrs<'_>, owner: InodeNr) -> Result<Vec<InodeNr>> {
    let mut values = Vec::new();
    for entry in xattrs.entries() {
        let broken = |error: xattr::XattrError| Corrupt::from(error).in_inode(owner);
        if let Value::Inode { inode, .. } = entry.map_err(broken)?.value {
            values.push(inode);
        }
    }
    Ok(values)
}

/// An entry whose value is in an inode.
#[derive(Debug)]
pub(crate) struct ValueEntry {
    index: NameIndex,
    /// The name without its prefix.
    name: Box<[u8]>,
    inode: InodeNr,
    /// The length of the value.
    bytes: u32,
}

/// Returns the entries of inode `owner` that have their values in inodes.
pub(crate) fn entries_of(xattrs: &Xattrs<'_>, owner: InodeNr) -> Result<Vec<ValueEntry>> {
    let mut values = Vec::new();
    for entry in xattrs.entries() {
        let entry = entry.map_err(|error| Corrupt::from(error).in_inode(owner))?;
        if let Value::Inode { inode, bytes } = entry.value {
            values.push(ValueEntry {
                index: entry.index,
                name: entry.name.into(),
                inode,
                bytes,
            });
        }
    }
    Ok(values)
}

/// Counts one user less for the values of `entries`, from the first on and as far as the plan has
/// space. Returns the number of entries for which this is planned.
pub(crate) fn drop_users_in_steps(plan: &mut Plan<'_>, entries: &[ValueEntry]) -> Result<usize> {
    for (count, entry) in entries.iter().enumerate() {
        if plan.size() >= plan.capacity() {
            return Ok(count);
        }
        drop_value_user(plan, entry.inode)?;
    }
    Ok(entries.len())
}

/// Removes `entries`, whose values have lost a user, from attributes of inode `owner`.
pub(crate) fn remove_entries(
    mut xattrs: XattrsMut<'_>,
    owner: InodeNr,
    entries: &[ValueEntry],
) -> Result<()> {
    for entry in entries {
        // Damaged attributes may have a name twice. The first is removed, and the others are found
        // in the same order in which their values lost a user.
        loop {
            match xattrs.remove(entry.index, &entry.name) {
                Ok(Was::Inode(nr)) if nr == entry.inode => break,
                Ok(Was::Inode(_) | Was::Inline) => {}
                Ok(Was::Absent) => return Err(Error::Internal("an entry that is there no more")),
                Err(error) => return Err(format::edit_error(error, owner)),
            }
        }
    }
    Ok(())
}

/// Refunds the inode in `owner` for the values of `entries`, which it does not have any more.
pub(crate) fn refund_values(
    plan: &mut Plan<'_>,
    owner: Slot,
    entries: &[ValueEntry],
) -> Result<()> {
    let core = &*plan.mount.core;
    let clusters = entries
        .iter()
        .map(|entry| value_clusters(core, entry.bytes.into()));
    account::count_clusters(plan, owner, -clusters.sum::<i64>())
}

/// Returns the slot of an inode that holds a value, and its count and hash. The plan has its lock,
/// unless it has made the inode.
fn value_inode(plan: &mut Plan<'_>, nr: InodeNr) -> Result<(Slot, EaInode)> {
    let slot = slot::slot(plan, nr)?;
    let inode = slot::inode(plan, slot)?;
    let is_file = inode.file_type() == Some(FileType::Regular);
    if !is_file || !inode.flags().contains(InodeFlags::EA_INODE_FL) {
        return Err(Corrupt::from(RelationError::NotAnEaInode)
            .in_inode(nr)
            .into());
    }
    let mut facts = EaInode::of(inode.raw());
    let (users, links) = (facts.refs, inode.links_count());
    if links == 0 || users == 0 && facts.lustre_parent.0 == 0 {
        let error = RelationError::EaInodeUsers { users, links };
        return Err(Corrupt::from(error).in_inode(nr).into());
    }
    // One that Lustre has made counts no users: it has one.
    facts.refs = facts.refs.max(1);
    Ok((slot, facts))
}

fn put_facts(plan: &mut Plan<'_>, slot: Slot, facts: EaInode) -> Result<()> {
    if let Ok((raw, _)) = RawInode::mut_from_prefix(slot::slot_bytes_mut(plan, slot)) {
        facts.put(raw);
    }
    slot::end(plan, slot)
}
