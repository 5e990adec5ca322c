//! Tests of the requests that the journal makes to its devices, their order, and which threads wait
//! for them.

use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use fourscore_block::{Batch, BlockDevice, Buffer, InFlight};
use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::{JournalCompat, JournalIncompat, JournalVersion};
use fourscore_sync::{Arc, Condvar, Mutex, epoch, thread};

use crate::testing::{Disk, fill, without_threads};
use crate::*;

/// A request to a device; a batch with the number of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Write,
    Fua,
    Flush,
    Batch(usize),
}

/// A device that records its requests, and whose flushes can be held up.
#[derive(Debug)]
struct Watched {
    device: Arc<dyn BlockDevice>,
    requests: Mutex<Vec<Request>>,
    held: Mutex<bool>,
    released: Condvar,
}

impl Watched {
    fn new(disk: &Disk) -> Arc<Self> {
        Arc::new(Self {
            device: Arc::clone(&disk.device),
            requests: Mutex::new(Vec::new()),
            held: Mutex::new(false),
            released: Condvar::new(),
        })
    }

    /// Removes and returns the requests since the last call.
    fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock())
    }

    fn note(&self, request: Request) {
        self.requests.lock().push(request);
    }

    fn hold_flushes(&self) {
        *self.held.lock() = true;
    }

    fn release_flushes(&self) {
        *self.held.lock() = false;
        self.released.notify_all();
    }
}

impl BlockDevice for Watched {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.device.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.note(Request::Write);
        self.device.write_vectored_at(bufs, offset)
    }
    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.note(Request::Fua);
        self.device.write_fua(bufs, offset)
    }
    fn flush(&self) -> io::Result<()> {
        self.note(Request::Flush);
        let mut held = self.held.lock();
        while *held {
            self.released.wait(&mut held);
        }
        self.device.flush()
    }
    fn submit(&self, batch: Batch) -> InFlight {
        self.note(Request::Batch(batch.len()));
        self.device.submit(batch)
    }
}

/// Fills the buffers with `byte` in one handle.
fn change(journal: &Journal, buffers: &[Arc<Buffer>], byte: u8) -> Tid {
    let credits = Credits(u32::try_from(buffers.len()).expect("few"));
    let mut handle = journal.start(credits).expect("not aborted");
    for buffer in buffers {
        fill(&mut handle, buffer, byte);
    }
    handle.stop()
}

fn commit(journal: &Journal, buffers: &[Arc<Buffer>], byte: u8) {
    let tid = change(journal, buffers, byte);
    journal.commit_and_wait(tid).expect("in memory");
}

/// Waits for a condition that other threads bring about; fails the test after a minute.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_commit_is_a_batch_a_flush_and_a_block_with_fua() {
    let disk = Disk::new(256);
    let watched = Watched::new(&disk);
    let journal = disk.behind(watched.clone()).open(without_threads());
    let buffers: Vec<_> = (10..30).map(|block| disk.buffer(block)).collect();
    watched.take();
    commit(&journal, &buffers, 1);
    let first = watched.take();
    // The superblock with the start of the log; then the log, which is in two pieces.
    let of_commit = [Request::Flush, Request::Fua];
    assert_eq!(
        first,
        [&[Request::Fua, Request::Batch(2)], &of_commit[..]].concat()
    );
    commit(&journal, &buffers, 2);
    assert_eq!(
        watched.take(),
        [&[Request::Batch(1)], &of_commit[..]].concat()
    );
}

#[test]
fn a_checkpoint_is_sorted_and_merged() {
    let disk = Disk::new(256);
    let watched = Watched::new(&disk);
    let journal = disk.behind(watched.clone()).open(without_threads());
    for (round, blocks) in (1..).zip([[19, 11, 30], [15, 12, 19], [14, 10, 11], [13, 17, 18]]) {
        commit(&journal, &blocks.map(|block| disk.buffer(block)), round);
    }
    commit(&journal, &[disk.buffer(16)], 9);
    watched.take();
    journal.checkpoint().expect("in memory");
    // Blocks 10 to 19, and 30; each once.
    assert_eq!(
        watched.take(),
        [Request::Batch(2), Request::Flush, Request::Fua]
    );
    let found: Vec<_> = (10..20).map(|block| disk.read(block)[0]).collect();
    assert_eq!(found, [3, 3, 2, 4, 3, 2, 9, 4, 4, 2]);
    assert_eq!(journal.stats().used_blocks, 0);
}

/// In front of a fast-commit area: checkpoint, the tail behind it, and the tail at the first block
/// come before anything is written there.
#[test]
fn a_log_turns_after_a_checkpoint_and_a_tail_at_its_first_block() {
    let disk = Disk::with_area(1 + 1024 + 16, 16);
    let watched = Watched::new(&disk);
    let journal = disk.behind(watched.clone()).open(without_threads());
    let first = disk.log().superblock().log().start;
    let buffers: Vec<_> = (100..300).map(|block| disk.buffer(block)).collect();
    let start = || disk.log().superblock().start();
    // Each takes 205 blocks. In front of the fifth the log has 204 left, and a share is 256.
    for byte in 0..4 {
        commit(&journal, &buffers, byte);
    }
    assert!(start() > Some(first), "space was freed");
    watched.take();
    commit(&journal, &buffers, 4);
    let requests: Vec<_> = watched
        .take()
        .into_iter()
        .map(|request| match request {
            Request::Batch(_) => Request::Batch(0),
            other => other,
        })
        .collect();
    let batch_flush_fua = [Request::Batch(0), Request::Flush, Request::Fua];
    assert_eq!(requests[..3], batch_flush_fua, "the checkpoint");
    assert_eq!(requests[3], Request::Fua, "the tail at the first block");
    let of_commit = &requests[4..];
    assert!(of_commit.ends_with(&batch_flush_fua), "{of_commit:?}");
    assert_eq!(start(), Some(first));
    assert_eq!(disk.copy().replay().transactions(), 1);
}

#[test]
fn handles_do_not_wait_for_the_io_of_a_commit() {
    let disk = Disk::new(256);
    let watched = Watched::new(&disk);
    let journal = disk.behind(watched.clone()).open(without_threads());
    let buffers = [disk.buffer(10), disk.buffer(11)];
    let old = change(&journal, &buffers, 1);
    thread::scope(|scope| {
        watched.hold_flushes();
        let committer = scope.spawn(|| journal.commit_and_wait(old));
        wait_until("the commit's flush", || {
            watched.take().contains(&Request::Flush)
        });
        // The old transaction is being written; the new one changes the same buffers.
        for byte in 2..20 {
            assert_eq!(change(&journal, &buffers, byte), old.next());
        }
        assert!(
            old.is_after(journal.committed_tid()),
            "the flush is held up"
        );
        watched.release_flushes();
        committer.join().expect("no panic").expect("in memory");
    });
    assert_eq!(buffers[0].bytes(&epoch::pin())[0], 19);
    drop(journal);
    assert_eq!(disk.replay().last_tid(), Some(old));
    assert_eq!([10, 11].map(|block| disk.read(block)[0]), [1, 1]);
}

#[test]
fn the_background_commits_when_the_interval_has_passed() {
    let disk = Disk::new(64);
    let interval = Duration::from_millis(3);
    let journal = disk.open(JournalOptions {
        background: Background::Threads { interval },
        ..without_threads()
    });
    let tid = change(&journal, &[disk.buffer(10)], 1);
    wait_until("a commit", || journal.committed_tid() == tid);
}

#[test]
fn the_background_keeps_space_free_in_the_log() {
    const LOG_BLOCKS: u32 = 128;
    let disk = Disk::new(LOG_BLOCKS);
    let interval = Duration::from_secs(3600);
    let journal = disk.open(JournalOptions {
        background: Background::Threads { interval },
        ..without_threads()
    });
    let buffers: Vec<_> = (10..18).map(|block| disk.buffer(block)).collect();
    for byte in 0..60 {
        commit(&journal, &buffers, byte);
        let used = || journal.stats().used_blocks;
        if used() > LOG_BLOCKS * 3 / 8 {
            wait_until("space", || used() <= LOG_BLOCKS / 8);
        }
    }
    assert!(
        journal.stats().log_blocks > 3 * u64::from(LOG_BLOCKS),
        "the log wrapped"
    );
}

/// ext3's first journals had neither features nor revoke records.
#[test]
fn a_journal_of_version_1_is_replayed_and_then_written_as_version_2() {
    let disk = Disk::with_features(64, JournalCompat::empty(), JournalIncompat::empty());
    let journal = disk.open(without_threads());
    commit(&journal, &[disk.buffer(10), disk.buffer(11)], 1);
    drop(journal);
    // The block type of the superblock; with version 1 the feature fields are ignored.
    let at = disk.log().offset(fourscore_ondisk::jbd2::JournalBlock(0));
    let version_1 = 3_u32.to_be_bytes();
    disk.device
        .write_at(&version_1, at.expect("mapped") + 4)
        .expect("in memory");
    assert_eq!(disk.log().superblock().version(), JournalVersion::V1);
    assert_eq!(disk.replay().transactions(), 1);
    assert_eq!([10, 11].map(|block| disk.read(block)[0]), [1, 1]);
    let journal = disk.open(without_threads());
    commit(&journal, &[disk.buffer(10)], 2);
    drop(journal);
    let superblock = disk.log().superblock().clone();
    assert_eq!(superblock.version(), JournalVersion::V2);
    assert_eq!(superblock.incompat(), JournalIncompat::REVOKE);
    assert_eq!((disk.replay().transactions(), disk.read(10)[0]), (1, 2));
}
