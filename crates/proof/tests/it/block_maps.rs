//! Files that are mapped by pointers, as in ext2 and ext3: their space, their maximum size, and the
//! effect of a crash or a forged map on them. The kernel does the same to a twin.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions as HostOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use fourscore::{Fallocate, Follow, Fs, InodeNr};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{
    assert_clean, debugfs, debugfs_write, dumpe2fs_header, e2fsck_repair,
};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use rustix::fs::{FallocateFlags, IFlags};

use crate::common::{
    PLAIN, ROOT, image_of, mount, open, require_e2fsprogs, require_kernel, unmount_clean,
};

fn image(block_size: u32, features: &[&str]) -> Image {
    let image = Image::builder(MiB(64)).kind("ext3");
    let image = image.block_size_bytes(block_size).journal(MiB(4));
    image.features(features).make().unwrap()
}

fn host_file(kernel: &KernelMount, name: &str) -> File {
    let mut options = HostOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(kernel.path().join(name)).unwrap()
}

/// A block near the border of two parts of a map with 1 KiB blocks.
fn near_a_border(rng: &mut Rng) -> u64 {
    let borders = [3, 12, 12 + 256, 12 + 256 + 7 * 256, 12 + 256 + 65_536];
    let behind = [0, 256, 3 * 256 + 5, 65_536];
    let border = rng.pick(&borders)
        + if rng.happens(1, 3) {
            *rng.pick(&behind)
        } else {
            0
        };
    border + rng.bits() % 6 - 3
}

/// Returns the number of blocks of a file with blocks of 1 KiB, including the blocks of pointers
/// that refer to them.
fn blocks_needed(fs: &Fs, file: InodeNr) -> u64 {
    let mut nodes = BTreeSet::new();
    let mut data = 0;
    for extent in fs.extents(file).unwrap() {
        data += u64::from(extent.blocks);
        for at in extent.logical.0..extent.logical_end().0 {
            match at {
                0..12 => {}
                12..268 => drop(nodes.insert((1, 0))),
                268..65_804 => nodes.extend([(2, 0), (3, (at - 268) >> 8)]),
                _ => {
                    let at = at - 65_804;
                    nodes.extend([(4, 0), (5, at >> 16), (6, at >> 8)]);
                }
            }
        }
    }
    data + nodes.len() as u64
}

#[test]
fn maps_take_the_space_that_they_take_in_linux() {
    require_kernel!();
    for seed in 1..4 {
        let (mine, theirs) = (image(1024, &[]), image(1024, &[]));
        let kernel = KernelMount::new(theirs.path(), Access::ReadWrite, "").unwrap();
        let host = host_file(&kernel, "file");
        let fs = mount(&mine);
        let ours = fs.create(ROOT, b"file", &PLAIN).unwrap();
        let mut rng = Rng::new(seed);
        for step in 0..300 {
            let at = near_a_border(&mut rng) * 1024;
            let bytes = vec![u8::try_from(1 + rng.below(255)).unwrap(); 1 + rng.below(5000)];
            // Linux may keep a block of pointers when a hole was punched over all its pointers.
            let punches = seed > 1;
            match rng.below(if punches { 12 } else { 8 }) {
                0..=6 => {
                    fs.write_at(ours, &bytes, at).unwrap();
                    host.write_all_at(&bytes, at).unwrap();
                }
                7 => {
                    let size = at + rng.bits() % 2048;
                    fs.truncate(ours, size).unwrap();
                    host.set_len(size).unwrap();
                }
                _ => {
                    let len = 1 + near_a_border(&mut rng) * 1024;
                    fs.fallocate(ours, Fallocate::PunchHole, at, len).unwrap();
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(&host, flags, at, len).unwrap();
                }
            }
            let mut found = vec![9; 8000];
            let mut expected = vec![9; 8000];
            let from = at.saturating_sub(2000);
            let len = fs.read_at(ours, &mut found, from).unwrap();
            assert_eq!(host.read_at(&mut expected, from).unwrap(), len);
            assert!(found[..len] == expected[..len], "seed {seed}, step {step}");
            if step % 10 == 0 {
                // Data that the kernel has not written yet has no blocks there.
                host.sync_all().unwrap();
                let stat = fs.stat(ours).unwrap();
                let theirs = host.metadata().unwrap();
                assert_eq!(stat.size_bytes, theirs.len(), "seed {seed}, step {step}");
                assert_eq!(stat.sectors, 2 * blocks_needed(&fs, ours), "{seed}, {step}");
                let kept = theirs.blocks() - stat.sectors;
                assert!(kept == 0 || punches, "seed {seed}, step {step}: {kept}");
            }
        }
        unmount_clean(fs, &mine);
        // Each continues on the image that the other wrote.
        let kernel_again = KernelMount::new(mine.path(), Access::ReadWrite, "").unwrap();
        std::fs::remove_file(kernel_again.path().join("file")).unwrap();
        kernel_again.unmount().unwrap();
        assert_clean(mine.path());
        drop(host);
        kernel.unmount().unwrap();
        let fs = mount(&theirs);
        fs.unlink(ROOT, b"file").unwrap();
        unmount_clean(fs, &theirs);
    }
}

/// Dense as far as the double indirect pointers reach, which takes many transactions of a small
/// journal, and then cut in the middle, piece by piece.
#[test]
fn long_files_are_mapped_and_freed_in_steps() {
    require_e2fsprogs!();
    let image = image(1024, &[]);
    let fs = mount(&image);
    let free = |fs: &Fs| fs.statfs().unwrap().free_blocks;
    fs.sync().unwrap();
    let before = free(&fs);
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    let content: Vec<u8> = (0..40_u32 << 20).map(|at| (at % 251) as u8).collect();
    fs.write_at(file, &content, 500).unwrap();
    let pointers = 1 + 1 + 160;
    let sectors = fs.stat(file).unwrap().sectors;
    assert!(
        (40 * 2048 + 2 * pointers - 4..=40 * 2048 + 2 * pointers + 4).contains(&sectors),
        "{sectors}"
    );
    let mut read = vec![0; content.len()];
    assert_eq!(fs.read_at(file, &mut read, 500).unwrap(), content.len());
    assert!(read == content);
    // Only every second block is left, so that all pointers are freed one by one.
    for block in (1..40 << 10).step_by(2) {
        fs.fallocate(file, Fallocate::PunchHole, block * 1024, 1024)
            .unwrap();
    }
    fs.sync().unwrap();
    let copy = image.copy().unwrap();
    let recovered = mount(&copy);
    recovered.truncate(file, 100_000).unwrap();
    assert_eq!(recovered.stat(file).unwrap().sectors, 2 * (49 + 1));
    unmount_clean(recovered, &copy);
    fs.unlink(ROOT, b"file").unwrap();
    assert_eq!(free(&fs), before);
    unmount_clean(fs, &image);
}

/// Blocks that held pointers, and hold data now, are not overwritten by a replay.
#[test]
fn pointers_that_became_data_are_not_replayed() {
    require_kernel!();
    let image = image(1024, &[]);
    let fs = mount(&image);
    let kept = fs.create(ROOT, b"kept", &PLAIN).unwrap();
    let mut pointers = Vec::new();
    for round in 0..3_u8 {
        let gone = fs.create(ROOT, b"gone", &PLAIN).unwrap();
        fs.write_at(gone, &vec![round; 12 << 20], 0).unwrap();
        pointers.push(fs.stat(gone).unwrap().sectors / 2 - (12 << 10));
        fs.sync().unwrap();
        fs.unlink(ROOT, b"gone").unwrap();
        fs.sync().unwrap();
    }
    assert!(pointers.iter().all(|&count| count > 40), "{pointers:?}");
    // Enough data to cover the former locations of all pointers.
    let content: Vec<u8> = (0..50_u32 << 20).map(|at| (at % 241) as u8).collect();
    fs.write_at(kept, &content, 0).unwrap();
    fs.fsync(kept).unwrap();
    let crashed = image.copy().unwrap();
    fs.unmount().unwrap();
    let by_kernel = crashed.copy().unwrap();
    let kernel = KernelMount::new(by_kernel.path(), Access::ReadWrite, "").unwrap();
    assert!(std::fs::read(kernel.path().join("kept")).unwrap() == content);
    kernel.unmount().unwrap();
    let by_e2fsck = crashed.copy().unwrap();
    e2fsck_repair(by_e2fsck.path(), &[]).unwrap();
    let by_us = crashed.copy().unwrap();
    mount(&by_us).unmount().unwrap();
    for image in [by_kernel, by_e2fsck, by_us, crashed] {
        let fs = open(&image);
        let kept = fs.resolve(b"kept", Follow::No).unwrap();
        let mut read = vec![0; content.len()];
        assert_eq!(fs.read_at(kept, &mut read, 0).unwrap(), content.len());
        assert!(read == content);
    }
}

#[test]
fn files_are_as_large_as_in_linux() {
    require_kernel!();
    let all_pointers = |block_size: u64| {
        let p = block_size / 4;
        12 + p + p * p + p * p * p
    };
    let cases = [
        (1024, &[][..], all_pointers(1024)),
        (2048, &[], all_pointers(2048)),
        // 2^32 sectors, and the pointers take some of them.
        (4096, &[], 536_346_110),
        (4096, &["huge_file"], all_pointers(4096)),
    ];
    for (block_size, features, most) in cases {
        let (mine, theirs) = (image(block_size, features), image(block_size, features));
        let kernel = KernelMount::new(theirs.path(), Access::ReadWrite, "").unwrap();
        let host = host_file(&kernel, "file");
        let fs = mount(&mine);
        let ours = fs.create(ROOT, b"file", &PLAIN).unwrap();
        let most = most * u64::from(block_size);
        for size in [most, most + 1] {
            let expected = host
                .set_len(size)
                .err()
                .and_then(|error| error.raw_os_error());
            let found = fs.truncate(ours, size).err().map(|error| error.errno());
            assert_eq!(found, expected, "{block_size} {features:?}: {size}");
            assert_eq!(found, (size > most).then_some(27));
        }
        // The last byte, and the one behind it.
        assert_eq!(fs.write_at(ours, b"x", most - 1).unwrap(), 1);
        assert_eq!(fs.write_at(ours, b"x", most).unwrap_err().errno(), 27);
        host.write_all_at(b"x", most - 1).unwrap();
        host.sync_all().unwrap();
        let sectors = fs.stat(ours).unwrap().sectors;
        assert_eq!(sectors, host.metadata().unwrap().blocks());
        assert_eq!(sectors, 4 * u64::from(block_size) / 512);
        unmount_clean(fs, &mine);
    }
}

#[test]
fn the_first_large_file_is_noted_in_the_superblock() {
    require_e2fsprogs!();
    let image = image(1024, &["^large_file"]);
    let large = || {
        let header = dumpe2fs_header(image.path()).unwrap();
        header["Filesystem features"].contains("large_file")
    };
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    fs.truncate(file, (1 << 31) - 1).unwrap();
    fs.unmount().unwrap();
    assert!(!large());
    let fs = mount(&image);
    fs.append(file, b"x").unwrap();
    fs.unmount().unwrap();
    assert!(large());
    assert_clean(image.path());
}

/// The kernel takes the extents from a file; it keeps its pointers beside files that have extents.
#[test]
fn files_without_extents_keep_their_pointers() {
    require_kernel!();
    let image = image_of(1024, &["^metadata_csum"]);
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    let host = host_file(&kernel, "file");
    host.write_all_at(&[7; 9000], 0).unwrap();
    host.sync_all().unwrap();
    let flags = rustix::fs::ioctl_getflags(&host).unwrap();
    let extents = IFlags::from_bits_retain(InodeFlags::EXTENTS_FL.bits());
    rustix::fs::ioctl_setflags(&host, flags - extents).unwrap();
    drop(host);
    kernel.unmount().unwrap();
    let fs = mount(&image);
    let file = fs.resolve(b"file", Follow::No).unwrap();
    assert!(
        !fs.stat(file)
            .unwrap()
            .flags
            .contains(InodeFlags::EXTENTS_FL)
    );
    fs.append(file, &[8; 1 << 20]).unwrap();
    fs.write_at(file, b"far", 100 << 20).unwrap();
    let other = fs.create(ROOT, b"other", &PLAIN).unwrap();
    assert!(
        fs.stat(other)
            .unwrap()
            .flags
            .contains(InodeFlags::EXTENTS_FL)
    );
    let refused = fs.fallocate(file, Fallocate::Allocate, 0, 1 << 20);
    assert_eq!(refused.unwrap_err().errno(), 95);
    unmount_clean(fs, &image);
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    let content = std::fs::read(kernel.path().join("file")).unwrap();
    assert_eq!(content.len(), (100 << 20) + 3);
    assert!(content[..9000].iter().all(|&byte| byte == 7));
    assert!(
        content[9000..9000 + (1 << 20)]
            .iter()
            .all(|&byte| byte == 8)
    );
    assert_eq!(content[100 << 20..], *b"far");
    kernel.unmount().unwrap();
    let fs = mount(&image);
    fs.truncate(file, 10_000).unwrap();
    assert_eq!(fs.stat(file).unwrap().sectors, 20);
    fs.unlink(ROOT, b"file").unwrap();
    unmount_clean(fs, &image);
}

/// Pointers that refer to the same block twice, to pointers instead of data, or out of the file
/// system: an error is returned, nothing is freed twice, and everything else continues to work.
#[test]
fn forged_pointers_are_refused() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let forgeries: [fn(u64, u64) -> String; 4] = [
        |first, _| format!("sif /file block[1] {first}"),
        |_, single| format!("sif /file block[DIND] {single}"),
        |_, single| format!("sif /file block[TIND] {single}"),
        |_, _| "sif /file block[2] 99999999".to_owned(),
    ];
    for forge in forgeries {
        let image = image(1024, &[]);
        let fs = mount(&image);
        let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
        fs.write_at(file, &[0xff; 20 << 10], 0).unwrap();
        let first = fs.extents(file).unwrap()[0].physical.0;
        fs.unmount().unwrap();
        let single = debugfs(image.path(), &["stat /file"]).unwrap();
        let single = single
            .split("(IND):")
            .nth(1)
            .and_then(|rest| rest.split([',', '\n']).next())
            .and_then(|number| number.trim().parse().ok())
            .unwrap_or_else(|| panic!("no indirect block: {single}"));
        debugfs_write(image.path(), &[forge(first, single)]).unwrap();
        let fs = mount(&image);
        fs.unlink(ROOT, b"file").unwrap_err();
        assert!(fs.lookup(ROOT, b"file").is_ok());
        let other = fs.create(ROOT, b"other", &PLAIN).unwrap();
        fs.write_at(other, &[1; 5000], 0).unwrap();
        fs.unmount().unwrap();
        let fs = open(&image);
        let other = fs.resolve(b"other", Follow::No).unwrap();
        let mut read = [0; 5000];
        assert_eq!(fs.read_at(other, &mut read, 0).unwrap(), 5000);
        assert_eq!(read, [1; 5000]);
    }
}
