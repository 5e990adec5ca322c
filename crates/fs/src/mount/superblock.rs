//! **Purpose.** Changes fields of the superblock on disk, as parts of plans, so that they are
//! durable together with the changes that need them.
//!
//! **Not here.** The fields that are written when a file system is mounted and unmounted
//! ([`crate::mount::mark`]).
//!
//! **Model.** A plan takes only the field that it changes, so that other plans can change other
//! fields. The mount's copy of the superblock stays as it was: an operation that needs a new
//! feature writes it, possibly again.
//!
//! **Locking.** None except the buffer's, and the lock that protects the field itself.

use std::mem::offset_of;
use std::ops::Range;

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::{InodeNr, PhysBlock, RawSuperblock};
use uuid::Uuid;

use crate::core::Core;
use crate::guard::with_guard;
use crate::inode::last_change::LastChange;
use crate::mount::errors;
use crate::mount::mark::superblock_part;
use crate::mount::state::Mount;
use crate::txn::plan::{Plan, RegionId};
use crate::{Error, Result, metadata};

/// The longest label of a volume, in bytes.
const MOST_LABEL_BYTES: usize = 16;

/// See [`Fs::label`](crate::Fs::label).
pub(crate) fn label(core: &Core) -> Result<Vec<u8>> {
    let (block, range) = label_place(core);
    with_guard(core, |guard| {
        let superblock = metadata::unchecked_metadata(core, block, guard)?;
        let label = superblock.get(range.clone()).unwrap_or_default();
        let text = label.split(|&byte| byte == 0).next();
        Ok(text.unwrap_or_default().to_vec())
    })
}

/// See [`Fs::set_label`](crate::Fs::set_label).
pub(crate) fn set_label(mount: &Mount, label: &[u8]) -> Result<()> {
    errors::noting(mount, change_label(mount, label))
}

fn change_label(mount: &Mount, label: &[u8]) -> Result<()> {
    if label.len() > MOST_LABEL_BYTES || label.contains(&0) {
        return Err(Error::InvalidArgument("a label of 16 bytes at most"));
    }
    let mut plan = Plan::new(mount);
    let region = plan_label(&mut plan)?;
    let buf = plan.bytes_mut(region);
    buf.fill(0);
    buf[..label.len()].copy_from_slice(label);
    plan.apply(&[&LastChange::new()]).map(drop)
}

/// See [`Fs::set_uuid`](crate::Fs::set_uuid).
pub(crate) fn set_uuid(mount: &Mount, uuid: Uuid) -> Result<()> {
    errors::noting(mount, change_uuid(mount, uuid))
}

fn change_uuid(mount: &Mount, uuid: Uuid) -> Result<()> {
    let superblock = mount.core.superblock();
    let features = superblock.features();
    let refused = |why: &str| Err(Error::Unsupported(why.into()));
    if features.compat.contains(Compat::STABLE_INODES) {
        return refused("it has the feature stable_inodes, with which the UUID never changes");
    }
    if features.ro_compat.contains(RoCompat::GDT_CSUM) {
        return refused("the checksums of its group descriptors depend on the UUID");
    }
    let stores_seed = superblock.has_metadata_csum();
    let has_seed = stores_seed || features.incompat.contains(Incompat::CSUM_SEED);
    if features.incompat.contains(Incompat::EA_INODE) && !has_seed {
        return refused("hashes of values in inodes of their own depend on the UUID (ea_inode)");
    }
    let mut plan = Plan::new(mount);
    let mut set = |at: usize, value: &[u8]| {
        let (block, range) = superblock_part(&mount.core, at..at + value.len());
        let tag = VerifiedAs::new(Structure::Superblock, InodeNr(0));
        let region = plan.part(block, range, tag)?;
        plan.bytes_mut(region).copy_from_slice(value);
        Ok::<(), Error>(())
    };
    if stores_seed {
        // The checksums stay valid: their seed is stored, and does not follow from the UUID.
        let seed = superblock.checksum_seed().value().to_le_bytes();
        set(offset_of!(RawSuperblock, s_checksum_seed), &seed)?;
        let incompat = (features.incompat | Incompat::CSUM_SEED) - Incompat::RECOVER;
        let now = incompat.bits() | Incompat::RECOVER.bits();
        set(
            offset_of!(RawSuperblock, s_feature_incompat),
            &now.to_le_bytes(),
        )?;
    }
    set(offset_of!(RawSuperblock, s_uuid), uuid.as_bytes())?;
    plan.apply(&[&LastChange::new()]).map(drop)
}

/// Sets the head of the chain of orphans. The caller holds the chain's lock.
pub(crate) fn set_last_orphan(plan: &mut Plan<'_>, head: Option<InodeNr>) -> Result<()> {
    let at = offset_of!(RawSuperblock, s_last_orphan);
    set_superblock_word(plan, at, head.map_or(0, |nr| nr.0))
}

/// Sets the feature for blocks of attributes. Without it e2fsck reports such blocks as errors.
pub(crate) fn set_ext_attr(plan: &mut Plan<'_>) -> Result<()> {
    let features = plan.mount.core.superblock().features().compat;
    if features.contains(Compat::EXT_ATTR) {
        return Ok(());
    }
    let at = offset_of!(RawSuperblock, s_feature_compat);
    set_superblock_word(plan, at, (features | Compat::EXT_ATTR).bits())
}

/// Sets the feature for files of 2 GiB and more.
pub(crate) fn set_large_file(plan: &mut Plan<'_>) -> Result<()> {
    let features = plan.mount.core.superblock().features().ro_compat;
    if features.contains(RoCompat::LARGE_FILE) {
        return Ok(());
    }
    let at = offset_of!(RawSuperblock, s_feature_ro_compat);
    set_superblock_word(plan, at, (features | RoCompat::LARGE_FILE).bits())
}

fn plan_label(plan: &mut Plan<'_>) -> Result<RegionId> {
    let (block, range) = label_place(&plan.mount.core);
    let tag = VerifiedAs::new(Structure::Superblock, InodeNr(0));
    plan.part(block, range, tag)
}

/// Sets the 32-bit field `at` bytes from the start of the superblock.
fn set_superblock_word(plan: &mut Plan<'_>, at: usize, value: u32) -> Result<()> {
    let (block, range) = superblock_part(&plan.mount.core, at..at + size_of::<u32>());
    let tag = VerifiedAs::new(Structure::Superblock, InodeNr(0));
    let region = plan.part(block, range, tag)?;
    plan.bytes_mut(region).copy_from_slice(&value.to_le_bytes());
    Ok(())
}

/// Returns the place of the volume's label: its block, and the range of bytes in the block.
fn label_place(core: &Core) -> (PhysBlock, Range<usize>) {
    let at = offset_of!(RawSuperblock, s_volume_name);
    superblock_part(core, at..at + MOST_LABEL_BYTES)
}
