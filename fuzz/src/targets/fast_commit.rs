//! **Purpose.** Fast-commit records.
//!
//! **Input.** A byte for the inode size, then the block.

use fourscore_ondisk::fast_commit::{FastCommitChecksum, RECORD_HEADER_BYTES, Record, records};

use crate::input::Input;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let inode_bytes = 128 << (input.u8() % 6);
    let block = input.rest();
    let mut at = 0;
    let mut checksum = FastCommitChecksum::default();
    for found in records(block, inode_bytes) {
        let Ok(found) = found else { return };
        assert!(found.bytes.len() >= RECORD_HEADER_BYTES);
        assert_eq!(found.bytes, &block[at..at + found.bytes.len()]);
        at += found.bytes.len();
        match found.record {
            Record::Tail { .. } => {
                let _value = checksum.at_tail(&found);
                checksum = FastCommitChecksum::default();
            }
            Record::Inode { raw, .. } => assert!((128..=inode_bytes).contains(&raw.len())),
            Record::Creat(entry) | Record::Link(entry) | Record::Unlink(entry) => {
                assert!((1..=255).contains(&entry.name.len()));
                checksum.update(&found);
            }
            Record::AddRange(range) => {
                assert!(range.blocks <= 32_768 && range.physical.0 < 1 << 48);
                checksum.update(&found);
            }
            Record::DelRange(_) | Record::Pad | Record::Head { .. } => checksum.update(&found),
        }
    }
    assert!(
        block.len() - at < RECORD_HEADER_BYTES,
        "bytes were left out"
    );
}
