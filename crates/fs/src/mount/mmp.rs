//! **Purpose.** Protection against two hosts that mount one device (feature `mmp`): takes the file
//! system for this host, keeps the claim alive, and releases it.
//!
//! **Not here.** What the block says, and how a file system is taken (`fourscore_block::mmp`).
//!
//! **Model.** The host that has the file system writes a new number into one block every few
//! seconds.
//!
//! A thread writes the number as long as `Mmp` lives. If it is so late that another host may have
//! taken this host for dead, it reads the block first. If the number is not its own then, both
//! hosts write, and the journal is aborted.
//!
//! **Locking.** One lock is held while the block is written or compared. So a thread that takes the
//! lock to freeze or unmount the file system finds no write in progress.
//!
//! **Crash safety.** The block is in no transaction; it is written past the journal, durably. A
//! host that ends without releasing the file system leaves the number, and the next host waits.
//!
//! **References.** `kmmpd` of Linux.

use std::time::{Duration, Instant};

use fourscore_block::BlockDevice;
use fourscore_block::mmp::{Claim, ClaimError};
use fourscore_journal::Journal;
use fourscore_ondisk::superblock::Superblock;
use fourscore_sync::{Arc, Condvar, Mutex, Weak, thread};

use crate::Result;

/// The file system belongs to this host as long as this lives. [`Mmp::end`] releases it; if this is
/// just dropped, the next host waits as after a crash.
#[derive(Debug)]
pub(crate) struct Mmp {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The time between two numbers.
    interval: Duration,
    state: Mutex<State>,
    /// Signalled when the thread is to stop, or to write again.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    claim: Claim,
    stopping: bool,
    /// Writing is suspended until `Mmp::go_on`.
    resting: bool,
    /// The journal that is aborted if another host writes.
    guarded: Weak<Journal>,
}

/// How one turn of the thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    GoOn,
    End,
}

impl Mmp {
    /// Takes the file system for this host; `None` without the feature. Waits for some twenty
    /// seconds if a host had it and did not release it.
    ///
    /// # Errors
    /// `InUse` if another host has it or a check is running; `Corrupt`, `Io`; `Unsupported` on
    /// systems other than Linux.
    pub(crate) fn take(
        device: &Arc<dyn BlockDevice>,
        superblock: &Superblock,
    ) -> Result<Option<Self>> {
        let Some(claim) = Claim::take(device, superblock)? else {
            return Ok(None);
        };
        let interval = superblock.mmp_update_interval_seconds().max(1);
        let shared = Arc::new(Shared {
            interval: Duration::from_secs(interval.into()),
            state: Mutex::new(State {
                claim,
                stopping: false,
                resting: false,
                guarded: Weak::new(),
            }),
            changed: Condvar::new(),
        });
        let keeper = Arc::clone(&shared);
        let thread = thread::spawn(move || keeper.keep());
        Ok(Some(Self {
            shared,
            thread: Some(thread),
        }))
    }

    /// Sets the journal that is aborted if another host takes the file system all the same.
    pub(crate) fn guard(&self, journal: &Arc<Journal>) {
        self.shared.state.lock().guarded = Arc::downgrade(journal);
    }

    /// Suspends writing until [`Mmp::go_on`], while the file system is frozen. As in Linux the
    /// number stays the same meanwhile, so another host may take this host for dead.
    pub(crate) fn rest(&self) {
        self.shared.state.lock().resting = true;
    }

    /// Resumes writing.
    pub(crate) fn go_on(&self) {
        self.shared.state.lock().resting = false;
        self.shared.changed.notify_all();
    }

    /// Releases the file system, after the last write to it.
    ///
    /// # Errors
    /// `Io`; the next host waits then.
    pub(crate) fn end(mut self) -> Result<()> {
        self.stop();
        Ok(self.shared.state.lock().claim.release()?)
    }

    fn stop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, nothing was written any more, which other hosts detect.
            let _ = thread.join();
        }
    }
}

impl Drop for Mmp {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// The loop of the thread: writes another number every few seconds.
    fn keep(&self) {
        let mut state = self.state.lock();
        loop {
            let began = Instant::now();
            while !state.stopping
                && let Some(left) = self.interval.checked_sub(began.elapsed())
            {
                self.changed.wait_for(&mut state, left);
            }
            if state.stopping || (!state.resting && turn(&mut state) == Turn::End) {
                return;
            }
        }
    }
}

/// Writes the next number once, unless it is too late for that.
fn turn(state: &mut State) -> Turn {
    match state.claim.renew() {
        Ok(()) => {}
        Err(error @ ClaimError::InUse(_)) => {
            tracing::error!(%error, "another host writes to the file system: giving up");
            if let Some(journal) = state.guarded.upgrade() {
                journal.abort();
            }
            return Turn::End;
        }
        Err(error) => {
            tracing::warn!(%error, "other hosts are not notified that the file system is in use");
        }
    }
    Turn::GoOn
}
