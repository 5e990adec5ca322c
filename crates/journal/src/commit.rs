//! **Purpose.** Commits: makes sealed transactions durable, and wakes the threads that wait for
//! them.
//!
//! # Model
//! A thread that wants a transaction durable while no commit is in progress takes the *role* of
//! committer and commits on its own; all others wait, and are served by the same commit or by the
//! next. So the threads that arrive while a commit waits for the device share the next one (group
//! commit). A background thread takes the role when the interval has passed, or when starting
//! handles have found the transaction full.
//!
//! A thread that waits for a *fast commit* takes the same role, so that no transaction is sealed
//! meanwhile. It serves all threads whose changes the file system's records include; the others
//! take the role after it.
//!
//! # Invariants
//! - One transaction commits at a time, in the order of their tids.
//! - A waiter is woken when its transaction is durable, or with the error that aborted the journal.
//!   Deferred frees and other callbacks of the transaction have run before.
//!
//! # Locking
//! The lock of this module guards the role and the state of the waiters; it is not held across I/O,
//! nor while a transaction is sealed.
//!
//! # Crash safety
//! 1. Data that the transaction exposes is written (`before_commit`).
//! 2. If the superblock says that the journal is empty, the start of the log is written to it.
//! 3. The transaction is written to the log, except its commit block and runs of new blocks, which
//!    are written to their home locations (module `new_blocks`).
//! 4. *Flush.* Without it the commit block could be on the medium before the blocks that it
//!    commits, and recovery would replay stale blocks of the log. With an external journal the
//!    device of the file system is flushed as well: it holds the data of step 1 and the new blocks
//!    of step 3.
//! 5. The commit block is written with *FUA*. Without it `fsync` would return while the commit is
//!    in a volatile cache.
//!
//! Only then may the blocks be checkpointed, and freed blocks be allocated again. Without a log
//! steps 2 to 5 are those of the module `in_place`.

use std::io;
use std::mem;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fourscore_block::BlockDevice as _;
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::profile::{self, Section};
use fourscore_sync::spin::{WAKE_UP, spin};
use fourscore_sync::{Condvar, CoreNr, Mutex, MutexGuard, thread};

use crate::checkpoint::CommittedBlock;
use crate::error::{During, Error};
use crate::frame::{Ending, Frame, no_record};
use crate::handle;
use crate::journal::{Background, Batching, Flushed, Inner, Logged};
use crate::log::Log;
use crate::new_blocks::NewBlocks;
use crate::sabotage::Sabotage;
use crate::seal::{FastCommit, FastCommitRequest, SealedTransaction};
use crate::transaction::{ChangedBuffer, Changes, OnCommit};

/// The longest wait for more threads that want the same commit.
const MAX_BATCHING: Duration = Duration::from_millis(5);

/// The shortest such wait that is slept. The host's shortest sleep takes about as long.
const MIN_BATCHING: Duration = Duration::from_micros(50);

/// The shortest such wait. No thread that the last commit has woken comes back sooner.
const MIN_AWAKE: Duration = Duration::from_micros(2);

/// If commits take longer than this on average, threads sleep at once instead of waiting awake.
const LONGEST_AWAKE: Duration = Duration::from_micros(40);

/// The state of the commit queue.
#[derive(Debug)]
struct Waiting {
    /// The last transaction that is durable.
    committed: Tid,
    /// The last transaction whose commit was requested.
    requested: Tid,
    /// Whether a thread has the role of committer.
    committing: bool,
    /// Threads that wait for a commit, the committer among them if it is one of these.
    waiters: usize,
    /// How often a thread has waited.
    waits: u64,
    /// The number of waiters at the end of recent commits: a decaying maximum.
    served: usize,
    /// How long a commit takes, averaged.
    commit_time: Duration,
    stopping: bool,
}

/// Whether what a thread waits for is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// It is.
    Yes,
    /// It is not, and a fast commit may make it durable.
    No,
    /// It is not, and only the full commit of this transaction makes it durable.
    InFull(Tid),
}

/// How a wait for a fast commit has ended, and whether the thread has flushed the device.
enum FastWait {
    /// What the thread waits for is durable.
    Ended(Flushed),
    /// The thread must wait for the full commit of this transaction.
    InFull(Tid, Flushed),
}

/// The queue in front of the committer.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// A commit has ended, or the journal was aborted.
    done: Condvar,
    /// There is work for the background thread.
    work: Condvar,
    /// One more waiter has arrived.
    arrived: Condvar,
    /// How often a commit has ended, for threads that wait awake.
    ends: AtomicU64,
    /// How often a waiter has arrived, for a committer that waits awake.
    arrivals: AtomicU64,
}

/// The result of taking the role of committer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A transaction is durable now.
    Committed,
    /// The running transaction was empty.
    Nothing,
}

impl Queue {
    /// An empty queue; `committed` is the last durable transaction.
    pub(crate) fn new(committed: Tid) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                committed,
                requested: committed,
                committing: false,
                waiters: 0,
                waits: 0,
                served: 0,
                commit_time: Duration::ZERO,
                stopping: false,
            }),
            done: Condvar::new(),
            work: Condvar::new(),
            arrived: Condvar::new(),
            ends: AtomicU64::new(0),
            arrivals: AtomicU64::new(0),
        }
    }

    /// Notes one more waiter.
    fn arrive(&self, mut waiting: MutexGuard<'_, Waiting>) {
        waiting.waiters += 1;
        waiting.waits += 1;
        drop(waiting);
        self.arrivals.fetch_add(1, Ordering::Release);
        self.arrived.notify_all();
    }

    /// Waits for the end of the commit in progress. The thread stays awake as long as that is
    /// likely to be soon, and sleeps after that.
    fn wait_for_end<'q>(&'q self, waiting: MutexGuard<'q, Waiting>) -> MutexGuard<'q, Waiting> {
        let mut waiting = waiting;
        if waiting.is_end_near() {
            let before = self.ends.load(Ordering::Acquire);
            drop(waiting);
            let has_ended = || (self.ends.load(Ordering::Acquire) != before).then_some(());
            let _ = spin(WAKE_UP, has_ended);
            waiting = self.waiting.lock();
        }
        if waiting.committing {
            self.done.wait(&mut waiting);
        }
        waiting
    }

    /// The last transaction that is durable.
    pub(crate) fn committed(&self) -> Tid {
        self.waiting.lock().committed
    }

    /// How often a thread has waited for a commit.
    pub(crate) fn waits(&self) -> u64 {
        self.waiting.lock().waits
    }

    /// Wakes all waiters, which then test whether the journal was aborted.
    pub(crate) fn wake_all(&self) {
        drop(self.waiting.lock());
        self.done.notify_all();
        self.work.notify_all();
        self.arrived.notify_all();
    }

    /// Requests the commit of `tid`, for the injected fault that `Inner::fast_commit_early`
    /// implements.
    #[cfg(feature = "sabotage")]
    pub(crate) fn request(&self, tid: Tid) {
        self.waiting.lock().request(tid);
    }

    /// Gives other threads time to wait for a commit, for the same fault.
    #[cfg(feature = "sabotage")]
    pub(crate) fn wait_for_arrival(&self) {
        let mut waiting = self.waiting.lock();
        self.arrived
            .wait_for(&mut waiting, Duration::from_millis(2));
    }

    /// Waits until no thread has the role.
    pub(crate) fn wait_idle(&self) {
        let mut waiting = self.waiting.lock();
        while waiting.committing {
            self.done.wait(&mut waiting);
        }
    }

    /// Ends the background thread.
    pub(crate) fn stop(&self) {
        self.waiting.lock().stopping = true;
        self.work.notify_all();
    }
}

impl Waiting {
    /// Whether the commit in progress is likely to end before a thread that sleeps could be woken,
    /// and each waiter has a core to wait on.
    fn is_end_near(&self) -> bool {
        self.commit_time <= LONGEST_AWAKE && self.waiters <= CoreNr::count()
    }

    fn request(&mut self, tid: Tid) {
        if tid.is_after(self.requested) {
            self.requested = tid;
        }
    }

    /// Whether fewer threads wait than recent commits served.
    fn expects_more(&self) -> bool {
        self.waiters > 0 && self.waiters < self.served
    }

    /// How long a commit should wait for more threads, at most.
    fn longest_gathering(&self) -> Duration {
        match self.expects_more() {
            true => (self.commit_time / 2).min(MAX_BATCHING),
            false => Duration::ZERO,
        }
    }

    /// Notes that a commit has taken `time`, and how many threads wait at its end: it has served
    /// some of them, and the others arrived meanwhile.
    fn note_commit(&mut self, time: Duration) {
        self.commit_time = (self.commit_time * 3 + time) / 4;
        // Rounded down: a thread that was served with another one once must not always wait for it.
        self.served = (self.served * 3 / 4).max(self.waiters);
    }
}

/// The role of committer; released when dropped.
struct Role<'j> {
    journal: &'j Inner,
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.journal.abort(During::Operation, None);
        }
        let mut waiting = self.journal.queue().waiting.lock();
        waiting.committing = false;
        // The background thread need not run for each commit of another thread.
        let is_requested = waiting.requested.is_after(waiting.committed);
        drop(waiting);
        if !self.journal.skips(Sabotage::NoWakeUp) {
            self.journal.queue().ends.fetch_add(1, Ordering::Release);
            self.journal.queue().done.notify_all();
        }
        if is_requested {
            self.journal.queue().work.notify_all();
        }
    }
}

impl Inner {
    /// Waits until `tid` is durable.
    pub(crate) fn wait_for(&self, tid: Tid) -> Result<(), Error> {
        let _section = profile::enter(Section::Journal);
        assert!(
            !handle::is_inside(),
            "a thread waits for a commit of the transaction that its own handle keeps open"
        );
        self.queue().arrive(self.queue().waiting.lock());
        let mut waiting = self.queue().waiting.lock();
        let result = loop {
            if !tid.is_after(waiting.committed) {
                break Ok(());
            }
            if self.is_aborted() {
                break Err(self.aborted());
            }
            waiting.request(tid);
            if waiting.committing {
                waiting = self.queue().wait_for_end(waiting);
                continue;
            }
            let role = self.take_role(waiting);
            let outcome = self.commit_one(role);
            waiting = self.queue().waiting.lock();
            match outcome {
                Ok(Outcome::Committed) => {}
                // The running transaction is empty, and all earlier ones are durable.
                Ok(Outcome::Nothing) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        waiting.waiters -= 1;
        result
    }

    /// Waits until `covered` says that what the thread waits for is durable, or `tid` is. Returns
    /// whether this thread has flushed the device meanwhile.
    pub(crate) fn wait_for_fast(
        &self,
        tid: Tid,
        covered: &dyn Fn() -> Covered,
    ) -> Result<Flushed, Error> {
        let _section = profile::enter(Section::Journal);
        assert!(
            !handle::is_inside(),
            "a thread waits for a commit while its own handle is open"
        );
        match covered() {
            Covered::Yes => return Ok(Flushed::No),
            Covered::InFull(tid) => return self.wait_in_full(tid).map(|()| Flushed::No),
            Covered::No => {}
        }
        self.queue().arrive(self.queue().waiting.lock());
        let ended = self.wait_until_covered(tid, covered);
        self.queue().waiting.lock().waiters -= 1;
        match ended? {
            FastWait::Ended(flushed) => Ok(flushed),
            FastWait::InFull(tid, flushed) => self.wait_in_full(tid).map(|()| flushed),
        }
    }

    /// Waits for the full commit of `tid`, in place of a fast one.
    fn wait_in_full(&self, tid: Tid) -> Result<(), Error> {
        self.note_full_in_place_of_fast();
        self.wait_for(tid)
    }

    /// The loop of [`Inner::wait_for_fast`].
    fn wait_until_covered(
        &self,
        tid: Tid,
        covered: &dyn Fn() -> Covered,
    ) -> Result<FastWait, Error> {
        let mut flushed = Flushed::No;
        loop {
            let mut waiting = self.queue().waiting.lock();
            if !tid.is_after(waiting.committed) {
                return Ok(FastWait::Ended(flushed));
            }
            if self.is_aborted() {
                return Err(self.aborted());
            }
            if waiting.committing {
                drop(self.queue().wait_for_end(waiting));
            } else {
                // Others may wait for the full commit, which serves all.
                let in_full = waiting.requested.is_after(waiting.committed);
                let outcome = match in_full {
                    true => self.commit_one(self.take_role(waiting))?,
                    false => {
                        waiting.committing = true;
                        drop(waiting);
                        self.commit_fast(Role { journal: self })?
                    }
                };
                if outcome == Outcome::Committed {
                    flushed = Flushed::Yes;
                }
            }
            match covered() {
                Covered::Yes => return Ok(FastWait::Ended(flushed)),
                Covered::InFull(tid) => return Ok(FastWait::InFull(tid, flushed)),
                Covered::No => {}
            }
        }
    }

    /// Makes a fast commit of the running transaction, or a full one.
    fn commit_fast(&self, role: Role<'_>) -> Result<Outcome, Error> {
        self.gather_waiters();
        match self.try_fast_commit()? {
            Some(outcome) => {
                drop(role);
                Ok(outcome)
            }
            None => {
                self.note_full_in_place_of_fast();
                self.commit_in_full(role)
            }
        }
    }

    /// Makes a fast commit of the running transaction; `None` if it must be a full one, which the
    /// caller then makes. Only for the committer.
    pub(crate) fn try_fast_commit(&self) -> Result<Option<Outcome>, Error> {
        let began = Instant::now();
        let tid = self.gate().state().tid();
        let (room_blocks, is_first) = self.fast_commit_space(tid);
        let request = FastCommitRequest {
            tid,
            is_first,
            room_blocks,
            dirty_blocks: self.budget().drawn(),
            most_blocks: self.budget().limits().credits,
        };
        let content = match request.room_blocks > 0 && self.prepare_fast_commit(tid)? {
            false => FastCommit::InFull,
            true => self.hook().fast_commit(&request),
        };
        let (outcome, records) = match content {
            FastCommit::Nothing => (Outcome::Nothing, Vec::new()),
            FastCommit::Records(blocks) => {
                let written = self.write_fast_commit(tid, &blocks)?;
                let time = began.elapsed();
                self.note_fast_commit(written, time);
                self.queue().waiting.lock().note_commit(time);
                (Outcome::Committed, blocks)
            }
            FastCommit::InFull => return Ok(None),
        };
        self.hook().on_fast_commit(tid, records);
        Ok(Some(outcome))
    }

    /// Requests the commit of `tid`, which has too few credits left, and waits until the gate was
    /// opened again after `turn`.
    pub(crate) fn seal_for_credits(&self, tid: Tid, turn: u64) -> Result<(), Error> {
        match self.options().background {
            Background::None => self.wait_for(tid),
            Background::Threads { .. } => {
                self.queue().waiting.lock().request(tid);
                self.queue().work.notify_all();
                self.gate().wait_open(Some(turn));
                self.check_not_aborted()
            }
        }
    }

    /// The loop of the background thread: commits on request, and when `interval` has passed.
    pub(crate) fn commit_in_background(&self, interval: Duration) {
        loop {
            let mut waiting = self.queue().waiting.lock();
            loop {
                if waiting.stopping || self.is_aborted() {
                    return;
                }
                if !waiting.committing && waiting.requested.is_after(waiting.committed) {
                    break;
                }
                let waited = self.queue().work.wait_for(&mut waiting, interval);
                if waited.timed_out() && !self.running().is_empty() {
                    waiting.request(self.gate().state().tid());
                }
            }
            let role = self.take_role(waiting);
            // An error has aborted the journal, which ends the loop.
            let _ = self.commit_one(role);
        }
    }

    /// Becomes the committer. The commit that follows serves all requests so far: they are for the
    /// running transaction, since all earlier ones are committed.
    fn take_role(&self, mut waiting: MutexGuard<'_, Waiting>) -> Role<'_> {
        waiting.committing = true;
        waiting.requested = waiting.committed;
        Role { journal: self }
    }

    /// Seals the running transaction and makes it durable.
    fn commit_one(&self, role: Role<'_>) -> Result<Outcome, Error> {
        self.gather_waiters();
        self.commit_in_full(role)
    }

    /// As [`Inner::commit_one`], without waiting for more waiters.
    fn commit_in_full(&self, role: Role<'_>) -> Result<Outcome, Error> {
        self.make_space()?;
        self.check_not_aborted()?;
        let began = Instant::now();
        let Some(sealed) = self.seal()? else {
            return Ok(Outcome::Nothing);
        };
        let tid = sealed.tid;
        let callbacks = self.write_out(sealed)?;
        for callback in callbacks {
            callback(tid);
        }
        self.hook().on_durable(tid);
        let mut waiting = self.queue().waiting.lock();
        waiting.committed = tid;
        waiting.note_commit(began.elapsed());
        drop(waiting);
        drop(role);
        Ok(Outcome::Committed)
    }

    /// If recent commits served several waiters, waits a little for as many to arrive: for a part
    /// of the time that separate commits would cost them.
    fn gather_waiters(&self) {
        let began = Instant::now();
        let longest = match self.options().batching {
            Batching::Off => return,
            Batching::Adaptive => self.queue().waiting.lock().longest_gathering(),
        };
        // Threads that sync what is durable already need not wait for others.
        if longest < MIN_AWAKE || self.running().is_empty() {
            return;
        }
        if longest < MIN_BATCHING {
            return self.gather_awake(longest);
        }
        let mut waiting = self.queue().waiting.lock();
        while waiting.expects_more() && !self.is_aborted() {
            let Some(left) = longest.checked_sub(began.elapsed()) else {
                return;
            };
            self.queue().arrived.wait_for(&mut waiting, left);
        }
    }

    /// Waits awake for as many waiters as recent commits served.
    fn gather_awake(&self, longest: Duration) {
        let queue = self.queue();
        let mut seen = None;
        let _ = spin(longest, || {
            let arrivals = queue.arrivals.load(Ordering::Acquire);
            let is_new = seen.replace(arrivals) != Some(arrivals);
            (is_new && !queue.waiting.lock().expects_more()).then_some(())
        });
    }

    /// Makes a sealed transaction durable. Returns the callbacks that are to be called now.
    fn write_out(&self, sealed: SealedTransaction) -> Result<Vec<OnCommit>, Error> {
        let tid = sealed.tid;
        let mut changes = Changes::merged(sealed.changes);
        for first in mem::take(&mut changes.before_commit) {
            first().map_err(|source| self.abort_with(During::OrderedData(tid), source))?;
        }
        changes
            .buffers
            .sort_unstable_by_key(|changed| changed.block);
        let Changes {
            buffers,
            revoked,
            on_commit,
            ..
        } = changes;
        match self.logged() {
            Some(logged) => self.write_to_log(logged, tid, buffers, revoked)?,
            None => self.write_in_place(tid, buffers)?,
        }
        Ok(on_commit)
    }

    /// Writes a transaction to the log and makes it durable; its blocks await a checkpoint then.
    fn write_to_log(
        &self,
        logged: &Logged,
        tid: Tid,
        buffers: Vec<ChangedBuffer>,
        revoked: Vec<PhysBlock>,
    ) -> Result<(), Error> {
        let (revoked, again) = still_revoked(tid, revoked, &buffers);
        // Both are in order. A block without a record aborts before anything is written.
        let last_changed = buffers.last().map(|changed| changed.block);
        if let Some(block) = revoked.last().copied().max(last_changed) {
            let checked = logged.format().block_numbers.check(block);
            checked.map_err(|error| self.abort_with(During::Log(tid), no_record(error)))?;
        }
        let mut new = NewBlocks::new(self, &again);
        let start = logged.space().head();
        logged
            .superblock()
            .begin(logged.log(), start, tid)
            .map_err(|source| self.abort_with(During::Superblock, source))?;
        let mut frame = Frame::new(self, logged, tid, start);
        let (blocks, ending) = self
            .log_blocks(&mut frame, &mut new, &revoked, buffers)
            .and_then(|blocks| {
                let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
                Ok((blocks, frame.end(since_1970.unwrap_or_default())?))
            })
            .map_err(|source| self.abort_with(During::Log(tid), source))?;
        // With an injected fault there may be fast commits of the next transaction already.
        let is_early = self.fast_commit_early()?;
        self.make_durable(logged, tid, &ending)?;
        if !is_early {
            self.clear_fast_commits(logged)
                .map_err(|source| self.abort_with(During::Log(tid), source))?;
        }
        self.note_commit(ending.blocks, new.committed(tid));
        logged
            .space()
            .committed(tid, ending.blocks, blocks, &revoked);
        Ok(())
    }

    /// Seals the buffers of the transaction `tid`, one by one as the iterator advances; last those
    /// that follow from others ([`SealHook::follows_from_others`](crate::SealHook)).
    pub(crate) fn sealed_blocks(
        &self,
        tid: Tid,
        buffers: Vec<ChangedBuffer>,
    ) -> impl Iterator<Item = CommittedBlock> {
        let (last, first): (Vec<_>, Vec<_>) = buffers
            .into_iter()
            .partition(|changed| self.hook().follows_from_others(changed.block));
        let seal = move |ChangedBuffer { block, buffer }| {
            let finish = |tag, bytes: &mut [u8]| self.hook().finish(tid, block, tag, bytes);
            let sealed = buffer.seal_with(tid, finish)?;
            Some(CommittedBlock { sealed, buffer })
        };
        first.into_iter().chain(last).filter_map(seal)
    }

    /// Step 3: seals the buffers, which are in the order of their blocks, and writes them to the
    /// log after the revoke records, except runs of new blocks, which go to their home locations.
    /// Returns the sealed blocks that are in the log, in ascending order.
    fn log_blocks(
        &self,
        frame: &mut Frame<'_>,
        new: &mut NewBlocks<'_>,
        revoked: &[PhysBlock],
        buffers: Vec<ChangedBuffer>,
    ) -> io::Result<Vec<CommittedBlock>> {
        frame.put_revokes(self.as_revoked(revoked))?;
        let tags = frame.tags_per_descriptor();
        let mut logged = Vec::new();
        let mut framed = 0;
        for next in self.sealed_blocks(frame.tid(), buffers) {
            new.take(next, &mut logged)?;
            while let Some(part) = logged.get(framed..framed + tags) {
                frame.put_data(part)?;
                framed += tags;
            }
        }
        new.end_run(&mut logged)?;
        for part in logged.get(framed..).unwrap_or(&[]).chunks(tags) {
            frame.put_data(part)?;
        }
        new.wait()?;
        // Already in order, except those that follow from others.
        logged.sort_by_key(|block| block.sealed.block);
        Ok(logged)
    }

    /// Steps 4 and 5 of the module's documentation.
    fn make_durable(&self, logged: &Logged, tid: Tid, ending: &Ending) -> Result<(), Error> {
        let log = logged.log();
        if !self.skips(Sabotage::NoFlushBeforeCommit) {
            self.flush_before_commit(log)
                .map_err(|source| self.abort_with(During::Log(tid), source))?;
        }
        let offset = log.offset(ending.at).unwrap_or(u64::MAX);
        log.device()
            .write_fua(&[io::IoSlice::new(&ending.block)], offset)
            .map_err(|source| self.abort_with(During::Commit(tid), source))
    }

    pub(crate) fn flush_before_commit(&self, log: &Log) -> io::Result<()> {
        if !log.map().is_internal() {
            self.home().flush()?;
        }
        log.device().flush()
    }
}

/// The revoked blocks, each once and in ascending order, and apart from them those that the
/// transaction `tid` has changed again since. `buffers` are in the order of their blocks, and not
/// sealed yet.
fn still_revoked(
    tid: Tid,
    mut revoked: Vec<PhysBlock>,
    buffers: &[ChangedBuffer],
) -> (Vec<PhysBlock>, Vec<PhysBlock>) {
    revoked.sort_unstable();
    revoked.dedup();
    revoked.into_iter().partition(|&revoked| {
        let first = buffers.partition_point(|changed| changed.block < revoked);
        // One buffer of the block was forgotten; there may be a second one, if the block was
        // allocated again.
        let mut of_block = buffers.iter().skip(first);
        !of_block
            .by_ref()
            .take_while(|changed| changed.block == revoked)
            .any(|changed| changed.buffer.holds_changes_of(tid))
    })
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_alone_again_waits_for_no_other() {
        let queue = Queue::new(Tid(1));
        queue.arrive(queue.waiting.lock());
        queue.arrive(queue.waiting.lock());
        let mut waiting = queue.waiting.lock();
        waiting.note_commit(Duration::from_millis(1));
        waiting.waiters = 1;
        assert!(waiting.longest_gathering() > Duration::ZERO);
        for _ in 0..4 {
            waiting.note_commit(Duration::from_millis(1));
        }
        assert_eq!(waiting.longest_gathering(), Duration::ZERO);
    }
}
