//! Tests of recovery on logs forged block by block: the end of a log, revoke records, damage.

use fourscore_block::{BlockDevice, RamDevice};
use fourscore_ondisk::jbd2::{
    BlockNumbers, CommitOrder, JournalCompat, JournalError, JournalIncompat, JournalSuperblock,
    LogChecksums, LogFormat, MAGIC, RawCommit, RawJournalSuperblock, Tag, TagFlags,
    TransactionChecksum,
};
use fourscore_ondisk::{BlockSize, Tid};
use fourscore_sync::Arc;
use proptest::prelude::*;
use uuid::Uuid;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::log::{JournalMap, JournalRun};

const BLOCK: usize = 1024;
/// The two runs of the journal: journal block, device block, length.
const RUNS: [(u32, u64, u32); 2] = [(0, 600, 20), (20, 500, 44)];
const JOURNAL_BLOCKS: u32 = 64;
const FS_BLOCKS: u64 = 1000;

/// Checksums to try, as features of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    None,
    V1,
    V2,
    V3,
}

/// Writes logs.
struct Forge {
    device: Arc<RamDevice>,
    raw: RawJournalSuperblock,
    format: LogFormat,
    at: u32,
    tid: u32,
    sec: u64,
    checksum: TransactionChecksum,
}

impl Forge {
    fn new(version: Version, numbers: BlockNumbers, start: u32) -> Self {
        Self::with_order(version, numbers, start, JournalIncompat::ASYNC_COMMIT)
    }

    /// As [`Forge::new`], with or without the feature of asynchronous commits.
    fn with_order(
        version: Version,
        numbers: BlockNumbers,
        start: u32,
        order: JournalIncompat,
    ) -> Self {
        let block_size = BlockSize::from_log(0).unwrap();
        let uuid = Uuid::from_bytes([3; 16]);
        let mut raw = RawJournalSuperblock::new(block_size, JOURNAL_BLOCKS, uuid);
        let mut incompat = JournalIncompat::REVOKE | order;
        if numbers == BlockNumbers::Wide {
            incompat |= JournalIncompat::_64BIT;
        }
        match version {
            Version::None => {}
            Version::V1 => raw.s_feature_compat = U32::new(JournalCompat::CHECKSUM.bits()),
            Version::V2 => incompat |= JournalIncompat::CSUM_V2,
            Version::V3 => incompat |= JournalIncompat::CSUM_V3,
        }
        raw.s_feature_incompat = U32::new(incompat.bits());
        raw.s_checksum_type = 4;
        raw.s_start = U32::new(start);
        // Two transactions before the numbers wrap around.
        raw.s_sequence = U32::new(u32::MAX - 1);
        let device = Arc::new(RamDevice::new(FS_BLOCKS * BLOCK as u64));
        let mut forge = Self {
            device,
            raw,
            format: LogFormat {
                checksums: LogChecksums::None,
                block_numbers: numbers,
                commit_order: CommitOrder::Async,
            },
            at: start,
            tid: u32::MAX - 1,
            sec: 1_000_000,
            checksum: TransactionChecksum::default(),
        };
        forge.write_superblock();
        forge.format = forge.log().superblock().log_format();
        forge
    }

    fn write_superblock(&mut self) {
        if let Err(JournalError::SuperblockChecksum { mismatch }) =
            JournalSuperblock::try_from(&self.raw)
        {
            self.raw.s_checksum = U32::new(mismatch.expected);
        }
        let raw = self.raw;
        self.write(0, raw.as_bytes());
    }

    fn map() -> JournalMap {
        let runs = RUNS.map(|(journal_block, block, blocks)| JournalRun {
            journal_block: JournalBlock(journal_block),
            block: PhysBlock(block),
            blocks,
        });
        JournalMap::from_runs(runs, BlockCount(FS_BLOCKS)).unwrap()
    }

    fn log(&self) -> Log {
        Log::open(
            self.device.clone(),
            BlockSize::from_log(0).unwrap(),
            Self::map(),
        )
        .unwrap()
    }

    fn recover(&self) -> Result<Recovered, Error> {
        recover(&self.log(), BlockCount(FS_BLOCKS))
    }

    fn error(&self) -> JournalError {
        match self.recover() {
            Err(Error::Corrupt(error)) => error,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    fn write(&self, journal_block: u32, bytes: &[u8]) {
        let (block, _) = Self::map().locate(JournalBlock(journal_block)).unwrap();
        self.device.write_at(bytes, block.0 * BLOCK as u64).unwrap();
    }

    /// Flips a bit of a block written before.
    fn damage(&self, journal_block: u32, byte: u64) {
        let (block, _) = Self::map().locate(JournalBlock(journal_block)).unwrap();
        let mut bytes = [0];
        let at = block.0 * BLOCK as u64 + byte;
        self.device.read_at(&mut bytes, at).unwrap();
        self.device.write_at(&[bytes[0] ^ 0x10], at).unwrap();
    }

    /// Writes the next block of the ring; returns its number.
    fn push(&mut self, bytes: &[u8]) -> u32 {
        let at = self.at;
        self.write(at, bytes);
        self.at = if at + 1 == JOURNAL_BLOCKS { 1 } else { at + 1 };
        at
    }

    fn header(&self, kind: u32) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        for (index, word) in [MAGIC, kind, self.tid].into_iter().enumerate() {
            block[4 * index..4 * index + 4].copy_from_slice(&word.to_be_bytes());
        }
        block
    }

    /// Writes a descriptor and copies of `blocks`, each filled with `fill`; returns the journal
    /// blocks.
    fn copies(&mut self, blocks: &[u64], fill: u8) -> Vec<u32> {
        let mut descriptor = self.header(1);
        let mut at = 12;
        let data = vec![fill; BLOCK];
        for (index, &block) in blocks.iter().enumerate() {
            let mut flags = if index == 0 {
                TagFlags::empty()
            } else {
                TagFlags::SAME_UUID
            };
            flags.set(TagFlags::LAST_TAG, index + 1 == blocks.len());
            flags.set(TagFlags::ESCAPE, fill == 0);
            let checksum = self.format.copy_checksum(Tid(self.tid), &data);
            let tag = Tag {
                block: PhysBlock(block),
                flags,
                checksum,
            };
            at += self
                .format
                .put_tag(&tag, &Uuid::nil(), &mut descriptor[at..])
                .unwrap();
        }
        self.format.seal_tail(&mut descriptor);
        self.checksum.update(&descriptor);
        let mut written = vec![self.push(&descriptor)];
        for _ in blocks {
            self.checksum.update(&data);
            written.push(self.push(&data));
        }
        written
    }

    fn revoke(&mut self, blocks: &[u64]) -> u32 {
        let mut block = self.header(5);
        let record_bytes = self.format.revoke_bytes();
        let mut at = 16;
        for revoked in blocks {
            let bytes = &revoked.to_be_bytes()[8 - record_bytes..];
            block[at..at + record_bytes].copy_from_slice(bytes);
            at += record_bytes;
        }
        block[12..16].copy_from_slice(&u32::try_from(at).unwrap().to_be_bytes());
        self.format.seal_tail(&mut block);
        self.push(&block)
    }

    fn commit(&mut self) -> u32 {
        let mut block = self.header(2);
        let (raw, _) = RawCommit::mut_from_prefix(&mut block).unwrap();
        raw.h_commit_sec.set(self.sec);
        let checksum = std::mem::take(&mut self.checksum);
        self.format.seal_commit(&mut block, &checksum);
        self.tid = self.tid.wrapping_add(1);
        self.sec += 1;
        self.push(&block)
    }

    /// Writes a complete transaction; returns its journal blocks.
    fn transaction(&mut self, blocks: &[u64], fill: u8) -> Vec<u32> {
        let mut written = self.copies(blocks, fill);
        written.push(self.commit());
        written
    }
}

fn all_formats() -> Vec<(Version, BlockNumbers)> {
    let versions = [Version::None, Version::V1, Version::V2, Version::V3];
    let numbers = [BlockNumbers::Narrow, BlockNumbers::Wide];
    versions
        .into_iter()
        .flat_map(|version| numbers.map(|numbers| (version, numbers)))
        .collect()
}

fn replayed(recovered: &Recovered) -> Vec<(u64, u32)> {
    recovered
        .copies()
        .iter()
        .map(|copy| (copy.block.0, copy.journal_block.0))
        .collect()
}

#[test]
fn an_empty_journal_has_nothing_to_replay() {
    let mut forge = Forge::new(Version::V3, BlockNumbers::Wide, 1);
    forge.transaction(&[7], 1);
    forge.raw.s_start = U32::new(0);
    forge.raw.s_sequence = U32::new(41);
    forge.write_superblock();
    let recovered = forge.recover().unwrap();
    assert_eq!((recovered.copies(), recovered.transactions()), (&[][..], 0));
    assert_eq!(
        (recovered.last_tid(), recovered.next_tid()),
        (None, Tid(42))
    );
}

#[test]
fn the_last_copy_of_each_block_wins_around_the_ring_and_past_tid_zero() {
    for (version, numbers) in all_formats() {
        let mut forge = Forge::new(version, numbers, 55);
        let one = forge.transaction(&[7, 8, 9], 1);
        let two = forge.transaction(&[8, 300], 2);
        let three = forge.transaction(&[9], 0);
        let recovered = forge.recover().unwrap();
        let expected = [(7, one[1]), (8, two[1]), (9, three[1]), (300, two[2])];
        assert_eq!(replayed(&recovered), expected, "{version:?} {numbers:?}");
        assert!(three[1] < 55, "the log went around");
        assert!(recovered.copy_of(PhysBlock(9)).unwrap().escaped);
        assert!(!recovered.copy_of(PhysBlock(8)).unwrap().escaped);
        assert_eq!(recovered.copy_of(PhysBlock(10)), None);
        assert_eq!(
            (recovered.transactions(), recovered.last_tid()),
            (3, Some(Tid(0)))
        );
        assert_eq!(
            (recovered.end_tid(), recovered.next_tid()),
            (Tid(1), Tid(2))
        );
        assert_eq!(recovered.head(), JournalBlock(forge.at));
        assert_eq!((recovered.damage(), recovered.revoked()), (None, 0));
    }
}

#[test]
fn a_transaction_without_a_commit_block_is_not_replayed() {
    for (version, numbers) in all_formats() {
        let mut forge = Forge::new(version, numbers, 1);
        let one = forge.transaction(&[7], 1);
        forge.copies(&[7, FS_BLOCKS + 5], 2);
        forge.revoke(&[7]);
        let recovered = forge.recover().unwrap();
        assert_eq!(replayed(&recovered), [(7, one[1])]);
        assert_eq!((recovered.transactions(), recovered.damage()), (1, None));
    }
}

#[test]
fn stale_blocks_with_another_sequence_number_end_the_log() {
    let mut forge = Forge::new(Version::None, BlockNumbers::Narrow, 1);
    let one = forge.transaction(&[7], 1);
    forge.tid = 5;
    forge.transaction(&[8], 2);
    assert_eq!(replayed(&forge.recover().unwrap()), [(7, one[1])]);
}

#[test]
fn revoke_records_void_older_copies_only() {
    for (version, numbers) in all_formats() {
        let mut forge = Forge::new(version, numbers, 60);
        forge.transaction(&[7, 8, 9, 10], 1);
        forge.copies(&[9], 2);
        forge.revoke(&[7, 9, 400]);
        forge.commit();
        let three = forge.transaction(&[7], 3);
        let recovered = forge.recover().unwrap();
        // 7 was used again afterwards; 9 was revoked in the transaction that logged it.
        let blocks: Vec<_> = recovered.copies().iter().map(|copy| copy.block.0).collect();
        assert_eq!(blocks, [7, 8, 10], "{version:?} {numbers:?}");
        assert_eq!(
            recovered.copy_of(PhysBlock(7)).unwrap().journal_block.0,
            three[1]
        );
        assert_eq!(recovered.revoked(), 3);
    }
}

#[test]
fn copies_outside_the_file_system_or_inside_the_journal_are_refused() {
    let mut forge = Forge::new(Version::V2, BlockNumbers::Wide, 1);
    let written = forge.transaction(&[7, 1 << 50], 1);
    let (tid, journal_block) = (Tid(u32::MAX - 1), JournalBlock(written[2]));
    let block = PhysBlock(1 << 50);
    let expected = JournalError::CopyOutside {
        tid,
        journal_block,
        block,
        blocks: FS_BLOCKS,
    };
    assert_eq!(forge.error(), expected);

    let mut forge = Forge::new(Version::V2, BlockNumbers::Wide, 1);
    let written = forge.transaction(&[7, 543], 1);
    let (journal_block, block) = (JournalBlock(written[2]), PhysBlock(543));
    assert_eq!(
        forge.error(),
        JournalError::CopyInJournal {
            tid,
            journal_block,
            block
        }
    );
    let mut forge = Forge::new(Version::V2, BlockNumbers::Wide, 1);
    forge.transaction(&[499, 544, 599, 620], 1);
    assert_eq!(forge.recover().unwrap().copies().len(), 4);
}

#[test]
fn a_revoke_block_that_claims_too_much_is_refused() {
    let mut forge = Forge::new(Version::None, BlockNumbers::Wide, 1);
    let at = forge.revoke(&[7]);
    forge.commit();
    forge.damage(at, 14);
    let (tid, journal_block) = (Tid(u32::MAX - 1), JournalBlock(at));
    let found = 24 + 0x1000;
    let expected = JournalError::RevokeCount {
        tid,
        journal_block,
        found,
        limit: 1024,
    };
    assert_eq!(forge.error(), expected);
}

/// Writes two transactions, and a third one if `third` says so, damages block `which` of the
/// second, and recovers.
fn damaged(version: Version, which: usize, third: bool) -> Result<Recovered, Error> {
    damaged_in_order(version, which, third, JournalIncompat::ASYNC_COMMIT)
}

fn damaged_in_order(
    version: Version,
    which: usize,
    third: bool,
    order: JournalIncompat,
) -> Result<Recovered, Error> {
    let mut forge = Forge::with_order(version, BlockNumbers::Wide, 50, order);
    forge.transaction(&[7, 8], 1);
    let mut two = vec![forge.revoke(&[8])];
    two.extend(forge.transaction(&[7, 9], 2));
    if third {
        forge.transaction(&[10], 3);
    }
    forge.damage(two[which], 100);
    forge.recover()
}

/// The blocks of the second transaction (0 revoke, 1 descriptor, 2 and 3 copies, 4 commit), and
/// the versions whose checksums detect a flipped bit in them.
const DETECTED: [(usize, &[Version]); 5] = [
    (0, &[Version::V2, Version::V3]),
    (1, &[Version::V1, Version::V2, Version::V3]),
    (2, &[Version::V1, Version::V2, Version::V3]),
    (3, &[Version::V1, Version::V2, Version::V3]),
    (4, &[Version::V2, Version::V3]),
];

#[test]
fn damage_in_the_last_transaction_ends_the_log_before_it() {
    for (which, versions) in DETECTED {
        for version in [Version::None, Version::V1, Version::V2, Version::V3] {
            let recovered = damaged(version, which, false).unwrap();
            let blocks: Vec<_> = recovered.copies().iter().map(|copy| copy.block.0).collect();
            let damage = recovered.damage();
            if versions.contains(&version) {
                assert_eq!(blocks, [7, 8], "{version:?} block {which}");
                assert_eq!(damage.unwrap().0, Tid(u32::MAX));
                assert_eq!((recovered.transactions(), recovered.revoked()), (1, 0));
                assert_eq!(recovered.end_tid(), Tid(u32::MAX));
            } else {
                assert_eq!(damage, None, "{version:?} block {which}");
                assert_eq!(recovered.transactions(), 2);
            }
        }
    }
}

#[test]
fn only_a_torn_commit_is_left_out_by_a_writable_open() {
    for (which, versions) in DETECTED {
        for &version in versions {
            let unordered = damaged(version, which, false).unwrap();
            assert_eq!(unordered.check_writable(), Ok(()), "{version:?} {which}");
            let none = JournalIncompat::empty();
            let ordered = damaged_in_order(version, which, false, none).unwrap();
            let (tid, damage) = ordered.damage().unwrap();
            let expected = match which == 4 {
                true => Ok(()),
                false => Err(JournalError::DamagedLast { tid, damage }),
            };
            assert_eq!(ordered.check_writable(), expected, "{version:?} {which}");
        }
    }
    let mut forge = Forge::with_order(
        Version::V3,
        BlockNumbers::Wide,
        50,
        JournalIncompat::empty(),
    );
    let torn = forge.transaction(&[7], 1);
    assert_eq!(forge.recover().unwrap().check_writable(), Ok(()));
    forge.damage(torn[2], 100);
    assert_eq!(forge.recover().unwrap().check_writable(), Ok(()));
    let second = forge.transaction(&[8], 2);
    forge.damage(second[2], 100);
    let both = forge.recover().unwrap();
    assert_eq!(both.transactions(), 0);
    let (tid, damage) = both.damage().unwrap();
    let expected = Err(JournalError::DamagedLast { tid, damage });
    assert_eq!(both.check_writable(), expected, "the first was durable");
}

#[test]
fn damage_before_a_valid_commit_is_an_error() {
    for (which, versions) in DETECTED {
        for &version in versions {
            let Err(Error::Corrupt(JournalError::Damaged { tid, damage, later })) =
                damaged(version, which, true)
            else {
                panic!("{version:?} block {which}: not detected");
            };
            assert_eq!((tid, later), (Tid(u32::MAX), Tid(0)));
            let kind_fits = match damage {
                Damage::Revoke { .. } => which == 0,
                Damage::Descriptor { .. } => which == 1,
                Damage::Copy { .. } => which == 2 || which == 3,
                Damage::Commit { .. } => which == 4 || version == Version::V1,
            };
            assert!(kind_fits, "{version:?} block {which}: {damage}");
        }
    }
}

#[test]
fn a_salvage_skips_copies_and_ends_before_other_damage() {
    for version in [Version::V2, Version::V3] {
        // Revoke, descriptor, two copies and commit of the second transaction of three.
        let expected: [&[u64]; 5] = [&[7, 8], &[7, 8], &[7, 9, 10], &[7, 10], &[7, 8]];
        for (which, expected) in expected.into_iter().enumerate() {
            let none = JournalIncompat::empty();
            let mut forge = Forge::with_order(version, BlockNumbers::Wide, 50, none);
            let one = forge.transaction(&[7, 8], 1);
            let mut two = vec![forge.revoke(&[8])];
            two.extend(forge.transaction(&[7, 9], 2));
            forge.transaction(&[10], 3);
            forge.damage(two[which], 100);
            forge.recover().unwrap_err();
            let recovered = salvage(&forge.log(), BlockCount(FS_BLOCKS)).unwrap();
            let blocks: Vec<_> = recovered.copies().iter().map(|copy| copy.block.0).collect();
            assert_eq!(blocks, expected, "{version:?} {which}");
            let (tid, _) = recovered.damage().unwrap();
            assert_eq!(tid, Tid(u32::MAX), "{version:?} {which}");
            assert!(recovered.check_writable().is_err());
            let is_copy = which == 2 || which == 3;
            assert_eq!(recovered.skipped(), u64::from(is_copy));
            let first_copy = match which {
                3 => two[2],
                _ => one[1],
            };
            assert_eq!(recovered.copies()[0].journal_block.0, first_copy);
            // The numbers of all three transactions are spent.
            assert_eq!(recovered.end_of_log(), Tid(1), "{version:?} {which}");
        }
    }
}

#[test]
fn a_mismatched_copy_that_is_revoked_later_is_ignored() {
    let mut forge = Forge::new(Version::V3, BlockNumbers::Wide, 1);
    let one = forge.transaction(&[7, 8], 1);
    forge.revoke(&[7]);
    forge.commit();
    forge.damage(one[1], 0);
    let recovered = forge.recover().unwrap();
    assert_eq!(
        (replayed(&recovered), recovered.damage()),
        (vec![(8, one[2])], None)
    );
    forge.damage(one[2], 0);
    let expected = JournalError::Damaged {
        tid: Tid(u32::MAX - 1),
        damage: Damage::Copy {
            journal_block: JournalBlock(one[2]),
            block: PhysBlock(8),
        },
        later: Tid(u32::MAX),
    };
    assert_eq!(forge.error(), expected);
}

#[test]
fn a_mismatched_older_commit_is_stale_and_not_damage() {
    for version in [Version::V1, Version::V2, Version::V3] {
        let mut forge = Forge::new(version, BlockNumbers::Wide, 1);
        let one = forge.transaction(&[7], 1);
        forge.sec -= 100;
        let two = forge.transaction(&[8], 2);
        forge.damage(two[0], 14);
        let recovered = forge.recover().unwrap();
        assert_eq!(replayed(&recovered), [(7, one[1])], "{version:?}");
        assert_eq!(recovered.damage(), None, "{version:?}: stale, not damaged");
    }
}

#[test]
fn a_log_full_of_framing_blocks_ends_after_one_turn() {
    let mut forge = Forge::new(Version::None, BlockNumbers::Narrow, 30);
    for _ in 1..JOURNAL_BLOCKS {
        let revoke = forge.revoke(&[7]);
        assert!(revoke > 0);
    }
    let recovered = forge.recover().unwrap();
    assert_eq!((recovered.transactions(), recovered.copies().len()), (0, 0));
}

#[test]
fn maps_with_holes_overlaps_or_blocks_outside_are_refused() {
    let run = |journal_block, block, blocks| JournalRun {
        journal_block: JournalBlock(journal_block),
        block: PhysBlock(block),
        blocks,
    };
    let of = |runs: &[JournalRun]| {
        JournalMap::from_runs(runs.to_vec(), BlockCount(100)).map(|map| map.len())
    };
    assert_eq!(of(&[run(5, 20, 5), run(0, 30, 5)]), Ok(10));
    let hole = JournalError::Hole {
        journal_block: JournalBlock(5),
    };
    assert_eq!(of(&[run(6, 20, 5), run(0, 30, 5)]), Err(hole));
    let outside = |block| JournalError::MappedOutside {
        journal_block: JournalBlock(0),
        block: PhysBlock(block),
        blocks: 100,
    };
    assert_eq!(of(&[run(0, 96, 5)]), Err(outside(96)));
    assert_eq!(of(&[run(0, 0, 5)]), Err(outside(0)));
    assert_eq!(of(&[run(0, u64::MAX, 5)]), Err(outside(u64::MAX)));
    let twice = JournalError::MappedTwice {
        block: PhysBlock(24),
    };
    assert_eq!(of(&[run(0, 20, 5), run(5, 24, 5)]), Err(twice));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Whatever is changed in a log, recovery ends, and the copies' home locations are valid.
    #[test]
    fn mutated_logs_never_write_outside(
        format in 0_usize..8,
        start in 1_u32..JOURNAL_BLOCKS,
        mutations in prop::collection::vec((0_u32..JOURNAL_BLOCKS, 0_u64..140, any::<u8>()), 1..12),
    ) {
        let (version, numbers) = all_formats()[format];
        let mut forge = Forge::new(version, numbers, start);
        for round in 0..5 {
            forge.copies(&[7 + round, 8, 9 + round], u8::try_from(round).unwrap());
            forge.revoke(&[8, 7]);
            forge.commit();
        }
        for (journal_block, byte, value) in mutations {
            let (block, _) = Forge::map().locate(JournalBlock(journal_block)).unwrap();
            forge.device.write_at(&[value], block.0 * BLOCK as u64 + byte).unwrap();
        }
        let Ok(log) = Log::open(forge.device.clone(), BlockSize::from_log(0).unwrap(), Forge::map())
        else {
            return Ok(());
        };
        let blocks = BlockCount(FS_BLOCKS);
        for recovered in [recover(&log, blocks), salvage(&log, blocks)].into_iter().flatten() {
            prop_assert!(recovered.copies().is_sorted_by(|one, two| one.block < two.block));
            for copy in recovered.copies() {
                prop_assert!(copy.block.0 < FS_BLOCKS && !log.map().contains(copy.block));
                prop_assert!(log.superblock().log().contains(&copy.journal_block));
            }
        }
    }
}
