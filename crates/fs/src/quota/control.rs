//! **Purpose.** Reads usage and sets limits (quotactl(2)); shows a project its limits as the size
//! of the file system.
//!
//! **Model.** Limits are set while no plan is being made: then the entry has all usage once the
//! running transaction is sealed, and an exact count can begin with it.
//!
//! **Locking.** The lock of setting, then the freezer.

use std::collections::BTreeMap;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::quota::{ENTRY_BYTES, GraceTimes, QuotaEntry, QuotaKind, QuotaLimits};

use crate::core::Core;
use crate::inode::cache;
use crate::mount::clock::now;
use crate::mount::state::Mount;
use crate::mount::statfs::{self, StatFs};
use crate::quota::dquot::entry_tag;
use crate::quota::file::{self, QuotaFile};
use crate::quota::limits::Exact;
use crate::quota::state::Quota;
use crate::quota::usage::Key;
use crate::txn::plan::Plan;
use crate::{Error, Result};

/// What a quota file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaReport {
    /// The entries by identifier.
    pub entries: BTreeMap<u32, QuotaEntry>,
    /// How long soft limits may be exceeded.
    pub grace: GraceTimes,
}

/// See [`Fs::quota`](crate::Fs::quota).
pub(crate) fn report(
    core: &Core,
    mount: Option<&Mount>,
    kind: QuotaKind,
) -> Result<Option<QuotaReport>> {
    let inodes = core.superblock().quota_inodes();
    let inode = match kind {
        QuotaKind::User => inodes.user,
        QuotaKind::Group => inodes.group,
        QuotaKind::Project => inodes.project,
    };
    let Some(inode) = inode else {
        return Ok(None);
    };
    let _complete = match mount.and_then(|mount| Some((mount, mount.quota.as_deref()?))) {
        Some((mount, quota)) => {
            mount.journal().commit()?;
            Some(quota.lock_insertion())
        }
        None => None,
    };
    let file = QuotaFile { kind, inode };
    Ok(Some(QuotaReport {
        entries: file.entries(core)?,
        grace: file.check(core)?,
    }))
}

/// See [`Fs::statfs_at`](crate::Fs::statfs_at).
pub(crate) fn statfs_at(core: &Core, mount: Option<&Mount>, inode: InodeNr) -> Result<StatFs> {
    let whole = statfs::statfs(core)?;
    let kept = mount.and_then(|mount| Some((mount, mount.quota.as_deref()?)));
    let Some((mount, quota)) = kept.filter(|(_, quota)| quota.enforced.project) else {
        return Ok(whole);
    };
    let inode = cache::inode_copy(core, inode)?;
    if !inode.has(InodeFlags::PROJINHERIT_FL) {
        return Ok(whole);
    }
    let kind = QuotaKind::Project;
    let id = inode.on_disk().project_id();
    Ok(match limited(mount, quota, Key { kind, id })? {
        Some(project) => within(whole, project),
        None => whole,
    })
}

/// Returns the usage and the limits of an identifier whose limits are kept; `None` if it has none.
fn limited(mount: &Mount, quota: &Quota, key: Key) -> Result<Option<QuotaEntry>> {
    let known = || quota.known.lock().get(&key).cloned();
    let entry = match known() {
        Some(dquot) => dquot.exact.get().map(Exact::entry),
        None => {
            // The tree changes where entries are added and removed.
            let _complete = quota.lock_insertion();
            if let Some(dquot) = known() {
                let entry = dquot.exact.get().map(Exact::entry);
                return Ok(entry.filter(|entry| !entry.limits.are_none()));
            }
            // No change of its usage waits for a seal, so the entry has all of it.
            let place = quota.open_file(key.kind)?.file.find(&mount.core, key.id)?;
            let entry = place.map(|place| file::entry_at(&mount.core, place));
            entry.transpose()?
        }
    };
    Ok(entry.filter(|entry| !entry.limits.are_none()))
}

/// How full the file system is for a project: its limits are the size, and what it does not use of
/// them is free, if the file system has as much.
fn within(whole: StatFs, project: QuotaEntry) -> StatFs {
    let QuotaEntry { counts, limits, .. } = project;
    let least = |soft: u64, hard: u64| [soft, hard].into_iter().filter(|&limit| limit > 0).min();
    let mut seen = whole;
    let block_bytes = whole.block_bytes as u64;
    let blocks = least(limits.soft_bytes, limits.hard_bytes).map_or(0, |limit| limit / block_bytes);
    // As in Linux, a limit of less than a block is no size.
    if blocks > 0 && blocks < whole.blocks {
        let free = blocks.saturating_sub(counts.bytes.div_ceil(block_bytes));
        seen.blocks = blocks;
        seen.free_blocks = free.min(whole.free_blocks);
        seen.available_blocks = free.min(whole.available_blocks);
    }
    if let Some(limit) = least(limits.soft_inodes, limits.hard_inodes)
        && let Ok(inodes) = u32::try_from(limit)
        && inodes < whole.inodes
    {
        let used = u32::try_from(counts.inodes).unwrap_or(u32::MAX);
        seen.inodes = inodes;
        seen.free_inodes = inodes.saturating_sub(used).min(whole.free_inodes);
    }
    seen
}

/// See [`Fs::set_quota`](crate::Fs::set_quota).
pub(crate) fn set_limits(
    mount: &Mount,
    kind: QuotaKind,
    id: u32,
    limits: QuotaLimits,
) -> Result<()> {
    let quota = quota_of(mount)?;
    quota.alone(mount, || {
        let grace = *quota.open_file(kind)?.grace.lock();
        let dquot = quota.dquot(mount, Key { kind, id })?;
        mount.journal().commit()?;
        let mut entry = file::entry_at(&mount.core, dquot.place)?;
        entry.limits = limits;
        let now = u64::try_from(now().seconds()).unwrap_or(0);
        let end = |used: u64, soft: u64, end: u64, grace: u32| match soft == 0 || used <= soft {
            true => 0,
            false if end == 0 => now.saturating_add(grace.into()),
            false => end,
        };
        entry.bytes_grace_end = end(
            entry.counts.bytes,
            limits.soft_bytes,
            entry.bytes_grace_end,
            grace.space,
        );
        entry.inodes_grace_end = end(
            entry.counts.inodes,
            limits.soft_inodes,
            entry.inodes_grace_end,
            grace.inodes,
        );
        let mut plan = Plan::inside_another(mount);
        let at = dquot.place.offset_bytes;
        let region = plan.part(dquot.place.block, at..at + ENTRY_BYTES, entry_tag())?;
        plan.bytes_mut(region).copy_from_slice(&entry.to_bytes(id));
        plan.apply(&[])?;
        if quota.enforced.has(kind) {
            dquot.exact.get_or_init(|| Exact::new(entry)).set(entry);
        }
        if entry.is_idle() {
            quota.counts.idle.note(dquot.key);
        }
        Ok(())
    })
}

/// See [`Fs::set_quota_grace`](crate::Fs::set_quota_grace).
pub(crate) fn set_grace(mount: &Mount, kind: QuotaKind, times: GraceTimes) -> Result<()> {
    let quota = quota_of(mount)?;
    quota.alone(mount, || {
        let open = quota.open_file(kind)?;
        open.file.put_grace(mount, times)?;
        *open.grace.lock() = times;
        Ok(())
    })
}

fn quota_of(mount: &Mount) -> Result<&Quota> {
    let missing = || Error::Unsupported("the file system has no feature quota".into());
    mount.quota.as_deref().ok_or_else(missing)
}

impl Quota {
    /// Calls `change` while no plan of another thread is being made.
    fn alone(&self, mount: &Mount, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let _setting = self.setting.lock();
        mount.freezer().close()?;
        let changed = change();
        mount.freezer().open();
        changed
    }
}
