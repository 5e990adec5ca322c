//! **Purpose.** How long a seal keeps the gate of the journal closed, and a baseline: an empty
//! gate, which shows what the machine's scheduler allows.
//!
//! **Model.** One thread commits now and then, as a thread does that calls `fsync`. The other
//! threads run handles without a pause, and rest while the transaction is written, which is not
//! measured. The device drops what is written to it.

use std::time::{Duration, Instant};

use fourscore_block::Buffer;
use fourscore_journal::{Batching, Credits, Journal};
use fourscore_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use fourscore_sync::{Arc, CachePadded, thread};

use crate::devices::{Dropping, LARGE_LOG};
use crate::{buffer, change, journal, print};

/// Number of seals that are measured, and the time limit for all of them.
const SEALS: u64 = 200;
const SEALS_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between looks at the other threads' progress.
const POLL: Duration = Duration::from_micros(200);

/// Times the committer spins on an empty gate before it parks.
const SPINS: u32 = 200;

/// Prints the times for which the gate was closed.
fn print_closed(mut closed: Vec<Duration>) {
    closed.sort_unstable();
    let percentile = |percent: usize| closed[closed.len() * percent / 100].as_nanos();
    print("seals", closed.len() as u128, 1);
    print("closed_p50_us", percentile(50), 1000);
    print("closed_p99_us", percentile(99), 1000);
}

/// Threads that run handles in rounds.
#[derive(Default)]
struct Workers {
    /// Odd while they work, even while they rest.
    round: AtomicU64,
    /// Set when there are no more rounds.
    over: AtomicBool,
    /// Threads that have changed all their buffers in this round.
    ready: AtomicU64,
}

impl Workers {
    /// The body of one thread. In each round it changes all its `buffers` once, and then the first
    /// of them again and again until the transaction is sealed.
    fn work(&self, journal: &Journal, buffers: &[Arc<Buffer>]) {
        let mut done = 0;
        while let Some(round) = self.round_after(done) {
            for buffer in buffers {
                change(journal, buffer);
            }
            self.ready.fetch_add(1, Ordering::AcqRel);
            while self.round.load(Ordering::Relaxed) == round {
                change(journal, &buffers[0]);
            }
            done = round;
        }
    }

    /// Sleeps until the round after `done` begins; `None` if there is none.
    fn round_after(&self, done: u64) -> Option<u64> {
        loop {
            if self.over.load(Ordering::Acquire) {
                return None;
            }
            let round = self.round.load(Ordering::Acquire);
            if round % 2 == 1 && round != done {
                return Some(round);
            }
            thread::park();
        }
    }
}

/// Measures how long seals keep the journal's gate closed, with `dirty` buffers in each
/// transaction. One of the `threads` commits.
pub(crate) fn journal_gate(threads: u64, dirty: u64) {
    let device = Arc::new(Dropping::new(&LARGE_LOG));
    let journal = journal(&LARGE_LOG, device, Batching::Off);
    let workers = Arc::new(Workers::default());
    let count = threads - 1;
    thread::scope(|scope| {
        let start = |nr: u64| {
            // Each thread has one buffer at least.
            let (first, end) = (dirty * nr / count, dirty * (nr + 1) / count);
            let own = first..end.max(first + 1);
            let (workers, journal) = (&workers, &journal);
            let worker = scope.spawn(move || {
                let buffers: Vec<_> = own.map(|nr| buffer(&LARGE_LOG, nr)).collect();
                workers.work(journal, &buffers);
            });
            worker.thread().clone()
        };
        let handles: Vec<_> = (0..count).map(start).collect();
        let wake = || handles.iter().for_each(thread::Thread::unpark);
        let began = Instant::now();
        let mut seals = 0;
        while seals < SEALS && began.elapsed() < SEALS_TIMEOUT {
            workers.ready.store(0, Ordering::Release);
            workers.round.fetch_add(1, Ordering::AcqRel);
            wake();
            while workers.ready.load(Ordering::Acquire) < count {
                thread::sleep(POLL);
            }
            thread::sleep(Duration::from_millis(1));
            let mut handle = journal
                .start(Credits(0))
                .expect("the journal is not aborted");
            let rest = Arc::clone(&workers);
            handle.before_commit(Box::new(move || {
                rest.round.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }));
            let tid = handle.stop();
            journal
                .commit_and_wait(tid)
                .expect("no I/O error in memory");
            journal.checkpoint().expect("no I/O error in memory");
            seals += 1;
        }
        workers.over.store(true, Ordering::Release);
        wake();
    });
    print_closed(journal.stats().gate_closed);
}

/// The minimum that keeps threads out of a section until all have left it: each thread announces
/// that it is inside, and checks a flag. There is no journal behind it.
struct EmptyGate {
    /// Odd while the gate is closed.
    turn: CachePadded<AtomicU64>,
    /// 1 while the thread is inside.
    inside: Vec<CachePadded<AtomicU64>>,
    /// Number of times the thread has passed the open gate.
    passes: Vec<CachePadded<AtomicU64>>,
    over: AtomicBool,
    committer: thread::Thread,
}

impl EmptyGate {
    /// The body of thread `nr`.
    fn work(&self, nr: usize) {
        let (inside, passes) = (&self.inside[nr], &self.passes[nr]);
        while !self.over.load(Ordering::Relaxed) {
            inside.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let turn = self.turn.load(Ordering::SeqCst);
            if turn.is_multiple_of(2) {
                passes.fetch_add(1, Ordering::Relaxed);
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let turn = self.turn.load(Ordering::SeqCst);
            if turn % 2 == 1 {
                if self.is_empty() {
                    self.committer.unpark();
                }
                while self.turn.load(Ordering::Acquire) == turn {
                    thread::park();
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        let mut inside = self.inside.iter();
        inside.all(|inside| inside.load(Ordering::SeqCst) == 0)
    }

    /// Waits until every thread has passed the gate once, and a millisecond more.
    fn wait_for_passes(&self) {
        let passes = |passes: &CachePadded<AtomicU64>| passes.load(Ordering::Relaxed);
        let before: Vec<u64> = self.passes.iter().map(passes).collect();
        for (of_thread, before) in self.passes.iter().zip(before) {
            while passes(of_thread) == before {
                thread::sleep(POLL);
            }
        }
        thread::sleep(Duration::from_millis(1));
    }

    /// Closes the gate, waits until all threads have left, and opens it again. Returns the time for
    /// which it was closed.
    fn close(&self) -> Duration {
        let began = Instant::now();
        self.turn.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut spins = 0;
        while !self.is_empty() {
            spins += 1;
            if spins > SPINS {
                thread::park();
            }
            std::hint::spin_loop();
        }
        self.turn.fetch_add(1, Ordering::SeqCst);
        began.elapsed()
    }
}

/// Measures how long an empty gate has to be closed until all threads have left. One of the
/// `threads` closes it.
pub(crate) fn empty_gate(threads: u64) {
    let workers = usize::try_from(threads - 1).expect("a small number");
    let zeroes = || (0..workers).map(|_| CachePadded::default()).collect();
    let gate = EmptyGate {
        turn: CachePadded::default(),
        inside: zeroes(),
        passes: zeroes(),
        over: AtomicBool::new(false),
        committer: thread::current(),
    };
    let mut closed = Vec::new();
    thread::scope(|scope| {
        let start = |nr| {
            let gate = &gate;
            scope.spawn(move || gate.work(nr)).thread().clone()
        };
        let handles: Vec<_> = (0..workers).map(start).collect();
        let began = Instant::now();
        while (closed.len() as u64) < SEALS && began.elapsed() < SEALS_TIMEOUT {
            gate.wait_for_passes();
            closed.push(gate.close());
            handles.iter().for_each(thread::Thread::unpark);
        }
        gate.over.store(true, Ordering::Relaxed);
    });
    print_closed(closed);
}
