//! **Purpose.** Seals committing copies: computes, once per commit, the checksums of blocks and the
//! fields of group descriptors that follow from bitmaps.
//!
//! **Model.** A block's tag names its structure and holds the checksum seed of its owner, so
//! nothing has to be looked up. Bitmaps are sealed first and note their checksums and counts;
//! blocks of descriptors are sealed after them.
//!
//! **Locking.** Called under a buffer's lock; takes no lock.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_journal::{FastCommit, FastCommitRequest, SealHook, Sealing};
use fourscore_ondisk::dirent::DirFormat;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, Superblock};
use fourscore_ondisk::{PhysBlock, RawSuperblock, Tid, extent, htree, orphan, xattr};
use fourscore_sync::{Arc, OnceLock, Versions};
use zerocopy::FromBytes;

use crate::group::table::Groups;
use crate::quota::state::Quota;
use crate::txn::fast_commit::FastCommits;
use crate::txn::faults::{Faults, Sabotage};
use crate::txn::grace::GracePeriod;

/// The file system's part in a commit.
pub(crate) struct Seal {
    superblock: Arc<Versions<Superblock>>,
    groups: Arc<Groups>,
    grace: Arc<GracePeriod>,
    /// Set when the mount makes fast commits.
    fast_commits: Arc<OnceLock<Arc<FastCommits>>>,
    /// Set if the mount counts usage.
    quota: Option<Arc<Quota>>,
    faults: Faults,
}

impl Seal {
    pub(crate) fn new(
        superblock: Arc<Versions<Superblock>>,
        groups: Arc<Groups>,
        grace: Arc<GracePeriod>,
        fast_commits: Arc<OnceLock<Arc<FastCommits>>>,
        quota: Option<Arc<Quota>>,
        faults: Faults,
    ) -> Self {
        Self {
            superblock,
            groups,
            grace,
            fast_commits,
            quota,
            faults,
        }
    }

    fn seal_checksum(&self, block: PhysBlock, tag: VerifiedAs, bytes: &mut [u8]) {
        let superblock = self.superblock.get();
        if !superblock.has_metadata_csum() || self.faults.lacks(Sabotage::NoSeal) {
            return;
        }
        let (seed, fs_seed) = (tag.seed(), superblock.checksum_seed());
        // A block that was verified before it was changed has space for its checksum.
        match tag.structure() {
            Some(Structure::ExtentNode) => drop(extent::seal(bytes, seed)),
            Some(Structure::DirectoryLeaf) => drop(DirFormat::seal(bytes, seed)),
            Some(Structure::DirectoryIndex) if htree::looks_like_node(bytes) => {
                drop(htree::seal_node(bytes, seed));
            }
            Some(Structure::DirectoryIndex) => drop(htree::seal_root(bytes, seed)),
            Some(Structure::Xattrs) => drop(xattr::seal_block(bytes, block, fs_seed)),
            Some(Structure::OrphanFile) => {
                drop(orphan::seal(bytes, block, seed, superblock));
            }
            Some(Structure::Superblock) => {
                let offset = SUPERBLOCK_OFFSET_BYTES % bytes.len().max(1) as u64;
                let bytes = usize::try_from(offset)
                    .ok()
                    .and_then(|at| bytes.get_mut(at..));
                let raw = RawSuperblock::mut_from_prefix(bytes.unwrap_or_default());
                if let Ok((raw, _)) = raw {
                    raw.seal();
                }
            }
            _ => {}
        }
    }
}

impl SealHook for Seal {
    fn at_seal(&self, sealing: &mut Sealing<'_>) {
        if let Some(quota) = &self.quota
            && !self.faults.lacks(Sabotage::UnsealedUsage)
        {
            quota.at_seal(sealing);
        }
    }

    fn finish(&self, _: Tid, block: PhysBlock, tag: VerifiedAs, bytes: &mut [u8]) {
        match tag.structure() {
            Some(Structure::BlockBitmap | Structure::InodeBitmap) => {
                self.groups.seal_bitmap(tag, bytes);
            }
            Some(Structure::GroupDescriptors) => self.groups.seal_descriptors(block, bytes),
            _ => self.seal_checksum(block, tag, bytes),
        }
    }

    fn follows_from_others(&self, block: PhysBlock) -> bool {
        self.groups.is_descriptors(block)
    }

    fn fast_commit(&self, request: &FastCommitRequest) -> FastCommit {
        match self.fast_commits.get() {
            Some(fast_commits) => fast_commits.records(request),
            None => FastCommit::InFull,
        }
    }

    fn home_before_fast_commits(&self) -> Option<PhysBlock> {
        let block_size = self.superblock.get().geometry().block_size();
        Some(PhysBlock(SUPERBLOCK_OFFSET_BYTES >> block_size.bits()))
    }

    fn on_fast_commit(&self, _: Tid, records: Vec<u8>) {
        if let Some(fast_commits) = self.fast_commits.get() {
            fast_commits.are_durable(records);
        }
    }

    fn on_durable(&self, tid: Tid) {
        self.grace.committed(tid);
    }
}
