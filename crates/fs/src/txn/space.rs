//! **Purpose.** Waiting for space: operations that find no free clusters wait in a queue while
//! space is being released, and get ENOSPC only if none is.
//!
//! **Not here.** How many clusters are free, and how many are being released (crate `mballoc`,
//! `shortage`); when grace periods end ([`crate::txn::grace`]).
//!
//! **Model.** An operation is an attempt that can be repeated: an attempt that fails has returned
//! what it claimed, and holds no epoch guard. The first attempt is made without waiting. If it
//! finds no space its thread joins a queue (the line), in which one thread has its *turn*:
//!
//! ```text
//! attempt -- no space --> line -- turn --> attempt -- served, or fails otherwise --> leaves
//!                          ^                  |
//!                          |                  +-- NoSpace, nothing is coming --> leaves, ENOSPC
//!                          |                  +-- CommitFirst
//!          turn is over:   |                  v
//!          to the end <----+--- commit, tick of the grace clock, sleep until readers are gone
//! ```
//!
//! Before the thread at its turn waits, the allocator begins to reserve for it all space that is or
//! becomes free. Other threads that therefore find no space join the line. So after one commit and
//! one grace period the thread has all space that was free or being released when it was refused.
//! Linux only commits and tries again, three times (`ext4_should_retry_alloc`).
//!
//! **Invariants.**
//! - ENOSPC for lack of clusters is returned only after an attempt at the thread's turn was refused
//!   with `NoSpace`, which the allocator returns only if there were too few clusters at one moment;
//!   or after [`MOST_WAITING`].
//! - A thread in line waits for the turns before its own. A turn lasts at most [`TURN`] while other
//!   threads stand in line. Then it passes to the next thread, together with the reserved space,
//!   and the thread that had it goes to the end. That also resolves a possible deadlock: a thread
//!   in line may hold an inode's lock (it writes to a file in several parts), and the attempt of
//!   the thread at its turn may wait for that lock.
//! - A thread at its turn waits for a commit, which ends as the device does; for a marker that
//!   readers drop when they end; and for the report of free blocks to the device. Readers do end:
//!   none waits for space, and *no thread waits for an inode's lock while it holds an epoch guard*,
//!   since the lock's holder may stand in line. If a reader hangs in the device, or the device
//!   hangs, the thread waits until [`MOST_WAITING`] is over.
//! - No turn starves other threads. A thread whose turn passed has its turn again after those that
//!   were in line then, each of which takes what one operation needs.
//!
//! **Locking.** The lock of the line is a leaf, except for the locks of the allocator. It is taken
//! only by threads that find no space. The caller must hold no epoch guard: it would wait for
//! itself.
//!
//! **References.** `ext4_should_retry_alloc` of Linux.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fourscore_journal::Journal;
use fourscore_mballoc::Allocator;
use fourscore_mballoc::shortage::DiscardsCompleted;
use fourscore_ondisk::Tid;
use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::thread::{self, Thread};
use fourscore_sync::{Arc, Condvar, Mutex, epoch};

use crate::txn::grace::GracePeriod;
use crate::{Error, Result};

/// How long a thread keeps its turn while others stand in line.
const TURN: Duration = Duration::from_millis(20);
/// How long an operation waits for space in all. Commits and grace periods take milliseconds,
/// unless a device hangs.
const MOST_WAITING: Duration = Duration::from_secs(30);

/// How much longer an operation may wait for space, whatever the number of its attempts that want
/// less and less.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(MOST_WAITING)
    }
}

/// The line: the queue of threads that wait for space that is being released.
#[derive(Debug)]
pub(crate) struct SpaceQueue {
    journal: Arc<Journal>,
    allocator: Arc<Allocator>,
    grace: Arc<GracePeriod>,
    /// The only transaction of the mount, if it has just one.
    only: Option<Tid>,
    line: Mutex<Line>,
    /// How many threads are in line. Written only by them.
    in_line: AtomicUsize,
    /// Signalled when another thread has the turn, or no thread has it.
    moved: Condvar,
}

#[derive(Debug)]
struct Line {
    last_ticket: u64,
    /// The threads in line. The first has its turn.
    waiting: VecDeque<Place>,
    /// How many turns there were; `turn_began` is when the last one began.
    turns: u64,
    turn_began: Instant,
    /// Whether the allocator reserves space for the first thread.
    is_favoured: bool,
    /// The last shortage that the first thread's attempt met.
    shortage: Option<Shortage>,
}

#[derive(Debug)]
struct Place {
    ticket: u64,
    thread: Thread,
}

/// What has to happen before another request for space makes sense.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    /// The transaction whose commit must be durable, if one must be.
    tid: Option<Tid>,
    completed: DiscardsCompleted,
}

/// The outcome of an attempt that found no space.
#[derive(Debug)]
enum Outcome {
    /// The attempt was not made at the thread's turn, or only in part.
    TurnLost,
    /// No space will be released, or the attempt failed for lack of something else.
    Refused,
    Short(Shortage),
}

impl SpaceQueue {
    /// Returns the queue of a mount, whose only transaction is `only` if it has just one.
    pub(crate) fn new(
        journal: Arc<Journal>,
        allocator: Arc<Allocator>,
        grace: Arc<GracePeriod>,
        only: Option<Tid>,
    ) -> Self {
        let line = Line {
            last_ticket: 0,
            waiting: VecDeque::new(),
            turns: 0,
            turn_began: Instant::now(),
            is_favoured: false,
            shortage: None,
        };
        Self {
            journal,
            allocator,
            grace,
            only,
            line: Mutex::new(line),
            in_line: AtomicUsize::new(0),
            moved: Condvar::new(),
        }
    }
}

impl Line {
    fn has_turn(&self, ticket: u64) -> bool {
        self.waiting
            .front()
            .is_some_and(|place| place.ticket == ticket)
    }

    /// Begins the turn of the thread that is first in line now.
    fn begin_turn(&mut self) {
        self.turns += 1;
        self.turn_began = Instant::now();
        self.shortage = None;
    }
}

/// A place in line. The thread leaves the line when this is dropped.
struct InLine<'a> {
    queue: &'a SpaceQueue,
    ticket: u64,
    deadline: Instant,
}

impl<'a> InLine<'a> {
    fn join(queue: &'a SpaceQueue, deadline: Instant) -> Self {
        queue.in_line.fetch_add(1, Ordering::Relaxed);
        let mut line = queue.line.lock();
        line.last_ticket += 1;
        let ticket = line.last_ticket;
        if line.waiting.is_empty() {
            line.begin_turn();
        }
        line.waiting.push_back(Place {
            ticket,
            thread: thread::current(),
        });
        Self {
            queue,
            ticket,
            deadline,
        }
    }

    /// Sleeps until it is this thread's turn, and returns the turn's number.
    fn wait_for_turn(&self) -> u64 {
        let queue = self.queue;
        let mut line = queue.line.lock();
        while !line.has_turn(self.ticket) {
            // Any thread in line may pass the turn on: those before this one may be waiting for a
            // lock that it holds.
            let left = TURN.saturating_sub(line.turn_began.elapsed());
            if left.is_zero() {
                self.pass_turn(&mut line);
            } else {
                queue.moved.wait_for(&mut line, left);
            }
        }
        line.shortage = None;
        line.turns
    }

    /// Ends the turn of the first thread, which goes to the end. Space reserved for it is kept for
    /// the next.
    fn pass_turn(&self, line: &mut Line) {
        line.waiting.rotate_left(1);
        line.begin_turn();
        if line.is_favoured {
            let next = line.waiting.front().map(|place| place.thread.id());
            self.queue.allocator.favour(next);
        }
        if let Some(passed) = line.waiting.back() {
            // The thread may be asleep, waiting for space to be released.
            passed.thread.unpark();
        }
        self.queue.moved.notify_all();
    }

    /// Returns the outcome of the attempt that this thread made at its `turn`. If it was short of
    /// space, the allocator reserves space for the thread from here on.
    fn outcome(&self, turn: u64) -> Outcome {
        let mut line = self.queue.line.lock();
        // The thread may have had another turn in between, with another shortage.
        if line.turns != turn {
            return Outcome::TurnLost;
        }
        let Some(shortage) = line.shortage.take() else {
            return Outcome::Refused;
        };
        if !line.is_favoured {
            line.is_favoured = true;
            let me = thread::current().id();
            self.queue.allocator.favour(Some(me));
        }
        Outcome::Short(shortage)
    }

    /// Has pending frees released, and sleeps until they are, or the turn is over.
    fn wait_for_space(&self, shortage: Shortage) -> Result<()> {
        let SpaceQueue {
            journal,
            grace,
            allocator,
            only,
            line,
            ..
        } = self.queue;
        if let Some(tid) = shortage.tid.filter(|_| only.is_none()) {
            journal.commit_and_wait(tid)?;
        }
        let stamp = grace.expedite();
        {
            let line = line.lock();
            if !line.has_turn(self.ticket) {
                return Ok(());
            }
            // Under the lock: only one thread is woken, and that must be the one at its turn.
            allocator.listen();
        }
        let has_turn = || line.lock().has_turn(self.ticket);
        allocator.wait_for_grace_period(stamp, shortage.completed, self.deadline, has_turn);
        Ok(())
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.queue.in_line.fetch_sub(1, Ordering::Relaxed);
        let mut line = self.queue.line.lock();
        let had_turn = line.has_turn(self.ticket);
        line.waiting.retain(|place| place.ticket != self.ticket);
        if had_turn {
            line.begin_turn();
            if std::mem::take(&mut line.is_favoured) {
                self.queue.allocator.favour(None);
                self.queue.allocator.stop_listening();
            }
        }
        self.queue.moved.notify_all();
    }
}

impl SpaceQueue {
    /// Whether an operation has found no space and is being repeated, on any thread. Operations
    /// that can do with less space then do, even if that takes longer.
    pub(crate) fn is_short(&self) -> bool {
        self.in_line.load(Ordering::Relaxed) > 0
    }

    /// Makes an attempt, and repeats it while it finds no space and some is being released. The
    /// caller must hold no epoch guard, and an attempt that fails must leave nothing behind.
    ///
    /// # Errors
    /// Those of the attempt. `NoSpace` is returned only under the conditions that the module
    /// states.
    pub(crate) fn retried<T>(&self, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        self.retried_within(&mut Patience::default(), attempt)
    }

    /// As [`SpaceQueue::retried`], for an operation that tries again with less where there is too
    /// little space: all its attempts together wait as long as one operation does.
    ///
    /// # Errors
    /// As [`SpaceQueue::retried`].
    pub(crate) fn retried_within<T>(
        &self,
        patience: &mut Patience,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        epoch::assert_not_pinned();
        match attempt() {
            Err(Error::NoSpace) => self.retried_in_line(patience, attempt),
            done => done,
        }
    }

    #[cold]
    fn retried_in_line<T>(
        &self,
        patience: &mut Patience,
        attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let since = Instant::now();
        let done = self.retried_until(since + patience.0, attempt);
        // An attempt that was done in the end has written, which may take long.
        if matches!(done, Err(Error::NoSpace)) {
            patience.0 = patience.0.saturating_sub(since.elapsed());
        }
        done
    }

    fn retried_until<T>(
        &self,
        deadline: Instant,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let place = InLine::join(self, deadline);
        loop {
            let turn = place.wait_for_turn();
            match attempt() {
                Err(Error::NoSpace) => {}
                done => return done,
            }
            match place.outcome(turn) {
                Outcome::Refused => return Err(Error::NoSpace),
                Outcome::TurnLost => {}
                Outcome::Short(_) if Instant::now() >= deadline => {
                    return Err(Error::NoSpace);
                }
                Outcome::Short(shortage) => place.wait_for_space(shortage)?,
            }
        }
    }

    /// Requests space. A refusal ends the attempt of [`SpaceQueue::retried`], which waits if that
    /// helps.
    pub(crate) fn with_space<T>(
        &self,
        ask: impl FnOnce() -> std::result::Result<T, fourscore_mballoc::Error>,
    ) -> Result<T> {
        ask().map_err(|error| self.refused(error))
    }

    /// Notes what a refused request for space has to wait for, if this thread has its turn. Returns
    /// the error.
    #[cold]
    pub(crate) fn refused(&self, error: fourscore_mballoc::Error) -> Error {
        if let fourscore_mballoc::Error::CommitFirst { tid, .. } = error {
            let completed = self.allocator.discards_completed();
            let mut line = self.line.lock();
            let first = line.waiting.front().map(|place| place.thread.id());
            if first == Some(thread::current().id()) {
                line.shortage = Some(Shortage { tid, completed });
            }
        }
        error.into()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use fourscore_block::DeviceOptions;
    use fourscore_mballoc::Privilege;
    use fourscore_sync::atomic::AtomicBool;
    use fourscore_testkit::image::{Image, MiB};
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::*;
    use crate::{Fs, InodeNr, MountOptions, NewAttributes};

    /// A reader keeps the space that a truncation frees.
    #[test]
    fn all_attempts_of_an_operation_together_wait_as_long_as_one() {
        require!(Need::Program("mke2fs"));
        const MOST: Duration = Duration::from_millis(300);
        let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(1024);
        let image = image.make().unwrap();
        let device = fourscore_block::open_path(image.path(), DeviceOptions::read_write()).unwrap();
        let fs = Fs::mount(Arc::new(device), &MountOptions::new()).unwrap();
        let root = NewAttributes::owned_by(0, 0);
        let file = fs.create(InodeNr::ROOT, b"file", &root).unwrap();
        fs.write_at(file, &[7; 4 << 20], 0).unwrap();
        let [is_reading, may_end] = [const { AtomicBool::new(false) }; 2];
        let wait_for = |flag: &AtomicBool| {
            while !flag.load(Ordering::Acquire) {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = epoch::pin();
                is_reading.store(true, Ordering::Release);
                wait_for(&may_end);
            });
            wait_for(&is_reading);
            fs.truncate(file, 0).unwrap();
            let mount = fs.writable().unwrap();
            let mut patience = Patience(MOST);
            let mut waited = || {
                let since = Instant::now();
                let allocator = mount.allocator();
                let wanted = allocator.free_clusters() + 100;
                let reserve = || allocator.reserve(wanted, Privilege::User);
                let refused = mount
                    .space
                    .retried_within(&mut patience, || mount.space.with_space(reserve));
                assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
                since.elapsed()
            };
            let (first, second) = (waited(), waited());
            may_end.store(true, Ordering::Release);
            assert!(first >= MOST && second < MOST / 2, "{first:?}, {second:?}");
        });
        fs.unmount().unwrap();
    }
}
