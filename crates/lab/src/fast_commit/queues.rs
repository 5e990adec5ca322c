//! **Purpose.** The bases: one queue of inodes and one of names, as ext4 has them. Before Linux
//! 5.18 a commit searched the queue of inodes for the inode of each name; since then a name refers
//! to it.
//!
//! **Model.** An inode in the queue has the place of the next one, so that a search reads each
//! inode before it knows the next: it is a list whose items lie apart, as in the kernel.
//!
//! **Locking.** One lock for both queues, which a commit keeps until its records are made.

use std::mem;

use fourscore_ondisk::fast_commit::{Dentry, FastCommitBlocks, Record};
use fourscore_ondisk::{InodeNr, Tid};
use fourscore_sync::atomic::Ordering;
use fourscore_sync::{Arc, Mutex};

use super::{FastCommit, Inode, is_listed};

const BLOCK_BYTES: usize = 4096;
/// Behind the last inode of the queue.
const END: u64 = u64::MAX;

/// How a commit finds the inode of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Find {
    /// By a walk over the queue of inodes.
    Search,
    /// The name refers to it.
    Link,
}

/// The queues.
#[derive(Debug)]
pub struct Queues {
    find: Find,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Arc<Inode>>,
    names: Vec<Name>,
    /// Memory for records.
    records: Vec<u8>,
}

#[derive(Debug)]
struct Name {
    dir: InodeNr,
    inode: InodeNr,
    /// The inode's place in the queue.
    link: usize,
    name: Box<str>,
}

impl Queues {
    /// As before Linux 5.18.
    #[must_use]
    pub fn searched() -> Self {
        Self::with(Find::Search)
    }

    /// As since then.
    #[must_use]
    pub fn linked() -> Self {
        Self::with(Find::Link)
    }

    fn with(find: Find) -> Self {
        Self {
            find,
            state: Mutex::default(),
        }
    }
}

impl State {
    /// Walks over the queue from its head.
    fn search(&self, nr: InodeNr) -> Option<&Inode> {
        let mut next = 0;
        loop {
            let inode = self.inodes.get(usize::try_from(next).ok()?)?;
            if inode.nr == nr {
                return Some(inode);
            }
            next = inode.word.load(Ordering::Relaxed);
        }
    }

    /// Makes the records, and returns their number.
    fn commit(&mut self, find: Find) -> u64 {
        let memory = mem::take(&mut self.records);
        let (mut blocks, mut records) = (FastCommitBlocks::in_memory_of(memory, BLOCK_BYTES), 0);
        for name in &self.names {
            let found = match find {
                Find::Search => self.search(name.inode),
                Find::Link => self.inodes.get(name.link).map(|inode| &**inode),
            };
            let Some(found) = found else { continue };
            let (inode, raw) = (found.nr, &found.raw[..]);
            blocks.push(&Record::Inode { inode, raw });
            blocks.push(&Record::Creat(Dentry {
                parent: name.dir,
                inode,
                name: name.name.as_bytes(),
            }));
            records += 2;
        }
        self.records = blocks.end(Tid(1));
        self.clear();
        records
    }

    fn clear(&mut self) {
        for inode in self.inodes.drain(..) {
            inode.is_listed.store(false, Ordering::Release);
        }
        self.names.clear();
    }
}

impl FastCommit for Queues {
    fn name(&self) -> &'static str {
        match self.find {
            Find::Search => "quadratic",
            Find::Link => "linear",
        }
    }

    fn list(&self, inode: &Arc<Inode>, dir: InodeNr, name: &str) {
        let name = name.into();
        inode.word.store(END, Ordering::Relaxed);
        inode.is_listed.store(true, Ordering::Relaxed);
        let state = &mut *self.state.lock();
        let link = state.inodes.len();
        if let Some(last) = state.inodes.last() {
            last.word.store(link as u64, Ordering::Relaxed);
        }
        state.inodes.push(Arc::clone(inode));
        state.names.push(Name {
            dir,
            inode: inode.nr,
            link,
            name,
        });
    }

    fn sync(&self, inode: &Inode) -> u64 {
        if !is_listed(inode) {
            return 0;
        }
        let state = &mut *self.state.lock();
        match is_listed(inode) {
            true => state.commit(self.find),
            false => 0,
        }
    }

    fn full_commit(&self) {
        self.state.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_the_same_inodes() {
        let made = [Queues::searched(), Queues::linked()].map(|queues| {
            let inodes = (0..300).map(|nr| Arc::new(Inode::new(InodeNr(100 + nr * 7 % 300))));
            let inodes: Vec<_> = inodes.collect();
            for inode in &inodes {
                queues.list(inode, InodeNr(2), &format!("f{}", inode.nr.0));
            }
            assert_eq!(queues.sync(&inodes[7]), 600);
            assert!(inodes.iter().all(|inode| queues.sync(inode) == 0));
            let state = queues.state.lock();
            assert!(state.inodes.is_empty() && state.names.is_empty());
            state.records.clone()
        });
        assert_eq!(made[0], made[1]);
        assert!(made[0].len() > 300 * 160);
    }
}
