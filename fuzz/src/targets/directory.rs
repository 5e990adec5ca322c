//! **Purpose.** Directory blocks, hash indexes, the hashes of names, casefolding.
//!
//! **Input.** A byte of switches, a byte for names and block size, the block.

use fourscore_ondisk::casefold::{Encoding, FoldedName};
use fourscore_ondisk::checksum::{ChecksumSeed, InodeGeneration};
use fourscore_ondisk::dirent::{DirFormat, NameForm, TAIL_BYTES, TypeByte};
use fourscore_ondisk::dirhash::{CharSign, HashAlgorithm, NameHasher};
use fourscore_ondisk::htree::{self, Index, IndexLevels};
use fourscore_ondisk::{BlockSize, InodeNr, LogicalBlock};

use crate::input::Input;
use crate::targets::SEAL;

/// Blocks of the imaginary directory.
const END: LogicalBlock = LogicalBlock(1 << 20);

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let [switches, shape] = input.array();
    let names = match shape & 3 {
        0 | 1 => NameForm::Plain,
        2 => NameForm::Encrypted,
        _ => NameForm::EncryptedHashed,
    };
    let has_checksums = switches & 2 != 0;
    let seed = ChecksumSeed::from_stored(7).for_inode(InodeNr(12), InodeGeneration(1));
    let format = DirFormat {
        names,
        type_byte: if shape & 4 == 0 {
            TypeByte::Present
        } else {
            TypeByte::Absent
        },
        inodes_count: InodeNr(1 << 16),
        seed: has_checksums.then_some(seed),
    };
    let block_size = BlockSize::from_log(u32::from(shape >> 4) % 7).expect("0 to 6");
    let block = place(input.rest(), block_size.bytes());
    let sealed = |seal: &dyn Fn(&mut [u8]) -> bool| {
        let mut block = block.clone();
        let _has_a_place = switches & SEAL != 0 && has_checksums && seal(&mut block);
        block
    };
    leaf(
        &format,
        &sealed(&|block| DirFormat::seal(block, seed).is_ok()),
    );
    root(
        &format,
        &sealed(&|block| htree::seal_root(block, seed).is_ok()),
    );
    node(
        &format,
        &sealed(&|block| htree::seal_node(block, seed).is_ok()),
    );
}

/// A block with `bytes` at its start, and their last ones, where its checksum would be, at its end.
fn place(bytes: &[u8], block_bytes: usize) -> Vec<u8> {
    let bytes = &bytes[..bytes.len().min(block_bytes)];
    let mut block = vec![0; block_bytes];
    let (start, tail) = bytes.split_at(bytes.len().saturating_sub(TAIL_BYTES));
    block[..start.len()].copy_from_slice(start);
    block[block_bytes - tail.len()..].copy_from_slice(tail);
    block
}

fn leaf(format: &DirFormat, block: &[u8]) {
    let bounded = format.records(block).take(block.len() + 1).count();
    assert!(bounded <= block.len(), "records do not end");
    if format.check_block(block).is_err() {
        return;
    }
    let mut next = 0;
    for record in format.records(block) {
        let record = record.expect("checked");
        assert_eq!(record.at, next);
        next += record.rec_len;
    }
    assert!(next <= block.len());
    for entry in format.entries(block).take(40) {
        let entry = entry.expect("checked");
        assert!(!entry.name.is_empty() && entry.inode <= format.inodes_count);
        let found = format.find(block, entry.name).expect("checked");
        assert!(found.is_some_and(|found| found.name == entry.name));
        assert!(format.needed_bytes(entry.name) <= entry.rec_len);
        hashes(entry.name);
    }
    let _dots = format.dots(block);
}

fn hashes(name: &[u8]) {
    for algorithm in [
        HashAlgorithm::Legacy,
        HashAlgorithm::HalfMd4,
        HashAlgorithm::Tea,
    ] {
        for chars in [CharSign::Signed, CharSign::Unsigned] {
            let hasher = NameHasher::seeded(algorithm, chars, [1, 2, 3, 4]).expect("no key needed");
            assert_eq!(hasher.hash(name).hash & 1, 0);
        }
    }
    for encoding in [Encoding::Lenient, Encoding::Strict] {
        if let Ok(folded) = FoldedName::new(name, encoding) {
            assert!(folded.matches(name));
            let again = FoldedName::new(folded.hash_input(), encoding).expect("folded");
            assert_eq!(
                again.hash_input(),
                folded.hash_input(),
                "folding twice changes nothing"
            );
        }
    }
}

fn root(format: &DirFormat, block: &[u8]) {
    if htree::check_root(block, format, IndexLevels::Three, END).is_err() {
        return;
    }
    let info = htree::root_info(block).expect("checked");
    assert!(info.indirect_levels <= 2);
    search(&Index::root(block).expect("checked"));
}

fn node(format: &DirFormat, block: &[u8]) {
    if htree::check_node(block, format, END).is_err() {
        return;
    }
    assert!(htree::looks_like_node(block));
    search(&Index::node(block).expect("checked"));
}

/// Each hash leads to an entry, and to the one that is responsible for it.
fn search(index: &Index<'_>) {
    for position in 0..index.len() {
        let hash = index.hash(position).expect("inside");
        let found = index.search(hash);
        assert!(
            found >= position && index.hash(found) == Some(hash),
            "{hash:#x}"
        );
        assert!(index.block(position).is_some_and(|block| block < END));
        let _goes_on = index.continues(position, hash);
    }
    for hash in [0, u32::MAX] {
        assert!(index.search(hash) < index.len());
    }
}
