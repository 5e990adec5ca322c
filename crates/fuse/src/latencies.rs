//! **Purpose.** Latency histograms of requests by operation, from reading a request to its complete
//! reply.
//!
//! **Model.** A histogram for each operation: bucket 0 counts times below one microsecond, bucket n
//! times below 2^n, the last one everything longer. The counts and the sum of the times are kept
//! per core and added up by readers.
//!
//! **Locking.** None. A request adds to two words of its core.

use std::time::{Duration, Instant};

use fourscore_sync::PerCore;
use fourscore_sync::atomic::{AtomicU64, Ordering};

use crate::abi::opcode;

/// The last bucket begins at 2^21 microseconds, some two seconds.
const BUCKETS: usize = 23;
/// A histogram and the sum of its times, in nanoseconds.
const WORDS: usize = BUCKETS + 1;

/// The operations, by their names in `linux/fuse.h`. Others are not counted.
const OPERATIONS: &[(u32, &str)] = &[
    (opcode::LOOKUP, "LOOKUP"),
    (opcode::FORGET, "FORGET"),
    (opcode::GETATTR, "GETATTR"),
    (opcode::SETATTR, "SETATTR"),
    (opcode::READLINK, "READLINK"),
    (opcode::SYMLINK, "SYMLINK"),
    (opcode::MKNOD, "MKNOD"),
    (opcode::MKDIR, "MKDIR"),
    (opcode::UNLINK, "UNLINK"),
    (opcode::RMDIR, "RMDIR"),
    (opcode::RENAME, "RENAME"),
    (opcode::LINK, "LINK"),
    (opcode::OPEN, "OPEN"),
    (opcode::READ, "READ"),
    (opcode::WRITE, "WRITE"),
    (opcode::STATFS, "STATFS"),
    (opcode::RELEASE, "RELEASE"),
    (opcode::FSYNC, "FSYNC"),
    (opcode::SETXATTR, "SETXATTR"),
    (opcode::GETXATTR, "GETXATTR"),
    (opcode::LISTXATTR, "LISTXATTR"),
    (opcode::REMOVEXATTR, "REMOVEXATTR"),
    (opcode::OPENDIR, "OPENDIR"),
    (opcode::READDIR, "READDIR"),
    (opcode::RELEASEDIR, "RELEASEDIR"),
    (opcode::FSYNCDIR, "FSYNCDIR"),
    (opcode::CREATE, "CREATE"),
    (opcode::IOCTL, "IOCTL"),
    (opcode::BATCH_FORGET, "BATCH_FORGET"),
    (opcode::FALLOCATE, "FALLOCATE"),
    (opcode::READDIRPLUS, "READDIRPLUS"),
    (opcode::RENAME2, "RENAME2"),
    (opcode::LSEEK, "LSEEK"),
    (opcode::COPY_FILE_RANGE, "COPY_FILE_RANGE"),
    (opcode::SYNCFS, "SYNCFS"),
    (opcode::TMPFILE, "TMPFILE"),
    (opcode::STATX, "STATX"),
    (opcode::COPY_FILE_RANGE_64, "COPY_FILE_RANGE_64"),
];
/// One more than the largest opcode.
const NUMBERS: usize = opcode::COPY_FILE_RANGE_64 as usize + 1;

/// The latencies of a mount's requests.
#[derive(Debug)]
pub struct Latencies {
    cores: PerCore<Box<[AtomicU64]>>,
}

/// The latencies of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationTimes {
    /// Its name in `linux/fuse.h`.
    pub name: &'static str,
    /// The number of requests.
    pub requests: u64,
    /// The sum of their times.
    pub total: Duration,
    /// `[i]` counts times below 2^i microseconds and at least half of that; the last entry counts
    /// all longer times.
    pub histogram: Vec<u64>,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        let words = || (0..NUMBERS * WORDS).map(|_| AtomicU64::new(0)).collect();
        Self {
            cores: PerCore::new(|_| words()),
        }
    }

    /// Notes a request that was read at `start` and is answered now.
    pub(crate) fn note(&self, operation: u32, start: Instant) {
        let took = start.elapsed();
        let Some(first) = (operation as usize).checked_mul(WORDS) else {
            return;
        };
        let words = self.cores.mine();
        if let Some(words) = words.get(first..first + WORDS) {
            let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            words[bucket(took)].fetch_add(1, Ordering::Relaxed);
            words[BUCKETS].fetch_add(nanoseconds, Ordering::Relaxed);
        }
    }

    /// The latencies so far, without operations that did not occur.
    #[must_use]
    pub fn operations(&self) -> Vec<OperationTimes> {
        let operations = OPERATIONS.iter().map(|(number, name)| {
            let first = *number as usize * WORDS;
            let sum = |word: usize| {
                let of_core = |words: &[AtomicU64]| words[first + word].load(Ordering::Relaxed);
                self.cores.iter().map(|words| of_core(words)).sum()
            };
            let histogram: Vec<u64> = (0..BUCKETS).map(sum).collect();
            OperationTimes {
                name,
                requests: histogram.iter().sum(),
                total: Duration::from_nanos(sum(BUCKETS)),
                histogram,
            }
        });
        operations
            .filter(|operation| operation.requests > 0)
            .collect()
    }
}

fn bucket(took: Duration) -> usize {
    let bits = u128::BITS - took.as_micros().leading_zeros();
    usize::try_from(bits).map_or(BUCKETS - 1, |bits| bits.min(BUCKETS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_their_buckets() {
        let micros = |number| bucket(Duration::from_micros(number));
        assert_eq!((micros(0), micros(1), micros(2), micros(3)), (0, 1, 2, 2));
        assert_eq!((micros(1023), micros(1024)), (10, 11));
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        let micros_of = |log: u32| bucket(Duration::from_micros(1 << log));
        assert_eq!((micros_of(20), micros_of(21), micros_of(22)), (21, 22, 22));
    }

    #[test]
    fn noted_requests_are_reported() {
        let latencies = Latencies::new();
        assert_eq!(latencies.operations(), []);
        for _ in 0..3 {
            latencies.note(opcode::WRITE, Instant::now());
        }
        // An unknown opcode is ignored.
        latencies.note(u32::MAX, Instant::now());
        let operations = latencies.operations();
        assert_eq!(
            (operations.len(), operations[0].name, operations[0].requests),
            (1, "WRITE", 3)
        );
        assert_eq!(operations[0].histogram.iter().sum::<u64>(), 3);
    }
}
