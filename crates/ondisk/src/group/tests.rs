//! **Purpose.** Tests of each check with a descriptor that is wrong in one field, and of arbitrary
//! bytes.

use proptest::prelude::*;

use super::*;
use crate::features::RoCompat;
use crate::superblock::RawSuperblock;
use crate::testing::image;

/// A descriptor of group 1 of [`image::metadata_csum`].
fn raw() -> RawGroupDesc {
    RawGroupDesc {
        bg_block_bitmap_lo: 40_000.into(),
        bg_inode_bitmap_lo: 40_001.into(),
        bg_inode_table_lo: 40_002.into(),
        bg_free_blocks_count_lo: 100.into(),
        bg_free_inodes_count_lo: 8_000.into(),
        bg_used_dirs_count_lo: 7.into(),
        bg_itable_unused_lo: 7_900.into(),
        ..RawGroupDesc::default()
    }
}

const GROUP: GroupNr = GroupNr(1);

fn sealed(sb: &Superblock, change: impl FnOnce(&mut RawGroupDesc)) -> Vec<u8> {
    let mut raw = raw();
    change(&mut raw);
    let mut bytes = vec![0; sb.geometry().desc_size_bytes()];
    bytes[..32].copy_from_slice(raw.as_bytes());
    seal(&mut bytes, GROUP, sb).unwrap();
    bytes
}

fn error(sb: &Superblock, change: impl FnOnce(&mut RawGroupDesc)) -> GroupDescError {
    GroupDesc::parse(&sealed(sb, change), GROUP, sb).expect_err("wrong in one field")
}

#[test]
fn a_valid_descriptor_is_accepted() {
    let sb = image::metadata_csum();
    let desc = GroupDesc::parse(&sealed(&sb, |_| ()), GROUP, &sb).unwrap();
    assert_eq!(desc.inode_table(), PhysBlock(40_002));
    assert_eq!(
        (desc.free_clusters(), desc.free_inodes(), desc.used_dirs()),
        (100, 8_000, 7)
    );
    assert_eq!(desc.check_counts(GROUP, &sb), Ok(()));
}

#[test]
fn a_descriptor_belongs_to_its_group() {
    let sb = image::metadata_csum();
    let mut bytes = sealed(&sb, |_| ());
    let other = GroupDesc::parse(&bytes, GroupNr(2), &sb);
    assert!(matches!(other, Err(GroupDescError::Checksum(_))));
    bytes[63] ^= 1;
    let damaged = GroupDesc::parse(&bytes, GROUP, &sb);
    assert!(matches!(damaged, Err(GroupDescError::Checksum(_))));
    let short = GroupDesc::parse(&bytes[..63], GROUP, &sb);
    assert_eq!(
        short,
        Err(GroupDescError::TooShort {
            found_bytes: 63,
            needed_bytes: 64
        })
    );
}

#[test]
fn invalid_locations_are_refused() {
    use GroupDescError as E;
    let sb = image::metadata_csum();
    let end = u32::try_from(sb.geometry().blocks().0).unwrap();
    let outside = |field, found: u32, count| E::Outside {
        field,
        found: PhysBlock(found.into()),
        count,
    };
    assert_eq!(
        error(&sb, |raw| raw.bg_block_bitmap_lo = end.into()),
        outside("bg_block_bitmap", end, 1)
    );
    // The table has 512 blocks.
    assert_eq!(
        error(&sb, |raw| raw.bg_inode_table_lo = (end - 511).into()),
        outside("bg_inode_table", end - 511, 512)
    );
    let overlap = |field, found, other| E::Overlap {
        field,
        found: PhysBlock(found),
        other,
    };
    for found in [0, 1] {
        assert_eq!(
            error(&sb, |raw| raw.bg_inode_bitmap_lo = found.into()),
            overlap(
                "bg_inode_bitmap",
                found.into(),
                "the superblock or its descriptors"
            )
        );
    }
    assert_eq!(
        error(&sb, |raw| raw.bg_inode_bitmap_lo = 40_000.into()),
        overlap("bg_inode_bitmap", 40_000, "bg_block_bitmap")
    );
    assert_eq!(
        error(&sb, |raw| raw.bg_inode_table_lo = 39_600.into()),
        overlap("bg_inode_table", 39_600, "bg_block_bitmap")
    );
}

#[test]
fn without_flex_bg_everything_is_in_the_group() {
    let sb = image::with(|raw| raw.s_feature_incompat = Incompat::BIT64.bits().into());
    GroupDesc::parse(&sealed(&sb, |_| ()), GROUP, &sb).expect("inside group 1");
    let found = error(&sb, |raw| raw.bg_block_bitmap_lo = 70_000.into());
    let expected = GroupDescError::Outside {
        field: "bg_block_bitmap",
        found: PhysBlock(70_000),
        count: 1,
    };
    assert_eq!(found, expected);
}

#[test]
fn invalid_counts_are_refused() {
    let sb = image::metadata_csum();
    let count = |change: fn(&mut RawGroupDesc)| {
        let desc = GroupDesc::parse(&sealed(&sb, change), GROUP, &sb).unwrap();
        match desc.check_counts(GROUP, &sb) {
            Err(GroupDescError::Count { field, found, most }) => (field, found, most),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        count(|raw| raw.bg_free_blocks_count_lo = 32_769.into()),
        ("bg_free_blocks_count", 32_769, 32_768)
    );
    assert_eq!(
        count(|raw| raw.bg_free_inodes_count_lo = 8_193.into()),
        ("bg_free_inodes_count", 8_193, 8_192)
    );
    assert_eq!(
        count(|raw| raw.bg_used_dirs_count_lo = 193.into()),
        ("bg_used_dirs_count", 193, 192)
    );
    assert_eq!(
        count(|raw| raw.bg_itable_unused_lo = 8_001.into()),
        ("bg_itable_unused", 8_001, 8_000)
    );
}

#[test]
fn both_halves_make_one_number() {
    let sb = image::with(|raw: &mut RawSuperblock| {
        raw.s_blocks_count_hi = 4.into();
        raw.s_inodes_per_group = 16.into();
        let groups = (u64::from(raw.s_blocks_count_lo.get()) + (4 << 32)).div_ceil(32_768);
        raw.s_inodes_count = u32::try_from(groups * 16).unwrap().into();
    });
    let mut bytes = sealed(&sb, |_| ());
    bytes[0x20] = 2;
    bytes[0x2c] = 1;
    seal(&mut bytes, GROUP, &sb).unwrap();
    let desc = GroupDesc::parse(&bytes, GROUP, &sb).unwrap();
    assert_eq!(desc.block_bitmap(), PhysBlock((2 << 32) + 40_000));
    assert_eq!(desc.free_clusters(), (1 << 16) + 100);
}

#[test]
fn a_bitmap_must_have_all_its_bits() {
    let sb = image::metadata_csum();
    let desc = GroupDesc::parse(&sealed(&sb, |_| ()), GROUP, &sb).unwrap();
    let short = desc.verify_inode_bitmap(&[0; 1_023], &sb);
    let expected = GroupDescError::BitmapTooShort {
        found_bytes: 1_023,
        needed_bytes: 1_024,
    };
    assert_eq!(short, Err(expected));
    let wrong = desc.verify_block_bitmap(&[0; 4_096], &sb);
    assert!(matches!(wrong, Err(GroupDescError::BlockBitmapChecksum(_))));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..130),
        group: u32,
        with_checksums: bool,
    ) {
        let sb = image::with(|raw| {
            if !with_checksums {
                raw.s_feature_ro_compat = RoCompat::SPARSE_SUPER.bits().into();
            }
        });
        let group = GroupNr(group);
        let before = bytes.clone();
        let sealed = seal(&mut bytes, group, &sb);
        prop_assert_eq!(sealed.is_ok(), bytes.len() >= 64);
        for (at, (old, new)) in before.iter().zip(&bytes).enumerate() {
            prop_assert!(old == new || (at == 0x1e || at == 0x1f) && with_checksums);
        }
        if let Ok(desc) = GroupDesc::parse(&bytes, group, &sb) {
            prop_assert_eq!(desc.raw().as_bytes(), &bytes[..32]);
            let _ = desc.check_counts(group, &sb);
        }
    }

    #[test]
    fn arbitrary_places_never_panic(places in any::<[u32; 3]>(), high in any::<[u32; 3]>()) {
        let sb = image::metadata_csum();
        let mut bytes = sealed(&sb, |raw| {
            raw.bg_block_bitmap_lo = places[0].into();
            raw.bg_inode_bitmap_lo = places[1].into();
            raw.bg_inode_table_lo = places[2].into();
        });
        for (at, word) in (0x20..).step_by(4).zip(high) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        seal(&mut bytes, GROUP, &sb).unwrap();
        if let Ok(desc) = GroupDesc::parse(&bytes, GROUP, &sb) {
            prop_assert!(sb.geometry().contains(desc.inode_table(), BlockCount(512)));
        }
    }
}
