//! **Purpose.** Fast commits without a file system, so that what they cost can be measured alone,
//! beside other ways to make the same records.
//!
//! **Model.** New files are listed as a plan that creates a file lists them: the inode, and its
//! name in a directory. A sync makes the records of everything listed, unless a commit since has
//! covered the file. There is no device: records are durable when they are made. A full commit
//! begins the next transaction and writes nothing.
//!
//! **Locking.** A core's transaction id is locked while it lists a file, as an open handle keeps
//! the transaction from its end. The committer takes its own lock, and for a full commit those of
//! all cores, in order.

use fourscore_journal::{Covered, FastCommit, FastCommitRequest};
use fourscore_ondisk::{InodeNr, Tid};
use fourscore_sync::{CoreNr, Mutex, PerCore};

use super::FastCommits;
use super::note::{Life, Note, Notes, Room, Space};
use super::time::Time;
use crate::inode::last_change::LastChange;
use crate::txn::faults::Faults;

const BLOCK_BYTES: usize = 4096;
/// Inodes of 256 bytes.
const INODES_PER_BLOCK: u32 = 16;
/// 256 MiB: no fast commit of the lab is larger.
const AREA_BLOCKS: u32 = 1 << 16;
/// The space that a name of up to 16 bytes takes in a directory.
const ENTRY_BYTES: u32 = 24;

/// The fast commits of a mount, alone.
#[derive(Debug)]
pub struct FastCommitsAlone {
    commits: FastCommits,
    cores: PerCore<Mutex<Core>>,
    committer: Mutex<Committer>,
}

/// What a core lists files with.
#[derive(Debug)]
struct Core {
    tid: Tid,
    notes: Notes,
}

impl Default for Core {
    fn default() -> Self {
        Self {
            tid: Tid(1),
            notes: Notes::default(),
        }
    }
}

#[derive(Debug)]
struct Committer {
    tid: Tid,
    /// Whether the transaction has had no fast commit.
    is_first: bool,
}

/// When a file was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeTime {
    /// The transaction.
    pub transaction: u32,
    /// The time of the logical clock.
    pub time: u64,
}

impl Default for FastCommitsAlone {
    fn default() -> Self {
        let faults = Faults::default();
        Self {
            commits: FastCommits::with(BLOCK_BYTES, INODES_PER_BLOCK, AREA_BLOCKS, faults),
            cores: PerCore::default(),
            committer: Mutex::new(Committer {
                tid: Tid(1),
                is_first: true,
            }),
        }
    }
}

impl FastCommitsAlone {
    /// Lists a new file: inode `nr`, whose bytes on disk are `image`, with `name` in `dir`.
    pub fn create(&self, dir: InodeNr, nr: InodeNr, name: &[u8], image: &[u8]) -> ChangeTime {
        let last = LastChange::new();
        let mut core = self.cores.mine().lock();
        let Core { tid, notes } = &mut *core;
        notes.clear();
        let bytes = notes.keep(image);
        let life = Life::New;
        notes.push(Note::Image { nr, life, bytes });
        let name = notes.keep(name);
        let room = Room {
            space: Space::All,
            gap: u32::MAX,
            needed: ENTRY_BYTES,
        };
        notes.push(Note::Added {
            dir,
            nr,
            name,
            room,
        });
        self.commits.list(*tid, notes, &[&last]);
        ChangeTime {
            transaction: tid.0,
            time: last.time().0,
        }
    }

    /// Makes the file durable that was created at `change`. Returns the number of records that the
    /// call made: none if an earlier commit covers the file.
    pub fn sync(&self, nr: InodeNr, change: ChangeTime) -> u64 {
        let (tid, time) = (Tid(change.transaction), Time(change.time));
        let is_covered = || self.commits.covered(nr, tid, time) == Covered::Yes;
        if is_covered() {
            return 0;
        }
        let mut committer = self.committer.lock();
        if is_covered() || tid != committer.tid {
            return 0;
        }
        let before = self.commits.counts().records;
        let made = self.commits.records(&FastCommitRequest {
            tid,
            is_first: committer.is_first,
            room_blocks: AREA_BLOCKS,
            dirty_blocks: u32::MAX / 8,
            most_blocks: u32::MAX / 4,
        });
        match made {
            FastCommit::Records(records) => {
                committer.is_first = false;
                self.commits.are_durable(records);
            }
            FastCommit::Nothing => self.commits.are_durable(Vec::new()),
            FastCommit::InFull => self.begin_next(&mut committer),
        }
        self.commits.counts().records - before
    }

    /// Makes everything durable by a full commit: the next transaction begins.
    pub fn full_commit(&self) {
        self.begin_next(&mut self.committer.lock());
    }

    fn begin_next(&self, committer: &mut Committer) {
        let mut cores: Vec<_> = CoreNr::all()
            .map(|core| self.cores.of(core).lock())
            .collect();
        committer.tid = Tid(committer.tid.0.wrapping_add(1));
        committer.is_first = true;
        for core in &mut cores {
            core.tid = committer.tid;
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const DIR: InodeNr = InodeNr(2);
    const IMAGE: [u8; 160] = [7; 160];

    #[test]
    fn one_sync_makes_all_files_durable_and_a_full_commit_those_of_its_transaction() {
        let commits = FastCommitsAlone::default();
        let create = |nr: u32| {
            let nr = InodeNr(nr);
            (
                nr,
                commits.create(DIR, nr, nr.to_string().as_bytes(), &IMAGE),
            )
        };
        let first: Vec<_> = (20..120).map(create).collect();
        let (nr, change) = first[50];
        // An inode and a name for each, and the inode that comes first once more.
        assert_eq!(commits.sync(nr, change), 201);
        let is_durable = |&(nr, change): &(InodeNr, ChangeTime)| commits.sync(nr, change) == 0;
        assert!(first.iter().all(is_durable));
        let second: Vec<_> = (120..130).map(create).collect();
        commits.full_commit();
        assert!(second.iter().all(is_durable));
        let (nr, change) = create(130);
        assert_eq!(commits.sync(nr, change), 3);
        assert!(is_durable(&(nr, change)));
    }
}
