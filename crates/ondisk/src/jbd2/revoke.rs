//! **Purpose.** Revoke blocks: after the header a byte count and that many bytes of block
//! numbers, whose copies logged up to this transaction must not be replayed.

use super::{BlockNumbers, JournalBlock, JournalError, LogFormat, RawHeader, RecordError, be32};
use crate::types::{PhysBlock, Tid};

/// The offset of the first record, after the header and `r_count`.
pub const REVOKE_HEADER_BYTES: usize = size_of::<RawHeader>() + 4;

impl LogFormat {
    /// Bytes of one revoke record.
    #[must_use]
    pub fn revoke_bytes(&self) -> usize {
        match self.block_numbers {
            BlockNumbers::Narrow => 4,
            BlockNumbers::Wide => 8,
        }
    }

    /// The number of records in one revoke block of `block_bytes`.
    #[must_use]
    pub fn revokes_per_block(&self, block_bytes: usize) -> usize {
        let end = block_bytes.saturating_sub(self.tail_bytes());
        end.saturating_sub(REVOKE_HEADER_BYTES) / self.revoke_bytes()
    }

    /// Writes `r_count` and as many of `revoked` as fit into a revoke block whose header is
    /// written; returns their number.
    ///
    /// # Errors
    /// [`RecordError::WideBlock`], with nothing written.
    pub fn put_revokes(
        &self,
        revoked: &[PhysBlock],
        block: &mut [u8],
    ) -> Result<usize, RecordError> {
        let count = revoked.len().min(self.revokes_per_block(block.len()));
        let mut now = revoked.iter().take(count);
        now.try_for_each(|&block| self.block_numbers.check(block))?;
        let record_bytes = self.revoke_bytes();
        let used = REVOKE_HEADER_BYTES + count * record_bytes;
        let r_count = u32::try_from(used).unwrap_or(u32::MAX);
        if let Some(field) = block.get_mut(size_of::<RawHeader>()..REVOKE_HEADER_BYTES) {
            field.copy_from_slice(&r_count.to_be_bytes());
        }
        let records = block.get_mut(REVOKE_HEADER_BYTES..used).unwrap_or(&mut []);
        for (record, revoked) in records.chunks_exact_mut(record_bytes).zip(revoked) {
            let [_, _, _, _, low @ ..] = revoked.0.to_be_bytes();
            match self.block_numbers {
                BlockNumbers::Narrow => record.copy_from_slice(&low),
                BlockNumbers::Wide => record.copy_from_slice(&revoked.0.to_be_bytes()),
            }
        }
        Ok(count)
    }

    /// The records of a revoke block.
    ///
    /// # Errors
    /// [`JournalError::RevokeCount`], with `tid` and `journal_block`, if `r_count` is larger than
    /// the block.
    pub fn revokes<'a>(
        &self,
        block: &'a [u8],
        tid: Tid,
        journal_block: JournalBlock,
    ) -> Result<Revokes<'a>, JournalError> {
        let end = block.len().saturating_sub(self.tail_bytes());
        let r_count = be32(block, size_of::<RawHeader>()).ok_or(JournalError::Short {
            found: block.len(),
            expected: REVOKE_HEADER_BYTES,
        })?;
        let used = usize::try_from(r_count)
            .ok()
            .filter(|&used| used <= end)
            .ok_or_else(|| {
                let limit = u32::try_from(end).unwrap_or(u32::MAX);
                JournalError::RevokeCount {
                    tid,
                    journal_block,
                    found: r_count,
                    limit,
                }
            })?;
        let records = block.get(REVOKE_HEADER_BYTES..used).unwrap_or(&[]);
        Ok(Revokes {
            record_bytes: self.revoke_bytes(),
            rest: records,
        })
    }
}

/// An iterator over the block numbers of one revoke block. An incomplete last record is skipped.
#[derive(Clone, Debug)]
pub struct Revokes<'a> {
    record_bytes: usize,
    rest: &'a [u8],
}

impl Iterator for Revokes<'_> {
    type Item = PhysBlock;

    fn next(&mut self) -> Option<PhysBlock> {
        let (record, rest) = self.rest.split_at_checked(self.record_bytes)?;
        self.rest = rest;
        Some(PhysBlock(
            record
                .iter()
                .fold(0, |number, &byte| number << 8 | u64::from(byte)),
        ))
    }
}
