//! **Purpose.** Tests of each check with a superblock that is wrong in one field, and of arbitrary
//! bytes.

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::checksum::ChecksumMismatch;
use crate::features::{Compat, Incompat, RoCompat};
use crate::testing::image;
use crate::types::{BlockCount, GroupNr, InodeNr, PhysBlock};

fn rejection(change: impl FnOnce(&mut RawSuperblock)) -> SuperblockRejected {
    Superblock::try_from(&image::changed(change)).expect_err("wrong in one field")
}

fn corrupt(change: impl FnOnce(&mut RawSuperblock)) -> SuperblockError {
    match rejection(change) {
        SuperblockRejected::Corrupt(error) => error,
        other => panic!("{other}"),
    }
}

fn unsupported(change: impl FnOnce(&mut RawSuperblock)) -> UnsupportedFormat {
    match rejection(change) {
        SuperblockRejected::Unsupported(error) => error,
        other => panic!("{other}"),
    }
}

fn add(word: &mut zerocopy::byteorder::little_endian::U32, bits: u32) {
    *word = (word.get() | bits).into();
}

#[test]
fn a_valid_superblock_is_accepted() {
    let sb = image::metadata_csum();
    assert_eq!(sb.geometry().groups(), 4);
    assert_eq!(sb.groups_per_flex(), 16);
    assert!(sb.has_metadata_csum());
    assert_eq!(sb.journal(), None);
    assert!(sb.may_be_named(InodeNr::ROOT) && sb.may_be_named(InodeNr(11)));
    assert!(!sb.may_be_named(InodeNr::JOURNAL) && !sb.may_be_named(InodeNr(4 * 8_192 + 1)));
}

#[test]
fn files_of_the_file_system_may_not_be_named() {
    let files = |features: RoCompat| {
        image::with(|raw| {
            add(&mut raw.s_feature_ro_compat, features.bits());
            raw.s_usr_quota_inum = 12.into();
            raw.s_grp_quota_inum = 4.into();
            raw.s_prj_quota_inum = 13.into();
            if features.contains(RoCompat::QUOTA) {
                add(&mut raw.s_feature_compat, Compat::ORPHAN_FILE.bits());
            }
            raw.s_orphan_file_inum = 14.into();
        })
    };
    let named = |sb: &Superblock| -> Vec<u32> {
        let all = (1..=16).filter(|&nr| sb.may_be_named(InodeNr(nr)));
        all.collect()
    };
    let all = files(RoCompat::QUOTA | RoCompat::PROJECT);
    assert_eq!(named(&all), [2, 11, 15, 16]);
    // Without the features the fields mean nothing.
    let none = files(RoCompat::PROJECT);
    assert_eq!(named(&none), [2, 11, 12, 13, 14, 15, 16]);
}

#[test]
fn other_content_is_not_ext4() {
    let short = RawSuperblock::from_bytes(&[0; 1023]).map(|_| ());
    assert_eq!(
        short,
        Err(SuperblockRejected::TooShort { found_bytes: 1023 })
    );
    let found = rejection(|raw| raw.s_magic = 0x1234.into());
    assert_eq!(found, SuperblockRejected::NotExt4 { found: 0x1234 });
    let found = rejection(|raw| add(&mut raw.s_feature_incompat, Incompat::JOURNAL_DEV.bits()));
    assert_eq!(found, SuperblockRejected::JournalDevice);
}

#[test]
fn unsupported_formats_are_named() {
    let found = unsupported(|raw| add(&mut raw.s_feature_incompat, 1 << 19));
    assert!(
        found.to_string().contains("FEATURE_I19 (INCOMPAT 0x80000)"),
        "{found}"
    );
    let found = unsupported(|raw| raw.s_rev_level = 2.into());
    assert_eq!(found, UnsupportedFormat::Revision { found: 2 });
    let found = unsupported(|raw| raw.s_checksum_type = 3);
    assert_eq!(found, UnsupportedFormat::ChecksumType { found: 3 });
    let found = unsupported(|raw| {
        add(&mut raw.s_feature_incompat, Incompat::CASEFOLD.bits());
        raw.s_encoding = 9.into();
    });
    assert_eq!(found, UnsupportedFormat::Encoding { found: 9 });
    let found = unsupported(|raw| {
        add(&mut raw.s_feature_incompat, Incompat::ENCRYPT.bits());
        raw.s_encryption_level = 2;
    });
    assert_eq!(found, UnsupportedFormat::EncryptionLevel { found: 2 });
}

#[test]
fn a_wrong_checksum_is_corrupt() {
    let mut raw = image::raw();
    raw.s_mnt_count = 7.into();
    let mismatch = ChecksumMismatch {
        found: raw.s_checksum.get(),
        expected: raw.checksum(),
    };
    let error = Superblock::try_from(&raw).unwrap_err();
    assert_eq!(error, SuperblockError::Checksum(mismatch).into());
    let without = RoCompat::METADATA_CSUM.bits();
    raw.s_feature_ro_compat = (raw.s_feature_ro_compat.get() & !without).into();
    Superblock::try_from(&raw).expect("without the feature the field does not count");
}

#[test]
fn invalid_sizes_are_refused() {
    use SuperblockError as E;
    assert_eq!(
        corrupt(|raw| raw.s_log_block_size = 7.into()),
        E::LogBlockSize { found: 7 }
    );
    assert_eq!(
        corrupt(|raw| raw.s_log_cluster_size = 3.into()),
        E::LogClusterSize {
            found: 3,
            log_block_size: 2
        }
    );
    assert_eq!(
        corrupt(|raw| {
            add(&mut raw.s_feature_ro_compat, RoCompat::BIGALLOC.bits());
            raw.s_log_cluster_size = 21.into();
        }),
        E::LogClusterSize {
            found: 21,
            log_block_size: 2
        }
    );
    assert_eq!(
        corrupt(|raw| {
            add(&mut raw.s_feature_ro_compat, RoCompat::BIGALLOC.bits());
            raw.s_log_cluster_size = 4.into();
        }),
        E::BlocksPerGroup {
            blocks: 32_768,
            clusters: 32_768,
            bitmap_bits: 32_768
        }
    );
    assert_eq!(
        corrupt(|raw| raw.s_blocks_per_group = 0.into()),
        E::BlocksPerGroup {
            blocks: 0,
            clusters: 0,
            bitmap_bits: 32_768
        }
    );
    assert_eq!(
        corrupt(|raw| raw.s_first_data_block = 1.into()),
        E::FirstDataBlock {
            found: 1,
            expected: 0
        }
    );
}

#[test]
fn sizes_that_do_not_fit_a_block_are_refused() {
    use SuperblockError as E;
    for found in [0, 64, 192, 8_192] {
        assert_eq!(
            corrupt(|raw| raw.s_inode_size = found.into()),
            E::InodeSize {
                found,
                block_size_bytes: 4096
            }
        );
    }
    for found in [0, 32, 96, 2_048] {
        assert_eq!(
            corrupt(|raw| raw.s_desc_size = found.into()),
            E::DescSize { found }
        );
    }
    assert_eq!(
        corrupt(|raw| raw.s_reserved_gdt_blocks = 1_025.into()),
        E::ReservedGdtBlocks {
            found: 1_025,
            most: 1_024
        }
    );
    let (sb, fault) = faulty(|raw| {
        add(&mut raw.s_feature_incompat, Incompat::META_BG.bits());
        raw.s_first_meta_bg = 2.into();
    });
    assert_eq!(
        fault,
        E::FirstMetaBg {
            found: 2,
            descriptor_blocks: 1
        }
    );
    // The descriptors are at their locations without the feature.
    let places = |sb: &Superblock| [0, 1, 3].map(|nr| sb.geometry().desc_place(GroupNr(nr)));
    assert_eq!(places(&sb), places(&image::metadata_csum()));
}

#[test]
fn invalid_counts_are_refused() {
    use SuperblockError as E;
    assert_eq!(
        corrupt(|raw| raw.s_blocks_count_lo = 0.into()),
        E::BlocksCount { found: 0 }
    );
    let found = 1 << 63;
    assert_eq!(
        corrupt(|raw| {
            raw.s_blocks_count_lo = 0.into();
            raw.s_blocks_count_hi = (1u32 << 31).into();
        }),
        E::BlocksCount { found }
    );
    for found in [0, 15, 32_769] {
        assert_eq!(
            corrupt(|raw| raw.s_inodes_per_group = found.into()),
            E::InodesPerGroup {
                found,
                least: 16,
                most: 32_768
            }
        );
    }
    assert_eq!(
        corrupt(|raw| raw.s_inodes_count = 5.into()),
        E::InodesCount {
            found: 5,
            expected: 4 * 8_192
        }
    );
    let inodes_count = 4 * 8_192;
    for found in [0, 10, inodes_count + 1] {
        let error = corrupt(|raw| raw.s_first_ino = found.into());
        assert_eq!(
            error,
            E::FirstInode {
                found,
                inodes_count
            }
        );
    }
}

/// A superblock that is accepted, and its only fault.
fn faulty(change: impl FnOnce(&mut RawSuperblock)) -> (Superblock, SuperblockError) {
    let sb = image::with(change);
    let [fault] = sb.faults() else {
        panic!("{:?}", sb.faults());
    };
    (sb.clone(), fault.clone())
}

#[test]
fn invalid_numbers_are_faults_and_treated_as_absent() {
    use SuperblockError as E;
    assert!(image::metadata_csum().faults().is_empty());
    let inodes_count = 4 * 8_192;
    let outside = |field, found| E::HiddenInode {
        field,
        found,
        inodes_count,
    };
    let (sb, fault) = faulty(|raw| add(&mut raw.s_feature_compat, Compat::HAS_JOURNAL.bits()));
    let (inode, device) = (0, 0);
    assert_eq!(fault, E::Journal { inode, device });
    assert_eq!(sb.journal(), None);
    let (sb, fault) = faulty(|raw| {
        add(&mut raw.s_feature_compat, Compat::HAS_JOURNAL.bits());
        raw.s_journal_inum = 8.into();
        raw.s_journal_dev = 0x801.into();
    });
    let (inode, device) = (8, 0x801);
    assert_eq!(fault, E::Journal { inode, device });
    assert_eq!(sb.journal(), Some(JournalPlace::Inode(InodeNr(8))));
    let (sb, fault) = faulty(|raw| {
        add(&mut raw.s_feature_compat, Compat::HAS_JOURNAL.bits());
        raw.s_journal_inum = (inodes_count + 1).into();
    });
    assert_eq!(fault, outside("s_journal_inum", inodes_count + 1));
    assert_eq!(sb.journal(), None);
    let (sb, fault) = faulty(|raw| add(&mut raw.s_feature_compat, Compat::ORPHAN_FILE.bits()));
    assert_eq!(fault, outside("s_orphan_file_inum", 0));
    assert_eq!(sb.orphan_file_inode(), None);
    for found in [0, 3 * 32_768 + 20_000] {
        let (sb, fault) = faulty(|raw| {
            add(&mut raw.s_feature_incompat, Incompat::MMP.bits());
            raw.s_mmp_block = found.into();
        });
        assert_eq!(fault, E::MmpBlock { found });
        assert_eq!(sb.mmp_block(), None);
    }
}

#[test]
fn quota_files_are_in_inodes_without_another_role() {
    use SuperblockError as E;
    let field = "s_grp_quota_inum";
    for found in [1, 2, 8, 10, 4 * 8_192 + 1] {
        let (sb, fault) = faulty(|raw| {
            add(&mut raw.s_feature_ro_compat, RoCompat::QUOTA.bits());
            raw.s_usr_quota_inum = 3.into();
            raw.s_grp_quota_inum = found.into();
        });
        match fault {
            E::HiddenInode { field: told, .. } => assert_eq!((told, found > 10), (field, true)),
            other => assert_eq!(other, E::QuotaInode { field, found }),
        }
        let files = sb.quota_inodes();
        assert_eq!((files.user, files.group), (Some(InodeNr(3)), None));
    }
    let (_, fault) = faulty(|raw| {
        add(&mut raw.s_feature_ro_compat, RoCompat::QUOTA.bits());
        raw.s_prj_quota_inum = u32::MAX.into();
    });
    let is_of_projects =
        matches!(fault, E::HiddenInode { field, .. } if field == "s_prj_quota_inum");
    assert!(is_of_projects, "also without the feature: {fault:?}");
}

#[test]
fn wide_counts_need_the_feature() {
    let narrow = |raw: &mut RawSuperblock| {
        let bits = raw.s_feature_incompat.get() & !Incompat::BIT64.bits();
        raw.s_feature_incompat = bits.into();
        raw.s_free_blocks_count_lo = 5.into();
        raw.s_free_blocks_count_hi = 1.into();
        raw.s_blocks_count_hi = 9.into();
    };
    let sb = image::with(narrow);
    assert_eq!(sb.free_blocks(), BlockCount(5));
    assert_eq!(sb.geometry().desc_size_bytes(), 32);
    let wide = image::with(|raw| raw.s_free_blocks_count_hi = 1.into());
    assert_eq!(wide.free_blocks(), BlockCount(1 << 32));
}

#[test]
fn revision_0_has_fixed_sizes() {
    let sb = image::with(|raw| {
        raw.s_rev_level = 0.into();
        raw.s_inode_size = 0.into();
        raw.s_first_ino = 0.into();
    });
    assert_eq!(sb.geometry().inode_size_bytes(), 128);
    assert_eq!(sb.first_inode(), InodeNr(11));
}

#[test]
fn errors_are_remembered() {
    let sb = image::with(|raw| {
        raw.s_error_count = 2.into();
        raw.s_last_error_time = 100.into();
        raw.s_last_error_time_hi = 1;
        raw.s_last_error_block = 77.into();
        raw.s_last_error_func[..9].copy_from_slice(b"ext4_iget");
    });
    assert_eq!(sb.first_error(), None);
    let error = sb.last_error().unwrap();
    assert_eq!(error.time.seconds(), (1 << 32) + 100);
    assert_eq!((error.block, error.inode), (Some(PhysBlock(77)), None));
    assert_eq!(error.function, b"ext4_iget");
}

/// Calls all functions with values at the edges: none panics.
fn call_all_functions(sb: &Superblock) {
    let geometry = sb.geometry();
    let groups = [0, 1, 2, geometry.groups() - 1, geometry.groups(), u32::MAX].map(GroupNr);
    for group in groups {
        let blocks = geometry.group_blocks(group);
        assert!(blocks.end.0 <= geometry.blocks().0);
        assert!(geometry.group_length(group) <= geometry.blocks_per_group());
        assert!(geometry.group_clusters(group) <= geometry.clusters_per_group());
        let _ = geometry.base_meta_blocks(group);
        if geometry.has_group(group) {
            let first = geometry.group_first_block(group);
            assert_eq!(
                geometry.block_group(first).map(|(found, _)| found),
                Some(group)
            );
            let place = geometry.desc_place(group).expect("the group exists");
            assert!(
                place.offset_bytes + geometry.desc_size_bytes() <= geometry.block_size().bytes()
            );
        }
    }
    for block in [0, 1, 2, geometry.blocks().0, u64::MAX].map(PhysBlock) {
        for count in [0, 1, u64::MAX].map(BlockCount) {
            let _ = geometry.contains(block, count);
        }
        let _ = geometry.overlaps_base_meta(block, BlockCount(1));
        let _ = geometry.block_group(block);
    }
    for inode in [0, 1, geometry.inodes(), u32::MAX].map(InodeNr) {
        let exists = (1..=geometry.inodes()).contains(&inode.0);
        assert_eq!(geometry.inode_group(inode).is_some(), exists);
        if let Some((_, index)) = geometry.inode_group(inode) {
            let place = geometry.inode_place(PhysBlock(u64::MAX), index);
            assert!(
                place.offset_bytes + geometry.inode_size_bytes() <= geometry.block_size().bytes()
            );
        }
    }
    let _ = (
        sb.journal(),
        sb.quota_inodes(),
        sb.first_error(),
        sb.last_error(),
        sb.hash_sign(),
    );
    let _ = (
        sb.groups_per_flex(),
        sb.creator_os(),
        sb.error_policy(),
        geometry.primary_table(),
    );
}

/// Values that are often close to a limit.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        (0u32..32).prop_map(|shift| 1 << shift),
        (0u32..32).prop_map(|shift| (1u32 << shift).wrapping_sub(1)),
        0u32..40,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 1024)) {
        bytes[0x38..0x3a].copy_from_slice(&0xef53u16.to_le_bytes());
        let raw = RawSuperblock::from_bytes(&bytes).unwrap();
        if let Ok(sb) = Superblock::try_from(raw) {
            call_all_functions(&sb);
        }
    }

    #[test]
    fn changed_words_never_panic(
        changes in proptest::collection::vec((0usize..0x60, word()), 1..6),
        features in any::<[u32; 2]>(),
        change_features: bool,
    ) {
        let mut bytes = image::raw().as_bytes().to_vec();
        for (index, word) in changes {
            // The magic number and the features stay acceptable.
            if index != 0x38 / 4 && index != 0x4c / 4 && index != 0x60 / 4 {
                bytes[index * 4..index * 4 + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        let mut raw = RawSuperblock::read_from_bytes(&bytes).unwrap();
        if change_features {
            let known = Incompat::META_BG | Incompat::BIT64 | Incompat::FLEX_BG | Incompat::MMP;
            raw.s_feature_incompat = (features[0] & known.bits()).into();
            raw.s_feature_ro_compat = features[1].into();
        }
        raw.seal();
        if let Ok(sb) = Superblock::try_from(&raw) {
            call_all_functions(&sb);
            prop_assert_eq!(sb.raw().as_bytes(), raw.as_bytes());
        }
    }

    #[test]
    fn a_patched_field_leaves_all_other_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 1024),
        mounts: u16,
    ) {
        let mut raw = RawSuperblock::read_from_bytes(&bytes).unwrap();
        raw.s_mnt_count = mounts.into();
        let patched = raw.as_bytes();
        prop_assert_eq!(&patched[..0x34], &bytes[..0x34]);
        prop_assert_eq!(&patched[0x34..0x36], &mounts.to_le_bytes());
        prop_assert_eq!(&patched[0x36..], &bytes[0x36..]);
    }
}
