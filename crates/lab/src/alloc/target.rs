//! **Purpose.** The bare allocator as a target of workloads: a file is a list of extents, a commit
//! is a number that grows.
//!
//! **Model.** What the file system would do around the allocator, without the rest of it: reserve
//! tokens, allocate, mark in the running transaction, free at truncation. When a request needs a
//! commit first, the worker makes one on the spot, as it would wait for one.
//!
//! **Locking.** The transaction's number is read by all and written once a commit.

use std::io;

use fourscore_mballoc::geometry::LogicalCluster;
use fourscore_mballoc::{
    Allocator, ClusterCount, Content, Error, FilePrealloc, Neighbour, Options, Privilege, Request,
    Run, Sizing, Stamp, Writers,
};
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, PhysBlock, Tid};
use fourscore_sync::atomic::{AtomicU32, Ordering};
use fourscore_sync::{Arc, CachePadded, Counter, Mutex};

use crate::alloc::outcome::Commits;
use crate::alloc::ram::{RamGroups, RamSource};
use crate::target::{FileNr, Operation, Target, Worker, WorkerNr};

/// Whether bitmaps are kept up to date beside the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Every change is applied and checked; the run measures that as well.
    Applied,
    /// The allocator's memory is all there is.
    Dropped,
}

/// The allocator on a file system in memory.
#[derive(Debug)]
pub struct AllocTarget {
    groups: Arc<RamGroups>,
    allocator: Allocator,
    changes: Changes,
    /// As ext4 with delayed allocation: every file of a directory has the same goal, the first
    /// block of the group behind the directory's flex group's first.
    goal: PhysBlock,
    tid: CachePadded<AtomicU32>,
    commit: Mutex<()>,
    periodic: Counter,
    on_demand: Counter,
    extents: Counter,
    allocations: Counter,
}

impl AllocTarget {
    /// An allocator with nothing loaded on these groups.
    #[must_use]
    pub fn new(groups: Arc<RamGroups>, changes: Changes) -> Self {
        let source = Box::new(RamSource(Arc::clone(&groups)));
        let options = Options {
            durable: Tid(0),
            root_clusters: 0,
            reserved_clusters: 0,
        };
        let geometry = *groups.geometry();
        let allocator = Allocator::new(geometry, source, options);
        Self {
            groups,
            allocator,
            changes,
            goal: geometry.block_of(GroupNr(1.min(geometry.groups() - 1)), GroupOffset(0)),
            tid: CachePadded::new(AtomicU32::new(1)),
            commit: Mutex::new(()),
            periodic: Counter::default(),
            on_demand: Counter::default(),
            extents: Counter::default(),
            allocations: Counter::default(),
        }
    }

    /// The allocator.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Commits made so far.
    #[must_use]
    pub fn commits(&self) -> Commits {
        Commits {
            periodic: self.periodic.sum(),
            on_demand: self.on_demand.sum(),
        }
    }

    /// Extents that files got: pieces that did not continue the one before. Those of workers that
    /// have ended.
    #[must_use]
    pub fn extents(&self) -> u64 {
        self.extents.sum()
    }

    /// Requests to the allocator, of workers that have ended.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.allocations.sum()
    }

    /// Loads all groups, as a file system that has been mounted for a while.
    ///
    /// # Errors
    /// The first group's that cannot be loaded.
    pub fn load_all(&self) -> io::Result<()> {
        (0..self.allocator.geometry().groups())
            .try_for_each(|group| self.allocator.load(GroupNr(group)))
            .map_err(io::Error::other)
    }

    /// Makes all that was freed so far free.
    pub fn commit(&self) {
        let _guard = self.commit.lock();
        self.seal();
        self.periodic.add(1);
    }

    /// Waits until a transaction after `seen` runs, for a request that cannot be answered before:
    /// one commit serves all that wait.
    fn commit_after(&self, seen: Tid) {
        let _guard = self.commit.lock();
        if self.tid() == seen {
            self.seal();
            self.on_demand.add(1);
        }
    }

    /// Ends the running transaction, under the lock.
    fn seal(&self) {
        let sealed = self.tid.fetch_add(1, Ordering::AcqRel);
        self.allocator.set_durable(Tid(sealed));
        self.allocator.sweep();
    }

    fn tid(&self) -> Tid {
        Tid(self.tid.load(Ordering::Relaxed))
    }
}

impl Target for AllocTarget {
    fn name(&self) -> String {
        "bare allocator".to_owned()
    }

    fn worker(&self, nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
        let nr = u32::try_from(nr.0).map_err(io::Error::other)?;
        Ok(Box::new(AllocWorker {
            target: self,
            nr,
            files: Vec::new(),
            allocations: 0,
            extents: 0,
        }))
    }
}

/// A file: what is mapped, in logical order, and its preallocation.
#[derive(Debug, Default)]
struct OpenFile {
    extents: Vec<(u32, Run)>,
    prealloc: Arc<FilePrealloc>,
    /// Clusters, rounded up.
    size: u32,
}

struct AllocWorker<'a> {
    target: &'a AllocTarget,
    nr: u32,
    files: Vec<Option<OpenFile>>,
    /// Counted here and added up in the end, so that counting is no part of what is measured.
    allocations: u64,
    extents: u64,
}

impl Drop for AllocWorker<'_> {
    fn drop(&mut self) {
        self.target.allocations.add(self.allocations);
        self.target.extents.add(self.extents);
    }
}

fn failed(error: Error) -> io::Error {
    match error {
        Error::NoSpace { .. } | Error::CommitFirst { .. } => {
            io::Error::new(io::ErrorKind::StorageFull, error)
        }
        error => io::Error::other(error),
    }
}

/// ext4 asks for no more at once (`EXT_UNWRITTEN_MAX_LEN`).
const MOST_CLUSTERS: u32 = 32_767;

impl AllocWorker<'_> {
    fn file(&mut self, nr: FileNr) -> io::Result<&mut OpenFile> {
        let file = self.files.get_mut(nr.0 as usize).and_then(Option::as_mut);
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create(&mut self, nr: FileNr) -> io::Result<u64> {
        let index = nr.0 as usize;
        if self.files.len() <= index {
            self.files.resize_with(index + 1, || None);
        }
        if self.files[index].is_some() {
            self.truncate(nr, 0)?;
        }
        self.files[index] = Some(OpenFile::default());
        Ok(0)
    }

    fn clusters(&self, bytes: u64) -> io::Result<u32> {
        let cluster_bytes = self.target.groups.geometry().cluster_bytes();
        // A power of two, which the compiler does not know.
        let clusters = (bytes + cluster_bytes - 1) >> cluster_bytes.trailing_zeros();
        u32::try_from(clusters).map_err(io::Error::other)
    }

    /// Maps what is not mapped of `len` bytes at `offset`; workloads only append.
    fn map(&mut self, nr: FileNr, offset: u64, len: u64, sizing: Sizing) -> io::Result<u64> {
        let end = self.clusters(offset + len)?;
        let target = self.target;
        let inode = InodeNr(12 + self.nr + nr.0.wrapping_mul(4096));
        let file = self.files.get_mut(nr.0 as usize).and_then(Option::as_mut);
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        let mut start = file.mapped();
        while start < end {
            let request = target.request(inode, file, (end - start).min(MOST_CLUSTERS), sizing);
            let run = target.get(&request, &file.prealloc)?;
            self.allocations += 1;
            self.extents += u64::from(file.append(run));
            start += run.len.0;
        }
        Ok(len)
    }

    fn truncate(&mut self, nr: FileNr, len: u64) -> io::Result<u64> {
        let keep = self.clusters(len)?;
        let target = self.target;
        let file = self.file(nr)?;
        target.allocator.discard(&file.prealloc);
        while let Some((logical, run)) = file.extents.pop() {
            let kept = keep.saturating_sub(logical).min(run.len.0);
            let (front, rest) = run.split_at(ClusterCount(kept));
            if rest.len.0 > 0 {
                target.put(rest)?;
            }
            if kept > 0 {
                file.extents.push((logical, front));
                break;
            }
        }
        file.size = keep;
        Ok(0)
    }
}

impl OpenFile {
    /// Clusters that are mapped.
    fn mapped(&self) -> u32 {
        self.extents
            .last()
            .map_or(0, |(logical, run)| logical + run.len.0)
    }

    /// Maps a run behind what is mapped; whether it is an extent of its own.
    fn append(&mut self, run: Run) -> bool {
        let start = self.mapped();
        self.size = self.size.max(start + run.len.0);
        match self.extents.last_mut() {
            Some((_, last)) if last.group == run.group && last.end() == run.start.0 => {
                last.len.0 += run.len.0;
                false
            }
            _ => {
                self.extents.push((start, run));
                true
            }
        }
    }
}

impl AllocTarget {
    /// The request for the part of a file behind what is mapped of it.
    fn request(&self, inode: InodeNr, file: &OpenFile, len: u32, sizing: Sizing) -> Request {
        let geometry = self.groups.geometry();
        let start = file.mapped();
        let left = file.extents.last().map(|(logical, run)| Neighbour {
            logical: LogicalCluster(logical + run.len.0 - 1),
            block: PhysBlock(geometry.first_block(run).0 + u64::from(run.len.0) - 1),
        });
        Request {
            left,
            content: Content::Data,
            sizing,
            writers: Writers::Open,
            size: ClusterCount(file.size.max(start + len)),
            ..Request::data(inode, LogicalCluster(start), ClusterCount(len), self.goal)
        }
    }

    /// Allocates and marks.
    fn get(&self, request: &Request, prealloc: &Arc<FilePrealloc>) -> io::Result<Run> {
        loop {
            let seen = self.tid();
            let reserved = self
                .allocator
                .reserve(u64::from(request.len.0), Privilege::User);
            let result = reserved.and_then(|mut reservation| {
                let result = self
                    .allocator
                    .allocate(request, Some(prealloc), &mut reservation);
                self.allocator.unreserve(reservation);
                result
            });
            match result {
                Ok(claim) => {
                    if self.changes == Changes::Applied {
                        self.groups
                            .apply(&claim.change())
                            .map_err(io::Error::other)?;
                    }
                    let run = claim.run();
                    self.allocator.mark(claim, self.tid());
                    return Ok(run);
                }
                Err(Error::CommitFirst { .. }) => self.commit_after(seen),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Frees.
    fn put(&self, run: Run) -> io::Result<()> {
        let freeing = self.allocator.begin_free(run).map_err(failed)?;
        if self.changes == Changes::Applied {
            self.groups
                .apply(&freeing.change())
                .map_err(io::Error::other)?;
        }
        self.allocator.finish_free(freeing, self.tid(), Stamp(0));
        Ok(())
    }
}

impl Worker for AllocWorker<'_> {
    fn apply(&mut self, nr: FileNr, operation: Operation) -> io::Result<u64> {
        match operation {
            Operation::Create => self.create(nr),
            Operation::Open | Operation::Stat | Operation::Read { .. } | Operation::List => {
                Err(io::ErrorKind::Unsupported.into())
            }
            Operation::Fallocate { offset, len } => self.map(nr, offset, len, Sizing::Exact),
            Operation::Write { offset, len } => self.map(nr, offset, len, Sizing::Normalize),
            Operation::Truncate { len } => self.truncate(nr, len),
            Operation::Sync | Operation::SyncAll | Operation::Unlink => Ok(0),
            Operation::Close => {
                let target = self.target;
                target.allocator.discard(&self.file(nr)?.prealloc);
                Ok(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::scenario::Scenario;
    use crate::alloc::workloads::{Fallocate3, MixedAppend, SmallFiles};
    use crate::clock::MonotonicClock;
    use crate::comparison::ThreadCount;
    use crate::workload::{Fallocate2, Until, Workload, drive};

    #[test]
    fn workloads_leave_the_bitmaps_and_the_allocator_of_one_mind() {
        let scenario = Scenario::by_name("16g-aged-64k").unwrap();
        let groups = RamGroups::new(scenario, scenario.geometry().unwrap());
        let target = AllocTarget::new(Arc::clone(&groups), Changes::Applied);
        let workloads: [(&dyn Workload, u64); 4] = [
            (&Fallocate2, 300),
            (&Fallocate3, 5),
            (
                &SmallFiles {
                    file_bytes: 65_536,
                    keep: 20,
                },
                50,
            ),
            (
                &MixedAppend {
                    files: 8,
                    file_bytes: 1 << 20,
                    most_bytes: 300_000,
                },
                100,
            ),
        ];
        for (workload, steps) in workloads {
            let done = drive(
                &target,
                workload,
                ThreadCount::new(4),
                Until::Steps(steps),
                &MonotonicClock::default(),
            );
            assert_eq!(done.unwrap().total().operations, 4 * steps);
        }
        target.commit();
        target.allocator.discard_preallocations();
        target.allocator.check().unwrap();
        assert_eq!(target.allocator.free_clusters(), groups.free_clusters());
        assert!(target.extents() <= target.allocations());
    }
}
