//! **Purpose.** What the passes know together: who is in use, what is claimed, who is linked.
//!
//! **Invariants.** A pass only adds; the next one begins when all threads of it have ended. Memory
//! is one or two bits a block, a dozen bits an inode, and what directories, inodes with several
//! names and shared attribute blocks add.

use fourscore_ondisk::quota::QuotaUsage;
use fourscore_ondisk::{InodeNr, InodeSeed, PhysBlock};
use fourscore_sync::{Mutex, OnceLock};
use std::collections::{HashMap, HashSet};

use crate::bits::Bits;
use crate::links::LinkCounts;
use crate::policies::{PolicyIds, PolicyRuns};
use crate::volume::Volume;

const SHARDS: usize = 64;

/// The state.
#[derive(Debug)]
pub(crate) struct State {
    /// Clusters that belong to somebody.
    pub(crate) found: Bits,
    /// Clusters that belong to several; made when there is one.
    pub(crate) shared: OnceLock<Bits>,
    /// Blocks of fixed metadata.
    pub(crate) metadata: Bits,
    /// Inodes in use, and what they are.
    pub(crate) used: Bits,
    pub(crate) directories: Bits,
    pub(crate) regular: Bits,
    pub(crate) symlinks: Bits,
    /// Inodes whose type or fields make no sense.
    pub(crate) bad: Bits,
    pub(crate) encrypted: Bits,
    /// How.
    pub(crate) policies: PolicyIds,
    /// Inodes that hold values of attributes.
    pub(crate) value_inodes: Bits,
    /// What `i_links_count` says.
    pub(crate) links: LinkCounts,
    /// What names say.
    pub(crate) names: LinkCounts,
    /// How many attributes have their value in an inode.
    pub(crate) value_users: LinkCounts,
    pub(crate) xattr_blocks: [Mutex<HashMap<PhysBlock, XattrBlock>>; SHARDS],
    /// Inodes that the next mount deletes or cuts off.
    pub(crate) orphans: HashSet<InodeNr>,
}

/// An attribute block, and who uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XattrBlock {
    /// What it says; `None` if it cannot be believed.
    pub(crate) refcount: Option<u32>,
    /// Inodes that name it.
    pub(crate) users: u64,
    /// What its values in inodes of their own cost each user.
    pub(crate) values: Charge,
}

/// What a user is charged for beyond what he maps.
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

    /// The map that an attribute block is in.
    pub(crate) fn xattr_shard(&self, block: PhysBlock) -> &Mutex<HashMap<PhysBlock, XattrBlock>> {
        let shard = usize::try_from(block.0 % SHARDS as u64).unwrap_or(0);
        &self.xattr_blocks[shard]
    }

    /// Takes clusters as somebody's. Those that were taken before are noted as shared.
    pub(crate) fn claim(&self, clusters: std::ops::Range<u64>) {
        self.found.insert_run(clusters, |again| {
            let shared = self.shared.get_or_init(|| Bits::new(self.found.len()));
            shared.insert_run(again, |_| {});
        });
    }
}

/// A directory that pass 2 reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directory {
    pub(crate) inode: InodeNr,
    pub(crate) seed: InodeSeed,
    pub(crate) form: DirectoryForm,
    /// Which of the runs of its list are its own.
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
#[derive(Clone, Copy, Debug)]
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

/// What pass 1 hands on beside the state.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    pub(crate) directories: Vec<Directories>,
    pub(crate) policies: PolicyRuns,
    pub(crate) usage: QuotaUsage,
}
