//! **Purpose.** The first pass of recovery: walks the log once, finds its end, and notes every copy
//! and every revoke block of committed transactions.

use fourscore_ondisk::jbd2::{
    BlockKind, Commit, CommitOrder, Damage, Header, JournalBlock, JournalError, LogChecksums,
    LogFormat, Tag, TagFlags, TransactionChecksum,
};
use fourscore_ondisk::{BlockCount, PhysBlock, Tid};

use super::OnDamage;
use crate::Error;
use crate::log::{Log, LogReader, ReadAhead};

/// A position in the log, counted in blocks from `s_start` around the ring.
pub(super) type Position = u32;

/// Block numbers have 48 bits in ext4; the bits above carry flags here.
const BLOCK_BITS: u64 = (1 << 48) - 1;
const ESCAPED: u64 = 1 << 63;
const MISMATCHED: u64 = 1 << 62;

/// A copy in the log, in 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logged {
    block_and_flags: u64,
    /// The position of the copy.
    pub(super) position: Position,
    /// On the first copy of each block: copies before this position are revoked.
    pub(super) revoked_to: Position,
}

impl Logged {
    pub(super) fn block(&self) -> PhysBlock {
        PhysBlock(self.block_and_flags & BLOCK_BITS)
    }

    pub(super) fn is_escaped(&self) -> bool {
        self.block_and_flags & ESCAPED != 0
    }

    /// Whether the copy does not match the checksum of its tag.
    pub(super) fn is_mismatched(&self) -> bool {
        self.block_and_flags & MISMATCHED != 0
    }
}

/// A revoke block, and the end of the transaction it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct RevokeBlock {
    pub(super) position: Position,
    pub(super) transaction_end: Position,
}

/// The log as a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    first: u32,
    blocks: u32,
    start: u32,
}

impl Ring {
    fn new(log: &Log, start: JournalBlock) -> Self {
        let ring = log.superblock().log();
        let (first, end) = (ring.start.0, ring.end.0);
        Self {
            first,
            blocks: end.saturating_sub(first),
            start: start.0.saturating_sub(first),
        }
    }

    /// The block at `position`; positions past one turn wrap.
    pub(super) fn block(&self, position: Position) -> JournalBlock {
        let blocks = u64::from(self.blocks.max(1));
        let index = (u64::from(self.start) + u64::from(position)) % blocks;
        JournalBlock(self.first.saturating_add(u32::try_from(index).unwrap_or(0)))
    }
}

/// The result of the scan.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) ring: Ring,
    pub(super) first_tid: Tid,
    /// In log order.
    pub(super) copies: Vec<Logged>,
    /// In log order.
    pub(super) revoke_blocks: Vec<RevokeBlock>,
    /// Where each committed transaction ends.
    pub(super) ends: Vec<Position>,
    pub(super) damage: Option<(Tid, Damage)>,
    /// Whether a crash explains the damage.
    pub(super) is_torn: bool,
    /// The number of mismatched copies that are left out of replayed transactions.
    pub(super) skipped: u64,
    /// The transaction after all that were found, damaged or not.
    pub(super) end_of_log: Tid,
}

/// Walks the log from `start`.
pub(super) fn scan(
    log: &Log,
    start: JournalBlock,
    blocks: BlockCount,
    on_damage: OnDamage,
) -> Result<Scanned, Error> {
    let format = log.superblock().log_format();
    let read_ahead = match format.checksums {
        LogChecksums::None => ReadAhead::None,
        _ => ReadAhead::Window,
    };
    let first_tid = log.superblock().sequence();
    let mut scan = Scan {
        log,
        format,
        blocks,
        on_damage,
        reader: LogReader::new(log, read_ahead),
        position: 0,
        tid: first_tid,
        last_commit_sec: 0,
        open: Open::default(),
        tags: Vec::new(),
        found: Scanned {
            ring: Ring::new(log, start),
            first_tid,
            copies: Vec::new(),
            revoke_blocks: Vec::new(),
            ends: Vec::new(),
            damage: None,
            is_torn: false,
            skipped: 0,
            end_of_log: first_tid,
        },
    };
    while scan.step()? == Step::Continue {}
    Ok(scan.into_committed())
}

/// Whether the log continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Continue,
    End,
}

/// The transaction being scanned: valid only once its commit block is found.
#[derive(Debug, Default)]
struct Open {
    /// A descriptor or revoke block that does not match its checksum.
    damage: Option<Damage>,
    /// A copy that must not be replayed: an error if the transaction is committed.
    forbidden: Option<JournalError>,
    /// Version 1: over the descriptors and copies so far.
    checksum: TransactionChecksum,
    copies: usize,
    revoke_blocks: usize,
}

struct Scan<'a> {
    log: &'a Log,
    format: LogFormat,
    blocks: BlockCount,
    on_damage: OnDamage,
    reader: LogReader<'a>,
    position: Position,
    /// The transaction expected next.
    tid: Tid,
    last_commit_sec: u64,
    open: Open,
    /// The tags of the current descriptor block; kept to reuse the allocation.
    tags: Vec<Tag>,
    found: Scanned,
}

impl Scan<'_> {
    /// Scans the next descriptor, revoke or commit block, with its copies.
    fn step(&mut self) -> Result<Step, Error> {
        let Some(journal_block) = self.advance() else {
            return Ok(Step::End);
        };
        let block = self.reader.read(journal_block)?;
        let Some(header) = Header::read(block).filter(|header| header.tid == self.tid) else {
            return Ok(Step::End);
        };
        match header.kind {
            BlockKind::Descriptor => {
                if let Err(mismatch) = self.format.verify_tail(block) {
                    let damage = Damage::Descriptor {
                        journal_block,
                        mismatch,
                    };
                    self.open.damage.get_or_insert(damage);
                }
                self.tags.clear();
                self.tags.extend(self.format.tags(block));
                if self.format.checksums == LogChecksums::V1 {
                    self.open.checksum.update(block);
                }
                self.copies()
            }
            BlockKind::Revoke => {
                if let Err(mismatch) = self.format.verify_tail(block) {
                    let damage = Damage::Revoke {
                        journal_block,
                        mismatch,
                    };
                    self.open.damage.get_or_insert(damage);
                }
                let position = self.position - 1;
                self.found.revoke_blocks.push(RevokeBlock {
                    position,
                    transaction_end: 0,
                });
                self.open.revoke_blocks += 1;
                Ok(Step::Continue)
            }
            BlockKind::Commit => {
                let Some(commit) = Commit::read(block) else {
                    return Ok(Step::End);
                };
                let check = match self.format.checksums {
                    LogChecksums::V1 => commit.verify_transaction(&self.open.checksum),
                    _ => self.format.verify_commit(block),
                };
                let damage = check.map_err(|mismatch| Damage::Commit {
                    journal_block,
                    mismatch,
                });
                self.commit(&commit, damage.err())
            }
            BlockKind::SuperblockV1 | BlockKind::SuperblockV2 | BlockKind::Unknown(_) => {
                Ok(Step::End)
            }
        }
    }

    /// Advances the position and returns its block; `None` after one turn of the ring.
    fn advance(&mut self) -> Option<JournalBlock> {
        if self.position >= self.found.ring.blocks {
            return None;
        }
        let journal_block = self.found.ring.block(self.position);
        self.position += 1;
        Some(journal_block)
    }

    /// Notes the copies that the current tags describe.
    fn copies(&mut self) -> Result<Step, Error> {
        for index in 0..self.tags.len() {
            let Some(&tag) = self.tags.get(index) else {
                break;
            };
            let Some(journal_block) = self.advance() else {
                return Ok(Step::End);
            };
            let mut block_and_flags = tag.block.0 & BLOCK_BITS;
            if self.format.checksums != LogChecksums::None {
                let copy = self.reader.read(journal_block)?;
                if !self.format.copy_matches(&tag, self.tid, copy) {
                    block_and_flags |= MISMATCHED;
                }
                if self.format.checksums == LogChecksums::V1 {
                    self.open.checksum.update(copy);
                }
            }
            if tag.flags.contains(TagFlags::ESCAPE) {
                block_and_flags |= ESCAPED;
            }
            if let Some(error) = self.forbid(tag.block, journal_block) {
                self.open.forbidden.get_or_insert(error);
            }
            let position = self.position - 1;
            self.found.copies.push(Logged {
                block_and_flags,
                position,
                revoked_to: 0,
            });
            self.open.copies += 1;
        }
        Ok(Step::Continue)
    }

    /// The reason why `block` must not be written by a replay, if there is one.
    fn forbid(&self, block: PhysBlock, journal_block: JournalBlock) -> Option<JournalError> {
        let (tid, blocks) = (self.tid, self.blocks.0);
        if block.0 >= blocks || block.0 > BLOCK_BITS {
            return Some(JournalError::CopyOutside {
                tid,
                journal_block,
                block,
                blocks,
            });
        }
        let inside = self.log.map().contains(block);
        inside.then_some(JournalError::CopyInJournal {
            tid,
            journal_block,
            block,
        })
    }

    /// Ends the open transaction at its commit block. `damage` is a checksum mismatch of that block
    /// or (version 1) of the transaction.
    fn commit(&mut self, commit: &Commit, damage: Option<Damage>) -> Result<Step, Error> {
        let open = std::mem::take(&mut self.open);
        let damage = open.damage.or(damage);
        let stale = commit.commit_sec < self.last_commit_sec;
        match (damage, self.found.damage) {
            (Some(_), _) | (_, Some(_)) if stale => {
                self.forget(&open);
                return Ok(Step::End);
            }
            (None, None) => {
                if let Some(error) = open.forbidden {
                    return Err(error.into());
                }
                let revoke_blocks = self.found.revoke_blocks.iter_mut().rev();
                for revoke_block in revoke_blocks.take(open.revoke_blocks) {
                    revoke_block.transaction_end = self.position;
                }
                self.found.ends.push(self.position);
                self.last_commit_sec = commit.commit_sec;
            }
            (Some(damage), None) => {
                self.forget(&open);
                self.found.is_torn = self.is_torn(damage);
                self.found.damage = Some((self.tid, damage));
            }
            // A second transaction that does not match: still no valid commit after the first. But
            // the commit of the first was durable before that of the second was written.
            (Some(_), Some(_)) => {
                self.found.is_torn &= self.format.commit_order == CommitOrder::Async;
                self.forget(&open);
            }
            (None, Some(_)) if self.on_damage == OnDamage::EndBefore => {
                self.found.is_torn = false;
                self.forget(&open);
            }
            (None, Some((tid, damage))) => {
                return Err(JournalError::Damaged {
                    tid,
                    damage,
                    later: self.tid,
                }
                .into());
            }
        }
        self.tid = self.tid.next();
        Ok(Step::Continue)
    }

    /// Whether a crash explains `damage`. With version 1 the checksum in a commit block is that of
    /// all other blocks, so a torn commit block matches.
    fn is_torn(&self, damage: Damage) -> bool {
        let is_of_commit = match self.format.checksums {
            LogChecksums::V2 { .. } | LogChecksums::V3 { .. } => true,
            LogChecksums::None | LogChecksums::V1 => false,
        };
        self.format.commit_order == CommitOrder::Async
            || is_of_commit && matches!(damage, Damage::Commit { .. })
    }

    /// Drops the copies and revoke blocks of a transaction that is not replayed.
    fn forget(&mut self, open: &Open) {
        let found = &mut self.found;
        found
            .copies
            .truncate(found.copies.len().saturating_sub(open.copies));
        let revoke_blocks = found.revoke_blocks.len().saturating_sub(open.revoke_blocks);
        found.revoke_blocks.truncate(revoke_blocks);
    }

    /// The result, without the transaction that was still open when the log ended.
    fn into_committed(mut self) -> Scanned {
        let open = std::mem::take(&mut self.open);
        self.forget(&open);
        self.found.end_of_log = self.tid;
        self.found
    }
}
