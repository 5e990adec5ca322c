//! **Purpose.** The state that passes share: inodes in use, claimed blocks, counted links.
//!
//! **Invariants.** A pass only adds. The next pass begins when all threads of the previous one have
//! ended. Memory is one or two bits a block and a dozen bits an inode; directories, inodes with
//! several names and shared attribute blocks add to it.

use fourscore_ondisk::quota::QuotaUsage;
use fourscore_ondisk::{InodeNr, InodeSeed, PhysBlock};
use fourscore_sync::{Mutex, OnceLock};
use std::collections::{HashMap, HashSet};

use crate::bits::Bits;
use crate::links::LinkCounts;
use crate::policies::{PolicyIds, PolicyRuns};
use crate::volume::Volume;

const SHARDS: usize = 64;

/// The shared state.
#[derive(Debug)]
pub(crate) struct State {
    /// Clusters in use.
    pub(crate) found: Bits,
    /// Clusters that were claimed more than once; allocated with the first of them.
    pub(crate) shared: OnceLock<Bits>,
    /// Blocks of fixed metadata.
    pub(crate) metadata: Bits,
    /// Inodes in use, and those of each type.
    pub(crate) used: Bits,
    pub(crate) directories: Bits,
    pub(crate) regular: Bits,
    pub(crate) symlinks: Bits,
    /// Inodes with an invalid type or invalid fields.
    pub(crate) bad: Bits,
    pub(crate) encrypted: Bits,
    /// The encryption policies.
    pub(crate) policies: PolicyIds,
    /// Inodes that hold attribute values.
    pub(crate) value_inodes: Bits,
    /// `i_links_count`.
    pub(crate) links: LinkCounts,
    /// The number of names.
    pub(crate) names: LinkCounts,
    /// The number of attributes that have their value in the inode.
    pub(crate) value_users: LinkCounts,
    pub(crate) xattr_blocks: [Mutex<HashMap<PhysBlock, XattrBlock>>; SHARDS],
    /// Inodes that the next mount deletes or truncates.
    pub(crate) orphans: HashSet<InodeNr>,
}

/// An attribute block and its users.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XattrBlock {
    /// `h_refcount`; `None` if the block is invalid.
    pub(crate) refcount: Option<u32>,
    /// Inodes that name it.
    pub(crate) users: u64,
    /// What each user is charged for values in other inodes.
    pub(crate) values: Charge,
}

/// What an inode is charged beyond the blocks that it maps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    pub(crate) clusters: u64,
    pub(crate) inodes: u64,
}

impl State {
    pub(crate) fn new(volume: &Volume, orphans: HashSet<InodeNr>) -> Self {
        let last = InodeNr(volume.geometry().inodes());
        let inodes = || Bits::new(u64::from(last.0) + 1);
        Self {
            found: Bits::new(volume.clusters()),
            shared: OnceLock::new(),
            metadata: Bits::new(volume.geometry().blocks().0),
            used: inodes(),
            directories: inodes(),
            regular: inodes(),
            symlinks: inodes(),
            bad: inodes(),
            encrypted: inodes(),
            policies: PolicyIds::default(),
            value_inodes: inodes(),
            links: LinkCounts::new(last),
            names: LinkCounts::new(last),
            value_users: LinkCounts::new(last),
            xattr_blocks: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            orphans,
        }
    }

    /// The shard of an attribute block.
    pub(crate) fn xattr_shard(&self, block: PhysBlock) -> &Mutex<HashMap<PhysBlock, XattrBlock>> {
        let shard = usize::try_from(block.0 % SHARDS as u64).unwrap_or(0);
        &self.xattr_blocks[shard]
    }

    /// Marks clusters as in use. Those that were in use before are marked as shared.
    pub(crate) fn claim(&self, clusters: std::ops::Range<u64>) {
        self.found.insert_run(clusters, |again| {
            let shared = self.shared.get_or_init(|| Bits::new(self.found.len()));
            shared.insert_run(again, |_| {});
        });
    }
}

/// A directory that pass 2 reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    pub(crate) inode: InodeNr,
    pub(crate) seed: InodeSeed,
    pub(crate) form: DirectoryForm,
    /// Its first run in the list of runs.
    pub(crate) first_run: u32,
    pub(crate) runs: u32,
    /// One past its last block.
    pub(crate) end: u32,
}

/// How a directory is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryForm {
    pub(crate) inline: bool,
    pub(crate) indexed: bool,
    pub(crate) casefold: bool,
    pub(crate) encrypted: bool,
}

/// A run of blocks of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) logical: u32,
    pub(crate) blocks: u32,
    pub(crate) start: PhysBlock,
}

/// Directories that one thread found, with their runs.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    pub(crate) all: Vec<Directory>,
    pub(crate) runs: Vec<Run>,
}

impl Directories {
    /// The runs of a directory of this list.
    pub(crate) fn runs_of(&self, directory: &Directory) -> &[Run] {
        let first = directory.first_run as usize;
        let end = first + directory.runs as usize;
        self.runs.get(first..end).unwrap_or(&[])
    }
}

/// The result of pass 1 beside the shared state.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    pub(crate) directories: Vec<Directories>,
    pub(crate) policies: PolicyRuns,
    pub(crate) usage: QuotaUsage,
}
