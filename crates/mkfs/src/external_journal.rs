//! **Purpose.** A journal on a device of its own that a new file system uses (`-J device=`).
//!
//! **Not here.** Making such a journal (`journal_device`).
//!
//! **Crash safety.** A file system is entered into its journal before it is written: a journal that
//! names a file system which does not exist does no harm.

use std::fmt;

use fourscore_block::BlockDevice;
use fourscore_ondisk::BlockSize;
use fourscore_ondisk::jbd2::{JournalSuperblock, JournalVersion, RawJournalSuperblock};
use fourscore_ondisk::superblock::{JournalDevice, RawSuperblock, SUPERBLOCK_OFFSET_BYTES};
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{FormatError, FormatResult};

/// A journal on a device of its own, with what a new file system stores of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalJournal {
    device: JournalDevice,
    device_number: u32,
}

impl ExternalJournal {
    /// Reads the superblocks of the journal on `device`, which the host knows under `device_number`
    /// (`s_journal_dev`).
    ///
    /// # Errors
    /// [`FormatError::Option`] if there is no journal; the device's errors.
    pub fn read<D: BlockDevice + ?Sized>(device: &D, device_number: u32) -> FormatResult<Self> {
        let mut bytes = [0; size_of::<RawSuperblock>()];
        if device.len_bytes() < SUPERBLOCK_OFFSET_BYTES + bytes.len() as u64 {
            return Err(no_journal("is too short for one"));
        }
        device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
        let raw = RawSuperblock::from_bytes(&bytes).map_err(no_journal)?;
        let found = Self {
            device: JournalDevice::try_from(raw).map_err(no_journal)?,
            device_number,
        };
        found.read_journal(device)?;
        Ok(found)
    }

    /// The block size of the journal, and of every file system that uses it.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.device.block_size
    }

    /// The UUID by which file systems name it.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.device.uuid
    }

    /// `s_journal_dev`.
    pub(crate) fn device_number(&self) -> u32 {
        self.device_number
    }

    /// Enters the file system `user` into the journal on `device`. Durable when the call returns.
    ///
    /// # Errors
    /// [`FormatError::Option`] if another file system uses the journal: the kernel lets only one;
    /// the device's errors.
    pub fn add_user<D: BlockDevice + ?Sized>(&self, device: &D, user: Uuid) -> FormatResult<()> {
        let mut journal = self.read_journal(device)?;
        if let Some(other) = journal.users().find(|&other| other != user) {
            let why = format!("is in use by the file system {other}");
            return Err(FormatError::option("-J device", why));
        }
        journal.set_only_user(user);
        journal.seal();
        device.write_at(journal.raw().as_bytes(), self.journal_offset_bytes())?;
        device.flush()?;
        Ok(())
    }

    fn journal_offset_bytes(&self) -> u64 {
        self.device.block_size.offset(self.device.journal_start)
    }

    fn read_journal<D: BlockDevice + ?Sized>(&self, device: &D) -> FormatResult<JournalSuperblock> {
        let mut bytes = [0; size_of::<RawJournalSuperblock>()];
        device.read_at(&mut bytes, self.journal_offset_bytes())?;
        let raw = RawJournalSuperblock::ref_from_bytes(&bytes)
            .map_err(|_| no_journal("its superblock is cut off"))?;
        let journal = JournalSuperblock::try_from(raw).map_err(no_journal)?;
        if journal.version() == JournalVersion::V1 {
            return Err(no_journal("it is of version 1, which has no list of users"));
        }
        if journal.block_size_bytes() as usize != self.block_size().bytes() {
            return Err(no_journal("its two superblocks name different block sizes"));
        }
        Ok(journal)
    }
}

fn no_journal(why: impl fmt::Display) -> FormatError {
    FormatError::option("-J device", format!("holds no journal: {why}"))
}
