//! **Purpose.** The journal of a mounted file system: opening, closing and aborting it, and the
//! state that handles, commits and checkpoints share.
//!
//! **Model.** Handles, gate and credits are the same with a log and without; the commit differs.
//! With a log ([`Logged`]) a transaction is written to the log, and later checkpointed; without one
//! it is written to its home locations at once (`in_place`).

use std::io;
use std::mem;
use std::time::Duration;

use fourscore_block::BlockDevice;
use fourscore_ondisk::jbd2::{BlockNumbers, JournalIncompat, JournalSuperblock, LogFormat};
use fourscore_ondisk::{BlockCount, BlockSize, Tid};
use fourscore_sync::{Arc, Mutex, OnceLock, thread};

use crate::area::Area;
use crate::checkpoint::{LogSpace, Wrap};
use crate::commit::{Covered, Queue};
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

/// Whether background threads commit and checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Two threads: one commits a transaction that has run for `interval` or has no credits left,
    /// one keeps space free in the log.
    Threads {
        /// How long changes may stay in memory.
        interval: Duration,
    },
    /// No threads: a thread that needs a commit or a checkpoint does it itself.
    None,
}

/// Whether a committer waits a little for other threads that want the same commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// It waits for as many as recent commits served, at most half the time that a commit takes.
    Adaptive,
    /// It begins at once.
    Off,
}

/// The checksums given to a log that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewChecksums {
    /// Version 3, as the kernel does for file systems with `metadata_csum`.
    V3,
    /// None.
    None,
}

/// Whether the last blocks of the journal are reserved for fast commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastCommitArea {
    /// As the journal's superblock says. The kernel clears the feature in a journal that it leaves
    /// clean.
    AsFound,
    /// They are not part of the log: for a file system with the feature `fast_commit`.
    Reserved,
}

/// Options of a journal open for writing.
#[derive(Clone, Copy, Debug)]
pub struct JournalOptions {
    /// Whether background threads commit and checkpoint.
    pub background: Background,
    /// Whether commits wait for more waiters.
    pub batching: Batching,
    /// The checksums given to a log without any.
    pub checksums: NewChecksums,
    /// Whether the log leaves space for fast commits.
    pub fast_commits: FastCommitArea,
    /// The least width of block numbers in the log: `Wide` for a file system with the feature
    /// `64bit`, however small it is, since it may grow beyond 2^32 blocks while the log is in use.
    /// Linux does the same (`ext4_load_and_init_journal`).
    pub block_numbers: BlockNumbers,
    /// How many blocks [`SealHook::at_seal`] may add to each transaction.
    pub seal_credits: Credits,
    /// The least bytes of adjacent new blocks that are written to their home locations in place of
    /// the log. Shorter runs are not worth a request of their own.
    pub new_run_bytes: usize,
    /// An injected fault, to show that the crash tests find it.
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
            block_numbers: BlockNumbers::Narrow,
            seal_credits: Credits(0),
            new_run_bytes: 64 << 10,
            #[cfg(feature = "sabotage")]
            sabotage: None,
        }
    }
}

/// The state shared by handles, committer and checkpointer.
pub(crate) struct Inner {
    // Read by every handle, never written.
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
    /// `None` without a log.
    logged: Option<Logged>,
    cause: OnceLock<AbortCause>,
    tally: Mutex<Tally>,
}

/// A log open for writing.
#[derive(Debug)]
pub(crate) struct Logged {
    log: Log,
    ring: Ring,
    format: LogFormat,
    space: LogSpace,
    superblock: LiveSuperblock,
    /// `None` if nothing is written there.
    area: Option<Area>,
}

/// A journal open for writing.
///
/// Dropping it leaves the log to be recovered; [`Journal::close`] leaves an empty log.
pub struct Journal {
    inner: Arc<Inner>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// Whether a commit flushed the device of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Data that was in place before the call is durable.
    Yes,
    /// There was nothing to commit: data in place may be in the device's volatile cache.
    No,
}

impl Journal {
    /// Opens an empty log for writing. `home` is the device of the file system, whose blocks are
    /// journaled; for an internal journal, the log's own.
    ///
    /// A log that [`replay_before_fast_commits`](crate::replay_before_fast_commits) has replayed
    /// counts as empty; then the first transaction is the one to which the fast commits belong.
    ///
    /// Sets the features that the log needs: revoke records; 64-bit block numbers, checksums and a
    /// fast-commit area as `options` say. The log is empty, so no record changes its format.
    ///
    /// # Errors
    /// [`Error::NeedsRecovery`], [`Error::LogTooShort`], or the superblock cannot be written.
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
        upgrade(&mut log, &options)?;
        let (ring, format) = (
            Ring::new(&log.superblock().log()),
            log.superblock().log_format(),
        );
        let block_size = log.block_size();
        let limits = Limits::new(ring.len(), block_size, &format, options.seal_credits)
            .ok_or(Error::LogTooShort { blocks: ring.len() })?;
        let sequence = log.superblock().sequence();
        let (head, last) = match start {
            Some(start) if ring.contains(start) => (start, Tid(sequence.0.wrapping_sub(1))),
            Some(start) => return Err(Error::NeedsRecovery { start }),
            None => (ring.first(), sequence),
        };
        let area = Area::new(&log);
        if let Some(area) = area.as_ref().filter(|_| !log.is_replayed()) {
            // The fast commits of a log that was replayed count until its first commit.
            area.clear_durably(&log).map_err(|source| Error::Io {
                journal_block: log.superblock().fast_commit_area().start,
                source,
            })?;
        }
        let wrap = match log.superblock().fast_commit_area().is_empty() {
            true => Wrap::Always,
            false => Wrap::WhenEmpty,
        };
        let logged = Logged {
            area,
            space: LogSpace::new(ring, wrap, head, last.next()),
            superblock: LiveSuperblock::new(log.superblock().clone()),
            log,
            ring,
            format,
        };
        let logged = Some(logged);
        Ok(Self::begin(
            home, block_size, hook, options, limits, last, logged,
        ))
    }

    /// Makes a journal without a log, for a file system on `home` that has none: a commit writes
    /// each block to its home location, and a crash may leave a transaction half written. The
    /// module `in_place` documents the remaining guarantees.
    ///
    /// Ignores the features of a log in `options`.
    ///
    /// # Errors
    /// [`Error::LogTooShort`] if `options` reserve more credits for sealing than a transaction has.
    pub fn without_log(
        home: Arc<dyn BlockDevice>,
        block_size: BlockSize,
        hook: Arc<dyn SealHook>,
        options: JournalOptions,
    ) -> Result<Self, Error> {
        let limits = Limits::without_log(block_size, options.seal_credits)
            .ok_or(Error::LogTooShort { blocks: 0 })?;
        let last = Tid(0);
        Ok(Self::begin(
            home, block_size, hook, options, limits, last, None,
        ))
    }

    /// Makes the journal, whose last transaction was `last`, and starts its threads.
    fn begin(
        home: Arc<dyn BlockDevice>,
        block_size: BlockSize,
        hook: Arc<dyn SealHook>,
        options: JournalOptions,
        limits: Limits,
        last: Tid,
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

    /// Whether there is a log, so that transactions are atomic across a crash.
    #[must_use]
    pub fn has_log(&self) -> bool {
        self.inner.logged.is_some()
    }

    /// Opens a handle that may add up to `credits` blocks to the running transaction. Waits while a
    /// transaction is being sealed, and while the running one has too few credits left.
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

    /// As [`Journal::start`], in the transaction `tid` or not at all: never seals the transaction
    /// to get credits.
    ///
    /// # Errors
    /// [`Error::TooManyCredits`] if `tid` has too few credits left, or is not the running
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

    /// Waits until the transaction `tid` is durable. One commit serves all threads that wait at the
    /// same time. Returns at once if `tid` is durable already; then data that was written in place
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

    /// Makes what the calling thread wants durable by a fast commit of `tid` if possible, else by a
    /// full one. `covered` says whether it is durable already. Returns whether the device was
    /// flushed after the call began: then data that was in place before is durable as well.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    ///
    /// # Panics
    /// If this thread has an open handle.
    pub fn fast_commit_and_wait(
        &self,
        tid: Tid,
        covered: &dyn Fn() -> Covered,
    ) -> Result<Flushed, Error> {
        self.inner.wait_for_fast(tid, covered)
    }

    /// The length in blocks of the area that fast commits are written to; 0 if there is none.
    #[must_use]
    pub fn fast_commit_blocks(&self) -> u32 {
        let logged = self.inner.logged.as_ref();
        let area = logged.and_then(|logged| logged.area.as_ref());
        area.map_or(0, Area::len)
    }

    /// Makes all changes of stopped handles durable. Returns whether that flushed the device.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    ///
    /// # Panics
    /// If this thread has an open handle.
    pub fn commit(&self) -> Result<Flushed, Error> {
        // The transaction is sealed after this call began, so its flush comes after that, too.
        let tid = self.running_tid();
        self.commit_and_wait(tid)?;
        Ok(match tid.is_after(self.committed_tid()) {
            true => Flushed::No,
            false => Flushed::Yes,
        })
    }

    /// Checkpoints: writes all committed blocks to their home locations and frees the log. Does
    /// nothing without a log.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.inner.checkpoint(0)
    }

    /// Commits, checkpoints, and marks the journal empty until the next commit. The caller must
    /// prevent other threads from starting handles meanwhile.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn quiesce(&self) -> Result<(), Error> {
        self.commit()?;
        self.checkpoint()?;
        self.mark_empty()
    }

    /// Commits, checkpoints, and leaves an empty journal.
    ///
    /// # Errors
    /// [`Error::Aborted`]; then the log must be recovered.
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

    /// Aborts the journal: nothing is committed any more, and every later call fails.
    pub fn abort(&self) {
        self.inner.abort(During::Request, None);
    }

    /// As [`Journal::abort`], because the file system is corrupt: records the error in the
    /// journal's superblock (`s_errno`), where recovery finds it.
    pub fn fail(&self) {
        self.inner.abort(During::FileSystem, None);
    }

    /// Waits until the commit and the checkpoint in progress have ended. After an abort nothing is
    /// written any more then.
    ///
    /// # Panics
    /// If this thread has an open handle, for which a commit may be waiting.
    pub fn wait_idle(&self) {
        assert!(
            !is_inside(),
            "a thread with an open handle waits for a commit, which may wait for the handle"
        );
        self.inner.queue.wait_idle();
        if let Some(logged) = &self.inner.logged {
            logged.space.wait_idle();
        }
    }

    /// The cause of the abort, if the journal was aborted.
    #[must_use]
    pub fn abort_cause(&self) -> Option<&AbortCause> {
        self.inner.cause.get()
    }

    /// The most credits that a handle can have.
    #[must_use]
    pub fn most_credits(&self) -> Credits {
        Credits(self.inner.budget.limits().credits)
    }

    /// The most blocks that a file system can have with this log: those that its records have
    /// numbers for.
    #[must_use]
    pub fn most_blocks(&self) -> BlockCount {
        let logged = self.inner.logged.as_ref();
        let numbers = logged.map_or(BlockNumbers::Wide, |logged| logged.format.block_numbers);
        numbers.blocks()
    }

    /// Statistics since the journal was opened.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        let used = self.inner.logged.as_ref();
        let used = used.map_or(0, |logged| logged.space.used());
        let waits = self.inner.queue.waits();
        self.inner.tally.lock().stats(waits, used)
    }

    fn stop_threads(&self) {
        self.inner.queue.stop();
        if let Some(logged) = &self.inner.logged {
            logged.space.stop();
        }
        for thread in mem::take(&mut *self.threads.lock()) {
            // A thread that panicked has aborted the journal, which every later call reports.
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

/// Sets the features that writing to the empty log needs.
fn upgrade(log: &mut Log, options: &JournalOptions) -> Result<(), Error> {
    let mut features = JournalIncompat::REVOKE;
    if options.block_numbers == BlockNumbers::Wide {
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
    // Parse it again: the features change the extent of the log, which may be too short now.
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

    /// The fast-commit area, if fast commits are written.
    pub(crate) fn area(&self) -> Option<&Area> {
        self.area.as_ref()
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

    pub(crate) fn note_commit(&self, log_blocks: u32, new_blocks: u64) {
        self.tally.lock().note_commit(log_blocks, new_blocks);
    }

    pub(crate) fn note_fast_commit(&self, blocks: u32, time: Duration) {
        self.tally.lock().note_fast_commit(blocks, time);
    }

    pub(crate) fn note_full_in_place_of_fast(&self) {
        self.tally.lock().note_full_in_place_of_fast();
    }

    /// The loop of the background thread that keeps space free in the log.
    fn checkpoint_in_background(&self) {
        let Some(logged) = &self.logged else {
            return;
        };
        while logged.space.wait_for_work() {
            // An error has aborted the journal.
            if self.checkpoint(logged.ring.len() / 8).is_err() {
                return;
            }
        }
    }

    /// Latches the abort, unless there was one before, and wakes all waiters.
    pub(crate) fn abort(&self, during: During, source: Option<io::Error>) {
        let source = source.map(Arc::new);
        let is_first = self.cause.set(AbortCause { during, source }).is_ok();
        self.gate.abort();
        self.queue.wake_all();
        let is_recorded = is_first && !matches!(during, During::Request | During::Superblock);
        if let Some(logged) = self.logged.as_ref().filter(|_| is_recorded) {
            // The device has failed already; recording the error may fail too.
            let _ = logged.superblock.set_errno(&logged.log, ERRNO_IO);
        }
    }

    /// As [`Inner::abort`]; returns the error for the caller to return.
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
