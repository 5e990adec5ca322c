//! **Purpose.** How a file system is opened for reading.

use fourscore_block::BlockDevice;
use fourscore_ondisk::superblock::{JournalPlace, Superblock};
use fourscore_ondisk::{BlockSize, PhysBlock};
use fourscore_sync::Arc;

use crate::{Error, Result};

/// What to do with a journal that holds changes which are not in place yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replay {
    /// Read as if it had been replayed. Nothing is written.
    #[default]
    InMemory,
    /// Read what is in place, as after `mount -o ro,norecovery`. May be inconsistent.
    Ignore,
}

/// Where the superblock is read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SuperblockCopy {
    /// The primary one, at byte 1024.
    #[default]
    Primary,
    /// The backup at the start of `block`, in a file system with blocks of `block_size`.
    Backup {
        /// The block, such as 32768.
        block: PhysBlock,
        /// The block size, which is not known before a superblock is read.
        block_size: BlockSize,
    },
}

/// How to open a file system. Made by [`OpenOptions::new`] and changed by its methods.
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
    /// The primary superblock, the journal replayed in memory, 128 MiB for caches.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What to do with a dirty journal.
    #[must_use]
    pub fn replay(mut self, replay: Replay) -> Self {
        self.replay = replay;
        self
    }

    /// Where the superblock is read from.
    #[must_use]
    pub fn superblock(mut self, copy: SuperblockCopy) -> Self {
        self.superblock = copy;
        self
    }

    /// The device of an external journal. A file system that has its journal inside, or has none,
    /// is not opened with one.
    #[must_use]
    pub fn journal_device(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.journal_device = Some(device);
        self
    }

    /// The device of an external journal, if one was given.
    pub(crate) fn external_journal(&self) -> Option<&Arc<dyn BlockDevice>> {
        self.journal_device.as_ref()
    }

    /// Refuses a device for the journal where the file system has no journal on a device.
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

    /// Memory for caches, in bytes: five eighths for blocks of metadata, two for inodes, one for
    /// names. Data is never cached here.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }
}
