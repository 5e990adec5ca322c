//! **Purpose.** Tests that set values are read back, for every inode size and feature that fields
//! depend on, that values that do not fit change nothing, and that other bytes stay unchanged.

use proptest::prelude::*;

use super::*;
use crate::inode::{Inode, seal};
use crate::oracle::Image;
use crate::superblock::RawSuperblock;
use crate::testing::image;

const NUMBER: InodeNr = InodeNr(12);

/// File systems with different inode formats.
fn superblocks() -> Vec<Superblock> {
    let features = |raw: &mut RawSuperblock, add: RoCompat, take: RoCompat| {
        let bits = (raw.features().ro_compat | add) - take;
        raw.s_feature_ro_compat = bits.bits().into();
    };
    let none = RoCompat::empty();
    vec![
        image::metadata_csum(),
        image::with(|raw| {
            raw.s_inode_size = 128.into();
            features(raw, none, RoCompat::EXTRA_ISIZE | RoCompat::HUGE_FILE);
        }),
        image::with(|raw| {
            features(raw, RoCompat::PROJECT, none);
            raw.s_want_extra_isize = 64.into();
            raw.s_inode_size = 1024.into();
            raw.s_feature_incompat = (raw.features().incompat | Incompat::LARGEDIR).bits().into();
        }),
        image::with(|raw| {
            raw.s_inode_size = 4096.into();
            raw.s_want_extra_isize = 30.into();
            raw.s_feature_incompat = (raw.features().incompat - Incompat::BIT64).bits().into();
            raw.s_desc_size = 0.into();
        }),
    ]
}

fn new_inode(mode: u16) -> NewInode {
    NewInode {
        mode: FileMode(mode),
        uid: 0x0001_0002,
        gid: 0x0003_0004,
        generation: InodeGeneration(77),
        links: 1,
        flags: InodeFlags::EXTENTS_FL | InodeFlags::NODUMP_FL,
        project_id: 9,
        now: Timestamp::new(5_000_000_000, 123_456_789).unwrap(),
    }
}

/// Seals the slot and parses it with its checksum.
fn parse(bytes: &mut [u8], sb: &Superblock) -> Inode {
    seal(bytes, NUMBER, sb).unwrap();
    Inode::parse(bytes, NUMBER, sb).unwrap()
}

#[test]
fn a_new_inode_has_the_given_fields() {
    let expected_isize = [32, 0, 64, 32];
    for (sb, extra_isize) in superblocks().iter().zip(expected_isize) {
        let mut bytes = vec![0xa5; sb.geometry().inode_size_bytes()];
        let new = new_inode(0o100_640);
        InodeMut::init(&mut bytes, sb, &new).unwrap();
        let inode = parse(&mut bytes, sb);
        assert_eq!(inode.extra_isize_bytes(), extra_isize);
        assert_eq!((inode.uid(), inode.gid()), (new.uid, new.gid));
        assert_eq!((inode.mode(), inode.links_count()), (new.mode, 1));
        assert_eq!(
            (inode.flags(), inode.generation()),
            (new.flags, new.generation)
        );
        let project = sb.features().ro_compat.contains(RoCompat::PROJECT);
        assert_eq!(inode.project_id(), if project { 9 } else { 0 });
        assert_eq!(
            (inode.size_bytes(), inode.sectors(), inode.dtime()),
            (0, 0, 0)
        );
        assert_eq!(inode.i_block(), &[0; 60]);
        let area = inode.xattr_area().unwrap_or(&[]);
        assert!(area.iter().all(|&byte| byte == 0));
        let times = [inode.atime(), inode.ctime(), inode.mtime()];
        if extra_isize == 0 {
            assert_eq!(times, [Timestamp::MAX_WITHOUT_EXTRA; 3]);
            assert_eq!(inode.crtime(), None);
        } else {
            assert_eq!(times, [new.now; 3]);
            assert_eq!(inode.crtime(), Some(new.now));
        }
    }
}

#[test]
fn few_extra_fields_are_not_passed() {
    let sb = image::metadata_csum();
    for extra_isize in (0..=32_u16).step_by(4) {
        let mut bytes = vec![0; 256];
        bytes[128..130].copy_from_slice(&extra_isize.to_le_bytes());
        let behind = 128 + usize::from(extra_isize).max(2);
        bytes[behind..].fill(0x5a);
        let time = Timestamp::new(1 << 32, 7).unwrap();
        let mut inode = InodeMut::of(&mut bytes, &sb).unwrap();
        inode.set_mode(FileMode(0o100_600));
        inode.set_atime(time);
        inode.set_mtime(time);
        inode.set_ctime(time);
        inode.set_crtime(time);
        inode.set_version(u64::MAX);
        assert!(
            bytes[behind..].iter().all(|&byte| byte == 0x5a),
            "{extra_isize}"
        );
        let inode = parse(&mut bytes, &sb);
        let shown = |has: u16| match extra_isize >= has {
            true => time,
            false => Timestamp::MAX_WITHOUT_EXTRA,
        };
        assert_eq!(inode.ctime(), shown(8));
        assert_eq!(inode.mtime(), shown(12));
        assert_eq!(inode.atime(), shown(16));
        let crtime = (extra_isize >= 20).then(|| shown(24));
        assert_eq!(inode.crtime(), crtime);
        let version = if extra_isize >= 28 {
            u64::MAX
        } else {
            u32::MAX.into()
        };
        assert_eq!(inode.version(), version);
        // The field in the first 128 bytes has an upper half after them, if the inode has it.
        let (before, wraps) = (inode.version(), extra_isize < 28);
        let mut inode = InodeMut::of(&mut bytes, &sb).unwrap();
        inode.set_version(before & 0xffff_ffff);
        inode.raise_version();
        let inode = parse(&mut bytes, &sb);
        assert_eq!(
            inode.version(),
            if wraps { 0 } else { 1 << 32 },
            "{extra_isize}"
        );
    }
}

#[test]
fn values_that_do_not_fit_change_nothing() {
    for sb in superblocks() {
        let mut bytes = vec![0; sb.geometry().inode_size_bytes()];
        InodeMut::init(&mut bytes, &sb, &new_inode(0o040_755)).unwrap();
        let before = bytes.clone();
        let mut inode = InodeMut::of(&mut bytes, &sb).unwrap();
        let large_dir = sb.features().incompat.contains(Incompat::LARGEDIR);
        let size_bytes = if large_dir { 1 << 63 } else { 1 << 32 };
        assert_eq!(
            inode.set_size_bytes(size_bytes),
            Err(InodeValueError::Size { size_bytes })
        );
        let huge = sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        let sectors = if huge { 1 << 51 } else { 1 << 32 };
        assert_eq!(
            inode.set_sectors(sectors),
            Err(InodeValueError::Sectors { sectors })
        );
        let wide = sb.features().incompat.contains(Incompat::BIT64);
        let block = PhysBlock(if wide { 1 << 48 } else { 1 << 32 });
        assert_eq!(
            inode.set_file_acl(Some(block)),
            Err(InodeValueError::FileAcl { block })
        );
        let device = DeviceNr {
            major: 4096,
            minor: 0,
        };
        assert_eq!(
            inode.set_device(device),
            Err(InodeValueError::Device { device })
        );
        for found in [0, 60] {
            let error = inode.set_fast_symlink(&[b'x'; 60][..found]).unwrap_err();
            assert_eq!(error, InodeValueError::Target { found });
        }
        assert_eq!(bytes, before);
    }
}

#[test]
fn a_corrupt_or_short_slot_is_refused() {
    let sb = image::metadata_csum();
    let mut bytes = vec![0; 256];
    bytes[128] = 3;
    let error = InodeMut::of(&mut bytes, &sb).unwrap_err();
    assert_eq!(
        error,
        InodeError::ExtraIsize {
            found: 3,
            most: 128
        }
    );
    let error = InodeMut::init(&mut bytes[..255], &sb, &new_inode(0)).unwrap_err();
    let (found_bytes, needed_bytes) = (255, 256);
    assert_eq!(
        error,
        InodeError::TooShort {
            found_bytes,
            needed_bytes
        }
    );
}

#[test]
fn spaces_of_every_unit() {
    let sb = image::metadata_csum();
    let mut bytes = vec![0; 256];
    InodeMut::init(&mut bytes, &sb, &new_inode(0o100_644)).unwrap();
    for sectors in [
        0,
        8,
        u32::MAX.into(),
        1 << 40,
        END_48 - 8,
        END_48,
        1 << 50,
        16,
    ] {
        InodeMut::of(&mut bytes, &sb)
            .unwrap()
            .set_sectors(sectors)
            .unwrap();
        let inode = parse(&mut bytes, &sb);
        assert_eq!(inode.sectors(), sectors);
        let in_blocks = inode.flags().contains(InodeFlags::HUGE_FILE_FL);
        assert_eq!(in_blocks, sectors >= END_48);
        let flags = inode.flags() ^ InodeFlags::HUGE_FILE_FL;
        InodeMut::of(&mut bytes, &sb).unwrap().set_flags(flags);
        assert_eq!(
            parse(&mut bytes, &sb).sectors(),
            sectors,
            "flags leave the unit alone"
        );
    }
}

#[test]
fn orphans_and_the_deleted() {
    let sb = image::metadata_csum();
    let mut bytes = vec![0; 256];
    let mut inode = InodeMut::init(&mut bytes, &sb, &new_inode(0o100_644)).unwrap();
    inode.set_next_orphan(Some(InodeNr(99)));
    assert_eq!(parse(&mut bytes, &sb).dtime(), 99);
    let mut inode = InodeMut::of(&mut bytes, &sb).unwrap();
    inode.set_deleted(Timestamp::new(1_700_000_000, 5).unwrap());
    assert_eq!(parse(&mut bytes, &sb).dtime(), 1_700_000_000);
    InodeMut::of(&mut bytes, &sb).unwrap().set_next_orphan(None);
    assert_eq!(parse(&mut bytes, &sb).dtime(), 0);
}

prop_compose! {
    fn time()(seconds in -(1_i64 << 31)..(1 << 34) - (1 << 31), nanoseconds in 0..1_000_000_000_u32)
        -> Timestamp
    {
        Timestamp::new(seconds, nanoseconds).unwrap()
    }
}

proptest! {
    #[test]
    fn values_that_are_set_are_read_back(
        which in 0..4_usize,
        words: [u32; 4],
        bits in 0..InodeFlags::all().bits(),
        links: u16,
        version: u64,
        size in 0..1_u64 << 63,
        sectors in 0..END_48,
        acl in 0..END_48,
        times in [time(), time(), time(), time()],
        target in proptest::collection::vec(1..255_u8, 1..60),
    ) {
        let sb = &superblocks()[which];
        let inode_bytes = sb.geometry().inode_size_bytes();
        let mut bytes = vec![0x77; inode_bytes + 5];
        let slot = &mut bytes[..];
        InodeMut::init(slot, sb, &new_inode(0o100_644)).unwrap();
        let mut inode = InodeMut::of(slot, sb).unwrap();
        let [uid, gid, project, generation] = words;
        let flags = InodeFlags::from_bits_retain(bits) - InodeFlags::HUGE_FILE_FL;
        inode.set_owner(uid, gid);
        inode.set_project_id(project);
        inode.set_generation(InodeGeneration(generation));
        inode.set_flags(flags);
        inode.set_links_count(links);
        inode.set_version(version);
        inode.set_size_bytes(size).unwrap();
        let sectors_set = inode.set_sectors(sectors).is_ok();
        let acl_set = inode.set_file_acl(Some(PhysBlock(acl))).is_ok();
        inode.set_atime(times[0]);
        inode.set_ctime(times[1]);
        inode.set_mtime(times[2]);
        inode.set_crtime(times[3]);
        let kept = parse(slot, sb);
        prop_assert_eq!((kept.uid(), kept.gid()), (uid, gid));
        prop_assert_eq!(kept.generation(), InodeGeneration(generation));
        prop_assert_eq!((kept.flags(), kept.links_count()), (flags, links));
        prop_assert_eq!(kept.size_bytes(), size);
        prop_assert_eq!(kept.sectors(), if sectors_set { sectors } else { 0 });
        prop_assert!(sectors_set || (which == 1 && sectors >= 1 << 32));
        prop_assert_eq!(kept.file_acl().map_or(0, |acl| acl.0), if acl_set { acl } else { 0 });
        prop_assert!(acl_set || (which == 3 && acl >= 1 << 32));
        if which != 1 {
            let shown = [kept.atime(), kept.ctime(), kept.mtime(), kept.crtime().unwrap()];
            prop_assert_eq!(shown, times);
            prop_assert_eq!(kept.version(), version);
        }
        prop_assert_eq!(kept.project_id(), if which == 2 { project } else { 0 });

        let mut inode = InodeMut::of(slot, sb).unwrap();
        inode.set_mode(FileMode::new(FileType::Symlink, 0o777));
        inode.set_fast_symlink(&target).unwrap();
        let kept = parse(slot, sb);
        prop_assert_eq!(&kept.i_block()[..target.len()], &target[..]);
        prop_assert!(kept.i_block()[target.len()..].iter().all(|&byte| byte == 0));
        prop_assert_eq!(kept.size_bytes(), target.len() as u64);

        let device = DeviceNr { major: uid & 0xfff, minor: gid & 0xf_ffff };
        let mut inode = InodeMut::of(slot, sb).unwrap();
        inode.set_mode(FileMode::new(FileType::BlockDevice, 0o600));
        inode.set_device(device).unwrap();
        prop_assert_eq!(parse(slot, sb).device(), Some(device));
        prop_assert_eq!(&bytes[inode_bytes..], &[0x77; 5]);
    }
}

/// debugfs reads an inode that was initialised and set here.
#[test]
fn debugfs_reads_the_fields_that_were_set() {
    let Some(image) = Image::of_file(4096, "metadata_csum,64bit,project", b"") else {
        return;
    };
    let sb = image.superblock();
    let nr = image.inode_nr("/file");
    let mut bytes = image.inode(nr).0;
    let mut new = new_inode(0o100_640);
    new.flags = InodeFlags::EXTENTS_FL | InodeFlags::NOATIME_FL;
    new.project_id = 4242;
    let i_block = *RawInode::ref_from_prefix(&bytes).unwrap().0;
    let mut inode = InodeMut::init(&mut bytes, &sb, &new).unwrap();
    *inode.i_block_mut() = i_block.i_block;
    inode.set_size_bytes(5 << 32).unwrap();
    inode.set_version(0x1_2345_6789);
    seal(&mut bytes, nr, &sb).unwrap();
    image.write_inode(nr, &bytes);
    let shown = image.debugfs(&format!("stat <{nr}>\n"));
    for part in [
        "Mode:  0640",
        "Flags: 0x80080",
        "Generation: 77",
        "Version: 0x00000001:23456789",
        "User: 65538",
        "Group: 196612",
        "Project:  4242",
        "Size: 21474836480",
        "ctime: 0x2a05f200:1d6f3455",
        "crtime: 0x2a05f200:1d6f3455",
        "Size of extra inode fields: 32",
    ] {
        assert!(shown.contains(part), "{part:?} in {shown}");
    }
    assert_eq!(image.fsck_problems(), "");
}
