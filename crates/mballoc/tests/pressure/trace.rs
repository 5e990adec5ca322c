//! **Purpose.** A seeded trace of requests as of a file system in use: appends, small files,
//! fallocate, metadata, and frees that keep the number of used clusters constant.

use std::collections::VecDeque;

use fourscore_mballoc::{
    Allocator, ClusterCount, Error, FilePrealloc, LogicalCluster, Neighbour, Options, Privilege,
    Request, Run, Sizing, Stamp, Writers,
};
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, PhysBlock, Tid};
use fourscore_sync::Arc;

use crate::aged::{Aged, Random, geometry};

/// Files that grow at the same time.
const FILES: u32 = 32;
/// A file that has grown to this many clusters is closed and replaced by another one.
const FILE_CLUSTERS: u32 = 400;
/// Steps between commits.
const COMMIT_STEPS: u32 = 50;

struct File {
    inode: InodeNr,
    goal: PhysBlock,
    prealloc: Arc<FilePrealloc>,
    len: u32,
    last: Option<Run>,
}

/// A trace in progress.
pub(crate) struct Trace {
    pub(crate) allocator: Allocator,
    random: Random,
    files: Vec<File>,
    inodes: u32,
    tid: Tid,
    /// The runs allocated and not freed, oldest first, and their number of clusters.
    held: VecDeque<Run>,
    held_clusters: u64,
    most_held: u64,
    /// Files written, and the extents they got.
    pub(crate) written: u64,
    pub(crate) extents: u64,
}

impl Trace {
    pub(crate) fn new(groups: u32, aged: Aged, seed: u64) -> Self {
        let options = Options {
            durable: Tid(0),
            root_clusters: 0,
            reserved_clusters: 0,
            fast_commits: false,
        };
        let allocator = Allocator::new(geometry(groups), Box::new(aged), options);
        let most_held = allocator.free_clusters() / 4;
        let mut trace = Self {
            allocator,
            random: Random::new(seed),
            files: Vec::new(),
            inodes: 11,
            tid: Tid(1),
            held: VecDeque::new(),
            held_clusters: 0,
            most_held,
            written: 0,
            extents: 0,
        };
        for _ in 0..FILES {
            let file = trace.new_file();
            trace.files.push(file);
        }
        trace
    }

    fn new_file(&mut self) -> File {
        self.inodes += 1;
        let groups = self.allocator.geometry().groups();
        let group = GroupNr(self.random.below(groups));
        File {
            inode: InodeNr(self.inodes),
            goal: self.allocator.geometry().block_of(group, GroupOffset(0)),
            prealloc: Arc::new(FilePrealloc::default()),
            len: 0,
            last: None,
        }
    }

    pub(crate) fn run(&mut self, steps: u32) {
        for step in 0..steps {
            match self.random.below(10) {
                0..=4 => self.append(),
                5..=6 => self.small_file(),
                7..=8 => self.fallocate(),
                _ => self.metadata(),
            }
            self.free_surplus();
            if step % COMMIT_STEPS == 0 {
                self.allocator.set_durable(self.tid);
                self.allocator.sweep();
                self.tid = self.tid.next();
            }
        }
    }

    fn append(&mut self) {
        let at = self.random.below(FILES) as usize;
        let mut file = self.files.swap_remove(at);
        if file.len > FILE_CLUSTERS {
            self.allocator.discard(&file.prealloc);
            self.written += 1;
            file = self.new_file();
        }
        let len = 1 + self.random.below(64);
        self.grow(&mut file, len, Sizing::Normalize, Writers::Open);
        self.files.push(file);
    }

    fn small_file(&mut self) {
        let mut file = self.new_file();
        let len = 1 + self.random.below(16);
        self.written += 1;
        self.grow(&mut file, len, Sizing::Normalize, Writers::Closed);
    }

    fn fallocate(&mut self) {
        let mut file = self.new_file();
        let len = 1 + self.random.below(100);
        self.written += 1;
        self.grow(&mut file, len, Sizing::Exact, Writers::Open);
    }

    fn metadata(&mut self) {
        let goal = self.new_file().goal;
        let request = Request::metadata(InodeNr(7), ClusterCount(1), goal);
        self.get(&request, None);
    }

    /// Appends `len` clusters to a file, in as many extents as it takes.
    fn grow(&mut self, file: &mut File, len: u32, sizing: Sizing, writers: Writers) {
        let end = file.len + len;
        while file.len < end {
            let geometry = self.allocator.geometry();
            let left = file.last.map(|run| Neighbour {
                logical: LogicalCluster(file.len - 1),
                block: PhysBlock(geometry.first_block(&run).0 + u64::from(run.len.0) - 1),
            });
            let (logical, wanted) = (LogicalCluster(file.len), ClusterCount(end - file.len));
            let request = Request {
                left,
                sizing,
                writers,
                size: ClusterCount(end),
                ..Request::data(file.inode, logical, wanted, file.goal)
            };
            let run = self.get(&request, Some(&file.prealloc));
            let continues = |last: Run| last.group == run.group && last.end() == run.start.0;
            self.extents += u64::from(!file.last.is_some_and(continues));
            file.last = Some(run);
            file.len += run.len.0;
        }
    }

    fn get(&mut self, request: &Request, prealloc: Option<&Arc<FilePrealloc>>) -> Run {
        let clusters = u64::from(request.len.0);
        let mut reservation = match self.allocator.reserve(clusters, Privilege::User) {
            Err(Error::CommitFirst { .. }) => {
                self.allocator.set_durable(self.tid);
                self.tid = self.tid.next();
                self.allocator.reserve(clusters, Privilege::User).unwrap()
            }
            reservation => reservation.unwrap(),
        };
        let claim = self
            .allocator
            .allocate(request, prealloc, &mut reservation)
            .unwrap();
        self.allocator.unreserve(reservation);
        let run = claim.run();
        self.allocator.mark(claim, self.tid);
        self.held.push_back(run);
        self.held_clusters += u64::from(run.len.0);
        run
    }

    /// Frees random runs until at most `most_held` clusters are held.
    fn free_surplus(&mut self) {
        while self.held_clusters > self.most_held {
            let at = self.random.below(u32::try_from(self.held.len()).unwrap());
            let Some(run) = self.held.swap_remove_front(at as usize) else {
                return;
            };
            self.held_clusters -= u64::from(run.len.0);
            let freeing = self.allocator.begin_free(run).unwrap();
            self.allocator.finish_free(freeing, self.tid, Stamp(0));
        }
    }
}
