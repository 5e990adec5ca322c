//! **Purpose.** Which inodes the kernel knows. As long as it knows one, its number stays its own,
//! with a name or without.
//!
//! **Model.** A node is an inode's number; the root's are 1 there and 2 here. Each reply that tells
//! the kernel of an inode counts one use, and the kernel says with FORGET how many it gives back.
//! An inode that is in use is open in the library, so a file that was removed while somebody has it
//! open needs no handle of its own.
//!
//! A name leads to its inode when that is entered here, since the kernel holds the directory while
//! it looks up or makes a name, and nobody but the kernel changes the file system.
//!
//! The kernel waits for no FORGET, and ends a mount while some are on their way through other
//! workers. Who takes all uses back therefore waits for those whose inodes are still being closed:
//! the file system is frozen next, and nothing could be freed then.
//!
//! **Locking.** A shard's lock, never while the library is called.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fourscore::{Fs, InodeNr, OpenInode};
use fourscore_sync::{CachePadded, Condvar, Mutex};

use crate::abi::ROOT_ID;
use crate::reply::Errno;

/// So many that workers seldom meet in one.
const SHARDS: usize = 256;

/// The inodes in use.
#[derive(Debug)]
pub(crate) struct Nodes<'f> {
    fs: &'f Fs,
    shards: Box<[CachePadded<Shard<'f>>]>,
}

/// Some of the inodes.
#[derive(Debug, Default)]
struct Shard<'f> {
    known: Mutex<Known<'f>>,
    /// That the last one that was being closed is.
    all_closed: Condvar,
}

#[derive(Debug, Default)]
struct Known<'f> {
    nodes: HashMap<InodeNr, Node<'f>>,
    /// How many were taken out and are not closed yet.
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
    uses: u64,
    open: OpenInode<&'f Fs>,
}

impl Node<'_> {
    fn close(self) {
        let inode = self.open.inode();
        if let Err(error) = self.open.close() {
            tracing::warn!(inode = inode.0, %error, "what is left is freed at the next mount");
        }
    }
}

impl<'f> Nodes<'f> {
    pub(crate) fn new(fs: &'f Fs) -> Self {
        let shards = (0..SHARDS).map(|_| CachePadded::default());
        Self {
            fs,
            shards: shards.collect(),
        }
    }

    fn shard(&self, inode: InodeNr) -> &Shard<'f> {
        &self.shards[inode.0 as usize % SHARDS]
    }

    /// The inode of a node.
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

    /// The node of an inode.
    pub(crate) fn node(inode: InodeNr) -> u64 {
        match inode {
            InodeNr::ROOT => ROOT_ID,
            InodeNr(number) => number.into(),
        }
    }

    /// Counts a use of `inode`.
    ///
    /// # Errors
    /// `EUCLEAN` for an inode that no name may lead to; those of [`OpenInode::new`].
    pub(crate) fn count(&self, inode: InodeNr) -> Result<(), Errno> {
        if inode == InodeNr::ROOT {
            // The kernel knows it for as long as there is a mount.
            return Ok(());
        }
        if !self.fs.superblock().may_be_named(inode) {
            tracing::warn!(inode = inode.0, "a name leads to a reserved inode");
            return Err(Errno::UCLEAN);
        }
        if let Some(node) = self.shard(inode).known.lock().nodes.get_mut(&inode) {
            node.uses += 1;
            return Ok(());
        }
        self.enter(OpenInode::new(self.fs, inode)?);
        Ok(())
    }

    /// Counts a use of an inode that was just opened.
    pub(crate) fn enter(&self, open: OpenInode<&'f Fs>) {
        let inode = open.inode();
        let surplus = match self.shard(inode).known.lock().nodes.entry(inode) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().uses += 1;
                Some(open)
            }
            Entry::Vacant(entry) => {
                entry.insert(Node { uses: 1, open });
                None
            }
        };
        drop(surplus);
    }

    /// Takes `uses` of `inode` back. If they were the last ones, and no name leads to it, it goes.
    pub(crate) fn forget(&self, inode: InodeNr, uses: u64) {
        let shard = self.shard(inode);
        let gone = {
            let mut known = shard.known.lock();
            let Entry::Occupied(mut entry) = known.nodes.entry(inode) else {
                return;
            };
            let left = entry.get().uses.saturating_sub(uses);
            entry.get_mut().uses = left;
            let gone = (left == 0).then(|| entry.remove());
            known.closing += usize::from(gone.is_some());
            gone
        };
        if let Some(node) = gone {
            shard.close(node);
        }
    }

    /// Takes all uses back: the kernel knows nothing any more. Waits for those who are about to
    /// close what they were told to forget.
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

    /// How often `inode` is in use.
    #[cfg(test)]
    pub(crate) fn uses(&self, inode: InodeNr) -> u64 {
        let known = self.shard(inode).known.lock();
        known.nodes.get(&inode).map_or(0, |node| node.uses)
    }
}
