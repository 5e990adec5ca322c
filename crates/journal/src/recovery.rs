//! **Purpose.** Reads a dirty log and finds the copies to replay: for each block of the file
//! system, the copy in the journal that recovery writes over it. It writes nothing.
//!
//! **Not here.** The replay: a read-only open overlays the copies on the device, a writable one
//! writes them (`replay`).
//!
//! # Model
//! ```text
//! replayed(b) = the last copy of b in a committed transaction T, unless a revoke record
//!               for b exists in a committed transaction >= T
//! ```
//! 1. *Scan*: walk the log from `s_start`, transaction by transaction, until a block is not the one
//!    expected next. Note each copy, and where the revoke blocks are.
//! 2. *Revoke*: read the revoke blocks of committed transactions and mark the copies they void.
//! 3. *Resolve*: keep the last copy of each block.
//!
//! # Where the log ends
//! At the first block without the magic number or the expected sequence number; what follows the
//! last commit block is an interrupted transaction. Checksums add two cases:
//! - A transaction whose blocks do not match their checksums, and whose commit time is before its
//!   predecessor's, is stale: left by an earlier use of these blocks. The log ends before it.
//! - Any other transaction that does not match was damaged, or (asynchronous commits) had not
//!   arrived completely. With no valid commit after it, the log ends before it, and
//!   [`Recovered::damage`] reports it. With a valid commit after it, recovery fails: later
//!   transactions may depend on the damaged one.
//!
//! The kernel refuses the mount in both cases of damage unless commits are asynchronous. A
//! read-only open can use the state before the damage. A writable open would lose it for good, so
//! it asks [`Recovered::check_writable`], which refuses what no crash explains:
//!
//! | last transaction | explained by a crash |
//! |---|---|
//! | a commit block that does not match its own checksum | yes: it was torn |
//! | another block that does not match, where the commit block does | no |
//! | either, if another transaction was committed after it | no |
//! | anything, with asynchronous commits | yes: there is no flush |
//!
//! A torn commit block belongs to a transaction that no caller has seen as durable. In the other
//! cases a flush lies between the damaged block and what follows it, so the medium has lost what
//! was durable.
//!
//! # Salvage
//! A repair has to go on with what is left of such a log ([`salvage`]), as e2fsck does: copies that
//! do not match are skipped, and the log ends before the first transaction of which another block
//! does not match, because what it describes cannot be known. The result is a mixture of states, so
//! the whole file system has to be checked after the replay.
//!
//! # Invariants
//! - Each block of the log is read once by the scan, revoke blocks once more. Positions are counted
//!   from `s_start` and only grow, so a forged log ends after one turn of the ring.
//! - Memory: 16 bytes for each copy, 8 for each revoke block; revoke records are not kept.
//! - No copy to replay is outside the file system or inside the journal.
//!
//! # References
//! Kernel `fs/jbd2/recovery.c`.

mod resolve;
mod scan;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

use fourscore_block::{BlockDevice, Content, OverlaidBlock, OverlayDevice};
use fourscore_ondisk::jbd2::{Damage, JournalBlock, JournalError};
use fourscore_ondisk::{BlockCount, PhysBlock, Tid};
use fourscore_sync::Arc;

use crate::Error;
use crate::log::Log;

/// A copy of a block of the file system, in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedCopy {
    /// The home location.
    pub block: PhysBlock,
    /// The journal block with the copy.
    pub journal_block: JournalBlock,
    /// Whether its first four bytes must be replaced by the journal's magic number
    /// ([`fourscore_ondisk::jbd2::unescape`]).
    pub escaped: bool,
}

/// The copies to replay, and what else recovery found in the log.
#[derive(Clone, Debug)]
pub struct Recovered {
    copies: Vec<LoggedCopy>,
    first_tid: Tid,
    transactions: u32,
    revoked: u64,
    head: JournalBlock,
    damage: Option<(Tid, Damage)>,
    /// Whether a crash explains the damage.
    is_torn: bool,
    skipped: u64,
    /// The transaction after all that are in the log, replayed or not.
    end_of_log: Tid,
}

impl Recovered {
    /// The copies to replay, one for each block, in the order of block numbers.
    #[must_use]
    pub fn copies(&self) -> &[LoggedCopy] {
        &self.copies
    }

    /// The copy of `block`, if it is to be replayed.
    #[must_use]
    pub fn copy_of(&self, block: PhysBlock) -> Option<&LoggedCopy> {
        let index = self
            .copies
            .binary_search_by_key(&block, |copy| copy.block)
            .ok()?;
        self.copies.get(index)
    }

    /// `base`, the device of the file system, as it would be after the replay. Writes nothing.
    ///
    /// # Errors
    /// A copy's home location is past the device's end: the image was truncated.
    pub fn overlay(&self, log: &Log, base: Arc<dyn BlockDevice>) -> Result<OverlayDevice, Error> {
        let overlaid = self.copies.iter().filter_map(|copy| {
            let content = if copy.escaped {
                Content::Escaped
            } else {
                Content::AsLogged
            };
            let source_offset = log.offset(copy.journal_block)?;
            Some(OverlaidBlock {
                block: copy.block,
                source_offset,
                content,
            })
        });
        let journal_device = Arc::clone(log.device());
        OverlayDevice::new(base, journal_device, log.block_size(), overlaid).map_err(Error::Overlay)
    }

    /// The number of replayed transactions.
    #[must_use]
    pub fn transactions(&self) -> u32 {
        self.transactions
    }

    /// The last replayed transaction, if any is.
    #[must_use]
    pub fn last_tid(&self) -> Option<Tid> {
        let before_end = Tid(self.end_tid().0.wrapping_sub(1));
        (self.transactions > 0).then_some(before_end)
    }

    /// The transaction after the last one in the log: fast commits are valid if they belong to it.
    #[must_use]
    pub fn end_tid(&self) -> Tid {
        Tid(self.first_tid.0.wrapping_add(self.transactions))
    }

    /// The first transaction that may be written after recovery. Skips [`end_tid`](Self::end_tid),
    /// whose blocks may still be in the log.
    #[must_use]
    pub fn next_tid(&self) -> Tid {
        self.end_tid().next()
    }

    /// The number of copies that a revoke record voided.
    #[must_use]
    pub fn revoked(&self) -> u64 {
        self.revoked
    }

    /// The journal block after the last replayed transaction.
    #[must_use]
    pub fn head(&self) -> JournalBlock {
        self.head
    }

    /// The transaction at the log's end that is not replayed because it does not match its
    /// checksums, and the first mismatch in it. After [`salvage`]: the first damaged transaction,
    /// wherever it is.
    #[must_use]
    pub fn damage(&self) -> Option<(Tid, Damage)> {
        self.damage
    }

    /// The number of copies that are not replayed, of transactions that are; 0 but after
    /// [`salvage`].
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The transaction after all that are in the log, replayed or not. No smaller number may be
    /// used again: blocks that carry it may still be in the log.
    pub(crate) fn end_of_log(&self) -> Tid {
        self.end_of_log
    }

    /// Checks that the log can be emptied after the replay: that a crash explains why the last
    /// transaction is not replayed. Otherwise synced changes in it would be lost for good.
    ///
    /// # Errors
    /// [`JournalError::DamagedLast`].
    pub fn check_writable(&self) -> Result<(), JournalError> {
        match self.damage {
            Some((tid, damage)) if !self.is_torn => Err(JournalError::DamagedLast { tid, damage }),
            _ => Ok(()),
        }
    }
}

/// Reads the log and finds the copies to replay; none if the journal is empty. `blocks` is the
/// length of the file system.
///
/// Call this only if the file system has the `RECOVER` flag: without it, a journal that seems dirty
/// is stale and must not be replayed.
///
/// # Errors
/// The device fails, a committed transaction is invalid, or a transaction is damaged although later
/// ones were committed.
pub fn recover(log: &Log, blocks: BlockCount) -> Result<Recovered, Error> {
    let superblock = log.superblock();
    match superblock.start() {
        Some(start) => resolve::resolve(log, scan::scan(log, start, blocks, OnDamage::Refuse)?),
        None => Ok(Recovered {
            copies: Vec::new(),
            first_tid: superblock.sequence(),
            transactions: 0,
            revoked: 0,
            head: superblock.head(),
            damage: None,
            is_torn: false,
            skipped: 0,
            end_of_log: superblock.sequence(),
        }),
    }
}

/// As [`recover`], for the repair of a file system whose log is damaged in a way that no crash
/// explains: finds what can be replayed nevertheless. [`Recovered::damage`] and
/// [`Recovered::skipped`] say what cannot. After [`replay_salvaged`](crate::replay_salvaged) the
/// whole file system must be checked.
///
/// # Errors
/// The device fails, or a committed transaction is invalid although it matches its checksums.
pub fn salvage(log: &Log, blocks: BlockCount) -> Result<Recovered, Error> {
    match log.superblock().start() {
        Some(start) => resolve::salvage(log, scan::scan(log, start, blocks, OnDamage::EndBefore)?),
        None => recover(log, blocks),
    }
}

/// What the scan does about a damaged transaction with a valid commit after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDamage {
    /// It fails.
    Refuse,
    /// The log ends before the damaged transaction.
    EndBefore,
}
