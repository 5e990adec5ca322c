//! **Purpose.** The options of opening a file system for reading.
//!
//! **Not here.** Opening itself (`crate::mount::open`); the options of a read-write mount
//! (`crate::mount::options`).

use fourscore_block::BlockDevice;
use fourscore_ondisk::superblock::{JournalPlace, Superblock};
use fourscore_ondisk::{BlockSize, PhysBlock};
use fourscore_sync::Arc;

use crate::{Error, Result};

/// How to treat a journal that holds changes that are not checkpointed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replay {
    /// Reads give the state after a replay. Nothing is written.
    #[default]
    InMemory,
    /// Reads give the blocks on the device, as after `mount -o ro,norecovery`. They may be
    /// inconsistent.
    Ignore,
}

/// Which copy of the superblock is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SuperblockCopy {
    /// The primary superblock, at byte 1024.
    #[default]
    Primary,
    /// The backup at the start of `block`, in a file system with blocks of `block_size`.
    Backup {
        /// The block number, such as 32768.
        block: PhysBlock,
        /// The block size, which is not known before a superblock is read.
        block_size: BlockSize,
    },
}

/// The options of opening a file system. Made by [`OpenOptions::new`] and changed by its methods.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) replay: Replay,
    pub(crate) superblock: SuperblockCopy,
    journal_device: Option<Arc<dyn BlockDevice>>,
    pub(crate) cache_bytes: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            replay: Replay::InMemory,
            superblock: SuperblockCopy::Primary,
            journal_device: None,
            cache_bytes: 128 << 20,
        }
    }
}

impl OpenOptions {
    /// Returns the defaults: the primary superblock, the journal replayed in memory, 128 MiB for
    /// caches.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how a dirty journal is treated.
    #[must_use]
    pub fn replay(mut self, replay: Replay) -> Self {
        self.replay = replay;
        self
    }

    /// Sets which copy of the superblock is read.
    #[must_use]
    pub fn superblock(mut self, copy: SuperblockCopy) -> Self {
        self.superblock = copy;
        self
    }

    /// Sets the device of an external journal. With one, a file system that has its journal inside,
    /// or has no journal, is not opened.
    #[must_use]
    pub fn journal_device(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.journal_device = Some(device);
        self
    }

    /// Returns the device of an external journal, if one was given.
    pub(crate) fn external_journal(&self) -> Option<&Arc<dyn BlockDevice>> {
        self.journal_device.as_ref()
    }

    /// Refuses a journal device if the file system's journal is not on a device.
    pub(crate) fn check_journal_device(&self, superblock: &Superblock) -> Result<()> {
        let is_external = matches!(superblock.journal(), Some(JournalPlace::Device { .. }));
        match self.journal_device.is_some() && !is_external {
            true => Err(Error::MountOption {
                word: "journal_path".into(),
                why: "the file system has no journal on a device of its own; leave the option out",
            }),
            false => Ok(()),
        }
    }

    /// Sets the memory for caches, in bytes: five eighths for blocks of metadata, two for inodes,
    /// one for names. Data is never cached here.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }
}
