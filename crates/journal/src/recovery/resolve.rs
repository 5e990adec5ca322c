//! **Purpose.** The second and third pass of recovery: voids revoked copies, and keeps the last
//! copy of each block.
//!
//! # Model
//! Copies are sorted by block, then by position, so that the copies of a block form a group of
//! which the last is replayed. A revoke record of block b in a transaction that ends at position e
//! voids the copies of b before e; the largest such e is kept on the first copy of the group.

use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::{CommitOrder, Damage, JournalError};

use super::scan::{Logged, Position, Scanned};
use super::{LoggedCopy, Recovered};
use crate::Error;
use crate::log::{Log, LogReader, ReadAhead};

/// Finds the copies to replay among those of the scan.
pub(super) fn resolve(log: &Log, mut found: Scanned) -> Result<Recovered, Error> {
    found
        .copies
        .sort_unstable_by_key(|copy| (copy.block(), copy.position));
    revoke(log, &mut found)?;
    if let Some(copy) = first_mismatch(&found) {
        let (index, damage) = (found.transaction_of(copy.position), found.damage_of(&copy));
        let tid = found.tid(index);
        if index + 1 < found.ends.len() {
            let later = found.tid(found.ends.len() - 1);
            return Err(JournalError::Damaged { tid, damage, later }.into());
        }
        found.drop_last();
        found.damage = Some((tid, damage));
        found.is_torn = log.superblock().log_format().commit_order == CommitOrder::Async;
        // The dropped transaction's own revoke records no longer count.
        revoke(log, &mut found)?;
        if let Some(copy) = first_mismatch(&found) {
            let damage = found.damage_of(&copy);
            let at = found.tid(found.transaction_of(copy.position));
            return Err(JournalError::Damaged {
                tid: at,
                damage,
                later: tid,
            }
            .into());
        }
    }
    Ok(keep_last(found))
}

/// As [`resolve`], but skips copies that do not match their checksums instead of transactions.
pub(super) fn salvage(log: &Log, mut found: Scanned) -> Result<Recovered, Error> {
    found
        .copies
        .sort_unstable_by_key(|copy| (copy.block(), copy.position));
    revoke(log, &mut found)?;
    if let Some(copy) = first_mismatch(&found) {
        found.skipped = u64::try_from(mismatched(&found).count()).unwrap_or(u64::MAX);
        // It is in a transaction before any damage at which the scan ended.
        let tid = found.tid(found.transaction_of(copy.position));
        found.damage = Some((tid, found.damage_of(&copy)));
        found.is_torn = false;
        found.copies.retain(|copy| !copy.is_mismatched());
        // A revoke record is noted on the first copy of its block, which may have been skipped.
        revoke(log, &mut found)?;
    }
    Ok(keep_last(found))
}

impl Scanned {
    /// The index of the transaction that `position` belongs to.
    fn transaction_of(&self, position: Position) -> usize {
        self.ends.partition_point(|&end| end <= position)
    }

    fn tid(&self, index: usize) -> Tid {
        Tid(self
            .first_tid
            .0
            .wrapping_add(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    fn damage_of(&self, copy: &Logged) -> Damage {
        Damage::Copy {
            journal_block: self.ring.block(copy.position),
            block: copy.block(),
        }
    }

    /// Drops the last transaction, and resets the marks of revoke records.
    fn drop_last(&mut self) {
        self.ends.pop();
        let end = self.ends.last().copied().unwrap_or(0);
        self.copies.retain(|copy| copy.position < end);
        self.revoke_blocks
            .retain(|revoke_block| revoke_block.position < end);
        for copy in &mut self.copies {
            copy.revoked_to = 0;
        }
    }
}

/// Reads the revoke blocks and marks the groups of the revoked blocks.
fn revoke(log: &Log, found: &mut Scanned) -> Result<(), Error> {
    let format = log.superblock().log_format();
    let mut reader = LogReader::new(log, ReadAhead::None);
    for index in 0..found.revoke_blocks.len() {
        let Some(&revoke_block) = found.revoke_blocks.get(index) else {
            break;
        };
        let journal_block = found.ring.block(revoke_block.position);
        let tid = found.tid(found.transaction_of(revoke_block.position));
        let block = reader.read(journal_block)?;
        for revoked in format.revokes(block, tid, journal_block)? {
            let first = found.copies.partition_point(|copy| copy.block() < revoked);
            if let Some(copy) = found.copies.get_mut(first)
                && copy.block() == revoked
            {
                copy.revoked_to = copy.revoked_to.max(revoke_block.transaction_end);
            }
        }
    }
    Ok(())
}

/// The copies of one block each, in log order.
fn groups(copies: &[Logged]) -> impl Iterator<Item = &[Logged]> {
    copies.chunk_by(|one, two| one.block() == two.block())
}

/// The earliest copy that does not match its checksum and is not revoked.
fn first_mismatch(found: &Scanned) -> Option<Logged> {
    mismatched(found).min_by_key(|copy| copy.position).copied()
}

/// The copies that do not match their checksums and are not revoked.
fn mismatched(found: &Scanned) -> impl Iterator<Item = &Logged> {
    groups(&found.copies).flat_map(|group| {
        let revoked_to = group.first().map_or(0, |first| first.revoked_to);
        let counts = move |copy: &&Logged| copy.position >= revoked_to && copy.is_mismatched();
        group.iter().filter(counts)
    })
}

fn keep_last(found: Scanned) -> Recovered {
    let Scanned {
        ring,
        first_tid,
        copies,
        ends,
        damage,
        is_torn,
        skipped,
        end_of_log,
        ..
    } = found;
    let mut revoked = 0;
    let mut last_copies = Vec::new();
    for group in groups(&copies) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let voided = group.partition_point(|copy| copy.position < first.revoked_to);
        revoked += u64::try_from(voided).unwrap_or(u64::MAX);
        if last.position >= first.revoked_to {
            last_copies.push(LoggedCopy {
                block: last.block(),
                journal_block: ring.block(last.position),
                escaped: last.is_escaped(),
            });
        }
    }
    Recovered {
        copies: last_copies,
        first_tid,
        transactions: u32::try_from(ends.len()).unwrap_or(u32::MAX),
        revoked,
        head: ring.block(ends.last().copied().unwrap_or(0)),
        damage,
        is_torn,
        skipped,
        end_of_log,
    }
}
