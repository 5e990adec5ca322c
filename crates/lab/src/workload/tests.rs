//! Workloads on a target that only records, and on a real directory.

use super::*;
use crate::clock::{FakeClock, MonotonicClock};
use crate::target::DirectoryTarget;
use fourscore_sync::Mutex;

/// Records the operations of the workers; each takes a millisecond of the fake clock.
struct Recording<'a> {
    log: Mutex<Vec<(usize, Operation)>>,
    clock: &'a FakeClock,
}

struct RecordingWorker<'a>(&'a Recording<'a>, usize);

impl Target for Recording<'_> {
    fn name(&self) -> String {
        "recording".into()
    }

    fn worker(&self, nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
        Ok(Box::new(RecordingWorker(self, nr.0)))
    }
}

impl Worker for RecordingWorker<'_> {
    fn apply(&mut self, _file: FileNr, operation: Operation) -> io::Result<u64> {
        self.0.clock.advance(Duration::from_millis(1));
        self.0.log.lock().push((self.1, operation));
        match operation {
            Operation::Read { .. } => Err(io::ErrorKind::Unsupported.into()),
            Operation::Fallocate { len, .. } => Ok(len),
            _ => Ok(0),
        }
    }
}

#[test]
fn fallocate2_truncates_at_one_mebibyte() {
    let clock = FakeClock::default();
    let target = Recording {
        log: Mutex::default(),
        clock: &clock,
    };
    let until = Until::Steps(129);
    let work = drive(&target, &Fallocate2, ThreadCount::ONE, until, &clock).expect("recording");
    let work = work.total();
    assert_eq!((work.operations, work.bytes), (129, 129 * 8192));
    // 129 calls and one truncate; preparing and cleaning up are not counted.
    assert_eq!(work.wall, Some(Duration::from_millis(130)));
    let log = target.log.lock();
    let truncates: Vec<usize> = (0..log.len())
        .filter(|&i| log[i].1 == Operation::Truncate { len: 0 })
        .collect();
    assert_eq!(truncates, [2 + 128]);
    let len = 8192;
    assert_eq!(
        log[2 + 127].1,
        Operation::Fallocate {
            offset: (1 << 20) - len,
            len
        }
    );
    assert_eq!(log[2 + 129].1, Operation::Fallocate { offset: 0, len });
}

#[test]
fn all_workers_run_and_failures_are_returned() {
    let clock = FakeClock::default();
    let target = Recording {
        log: Mutex::default(),
        clock: &clock,
    };
    let threads = ThreadCount::new(3);
    let until = Until::Steps(5);
    let work = drive(&target, &Fallocate2, threads, until, &clock).expect("recording");
    assert_eq!(work.total().operations, 15);
    assert!(work.workers.iter().all(|worker| worker.operations == 5));
    for nr in 0..3 {
        assert_eq!(
            target
                .log
                .lock()
                .iter()
                .filter(|(worker, _)| *worker == nr)
                .count(),
            8
        );
    }
    let reads = ReadFiles {
        files: 1,
        file_bytes: 1,
    };
    let error = drive(&target, &reads, threads, Until::Steps(1), &clock)
        .expect_err("reads are unsupported");
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn reading_files_of_a_directory() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let target = DirectoryTarget::new(directory.path());
    let workload = ReadFiles {
        files: 3,
        file_bytes: 10_000,
    };
    let clock = MonotonicClock::default();
    let until = Until::Steps(7);
    let work = drive(&target, &workload, ThreadCount::new(2), until, &clock).expect("a directory");
    let work = work.total();
    assert_eq!((work.operations, work.bytes), (14, 140_000));
    assert!(work.wall.is_some_and(|wall| wall > Duration::ZERO));
    let left = std::fs::read_dir(directory.path().join("w0")).expect("the worker's directory");
    assert_eq!(left.count(), 0);
}

#[test]
fn a_worker_that_fails_to_prepare_does_not_block_the_others() {
    let target = DirectoryTarget::new("/proc/no/such/directory");
    let clock = MonotonicClock::default();
    let error = drive(
        &target,
        &Fallocate2,
        ThreadCount::new(2),
        Until::Steps(1),
        &clock,
    );
    assert!(error.is_err());
}

#[test]
fn time_ends_a_run_and_batches_grow_with_short_steps() {
    let clock = FakeClock::default();
    let target = Recording {
        log: Mutex::default(),
        clock: &clock,
    };
    // After every step of a millisecond the clock is read.
    let until = Until::Elapsed(Duration::from_millis(10));
    let work = drive(&target, &Fallocate2, ThreadCount::ONE, until, &clock).expect("recording");
    assert_eq!(work.total().operations, 10);
    assert_eq!(work.total().wall, Some(Duration::from_millis(10)));
    let fairness = work.fairness();
    assert_eq!((fairness.min, fairness.max), (1000.0, 1000.0));
}
