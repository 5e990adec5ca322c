//! Writes of several buffers, copies, and the durability of changes: the kernel and e2fsck check
//! the result.

use fourscore::{
    AccessTimes, AttributeChange, Fallocate, Follow, Fs, InodeNr, MountOptions, OpenOptions,
    Replace, Seek, SetXattr, Times, XattrPlace,
};
use fourscore_ondisk::Timestamp;
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::Image;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, debugfs_write};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::common::{
    PLAIN, ROOT, content, image, image_of, mount, mount_with, open, require_e2fsprogs,
    require_kernel, unmount_clean,
};

/// The file system as it would be read after a crash now.
fn after_a_crash(image: &Image) -> (Image, Arc<Fs>) {
    let copy = image.copy().unwrap();
    let fs = open(&copy);
    (copy, fs)
}

/// Commits happen only on request.
fn quiet() -> MountOptions {
    MountOptions::new().parse("commit=100000").unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..=250).cycle().skip(seed % 251).take(len).collect()
}

#[test]
fn several_buffers_are_one_write() {
    require_kernel!();
    let image = image(&[]);
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    // Short buffers, none, one that is longer than the gathered ones, and short ones again.
    let lens = [1, 0, 5000, 100, 3 << 20, 7, 70_000, 0, 9];
    let parts: Vec<Vec<u8>> = lens.iter().map(|&len| pattern(len, len)).collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let whole = parts.concat();
    assert_eq!(
        fs.write_vectored_at(file, &slices, 777).unwrap(),
        whole.len()
    );
    assert_eq!(fs.write_vectored_at(file, &[], 1 << 40).unwrap(), 0);
    let mut back = vec![1; whole.len()];
    let (front, rest) = back.split_at_mut(4000);
    let mut into = [IoSliceMut::new(front), IoSliceMut::new(rest)];
    assert_eq!(
        fs.read_vectored_at(file, &mut into, 777).unwrap(),
        whole.len()
    );
    assert!(back == whole);

    // A writer of several buffers holds the lock exclusively.
    let shared = fs.create(ROOT, b"shared", &PLAIN).unwrap();
    let fs_of_all = &fs;
    thread::scope(|scope| {
        for letter in b'a'..=b'd' {
            scope.spawn(move || {
                let (short, long) = (vec![letter; 3000], vec![letter; 100_000]);
                let bufs = [&short, &long, &short, &long].map(|buf| IoSlice::new(buf));
                for _ in 0..10 {
                    fs_of_all.write_vectored_at(shared, &bufs, 0).unwrap();
                }
            });
        }
    });
    let mixed = content(&fs, shared);
    assert_eq!(mixed.len(), 206_000);
    assert!(mixed.iter().all(|&byte| byte == mixed[0]));
    unmount_clean(fs, &image);
    let kernel = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
    let read = std::fs::read(kernel.path().join("file")).unwrap();
    assert!(read[..777].iter().all(|&byte| byte == 0) && read[777..] == whole);
}

/// Data, a hole, data, preallocated blocks, data, and a hole at the end.
const DATA: [(u64, usize); 3] = [(100, 9000), (40_000, 3000), (200_123, 5000)];
const SOURCE_BYTES: u64 = 300_000;

fn copies() -> [(u64, u64, u64); 6] {
    [
        (0, 0, SOURCE_BYTES),
        (0, 0, u64::MAX / 4),
        (50, 12_345, 150_000),
        (5000, 300, 36_000),
        (205_000, 700_000, 1000),
        (SOURCE_BYTES, 0, 10),
    ]
}

#[test]
fn a_copy_has_the_bytes_that_the_kernels_has_and_keeps_holes() {
    require_kernel!();
    let own = image(&[]);
    let twin = own.copy().unwrap();
    let kernel = KernelMount::new(twin.path(), Access::ReadWrite, "").unwrap();
    let fs = mount(&own);
    let source = fs.create(ROOT, b"source", &PLAIN).unwrap();
    let their_source = File::create_new(kernel.path().join("source")).unwrap();
    for (offset, len) in DATA {
        let data = pattern(len, 3);
        fs.write_at(source, &data, offset).unwrap();
        their_source.write_all_at(&data, offset).unwrap();
    }
    fs.fallocate(source, Fallocate::Allocate, 100_000, 50_000)
        .unwrap();
    fs.truncate(source, SOURCE_BYTES).unwrap();
    their_source.set_len(SOURCE_BYTES).unwrap();
    let their_source = File::open(kernel.path().join("source")).unwrap();
    for (number, (from, to, len)) in copies().into_iter().enumerate() {
        let name = format!("target{number}");
        let target = fs.create(ROOT, name.as_bytes(), &PLAIN).unwrap();
        let theirs = File::create_new(kernel.path().join(&name)).unwrap();
        let old = vec![b'o'; 60_000 * number];
        fs.write_at(target, &old, 0).unwrap();
        theirs.write_all_at(&old, 0).unwrap();
        let copied = fs.copy_file_range(source, from, target, to, len).unwrap();
        let (mut at, mut into, mut left) = (from, to, usize::try_from(len).unwrap());
        let mut expected = 0;
        loop {
            let (source, target) = (Some(&mut at), Some(&mut into));
            let done =
                rustix::fs::copy_file_range(&their_source, source, &theirs, target, left).unwrap();
            if done == 0 {
                break;
            }
            expected += done as u64;
            left -= done;
        }
        assert_eq!(copied, expected, "{name}");
        let read = std::fs::read(kernel.path().join(&name)).unwrap();
        assert!(content(&fs, target) == read, "{name}");
    }
    // A copy of the whole file is no larger than its source, and has its holes.
    let whole = fs.lookup(ROOT, b"target0").unwrap();
    let sectors = fs.stat(whole).unwrap().sectors;
    assert!(sectors <= fs.stat(source).unwrap().sectors, "{sectors}");
    for at in [0, 12_288, 100_000, 250_000] {
        let hole = |inode| fs.seek(inode, at, Seek::Data).unwrap();
        assert_eq!(hole(whole), hole(source));
    }
    // A copy inside one file.
    let before = content(&fs, source);
    assert_eq!(
        fs.copy_file_range(source, 0, source, 9000, 9000).unwrap(),
        9000
    );
    let mut expected = before.clone();
    expected.copy_within(..9000, 9000);
    assert!(content(&fs, source) == expected);
    unmount_clean(fs, &own);
}

#[test]
fn what_is_synchronised_outlives_a_crash_and_fdatasync_leaves_attributes_out() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = mount_with(&image, &quiet());
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    fs.write_at(file, &pattern(50_000, 1), 0).unwrap();
    fs.fdatasync(file).unwrap();
    let (_copy, crashed) = after_a_crash(&image);
    let found = crashed.resolve(b"/file", Follow::No).unwrap();
    assert!(content(&crashed, found) == pattern(50_000, 1));

    let mode = AttributeChange {
        permissions: Some(0o600),
        ..AttributeChange::default()
    };
    fs.set_attributes(file, &mode).unwrap();
    // An overwrite: times change, size and map do not.
    fs.write_at(file, &pattern(5000, 2), 1000).unwrap();
    fs.fdatasync(file).unwrap();
    let (_copy, crashed) = after_a_crash(&image);
    assert_eq!(crashed.stat(found).unwrap().mode.0 & 0o777, 0o644);
    assert!(content(&crashed, found)[1000..6000] == pattern(5000, 2));
    fs.fsync(file).unwrap();
    let (_copy, crashed) = after_a_crash(&image);
    assert_eq!(crashed.stat(found).unwrap().mode.0 & 0o777, 0o600);

    // Writing to preallocated blocks changes only the map.
    fs.fallocate(file, Fallocate::Allocate, 100_000, 100_000)
        .unwrap();
    fs.fsync(file).unwrap();
    fs.write_at(file, &pattern(8192, 3), 102_400).unwrap();
    fs.fdatasync(file).unwrap();
    let (copy, crashed) = after_a_crash(&image);
    assert!(content(&crashed, found)[102_400..110_592] == pattern(8192, 3));
    drop(fs);
    let fs = mount(&copy);
    unmount_clean(fs, &copy);
}

#[test]
fn an_inode_that_left_memory_before_it_was_synchronised_is_durable_all_the_same() {
    require_e2fsprogs!();
    let image = image(&[]);
    let options = quiet().open(OpenOptions::new().cache_bytes(256 << 10));
    let fs = mount_with(&image, &options);
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    fs.write_at(file, &pattern(20_000, 1), 0).unwrap();
    for number in 0..2000 {
        let other = fs.create(ROOT, format!("other{number}").as_bytes(), &PLAIN);
        fs.stat(other.unwrap()).unwrap();
    }
    fs.fsync(file).unwrap();
    let (_copy, crashed) = after_a_crash(&image);
    let found = crashed.resolve(b"/file", Follow::No).unwrap();
    assert!(content(&crashed, found) == pattern(20_000, 1));
    unmount_clean(fs, &image);
}

#[test]
fn attributes_lie_where_it_is_said() {
    require_e2fsprogs!();
    let image = image_of(4096, &[]);
    let fs = mount(&image);
    let [none, short, long] =
        [&b"none"[..], b"short", b"long"].map(|name| fs.create(ROOT, name, &PLAIN).unwrap());
    fs.set_xattr(
        short,
        b"user.a",
        b"a value that is looked for",
        SetXattr::Any,
    )
    .unwrap();
    fs.set_xattr(long, b"user.a", &[b'l'; 2000], SetXattr::Any)
        .unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.xattr_place(none).unwrap(), None);
    let places = [short, long].map(|inode| fs.xattr_place(inode).unwrap().unwrap());
    fs.unmount().unwrap();
    let bytes = std::fs::read(image.path()).unwrap();
    let range = |range: &std::ops::Range<u64>| {
        usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
    };
    let [XattrPlace::InInode(short), XattrPlace::InBlock(long)] = &places else {
        panic!("{places:?}");
    };
    let (short, long) = (&bytes[range(short)], &bytes[range(long)]);
    assert!(short.windows(10).any(|part| part == b"a value th"));
    assert_eq!(long.len(), 4096);
    assert!(long.windows(2000).any(|part| part == [b'l'; 2000]));
    assert_clean(image.path());
}

/// Makes the directory `/d` with as many files; from 400 on it has an index.
fn directory_of(fs: &Fs, files: usize) -> InodeNr {
    let dir = fs.mkdir(ROOT, b"d", &PLAIN).unwrap();
    for number in 0..files {
        let name = format!("a name of some length {number}");
        fs.create(dir, name.as_bytes(), &PLAIN).unwrap();
    }
    dir
}

/// Returns the resulting link counts of `/d`, which has as many files, and of a file.
fn near_the_limit(image: &Image, files: usize) -> Vec<String> {
    let fs = mount(image);
    let dir = directory_of(&fs, files);
    fs.create(ROOT, b"f", &PLAIN).unwrap();
    fs.unmount().unwrap();
    let set = ["sif /d links_count 64999", "sif /f links_count 64999"];
    debugfs_write(image.path(), &set).unwrap();
    let twin = image.copy().unwrap();
    let fs = mount(image);
    let file = fs.lookup(ROOT, b"f").unwrap();
    let mut ours = Vec::new();
    let links = |inode| fs.stat(inode).unwrap().links;
    for name in ["one", "two", "three"] {
        let made = fs.mkdir(dir, name.as_bytes(), &PLAIN).map(drop);
        ours.push(format!(
            "{:?} {}",
            made.err().map(|error| error.errno()),
            links(dir)
        ));
        let linked = fs.link(file, ROOT, name.as_bytes());
        ours.push(format!(
            "{:?} {}",
            linked.err().map(|error| error.errno()),
            links(file)
        ));
    }
    fs.rmdir(dir, b"one").unwrap();
    ours.push(links(dir).to_string());
    fs.unmount().unwrap();

    let kernel = KernelMount::new(twin.path(), Access::ReadWrite, "").unwrap();
    let (dir, file) = (kernel.path().join("d"), kernel.path().join("f"));
    let mut theirs = Vec::new();
    let links = |path: &Path| path.metadata().unwrap().nlink();
    let errno = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    for name in ["one", "two", "three"] {
        let made = std::fs::create_dir(dir.join(name));
        theirs.push(format!("{:?} {}", errno(made), links(&dir)));
        let linked = std::fs::hard_link(&file, kernel.path().join(name));
        theirs.push(format!("{:?} {}", errno(linked), links(&file)));
    }
    std::fs::remove_dir(dir.join("one")).unwrap();
    theirs.push(links(&dir).to_string());
    assert_eq!(ours, theirs);
    ours
}

#[test]
fn names_are_counted_up_to_the_same_limits_as_in_linux() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let with = image(&[]);
    let counts = near_the_limit(&with, 400);
    assert_eq!(counts[0], "None 65000");
    assert_eq!(counts[2], "None 1");
    // Without an index, or without the feature, there can be no more.
    for (features, files) in [(&[][..], 0), (&["^dir_nlink"], 400)] {
        let counts = near_the_limit(&image(features), files);
        assert_eq!(counts[2], "Some(31) 65000");
        assert_eq!(counts[3], "Some(31) 65000");
    }
}

/// Returns the link counts of `/d` with as many files and the given count, while subdirectories
/// come and go: ours, and those of the kernel's twin.
fn counts_of(image: &Image, files: usize, links: u16) -> (Vec<u64>, Vec<u64>) {
    let fs = mount(image);
    let dir = directory_of(&fs, files);
    for name in [b"a", b"b", b"c", b"d"] {
        fs.mkdir(dir, name, &PLAIN).unwrap();
    }
    fs.unmount().unwrap();
    debugfs_write(image.path(), &[format!("sif /d links_count {links}")]).unwrap();
    let twin = image.copy().unwrap();

    let fs = mount(image);
    let mut ours = Vec::new();
    let mut count = || ours.push(u64::from(fs.stat(dir).unwrap().links));
    for name in [b"a", b"b"] {
        fs.rmdir(dir, name).unwrap();
        count();
    }
    fs.rename((dir, b"c"), (ROOT, b"x"), Replace::No).unwrap();
    count();
    fs.mkdir(dir, b"new", &PLAIN).unwrap();
    count();
    fs.rename((ROOT, b"x"), (dir, b"c"), Replace::No).unwrap();
    count();
    fs.rename((dir, b"c"), (dir, b"d"), Replace::Yes).unwrap();
    count();
    fs.unmount().unwrap();

    let kernel = KernelMount::new(twin.path(), Access::ReadWrite, "").unwrap();
    let (root, dir) = (kernel.path(), kernel.path().join("d"));
    let mut theirs = Vec::new();
    let mut count = || theirs.push(dir.metadata().unwrap().nlink());
    for name in ["a", "b"] {
        std::fs::remove_dir(dir.join(name)).unwrap();
        count();
    }
    std::fs::rename(dir.join("c"), root.join("x")).unwrap();
    count();
    std::fs::create_dir(dir.join("new")).unwrap();
    count();
    std::fs::rename(root.join("x"), dir.join("c")).unwrap();
    count();
    std::fs::rename(dir.join("c"), dir.join("d")).unwrap();
    count();
    kernel.unmount().unwrap();
    (ours, theirs)
}

#[test]
fn a_directory_whose_count_is_too_low_is_never_taken_for_a_deleted_one() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let (ours, theirs) = counts_of(&image(&["^dir_nlink"]), 0, 2);
    assert_eq!(ours, theirs);
    assert_eq!(ours, [2, 2, 2, 3, 4, 3]);
    for features in [&[][..], &["^dir_nlink"]] {
        let (ours, theirs) = counts_of(&image(features), 400, 1);
        assert_eq!(ours, theirs);
        assert_eq!(ours, [1; 6]);
    }
}

fn times(fs: &Fs, inode: InodeNr) -> [Timestamp; 3] {
    let stat = fs.stat(inode).unwrap();
    [stat.atime, stat.mtime, stat.ctime]
}

#[test]
fn lazy_times_are_shown_at_once_and_written_with_the_next_other_change() {
    require_kernel!();
    let image = image(&[]);
    let options = quiet().times(Times::Lazily);
    let options = options.access_times(AccessTimes::Strict);
    let fs = mount_with(&image, &options);
    let [written, read, deleted] =
        [&b"written"[..], b"read", b"deleted"].map(|name| fs.create(ROOT, name, &PLAIN).unwrap());
    fs.write_at(written, &pattern(10_000, 1), 0).unwrap();
    fs.sync().unwrap();
    let before = [written, read].map(|inode| times(&fs, inode));
    let version = fs.stat(written).unwrap().version;
    thread::sleep(std::time::Duration::from_millis(20));

    fs.write_at(written, &pattern(5000, 2), 100).unwrap();
    fs.accessed(read).unwrap();
    fs.accessed(deleted).unwrap();
    fs.fdatasync(written).unwrap();
    let now = [written, read].map(|inode| times(&fs, inode));
    assert!(now[0][1] > before[0][1] && now[0][2] > before[0][2]);
    assert!(now[1][0] > before[1][0] && now[1][1] == before[1][1]);
    assert!(fs.stat(written).unwrap().version > version);
    let (_copy, crashed) = after_a_crash(&image);
    assert_eq!([written, read].map(|inode| times(&crashed, inode)), before);
    assert!(content(&crashed, written)[100..5100] == pattern(5000, 2));

    // A change of another field writes the times as well, and so does fsync.
    fs.set_xattr(read, b"user.a", b"1", SetXattr::Any).unwrap();
    fs.fsync(written).unwrap();
    let (_copy, crashed) = after_a_crash(&image);
    assert_eq!(times(&crashed, written), now[0]);
    assert_eq!(times(&crashed, read)[0], now[1][0]);

    // So does unmounting. The deleted inode has no times.
    fs.unlink(ROOT, b"deleted").unwrap();
    thread::sleep(std::time::Duration::from_millis(20));
    fs.accessed(read).unwrap();
    let last = times(&fs, read);
    assert!(last[0] > now[1][0]);
    unmount_clean(fs, &image);
    let kernel = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
    let meta = kernel.path().join("read").metadata().unwrap();
    let atime = (meta.atime(), u32::try_from(meta.atime_nsec()).unwrap());
    assert_eq!(atime, (last[0].seconds(), last[0].nanoseconds()));
}

#[test]
fn no_more_times_are_kept_in_memory_than_there_is_room_for() {
    require_e2fsprogs!();
    let image = image(&[]);
    let options = quiet().parse("lazytime,strictatime").unwrap();
    let options = options.open(OpenOptions::new().cache_bytes(1 << 20));
    let fs = mount_with(&image, &options);
    let files: Vec<InodeNr> = (0..3000)
        .map(|number| {
            fs.create(ROOT, format!("f{number}").as_bytes(), &PLAIN)
                .unwrap()
        })
        .collect();
    thread::scope(|scope| {
        for part in files.chunks(1000) {
            let fs = &fs;
            scope.spawn(move || {
                for &file in part.iter().chain(part) {
                    fs.accessed(file).unwrap();
                }
            });
        }
    });
    let shown: Vec<_> = files.iter().map(|&file| times(&fs, file)).collect();
    unmount_clean(fs, &image);
    let fs = open(&image);
    for (file, shown) in files.iter().zip(shown) {
        assert_eq!(times(&fs, *file), shown);
    }
}
