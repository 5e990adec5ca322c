//! **Purpose.** Tests of each check with an inode that is wrong in one field, of the meaning of
//! fields under features, and of arbitrary bytes.

use proptest::prelude::*;
use zerocopy::FromZeros;

use super::*;
use crate::features::Compat;
use crate::superblock::RawSuperblock;
use crate::testing::image;

const NUMBER: InodeNr = InodeNr(12);

/// A regular file with all extra fields, and 96 bytes after them.
fn bytes(change: impl FnOnce(&mut RawInode, &mut RawInodeExtra)) -> Vec<u8> {
    let mut base = RawInode::new_zeroed();
    base.i_mode = 0o100_644.into();
    base.i_links_count = 1.into();
    let mut extra = RawInodeExtra::new_zeroed();
    extra.i_extra_isize = 32.into();
    change(&mut base, &mut extra);
    let mut bytes = vec![0; 256];
    bytes[..128].copy_from_slice(base.as_bytes());
    bytes[128..160].copy_from_slice(extra.as_bytes());
    bytes
}

fn parse_in(
    sb: &Superblock,
    change: impl FnOnce(&mut RawInode, &mut RawInodeExtra),
) -> Result<Inode, InodeError> {
    let mut bytes = bytes(change);
    seal(&mut bytes, NUMBER, sb)?;
    Inode::parse(&bytes, NUMBER, sb)
}

fn parse(change: impl FnOnce(&mut RawInode, &mut RawInodeExtra)) -> Result<Inode, InodeError> {
    parse_in(&image::metadata_csum(), change)
}

#[test]
fn fields_of_two_words() {
    let inode = parse(|base, extra| {
        base.i_size_lo = 7.into();
        base.i_size_high = 1.into();
        base.i_uid = 0x1111.into();
        base.i_uid_high = 0x2222.into();
        base.i_gid = 0x3333.into();
        base.i_gid_high = 0x4444.into();
        base.i_blocks_lo = 8.into();
        base.i_blocks_high = 1.into();
        base.i_file_acl_lo = 5.into();
        base.i_file_acl_high = 1.into();
        base.i_version = 9.into();
        extra.i_version_hi = 1.into();
        extra.i_projid = 77.into();
    })
    .unwrap();
    assert_eq!(inode.file_type(), Some(FileType::Regular));
    assert_eq!(inode.mode().permissions(), 0o644);
    assert_eq!(inode.size_bytes(), (1 << 32) + 7);
    assert_eq!((inode.uid(), inode.gid()), (0x2222_1111, 0x4444_3333));
    assert_eq!(inode.sectors(), (1 << 32) + 8);
    assert_eq!(inode.file_acl(), Some(PhysBlock((1 << 32) + 5)));
    assert_eq!(inode.version(), (1 << 32) + 9);
    assert_eq!(inode.project_id(), 0, "the feature is missing");
    assert_eq!(inode.device(), None);
}

#[test]
fn features_determine_the_meaning_of_fields() {
    let sb = image::with(|raw: &mut RawSuperblock| {
        let incompat = Incompat::EXTENTS | Incompat::LARGEDIR;
        raw.s_feature_incompat = incompat.bits().into();
        raw.s_feature_ro_compat = RoCompat::PROJECT.bits().into();
        raw.s_feature_compat = Compat::EXT_ATTR.bits().into();
        raw.s_creator_os = 1.into();
    });
    let inode = parse_in(&sb, |base, extra| {
        base.i_mode = 0o040_755.into();
        base.i_size_high = 1.into();
        base.i_blocks_high = 1.into();
        base.i_flags = InodeFlags::HUGE_FILE_FL.bits().into();
        base.i_blocks_lo = 8.into();
        base.i_file_acl_high = 1.into();
        base.i_uid_high = 1.into();
        extra.i_projid = 77.into();
    })
    .unwrap();
    assert_eq!(inode.size_bytes(), 1 << 32, "large_dir");
    assert_eq!(inode.sectors(), 8, "no huge_file");
    assert_eq!(inode.file_acl(), None, "no 64bit");
    assert_eq!(
        inode.uid(),
        1 << 16,
        "the Hurd's halves are where Linux has them"
    );
    assert_eq!(inode.project_id(), 77);

    let small = parse(|base, _| {
        base.i_mode = 0o040_755.into();
        base.i_size_high = 1.into();
        base.i_flags = InodeFlags::HUGE_FILE_FL.bits().into();
        base.i_blocks_lo = 3.into();
    })
    .unwrap();
    assert_eq!(small.size_bytes(), 0, "no large_dir");
    assert_eq!(
        small.sectors(),
        3 * 8,
        "huge_file and the flag count blocks of 4 KiB"
    );
}

#[test]
fn extra_fields_exist_up_to_i_extra_isize() {
    let times = |extra_isize: u16| {
        parse(|base, extra| {
            base.i_mtime = 5.into();
            extra.i_extra_isize = extra_isize.into();
            extra.i_mtime_extra = ((9 << 2) | 1).into();
            extra.i_crtime = 6.into();
            extra.i_crtime_extra = (8 << 2).into();
        })
        .unwrap()
    };
    let time = |seconds, nanoseconds| Timestamp::new(seconds, nanoseconds).unwrap();
    let none = times(0);
    assert_eq!(
        (none.mtime(), none.crtime(), none.xattr_range()),
        (time(5, 0), None, None)
    );
    let some = times(8);
    assert_eq!((some.mtime(), some.crtime()), (time(5, 0), None));
    assert_eq!(some.xattr_range(), Some(136..256));
    assert_eq!(some.xattr_area().map(<[u8]>::len), Some(120));
    let word = times(20);
    assert_eq!(word.mtime(), time((1 << 32) + 5, 9));
    assert_eq!(word.crtime(), Some(time(6, 0)));
    assert_eq!(times(32).crtime(), Some(time(6, 8)));
    let whole = times(128);
    assert_eq!(
        (whole.extra_isize_bytes(), whole.xattr_range()),
        (128, None)
    );
}

#[test]
fn invalid_fields_are_refused() {
    for found in [3, 132] {
        let error = parse(|_, extra| extra.i_extra_isize = found.into()).unwrap_err();
        assert_eq!(error, InodeError::ExtraIsize { found, most: 128 });
    }
    let error = parse(|base, _| base.i_mode = 0o150_644.into()).unwrap_err();
    assert_eq!(error, InodeError::Mode { found: 0o150_644 });
    let error = parse(|base, _| base.i_size_high = (1u32 << 31).into()).unwrap_err();
    assert_eq!(error, InodeError::Size { found: 1 << 63 });
    let sb = image::metadata_csum();
    let error = Inode::parse(&[0; 255], NUMBER, &sb).unwrap_err();
    assert_eq!(
        error,
        InodeError::TooShort {
            found_bytes: 255,
            needed_bytes: 256
        }
    );
}

#[test]
fn a_free_inode_has_no_type() {
    assert_eq!(
        parse(|base, _| base.i_mode = 0.into()).unwrap().file_type(),
        None
    );
}

#[test]
fn checksums_cover_number_generation_and_every_byte() {
    let sb = image::metadata_csum();
    for extra_isize in [0u16, 4, 32] {
        let mut good = bytes(|base, extra| {
            base.i_generation = 3.into();
            extra.i_extra_isize = extra_isize.into();
        });
        seal(&mut good, NUMBER, &sb).unwrap();
        Inode::parse(&good, NUMBER, &sb).unwrap();
        let other = Inode::parse(&good, InodeNr(13), &sb);
        assert!(matches!(other, Err(InodeError::Checksum(_))));
        for at in 0..256 {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(
                Inode::parse(&bad, NUMBER, &sb).is_err(),
                "{extra_isize}: byte {at}"
            );
        }
    }
}

#[test]
fn device_numbers_old_and_new() {
    let device = |words: [u32; 2]| {
        parse(|base, _| {
            base.i_mode = 0o060_600.into();
            base.i_block[..4].copy_from_slice(&words[0].to_le_bytes());
            base.i_block[4..8].copy_from_slice(&words[1].to_le_bytes());
        })
        .unwrap()
        .device()
        .map(|device| (device.major, device.minor))
    };
    assert_eq!(device([0x0801, 0]), Some((8, 1)));
    // As the kernel encodes 4095:1048575 and 259:70000.
    assert_eq!(device([0, 0xffff_ffff]), Some((4_095, 1_048_575)));
    assert_eq!(device([0, 0x1111_0370]), Some((259, 70_000)));
    for (major, minor) in [(0, 0), (1, 3), (255, 255), (256, 0), (4095, (1 << 20) - 1)] {
        let number = DeviceNr { major, minor };
        let i_block = number.to_i_block().unwrap();
        assert_eq!(DeviceNr::from_i_block(&i_block), number);
    }
    for (major, minor) in [(4096, 0), (0, 1 << 20)] {
        assert_eq!(DeviceNr { major, minor }.to_i_block(), None);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 250..300),
        plausible: bool,
    ) {
        let sb = image::metadata_csum();
        if plausible && bytes.len() >= 256 {
            bytes[1] = 0x81;
            bytes[128] &= 0x7c;
            bytes[129] = 0;
        }
        let before = bytes.clone();
        let sealed = seal(&mut bytes, NUMBER, &sb);
        prop_assert_eq!(sealed.is_ok(), bytes.len() >= 256);
        for (at, (old, new)) in before.iter().zip(&bytes).enumerate() {
            prop_assert!(old == new || matches!(at, 0x7c | 0x7d | 0x82 | 0x83), "byte {}", at);
        }
        if let Ok(inode) = Inode::parse(&bytes, NUMBER, &sb) {
            prop_assert_eq!(inode.raw().as_bytes(), &bytes[..128]);
            prop_assert_eq!(inode.raw_tail(), &bytes[128..256]);
            let _ = (inode.atime(), inode.ctime(), inode.mtime(), inode.crtime(), inode.device());
            let area = inode.xattr_range().map(|range| bytes[range].to_vec());
            prop_assert_eq!(inode.xattr_area(), area.as_deref());
        }
    }
}
