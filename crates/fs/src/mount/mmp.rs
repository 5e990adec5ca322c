//! **Purpose.** Protection against two hosts that mount one device (feature `mmp`): takes the file
//! system for this host, keeps the claim alive, and releases it.
//!
//! **Not here.** The bytes of the block (`fourscore_ondisk::mmp`).
//!
//! **Model.** The host that has the file system writes a new number into one block every few
//! seconds.
//!
//! ```text
//! clean ------------------------------------> ours: written, read again, kept
//! a number -> waited -> changed meanwhile ---> refused: another host lives
//!                    -> the same ------------> ours: written, waited, read again, kept
//! a check runs ------------------------------> refused
//! ```
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
//! **References.** mke2fs(8), `mmp`; `ext4_multi_mount_protect` and `kmmpd` of Linux.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::IoSlice;
use std::time::{Duration, Instant};

use fourscore_block::BlockDevice;
use fourscore_journal::Journal;
use fourscore_ondisk::Corrupt;
use fourscore_ondisk::mmp::{MmpBlock, MmpHost, MmpSequence};
use fourscore_ondisk::superblock::Superblock;
use fourscore_sync::{Arc, Condvar, Mutex, Weak, thread};
use zerocopy::IntoBytes;

use crate::mount::clock::now;
use crate::mount::host::node_name;
use crate::{Error, Result};

/// The length of the used part of the block, in bytes.
const BLOCK_BYTES: usize = 1024;
/// The bounds of the time within which the number changes, in seconds.
const CHECK_SECONDS: (u64, u64) = (5, 300);
/// The name of the device that is stored for people to read.
const DEVICE_NAME: &[u8] = b"fourscore";

/// The file system belongs to this host as long as this lives. [`Mmp::end`] releases it; if this is
/// just dropped, the next host waits as after a crash.
#[derive(Debug)]
pub(crate) struct Mmp {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    device: Arc<dyn BlockDevice>,
    superblock: Arc<Superblock>,
    /// The offset of the block, in bytes.
    offset: u64,
    node_name: Vec<u8>,
    state: Mutex<State>,
    /// Signalled when the thread is to stop, or to write again.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The block as it was written last; `written` is when.
    block: MmpBlock,
    written: Instant,
    /// The time within which the number changes, in seconds.
    check_seconds: u64,
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
    /// Takes the file system for this host; `None` without the feature. Waits for some ten seconds
    /// if a host had it and did not release it.
    ///
    /// # Errors
    /// `InUse` if another host has it or a check is running; `Corrupt`, `Io`; `Unsupported` on
    /// systems other than Linux.
    pub(crate) fn take(
        device: &Arc<dyn BlockDevice>,
        superblock: &Superblock,
    ) -> Result<Option<Self>> {
        let Some(block) = superblock.mmp_block() else {
            return Ok(None);
        };
        let node_name = node_name()?;
        let offset = superblock.geometry().block_size().offset(block);
        let found = read(&**device, superblock, offset)?;
        let wait = match found.sequence() {
            MmpSequence::Clean => Duration::ZERO,
            MmpSequence::Fsck => {
                return Err(Error::InUse(format!(
                    "a check of it runs{}, or was cut short",
                    on_host(&found)
                )));
            }
            MmpSequence::InUse(_) => patience(&found),
        };
        if wait > Duration::ZERO {
            thread::sleep(wait);
            unchanged(&**device, superblock, offset, &found)?;
        }
        let shared = Arc::new(Shared {
            device: Arc::clone(device),
            superblock: Arc::new(superblock.clone()),
            offset,
            node_name,
            state: Mutex::new(State {
                block: found,
                written: Instant::now(),
                check_seconds: first_check_seconds(superblock),
                stopping: false,
                resting: false,
                guarded: Weak::new(),
            }),
            changed: Condvar::new(),
        });
        let ours = {
            let mut state = shared.state.lock();
            shared.write(&mut state, MmpSequence::InUse(random()))?;
            state.block
        };
        // A host that came at the same time has written, too. Only one number remains.
        thread::sleep(wait);
        unchanged(&**device, superblock, offset, &ours)?;
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
        let mut state = self.shared.state.lock();
        self.shared.write(&mut state, MmpSequence::Clean)
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
    /// Writes the block with another number. The caller holds the lock.
    fn write(&self, state: &mut State, sequence: MmpSequence) -> Result<()> {
        let seconds = u64::try_from(now().seconds()).unwrap_or(0);
        let host = MmpHost {
            node_name: &self.node_name,
            device_name: DEVICE_NAME,
        };
        let check = u16::try_from(state.check_seconds).unwrap_or(u16::MAX);
        let block = state
            .block
            .written_by(&host, sequence, seconds, check, &self.superblock);
        self.device
            .write_fua(&[IoSlice::new(block.raw().as_bytes())], self.offset)?;
        (state.block, state.written) = (block, Instant::now());
        Ok(())
    }

    /// The loop of the thread: writes another number every few seconds.
    fn keep(&self) {
        let interval = self.superblock.mmp_update_interval_seconds().max(1);
        let interval = Duration::from_secs(interval.into());
        let mut state = self.state.lock();
        loop {
            let began = Instant::now();
            while !state.stopping
                && let Some(left) = interval.checked_sub(began.elapsed())
            {
                self.changed.wait_for(&mut state, left);
            }
            if state.stopping || (!state.resting && self.turn(&mut state) == Turn::End) {
                return;
            }
        }
    }

    /// Writes the next number once, unless it is too late for that.
    fn turn(&self, state: &mut State) -> Turn {
        let since = state.written.elapsed();
        if since > Duration::from_secs(state.check_seconds)
            && let Err(error @ Error::InUse(_)) =
                unchanged(&*self.device, &self.superblock, self.offset, &state.block)
        {
            tracing::error!(%error, "another host writes to the file system: giving up");
            if let Some(journal) = state.guarded.upgrade() {
                journal.abort();
            }
            return Turn::End;
        }
        let (least, most) = CHECK_SECONDS;
        state.check_seconds = (2 * since.as_secs()).clamp(least, most);
        let next = match state.block.sequence() {
            MmpSequence::InUse(number) if number < MmpSequence::MAX => number + 1,
            _ => 1,
        };
        if let Err(error) = self.write(state, MmpSequence::InUse(next)) {
            tracing::warn!(%error, "other hosts are not notified that the file system is in use");
        }
        Turn::GoOn
    }
}

fn read(device: &dyn BlockDevice, superblock: &Superblock, offset: u64) -> Result<MmpBlock> {
    device.forget_cached(offset..offset + BLOCK_BYTES as u64);
    let mut bytes = [0; BLOCK_BYTES];
    device.read_at(&mut bytes, offset)?;
    let block = superblock.mmp_block().unwrap_or_default();
    Ok(
        MmpBlock::parse(&bytes, superblock)
            .map_err(|error| Corrupt::from(error).in_block(block))?,
    )
}

/// Refuses if the block has changed since `before` was read or written.
fn unchanged(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    offset: u64,
    before: &MmpBlock,
) -> Result<()> {
    let found = read(device, superblock, offset)?;
    let same = found.sequence() == before.sequence() && found.node_name() == before.node_name();
    if same {
        return Ok(());
    }
    Err(Error::InUse(format!("mounted{}", on_host(&found))))
}

fn on_host(block: &MmpBlock) -> String {
    let text = String::from_utf8_lossy;
    match (block.node_name(), block.device_name()) {
        (b"", _) => " on another host".into(),
        (node, b"") => format!(" on host {}", text(node)),
        (node, device) => format!(" on host {}, from {}", text(node), text(device)),
    }
}

/// Returns how long the number of a live host stays the same at most.
fn patience(block: &MmpBlock) -> Duration {
    let (least, most) = CHECK_SECONDS;
    // No host writes a larger interval, and it would mean waiting for hours.
    let check = u64::from(block.check_interval_seconds()).clamp(least, most);
    Duration::from_secs((2 * check + 1).min(check + 60))
}

fn first_check_seconds(superblock: &Superblock) -> u64 {
    let (least, most) = CHECK_SECONDS;
    (2 * u64::from(superblock.mmp_update_interval_seconds())).clamp(least, most)
}

/// Returns a number that another host is unlikely to choose at the same time.
fn random() -> u32 {
    let number = RandomState::new().build_hasher().finish() % u64::from(MmpSequence::MAX);
    u32::try_from(number).unwrap_or(0) + 1
}
