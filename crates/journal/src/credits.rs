//! **Purpose.** Credits: limits the size of a transaction, and reserves the blocks that each handle
//! may add to it.
//!
//! # Model
//! ```text
//! log of L blocks    a transaction takes at most T = L / 4 of them, its frame included
//! B credits, T >= B + ceil(B / tags of a descriptor) + commit block
//! B = budget + credits with the cores + credits of open handles + credits used
//! ```
//! A credit is the right to one more block in the running transaction: a buffer that is changed for
//! the first time, or a block of revoke records. Handles draw credits from their core, cores in
//! chunks from the budget. If both have too few, a handle takes those of other cores; if that is
//! too little as well, the transaction has to be sealed.
//!
//! # Invariants
//! - The sum above never grows while a transaction runs: credits only move, or are used.
//! - So every handle that started can use all its credits, and the transaction still fits into the
//!   blocks of the log that were reserved for it before it was opened.
//!
//! # Locking
//! The budget is one word that all cores write, once per chunk.

use fourscore_ondisk::BlockSize;
use fourscore_ondisk::jbd2::LogFormat;
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_sync::{CachePadded, CoreNr};

use crate::gate::{Gate, Place};

/// The part of the log that one transaction may take.
const SHARE_OF_THE_LOG: u32 = 4;
/// A log shorter than this, in blocks, is too short for a transaction.
const MIN_LOG_BLOCKS: u32 = 16;
/// The most bytes of a transaction without a log, which are held in memory until it is committed.
const BYTES_WITHOUT_LOG: usize = 32 << 20;
/// The revoke records that one credit pays for without a log. No revoke blocks are written then,
/// but operations compute their credits as with a log. This is never too few: header and checksum
/// of a revoke block are less than 32 bytes, a record is at most 8.
const fn revokes_without_log(block_bytes: usize) -> usize {
    (block_bytes - 32) / 8
}

/// The most credits that a core draws at once beyond those it needs.
const MAX_CHUNK: u32 = 64;

/// A number of blocks that a handle may add to its transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Credits(pub u32);

/// The limits of one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The blocks of the log that a transaction may take, its frame included.
    pub(crate) log_blocks: u32,
    /// The credits that its handles share.
    pub(crate) credits: u32,
    /// How many credits a core draws at once.
    chunk: u32,
    /// How many revoke records one credit pays for.
    pub(crate) revokes_per_credit: u32,
}

impl Limits {
    /// The limits for a log of `log_blocks`, with `seal_credits` reserved for the sealer. `None` if
    /// the log is too short for any transaction.
    pub(crate) fn new(
        log_blocks: u32,
        block_size: BlockSize,
        format: &LogFormat,
        seal_credits: Credits,
    ) -> Option<Self> {
        if log_blocks < MIN_LOG_BLOCKS {
            return None;
        }
        let share = log_blocks / SHARE_OF_THE_LOG;
        let tags = u32::try_from(format.tags_per_block(block_size.bytes())).ok()?;
        let with_frame = |credits: u32| credits + credits.div_ceil(tags) + 1;
        let mut credits = share.checked_sub(2)?;
        while with_frame(credits) > share {
            credits -= 1;
        }
        let revokes = format.revokes_per_block(block_size.bytes());
        Self::of_credits(credits.checked_sub(seal_credits.0)?, revokes, share)
    }

    /// The limits without a log. `None` if `seal_credits` is more than a transaction has.
    pub(crate) fn without_log(block_size: BlockSize, seal_credits: Credits) -> Option<Self> {
        let credits = u32::try_from(BYTES_WITHOUT_LOG / block_size.bytes()).ok()?;
        let revokes = revokes_without_log(block_size.bytes());
        Self::of_credits(credits.checked_sub(seal_credits.0)?, revokes, 0)
    }

    fn of_credits(credits: u32, revokes: usize, log_blocks: u32) -> Option<Self> {
        let cores = u32::try_from(CoreNr::count()).unwrap_or(u32::MAX);
        (credits > 0).then_some(Self {
            log_blocks,
            credits,
            chunk: (credits / cores.saturating_mul(8)).clamp(1, MAX_CHUNK),
            revokes_per_credit: u32::try_from(revokes).ok()?.max(1),
        })
    }
}

/// The credits of the running transaction that no core has drawn yet.
#[derive(Debug)]
pub(crate) struct Budget {
    left: CachePadded<AtomicU64>,
    limits: Limits,
}

/// The running transaction has fewer credits left than wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        let left = AtomicU64::new(u64::from(limits.credits));
        Self {
            left: CachePadded::new(left),
            limits,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The credits that the cores have drawn: those that were used, and some that were not.
    pub(crate) fn drawn(&self) -> u32 {
        let left = self.left.load(Ordering::Relaxed);
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        self.limits.credits.saturating_sub(left)
    }

    /// Gathers `wanted` credits for the thread in `place`: from its core, from the budget, from
    /// other cores. If there are too few, leaves those found with its core.
    #[cold]
    pub(crate) fn gather(&self, gate: &Gate, place: Place, wanted: u32) -> Result<(), Exhausted> {
        let mut found = gate.take_credits(place.core, wanted);
        if found < wanted {
            found += self.draw((wanted - found).saturating_add(self.limits.chunk));
        }
        for core in CoreNr::all() {
            if found >= wanted {
                gate.put_credits(place.core, found - wanted);
                return Ok(());
            }
            found += gate.take_credits(core, wanted - found);
        }
        if found >= wanted {
            return Ok(());
        }
        gate.put_credits(place.core, found);
        Err(Exhausted)
    }

    /// Takes up to `most` credits out of the budget.
    fn draw(&self, most: u32) -> u32 {
        let mut drawn = 0;
        let draw = |left: u64| {
            drawn = u32::try_from(left).unwrap_or(u32::MAX).min(most);
            (drawn > 0).then(|| left - u64::from(drawn))
        };
        // Fails only if nothing is left.
        let _ = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, draw);
        drawn
    }

    /// Takes all credits back, for the transaction that begins next. Only for the sealer, while the
    /// gate is closed and drained. A thread might join with credits before they are taken back, and
    /// read the gate only when it is open again: that would bring the credits into the next
    /// transaction. So the gate is drained once more, which waits for such a thread, and it sees
    /// the gate closed.
    pub(crate) fn reset(&self, gate: &Gate) {
        for core in CoreNr::all() {
            gate.take_credits(core, u32::MAX);
        }
        let all = u64::from(self.limits.credits);
        self.left.store(all, Ordering::Release);
        gate.drain();
    }
}
