//! **Purpose.** Changing words of the superblock on disk, as part of a plan: what must be true
//! there together with the change that needs it.
//!
//! **Not here.** What is written when a file system is mounted and unmounted ([`crate::mount::state`]).
//!
//! **Model.** A plan takes only the word that it changes, so that others change others. What the
//! mount knows of the superblock stays as it was: features gained on the way are written by whoever
//! needs them, again if need be.
//!
//! **Locking.** None but the buffer's, and what the word itself is protected by.

use std::mem::offset_of;
use std::ops::Range;

use fourscore_block::{Structure, VerifiedAs};
use fourscore_journal::LastTid;
use fourscore_ondisk::features::{Compat, RoCompat};
use fourscore_ondisk::{InodeNr, PhysBlock, RawSuperblock};
use fourscore_sync::epoch;

use crate::mount::state::superblock_part;
use crate::txn::plan::{Plan, RegionId};
use crate::{Error, Fs, Result};

/// The longest name of a volume, in bytes.
const MOST_LABEL_BYTES: usize = 16;

impl Fs {
    /// The name of the volume as it is now, in bytes that are no text for certain.
    ///
    /// # Errors
    /// Those of the device.
    pub fn label(&self) -> Result<Vec<u8>> {
        let (block, range) = label_place(self);
        let guard = epoch::pin();
        let superblock = self.unchecked_metadata(block, &guard)?;
        let label = superblock.get(range).unwrap_or_default();
        let text = label.split(|&byte| byte == 0).next();
        Ok(text.unwrap_or_default().to_vec())
    }

    /// Names the volume (`FS_IOC_SETFSLABEL`), in the primary superblock. Durable after the next
    /// [`Fs::sync`].
    ///
    /// # Errors
    /// `InvalidArgument` for more than 16 bytes, or a zero among them; `ReadOnly`.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.noting(self.change_label(label))
    }

    fn change_label(&self, label: &[u8]) -> Result<()> {
        let writer = self.writer()?;
        if label.len() > MOST_LABEL_BYTES || label.contains(&0) {
            return Err(Error::InvalidArgument("a label of 16 bytes at most"));
        }
        let mut plan = Plan::new(self, writer);
        let region = plan.label()?;
        let room = plan.bytes_mut(region);
        room.fill(0);
        room[..label.len()].copy_from_slice(label);
        plan.carry_out(&[&LastTid::new()]).map(drop)
    }
}

impl Plan<'_> {
    /// Sets the head of the chain of orphans. Its lock is held.
    pub(crate) fn set_last_orphan(&mut self, head: Option<InodeNr>) -> Result<()> {
        let at = offset_of!(RawSuperblock, s_last_orphan);
        self.set_superblock_word(at, head.map_or(0, |nr| nr.0))
    }

    /// Notes that there are blocks of attributes; without that e2fsck takes them for errors.
    pub(crate) fn set_ext_attr(&mut self) -> Result<()> {
        let features = self.fs().superblock().features().compat;
        if features.contains(Compat::EXT_ATTR) {
            return Ok(());
        }
        let at = offset_of!(RawSuperblock, s_feature_compat);
        self.set_superblock_word(at, (features | Compat::EXT_ATTR).bits())
    }

    /// Notes that there are files of 2 GiB and more.
    pub(crate) fn set_large_file(&mut self) -> Result<()> {
        let features = self.fs().superblock().features().ro_compat;
        if features.contains(RoCompat::LARGE_FILE) {
            return Ok(());
        }
        let at = offset_of!(RawSuperblock, s_feature_ro_compat);
        self.set_superblock_word(at, (features | RoCompat::LARGE_FILE).bits())
    }

    fn label(&mut self) -> Result<RegionId> {
        let (block, range) = label_place(self.fs());
        let tag = VerifiedAs::new(Structure::Superblock, InodeNr(0));
        self.part(block, range, tag)
    }

    /// Sets the word `at` bytes from the start of the superblock.
    fn set_superblock_word(&mut self, at: usize, value: u32) -> Result<()> {
        let (block, range) = superblock_part(self.fs(), at..at + size_of::<u32>());
        let tag = VerifiedAs::new(Structure::Superblock, InodeNr(0));
        let region = self.part(block, range, tag)?;
        self.bytes_mut(region).copy_from_slice(&value.to_le_bytes());
        Ok(())
    }
}

/// Where the name of the volume is: its block, and the bytes in there.
fn label_place(fs: &Fs) -> (PhysBlock, Range<usize>) {
    let at = offset_of!(RawSuperblock, s_volume_name);
    superblock_part(fs, at..at + MOST_LABEL_BYTES)
}
