//! **Purpose.** The journal of a mounted file system: its parts, its beginning and its end.
//!
//! **Model.** Handles, gate and credits are the same with a log and without. What differs is what a
//! commit does: with a log the transaction goes there ([`Logged`]) and from there to its places,
//! without one to its places at once (`in_place`).

use std::io;
use std::mem;
use std::time::Duration;

use fourscore_block::BlockDevice;
use fourscore_ondisk::jbd2::{JournalIncompat, JournalSuperblock, LogFormat};
use fourscore_ondisk::{BlockSize, Tid};
use fourscore_sync::{Arc, Mutex, OnceLock, thread};

use crate::checkpoint::LogSpace;
use crate::commit::Queue;
use crate::credits::{Budget, Credits, Limits};
use crate::error::{AbortCause, During, Error};
use crate::gate::Gate;
use crate::handle::{Handle, is_inside};
use crate::log::Log;
use crate::ring::Ring;
use crate::seal::SealHook;
use crate::stats::{JournalStats, Tally};
use crate::superblock::LiveSuperblock;
use crate::transaction::Running;

/// `s_errno` of a journal that was aborted by a failed write: -EIO.
const ERRNO_IO: i32 = -5;

/// Who commits and checkpoints when nobody waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Two threads: one commits a transaction that has run for `interval` or has no room left, one
    /// keeps space free in the log.
    Threads {
        /// How long changes may stay in memory.
        interval: Duration,
    },
    /// Nobody: whoever needs something done does it itself.
    None,
}

/// Whether a committer waits a little for others who want the same commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// It waits for as many as came lately, at most half the time that a commit takes.
    Adaptive,
    /// It begins at once.
    Off,
}

/// The checksums of a log that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewChecksums {
    /// Version 3, as the kernel does for file systems with `metadata_csum`.
    V3,
    /// The log stays without.
    None,
}

/// What becomes of the last blocks of the journal, where fast commits go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastCommitArea {
    /// As the superblock of the journal says. The kernel does not speak of the area in a journal
    /// that it left clean.
    AsFound,
    /// It is no part of the log: for a file system with the feature `fast_commit`.
    Reserved,
}

/// How a journal is written.
#[derive(Clone, Copy, Debug)]
pub struct JournalOptions {
    /// Who works when nobody waits.
    pub background: Background,
    /// Whether commits wait for company.
    pub batching: Batching,
    /// What a log without checksums gets.
    pub checksums: NewChecksums,
    /// Whether the log leaves room for fast commits.
    pub fast_commits: FastCommitArea,
    /// How many blocks [`SealHook::at_seal`] may add to each transaction.
    pub seal_credits: Credits,
    /// What is done wrong on purpose, to show that the crash tests notice.
    #[cfg(feature = "sabotage")]
    pub sabotage: Option<crate::Sabotage>,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            background: Background::Threads {
                interval: Duration::from_secs(5),
            },
            batching: Batching::Adaptive,
            checksums: NewChecksums::V3,
            fast_commits: FastCommitArea::AsFound,
            seal_credits: Credits(0),
            #[cfg(feature = "sabotage")]
            sabotage: None,
        }
    }
}

/// What the handles, the committer and the checkpointer share.
pub(crate) struct Inner {
    // Read by every handle, written never.
    options: JournalOptions,
    block_size: BlockSize,
    home: Arc<dyn BlockDevice>,
    hook: Arc<dyn SealHook>,
    // Written by handles, each on lines of its core; see `gate` and `credits`.
    gate: Gate,
    budget: Budget,
    running: Running,
    // Written by commits and checkpoints.
    queue: Queue,
    /// `None` if transactions go to their places at once.
    logged: Option<Logged>,
    cause: OnceLock<AbortCause>,
    tally: Mutex<Tally>,
}

/// A log that is being written.
#[derive(Debug)]
pub(crate) struct Logged {
    log: Log,
    ring: Ring,
    format: LogFormat,
    space: LogSpace,
    superblock: LiveSuperblock,
}

/// A journal that is being written.
///
/// Dropping it leaves the log as it is, to be recovered; [`Journal::close`] leaves an empty one.
pub struct Journal {
    inner: Arc<Inner>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Journal {
    /// Opens an empty log for writing. `home` is the device of the file system, whose blocks are
    /// journaled; for an internal journal, the log's own.
    ///
    /// A log that [`replay_before_fast_commits`](crate::replay_before_fast_commits) has replayed is
    /// empty too; then the first transaction is the one to which the fast commits belong.
    ///
    /// Gives the log the features it needs: revoke records, block numbers wide enough for `home`,
    /// checksums and an area for fast commits as `options` say.
    ///
    /// # Errors
    /// The log holds something to be replayed, is too short, or the superblock cannot be written.
    pub fn open(
        mut log: Log,
        home: Arc<dyn BlockDevice>,
        hook: Arc<dyn SealHook>,
        options: JournalOptions,
    ) -> Result<Self, Error> {
        let start = log.superblock().start();
        if let Some(start) = start.filter(|_| !log.is_replayed()) {
            return Err(Error::NeedsRecovery { start });
        }
        upgrade(&mut log, &*home, &options)?;
        let (ring, format) = (
            Ring::new(&log.superblock().log()),
            log.superblock().log_format(),
        );
        let set_aside = options.seal_credits.0;
        let limits = Limits::new(ring.len(), log.block_size(), &format, set_aside)
            .ok_or(Error::LogTooShort { blocks: ring.len() })?;
        let sequence = log.superblock().sequence();
        let (head, last) = match start {
            Some(start) if ring.contains(start) => (start, Tid(sequence.0.wrapping_sub(1))),
            Some(start) => return Err(Error::NeedsRecovery { start }),
            None => (ring.first(), sequence),
        };
        let places = (home, log.block_size());
        let logged = Logged {
            space: LogSpace::new(ring, head, last.next()),
            superblock: LiveSuperblock::new(log.superblock().clone()),
            log,
            ring,
            format,
        };
        Ok(Self::begin(
            places,
            hook,
            options,
            (limits, last),
            Some(logged),
        ))
    }

    /// Begins a journal without a log, for a file system on `home` that has none: a commit writes
    /// each block to its place, and a crash may leave a transaction there in part. What holds
    /// nevertheless is said in the module `in_place`.
    ///
    /// What `options` say of the log's features is of no account.
    ///
    /// # Errors
    /// [`Error::LogTooShort`] if more credits are set aside for sealing than a transaction has.
    pub fn without_log(
        home: Arc<dyn BlockDevice>,
        block_size: BlockSize,
        hook: Arc<dyn SealHook>,
        options: JournalOptions,
    ) -> Result<Self, Error> {
        let limits = Limits::without_log(block_size, options.seal_credits.0)
            .ok_or(Error::LogTooShort { blocks: 0 })?;
        let begin = (limits, Tid(0));
        Ok(Self::begin((home, block_size), hook, options, begin, None))
    }

    /// The journal whose last transaction was `last`.
    fn begin(
        (home, block_size): (Arc<dyn BlockDevice>, BlockSize),
        hook: Arc<dyn SealHook>,
        options: JournalOptions,
        (limits, last): (Limits, Tid),
        logged: Option<Logged>,
    ) -> Self {
        let inner = Arc::new(Inner {
            options,
            block_size,
            home,
            hook,
            gate: Gate::new(last.next()),
            budget: Budget::new(limits),
            running: Running::default(),
            queue: Queue::new(last),
            logged,
            cause: OnceLock::new(),
            tally: Mutex::new(Tally::default()),
        });
        let threads = match options.background {
            Background::None => Vec::new(),
            Background::Threads { interval } => Self::start_threads(&inner, interval),
        };
        Self {
            inner,
            threads: Mutex::new(threads),
        }
    }

    fn start_threads(inner: &Arc<Inner>, interval: Duration) -> Vec<thread::JoinHandle<()>> {
        let commits = Arc::clone(inner);
        let mut threads = vec![thread::spawn(move || {
            commits.commit_in_background(interval);
        })];
        if inner.logged.is_some() {
            let checkpoints = Arc::clone(inner);
            threads.push(thread::spawn(move || {
                checkpoints.checkpoint_in_background();
            }));
        }
        threads
    }

    /// Whether there is a log, so that after a crash a transaction is there as a whole or not at
    /// all.
    #[must_use]
    pub fn has_log(&self) -> bool {
        self.inner.logged.is_some()
    }

    /// Opens a handle that may add up to `credits` blocks to the running transaction. Waits while
    /// a transaction is being sealed, and while the running one has no room.
    ///
    /// # Errors
    /// [`Error::TooManyCredits`] if no transaction has that many, [`Error::Aborted`].
    ///
    /// # Panics
    /// If this thread has an open handle already.
    #[inline]
    pub fn start(&self, credits: Credits) -> Result<Handle<'_>, Error> {
        Handle::start(&self.inner, credits)
    }

    /// As [`Journal::start`], in the transaction `tid` or not at all: nothing is sealed to make
    /// room.
    ///
    /// # Errors
    /// [`Error::TooManyCredits`] if `tid` has no room for that many more, or is not the running
    /// transaction; [`Error::Aborted`].
    ///
    /// # Panics
    /// If this thread has an open handle already.
    pub fn start_in(&self, tid: Tid, credits: Credits) -> Result<Handle<'_>, Error> {
        Handle::start_in(&self.inner, tid, credits)
    }

    /// The running transaction.
    #[must_use]
    pub fn running_tid(&self) -> Tid {
        self.inner.gate.state().tid()
    }

    /// The last transaction that is durable.
    #[must_use]
    pub fn committed_tid(&self) -> Tid {
        self.inner.queue.committed()
    }

    /// Waits until the transaction `tid` is durable. All who wait at the same time are served by
    /// one commit. Returns at once if it is durable already; then data that was written in place
    /// since is not flushed.
    ///
    /// # Errors
    /// [`Error::Aborted`], if the transaction was not durable before.
    ///
    /// # Panics
    /// If this thread has an open handle.
    pub fn commit_and_wait(&self, tid: Tid) -> Result<(), Error> {
        self.inner.wait_for(tid)
    }

    /// Makes durable everything that was done by handles that have stopped.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    ///
    /// # Panics
    /// If this thread has an open handle.
    pub fn commit(&self) -> Result<(), Error> {
        self.commit_and_wait(self.running_tid())
    }

    /// Brings all committed blocks to their places and gives the log free. Without a log they are
    /// there.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.inner.checkpoint(0)
    }

    /// Commits, checkpoints, and says that the journal is empty, until the next commit: for who
    /// makes sure that nobody starts a handle meanwhile.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn quiesce(&self) -> Result<(), Error> {
        self.commit()?;
        self.checkpoint()?;
        self.mark_empty()
    }

    /// Commits, checkpoints, and leaves an empty journal; without a log everything is in place.
    ///
    /// # Errors
    /// [`Error::Aborted`]; the log is left to be recovered then.
    pub fn close(&self) -> Result<(), Error> {
        self.commit()?;
        self.stop_threads();
        self.checkpoint()?;
        self.mark_empty()
    }

    fn mark_empty(&self) -> Result<(), Error> {
        let (inner, last) = (&self.inner, self.running_tid());
        let Some(logged) = &inner.logged else {
            return Ok(());
        };
        logged
            .superblock
            .set_tail(&logged.log, None, last)
            .map_err(|source| inner.abort_with(During::Superblock, source))
    }

    /// Refuses everything from now on: what is not durable stays so.
    pub fn abort(&self) {
        self.inner.abort(During::Request, None);
    }

    /// As [`Journal::abort`], because the file system is broken: the log says so to whoever
    /// recovers it.
    pub fn fail(&self) {
        self.inner.abort(During::FileSystem, None);
    }

    /// Waits until an aborted journal has ended what it was about, so that it writes nothing any
    /// more.
    ///
    /// # Panics
    /// If this thread has an open handle, for which a commit may be waiting.
    pub fn wait_idle(&self) {
        assert!(
            !is_inside(),
            "a thread waits for what waits for its own handle"
        );
        self.inner.queue.wait_idle();
        if let Some(logged) = &self.inner.logged {
            logged.space.wait_idle();
        }
    }

    /// Why the journal was aborted, if it was.
    #[must_use]
    pub fn abort_cause(&self) -> Option<&AbortCause> {
        self.inner.cause.get()
    }

    /// The most credits that a handle can have.
    #[must_use]
    pub fn most_credits(&self) -> Credits {
        Credits(self.inner.budget.limits().credits)
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        let used = self.inner.logged.as_ref();
        let used = used.map_or(0, |logged| logged.space.used());
        self.inner.tally.lock().stats(used)
    }

    fn stop_threads(&self) {
        self.inner.queue.stop();
        if let Some(logged) = &self.inner.logged {
            logged.space.stop();
        }
        for thread in mem::take(&mut *self.threads.lock()) {
            // A thread that panicked has aborted the journal, which is told by every call.
            let _ = thread.join();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("gate", &self.gate.state())
            .field("ring", &self.logged.as_ref().map(|logged| logged.ring))
            .field("aborted", &self.cause.get())
            .finish_non_exhaustive()
    }
}

/// Gives the empty log what writing it needs.
fn upgrade(log: &mut Log, home: &dyn BlockDevice, options: &JournalOptions) -> Result<(), Error> {
    let mut features = JournalIncompat::REVOKE;
    if home.len_bytes() >> log.block_size().bits() > u64::from(u32::MAX) {
        features |= JournalIncompat::_64BIT;
    }
    if options.checksums == NewChecksums::V3 {
        features |= JournalIncompat::CSUM_V3;
    }
    if options.fast_commits == FastCommitArea::Reserved {
        features |= JournalIncompat::FAST_COMMIT;
    }
    let mut upgraded = log.superblock().clone();
    upgraded.upgrade(log.superblock().uuid(), features);
    if upgraded.incompat() == log.superblock().incompat() {
        return Ok(());
    }
    // The features decide what is log, and whether that is enough.
    log.replace_superblock(JournalSuperblock::try_from(upgraded.raw())?)
}

impl Logged {
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn format(&self) -> LogFormat {
        self.format
    }

    pub(crate) fn ring(&self) -> Ring {
        self.ring
    }

    pub(crate) fn space(&self) -> &LogSpace {
        &self.space
    }

    pub(crate) fn superblock(&self) -> &LiveSuperblock {
        &self.superblock
    }
}

impl Inner {
    pub(crate) fn options(&self) -> &JournalOptions {
        &self.options
    }

    /// The log, if there is one.
    pub(crate) fn logged(&self) -> Option<&Logged> {
        self.logged.as_ref()
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.block_size
    }

    pub(crate) fn home(&self) -> &Arc<dyn BlockDevice> {
        &self.home
    }

    pub(crate) fn hook(&self) -> &dyn SealHook {
        &*self.hook
    }

    #[inline]
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(crate) fn revokes_per_credit(&self) -> u32 {
        self.budget.limits().revokes_per_credit
    }

    #[inline]
    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn note_gate_closed(&self, time: Duration) {
        self.tally.lock().note_gate_closed(time);
    }

    pub(crate) fn note_commit(&self, log_blocks: u32) {
        self.tally.lock().note_commit(log_blocks);
    }

    /// The background: keeps space free in the log.
    fn checkpoint_in_background(&self) {
        let Some(logged) = &self.logged else {
            return;
        };
        while logged.space.wait_for_work() {
            // An error has aborted the journal: there is nothing more to do.
            if self.checkpoint(logged.ring.len() / 8).is_err() {
                return;
            }
        }
    }

    /// Latches the abort, unless there was one before, and wakes everybody who waits.
    pub(crate) fn abort(&self, during: During, source: Option<io::Error>) {
        let source = source.map(Arc::new);
        let is_first = self.cause.set(AbortCause { during, source }).is_ok();
        self.gate.abort();
        self.queue.wake_all();
        let is_told = is_first && !matches!(during, During::Request | During::Superblock);
        if let Some(logged) = self.logged.as_ref().filter(|_| is_told) {
            // The device has failed already; whether it takes this is its own affair.
            let _ = logged.superblock.set_errno(&logged.log, ERRNO_IO);
        }
    }

    /// As [`Inner::abort`]; gives the error to return.
    pub(crate) fn abort_with(&self, during: During, source: io::Error) -> Error {
        self.abort(during, Some(source));
        self.aborted()
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.gate.state().is_aborted()
    }

    /// The error of an aborted journal.
    pub(crate) fn aborted(&self) -> Error {
        let unknown = || AbortCause {
            during: During::Request,
            source: None,
        };
        Error::Aborted(self.cause.get().cloned().unwrap_or_else(unknown))
    }

    pub(crate) fn check_not_aborted(&self) -> Result<(), Error> {
        if self.is_aborted() {
            return Err(self.aborted());
        }
        Ok(())
    }
}
