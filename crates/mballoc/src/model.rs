//! **Purpose.** Model-checked tests: several threads change one structure, in many interleavings
//! (`cargo test -p fourscore-mballoc --features shuttle`).

mod grow;
mod shortage;

use std::collections::BTreeSet;

use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock, Tid};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::model::check;
use fourscore_sync::{Arc, CoreNr, Mutex, thread};

use crate::allocator::{Allocator, Options};
use crate::bitset::BitSet;
use crate::error::Error;
use crate::geometry::{ClusterCount, LogicalCluster, Run};
use crate::order_index::{Bins, Direction};
use crate::pending::Stamp;
use crate::prealloc::FilePrealloc;
use crate::request::{Request, Sizing};
use crate::stats::Count;
use crate::testdisk::{Disk, geometry};
use crate::tokens::{Privilege, Tokens};
use crate::tunables::Tunable;

const SCHEDULES: usize = 400;

/// Runs `body` on each of `threads` threads and waits for them.
fn on_threads<T: Send + Sync + 'static>(shared: &Arc<T>, threads: u32, body: fn(&T, u32)) {
    let handles: Vec<_> = (0..threads)
        .map(|t| {
            let shared = Arc::clone(shared);
            thread::spawn(move || body(&shared, t))
        })
        .collect();
    handles
        .into_iter()
        .for_each(|handle| handle.join().unwrap());
}

#[test]
fn a_bit_set_hides_no_member_once_no_change_is_in_progress() {
    check(SCHEDULES * 5, || {
        // Members 0 and 1 share a leaf word, 100 only a summary word with them.
        let set = Arc::new(BitSet::new(130));
        set.insert(100);
        on_threads(&set, 3, |set, t| {
            let member = [0, 1, 100][t as usize];
            set.insert(member);
            set.remove(member);
            // The thread that removes 0 inserts nothing later, which could restore a lost bit.
            if t == 1 {
                set.insert(member);
            }
        });
        set.assert_summaries();
        assert_eq!(set.next_at_or_after(0), Some(1));
        assert_eq!(set.next_at_or_after(2), None);
    });
}

#[test]
fn a_bin_is_searched_as_long_as_it_has_a_group() {
    check(SCHEDULES * 5, || {
        let bins = Arc::new(Bins::new(3, 70));
        on_threads(&bins, 2, |bins, t| {
            let group = GroupNr(t * 65);
            bins.insert(1, group);
            bins.insert(2, group);
            bins.remove(1, group);
        });
        let found: Vec<_> = bins.walk(0..3, Direction::Upward, GroupNr(0), 70).collect();
        assert_eq!(found, [GroupNr(0), GroupNr(65)]);
    });
}

#[test]
fn tokens_are_neither_made_nor_lost() {
    check(SCHEDULES, || {
        let tokens = Arc::new((Tokens::new(10, 3, 0), Mutex::new(0_u64)));
        on_threads(&tokens, 3, |(tokens, out), t| {
            let privilege = [Privilege::User, Privilege::Root, Privilege::User][t as usize];
            for wanted in [4, 3] {
                if let Ok(taken) = tokens.take(CoreNr::current(), wanted, privilege) {
                    *out.lock() += wanted;
                    assert!(
                        *out.lock() <= 10,
                        "more tokens are taken than there are clusters"
                    );
                    *out.lock() -= wanted;
                    tokens.give_back(CoreNr::current(), taken);
                }
            }
        });
        assert_eq!(tokens.0.total(), 10);
        let all = tokens.0.take(CoreNr::current(), 10, Privilege::Root);
        tokens.0.give_back(CoreNr::current(), all.unwrap());
    });
}

/// An allocator on a disk of two small groups.
struct Small {
    disk: Arc<Disk>,
    allocator: Allocator,
    file: Arc<FilePrealloc>,
    /// Requests that got their full length.
    whole: AtomicU64,
}

impl Small {
    fn new() -> Arc<Self> {
        let geometry = geometry(2, 24);
        let disk = Arc::new(Disk::new(geometry));
        let options = Options {
            durable: Tid(0),
            root_clusters: 0,
            reserved_clusters: 0,
            fast_commits: false,
        };
        let allocator = Allocator::new(geometry, Box::new(Arc::clone(&disk)), options);
        // No locality groups: every request streams, with a preallocation of its inode.
        allocator.tunables().set(Tunable::MbStreamReq, 0).unwrap();
        Arc::new(Self {
            disk,
            allocator,
            file: Arc::new(FilePrealloc::default()),
            whole: AtomicU64::new(0),
        })
    }

    fn get(&self, logical: u32, len: u32, sizing: Sizing, tid: Tid) -> Option<Run> {
        let request = Request::data(
            InodeNr(12),
            LogicalCluster(logical),
            ClusterCount(len),
            PhysBlock(1),
        );
        let request = Request { sizing, ..request };
        let mut reservation = match self.allocator.reserve(u64::from(len), Privilege::User) {
            Ok(reservation) => reservation,
            Err(Error::NoSpace { .. } | Error::CommitFirst { .. }) => return None,
            Err(error) => panic!("{error}"),
        };
        let claim = self
            .allocator
            .allocate(&request, Some(&self.file), &mut reservation)
            .unwrap();
        self.allocator.unreserve(reservation);
        let run = claim.run();
        let is_whole = run.len.0 == len;
        self.whole.fetch_add(u64::from(is_whole), Ordering::Relaxed);
        self.disk.apply(claim.change());
        self.allocator.mark(claim, tid);
        Some(run)
    }

    fn put(&self, run: Run, tid: Tid) {
        let freeing = self.allocator.begin_free(run).unwrap();
        self.disk.apply(freeing.change());
        self.allocator.finish_free(freeing, tid, Stamp(0));
    }

    /// Discards preallocations, releases all pending clusters, and compares with the disk.
    fn settle(&self) {
        self.allocator.discard_preallocations();
        self.allocator.set_durable(Tid(9));
        assert_eq!(self.allocator.sweep(), 0);
        self.allocator.check().unwrap();
        let whole = self.whole.load(Ordering::Relaxed);
        assert_eq!(self.allocator.mb_stats()[Count::Success], whole);
        assert_eq!(self.allocator.free_clusters(), self.disk.free());
        self.disk.assert_same(&self.allocator);
    }
}

#[test]
fn no_cluster_is_allocated_twice_while_groups_are_evicted_and_loaded() {
    check(SCHEDULES, || {
        let small = Small::new();
        on_threads(&small, 3, |small, t| {
            if t == 2 {
                small.allocator.evict_idle(2);
                small.allocator.evict_idle(2);
                return;
            }
            let run = small.get(0, 5, Sizing::Exact, Tid(1)).unwrap();
            small.put(run, Tid(1));
            small.get(0, 3, Sizing::Exact, Tid(1)).unwrap();
        });
        small.settle();
    });
}

#[test]
fn two_writers_of_one_file_share_its_preallocation() {
    check(SCHEDULES, || {
        let small = Small::new();
        on_threads(&small, 2, |small, t| {
            let logical = t * 2;
            small.get(logical, 2, Sizing::Normalize, Tid(1)).unwrap();
            if t == 0 {
                small.allocator.discard(&small.file);
            }
        });
        small.settle();
    });
}

#[test]
fn a_commit_releases_clusters_freed_before_or_after_it() {
    check(SCHEDULES, || {
        let small = Small::new();
        let run = small.get(0, 20, Sizing::Exact, Tid(1)).unwrap();
        let other = small.get(0, 20, Sizing::Exact, Tid(1)).unwrap();
        assert_ne!(run.group, other.group);
        let shared = Arc::new((Arc::clone(&small), run));
        on_threads(&shared, 3, |(small, run), t| match t {
            0 => small.put(*run, Tid(2)),
            1 => {
                small.allocator.set_durable(Tid(2));
                small.allocator.sweep();
            }
            _ => {
                // Eight clusters are free; twenty more come with the commit, or later.
                if let Some(got) = small.get(0, 9, Sizing::Exact, Tid(3)) {
                    assert!(got.len.0 >= 1);
                }
            }
        });
        small.settle();
    });
}

#[test]
fn the_last_clusters_go_to_the_holders_of_tokens() {
    check(SCHEDULES, || {
        let small = Small::new();
        let got = Arc::new((small, Mutex::new(BTreeSet::new())));
        on_threads(&got, 3, |(small, got), t| {
            // Forty-eight clusters for three requests of sixteen, in any pieces.
            let mut left = 16;
            while left > 0 {
                let run = small
                    .get(t * 100 + 16 - left, left, Sizing::Exact, Tid(1))
                    .unwrap();
                left -= run.len.0;
                assert!(got.lock().insert((run.group, run.start)));
            }
        });
        assert_eq!(got.0.disk.free(), 0);
        got.0.settle();
    });
}
