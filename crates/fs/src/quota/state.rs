//! **Purpose.** The quota of a read-write mount.
//!
//! **Not here.** What needs plans: adding and removing entries ([`crate::quota::entries`]).
//!
//! **Locking.** See [`crate::quota`].

use std::collections::HashMap;

use fourscore_journal::Sealing;
use fourscore_ondisk::quota::{GraceTimes, QuotaKind};
use fourscore_ondisk::{Corrupt, InodeNr, Tid};
use fourscore_sync::rank::Ranked;
use fourscore_sync::{Arc, Mutex, MutexGuard};

use crate::core::Core;
use crate::quota::counts::Counts;
use crate::quota::dquot::Dquot;
use crate::quota::file::QuotaFile;
use crate::quota::usage::Key;
use crate::txn::order;
use crate::{Error, Result};

/// The kinds whose limits a mount enforces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Enforced {
    pub(crate) user: bool,
    pub(crate) group: bool,
    pub(crate) project: bool,
}

impl Enforced {
    pub(super) fn has(self, kind: QuotaKind) -> bool {
        match kind {
            QuotaKind::User => self.user,
            QuotaKind::Group => self.group,
            QuotaKind::Project => self.project,
        }
    }
}

/// A quota file, and what its header says.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: QuotaFile,
    pub(super) grace: Mutex<GraceTimes>,
}

/// What was added lately.
#[derive(Debug, Default)]
pub(super) struct Insertions {
    /// The transaction that was running at the last insertion.
    pub(super) tid: Option<Tid>,
    /// How many entries were added while it was running.
    pub(super) entries: u32,
    /// At how many known identifiers those that are not in use are forgotten; 0 at first.
    pub(super) most_known: usize,
}

/// The quota of a read-write mount.
#[derive(Debug)]
pub(crate) struct Quota {
    files: Vec<OpenFile>,
    pub(super) enforced: Enforced,
    /// Identifiers whose usage has changed; those of long ago are forgotten.
    pub(super) known: Mutex<HashMap<Key, Arc<Dquot>>>,
    pub(super) counts: Counts,
    /// Held by the thread that adds entries to a file or removes them.
    inserting: Mutex<Insertions>,
    /// Held by the thread that sets limits.
    pub(super) setting: Mutex<()>,
}

impl Quota {
    /// Opens the quota files of a file system; `None` if it has none.
    ///
    /// # Errors
    /// `Corrupt` if the header of a file is broken.
    pub(crate) fn open(core: &Core, enforced: Enforced) -> Result<Option<Self>> {
        let inodes = core.superblock().quota_inodes();
        let kinds = [
            (QuotaKind::User, inodes.user),
            (QuotaKind::Group, inodes.group),
            (QuotaKind::Project, inodes.project),
        ];
        let mut files = Vec::new();
        for (kind, inode) in kinds {
            if let Some(inode) = inode {
                let file = QuotaFile { kind, inode };
                let grace = Mutex::new(file.check(core)?);
                files.push(OpenFile { file, grace });
            }
        }
        if files.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            files,
            enforced,
            known: Mutex::default(),
            counts: Counts::default(),
            inserting: Mutex::default(),
            setting: Mutex::default(),
        }))
    }

    pub(super) fn open_file(&self, kind: QuotaKind) -> Result<&OpenFile> {
        let mut files = self.files.iter();
        let found = files.find(|open| open.file.kind == kind);
        found.ok_or_else(|| Error::Unsupported("the file system has no such quota file".into()))
    }

    pub(super) fn has_kind(&self, kind: QuotaKind) -> bool {
        self.files.iter().any(|open| open.file.kind == kind)
    }

    /// Whether an inode may be charged: hidden files of the file system are not.
    pub(super) fn charges_for(&self, core: &Core, nr: InodeNr) -> bool {
        let superblock = core.superblock();
        let is_visible = nr == InodeNr::ROOT || nr >= superblock.first_inode();
        is_visible
            && superblock.orphan_file_inode() != Some(nr)
            && self.files.iter().all(|open| open.file.inode != nr)
    }

    /// Adds what was counted to the entries, in the transaction that is being sealed.
    pub(crate) fn at_seal(&self, sealing: &mut Sealing<'_>) {
        self.counts.at_seal(sealing);
    }

    /// Why a seal has aborted the journal, if it has.
    pub(crate) fn damage(&self) -> Option<&Corrupt> {
        self.counts.damage()
    }

    pub(super) fn lock_insertion(&self) -> Ranked<MutexGuard<'_, Insertions>> {
        let lock = &self.inserting;
        order::QUOTA_FILE
            .only()
            .lock(|| lock.try_lock(), || lock.lock())
    }
}
