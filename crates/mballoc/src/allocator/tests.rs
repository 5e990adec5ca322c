//! Tests of the allocator: each kind of request, running out of space, and many threads on a disk
//! that detects a cluster allocated twice.

mod counting;
mod older;
mod prefetching;
mod profiling;
mod requests;

use std::collections::BTreeMap;

use fourscore_ondisk::InodeNr;
use fourscore_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use fourscore_sync::thread;

use super::*;
use crate::claim::Change;
use crate::error::GroupProblem;
use crate::geometry::LogicalCluster;
use crate::request::{Content, Neighbour, Writers};
use crate::testdisk::{Disk, geometry, run};

/// Which search the tunables select.
#[derive(Clone, Copy, Debug)]
struct Mode {
    /// `mb_optimize_scan`.
    optimize_scan: u32,
    /// `mb_indexes`.
    indexes: u32,
    /// Whether ext4's search is as it was before 6.5.
    is_old: bool,
}

impl Mode {
    /// Our indexes, ext4's order sets, ext4's walk over groups; the latter two also as they were.
    const ALL: [Self; 5] = [
        Self::new(1, 1),
        Self::new(1, 0),
        Self::new(0, 0),
        Self::old(1),
        Self::old(0),
    ];

    const fn new(optimize_scan: u32, indexes: u32) -> Self {
        Self {
            optimize_scan,
            indexes,
            is_old: false,
        }
    }

    const fn old(optimize_scan: u32) -> Self {
        Self {
            is_old: true,
            ..Self::new(optimize_scan, 0)
        }
    }
}

struct Bench {
    disk: Arc<Disk>,
    allocator: Allocator,
}

impl Bench {
    fn on(disk: Disk, geometry: Geometry) -> Self {
        Self::with(disk, geometry, false)
    }

    fn with(disk: Disk, geometry: Geometry, fast_commits: bool) -> Self {
        let disk = Arc::new(disk);
        let source = Box::new(Arc::clone(&disk));
        let options = Options {
            durable: Tid(0),
            root_clusters: 0,
            reserved_clusters: 0,
            fast_commits,
        };
        Self {
            disk,
            allocator: Allocator::new(geometry, source, options),
        }
    }

    fn new(groups: u32, per_group: u32) -> Self {
        let geometry = geometry(groups, per_group);
        Self::on(Disk::new(geometry), geometry)
    }

    fn set_mode(&self, mode: Mode) {
        let tunables = self.allocator.tunables();
        tunables
            .set(Tunable::MbOptimizeScan, mode.optimize_scan)
            .unwrap();
        tunables.set(Tunable::MbIndexes, mode.indexes).unwrap();
        let (old, new) = (u32::from(mode.is_old), u32::from(!mode.is_old));
        for (tunable, value) in [
            (Tunable::MbBestAvail, new),
            (Tunable::MbSkipShort, new),
            (Tunable::MbScanLocked, old),
            (Tunable::MbWaitBusy, old),
        ] {
            tunables.set(tunable, value).unwrap();
        }
    }

    /// Reserves and claims clusters.
    fn claim(&self, request: &Request, file: Option<&Arc<FilePrealloc>>) -> Result<Claim, Error> {
        let mut reservation = self
            .allocator
            .reserve(u64::from(request.len.0), Privilege::User)?;
        let result = self.allocator.allocate(request, file, &mut reservation);
        self.allocator.unreserve(reservation);
        result
    }

    fn mark(&self, claim: Claim, tid: Tid) -> Run {
        let run = claim.run();
        self.disk.apply(claim.change());
        self.allocator.mark(claim, tid);
        run
    }

    fn free(&self, run: Run, tid: Tid) {
        let freeing = self.allocator.begin_free(run).unwrap();
        self.disk.apply(freeing.change());
        self.allocator.finish_free(freeing, tid, Stamp(0));
    }

    fn use_up(&self, request: &Request, tid: Tid) -> Run {
        let claim = self.claim(request, None).unwrap();
        self.mark(claim, tid)
    }

    /// Discards preallocations, releases all pending clusters, and compares with the disk.
    fn settle(&self, tid: Tid) {
        self.allocator.discard_preallocations();
        self.allocator.set_durable(tid);
        assert_eq!(self.allocator.sweep(), 0);
        self.allocator.check().unwrap();
        assert_eq!(self.allocator.free_clusters(), self.disk.free());
        self.disk.assert_same(&self.allocator);
        let mut with_space = 0;
        for group in (0..self.allocator.geometry().groups()).map(GroupNr) {
            let report = self.allocator.group_report(group).unwrap();
            assert_eq!(report.free, self.disk.free_in(group), "group {group}");
            with_space += u32::from(report.free > 0);
        }
        // A group may stay listed for a while after it has filled up, but must not be missing.
        let summary = self.allocator.structs_summary();
        let listed: u32 = summary.max_free_order_lists.iter().sum();
        assert!(listed >= with_space, "{summary}");
        assert_eq!(summary.absent_groups, 0);
    }
}

fn block(bench: &Bench, run: &Run) -> PhysBlock {
    bench.allocator.geometry().first_block(run)
}

fn data(logical: u32, len: u32) -> Request {
    Request::data(
        InodeNr(12),
        LogicalCluster(logical),
        ClusterCount(len),
        PhysBlock(1),
    )
}

fn exact(len: u32) -> Request {
    Request {
        sizing: Sizing::Exact,
        ..data(0, len)
    }
}

#[test]
fn a_file_written_cluster_by_cluster_is_one_extent() {
    let bench = Bench::new(16, 8192);
    let file = Arc::new(FilePrealloc::default());
    let mut runs: Vec<Run> = Vec::new();
    for logical in 0..3000 {
        let mut request = data(logical, 1);
        request.left = runs.last().map(|run| Neighbour {
            logical: LogicalCluster(logical - 1),
            block: block(&bench, run),
        });
        let claim = bench.claim(&request, Some(&file)).unwrap();
        runs.push(bench.mark(claim, Tid(1)));
        // Another file grows at the same time.
        let other = Request {
            inode: InodeNr(13),
            ..data(logical, 1)
        };
        bench.use_up(&other, Tid(1));
    }
    // The first 16 clusters come from the locality group, which the other file shares.
    let breaks = runs[16..]
        .windows(2)
        .filter(|pair| pair[0].end() != pair[1].start.0 || pair[0].group != pair[1].group);
    assert!(breaks.count() <= 8, "the file is fragmented");
    bench.allocator.discard(&file);
    bench.settle(Tid(1));
}

#[test]
fn small_files_of_a_core_lie_side_by_side() {
    let bench = Bench::new(16, 8192);
    let mut runs = Vec::new();
    for inode in 100..200 {
        let request = Request {
            inode: InodeNr(inode),
            ..data(0, 4)
        };
        runs.push(bench.use_up(&request, Tid(1)));
    }
    let distinct: std::collections::BTreeSet<_> = runs.iter().map(|run| run.group).collect();
    assert!(distinct.len() <= 2);
    let adjacent = runs
        .windows(2)
        .filter(|pair| pair[0].end() == pair[1].start.0)
        .count();
    assert!(adjacent >= 90, "only {adjacent} of 99 follow each other");
    bench.settle(Tid(1));
}

#[test]
fn the_goal_is_taken_if_it_is_free() {
    let bench = Bench::new(16, 8192);
    let goal = bench
        .allocator
        .geometry()
        .block_of(GroupNr(5), GroupOffset(100));
    let request = Request {
        sizing: Sizing::GoalOnly,
        goal,
        ..data(0, 10)
    };
    let claim = bench.claim(&request, None).unwrap();
    assert_eq!(claim.run(), run(5, 100, 10));
    assert!(matches!(
        bench.claim(&request, None),
        Err(Error::NotContiguous { .. })
    ));
    bench.allocator.give_back(claim);
    assert_eq!(bench.use_up(&request, Tid(1)), run(5, 100, 10));
}

#[test]
fn min_len_and_align_are_kept_or_refused() {
    let disk_geometry = geometry(4, 1024);
    let disk = Disk::new(disk_geometry);
    // Free: 24 clusters of every 32, never aligned to 32 at their start.
    for group in 0..4 {
        for chunk in 0..32 {
            disk.preset(&run(group, chunk * 32 + 24, 8));
        }
    }
    let bench = Bench::on(disk, disk_geometry);
    let too_long = Request {
        min_len: ClusterCount(25),
        ..exact(40)
    };
    assert!(matches!(
        bench.claim(&too_long, None),
        Err(Error::NotContiguous {
            min_len: ClusterCount(25)
        })
    ));
    let fits = Request {
        min_len: ClusterCount(24),
        ..exact(40)
    };
    assert_eq!(bench.use_up(&fits, Tid(1)).len, ClusterCount(24));
    let aligned = Request {
        min_len: ClusterCount(16),
        align: ClusterCount(8),
        ..exact(16)
    };
    let got = bench.use_up(&aligned, Tid(1));
    assert_eq!(block(&bench, &got).0 % 8, 0);
    let unaligned = Request {
        min_len: ClusterCount(24),
        align: ClusterCount(64),
        ..exact(24)
    };
    assert!(matches!(
        bench.claim(&unaligned, None),
        Err(Error::NotContiguous { .. })
    ));
    bench.settle(Tid(1));
}

#[test]
fn block_mapped_files_stay_below_two_to_the_32() {
    let geometry = Geometry::new(crate::geometry::Layout {
        s_blocks_count: (1 << 32) + 40_000,
        s_clusters_per_group: 524_288,
        block_size: fourscore_ondisk::BlockSize::from_log(6).unwrap(),
        s_first_data_block: 0,
        ..*geometry(1, 64).layout()
    })
    .unwrap();
    let last = GroupNr(geometry.groups() - 1);
    let goal = geometry.block_of(last, GroupOffset(5));
    let bench = Bench::on(Disk::new(geometry), geometry);
    let near = Request {
        goal,
        content: Content::Metadata,
        ..exact(1)
    };
    let low = Request {
        reach: Reach::Bits32,
        ..near
    };
    assert_eq!(bench.use_up(&near, Tid(1)).group, last);
    assert!(block(&bench, &bench.use_up(&low, Tid(1))).0 < 1 << 32);
}

/// Allocates all clusters, in varying lengths, and checks that none is left.
fn take_all(bench: &Bench, file: &Arc<FilePrealloc>) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut logical = 0;
    loop {
        let len = 1 + logical % 37;
        let len = len.min(u32::try_from(bench.allocator.free_clusters()).unwrap());
        if len == 0 {
            break;
        }
        let claim = bench.claim(&data(logical, len), Some(file)).unwrap();
        logical += claim.len().0;
        runs.push(bench.mark(claim, Tid(1)));
    }
    assert_eq!(bench.disk.free(), 0);
    assert!(matches!(
        bench.claim(&data(logical, 1), None),
        Err(Error::NoSpace {
            wanted: 1,
            available: 0
        })
    ));
    runs
}

#[test]
fn the_last_cluster_is_found_in_every_mode() {
    for mode in Mode::ALL {
        let bench = Bench::new(9, 700);
        bench.set_mode(mode);
        let (file, other) = (
            Arc::new(FilePrealloc::default()),
            Arc::new(FilePrealloc::default()),
        );
        // A preallocation of another inode holds space until it is needed.
        let claim = bench
            .claim(
                &Request {
                    inode: InodeNr(99),
                    ..data(50, 30)
                },
                Some(&other),
            )
            .unwrap();
        bench.mark(claim, Tid(1));
        assert!(!other.is_empty());
        let runs = take_all(&bench, &file);
        for run in &runs {
            bench.free(*run, Tid(2));
        }
        let short = bench.claim(&data(0, 1), None).unwrap_err();
        assert!(
            matches!(short, Error::CommitFirst { waiting: 1.., .. }),
            "{short}"
        );
        bench.allocator.set_durable(Tid(2));
        bench.use_up(&data(0, 1), Tid(3));
        bench.settle(Tid(3));
    }
}

#[test]
fn clusters_allocated_and_freed_in_one_transaction_are_reused_without_its_commit() {
    let bench = Bench::new(4, 1024);
    for _ in 0..100 {
        let runs: Vec<_> = (0..3).map(|_| bench.use_up(&exact(1000), Tid(7))).collect();
        runs.into_iter().for_each(|run| bench.free(run, Tid(7)));
    }
    assert_eq!(bench.allocator.sweep(), 0);
    bench.settle(Tid(7));
}

#[test]
fn clusters_that_a_fast_commit_may_refer_to_wait_for_the_full_commit() {
    let geometry = geometry(4, 1024);
    let bench = Bench::with(Disk::new(geometry), geometry, true);
    let run = bench.use_up(&exact(1000), Tid(7));
    bench.free(run, Tid(7));
    assert_eq!(bench.allocator.sweep(), 1000);
    bench.settle(Tid(7));
}

/// A file that is written, truncated and written again gets the same clusters.
#[test]
fn a_stream_goes_back_to_its_freed_clusters() {
    let bench = Bench::new(8, 4096);
    let first = bench.use_up(&exact(1000), Tid(7));
    let second = bench.use_up(&exact(500), Tid(7));
    bench.free(second, Tid(7));
    bench.free(first, Tid(7));
    let small = bench.use_up(&exact(4), Tid(7));
    assert!(small.start.0 >= second.end() || small.group != second.group);
    bench.free(small, Tid(7));
    let again = bench.use_up(&exact(1000), Tid(7));
    assert_eq!((again.group, again.start), (first.group, first.start));
    bench.settle(Tid(7));
}

#[test]
fn clusters_that_are_not_in_use_cannot_be_freed() {
    let bench = Bench::new(4, 1024);
    let used = bench.use_up(&exact(10), Tid(1));
    let freeing = bench.allocator.begin_free(used).unwrap();
    assert!(matches!(
        bench.allocator.begin_free(used),
        Err(Error::NotInUse { .. })
    ));
    bench.allocator.cancel_free(freeing);
    bench.free(used, Tid(2));
    assert!(matches!(
        bench.allocator.begin_free(used),
        Err(Error::NotInUse { .. })
    ));
    bench.settle(Tid(2));
    assert!(matches!(
        bench.allocator.begin_free(used),
        Err(Error::NotInUse { .. })
    ));
    assert!(matches!(
        bench.allocator.begin_free(run(9, 0, 1)),
        Err(Error::Outside { .. })
    ));
    assert!(matches!(
        bench.allocator.begin_free(run(0, 1020, u32::MAX)),
        Err(Error::Outside { .. })
    ));
}

#[test]
fn a_group_whose_bitmap_contradicts_its_descriptor_is_not_used() {
    let geometry = geometry(4, 1024);
    let mut disk = Disk::new(geometry);
    disk.wrong_descriptor = Some(GroupNr(2));
    disk.preset(&run(2, 0, 1));
    let bench = Bench::on(disk, geometry);
    let problem = GroupProblem::FreeCount {
        found: 1023,
        expected: 1024,
    };
    let error = bench.allocator.load(GroupNr(2)).unwrap_err();
    assert!(is_about_group_2(&error, GroupProblem::Unusable));
    let noted = std::mem::take(&mut *bench.disk.unusable.lock());
    assert!(matches!(&noted[..], [(GroupNr(2), why)] if is_about_group_2(why, problem)));
    assert_group_2_is_not_used(&bench);
}

fn is_about_group_2(error: &Error, expected: GroupProblem) -> bool {
    matches!(error, Error::Group { group: GroupNr(2), problem } if *problem == expected)
}

/// All of the other three groups can be used up, and nothing of the third.
fn assert_group_2_is_not_used(bench: &Bench) {
    assert_eq!(bench.allocator.free_clusters(), 3 * 1024);
    let mut left = 3 * 1024;
    while left > 0 {
        let run = bench.use_up(&exact(100.min(left)), Tid(1));
        assert_ne!(run.group, GroupNr(2));
        left -= run.len.0;
    }
    assert!(matches!(
        bench.claim(&exact(1), None),
        Err(Error::NoSpace { .. })
    ));
}

/// Takes all clusters of three groups. The goal is always in the group [`USELESS`], which `spoil`
/// makes useless.
fn others_used_up(mode: Mode, spoil: fn(&mut Disk)) -> Bench {
    let geometry = geometry(4, 1024);
    let mut disk = Disk::new(geometry);
    spoil(&mut disk);
    (0..4).for_each(|group| disk.preset(&run(group, 0, 1)));
    let bench = Bench::on(disk, geometry);
    bench.set_mode(mode);
    let mut left = 3 * 1023;
    while left > 0 {
        let mut beside = exact(100.min(left));
        beside.goal = geometry.block_of(USELESS, GroupOffset(100));
        let run = bench.use_up(&beside, Tid(1));
        assert_ne!(run.group, USELESS);
        left -= run.len.0;
    }
    bench
}

const USELESS: GroupNr = GroupNr(2);

#[test]
fn a_group_with_a_damaged_bitmap_is_noted_once_and_other_groups_serve() {
    for mode in Mode::ALL {
        let bench = others_used_up(mode, |disk| disk.damaged = Some(USELESS));
        assert!(matches!(
            bench.claim(&exact(1), None),
            Err(Error::NoSpace { .. })
        ));
        assert_eq!(bench.allocator.free_clusters(), 0);
        let noted = std::mem::take(&mut *bench.disk.unusable.lock());
        assert!(matches!(&noted[..], [(USELESS, Error::Source { .. })]));
    }
}

#[test]
fn a_group_that_the_device_cannot_read_is_passed_over_and_reported_if_none_serves() {
    for mode in Mode::ALL {
        let bench = others_used_up(mode, |disk| disk.unreadable = Some(USELESS));
        assert!(matches!(
            bench.claim(&exact(1), None),
            Err(Error::Source { .. })
        ));
        let free = bench.allocator.free_clusters();
        assert_eq!(free, 1023, "it may be read later");
        assert!(bench.disk.unusable.lock().is_empty());
    }
}

#[test]
fn a_read_error_is_reported_and_a_later_read_may_succeed() {
    let geometry = geometry(4, 1024);
    let disk = Disk::new(geometry);
    (0..4).for_each(|group| disk.preset(&run(group, 0, 1)));
    let bench = Bench::on(disk, geometry);
    bench.disk.broken.store(true, Ordering::Relaxed);
    assert!(matches!(
        bench.claim(&exact(5), None),
        Err(Error::Source { .. })
    ));
    bench.disk.broken.store(false, Ordering::Relaxed);
    bench.use_up(&exact(5), Tid(1));
    bench.settle(Tid(1));
}

#[test]
fn idle_groups_are_evicted_and_loaded_again_unchanged() {
    let bench = Bench::new(8, 1024);
    let kept = bench.use_up(&exact(100), Tid(1));
    let claim = bench.claim(&exact(100), None).unwrap();
    (0..8).for_each(|group| bench.allocator.load(GroupNr(group)).unwrap());
    assert_eq!(bench.allocator.absent_groups(), 0);
    let evicted = bench.allocator.evict_idle(100);
    assert!(
        (6..8).contains(&evicted),
        "{evicted} evicted; a claim keeps its group"
    );
    assert_eq!(bench.allocator.absent_groups(), evicted);
    bench.allocator.give_back(claim);
    bench.free(kept, Tid(2));
    bench.settle(Tid(2));
    assert_eq!(bench.allocator.absent_groups(), 0);
}

/// A thread of the stress test, with the runs that it holds.
struct Worker<'a> {
    bench: &'a Bench,
    tid: &'a AtomicU32,
    seed: u64,
    held: BTreeMap<u64, Run>,
    file: Arc<FilePrealloc>,
    logical: u32,
    inode: InodeNr,
}

impl Worker<'_> {
    fn random(&mut self, below: u32) -> u32 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        u32::try_from((self.seed >> 11) % u64::from(below)).unwrap()
    }

    fn tid(&self) -> Tid {
        Tid(self.tid.load(Ordering::Acquire))
    }

    fn step(&mut self) {
        match self.random(10) {
            0..=4 => self.allocate(),
            5..=7 => self.free(),
            8 => self.bench.allocator.discard(&self.file),
            _ => {
                self.file = Arc::new(FilePrealloc::default());
                self.logical = 0;
            }
        }
    }

    fn request(&mut self) -> Request {
        let len = [1, 2, 5, 64, 300][self.random(5) as usize];
        let mut request = Request {
            inode: self.inode,
            ..data(self.logical, 1 + self.random(len))
        };
        request.goal = PhysBlock(1 + u64::from(self.random(9000)));
        match self.random(6) {
            0 => request.sizing = Sizing::Exact,
            1 => request.content = Content::Metadata,
            2 => request.writers = Writers::Closed,
            3 if request.len.0 > 2 => request.min_len = ClusterCount(2),
            4 => request.align = ClusterCount(4),
            _ => {}
        }
        request
    }

    fn allocate(&mut self) {
        let request = self.request();
        let file = Arc::clone(&self.file);
        match self.bench.claim(&request, Some(&file)) {
            Ok(claim) if self.random(5) == 0 => self.bench.allocator.give_back(claim),
            Ok(claim) => {
                self.logical += claim.len().0;
                let tid = self.tid();
                let half = ClusterCount(claim.len().0 / 2);
                let (front, back) = claim.split_at(half);
                for part in [front, back].into_iter() {
                    let key = u64::from(self.random(u32::MAX)) << 8 | self.held.len() as u64 & 0xff;
                    let run = part.run();
                    let marked = self.bench.mark(part, tid);
                    if run.len.0 > 0 {
                        self.held.insert(key, marked);
                    }
                }
            }
            Err(
                Error::NoSpace { .. } | Error::CommitFirst { .. } | Error::NotContiguous { .. },
            ) => {
                self.free();
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&mut self) {
        let Some((_, run)) = self.held.pop_first() else {
            return;
        };
        let tid = self.tid();
        self.bench.free(run, tid);
    }
}

fn stress(threads: u32, steps: u32, mode: Mode, seed: u64) {
    let bench = Bench::new(12, 800);
    bench.set_mode(mode);
    let (tid, done) = (AtomicU32::new(1), AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|t| {
                let (bench, tid) = (&bench, &tid);
                scope.spawn(move || {
                    let file = Arc::new(FilePrealloc::default());
                    let seed =
                        (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(t) << 40);
                    let inode = InodeNr(20 + t);
                    let held = BTreeMap::new();
                    let mut worker = Worker {
                        bench,
                        tid,
                        seed,
                        held,
                        file,
                        logical: 0,
                        inode,
                    };
                    (0..steps).for_each(|_| worker.step());
                    worker.held
                })
            })
            .collect();
        let (bench, tid, done) = (&bench, &tid, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Acquire) {
                // In the file system handles keep this from happening in the middle of an
                // operation. Here a free or a mark may pass the tid before this one: it then waits
                // for an older commit, which the checks of the disk do not depend on.
                let sealed = tid.fetch_add(1, Ordering::AcqRel);
                bench.allocator.set_durable(Tid(sealed.saturating_sub(1)));
                bench.allocator.sweep();
                bench.allocator.evict_idle(3);
                thread::yield_now();
            }
        });
        let held: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        // The commits must end also when a worker has failed.
        done.store(true, Ordering::Release);
        let held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
        let used: u64 = held
            .iter()
            .flat_map(BTreeMap::values)
            .map(|run| u64::from(run.len.0))
            .sum();
        assert_eq!(12 * 800 - used, bench.disk.free());
    });
    bench.settle(Tid(tid.load(Ordering::Acquire)));
}

#[test]
fn many_threads_neither_lose_nor_duplicate_clusters() {
    for (threads, steps) in [(1, 20_000), (2, 10_000), (8, 4000), (64, 600)] {
        for mode in Mode::ALL {
            stress(threads, steps, mode, u64::from(threads));
        }
    }
}

#[test]
fn the_change_of_a_claim_sets_its_clusters() {
    let bench = Bench::new(2, 64);
    let claim = bench.claim(&exact(3), None).unwrap();
    let run = claim.run();
    assert_eq!(
        claim.change(),
        Change {
            run,
            kind: crate::claim::ChangeKind::Set
        }
    );
    bench.mark(claim, Tid(1));
}
