//! **Purpose.** Lookup counts: tracks which inodes the kernel knows, and keeps them from being
//! freed.
//!
//! **Model.** A node id is an inode's number, except that the root is 1 for FUSE and 2 for ext4.
//! Each reply that passes an inode to the kernel increments its lookup count, and FORGET requests
//! decrement it. An inode with a lookup count is open in the library, so a file that is removed
//! while it is in use needs no file handle of its own.
//!
//! The name of an inode still refers to it when the inode is entered here: the kernel locks the
//! directory while it looks up or creates a name, and only the kernel changes the file system.
//!
//! The kernel does not wait for FORGET requests, and may end a mount while other workers process
//! some. So [`Nodes::forget_all`] waits until all inodes are closed: the file system is frozen
//! next, and nothing could be freed then.
//!
//! The kernel knows an inode by a number and a generation, and gives up an inode that a later reply
//! reports with another generation. `FS_IOC_SETVERSION` changes the generation on disk, so a node
//! keeps the one with which it was entered until the kernel has forgotten it.
//!
//! **Locking.** A shard's lock, never while the library is called.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fourscore::{Fs, InodeNr, OpenInode};
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{CachePadded, Condvar, Mutex};

use crate::abi::ROOT_ID;
use crate::reply::Errno;

/// Enough that workers seldom contend for one.
const SHARDS: usize = 256;

/// The inodes with a lookup count.
#[derive(Debug)]
pub(crate) struct Nodes<'f> {
    fs: &'f Fs,
    shards: Box<[CachePadded<Shard<'f>>]>,
    /// Whether a node may have another generation than its inode. Seldom written.
    has_kept_generations: AtomicBool,
}

/// Some of the inodes.
#[derive(Debug, Default)]
struct Shard<'f> {
    known: Mutex<Known<'f>>,
    /// No inode is being closed any more.
    all_closed: Condvar,
}

#[derive(Debug, Default)]
struct Known<'f> {
    nodes: HashMap<InodeNr, Node<'f>>,
    /// The number of inodes removed from `nodes` and not closed yet.
    closing: usize,
}

impl Shard<'_> {
    fn close(&self, node: Node<'_>) {
        node.close();
        let mut known = self.known.lock();
        known.closing -= 1;
        if known.closing == 0 {
            self.all_closed.notify_all();
        }
    }
}

#[derive(Debug)]
struct Node<'f> {
    lookups: u64,
    /// The generation by which the kernel knows the inode, if that has another one since.
    kept_generation: Option<u32>,
    open: OpenInode<&'f Fs>,
}

impl Node<'_> {
    fn close(self) {
        let inode = self.open.inode();
        if let Err(error) = self.open.close() {
            tracing::warn!(inode = inode.0, %error, "the inode is freed at the next mount");
        }
    }
}

impl<'f> Nodes<'f> {
    pub(crate) fn new(fs: &'f Fs) -> Self {
        let shards = (0..SHARDS).map(|_| CachePadded::default());
        Self {
            fs,
            shards: shards.collect(),
            has_kept_generations: AtomicBool::new(false),
        }
    }

    fn shard(&self, inode: InodeNr) -> &Shard<'f> {
        &self.shards[inode.0 as usize % SHARDS]
    }

    /// The inode of a node id.
    ///
    /// # Errors
    /// `ESTALE` for a number that no inode can have.
    pub(crate) fn inode(&self, node: u64) -> Result<InodeNr, Errno> {
        if node == ROOT_ID {
            return Ok(InodeNr::ROOT);
        }
        let inode = u32::try_from(node).map(InodeNr).ok();
        inode
            .filter(|&inode| inode != InodeNr::ROOT && self.fs.superblock().may_be_named(inode))
            .ok_or(Errno::STALE)
    }

    /// The node id of an inode.
    pub(crate) fn node(inode: InodeNr) -> u64 {
        match inode {
            InodeNr::ROOT => ROOT_ID,
            InodeNr(number) => number.into(),
        }
    }

    /// Increments the lookup count of `inode`.
    ///
    /// # Errors
    /// `EUCLEAN` for a reserved inode, to which no name may refer; those of [`OpenInode::new`].
    pub(crate) fn count_lookup(&self, inode: InodeNr) -> Result<(), Errno> {
        if inode == InodeNr::ROOT {
            // The kernel knows it for as long as there is a mount.
            return Ok(());
        }
        if !self.fs.superblock().may_be_named(inode) {
            tracing::warn!(inode = inode.0, "a name refers to a reserved inode");
            return Err(Errno::UCLEAN);
        }
        if let Some(node) = self.shard(inode).known.lock().nodes.get_mut(&inode) {
            node.lookups += 1;
            return Ok(());
        }
        self.enter(OpenInode::new(self.fs, inode)?);
        Ok(())
    }

    /// Increments the lookup count of an inode that was just opened.
    pub(crate) fn enter(&self, open: OpenInode<&'f Fs>) {
        let inode = open.inode();
        let surplus = match self.shard(inode).known.lock().nodes.entry(inode) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().lookups += 1;
                Some(open)
            }
            Entry::Vacant(entry) => {
                entry.insert(Node {
                    lookups: 1,
                    kept_generation: None,
                    open,
                });
                None
            }
        };
        drop(surplus);
    }

    /// Notes that the kernel knows `inode` by `generation`. For the caller that changes the
    /// generation next; no other one changes it meanwhile.
    pub(crate) fn keep_generation(&self, inode: InodeNr, generation: u32) {
        let mut known = self.shard(inode).known.lock();
        if let Some(node) = known.nodes.get_mut(&inode) {
            node.kept_generation.get_or_insert(generation);
            // A thread that sees the new generation sees this too: it is stored before.
            self.has_kept_generations.store(true, Ordering::SeqCst);
        }
    }

    /// The generation by which the kernel knows `inode`, which has the generation `current` on
    /// disk. The root is 0 for the kernel, which does not look it up.
    pub(crate) fn generation(&self, inode: InodeNr, current: u32) -> u32 {
        if inode == InodeNr::ROOT {
            return 0;
        }
        if !self.has_kept_generations.load(Ordering::SeqCst) {
            return current;
        }
        let known = self.shard(inode).known.lock();
        let node = known.nodes.get(&inode);
        node.and_then(|node| node.kept_generation)
            .unwrap_or(current)
    }

    /// Decrements the lookup count of `inode` by `lookups`. At zero it is closed, and freed if it
    /// has no link.
    pub(crate) fn forget(&self, inode: InodeNr, lookups: u64) {
        let shard = self.shard(inode);
        let gone = {
            let mut known = shard.known.lock();
            let Entry::Occupied(mut entry) = known.nodes.entry(inode) else {
                return;
            };
            let left = entry.get().lookups.saturating_sub(lookups);
            entry.get_mut().lookups = left;
            let gone = (left == 0).then(|| entry.remove());
            known.closing += usize::from(gone.is_some());
            gone
        };
        if let Some(node) = gone {
            shard.close(node);
        }
    }

    /// Resets all lookup counts: the kernel knows no inode any more. Waits for workers that are
    /// still closing inodes.
    pub(crate) fn forget_all(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut shard.known.lock().nodes);
            nodes.into_values().for_each(Node::close);
            let mut known = shard.known.lock();
            while known.closing > 0 {
                shard.all_closed.wait(&mut known);
            }
        }
    }

    /// The lookup count of `inode`.
    #[cfg(test)]
    pub(crate) fn lookups(&self, inode: InodeNr) -> u64 {
        let known = self.shard(inode).known.lock();
        known.nodes.get(&inode).map_or(0, |node| node.lookups)
    }
}
