//! **Purpose.** The changes of usage that a plan makes: by user, group and project.
//!
//! **Not here.** The rules for what an inode is charged ([`crate::quota`]).
//!
//! **Model.** Before the handle the slots of the plan are compared with what they replace. The
//! changes are added up by user, group and project, and checked against limits. In the handle they
//! are counted on this core. What a plan that is dropped has taken from limits is given back.
//!
//! **Locking.** The caller holds the locks of the changed inodes, so what their slots replace, and
//! the attributes that both versions refer to, do not change meanwhile.

use fourscore_block::Structure;
use fourscore_journal::Handle;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::quota::QuotaKind;
use fourscore_ondisk::xattr::Xattrs;
use fourscore_ondisk::{Corrupt, Inode, InodeNr, PhysBlock};

use crate::core::Core;
use crate::mount::state::Mount;
use crate::quota::memory::{Charge, QuotaMemory};
use crate::quota::state::Quota;
use crate::quota::usage::{Key, Usage};
use crate::txn::memory::{Memory, Region, RegionKind};
use crate::txn::plan::Plan;
use crate::txn::refused::Refused;
use crate::xattr::ea_inode;
use crate::{Error, Result};

/// What an inode is charged.
struct Charged {
    inode: Inode,
    usage: Usage,
}

impl Quota {
    /// Finds the counts of this core for all changes, and loads the blocks of their entries.
    fn prepare(&self, mount: &Mount, memory: &mut QuotaMemory) -> Result<()> {
        let running = mount.journal().running_tid();
        let changes = memory.changes.iter();
        for &(key, usage) in changes.filter(|(_, usage)| !usage.is_none()) {
            let local = self.local(mount, key)?;
            let held = match local.has_joined(running) {
                true => None,
                false => Some(mount.core.buffers.load(local.dquot.place.block)?),
            };
            memory.charges.push(Charge {
                local,
                held,
                usage,
                is_taken: false,
            });
        }
        Ok(())
    }

    fn take(&self, charges: &mut [Charge]) -> Result<()> {
        for charge in charges {
            let Some(exact) = charge.local.dquot.exact.get() else {
                continue;
            };
            let open = self.open_file(charge.local.dquot.key.kind)?;
            let grace = *open.grace.lock();
            exact.take(charge.usage.taken(), grace)?;
            charge.is_taken = true;
        }
        Ok(())
    }
}

impl Plan<'_> {
    /// Finds what the plan changes of usage, and counts what grows against limits.
    ///
    /// # Errors
    /// `QuotaExceeded`; those of reading attributes and quota files; `NoSpace` if an identifier has
    /// no entry yet. Nothing was changed then.
    #[inline]
    pub(crate) fn charge(&mut self) -> Result<()> {
        match &self.mount.quota {
            Some(quota) => self.charge_to(quota),
            None => Ok(()),
        }
    }

    fn charge_to(&mut self, quota: &Quota) -> Result<()> {
        let mut memory = self.memory.quota.take().unwrap_or_default();
        memory.clear();
        let charged = self
            .find_changes(quota, &mut memory.changes)
            .and_then(|()| quota.prepare(self.mount, &mut memory))
            .and_then(|()| quota.take(&mut memory.charges));
        // What was taken before an error is given back with the rest of the memory.
        self.memory.quota = Some(memory);
        charged
    }

    fn find_changes(&self, quota: &Quota, changes: &mut Vec<(Key, Usage)>) -> Result<()> {
        let core = &*self.mount.core;
        for region in self.memory.regions.iter().filter(|region| !region.is_void) {
            let (RegionKind::Slot(nr) | RegionKind::WholeSlot(nr)) = region.kind else {
                continue;
            };
            if !quota.charges_for(core, nr) {
                continue;
            }
            let has = |claims: &[(crate::inode::free_inodes::InodeClaim, _)]| {
                claims.iter().any(|(claim, _)| claim.nr == nr)
            };
            let mut before = None;
            if !has(&self.memory.inodes) {
                before = region.buffer.look(|bytes| {
                    charged(core, nr, bytes.get(region.offset..).unwrap_or_default())
                })?;
            }
            let mut after = None;
            if !has(&self.memory.freed_inodes) {
                after = charged(core, nr, self.memory.of(region))?;
            }
            if ea_inode::has_value_inodes(core)
                && self.may_change_values(before.as_ref(), after.as_ref())
            {
                if let Some(before) = &mut before {
                    before.usage.inodes += values(core, &before.inode, None)?;
                }
                if let Some(after) = &mut after {
                    after.usage.inodes += values(core, &after.inode, Some(&self.memory))?;
                }
            }
            for (charged, sign) in [(before, -1), (after, 1)] {
                if let Some(charged) = charged {
                    charged.add_to(quota, changes, sign);
                }
            }
        }
        Ok(())
    }

    /// Whether the numbers of values in inodes, or their owners, can differ.
    fn may_change_values(&self, before: Option<&Charged>, after: Option<&Charged>) -> bool {
        let (Some(Charged { inode: before, .. }), Some(Charged { inode: after, .. })) =
            (before, after)
        else {
            return true;
        };
        let ids = |inode: &Inode| (inode.uid(), inode.gid(), inode.project_id());
        ids(before) != ids(after)
            || before.file_acl() != after.file_acl()
            || before.xattr_area() != after.xattr_area()
            || self.memory.changes(Structure::Xattrs)
    }

    /// How many blocks the changes of usage may add to the transaction.
    #[inline]
    pub(crate) fn charged_blocks(&self) -> usize {
        let memory = self.memory.quota.as_deref();
        memory.map_or(0, |memory| memory.charges.len())
    }

    /// Adds the blocks of entries to the transaction.
    #[inline]
    pub(crate) fn join_charges(&self, handle: &mut Handle<'_>) -> std::result::Result<(), Refused> {
        match (&self.mount.quota, &self.memory.quota) {
            (Some(quota), Some(memory)) => memory.charges.iter().try_for_each(|charge| {
                let held = charge.held.as_ref();
                quota.counts.join(&charge.local, held, handle)
            }),
            _ => Ok(()),
        }
    }

    /// Loads the blocks of entries again, because `block` has left the cache.
    pub(crate) fn reload_charges(&mut self, block: PhysBlock) -> Result<()> {
        let Some(memory) = &mut self.memory.quota else {
            return Ok(());
        };
        for charge in &mut memory.charges {
            if charge.local.dquot.place.block == block {
                charge.held = Some(self.mount.core.buffers.load(block)?);
            }
        }
        Ok(())
    }

    /// Counts the changes of usage, in the handle that has joined.
    #[inline]
    pub(crate) fn count_charges(&mut self) {
        if let Some(memory) = &mut self.memory.quota {
            memory.count();
        }
    }
}

impl Charged {
    fn add_to(self, quota: &Quota, changes: &mut Vec<(Key, Usage)>, sign: i64) {
        let usage = match sign < 0 {
            true => self.usage.negated(),
            false => self.usage,
        };
        let owners = [
            (QuotaKind::User, self.inode.uid()),
            (QuotaKind::Group, self.inode.gid()),
            (QuotaKind::Project, self.inode.project_id()),
        ];
        for (kind, id) in owners {
            let key = Key { kind, id };
            if !quota.has_kind(kind) {
                continue;
            }
            match changes.iter_mut().find(|(found, _)| *found == key) {
                Some((_, sum)) => sum.add(usage),
                None => changes.push((key, usage)),
            }
        }
    }
}

/// Returns what the inode in a slot is charged, without its values in inodes; `None` for the inode
/// of a value.
fn charged(core: &Core, nr: InodeNr, slot: &[u8]) -> Result<Option<Charged>> {
    const SECTOR_BYTES: u64 = 512;
    let inode = Inode::parse_unsealed(slot, nr, core.superblock());
    let inode = inode.map_err(|error| Corrupt::from(error).in_inode(nr))?;
    if inode.flags().contains(InodeFlags::EA_INODE_FL) {
        return Ok(None);
    }
    let bytes = inode.sectors().saturating_mul(SECTOR_BYTES);
    let usage = Usage {
        bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        inodes: 1,
    };
    Ok(Some(Charged { inode, usage }))
}

/// Returns how many attributes of an inode have their values in inodes. With `memory`, that of a
/// plan, the blocks are as the plan leaves them; without, as they are before it.
fn values(core: &Core, inode: &Inode, memory: Option<&Memory>) -> Result<i64> {
    let nr = inode.number();
    let mut values = 0;
    if let Some(area) = inode.xattr_area() {
        values += ea_inode::values_of(&Xattrs::in_inode(area), nr)?.len();
    }
    if let Some(at) = inode.file_acl() {
        let whole = core.geometry().block_size().bytes();
        let is_its = |region: &&Region| {
            region.buffer.block() == at && region.bytes.len() == whole && !region.is_void
        };
        let planned = memory.and_then(|memory| {
            let found = memory.regions.iter().find(is_its)?;
            Some(memory.of(found))
        });
        values += match planned {
            Some(bytes) => values_in_block(bytes, nr)?,
            None => {
                let buffer = core.buffers.load(at)?;
                buffer.look(|bytes| values_in_block(bytes, nr))?
            }
        };
    }
    i64::try_from(values).map_err(|_| Error::TooBig)
}

fn values_in_block(bytes: &[u8], nr: InodeNr) -> Result<usize> {
    let xattrs = Xattrs::in_block(bytes);
    let xattrs = xattrs.map_err(|error| Corrupt::from(error).in_inode(nr))?;
    Ok(ea_inode::values_of(&xattrs, nr)?.len())
}
