//! Tests of the whole journal: durability, recovery, errors.

use std::time::Duration;

use fourscore_block::{BlockDevice, Buffer, DeviceOp, FaultyDevice, Rule, VerifiedAs};
use fourscore_ondisk::jbd2::{JournalCompat, JournalIncompat, MAGIC};
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::atomic::{AtomicU32, Ordering};
use fourscore_sync::{Arc, Mutex, epoch, thread};

use crate::testing::{BLOCK_BYTES, Disk, crowded, fill, tag, without_threads};
use crate::*;

/// Commits one transaction that fills each block with a byte.
fn commit_fills(journal: &Journal, fills: &[(&Arc<Buffer>, u8)]) -> Tid {
    let credits = Credits(u32::try_from(fills.len()).expect("few"));
    let mut handle = journal.start(credits).expect("not aborted");
    for (buffer, byte) in fills {
        fill(&mut handle, buffer, *byte);
    }
    let tid = handle.stop();
    journal.commit_and_wait(tid).expect("in memory");
    tid
}

#[test]
fn recovery_finds_committed_transactions_only() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let buffers: Vec<_> = (10..13).map(|block| disk.buffer(block)).collect();
    let first = commit_fills(&journal, &[(&buffers[0], 1), (&buffers[1], 1)]);
    let second = commit_fills(&journal, &[(&buffers[1], 2)]);
    assert_eq!(second, first.next());
    let mut handle = journal.start(Credits(1)).expect("not aborted");
    fill(&mut handle, &buffers[2], 3);
    handle.stop();
    assert_eq!(
        disk.read(10),
        [0; BLOCK_BYTES],
        "written before a checkpoint"
    );
    drop(journal);
    let recovered = disk.replay();
    assert_eq!(
        (recovered.transactions(), recovered.last_tid()),
        (2, Some(second))
    );
    let found = [10, 11, 12].map(|block| disk.read(block)[77]);
    assert_eq!(found, [1, 2, 0]);
    assert_eq!(disk.recover().expect("empty").copies(), []);
}

#[test]
fn closing_checkpoints_everything_and_leaves_an_empty_log() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let buffer = disk.buffer(10);
    commit_fills(&journal, &[(&buffer, 1)]);
    let mut handle = journal.start(Credits(1)).expect("not aborted");
    fill(&mut handle, &buffer, 2);
    handle.stop();
    let last = journal.running_tid();
    journal.close().expect("in memory");
    assert_eq!(disk.log().superblock().start(), None);
    assert_eq!(disk.read(10), [2; BLOCK_BYTES]);
    assert!(
        buffer.retire() == fourscore_block::Retire::Done,
        "on the device"
    );
    assert!(disk.open(without_threads()).running_tid().is_after(last));
}

#[test]
fn an_empty_transaction_is_not_committed() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let before = disk.content();
    let tid = journal.start(Credits(3)).expect("not aborted").stop();
    journal.commit_and_wait(tid).expect("nothing to do");
    assert_eq!((journal.running_tid(), journal.stats().commits), (tid, 0));
    journal.checkpoint().expect("nothing to do");
    assert!(disk.content() == before);
}

#[test]
fn every_format_is_replayed_as_committed_and_the_log_wraps() {
    let none = JournalIncompat::empty();
    let wide = JournalIncompat::_64BIT;
    let formats = [
        (JournalCompat::empty(), none),
        (JournalCompat::empty(), wide),
        (JournalCompat::CHECKSUM, none),
        (JournalCompat::empty(), JournalIncompat::CSUM_V2),
        (JournalCompat::empty(), wide | JournalIncompat::CSUM_V2),
        (JournalCompat::empty(), JournalIncompat::CSUM_V3),
        (JournalCompat::empty(), wide | JournalIncompat::CSUM_V3),
    ];
    for (compat, incompat) in formats {
        let disk = Disk::with_features(40, compat, incompat);
        let journal = disk.open(without_threads());
        let buffers: Vec<_> = (100..104).map(|block| disk.buffer(block)).collect();
        let mut wrapped = false;
        for round in 1..60_u8 {
            let two = usize::from(round) % 4;
            let fills = [(&buffers[two], round), (&buffers[(two + 1) % 4], round)];
            let mut handle = journal.start(Credits(2)).expect("not aborted");
            for (buffer, byte) in fills {
                // Looks like a block of the journal, so it must be escaped.
                let change = |bytes: &mut [u8]| {
                    bytes.fill(byte);
                    bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
                };
                handle.modify(buffer, tag(), change).expect("credits");
            }
            let tid = handle.stop();
            journal.commit_and_wait(tid).expect("in memory");
            let crashed = disk.copy();
            let recovered = crashed.replay();
            assert_eq!(recovered.last_tid(), Some(tid), "{incompat:?}");
            assert_eq!(recovered.damage(), None);
            wrapped |= recovered.head() < disk.log().superblock().start().expect("not empty");
            for (block, buffer) in (100..).zip(&buffers) {
                let guard = epoch::pin();
                assert!(crashed.read(block) == buffer.bytes(&guard), "{incompat:?}");
            }
        }
        assert!(wrapped, "{incompat:?}: the log never wrapped");
    }
}

/// Fills a log in front of a fast-commit area several times with transactions of `dirty` blocks, or
/// as many as a transaction can have. After each, all that recovery needs must lie between the
/// start of the log and its end.
fn fill_in_front_of_an_area(dirty: u32) {
    // The superblock, 1024 blocks of the log, and the area: the shortest log that has one.
    let disk = Disk::with_area(1 + 1024 + 16, 16);
    let journal = disk.open(without_threads());
    let log = disk.log().superblock().log();
    assert_eq!((log.start.0, log.end.0), (1, 1025));
    let dirty = u64::from(dirty.min(journal.most_credits().0));
    let buffers: Vec<_> = (100..100 + dirty).map(|block| disk.buffer(block)).collect();
    let (mut turns, mut before, mut round) = (0, log.start, 0_u8);
    while journal.stats().log_blocks < 5 * 1024 {
        round = round.wrapping_add(1);
        let fills: Vec<_> = buffers.iter().map(|buffer| (buffer, round)).collect();
        let tid = commit_fills(&journal, &fills);
        let crashed = disk.copy();
        let start = disk.log().superblock().start().expect("not empty");
        let recovered = crashed.replay();
        assert_eq!(recovered.last_tid(), Some(tid));
        // The head is the first block also where the last transaction ends with the last block.
        let head = recovered.head();
        assert!(
            head > start || head == log.start,
            "{dirty}: recovery goes from {start:?} to {head:?}"
        );
        turns += u32::from(start < before);
        before = start;
        let found = (100..100 + dirty).map(|block| crashed.read(block)[7]);
        assert!(found.into_iter().all(|byte| byte == round), "{dirty}");
    }
    assert!(turns > 2, "{dirty}: {turns} turns");
}

#[test]
fn in_front_of_a_fast_commit_area_the_log_turns_only_when_it_is_empty() {
    for dirty in [29, 62, 100, 185, 249] {
        fill_in_front_of_an_area(dirty);
    }
}

/// Four transactions that take their whole share end with the last block of the log.
#[test]
fn a_log_that_is_full_to_its_last_block_does_not_turn_before_it_is_empty() {
    fill_in_front_of_an_area(u32::MAX);
}

#[test]
fn a_revoked_block_is_neither_replayed_nor_checkpointed() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let (freed, kept) = (disk.buffer(10), disk.buffer(11));
    commit_fills(&journal, &[(&freed, 1), (&kept, 1)]);
    let mut handle = journal.start(Credits(3)).expect("not aborted");
    fill(&mut handle, &freed, 2);
    handle.forget_buffer(&freed).expect("credits");
    let given_out = Arc::new(AtomicU32::new(0));
    let note = Arc::clone(&given_out);
    handle.on_commit(Box::new(move |tid| note.store(tid.0, Ordering::Relaxed)));
    let tid = handle.stop();
    assert_eq!(given_out.load(Ordering::Relaxed), 0);
    journal.commit_and_wait(tid).expect("in memory");
    assert_eq!(given_out.load(Ordering::Relaxed), tid.0);
    // The block holds data now.
    let data = [9; BLOCK_BYTES];
    disk.device.write_at(&data, 10 * 1024).expect("in memory");
    let crashed = disk.copy();
    assert_eq!(crashed.replay().revoked(), 1);
    assert_eq!((crashed.read(10), crashed.read(11)[0]), (data.to_vec(), 1));
    journal.close().expect("in memory");
    assert_eq!((disk.read(10), disk.read(11)[0]), (data.to_vec(), 1));
}

#[test]
fn a_block_changed_again_after_it_was_revoked_is_replayed() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let buffer = disk.buffer(10);
    commit_fills(&journal, &[(&buffer, 1)]);
    let mut handle = journal.start(Credits(3)).expect("not aborted");
    handle.forget_buffer(&buffer).expect("credits");
    let again = disk.buffer(10);
    fill(&mut handle, &again, 2);
    journal.commit_and_wait(handle.stop()).expect("in memory");
    drop(journal);
    assert_eq!(disk.replay().revoked(), 0);
    assert_eq!(disk.read(10)[5], 2);
}

#[test]
fn a_newer_transaction_does_not_change_the_version_that_an_older_one_commits() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let buffer = disk.buffer(10);
    let mut handle = journal.start(Credits(1)).expect("not aborted");
    fill(&mut handle, &buffer, 1);
    // Runs after the gate was opened again, before the buffer is sealed.
    let newer = Arc::clone(&buffer);
    let tid = handle.tid();
    handle.before_commit(Box::new(move || {
        let change = |bytes: &mut [u8]| bytes.fill(2);
        newer
            .modify(tid.next(), tag(), change)
            .expect("not retired");
        Ok(())
    }));
    journal.commit_and_wait(handle.stop()).expect("in memory");
    drop(journal);
    disk.replay();
    assert_eq!(disk.read(10), [1; BLOCK_BYTES]);
    assert_eq!(buffer.bytes(&epoch::pin())[0], 2);
}

struct Checksums;

impl SealHook for Checksums {
    fn at_seal(&self, sealing: &mut Sealing<'_>) {
        let tid = sealing.tid();
        let buffer = COUNTS.lock().clone().expect("set by the test");
        let count = |bytes: &mut [u8]| bytes[..4].copy_from_slice(&tid.0.to_be_bytes());
        sealing.modify(&buffer, tag(), count).expect("one credit");
        let other = Arc::new(Buffer::new(PhysBlock(99), Arc::from([0; BLOCK_BYTES])));
        let refused = sealing.modify(&other, tag(), |_| ());
        assert_eq!(refused, Err(ModifyError::OutOfCredits));
    }

    fn finish(&self, _: Tid, block: PhysBlock, found: VerifiedAs, bytes: &mut [u8]) {
        assert_eq!(found, tag());
        bytes[BLOCK_BYTES - 1] = u8::try_from(block.0).expect("small") ^ bytes[0];
    }
}

static COUNTS: Mutex<Option<Arc<Buffer>>> = Mutex::new(None);

#[test]
fn the_hook_adds_blocks_at_the_seal_and_finishes_all() {
    let disk = Disk::new(64);
    let counts = disk.buffer(20);
    *COUNTS.lock() = Some(Arc::clone(&counts));
    let options = JournalOptions {
        seal_credits: Credits(1),
        ..without_threads()
    };
    let journal = disk.open_with(Arc::new(Checksums), options);
    let tid = commit_fills(&journal, &[(&disk.buffer(10), 7)]);
    drop(journal);
    disk.replay();
    assert_eq!(
        (disk.read(10)[0], disk.read(10)[BLOCK_BYTES - 1]),
        (7, 10 ^ 7)
    );
    assert_eq!(disk.read(20)[..4], tid.0.to_be_bytes());
    assert_eq!(disk.read(20), counts.bytes(&epoch::pin()), "live as well");
}

#[test]
fn credits_bound_what_a_handle_adds() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let most = journal.most_credits();
    assert!(matches!(
        journal.start(Credits(most.0 + 1)),
        Err(Error::TooManyCredits { wanted, .. }) if wanted.0 == most.0 + 1
    ));
    let mut handle = journal.start(Credits(1)).expect("not aborted");
    let (one, two) = (disk.buffer(10), disk.buffer(11));
    fill(&mut handle, &one, 1);
    fill(&mut handle, &one, 2);
    let refused = handle.modify(&two, tag(), |_| ());
    assert_eq!(refused, Err(ModifyError::OutOfCredits));
    assert_eq!(handle.revoke(PhysBlock(12)), Err(ModifyError::OutOfCredits));
    assert_eq!(handle.extend(Credits(1)), Extended::Yes);
    fill(&mut handle, &two, 1);
    assert_eq!(handle.extend(most), Extended::No, "two are used");
    let tid = handle.tid();
    let handle = handle.restart(most).expect("sealed for new credits");
    assert_eq!((handle.tid(), handle.credits()), (tid.next(), most));
    assert_eq!(journal.committed_tid(), tid);
}

#[test]
fn the_last_tid_of_something_is_known() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let last = LastTid::new();
    assert_eq!(last.get(), None);
    let handle = journal.start(Credits(0)).expect("not aborted");
    handle.note(&last);
    assert_eq!(last.get(), Some(handle.tid()));
}

#[test]
#[should_panic(expected = "a handle was started by a thread that has one")]
fn nested_handles_are_refused() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let _outer = journal.start(Credits(0)).expect("not aborted");
    let _inner = journal.start(Credits(0));
}

#[test]
#[should_panic(expected = "its own handle keeps open")]
fn waiting_for_a_commit_with_an_open_handle_is_refused() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let _open = journal.start(Credits(0)).expect("not aborted");
    let _ = journal.commit();
}

#[test]
fn an_operation_that_panics_is_never_committed() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let buffer = disk.buffer(10);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut handle = journal.start(Credits(2)).expect("not aborted");
        fill(&mut handle, &buffer, 1);
        panic!("a bug in the file system");
    }));
    assert!(outcome.is_err());
    assert!(matches!(
        journal.commit(),
        Err(Error::Aborted(AbortCause {
            during: During::Operation,
            ..
        }))
    ));
    assert_eq!(disk.log().superblock().errno(), -5);
    drop(journal);
    assert_eq!(disk.recover().expect("sound").transactions(), 0);
}

#[test]
fn an_operation_that_fails_while_its_transaction_is_being_sealed_is_never_committed() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let buffer = disk.buffer(10);
    let mut handle = journal.start(Credits(2)).expect("not aborted");
    fill(&mut handle, &buffer, 1);
    thread::scope(|scope| {
        let committer = scope.spawn(|| journal.commit());
        // The committer closes the gate, and waits for the handle.
        thread::sleep(Duration::from_millis(50));
        handle.fail();
        drop(handle);
        let committed = committer.join().expect("no panic");
        let cause = match committed {
            Err(Error::Aborted(cause)) => cause.during,
            other => panic!("{other:?}"),
        };
        assert_eq!(cause, During::FileSystem);
    });
    drop(journal);
    assert_eq!(disk.recover().expect("sound").transactions(), 0);
}

/// A hook that cannot make its change.
struct FailingHook;

impl SealHook for FailingHook {
    fn at_seal(&self, sealing: &mut Sealing<'_>) {
        sealing.fail();
    }
}

#[test]
fn a_transaction_is_not_committed_if_the_hook_fails() {
    let disk = Disk::new(64);
    let journal = disk.open_with(Arc::new(FailingHook), without_threads());
    let buffer = disk.buffer(10);
    let mut handle = journal.start(Credits(2)).expect("not aborted");
    fill(&mut handle, &buffer, 1);
    handle.stop();
    assert!(matches!(journal.commit(), Err(Error::Aborted(_))));
    assert!(journal.start(Credits(1)).is_err());
    drop(journal);
    assert_eq!(disk.recover().expect("sound").transactions(), 0);
}

#[test]
fn a_failed_write_of_the_log_aborts_and_all_waiters_get_the_error() {
    for background in [Background::None, JournalOptions::default().background] {
        let disk = Disk::new(64);
        let faulty = Arc::new(FaultyDevice::new(Arc::clone(&disk.device)));
        let broken = disk.behind(faulty.clone());
        let options = JournalOptions {
            background,
            ..without_threads()
        };
        let journal = broken.open(options);
        let kept = disk.buffer(10);
        let durable = commit_fills(&journal, &[(&kept, 1)]);
        faulty.add(Rule::nth(DeviceOp::Flush, 1).and_after());
        let results: Vec<_> = thread::scope(|scope| {
            let waiter = |block: u64| {
                let (journal, disk) = (&journal, &disk);
                scope.spawn(move || {
                    let mut handle = journal.start(Credits(1))?;
                    fill(&mut handle, &disk.buffer(block), 1);
                    journal.commit_and_wait(handle.stop())
                })
            };
            let waiters: Vec<_> = (20..24).map(waiter).collect();
            waiters
                .into_iter()
                .map(|waiter| waiter.join().expect("no panic"))
                .collect()
        });
        for result in results {
            assert!(matches!(result, Err(Error::Aborted(_))), "{result:?}");
        }
        let cause = journal.abort_cause().expect("aborted");
        assert_eq!(cause.during, During::Log(durable.next()));
        assert!(cause.source.is_some());
        assert!(journal.start(Credits(0)).is_err());
        journal
            .commit_and_wait(durable)
            .expect("it was durable before");
        assert_eq!(kept.bytes(&epoch::pin())[0], 1, "reads still work");
        drop(journal);
        assert_eq!(disk.recover().expect("sound").last_tid(), Some(durable));
    }
}

#[test]
fn data_that_could_not_be_written_is_not_exposed() {
    let disk = Disk::new(64);
    let journal = disk.open(without_threads());
    let mut handle = journal.start(Credits(1)).expect("not aborted");
    fill(&mut handle, &disk.buffer(10), 1);
    handle.before_commit(Box::new(|| Err(std::io::Error::other("the disk is gone"))));
    let tid = handle.stop();
    let error = journal.commit_and_wait(tid).expect_err("aborted");
    assert!(error.to_string().contains("the disk is gone"), "{error}");
    drop(journal);
    assert_eq!(disk.recover().expect("sound").transactions(), 0);
}

#[test]
fn a_failed_checkpoint_leaves_the_log_to_be_replayed() {
    let disk = Disk::new(64);
    let faulty = Arc::new(FaultyDevice::new(Arc::clone(&disk.device)));
    let journal = disk.behind(faulty.clone()).open(without_threads());
    let tid = commit_fills(&journal, &[(&disk.buffer(10), 1)]);
    faulty.add(Rule::nth(DeviceOp::Flush, 1).and_after());
    assert!(matches!(
        journal.close(),
        Err(Error::Aborted(AbortCause {
            during: During::Checkpoint,
            ..
        }))
    ));
    assert_eq!(disk.replay().last_tid(), Some(tid));
    assert_eq!(disk.read(10)[0], 1);
}

/// A device with slow flushes, which it counts.
#[derive(Debug)]
struct SlowFlush {
    device: Arc<dyn BlockDevice>,
    flushes: AtomicU32,
}

impl BlockDevice for SlowFlush {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }
    fn read_vectored_at(
        &self,
        bufs: &mut [std::io::IoSliceMut<'_>],
        offset: u64,
    ) -> std::io::Result<()> {
        self.device.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[std::io::IoSlice<'_>], offset: u64) -> std::io::Result<()> {
        self.device.write_vectored_at(bufs, offset)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(2));
        self.device.flush()
    }
}

#[test]
fn waiters_share_commits() {
    const THREADS: u64 = 16;
    const ROUNDS: u8 = 5;
    for batching in [Batching::Off, Batching::Adaptive] {
        let disk = Disk::new(1024);
        let device = Arc::clone(&disk.device);
        let slow = Arc::new(SlowFlush {
            device,
            flushes: AtomicU32::new(0),
        });
        let journal = disk.behind(slow.clone()).open(JournalOptions {
            batching,
            ..without_threads()
        });
        thread::scope(|scope| {
            for nr in 0..THREADS {
                let (journal, disk) = (&journal, &disk);
                scope.spawn(move || {
                    let buffer = disk.buffer(10 + nr);
                    for round in 1..=ROUNDS {
                        commit_fills(journal, &[(&buffer, round)]);
                    }
                });
            }
        });
        let commits = journal.stats().commits;
        let waits = THREADS * u64::from(ROUNDS);
        assert!(commits < waits / 2, "{commits} commits served {waits}");
        drop(journal);
        disk.replay();
        let found: Vec<_> = (10..10 + THREADS)
            .map(|block| disk.read(block)[0])
            .collect();
        assert_eq!(found, [ROUNDS; 16]);
    }
}

/// 64 threads that are always short of credits and log space: every kind of waiting, with and
/// without background threads, also where the log wraps around only when it is empty.
#[test]
fn a_small_log_and_many_threads_never_deadlock() {
    crowd(|| Disk::new(1024));
    crowd(|| Disk::with_area(1 + 1024 + 16, 16));
}

fn crowd(disk: impl Fn() -> Disk) {
    const THREADS: u64 = 64;
    const ROUNDS: u8 = 40;
    for background in [
        Background::None,
        Background::Threads {
            interval: Duration::from_millis(3),
        },
    ] {
        let disk = disk();
        let journal = disk.open(JournalOptions {
            background,
            ..without_threads()
        });
        thread::scope(|scope| {
            for nr in 0..THREADS {
                let (journal, disk) = (&journal, &disk);
                scope.spawn(move || crowded(journal, disk, nr, ROUNDS));
            }
        });
        let stats = journal.stats();
        assert!(stats.log_blocks > 2 * 1024, "the log wrapped: {stats:?}");
        journal.close().expect("in memory");
        for block in 0..4 * THREADS {
            assert_eq!(disk.read(block)[9], ROUNDS, "block {block}");
        }
    }
}
