//! **Purpose.** Renews the checksums of a journal: its superblock, the blocks that frame
//! transactions, the copies, and the fast commits.

use fourscore_ondisk::fast_commit::{FastCommitChecksum, RECORD_HEADER_BYTES, Record, records};
use fourscore_ondisk::jbd2::{
    BlockKind, Header, JournalError, JournalSuperblock, LogFormat, RawJournalSuperblock,
    TransactionChecksum,
};
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::device::Patched;

/// Where the tags of a descriptor block begin.
const TAGS_AT: usize = 12;

/// Seals the journal whose blocks are `journal`, if any of them was changed. `seal_copy` seals a
/// copy as the content of its home, whose number it gets.
pub fn seal_log(
    device: &mut Patched,
    journal: &[u32],
    inode_bytes: usize,
    seal_copy: impl Fn(u32, &mut [u8]),
) {
    let Some((&first, _)) = journal.split_first() else {
        return;
    };
    if !journal
        .iter()
        .any(|&block| device.is_changed(block as usize))
    {
        return;
    }
    let Some(superblock) = seal_superblock(device, first) else {
        return;
    };
    let at = |nr: u32| journal.get(nr as usize).map(|&block| block as usize);
    if let Some(start) = superblock.start() {
        let ring = superblock.log();
        let turn = (start.0..ring.end.0).chain(ring.start.0..start.0);
        let blocks: Vec<usize> = turn.map_while(at).collect();
        seal_transactions(device, &blocks, superblock.log_format(), seal_copy);
    }
    let area = superblock.fast_commit_area();
    let mut checksum = FastCommitChecksum::default();
    for block in (area.start.0..area.end.0).map_while(at) {
        if !seal_fast_commits(device.block_mut(block), inode_bytes, &mut checksum) {
            break;
        }
    }
}

/// Seals the journal's superblock; `None` if it cannot be used in any case.
fn seal_superblock(device: &mut Patched, block: u32) -> Option<JournalSuperblock> {
    let (raw, _) = RawJournalSuperblock::mut_from_prefix(device.block_mut(block as usize)).ok()?;
    if let Err(JournalError::SuperblockChecksum { mismatch }) = JournalSuperblock::try_from(&*raw) {
        raw.s_checksum = mismatch.expected.into();
    }
    JournalSuperblock::try_from(&*raw).ok()
}

/// Seals what the log holds until the first block that frames nothing.
fn seal_transactions(
    device: &mut Patched,
    blocks: &[usize],
    format: LogFormat,
    seal_copy: impl Fn(u32, &mut [u8]),
) {
    let mut blocks = blocks.iter();
    let mut transaction = TransactionChecksum::default();
    while let Some(&block) = blocks.next() {
        let Some(header) = Header::read(device.block(block)) else {
            break;
        };
        match header.kind {
            BlockKind::Descriptor => {
                let mut descriptor = device.block(block).to_vec();
                let tags: Vec<_> = format.tags(&descriptor).collect();
                let mut copies = Vec::new();
                let mut at = TAGS_AT;
                for mut tag in tags {
                    let Some(&copy) = blocks.next() else { break };
                    if let Ok(home) = u32::try_from(tag.block.0) {
                        seal_copy(home, device.block_mut(copy));
                    }
                    tag.checksum = format.copy_checksum(header.tid, device.block(copy));
                    let to = descriptor.get_mut(at..).unwrap_or_default();
                    at += format.put_tag(&tag, &Uuid::nil(), to).unwrap_or(0);
                    copies.push(copy);
                }
                format.seal_tail(&mut descriptor);
                transaction.update(&descriptor);
                for copy in copies {
                    transaction.update(device.block(copy));
                }
                device.block_mut(block).copy_from_slice(&descriptor);
            }
            BlockKind::Revoke => format.seal_tail(device.block_mut(block)),
            BlockKind::Commit => {
                let done = std::mem::take(&mut transaction);
                format.seal_commit(device.block_mut(block), &done);
            }
            _ => break,
        }
    }
}

/// Seals the tails in a block of the fast-commit area; whether the area goes on after it.
fn seal_fast_commits(
    block: &mut [u8],
    inode_bytes: usize,
    checksum: &mut FastCommitChecksum,
) -> bool {
    let mut tails = Vec::new();
    let mut at = 0;
    for found in records(block, inode_bytes) {
        let Ok(found) = found else { return false };
        if matches!(found.record, Record::Tail { .. }) {
            tails.push((at + RECORD_HEADER_BYTES + 4, checksum.at_tail(&found)));
            *checksum = FastCommitChecksum::default();
        } else {
            checksum.update(&found);
        }
        at += found.bytes.len();
    }
    for (at, value) in tails {
        if let Some(field) = block.get_mut(at..at + 4) {
            field.copy_from_slice(&value.to_le_bytes());
        }
    }
    at > 0
}
