//! Tests that images equal their sources: e2fsck finds nothing, and the kernel's mount shows the
//! same tree, object by object.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use fourscore_build::{BuildError, Flow, Size, Tree, build};
use fourscore_ondisk::Timestamp;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};
use rustix::fs::SeekFrom;

use crate::cases::{self, Case, build_directory, options, target, with_everything};

/// The file system options with which a tree with every kind of object is built.
const FORMS: &[&str] = &[
    "-t ext4",
    "-t ext3",
    "-t ext2",
    "-t ext4 -b 1024",
    "-t ext4 -b 2048",
    "-t ext2 -b 1024",
    "-t ext3 -b 2048 -I 128",
    "-t ext4 -I 128 -O ^project,^extra_isize",
    "-t ext4 -I 512",
    "-t ext4 -I 1024 -b 1024",
    "-t ext4 -O ^extent,^64bit",
    "-t ext4 -O ^64bit,^metadata_csum,uninit_bg",
    "-t ext4 -O ^has_journal",
    "-t ext4 -O ^flex_bg,^resize_inode,meta_bg",
    "-t ext4 -O bigalloc",
    "-t ext4 -O bigalloc -C 65536 -b 1024",
    "-t ext4 -O sparse_super2,^resize_inode",
    "-t ext4 -O ^dir_index",
    "-t ext4 -O ^filetype -b 1024",
    "-t ext4 -O fast_commit,orphan_file,metadata_csum_seed",
    "-t ext4 -O large_dir,ea_inode,project",
    "-t ext4 -g 1024 -b 1024",
    "-t ext4 -E packed_meta_blocks=1",
    "-t ext4 -O inline_data,quota,project",
    "-t ext4 -O inline_data,ea_inode -I 1024 -b 2048",
];

/// Options with blocks larger than a page, which this kernel does not mount.
const LARGE_BLOCKS: &[&str] = &[
    "-t ext4 -b 8192",
    "-t ext4 -b 16384",
    "-t ext4 -b 32768",
    "-t ext4 -b 65536",
    "-t ext2 -b 65536",
];

#[test]
fn every_kind_of_object_is_stored_with_any_options() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let source = with_everything();
    for form in FORMS {
        let summary = Case::new(form).check(source.path());
        assert!(summary.objects > 1500, "{form}: {summary:?}");
    }
}

#[test]
fn images_with_large_blocks_are_clean() {
    require!(Need::Root, Need::Program("e2fsck"));
    let source = with_everything();
    for form in LARGE_BLOCKS {
        let summary = Case::new(form).check_unmounted(source.path());
        assert!(summary.objects > 1500, "{form}: {summary:?}");
    }
}

#[test]
fn sizes_are_exact() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let source = with_everything();
    let mut case = Case::new("-t ext4 -b 4096");
    let least = case.check(source.path());
    assert!(least.free_bytes * 100 < least.size_bytes, "{least:?}");
    case.options.size = Size::AutoPlusBytes(64 << 20);
    let more = case.check(source.path());
    let free = (64 << 20)..(64 << 20) + least.size_bytes / 100;
    assert!(free.contains(&more.free_bytes), "{more:?}");
    case.options.size = Size::AutoPlusPercent(20);
    let more = case.check(source.path());
    assert!(
        (more.free_bytes * 5).abs_diff(least.size_bytes) < least.size_bytes / 20,
        "{more:?}"
    );
    case.options.size = Size::Minimum;
    let minimum = case.check(source.path());
    assert!(
        minimum.size_bytes < least.size_bytes,
        "{minimum:?} {least:?}"
    );
    case.options.size = Size::Bytes(512 << 20);
    assert_eq!(case.check(source.path()).size_bytes, 512 << 20);
    case.options.size = Size::Bytes(least.size_bytes - 4096);
    let error = case.build(source.path()).unwrap_err();
    let BuildError::NoSpace { needed_bytes, .. } = error else {
        panic!("{error}");
    };
    case.options.size = Size::Bytes(needed_bytes);
    assert_eq!(case.check(source.path()).size_bytes, needed_bytes);
}

#[test]
fn the_same_bytes_on_any_number_of_threads() {
    let source = with_everything();
    cases::assert_same_bytes_on_any_thread_count(
        || Case::new("-t ext4 -O orphan_file"),
        |case| case.build(source.path()),
    );
}

#[test]
fn different_trees_have_different_uuids() {
    let folder = scratch::folder().unwrap();
    let mut uuids = Vec::new();
    for name in ["one", "other"] {
        let tree = folder.path().join(name);
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join(name), "").unwrap();
        let image = folder.path().join("image");
        let mut options = options("-t ext4");
        options.source_date_epoch = Some(0);
        uuids.push(build_directory(&options, &tree, &image).unwrap().uuid);
        assert_eq!(
            build_directory(&options, &tree, &image).unwrap().uuid,
            uuids[uuids.len() - 1]
        );
    }
    assert_ne!(uuids[0], uuids[1]);
}

#[test]
fn later_times_are_clamped_to_the_epoch() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("new"), "").unwrap();
    let mut case = Case::new("-t ext4");
    case.options.source_date_epoch = Some(1_000_000_000);
    let image = case.image_of(&tree);
    let epoch = Timestamp::new(1_000_000_000, 0).unwrap();
    assert_eq!(cases::mtime(&image, "/new"), epoch);
}

/// Blocks are final when they are written: each file is contiguous, no directory has an unneeded
/// block, the journal is empty, and free space takes no blocks of the host.
#[test]
fn files_are_contiguous_and_the_journal_is_empty() {
    require!(Need::Program("e2fsck"), Need::Program("dumpe2fs"));
    let source = with_everything();
    let mut case = Case::new("-t ext4 -b 4096");
    case.options.size = Size::Bytes(4 << 30);
    let summary = case.check_unmounted(source.path());
    let image = case.image();
    let found = fs::metadata(&image).unwrap();
    let on_host = found.blocks() * 512;
    assert_eq!(found.len(), 4 << 30);
    let used = summary.content_bytes + summary.objects * 4096;
    assert!(on_host < used + (8 << 20), "{on_host} bytes, {summary:?}");
    let output = tools::run("e2fsck", &["-fn".as_ref(), image.as_os_str()]).unwrap();
    assert!(output.contains("(0.0% non-contiguous)"), "{output}");
    let output = tools::run("dumpe2fs", &["-h".as_ref(), image.as_os_str()]).unwrap();
    let is_empty = |line: &str| line.starts_with("Journal start:") && line.ends_with(" 0");
    assert!(output.lines().any(is_empty), "{output}");
    assert!(!output.contains("needs_recovery"), "{output}");
}

/// Seconds and nanoseconds of atime, mtime and ctime.
fn times(path: &Path) -> [(i64, i64); 3] {
    let found = fs::symlink_metadata(path).unwrap();
    [
        (found.atime(), found.atime_nsec()),
        (found.mtime(), found.mtime_nsec()),
        (found.ctime(), found.ctime_nsec()),
    ]
}

#[test]
fn all_three_times_are_stored_in_nanoseconds() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let source = with_everything();
    let names = [
        "dir/symlink-900",
        "dense/60",
        "dir",
        "big",
        "holes",
        "empty",
    ];
    let before = names.map(|name| times(&source.path().join(name)));
    let case = Case::new("-t ext4");
    let image = case.image_of(source.path());
    let after = names.map(|name| times(&source.path().join(name)));
    // Reading a symbolic link changes its atime.
    assert_eq!(before[1..], after[1..], "reading must not change times");
    let mount = KernelMount::new(&image, Access::ReadOnly, "").unwrap();
    let found = names.map(|name| times(&mount.path().join(name)));
    mount.unmount().unwrap();
    assert_eq!(found, before);
    assert_eq!(before[1][0], (5, 6));
    assert_eq!(before[1][1], (1_234_567_890, 987_654_321));
    assert!(before.iter().any(|times| times[2].1 != 0));
}

/// Ranges of data of a file, in bytes.
fn data_of(path: &Path) -> Vec<(u64, u64)> {
    let file = fs::File::open(path).unwrap();
    let mut data = Vec::new();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        data.push((start, at));
    }
    data
}

#[test]
fn holes_are_preserved() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let source = with_everything();
    // Archives do not store sockets.
    if tools::is_root() {
        fs::remove_file(source.path().join("socket")).unwrap();
    }
    let theirs = data_of(&source.path().join("holes"));
    assert!(theirs.len() > 200, "{} pieces", theirs.len());
    // Blocks of the size with which the host records holes.
    for form in ["-t ext4 -b 4096", "-t ext2 -b 4096"] {
        let case = Case::new(form);
        for is_archive in [false, true] {
            match is_archive {
                true => case.check_archive(source.path()),
                false => case.check(source.path()),
            };
            let mount = KernelMount::new(&case.image(), Access::ReadOnly, "").unwrap();
            let ours = data_of(&mount.path().join("holes"));
            mount.unmount().unwrap();
            assert_eq!(ours, theirs, "{form}, archive: {is_archive}");
        }
    }
}

#[test]
fn an_empty_tree_is_built() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    for form in ["-t ext4", "-t ext2", "-t ext4 -b 1024"] {
        Case::new(form).check_both(folder.path());
        let mut case = Case::new(form);
        case.options.size = Size::Minimum;
        case.check(folder.path());
    }
}

#[test]
fn ten_thousand_links_and_a_large_sparse_file_are_stored() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "content").unwrap();
    for number in 1..10_000 {
        fs::hard_link(at("file"), at(&format!("link{number}"))).unwrap();
    }
    let sparse = fs::File::create(at("sparse")).unwrap();
    sparse.set_len(100 << 30).unwrap();
    for place in [0, 1 << 30, (100 << 30) - 5] {
        sparse.write_all_at(b"data!", place).unwrap();
    }
    for form in ["-t ext4", "-t ext3 -b 2048"] {
        let summary = Case::new(form).check_both(folder.path());
        assert!(summary.size_bytes < 32 << 20, "{summary:?}");
    }
}

#[test]
fn a_path_of_four_thousand_bytes_is_stored() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    cases::make_deep(folder.path(), &[b'd'; 39], 110);
    Case::new("-t ext4").check_both(folder.path());
}

#[test]
fn leaves_of_a_large_directory_are_full() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    for number in 0..120_000 {
        fs::write(
            folder.path().join(format!("a-name-with-a-number-{number}")),
            "",
        )
        .unwrap();
    }
    let case = Case::new("-t ext4");
    case.check_archive(folder.path());
    // Leaves are full: the number of blocks is close to the minimum for the entries.
    let needed_bytes: usize = (0..120_000)
        .map(|number| format!("a-name-with-a-number-{number}").len())
        .map(|len| (8 + len).next_multiple_of(4))
        .sum();
    let leaves = needed_bytes.div_ceil(4096 - 12) as u64;
    let mount = KernelMount::new(&case.image(), Access::ReadOnly, "").unwrap();
    let blocks = fs::metadata(mount.path()).unwrap().len() / 4096;
    mount.unmount().unwrap();
    assert!((leaves..leaves + leaves / 50).contains(&blocks), "{blocks}");
    Case::new("-t ext4 -b 1024").check(folder.path());
}

#[test]
fn more_subdirectories_than_the_link_count_holds() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let folder = scratch::folder().unwrap();
    for number in 0..65_100 {
        fs::create_dir(folder.path().join(format!("{number}"))).unwrap();
    }
    Case::new("-t ext4").check(folder.path());
    let error = Case::new("-t ext2").build(folder.path()).unwrap_err();
    assert!(matches!(error, BuildError::TooManyLinks { .. }), "{error}");
}

#[test]
fn the_kernel_can_write_to_images() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let source = with_everything();
    for form in ["-t ext4", "-t ext2 -b 1024", "-t ext4 -O bigalloc"] {
        let mut case = Case::new(form);
        case.options.size = Size::AutoPlusBytes(64 << 20);
        assert!(case.check_writable(source.path()).free_bytes >= 64 << 20);
    }
}

/// On a host with reflinks, the image takes nearly no space beside its source, but is independent
/// of it.
#[test]
fn blocks_are_shared_on_hosts_with_reflinks() {
    require!(
        Need::KernelMount,
        Need::Program("mkfs.xfs"),
        Need::Program("e2fsck")
    );
    let place = scratch::folder().unwrap();
    let disk = place.path().join("disk");
    fs::File::create(&disk).unwrap().set_len(512 << 20).unwrap();
    let mut mkfs = tools::command("mkfs.xfs").unwrap();
    tools::stdout_of(mkfs.args(["-q", "-m", "reflink=1"]).arg(&disk)).unwrap();
    let mount = KernelMount::of_type("xfs", &disk, Access::ReadWrite, "").unwrap();
    let source = mount.path().join("source");
    fs::create_dir(&source).unwrap();
    let bytes: Vec<u8> = (0..=250).cycle().take((40 << 20) + 12_345).collect();
    fs::write(source.join("large"), &bytes).unwrap();
    fs::write(source.join("small"), "small").unwrap();
    let holes = fs::File::create(source.join("holes")).unwrap();
    holes.set_len(9 << 20).unwrap();
    holes.write_all_at(&bytes[..1 << 20], 3 << 20).unwrap();
    drop(holes);
    mount.sync().unwrap();
    let used = || {
        mount.sync().unwrap();
        let found = rustix::fs::statvfs(mount.path()).unwrap();
        (found.f_blocks - found.f_bfree) * found.f_frsize
    };
    let before = used();
    let image = mount.path().join("image");
    let without_journal = options("-t ext4 -O ^has_journal");
    build_directory(&without_journal, &source, &image).unwrap();
    let more = used() - before;
    assert!(more < 6 << 20, "{more} bytes for an image of 41 MiB");
    let copy = place.path().join("copy");
    fs::copy(&image, &copy).unwrap();
    fs::write(source.join("large"), "changed").unwrap();
    mount.unmount().unwrap();
    assert_clean(&copy);
    let of_image = KernelMount::new(&copy, Access::ReadOnly, "").unwrap();
    let found = fs::read(of_image.path().join("large")).unwrap();
    assert!(found == bytes, "the content of a shared file");
    let found = fs::read(of_image.path().join("holes")).unwrap();
    assert!(found[3 << 20..4 << 20] == bytes[..1 << 20] && found[5 << 20] == 0);
    of_image.unmount().unwrap();
}

#[test]
fn a_failed_build_leaves_nothing() {
    let folder = scratch::folder().unwrap();
    let image = folder.path().join("image");
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let names = || fs::read_dir(folder.path()).unwrap().count();
    let mut tree = Tree::new();
    let scan = fourscore_build::host::Scan::all(2);
    fs::write(source.join("file"), "1234").unwrap();
    fourscore_build::host::add_directory(&mut tree, &source, &scan).unwrap();
    fs::write(source.join("file"), "12345").unwrap();
    let error = build(&options("-t ext4"), tree, &target(&image), &|_| {
        Flow::Continue
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "/file: the file changed while it was read"
    );
    let error = build(&options("-t ext4"), Tree::new(), &target(&image), &|_| {
        Flow::Stop
    })
    .unwrap_err();
    assert!(matches!(error, BuildError::Stopped), "{error}");
    assert_eq!(names(), 1, "only the source exists");
    let names: &[&[u8]] = &[b"target", &[b't'; 5000]];
    symlink(std::ffi::OsStr::from_bytes(names[0]), source.join("link")).unwrap();
    assert!(build_directory(&options("-t ext4 -O nonsense"), &source, &image).is_err());
    assert!(!Path::new(&image).exists());
}
