//! **Purpose.** The block allocator alone as a target of workloads. A file is a list of extents,
//! and a commit only increments the transaction's number.
//!
//! **Model.** A worker calls the allocator as the file system would: it reserves clusters,
//! allocates them, marks them in the running transaction, and frees them at truncation. If a
//! request needs a commit first, the worker commits itself, where the file system would wait for a
//! commit.
//!
//! **Locking.** All workers read the transaction's number; a commit writes it under the lock
//! `commit`.

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

/// Whether changes are applied to the bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Every change is applied and checked, which is part of the measured time.
    Applied,
    /// No change is applied: the allocator's own state is the only record.
    Dropped,
}

/// When clusters can be allocated again that were freed in the transaction that allocated them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// At once: no durable state refers to them.
    InTransaction,
    /// After the commit, as in ext4. As there, clusters that wait for it count as free, so a
    /// request fails for lack of space only after a search.
    AfterCommit,
}

/// A model of the file system around the allocator.
pub trait Surroundings: std::fmt::Debug + Send + Sync {
    /// Does what comes with a request to the allocator, of which this is number `nr` of its worker.
    fn request(&self, nr: u64);
}

/// The allocator on a file system in memory.
#[derive(Debug)]
pub struct AllocTarget {
    groups: Arc<RamGroups>,
    allocator: Allocator,
    changes: Changes,
    reuse: Reuse,
    /// The goal of every file: the first block of the second group, as ext4 with delayed allocation
    /// chooses it for all files of a directory in the first flex group.
    goal: PhysBlock,
    tid: CachePadded<AtomicU32>,
    commit: Mutex<()>,
    periodic: Counter,
    on_demand: Counter,
    extents: Counter,
    allocations: Counter,
    surroundings: Option<Arc<dyn Surroundings>>,
}

impl AllocTarget {
    /// An allocator on these groups, with no bitmap loaded.
    #[must_use]
    pub fn new(groups: Arc<RamGroups>, changes: Changes, reuse: Reuse) -> Self {
        let source = Box::new(RamSource(Arc::clone(&groups)));
        let options = Options {
            durable: Tid(0),
            root_clusters: 0,
            reserved_clusters: 0,
            // The allocator need not know why they wait.
            fast_commits: reuse == Reuse::AfterCommit,
        };
        let geometry = *groups.geometry();
        let allocator = Allocator::new(geometry, source, options);
        Self {
            groups,
            allocator,
            changes,
            reuse,
            goal: geometry.block_of(GroupNr(1.min(geometry.groups() - 1)), GroupOffset(0)),
            tid: CachePadded::new(AtomicU32::new(1)),
            commit: Mutex::new(()),
            periodic: Counter::default(),
            on_demand: Counter::default(),
            extents: Counter::default(),
            allocations: Counter::default(),
            surroundings: None,
        }
    }

    /// The allocator as a part of a file system.
    #[must_use]
    pub fn surrounded_by(self, surroundings: Arc<dyn Surroundings>) -> Self {
        Self {
            surroundings: Some(surroundings),
            ..self
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

    /// Extents that were added to files, by workers that have ended. An allocation that continues
    /// the file's last extent adds none.
    #[must_use]
    pub fn extents(&self) -> u64 {
        self.extents.sum()
    }

    /// Requests to the allocator, by workers that have ended.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.allocations.sum()
    }

    /// Loads the bitmaps of all groups.
    ///
    /// # Errors
    /// The error of the first group that cannot be loaded.
    pub fn load_all(&self) -> io::Result<()> {
        (0..self.allocator.geometry().groups())
            .try_for_each(|group| self.allocator.load(GroupNr(group)))
            .map_err(io::Error::other)
    }

    /// Commits the running transaction: the clusters freed in it can be allocated again.
    pub fn commit(&self) {
        let _guard = self.commit.lock();
        self.end_transaction();
        self.periodic.add(1);
    }

    /// Commits transaction `seen`, for a request that needs the clusters freed in it, unless
    /// another worker has committed it meanwhile: one commit serves all waiters.
    fn commit_after(&self, seen: Tid) {
        let _guard = self.commit.lock();
        if self.tid() == seen {
            self.end_transaction();
            self.on_demand.add(1);
        }
    }

    /// Ends the running transaction and makes it durable. The caller holds the lock `commit`.
    fn end_transaction(&self) {
        let ended = self.tid.fetch_add(1, Ordering::AcqRel);
        self.allocator.set_durable(Tid(ended));
        self.allocator.sweep();
    }

    /// The running transaction.
    #[must_use]
    pub fn tid(&self) -> Tid {
        Tid(self.tid.load(Ordering::Relaxed))
    }
}

impl Target for AllocTarget {
    fn name(&self) -> String {
        "allocator alone".to_owned()
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

/// A file.
#[derive(Debug, Default)]
struct OpenFile {
    /// Logical cluster and run of each extent, in logical order.
    extents: Vec<(u32, Run)>,
    prealloc: Arc<FilePrealloc>,
    /// Size in clusters, rounded up.
    size: u32,
}

struct AllocWorker<'a> {
    target: &'a AllocTarget,
    nr: u32,
    files: Vec<Option<OpenFile>>,
    /// Added to the target's counter at the end, so that counting is not part of the measurement.
    allocations: u64,
    extents: u64,
}

impl Drop for AllocWorker<'_> {
    fn drop(&mut self) {
        self.target.allocations.add(self.allocations);
        self.target.extents.add(self.extents);
    }
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::NoSpace { .. } | Error::CommitFirst { .. } => {
            io::Error::new(io::ErrorKind::StorageFull, error)
        }
        error => io::Error::other(error),
    }
}

/// Clusters of one request at most, as in ext4 (`EXT_UNWRITTEN_MAX_LEN`).
const MAX_REQUEST_CLUSTERS: u32 = 32_767;

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
        // Division by a power of two, which the compiler cannot know.
        let clusters = (bytes + cluster_bytes - 1) >> cluster_bytes.trailing_zeros();
        u32::try_from(clusters).map_err(io::Error::other)
    }

    /// Maps the unmapped part of `len` bytes at `offset`. All clusters before it are mapped, since
    /// workloads only append.
    fn map(&mut self, nr: FileNr, offset: u64, len: u64, sizing: Sizing) -> io::Result<u64> {
        let end = self.clusters(offset + len)?;
        let target = self.target;
        let inode = InodeNr(12 + self.nr + nr.0.wrapping_mul(4096));
        let file = self.files.get_mut(nr.0 as usize).and_then(Option::as_mut);
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        let mut start = file.mapped();
        while start < end {
            if let Some(surroundings) = &target.surroundings {
                surroundings.request(self.allocations);
            }
            let request =
                target.request(inode, file, (end - start).min(MAX_REQUEST_CLUSTERS), sizing);
            let run = target.allocate(&request, &file.prealloc)?;
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
                target.free(rest)?;
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
    /// Number of mapped clusters.
    fn mapped(&self) -> u32 {
        self.extents
            .last()
            .map_or(0, |(logical, run)| logical + run.len.0)
    }

    /// Maps a run after the last mapped cluster. Returns whether it is a new extent.
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
    /// A request for `len` clusters after the last mapped cluster of a file.
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

    /// Allocates a run and marks it in the running transaction.
    fn allocate(&self, request: &Request, prealloc: &Arc<FilePrealloc>) -> io::Result<Run> {
        loop {
            let seen = self.tid();
            let clusters = u64::from(request.len.0);
            let reserved = match self.reuse {
                Reuse::InTransaction => self.allocator.reserve(clusters, Privilege::User),
                Reuse::AfterCommit => Ok(self.allocator.reserve_ahead(clusters)),
            };
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
                Err(error) => return Err(io_error(error)),
            }
        }
    }

    /// Frees a run in the running transaction.
    fn free(&self, run: Run) -> io::Result<()> {
        let freeing = self.allocator.begin_free(run).map_err(io_error)?;
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
            Operation::Open
            | Operation::Stat
            | Operation::Read { .. }
            | Operation::SetAttribute { .. }
            | Operation::RemoveAttribute
            | Operation::List => Err(io::ErrorKind::Unsupported.into()),
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

    #[derive(Debug, Default)]
    struct Counted(Counter);

    impl Surroundings for Counted {
        fn request(&self, _nr: u64) {
            self.0.add(1);
        }
    }

    #[test]
    fn the_surroundings_have_a_part_in_every_request() {
        let scenario = Scenario::by_name("16g-aged-4k").unwrap();
        let groups = RamGroups::new(scenario, scenario.geometry().unwrap());
        let counted = Arc::new(Counted::default());
        let target = AllocTarget::new(groups, Changes::Dropped, Reuse::AfterCommit)
            .surrounded_by(Arc::<Counted>::clone(&counted));
        let (steps, clock) = (Until::Steps(5), MonotonicClock::default());
        drive(&target, &Fallocate3, ThreadCount::new(2), steps, &clock).unwrap();
        assert!(target.allocations() > 10);
        assert_eq!(counted.0.sum(), target.allocations());
    }

    #[test]
    fn bitmaps_and_allocator_agree_after_all_workloads() {
        let scenario = Scenario::by_name("16g-aged-64k").unwrap();
        let groups = RamGroups::new(scenario, scenario.geometry().unwrap());
        let target = AllocTarget::new(Arc::clone(&groups), Changes::Applied, Reuse::InTransaction);
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
                    max_append_bytes: 300_000,
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
