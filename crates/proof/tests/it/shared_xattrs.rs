//! Blocks of attributes, and inodes of values, that several inodes use: when they are shared, when
//! they are divided, and what they cost.

use fourscore::{
    BypassLimits, Error, Fs, InodeNr, MountOptions, NewAttributes, SetXattr, XattrSharing,
};
use fourscore_ondisk::xattr::EaInode;
use fourscore_sync::thread;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::Image;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use rustix::fs::XattrFlags;
use rustix::thread::CpuSet;
use std::os::unix::fs::MetadataExt;

use crate::common::shared_attributes::{
    BLOCK_SIZES, LIMIT, NAME, VALUE, block, free_blocks, image, image_with, image_with_values,
    make, set, sharing, stats, users,
};
use crate::common::{
    PLAIN, ROOT, image_of, image_of_inodes, mount_with, mount_words, require_e2fsprogs,
    require_kernel, unmount_clean,
};

#[test]
fn equal_attributes_share_a_block_until_they_differ() {
    require_e2fsprogs!();
    let image = image();
    let fs = sharing(&image);
    let files: Vec<_> = (0..10).map(|nr| make(&fs, &format!("{nr}"))).collect();
    let before = free_blocks(&fs);
    for &file in &files {
        set(&fs, file, &VALUE);
    }
    assert_eq!(users(&fs, &files).into_values().collect::<Vec<_>>(), [10]);
    assert_eq!(free_blocks(&fs), before - 1);
    let counts = stats(&fs);
    assert_eq!((counts.lookups, counts.hits, counts.shared), (10, 9, 9));
    assert_eq!(counts.blocks_saved, 9);
    // Each user is charged.
    for &file in &files {
        assert_eq!(fs.stat(file).unwrap().sectors, 8);
    }
    // One has another value, one has none, one is removed; the others share what they shared.
    set(&fs, files[0], b"short");
    set(&fs, files[1], &[8; 500]);
    fs.remove_xattr(files[2], NAME).unwrap();
    fs.unlink(ROOT, b"3").unwrap();
    assert_eq!(
        users(&fs, &files[4..]).into_values().collect::<Vec<_>>(),
        [6]
    );
    assert_ne!(block(&fs, files[1]), block(&fs, files[4]));
    assert_eq!(fs.xattr(files[4], NAME).unwrap(), VALUE);
    assert_eq!(stats(&fs).blocks_saved, 5);
    // It comes back, and frees the block that it had alone.
    set(&fs, files[1], &VALUE);
    assert_eq!(block(&fs, files[1]), block(&fs, files[4]));
    assert_eq!(free_blocks(&fs), before - 1);
    for (nr, &file) in files.iter().enumerate().skip(1).filter(|(nr, _)| *nr != 3) {
        match nr % 2 {
            0 if nr != 2 => fs.remove_xattr(file, NAME).unwrap(),
            _ => fs.unlink(ROOT, format!("{nr}").as_bytes()).unwrap(),
        }
    }
    assert_eq!(free_blocks(&fs), before);
    unmount_clean(fs, &image);
}

/// What becomes equal by the removal or the addition of another attribute is shared as well.
#[test]
fn a_block_is_shared_wherever_it_gets_its_content() {
    require_e2fsprogs!();
    let image = image();
    let fs = sharing(&image);
    let (one, two) = (make(&fs, "one"), make(&fs, "two"));
    set(&fs, one, &VALUE);
    fs.set_xattr(two, b"user.other", &[3; 700], SetXattr::Any)
        .unwrap();
    set(&fs, two, &VALUE);
    assert_ne!(block(&fs, one), block(&fs, two));
    fs.remove_xattr(two, b"user.other").unwrap();
    assert_eq!(block(&fs, one), block(&fs, two), "after a removal");
    // In another order, so the values lie elsewhere in the block.
    fs.set_xattr(one, b"user.other", &[3; 700], SetXattr::Any)
        .unwrap();
    let three = make(&fs, "three");
    fs.set_xattr(three, b"user.other", &[3; 700], SetXattr::Any)
        .unwrap();
    set(&fs, three, &VALUE);
    assert_eq!(block(&fs, one), block(&fs, three), "after an addition");
    unmount_clean(fs, &image);
}

#[test]
fn inherited_access_control_lists_share_a_block() {
    require_e2fsprogs!();
    let image = image_of_inodes(4096, 128, &[]);
    let fs = sharing(&image);
    let dir = fs.mkdir(ROOT, b"dir", &PLAIN).unwrap();
    let list = acl(&[(1, 7), (2, 5), (4, 5), (16, 7), (32, 5)]);
    fs.set_xattr(dir, b"system.posix_acl_default", &list, SetXattr::Any)
        .unwrap();
    let new = NewAttributes::owned_by(1, 1).permissions(0o777);
    let name = |nr: u32| format!("{nr}").into_bytes();
    let files: Vec<_> = (0..20)
        .map(|nr| fs.create(dir, &name(nr), &new).unwrap())
        .collect();
    let dirs: Vec<_> = (20..40)
        .map(|nr| fs.mkdir(dir, &name(nr), &new).unwrap())
        .collect();
    assert_eq!(users(&fs, &files).len(), 1);
    assert_eq!(users(&fs, &dirs).len(), 1);
    assert_ne!(
        block(&fs, files[0]),
        block(&fs, dirs[0]),
        "they have two lists"
    );
    // A change of the permission bits changes the list.
    let change = fourscore::AttributeChange {
        permissions: Some(0o700),
        ..fourscore::AttributeChange::default()
    };
    for &file in &files[..10] {
        fs.set_attributes(file, &change).unwrap();
    }
    assert_eq!(
        users(&fs, &files).into_values().collect::<Vec<_>>(),
        [10, 10]
    );
    unmount_clean(fs, &image);
}

/// A list in the form of the system calls; named entries have the id 1000.
fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
    let mut out = 2_u32.to_le_bytes().to_vec();
    for &(tag, permissions) in entries {
        let id = if tag == 2 { 1000 } else { u32::MAX };
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

#[test]
fn a_block_has_1024_users_at_most_and_takes_another_when_it_loses_one() {
    require_e2fsprogs!();
    let image = image();
    let fs = sharing(&image);
    let files: Vec<_> = (0..2 * LIMIT)
        .map(|nr| make(&fs, &format!("{nr}")))
        .collect();
    // The threads of tests wander between cores, which have blocks of their own then.
    for &file in &files {
        set(&fs, file, &VALUE);
    }
    let before = users(&fs, &files);
    assert!(before.values().all(|&users| users <= LIMIT), "{before:?}");
    assert!(before.len() <= 2 + cores(), "{before:?}");
    let full = before.iter().max_by_key(|(_, users)| **users).unwrap();
    let (&full, &most) = full;
    if before.len() == 2 {
        assert_eq!(most, LIMIT);
    }
    // Users leave and come, again and again: no block is needed.
    for &file in files
        .iter()
        .filter(|&&file| block(&fs, file) == Some(full))
        .take(50)
    {
        fs.remove_xattr(file, NAME).unwrap();
        set(&fs, file, &VALUE);
    }
    let after = users(&fs, &files);
    assert!(
        after.len() <= before.len() + cores(),
        "{before:?} {after:?}"
    );
    unmount_clean(fs, &image);
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn what_was_loaded_from_disk_is_shared_too() {
    require_e2fsprogs!();
    for reads in [true, false] {
        let image = image();
        let fs = sharing(&image);
        let (old, older, new) = (make(&fs, "old"), make(&fs, "older"), make(&fs, "new"));
        set(&fs, old, &VALUE);
        set(&fs, older, &VALUE);
        fs.unmount().unwrap();
        let fs = sharing(&image);
        match reads {
            true => assert_eq!(fs.xattr(old, NAME).unwrap(), VALUE),
            // It leaves the block, which is loaded for that.
            false => set(&fs, old, b"short"),
        }
        set(&fs, new, &VALUE);
        assert_eq!(block(&fs, new), block(&fs, older), "by reading: {reads}");
        // Once it has left, nothing is found.
        for file in [old, older, new] {
            fs.remove_xattr(file, NAME).unwrap();
        }
        set(&fs, new, &VALUE);
        set(&fs, old, &VALUE);
        assert_eq!(users(&fs, &[old, new]).len(), 1);
        unmount_clean(fs, &image);
    }
}

#[test]
fn values_in_inodes_are_shared_and_go_with_their_last_user() {
    require_e2fsprogs!();
    let image = image_with_values();
    let fs = sharing(&image);
    let files: Vec<_> = (0..12).map(|nr| make(&fs, &format!("{nr}"))).collect();
    fs.sync().unwrap();
    let before = fs.statfs().unwrap();
    let large = |byte| vec![byte; 40_000];
    for &file in &files {
        set(&fs, file, &large(1));
    }
    fs.sync().unwrap();
    let shared = fs.statfs().unwrap();
    assert_eq!(before.free_inodes - shared.free_inodes, 1);
    // The value, and the block with the entry for it.
    assert_eq!(before.free_blocks - shared.free_blocks, 10 + 1);
    assert_eq!(
        fs.stat(files[5]).unwrap().sectors,
        88,
        "each user is charged"
    );
    // Beside a value that is large enough for a block, so that blocks with such entries are shared.
    for &file in &files {
        fs.set_xattr(file, b"user.beside", &VALUE, SetXattr::Any)
            .unwrap();
        assert_eq!(fs.xattr(file, NAME).unwrap(), large(1));
    }
    assert_eq!(users(&fs, &files).len(), 1);
    // Loaded again.
    unmount_clean(fs, &image);
    let fs = sharing(&image);
    let late = make(&fs, "late");
    assert_eq!(fs.xattr(files[0], NAME).unwrap(), large(1));
    set(&fs, late, &large(1));
    assert_eq!(stats(&fs).hits, 1);
    for (nr, &file) in files.iter().enumerate() {
        match nr % 3 {
            0 => fs.unlink(ROOT, format!("{nr}").as_bytes()).unwrap(),
            1 => set(&fs, file, &large(2)),
            _ => fs.remove_xattr(file, NAME).unwrap(),
        }
    }
    fs.unlink(ROOT, b"late").unwrap();
    fs.sync().unwrap();
    let now = fs.statfs().unwrap();
    assert_eq!(
        now.free_inodes,
        before.free_inodes + 4 - 1,
        "one value is left"
    );
    for nr in (0..12).filter(|nr| nr % 3 != 0) {
        fs.unlink(ROOT, format!("{nr}").as_bytes()).unwrap();
    }
    assert_eq!(free_blocks(&fs), before.free_blocks);
    unmount_clean(fs, &image);
}

/// The inode finds the value that it has, and takes it again: the count of users stays.
#[test]
fn the_value_that_an_inode_has_is_set_again() {
    require_e2fsprogs!();
    let image = image_with_values();
    let fs = sharing(&image);
    let (one, two) = (make(&fs, "one"), make(&fs, "two"));
    let before = free_blocks(&fs);
    for file in [one, one, two, two, one] {
        set(&fs, file, &[1; 40_000]);
    }
    assert_eq!(free_blocks(&fs), before - 11);
    unmount_clean(fs, &image);
    let fs = sharing(&image);
    fs.remove_xattr(one, NAME).unwrap();
    set(&fs, two, &[1; 40_000]);
    fs.remove_xattr(two, NAME).unwrap();
    assert_eq!(free_blocks(&fs), before);
    unmount_clean(fs, &image);
}

/// The inode of a value stores the count of its users where others have times, and times in memory
/// are newer than those in the table with `lazytime`.
#[test]
fn users_of_a_value_are_counted_with_lazy_times_too() {
    require_e2fsprogs!();
    let image = image_with_values();
    let fs = mount_words(&image, "mbcache,lazytime");
    let files: Vec<_> = (0..3).map(|nr| make(&fs, &format!("{nr}"))).collect();
    let before = free_blocks(&fs);
    let value = [1; 9000];
    // Different names, so that the entries are in blocks of their own.
    let names = [b"user.0", b"user.1", b"user.2"];
    for (&file, name) in files.iter().zip(names) {
        fs.set_xattr(file, name, &value, SetXattr::Any).unwrap();
        // The value's inode is in memory from now on, and has one user there.
        assert_eq!(fs.xattr(file, name).unwrap(), value);
    }
    assert_eq!(stats(&fs).shared, 2, "{:?}", stats(&fs));
    for (&file, name) in files.iter().zip(names) {
        assert_eq!(fs.xattr(file, name).unwrap(), value);
        fs.remove_xattr(file, name).unwrap();
    }
    assert_eq!(free_blocks(&fs), before);
    unmount_clean(fs, &image);
}

/// The inode of a value that the kernel has made has a time of creation where Lustre stores the
/// number of a parent.
#[test]
fn values_that_the_kernel_has_made_are_shared() {
    require_kernel!();
    let image = image_with_values();
    let fs = sharing(&image);
    let (one, two) = (make(&fs, "one"), make(&fs, "two"));
    unmount_clean(fs, &image);
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    let path = kernel.path().join("one");
    rustix::fs::setxattr(path, "user.same", &[1; 40_000], XattrFlags::empty()).unwrap();
    kernel.unmount().unwrap();
    let fs = sharing(&image);
    let before = free_blocks(&fs);
    assert_eq!(fs.xattr(one, NAME).unwrap(), [1; 40_000]);
    set(&fs, two, &[1; 40_000]);
    assert_eq!(free_blocks(&fs), before, "value and block");
    fs.remove_xattr(one, NAME).unwrap();
    fs.remove_xattr(two, NAME).unwrap();
    assert_eq!(free_blocks(&fs), before + 11);
    unmount_clean(fs, &image);
}

#[test]
fn nothing_is_shared_without_the_cache() {
    require_e2fsprogs!();
    let image = image();
    let fs = mount_words(&image, "no_mbcache");
    let files: Vec<_> = (0..5).map(|nr| make(&fs, &format!("{nr}"))).collect();
    files.iter().for_each(|&file| set(&fs, file, &VALUE));
    assert_eq!(users(&fs, &files).len(), 5);
    assert!(fs.stats().mount.unwrap().xattr_sharing.is_none());
    unmount_clean(fs, &image);
}

#[test]
fn lookups_that_find_nothing_are_left_out_and_come_back() {
    require_e2fsprogs!();
    let image = image();
    let limits = BypassLimits {
        window: 50,
        probe: 20,
        pause: 100,
        ..BypassLimits::default()
    };
    let how = XattrSharing::Automatic(limits);
    let fs = mount_with(&image, &MountOptions::new().xattr_sharing(how));
    let file = make(&fs, "file");
    for nr in 0..2000_u32 {
        set(&fs, file, &[&nr.to_le_bytes()[..], &VALUE].concat());
    }
    let unique = stats(&fs);
    assert!(unique.bypassed > 1000, "{unique:?}");
    assert_eq!(unique.hits, 0);
    let files: Vec<_> = (0..1000).map(|nr| make(&fs, &format!("{nr}"))).collect();
    files.iter().for_each(|&file| set(&fs, file, &VALUE));
    let equal = stats(&fs);
    assert!(equal.hits > 400, "{equal:?}");
    unmount_clean(fs, &image);
}

/// Lookups are left out, but not if there is no space for what they save.
#[test]
fn a_full_file_system_is_searched_for_what_can_be_shared() {
    require_e2fsprogs!();
    let image = image();
    let limits = BypassLimits {
        low_permille: 1000,
        high_permille: 1000,
        window: 1,
        probe: 1,
        pause: 1 << 20,
    };
    let how = XattrSharing::Automatic(limits);
    let fs = mount_with(&image, &MountOptions::new().xattr_sharing(how));
    let (one, two, three, large) = (
        make(&fs, "one"),
        make(&fs, "two"),
        make(&fs, "three"),
        make(&fs, "large"),
    );
    set(&fs, one, &VALUE);
    set(&fs, two, &VALUE);
    if cores() == 1 {
        assert_ne!(block(&fs, one), block(&fs, two));
    }
    fill(&fs, large);
    set(&fs, three, &VALUE);
    assert!(
        [one, two]
            .map(|file| block(&fs, file))
            .contains(&block(&fs, three))
    );
    let other = fs.set_xattr(two, NAME, &[8; 500], SetXattr::Any);
    assert!(matches!(other, Ok(()) | Err(Error::NoSpace)), "{other:?}");
    fs.unlink(ROOT, b"large").unwrap();
    unmount_clean(fs, &image);
}

#[test]
fn a_cache_of_a_few_entries_forgets_and_shares_on() {
    require_e2fsprogs!();
    let image = image();
    let options = MountOptions::new()
        .xattr_sharing(XattrSharing::On)
        .xattr_sharing_bytes(4096);
    let fs = mount_with(&image, &options);
    let files: Vec<_> = (0..600).map(|nr| make(&fs, &format!("{nr}"))).collect();
    for (nr, &file) in files.iter().enumerate() {
        let value = [&(nr % 200).to_le_bytes()[..], &VALUE].concat();
        set(&fs, file, &value);
    }
    assert!(stats(&fs).evictions > 300, "{:?}", stats(&fs));
    files.iter().for_each(|&file| set(&fs, file, &VALUE));
    assert!(users(&fs, &files).len() < 10);
    unmount_clean(fs, &image);
}

/// Threads set, replace and remove attributes of few values on the same files, and remove and make
/// these files; afterwards all counts are right.
#[test]
fn threads_share_divide_and_free_the_same_blocks() {
    require_e2fsprogs!();
    let sizes = BLOCK_SIZES.map(|size| (size, &[][..]));
    for (block_bytes, features) in sizes.into_iter().chain([(4096, &["ea_inode"][..])]) {
        let image = image_of(block_bytes, features);
        let fs = sharing(&image);
        let long = block_bytes as usize * 3 / 4;
        thread::scope(|scope| {
            for seed in 0..4 {
                let fs = &fs;
                scope.spawn(move || change_at_random(fs, Rng::new(seed), long));
            }
        });
        let counts = stats(&fs);
        assert!(counts.shared > 300, "{counts:?}");
        unmount_clean(fs, &image);
    }
}

/// Some of the values have `long` bytes.
fn change_at_random(fs: &Fs, mut random: Rng, long: usize) {
    for _ in 0..1500 {
        let name = format!("{}", random.below(30));
        let Ok(file) = fs.lookup(ROOT, name.as_bytes()) else {
            // Another thread may make it first.
            let _ = fs.create(ROOT, name.as_bytes(), &PLAIN);
            continue;
        };
        let attribute: &[u8] = if random.below(4) == 0 {
            b"user.other"
        } else {
            NAME
        };
        let byte = u8::try_from(random.below(3)).unwrap();
        let len = if random.below(4) == 0 { long } else { 500 };
        // The file may be gone, or its attributes too long for a block.
        let done = match random.below(10) {
            0 => fs.unlink(ROOT, name.as_bytes()),
            1 | 2 => fs.remove_xattr(file, attribute),
            _ => fs.set_xattr(file, attribute, &vec![byte; len], SetXattr::Any),
        };
        match done {
            Ok(()) | Err(Error::NotFound | Error::NoAttribute | Error::NoSpace) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Both sides share, divide and free what the other has shared, up to the limit of users.
#[test]
fn the_kernel_and_we_divide_and_free_each_others_blocks() {
    require_kernel!();
    const FILES: usize = LIMIT + 100;
    let features = [&[][..], &["ea_inode"], &["^metadata_csum"]];
    let images = features.map(|features| (4096, features));
    for (block_bytes, features) in images.into_iter().chain([(1024, &[][..]), (2048, &[])]) {
        let image = image_of(block_bytes, features);
        let name = |nr: usize| format!("{nr}");
        let fs = sharing(&image);
        let files: Vec<_> = (0..FILES).map(|nr| make(&fs, &name(nr))).collect();
        files.iter().for_each(|&file| set(&fs, file, &VALUE));
        unmount_clean(fs, &image);
        // The kernel takes the first 300 away, in three ways, and gives 50 of them back.
        let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
        let at = |nr: usize| kernel.path().join(name(nr));
        let put = |nr: usize, value: &[u8]| {
            rustix::fs::setxattr(at(nr), "user.same", value, XattrFlags::empty()).unwrap();
        };
        for nr in 0..300 {
            match nr % 3 {
                0 => std::fs::remove_file(at(nr)).unwrap(),
                1 => rustix::fs::removexattr(at(nr), "user.same").unwrap(),
                _ => put(nr, &[9; 600]),
            }
        }
        (1..150)
            .filter(|nr| nr % 3 != 0)
            .for_each(|nr| put(nr, &VALUE));
        let sectors = u64::from(block_bytes / 512);
        assert_eq!(at(1).metadata().unwrap().blocks(), sectors);
        kernel.unmount().unwrap();
        assert_clean(image.path());
        // We divide what the kernel has shared.
        let fs = sharing(&image);
        let left: Vec<_> = (0..FILES).filter(|nr| *nr >= 300 || nr % 3 != 0).collect();
        let value = |nr: usize| {
            if (150..300).contains(&nr) && nr % 3 == 2 {
                9
            } else {
                7
            }
        };
        for &nr in &left {
            let has = !(150..300).contains(&nr) || nr % 3 == 2;
            if has {
                assert_eq!(fs.xattr(files[nr], NAME).unwrap()[0], value(nr), "{nr}");
            }
            match nr % 4 {
                0 => fs.unlink(ROOT, name(nr).as_bytes()).unwrap(),
                1 => set(&fs, files[nr], &[9; 600]),
                2 if has => fs.remove_xattr(files[nr], NAME).unwrap(),
                _ => {}
            }
        }
        unmount_clean(fs, &image);
        // The kernel frees the rest.
        let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
        for &nr in left.iter().filter(|&nr| nr % 4 != 0) {
            std::fs::remove_file(kernel.path().join(name(nr))).unwrap();
        }
        kernel.unmount().unwrap();
        assert_clean(image.path());
    }
}

/// What the kernel has shared is one block for us too, and the other way round.
#[test]
fn the_kernel_shares_our_blocks_up_to_the_limit_and_we_its() {
    require_kernel!();
    let image = image();
    let name = |nr: usize| format!("{nr}");
    let fs = sharing(&image);
    let files: Vec<_> = (0..LIMIT + 20).map(|nr| make(&fs, &name(nr))).collect();
    // Less than a core takes of a block before it has one of its own.
    files[..20].iter().for_each(|&file| set(&fs, file, &VALUE));
    assert_eq!(users(&fs, &files[..20]).len(), 1);
    unmount_clean(fs, &image);
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    let at = |nr: usize| kernel.path().join(name(nr));
    rustix::fs::getxattr(at(0), "user.same", &mut [0; 600][..]).unwrap();
    for nr in 20..LIMIT {
        rustix::fs::setxattr(at(nr), "user.same", &VALUE, XattrFlags::empty()).unwrap();
    }
    kernel.unmount().unwrap();
    assert_clean(image.path());
    let fs = sharing(&image);
    assert_eq!(
        users(&fs, &files[..LIMIT])
            .into_values()
            .collect::<Vec<_>>(),
        [LIMIT]
    );
    set(&fs, files[LIMIT], &VALUE);
    assert_ne!(block(&fs, files[LIMIT]), block(&fs, files[0]), "it is full");
    set(&fs, files[0], b"short");
    set(&fs, files[LIMIT], b"short");
    set(&fs, files[0], &VALUE);
    assert_eq!(
        block(&fs, files[0]),
        block(&fs, files[1]),
        "it can have one more"
    );
    unmount_clean(fs, &image);
}

/// With blocks of each size: shared up to the limit, divided, removed, mounted again, shared with
/// what was read; the kernel reads what we read.
#[test]
fn blocks_of_each_size_are_shared_and_the_kernel_reads_them() {
    require_kernel!();
    const FILES: usize = LIMIT + 50;
    for block_bytes in BLOCK_SIZES {
        let image = image_of(block_bytes, &[]);
        let fs = sharing(&image);
        let files: Vec<_> = (0..FILES).map(|nr| make(&fs, &format!("{nr}"))).collect();
        let before = free_blocks(&fs);
        files.iter().for_each(|&file| set(&fs, file, &VALUE));
        let blocks = users(&fs, &files);
        assert!(blocks.values().all(|&users| users <= LIMIT), "{blocks:?}");
        assert!((2..=2 + cores()).contains(&blocks.len()), "{blocks:?}");
        assert_eq!(free_blocks(&fs), before - blocks.len() as u64);
        let sectors = u64::from(block_bytes / 512);
        assert!(
            files
                .iter()
                .all(|&file| fs.stat(file).unwrap().sectors == sectors)
        );
        // The value of a file after it has left the block, or stayed.
        let value = |nr: usize| match nr % 5 {
            0 => Some(&[9; 600][..]),
            1 => Some(&b"short"[..]),
            2 => None,
            _ => Some(&VALUE[..]),
        };
        for (nr, &file) in files.iter().enumerate() {
            match value(nr) {
                Some(value) => set(&fs, file, value),
                None => fs.remove_xattr(file, NAME).unwrap(),
            }
        }
        unmount_clean(fs, &image);
        assert_kernel_reads(&image, FILES, value);
        let fs = sharing(&image);
        for (nr, &file) in files.iter().enumerate() {
            assert_eq!(fs.xattr(file, NAME).ok().as_deref(), value(nr), "file {nr}");
        }
        let blocks = users(&fs, &[files[3], files[4]]);
        set(&fs, files[2], &VALUE);
        assert!(
            blocks.contains_key(&block(&fs, files[2]).unwrap()),
            "what was read is shared"
        );
        for &file in &files {
            // Some have none already.
            let _ = fs.remove_xattr(file, NAME);
        }
        assert_eq!(free_blocks(&fs), before);
        unmount_clean(fs, &image);
    }
}

/// Asserts that for the kernel each of the files `0`, `1`, .. has the attribute with this value.
fn assert_kernel_reads<'v>(image: &Image, files: usize, value: impl Fn(usize) -> Option<&'v [u8]>) {
    let kernel = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
    for nr in 0..files {
        let path = kernel.path().join(nr.to_string());
        let mut buffer = [0; 1000];
        let found = rustix::fs::getxattr(path, "user.same", &mut buffer[..]);
        assert_eq!(found.ok().map(|len| &buffer[..len]), value(nr), "file {nr}");
    }
    kernel.unmount().unwrap();
}

/// A core that would rather have a block, or a value, of its own takes another core's if there is
/// no space for one.
#[test]
fn a_core_without_space_for_a_place_of_its_own_takes_another_cores() {
    require_e2fsprogs!();
    let cores = rustix::thread::sched_getaffinity(None).unwrap();
    let cores: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| cores.is_set(cpu))
        .collect();
    let [one, two, ..] = cores[..] else {
        return println!("skipped: it needs two cores");
    };
    for (features, value) in [(&[][..], &VALUE[..]), (&["ea_inode"], &[1; 9000])] {
        let image = image_with(features);
        let fs = sharing(&image);
        run_on(one);
        let files: Vec<_> = (0..34).map(|nr| make(&fs, &format!("{nr}"))).collect();
        let (large, small) = (make(&fs, "large"), make(&fs, "small"));
        // A multiple of the number of users at which another core makes a place.
        files[..32].iter().for_each(|&file| set(&fs, file, value));
        fill(&fs, large);
        run_on(two);
        set(&fs, files[32], value);
        assert_eq!(stats(&fs).shared, 32, "{:?}", stats(&fs));
        fs.unlink(ROOT, b"large").unwrap();
        fs.sync().unwrap();
        // A write waits for the space until readers of other tests have left the grace period.
        fs.write_at(small, &[1; 4096], 0).unwrap();
        // With space it has one.
        fs.remove_xattr(files[32], NAME).unwrap();
        set(&fs, files[33], value);
        assert_eq!(stats(&fs).shared, 32, "{:?}", stats(&fs));
        unmount_clean(fs, &image);
    }
}

/// Has this thread run on one core.
fn run_on(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
}

/// Writes to a file until there is no space.
fn fill(fs: &Fs, file: InodeNr) {
    for nr in 0.. {
        match fs.write_at(file, &[1; 4096], nr * 4096) {
            Ok(_) => {}
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The cache finds values by checksum and length; equal are those with equal bytes.
#[test]
fn values_with_equal_checksums_are_not_taken_for_each_other() {
    require_e2fsprogs!();
    let image = image_with_values();
    let fs = sharing(&image);
    let (one, two, three) = (make(&fs, "one"), make(&fs, "two"), make(&fs, "three"));
    let value = vec![1; 9000];
    let mut other = value.clone();
    // The polynomial of CRC32C, as the bits of 33 bits of the value.
    let polynomial = 1 | 0x82f6_3b78_u64 << 1;
    for (byte, bits) in other[100..].iter_mut().zip(polynomial.to_le_bytes()) {
        *byte ^= bits;
    }
    let seed = fs.superblock().checksum_seed();
    assert_eq!(
        EaInode::hash_of(&value, seed),
        EaInode::hash_of(&other, seed)
    );
    set(&fs, one, &value);
    set(&fs, two, &other);
    assert!(fs.xattr(two, NAME).unwrap() == other);
    assert_eq!((stats(&fs).unequal, stats(&fs).hits), (1, 0));
    fs.remove_xattr(one, NAME).unwrap();
    set(&fs, three, &other);
    assert!(fs.xattr(three, NAME).unwrap() == other);
    unmount_clean(fs, &image);
}
