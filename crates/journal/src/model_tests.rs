//! Model-checked tests of the journal (shuttle): every test must pass in many interleavings,
//! without a deadlock.

use fourscore_block::{Buffer, DeviceOp, FaultyDevice, Rule};
use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::{JournalSuperblock, RawJournalSuperblock};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{Arc, CoreNr, epoch, model, thread};

use crate::credits::{Budget, Limits};
use crate::gate::Gate;
use crate::testing::{Disk, block_size, tag, without_threads};
use crate::*;

const SCHEDULES: usize = 250;

type Task = Box<dyn FnOnce() + Send>;

fn run(tasks: Vec<Task>) {
    let tasks: Vec<_> = tasks.into_iter().map(thread::spawn).collect();
    for task in tasks {
        task.join().expect("a task");
    }
}

/// Adds one to the first two bytes, one after the other.
fn bump(handle: &mut Handle<'_>, buffer: &Arc<Buffer>) {
    let change = |bytes: &mut [u8]| {
        bytes[0] += 1;
        thread::yield_now();
        bytes[1] += 1;
    };
    handle.modify(buffer, tag(), change).expect("credits");
}

/// A task that bumps the buffer `times` times, waiting each time until that is durable.
fn bump_and_wait(journal: &Arc<Journal>, buffer: &Arc<Buffer>, times: usize) -> Task {
    let (journal, buffer) = (Arc::clone(journal), Arc::clone(buffer));
    Box::new(move || {
        for _ in 0..times {
            let mut handle = journal.start(Credits(1)).expect("not aborted");
            bump(&mut handle, &buffer);
            let at_least = pair(buffer.bytes(&epoch::pin()));
            let tid = handle.stop();
            journal.commit_and_wait(tid).expect("in memory");
            assert!(at_least >= 1);
        }
    })
}

fn pair(bytes: &[u8]) -> u8 {
    assert_eq!(bytes[0], bytes[1], "a change is incomplete");
    bytes[0]
}

/// A hook that checks that no handle is open while the gate is closed.
#[derive(Default)]
struct Watch {
    began: AtomicU64,
    ended: AtomicU64,
}

impl SealHook for Watch {
    fn at_seal(&self, _: &mut Sealing<'_>) {
        let ended = self.ended.load(Ordering::SeqCst);
        thread::yield_now();
        let began = self.began.load(Ordering::SeqCst);
        assert_eq!(began, ended, "a handle is open while the gate is closed");
    }
}

#[test]
fn start_and_stop_against_sealing() {
    model::check(SCHEDULES, || {
        let (disk, watch) = (Disk::new(64), Arc::new(Watch::default()));
        let journal = Arc::new(disk.open_with(watch.clone(), without_threads()));
        let buffers = [disk.buffer(10), disk.buffer(11)];
        let worker = |first: usize| -> Task {
            let (journal, watch) = (Arc::clone(&journal), Arc::clone(&watch));
            let buffers = buffers.clone();
            Box::new(move || {
                for _ in 0..2 {
                    let mut handle = journal.start(Credits(2)).expect("not aborted");
                    watch.began.fetch_add(1, Ordering::SeqCst);
                    bump(&mut handle, &buffers[first]);
                    bump(&mut handle, &buffers[1 - first]);
                    watch.ended.fetch_add(1, Ordering::SeqCst);
                    handle.stop();
                }
            })
        };
        let committer: Task = {
            let journal = Arc::clone(&journal);
            Box::new(move || {
                for _ in 0..2 {
                    journal.commit().expect("in memory");
                }
            })
        };
        run(vec![worker(0), worker(1), committer]);
        journal.commit().expect("in memory");
        drop(journal);
        disk.replay();
        // Both blocks are changed by every handle: they agree in every transaction.
        assert_eq!([10, 11].map(|block| pair(&disk.read(block))), [4, 4]);
    });
}

#[test]
fn extending_against_waits_for_space() {
    for background in [Background::None, JournalOptions::default().background] {
        model::check(SCHEDULES / 2, move || {
            // 7 credits in all, so that two handles never fit side by side.
            let disk = Disk::new(40);
            let options = JournalOptions {
                background,
                ..without_threads()
            };
            let journal = Arc::new(disk.open(options));
            assert_eq!(journal.most_credits(), Credits(7));
            let worker = |first: u64| -> Task {
                let journal = Arc::clone(&journal);
                let buffers: Vec<_> = (first..first + 5).map(|block| disk.buffer(block)).collect();
                Box::new(move || {
                    let mut handle = journal.start(Credits(3)).expect("not aborted");
                    buffers[..3]
                        .iter()
                        .for_each(|buffer| bump(&mut handle, buffer));
                    if handle.extend(Credits(2)) == Extended::No {
                        handle = handle.restart(Credits(2)).expect("not aborted");
                    }
                    buffers[3..]
                        .iter()
                        .for_each(|buffer| bump(&mut handle, buffer));
                })
            };
            run(vec![worker(10), worker(20), worker(30)]);
            let journal = Arc::into_inner(journal).expect("the tasks have ended");
            journal.close().expect("in memory");
            for block in [10, 14, 20, 24, 30, 34] {
                assert_eq!(pair(&disk.read(block)), 1);
            }
        });
    }
}

/// One thread joins with credits while another seals: whichever transaction it has joined, there
/// are no more credits than the transaction was opened with.
#[test]
fn no_credit_outlives_its_transaction() {
    let raw = RawJournalSuperblock::new(block_size(), 1024, uuid::Uuid::nil());
    let format = JournalSuperblock::try_from(&raw)
        .expect("sound")
        .log_format();
    let limits = Limits::new(40, block_size(), &format, Credits(0)).expect("long enough");
    model::check(8 * SCHEDULES, move || {
        let running = Tid(7);
        let (gate, budget) = (Gate::new(running), Budget::new(limits));
        // Both cores have credits, so that joining takes some wherever it happens.
        let place = gate.join(0).expect("open");
        budget.gather(&gate, place, limits.credits).expect("all");
        for core in CoreNr::all() {
            gate.put_credits(core, limits.credits / 2);
        }
        gate.leave(place, 0);
        let shared = Arc::new((gate, budget));
        let joiner: Task = {
            let shared = Arc::clone(&shared);
            Box::new(move || {
                let (gate, budget) = &*shared;
                let own = limits.credits / 2;
                if let Ok(place) = gate.join(own) {
                    let more = budget.gather(gate, place, limits.credits - own + 1);
                    assert!(more.is_err(), "{:?} has credits of another", place.tid);
                    gate.leave(place, own);
                }
            })
        };
        let sealer: Task = {
            let shared = Arc::clone(&shared);
            Box::new(move || {
                let (gate, budget) = &*shared;
                gate.close_and_drain();
                budget.reset(gate);
                gate.open(running.next());
                gate.wake_joiners();
            })
        };
        run(vec![joiner, sealer]);
    });
}

/// No thread sleeps while the gate is open, however late it entered the list of sleeping threads.
#[test]
fn a_thread_that_finds_the_gate_closed_joins_later() {
    model::check(8 * SCHEDULES, || {
        let gate = Arc::new(Gate::new(Tid(7)));
        let joiner = || -> Task {
            let gate = Arc::clone(&gate);
            Box::new(move || {
                let place = loop {
                    match gate.join(0) {
                        Ok(place) => break place,
                        Err(_) => gate.wait_open(None),
                    }
                };
                gate.leave(place, 0);
            })
        };
        let sealer: Task = {
            let gate = Arc::clone(&gate);
            Box::new(move || {
                gate.close_and_drain();
                gate.open(Tid(8));
                gate.wake_joiners();
            })
        };
        run(vec![joiner(), joiner(), sealer]);
    });
}

#[test]
fn copy_on_write_against_sealing() {
    model::check(SCHEDULES, || {
        let disk = Disk::new(64);
        let journal = Arc::new(disk.open(without_threads()));
        let buffer = disk.buffer(10);
        let worker = || bump_and_wait(&journal, &buffer, 1);
        run(vec![worker(), worker(), worker()]);
        drop(journal);
        disk.replay();
        assert_eq!(pair(&disk.read(10)), 3, "an acknowledged change is lost");
    });
}

#[test]
fn checkpointing_against_dirtying_again() {
    model::check(SCHEDULES, || {
        let disk = Disk::new(64);
        let journal = Arc::new(disk.open(without_threads()));
        let buffer = disk.buffer(10);
        let worker = || bump_and_wait(&journal, &buffer, 2);
        let checkpointer: Task = {
            let (journal, disk) = (Arc::clone(&journal), disk.behind(Arc::clone(&disk.device)));
            Box::new(move || {
                journal.checkpoint().expect("in memory");
                pair(&disk.read(10));
            })
        };
        run(vec![worker(), checkpointer, worker()]);
        // The log and the home locations together hold all acknowledged changes.
        let crashed = disk.copy();
        crashed.replay();
        assert_eq!(pair(&crashed.read(10)), 4);
        let journal = Arc::into_inner(journal).expect("the tasks have ended");
        journal.close().expect("in memory");
        assert_eq!(pair(&disk.read(10)), 4);
    });
}

#[test]
fn freeing_against_checkpointing() {
    model::check(SCHEDULES, || {
        let disk = Disk::new(64);
        let journal = Arc::new(disk.open(without_threads()));
        let buffer = disk.buffer(10);
        bump_and_wait(&journal, &buffer, 1)();
        let freer: Task = {
            let (journal, device) = (Arc::clone(&journal), Arc::clone(&disk.device));
            Box::new(move || {
                let mut handle = journal.start(Credits(1)).expect("not aborted");
                handle.forget_buffer(&buffer).expect("credits");
                // The block is allocated again at once, and filled with data.
                handle.on_commit(Box::new(move |_| {
                    device.write_at(&[9; 1024], 10 << 10).expect("in memory");
                }));
                let tid = handle.stop();
                journal.commit_and_wait(tid).expect("in memory");
            })
        };
        let checkpointer: Task = {
            let journal = Arc::clone(&journal);
            Box::new(move || journal.checkpoint().expect("in memory"))
        };
        run(vec![freer, checkpointer]);
        assert_eq!(disk.read(10)[0], 9, "an old copy was written over new data");
        disk.replay();
        assert_eq!(
            disk.read(10)[0],
            9,
            "an old copy was replayed over new data"
        );
    });
}

#[test]
fn an_abort_wakes_all_waiters() {
    for background in [Background::None, JournalOptions::default().background] {
        model::check(SCHEDULES / 2, move || {
            let disk = Disk::new(40);
            let faulty = Arc::new(FaultyDevice::new(Arc::clone(&disk.device)));
            faulty.add(Rule::nth(DeviceOp::Flush, 4).and_after());
            let options = JournalOptions {
                background,
                ..without_threads()
            };
            let journal = Arc::new(disk.behind(faulty).open(options));
            let worker = |block: u64| -> Task {
                let journal = Arc::clone(&journal);
                let buffer = disk.buffer(block);
                Box::new(move || {
                    for _ in 0..6 {
                        let Ok(mut handle) = journal.start(Credits(4)) else {
                            break;
                        };
                        bump(&mut handle, &buffer);
                        let tid = handle.stop();
                        if journal.commit_and_wait(tid).is_err() {
                            break;
                        }
                    }
                    assert!(journal.abort_cause().is_some(), "ended without a reason");
                })
            };
            run(vec![worker(10), worker(20), worker(30)]);
            assert!(matches!(journal.start(Credits(0)), Err(Error::Aborted(_))));
            assert!(matches!(
                journal.checkpoint(),
                Err(Error::Aborted(_)) | Ok(())
            ));
        });
    }
}
