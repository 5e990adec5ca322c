//! Tests of the journal's structures: every format, every check, and any bytes.

use proptest::prelude::*;
use uuid::Uuid;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::types::BlockSize;

const UUID: Uuid = Uuid::from_bytes(*b"journal uuid 16.");

fn formats() -> Vec<LogFormat> {
    let seed = 0x1234_5678;
    let mut formats = Vec::new();
    for checksums in [
        LogChecksums::None,
        LogChecksums::V1,
        LogChecksums::V2 { seed },
        LogChecksums::V3 { seed },
    ] {
        for block_numbers in [BlockNumbers::Narrow, BlockNumbers::Wide] {
            formats.push(LogFormat {
                checksums,
                block_numbers,
                commit_order: CommitOrder::Ordered,
            });
        }
    }
    formats
}

fn raw_superblock() -> RawJournalSuperblock {
    RawJournalSuperblock::new(BlockSize::from_log(2).unwrap(), 4096, UUID)
}

#[test]
fn tag_sizes_are_those_of_the_kernel() {
    let sizes: Vec<_> = formats().iter().map(LogFormat::tag_bytes).collect();
    assert_eq!(sizes, [8, 12, 8, 12, 10, 14, 16, 16]);
}

#[test]
fn the_transaction_checksum_is_crc32_without_reflection() {
    let mut checksum = TransactionChecksum::default();
    checksum.update(b"1234");
    checksum.update(b"56789");
    // The catalogue's check value of CRC-32/MPEG-2.
    assert_eq!(checksum.value(), 0x0376_e6e7);
}

#[test]
fn a_fresh_superblock_is_read() {
    let raw = raw_superblock();
    let sb = JournalSuperblock::try_from(&raw).unwrap();
    assert_eq!(sb.log(), JournalBlock(1)..JournalBlock(4096));
    assert!(sb.fast_commit_area().is_empty());
    assert_eq!((sb.start(), sb.sequence(), sb.errno()), (None, Tid(1), 0));
    assert_eq!((sb.uuid(), sb.users().count()), (UUID, 1));
    assert_eq!(sb.log_format().checksums, LogChecksums::None);
    assert_eq!(sb.raw().as_bytes(), raw.as_bytes());
}

#[test]
fn the_fast_commit_area_comes_after_an_unused_block() {
    let mut raw = raw_superblock();
    raw.s_feature_incompat = U32::new(JournalIncompat::FAST_COMMIT.bits());
    let sb = JournalSuperblock::try_from(&raw).unwrap();
    assert_eq!(sb.log(), JournalBlock(1)..JournalBlock(4096 - 256));
    assert_eq!(
        sb.fast_commit_area(),
        JournalBlock(4096 - 255)..JournalBlock(4096)
    );
    // An area that would leave fewer than 1 024 blocks to the log does not exist.
    raw.s_num_fc_blks = U32::new(4096 - 1023);
    let sb = JournalSuperblock::try_from(&raw).unwrap();
    assert_eq!(sb.log().end, JournalBlock(4096));
    assert!(sb.fast_commit_area().is_empty());
    raw.s_num_fc_blks = U32::new(4097);
    let error = JournalSuperblock::try_from(&raw).unwrap_err();
    assert_eq!(
        error,
        JournalError::FastCommitBlocks {
            found: 4097,
            log: 4096
        }
    );
}

#[test]
fn version_1_has_no_features_for_any_bytes() {
    let mut raw = raw_superblock();
    raw.s_header.h_blocktype = U32::new(3);
    raw.s_feature_incompat = U32::new(!0);
    raw.s_nr_users = U32::new(!0);
    let sb = JournalSuperblock::try_from(&raw).unwrap();
    assert_eq!(sb.version(), JournalVersion::V1);
    assert_eq!((sb.incompat().bits(), sb.nr_users()), (0, 0));
}

#[test]
fn sealing_a_superblock_makes_it_verify() {
    let mut raw = raw_superblock();
    raw.s_feature_incompat = U32::new(JournalIncompat::CSUM_V3.bits());
    raw.s_checksum_type = 4;
    let Err(JournalError::SuperblockChecksum { mismatch }) = JournalSuperblock::try_from(&raw)
    else {
        panic!("an unsealed superblock was accepted");
    };
    raw.s_checksum = U32::new(mismatch.expected);
    let mut sb = JournalSuperblock::try_from(&raw).unwrap();
    sb.seal();
    assert_eq!(sb.raw().as_bytes(), raw.as_bytes());
    let seed = Crc32c::START.update(UUID.as_bytes()).value();
    assert_eq!(sb.log_format().checksums, LogChecksums::V3 { seed });
}

#[test]
fn each_bad_superblock_has_its_error() {
    type Change = fn(&mut RawJournalSuperblock);
    let v2_and_v3 = || JournalError::ChecksumVersions {
        found: "csum_v2 and csum_v3".to_owned(),
    };
    let cases: [(Change, JournalError); 9] = [
        (
            |raw| raw.s_header.h_magic = U32::new(1),
            JournalError::Magic { found: 1 },
        ),
        (
            |raw| raw.s_header.h_blocktype = U32::new(2),
            JournalError::SuperblockKind { found: 2 },
        ),
        (
            |raw| raw.s_first = U32::new(0),
            JournalError::First {
                found: 0,
                maxlen: 4096,
            },
        ),
        (
            |raw| raw.s_first = U32::new(4096),
            JournalError::First {
                found: 4096,
                maxlen: 4096,
            },
        ),
        (
            |raw| raw.s_start = U32::new(4096),
            JournalError::Start {
                found: 4096,
                first: 1,
                end: 4096,
            },
        ),
        (|raw| raw.s_feature_incompat = U32::new(0x18), v2_and_v3()),
        (
            |raw| raw.s_feature_incompat = U32::new(0x10),
            JournalError::ChecksumType { found: 0 },
        ),
        (
            |raw| raw.s_feature_incompat = U32::new(0x41),
            JournalError::UnknownFeatures {
                incompat: 0x40,
                ro_compat: 0,
            },
        ),
        (
            |raw| raw.s_feature_ro_compat = U32::new(2),
            JournalError::UnknownFeatures {
                incompat: 0,
                ro_compat: 2,
            },
        ),
    ];
    for (change, expected) in cases {
        let mut raw = raw_superblock();
        change(&mut raw);
        assert_eq!(JournalSuperblock::try_from(&raw).unwrap_err(), expected);
    }
}

#[test]
fn a_sealed_tail_verifies_and_a_flipped_bit_does_not() {
    for format in formats() {
        let mut block = vec![0x5a; 1024];
        format.seal_tail(&mut block);
        assert_eq!(format.verify_tail(&block), Ok(()));
        block[20] ^= 1;
        assert_eq!(
            format.verify_tail(&block).is_err(),
            format.tail_bytes() > 0,
            "{format:?}"
        );
    }
}

#[test]
fn a_sealed_commit_verifies_and_a_flipped_bit_does_not() {
    let mut blocks = TransactionChecksum::default();
    blocks.update(b"a committed block");
    for format in formats() {
        let mut block = vec![0; 1024];
        format.seal_commit(&mut block, &blocks);
        assert_eq!(format.verify_commit(&block), Ok(()));
        assert_eq!(
            Commit::read(&block)
                .unwrap()
                .verify_transaction(&blocks)
                .is_ok(),
            { matches!(format.checksums, LogChecksums::None | LogChecksums::V1) }
        );
        block[0x11] ^= 1;
        let good = match format.checksums {
            LogChecksums::V1 => Commit::read(&block)
                .unwrap()
                .verify_transaction(&blocks)
                .is_ok(),
            LogChecksums::None => false,
            _ => format.verify_commit(&block).is_ok(),
        };
        assert!(!good, "{format:?}");
    }
}

#[test]
fn a_commit_without_a_checksum_passes_version_1() {
    let commit = Commit::read(&[0; 1024]).unwrap();
    let mut blocks = TransactionChecksum::default();
    blocks.update(b"anything");
    assert_eq!(commit.verify_transaction(&blocks), Ok(()));
}

#[test]
fn revoke_records_end_at_r_count() {
    let (tid, journal_block) = (Tid(7), JournalBlock(9));
    for format in formats() {
        let mut block = vec![0; 1024];
        let record_bytes = format.revoke_bytes();
        let used = REVOKE_HEADER + 2 * record_bytes + 3;
        block[12..16].copy_from_slice(&u32::try_from(used).unwrap().to_be_bytes());
        block[REVOKE_HEADER + record_bytes - 1] = 5;
        block[REVOKE_HEADER + 2 * record_bytes - 1] = 6;
        let revoked: Vec<_> = format
            .revokes(&block, tid, journal_block)
            .unwrap()
            .collect();
        assert_eq!(revoked, [PhysBlock(5), PhysBlock(6)]);
        let limit = u32::try_from(block.len() - format.tail_bytes()).unwrap();
        block[12..16].copy_from_slice(&(limit + 1).to_be_bytes());
        assert_eq!(
            format.revokes(&block, tid, journal_block).unwrap_err(),
            JournalError::RevokeCount {
                tid,
                journal_block,
                found: limit + 1,
                limit
            }
        );
        block[12..16].copy_from_slice(&0_u32.to_be_bytes());
        assert_eq!(
            format.revokes(&block, tid, journal_block).unwrap().count(),
            0
        );
    }
}

const REVOKE_HEADER: usize = revoke::REVOKE_HEADER_BYTES;

#[test]
fn escaping_is_undone() {
    let mut block = MAGIC.to_be_bytes().to_vec();
    block.extend(b"rest");
    assert!(needs_escape(&block));
    let original = block.clone();
    block[..4].fill(0);
    assert!(!needs_escape(&block));
    unescape(&mut block);
    assert_eq!(block, original);
}

fn any_tag() -> impl Strategy<Value = (u64, u16, u32)> {
    (any::<u64>(), 0_u16..8, any::<u32>())
}

proptest! {
    #[test]
    fn written_tags_are_read_back(tags in prop::collection::vec(any_tag(), 1..20)) {
        for format in formats() {
            let mut block = vec![0; 4096];
            let mut at = 12;
            let mut written = Vec::new();
            for (index, &(block_nr, flags, checksum)) in tags.iter().enumerate() {
                let last = if index + 1 == tags.len() { 8 } else { 0 };
                let wide = format.block_numbers == BlockNumbers::Wide;
                let tag = Tag {
                    block: PhysBlock(if wide { block_nr } else { block_nr & 0xffff_ffff }),
                    flags: TagFlags::from_bits_retain(flags | last),
                    checksum: match format.checksums {
                        LogChecksums::V3 { .. } => checksum,
                        _ => checksum & 0xffff,
                    },
                };
                at += format.put_tag(&tag, &UUID, &mut block[at..]).unwrap();
                written.push(tag);
            }
            prop_assert_eq!(format.tags(&block).collect::<Vec<_>>(), written);
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        mut block in prop::collection::vec(any::<u8>(), 0..1100),
        kind in 0_u32..6,
    ) {
        if let Some(header) = block.get_mut(..8) {
            header[..4].copy_from_slice(&MAGIC.to_be_bytes());
            header[4..].copy_from_slice(&kind.to_be_bytes());
        }
        for format in formats() {
            let most = block.len() / 8 + 1;
            prop_assert!(format.tags(&block).count() <= most);
            if let Ok(revokes) = format.revokes(&block, Tid(1), JournalBlock(1)) {
                prop_assert!(revokes.count() <= block.len() / 4);
            }
            let _ = format.verify_tail(&block);
            let _ = format.verify_commit(&block);
            format.seal_tail(&mut block.clone());
        }
        let _ = Header::read(&block);
        let _ = Commit::read(&block);
    }

    #[test]
    fn any_superblock_is_read_without_a_panic(
        fields in prop::collection::vec(any::<u32>(), 12),
        log in 0_u32..32,
    ) {
        let mut raw = raw_superblock();
        for (index, field) in fields.iter().enumerate() {
            let at = 0xc + 4 * index;
            let value = field >> log;
            raw.as_mut_bytes()[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        if let Ok(sb) = JournalSuperblock::try_from(&raw) {
            prop_assert!(JournalBlock(0) < sb.log().start && sb.log().start < sb.log().end);
            prop_assert!(sb.start().is_none_or(|start| sb.log().contains(&start)));
            prop_assert!(sb.fast_commit_area().end.0 <= sb.maxlen());
        }
        let bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_be_bytes()).collect();
        let bytes = bytes.repeat(1024 / bytes.len() + 1);
        let raw = RawJournalSuperblock::read_from_bytes(&bytes[..1024]).unwrap();
        let _ = JournalSuperblock::try_from(&raw);
    }
}

#[test]
fn revoke_blocks_are_read_as_they_were_written() {
    let revoked: Vec<_> = (1..400_u64).map(|n| PhysBlock(n * 7)).collect();
    for format in formats() {
        let (tid, mut rest) = (Tid(9), revoked.as_slice());
        let mut found = Vec::new();
        while !rest.is_empty() {
            let mut block = vec![0; 1024];
            let kind = BlockKind::Revoke;
            Header { kind, tid }.put(&mut block);
            let count = format.put_revokes(rest, &mut block).unwrap();
            assert!(count == rest.len() || count == format.revokes_per_block(1024));
            format.seal_tail(&mut block);
            format.verify_tail(&block).unwrap();
            assert_eq!(Header::read(&block), Some(Header { kind, tid }));
            found.extend(format.revokes(&block, tid, JournalBlock(3)).unwrap());
            rest = &rest[count..];
        }
        assert_eq!(found, revoked, "{format:?}");
    }
}

#[test]
fn a_descriptor_holds_as_many_tags_as_promised() {
    for format in formats() {
        let mut block = vec![0; 1024];
        let mut tags = 0;
        let mut at = format.tag_range(block.len());
        loop {
            let flags = match tags {
                0 => TagFlags::empty(),
                _ => TagFlags::SAME_UUID,
            };
            let tag = Tag {
                block: PhysBlock(5),
                flags,
                checksum: 0,
            };
            match format.put_tag(&tag, &UUID, &mut block[at.clone()]) {
                Ok(used) => at.start += used,
                Err(error) => {
                    assert_eq!(error, RecordError::NoSpace);
                    break;
                }
            }
            tags += 1;
        }
        assert_eq!(tags, format.tags_per_block(1024), "{format:?}");
    }
}

#[test]
fn a_block_number_that_a_log_has_no_bits_for_is_not_cut() {
    for wide in [PhysBlock(1 << 32 | 9), PhysBlock(u64::MAX)] {
        wide_numbers_are_not_cut(wide);
    }
}

fn wide_numbers_are_not_cut(wide: PhysBlock) {
    let last = PhysBlock(u32::MAX.into());
    for format in formats() {
        let tag = |block| Tag {
            block,
            flags: TagFlags::SAME_UUID,
            checksum: 0,
        };
        let mut bytes = vec![0; 1024];
        format.put_tag(&tag(last), &UUID, &mut bytes).unwrap();
        assert_eq!(format.put_revokes(&[last], &mut bytes), Ok(1));
        let unchanged = bytes.clone();
        let found = [
            format.put_tag(&tag(wide), &UUID, &mut bytes).map(drop),
            format.put_revokes(&[last, wide], &mut bytes).map(drop),
        ];
        if format.block_numbers == BlockNumbers::Wide {
            assert_eq!(found, [Ok(()); 2]);
            continue;
        }
        assert_eq!(found, [Err(RecordError::WideBlock { block: wide }); 2]);
        assert!(bytes == unchanged, "{format:?}");
    }
}

#[test]
fn fields_set_in_a_superblock_are_read_back() {
    let mut raw = raw_superblock();
    raw.s_feature_incompat = U32::new(JournalIncompat::CSUM_V3.bits());
    raw.s_checksum_type = 4;
    seal_field(!0, raw.as_mut_bytes(), 0xfc);
    let mut sb = JournalSuperblock::try_from(&raw).unwrap();
    sb.set_tail(Some(JournalBlock(77)), Tid(5));
    sb.set_errno(-5);
    sb.upgrade(Uuid::nil(), JournalIncompat::REVOKE);
    let read = JournalSuperblock::try_from(sb.raw()).unwrap();
    assert_eq!(read.start(), Some(JournalBlock(77)));
    assert_eq!((read.sequence(), read.errno()), (Tid(5), -5));
    assert_eq!((read.uuid(), read.nr_users()), (UUID, 1));
    let both = JournalIncompat::CSUM_V3 | JournalIncompat::REVOKE;
    assert_eq!(read.incompat(), both);

    let mut raw = raw_superblock();
    raw.s_header.h_blocktype = U32::new(3);
    raw.s_feature_incompat = U32::new(u32::MAX);
    let mut sb = JournalSuperblock::try_from(&raw).unwrap();
    sb.upgrade(UUID, JournalIncompat::REVOKE);
    let read = JournalSuperblock::try_from(sb.raw()).unwrap();
    assert_eq!(read.version(), JournalVersion::V2);
    assert_eq!(read.incompat(), JournalIncompat::REVOKE);
    assert_eq!((read.uuid(), read.nr_users()), (UUID, 1));
}
