//! **Purpose.** The blocks of a journal, one by one.
//!
//! **Input.** A byte of switches, then a block of 1 KiB that is taken for each kind in turn.

use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::{
    BlockNumbers, Commit, CommitOrder, Header, JournalBlock, JournalError, JournalSuperblock,
    LogChecksums, LogFormat, RawJournalSuperblock, TransactionChecksum,
};
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::device::BLOCK_BYTES;
use crate::input::Input;
use crate::targets::SEAL;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let switches = input.u8();
    let block = input.padded(BLOCK_BYTES);
    superblock(block.clone(), switches);
    let checksums = match switches >> 1 & 3 {
        0 => LogChecksums::None,
        1 => LogChecksums::V1,
        2 => LogChecksums::V2 { seed: 5 },
        _ => LogChecksums::V3 { seed: 5 },
    };
    let format = LogFormat {
        checksums,
        block_numbers: if switches & 8 == 0 {
            BlockNumbers::Narrow
        } else {
            BlockNumbers::Wide
        },
        commit_order: CommitOrder::Ordered,
    };
    log_block(block, &format);
}

fn superblock(mut block: Vec<u8>, switches: u8) {
    let (raw, _) = RawJournalSuperblock::mut_from_prefix(&mut block).expect("long enough");
    let parsed = JournalSuperblock::try_from(&*raw);
    if let (Err(JournalError::SuperblockChecksum { mismatch }), true) =
        (&parsed, switches & SEAL != 0)
    {
        raw.s_checksum = mismatch.expected.into();
    }
    let Ok(mut superblock) = JournalSuperblock::try_from(&*raw) else {
        return;
    };
    let (log, area) = (superblock.log(), superblock.fast_commit_area());
    assert!(log.start.0 > 0 && log.start < log.end && log.end.0 <= superblock.maxlen());
    assert!(area.start <= area.end && area.end.0 <= superblock.maxlen() && log.end <= area.start);
    assert!(superblock.start().is_none_or(|start| log.contains(&start)));
    assert!(superblock.users().count() <= 48);
    let _others = (
        superblock.head(),
        superblock.errno(),
        superblock.uuid(),
        superblock.version(),
    );
    superblock.seal();
    superblock.verify().expect("sealed a moment ago");
}

fn log_block(mut block: Vec<u8>, format: &LogFormat) {
    let _header = Header::read(&block);
    let tags: Vec<_> = format.tags(&block).take(block.len()).collect();
    assert!(tags.len() <= block.len() / format.tag_bytes());
    for tag in &tags {
        let mut room = [0; 64];
        format
            .put_tag(tag, &Uuid::nil(), &mut room)
            .expect("a tag fits");
        let again = format
            .tags(&[&[0; 12][..], &room].concat())
            .next()
            .expect("a tag");
        assert_eq!((again.block, again.flags), (tag.block, tag.flags));
    }
    if let Ok(revokes) = format.revokes(&block, Tid(1), JournalBlock(1)) {
        assert!(revokes.count() <= block.len() / format.revoke_bytes());
    }
    let mut transaction = TransactionChecksum::default();
    transaction.update(&block);
    format.seal_tail(&mut block);
    format.verify_tail(&block).expect("sealed a moment ago");
    format.seal_commit(&mut block, &transaction);
    format.verify_commit(&block).expect("sealed a moment ago");
    if format.checksums == LogChecksums::V1 {
        let commit = Commit::read(&block).expect("long enough");
        commit
            .verify_transaction(&transaction)
            .expect("sealed a moment ago");
    }
}
