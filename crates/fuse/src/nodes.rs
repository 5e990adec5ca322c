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
//! **Locking.** A shard's lock, never while the library is called.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fourscore::{Fs, InodeNr, OpenInode};
use fourscore_sync::{CachePadded, Mutex};

use crate::abi::ROOT_ID;
use crate::reply::Errno;

/// So many that workers seldom meet in one.
const SHARDS: usize = 256;

/// The inodes in use.
#[derive(Debug)]
pub(crate) struct Nodes<'f> {
    fs: &'f Fs,
    shards: Box<[Shard<'f>]>,
}

type Shard<'f> = CachePadded<Mutex<HashMap<InodeNr, Node<'f>>>>;

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
        let shards = (0..SHARDS).map(|_| CachePadded::new(Mutex::new(HashMap::new())));
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
        if let Some(node) = self.shard(inode).lock().get_mut(&inode) {
            node.uses += 1;
            return Ok(());
        }
        self.enter(OpenInode::new(self.fs, inode)?);
        Ok(())
    }

    /// Counts a use of an inode that was just opened.
    pub(crate) fn enter(&self, open: OpenInode<&'f Fs>) {
        let inode = open.inode();
        let surplus = match self.shard(inode).lock().entry(inode) {
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
        let gone = match self.shard(inode).lock().entry(inode) {
            Entry::Vacant(_) => return,
            Entry::Occupied(mut entry) => {
                let left = entry.get().uses.saturating_sub(uses);
                entry.get_mut().uses = left;
                (left == 0).then(|| entry.remove())
            }
        };
        if let Some(node) = gone {
            node.close();
        }
    }

    /// Takes all uses back: the kernel knows nothing any more.
    pub(crate) fn forget_all(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            nodes.into_values().for_each(Node::close);
        }
    }

    /// How often `inode` is in use.
    #[cfg(test)]
    pub(crate) fn uses(&self, inode: InodeNr) -> u64 {
        let shard = self.shard(inode).lock();
        shard.get(&inode).map_or(0, |node| node.uses)
    }
}
