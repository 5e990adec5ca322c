//! **Purpose.** Writes fast commits to the fast-commit area of the log.
//!
//! **Not here.** The records, which the file system makes
//! ([`SealHook::fast_commit`](crate::SealHook::fast_commit)); reading the area
//! ([`crate::fast_commit`]); when a commit is a fast one (`commit`).
//!
//! # Model
//! ```text
//! first block       then, one after the other
//! | HEAD T, TAIL |  | records .. TAIL | records .. TAIL |  ..free..
//! ```
//! All fast commits in the area belong to the running transaction T. Its full commit makes them
//! void, and the area is empty again. Recovery replays the area if the log ends with T-1.
//!
//! # Invariants
//! - T-1 is durable before the first fast commit of T, and T is not sealed while one is written:
//!   both because the writer has the role of committer.
//! - The area holds no HEAD that names a transaction of the log, except from the moment in which
//!   that transaction's commit block is durable until the next flush. The first block is
//!   overwritten at mount (with *FUA*), and after each full commit (durable with the next flush).
//!   It cannot be overwritten before the commit block is durable, because until then only the fast
//!   commits hold what was synced. Recovery by Linux and by this crate takes such a HEAD for an old
//!   one, since the log does not end with the transaction before it. e2fsck discards such a log
//!   (docs/FINDINGS.md, 6).
//!
//! # Crash safety
//! 1. If the superblock says that the journal is empty, the start of the log is written to it: the
//!    area of an empty journal is not read.
//! 2. The superblock of the file system is written to its home location, if the log has a newer
//!    one. e2fsck would mix the two when it replays fast commits, and leave a wrong checksum.
//! 3. *Flush.* Without it the TAIL could be on the medium before the data that its records map.
//! 4. The blocks are written with *FUA*, the first block of the area with the first of them. Torn
//!    blocks have no valid TAIL, so replay ends in front of them. HEAD and the first TAIL lie in
//!    one sector, so they are written as a whole or not at all. They have the block for themselves,
//!    because Linux and e2fsck refuse a log whose first TAIL is invalid.
//!
//! # Locking
//! The state is used only with the role of committer, so its lock is never contended. It is a leaf,
//! and not held across I/O.

use std::io::{self, IoSlice};
use std::ops::Range;

use fourscore_block::BlockDevice as _;
use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::JournalBlock;
use fourscore_sync::Mutex;

use crate::Error;
use crate::error::During;
use crate::journal::{Inner, Logged};
use crate::log::Log;
use crate::sabotage::Sabotage;

/// The least number of blocks that an area is used with: the first block, and two fast commits.
const LEAST_BLOCKS: u32 = 3;

/// The fast-commit area of a log.
#[derive(Debug)]
pub(crate) struct Area {
    blocks: Range<JournalBlock>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The transaction whose fast commits are in the area.
    tid: Option<Tid>,
    /// Where the next fast commit is written.
    next: JournalBlock,
    /// Whether the first block may hold a HEAD.
    may_have_head: bool,
}

impl Area {
    /// The area of `log`; `None` if it has none, or one that is too small.
    pub(crate) fn new(log: &Log) -> Option<Self> {
        let blocks = log.superblock().fast_commit_area();
        let len = blocks.end.0.saturating_sub(blocks.start.0);
        (len >= LEAST_BLOCKS).then(|| Self {
            state: Mutex::new(State {
                tid: None,
                next: blocks.start,
                may_have_head: true,
            }),
            blocks,
        })
    }

    /// Its length in blocks.
    pub(crate) fn len(&self) -> u32 {
        self.blocks.end.0 - self.blocks.start.0
    }

    /// Overwrites a HEAD that was left in the area, durably.
    pub(crate) fn clear_durably(&self, log: &Log) -> io::Result<()> {
        let offset = log.offset(self.blocks.start).unwrap_or(u64::MAX);
        log.device()
            .write_fua(&[IoSlice::new(&empty_block(log))], offset)?;
        self.state.lock().may_have_head = false;
        Ok(())
    }

    /// Overwrites the HEAD, if there may be one. Durable with the next flush.
    fn clear(&self, log: &Log) -> io::Result<()> {
        if !self.state.lock().may_have_head {
            return Ok(());
        }
        let offset = log.offset(self.blocks.start).unwrap_or(u64::MAX);
        log.device().write_at(&empty_block(log), offset)?;
        self.state.lock().may_have_head = false;
        Ok(())
    }

    /// Where the next fast commit of `tid` is written.
    fn begin(&self, tid: Tid) -> JournalBlock {
        let mut state = self.state.lock();
        state.may_have_head = true;
        match state.tid == Some(tid) {
            true => state.next,
            false => self.blocks.start,
        }
    }

    /// Notes that a fast commit of `tid` is durable, and that the next one begins at `next`.
    fn end(&self, tid: Tid, next: JournalBlock) {
        let mut state = self.state.lock();
        (state.tid, state.next) = (Some(tid), next);
    }

    /// The number of blocks that a fast commit of `tid` may have now, and whether it is the first.
    fn space(&self, tid: Tid) -> (u32, bool) {
        let state = self.state.lock();
        match state.tid == Some(tid) {
            true => (self.blocks.end.0 - state.next.0, false),
            false => (self.len() - 1, true),
        }
    }
}

impl Inner {
    /// The number of blocks that a fast commit of `tid` may have, and whether it is the first; no
    /// blocks without an area.
    pub(crate) fn fast_commit_space(&self, tid: Tid) -> (u32, bool) {
        let area = self.logged().and_then(Logged::area);
        area.map_or((0, true), |area| area.space(tid))
    }

    /// Writes the blocks of a fast commit of `tid`, the first block of the area among them if it is
    /// the first; durable on return. Returns how many were written. Only for the committer.
    pub(crate) fn write_fast_commit(&self, tid: Tid, blocks: &[u8]) -> Result<u32, Error> {
        let Some(logged) = self.logged() else {
            return Ok(0);
        };
        let Some(area) = logged.area() else {
            return Ok(0);
        };
        let head = logged.space().head();
        logged
            .superblock()
            .begin(logged.log(), head, tid)
            .map_err(|source| self.abort_with(During::Superblock, source))?;
        let block_bytes = self.block_size().bytes();
        let at = area.begin(tid);
        self.write_durably(logged.log(), at, blocks)
            .map_err(|source| self.abort_with(During::FastCommit(tid), source))?;
        let count = u32::try_from(blocks.len() / block_bytes).unwrap_or(u32::MAX);
        area.end(tid, JournalBlock(at.0.saturating_add(count)));
        Ok(count)
    }

    /// Step 2 of the module's documentation. Returns whether a fast commit is possible.
    pub(crate) fn prepare_fast_commit(&self, tid: Tid) -> Result<bool, Error> {
        let (Some(logged), Some(block)) = (self.logged(), self.hook().home_before_fast_commits())
        else {
            return Ok(true);
        };
        let Some(area) = logged.area() else {
            return Ok(false);
        };
        // Until the next full commit the log does not change.
        if area.state.lock().tid == Some(tid) {
            return Ok(true);
        }
        self.write_home(logged, block)
    }

    /// Steps 3 and 4 of the module's documentation.
    fn write_durably(&self, log: &Log, at: JournalBlock, content: &[u8]) -> io::Result<()> {
        if !self.skips(Sabotage::NoFlushBeforeFastCommit) {
            self.flush_before_commit(log)?;
        }
        let runs = contiguous(log, at, content);
        if let [(offset, bytes)] = runs[..] {
            return log.device().write_fua(&[IoSlice::new(bytes)], offset);
        }
        for (offset, bytes) in runs {
            log.device().write_at(bytes, offset)?;
        }
        log.device().flush()
    }

    /// Overwrites the HEAD of the fast commits that a full commit has made void.
    pub(crate) fn clear_fast_commits(&self, logged: &Logged) -> io::Result<()> {
        match logged.area() {
            Some(area) => area.clear(logged.log()),
            None => Ok(()),
        }
    }
}

/// The first block of an area that holds nothing.
fn empty_block(log: &Log) -> Vec<u8> {
    vec![0; log.block_size().bytes()]
}

/// Splits blocks from `at` on into parts that are contiguous on the device, each with its offset.
fn contiguous<'c>(log: &Log, at: JournalBlock, content: &'c [u8]) -> Vec<(u64, &'c [u8])> {
    let block_bytes = log.block_size().bytes();
    let mut runs: Vec<(u64, &[u8])> = Vec::new();
    for (nth, start) in (0..content.len()).step_by(block_bytes).enumerate() {
        let nth = u32::try_from(nth).unwrap_or(u32::MAX);
        let offset = log.offset(JournalBlock(at.0.saturating_add(nth)));
        // Every block of the area is mapped: the map covers the whole journal.
        let offset = offset.unwrap_or(u64::MAX);
        match runs.last_mut() {
            Some((first, bytes)) if first.saturating_add(bytes.len() as u64) == offset => {
                let from = start - bytes.len();
                *bytes = &content[from..start + block_bytes];
            }
            _ => runs.push((offset, &content[start..start + block_bytes])),
        }
    }
    runs
}
