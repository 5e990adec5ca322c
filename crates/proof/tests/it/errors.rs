//! Corruption that is found on a read-write mount, journals that cannot continue, and the option
//! `nobarrier`.

use fourscore::{
    AttributeChange, Barriers, Caller, Fallocate, Follow, Fs, InodeNr, MountOptions, OnError,
    OpenInode, Replace, SetXattr, Trim,
};
use fourscore_block::{DeviceOp, FaultyDevice, RecordingDevice, Rule};
use fourscore_ondisk::GroupNr;
use fourscore_ondisk::checksum::InodeGeneration;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::superblock::State;
use fourscore_sync::{Arc, Mutex};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, debugfs_write, dumpe2fs_header, e2fsck_repair};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};
use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;

use crate::common::{
    self, OWNER, ROOT, device, device_to_read, mount_words, open, quiet, require_e2fsprogs,
    unmount_clean,
};

const NO_JOURNAL: &str = "^has_journal";

/// A file system with a file that was synced, and a directory whose block holds only zeroes.
fn broken(features: &[&str], arguments: &[&str]) -> (Image, u64) {
    let image = Image::builder(MiB(32)).kind("ext4").block_size_bytes(4096);
    let image = image.features(features);
    let image = image.arguments(arguments.iter().copied()).make().unwrap();
    let fs = mount_words(&image, "");
    let dir = fs.mkdir(ROOT, b"broken", &OWNER).unwrap();
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.write_at(file, b"content", 0).unwrap();
    let block = fs.extents(dir).unwrap()[0].physical;
    unmount_clean(fs, &image);
    let file = File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0; 4096], block.0 * 4096).unwrap();
    (image, block.0)
}

fn errno<T: std::fmt::Debug>(result: fourscore::Result<T>) -> i32 {
    result.unwrap_err().errno()
}

fn make_in_broken(fs: &Fs) -> i32 {
    let dir = fs.resolve(b"broken", Follow::No).unwrap();
    errno(fs.create(dir, b"x", &OWNER))
}

fn content(fs: &Fs) -> Vec<u8> {
    let file = fs.resolve(b"file", Follow::No).unwrap();
    let mut bytes = vec![0; 100];
    let len = fs.read_at(file, &mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

/// e2fsck repairs the image, and the superblock reports no errors after that.
fn assert_repaired(image: &Image) {
    e2fsck_repair(image.path(), &[]).unwrap();
    assert_clean(image.path());
    let header = dumpe2fs_header(image.path()).unwrap();
    assert_eq!(header["Filesystem state"], "clean");
    assert_eq!(header.get("FS Error count"), None);
    assert_eq!(content(&open(image)), b"content");
}

#[test]
fn an_error_is_noted_and_all_else_goes_on() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs")
    );
    for features in [&[][..], &["^metadata_csum"], &[NO_JOURNAL]] {
        let (image, block) = broken(features, &[]);
        let fs = mount_words(&image, "errors=continue");
        assert_eq!(make_in_broken(&fs), 117);
        fs.create(ROOT, b"still", &OWNER).unwrap();
        assert_eq!(make_in_broken(&fs), 117);
        let dir = fs.resolve(b"broken", Follow::No).unwrap();
        fs.unmount().unwrap();

        let header = dumpe2fs_header(image.path()).unwrap();
        assert_eq!(header["Filesystem state"], "clean with errors");
        assert_eq!(header["FS Error count"], "2");
        assert_eq!(header["First error inode #"], dir.to_string());
        assert_eq!(header["First error block #"], block.to_string());
        assert!(header["First error function"].ends_with("dir/create.rs"));
        assert_eq!(header["Last error err"], "EFSCORRUPTED");
        let fs = open(&image);
        let superblock = fs.superblock();
        let (first, last) = (superblock.first_error(), superblock.last_error());
        let (first, last) = (first.unwrap(), last.unwrap());
        assert_eq!((first.inode, first.line), (Some(dir), last.line));
        assert!(first.line > 0 && first.time <= last.time && last.code == 5);
        assert!(superblock.state().contains(State::ERROR_FS));
        drop(fs);
        // The first error that another program noted stays the first.
        let fs = mount_words(&image, "errors=continue");
        assert_eq!(errno(fs.rmdir(ROOT, b"broken")), 117);
        fs.unmount().unwrap();
        let header = dumpe2fs_header(image.path()).unwrap();
        assert_eq!(header["FS Error count"], "3");
        assert!(header["First error function"].ends_with("dir/create.rs"));
        assert!(header["Last error function"].ends_with("dir/remove.rs"));
        assert_repaired(&image);
    }
}

#[test]
fn nothing_is_written_any_more_after_an_error() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs"),
        Need::KernelMount
    );
    for features in [&["^orphan_file"][..], &[NO_JOURNAL]] {
        let (image, _) = broken(features, &["-e", "remount-ro"]);
        let options = quiet();
        let fs = Fs::mount(device(&image), &options).unwrap();
        // The superblock is in the log.
        let orphan = OpenInode::unnamed(&*fs, ROOT, &OWNER).unwrap();
        fs.create(ROOT, b"synced", &OWNER).unwrap();
        fs.sync().unwrap();
        fs.create(ROOT, b"lost", &OWNER).unwrap();
        assert_eq!(make_in_broken(&fs), 117);
        assert_eq!(make_in_broken(&fs), 30, "read-only from now on");
        assert_eq!(errno(fs.create(ROOT, b"other", &OWNER)), 30);
        assert_eq!(errno(fs.sync()), 30);
        assert_eq!(content(&fs), b"content");
        fs.statfs().unwrap();
        assert_eq!(fs.orphans().unwrap(), [orphan.inode()]);
        drop(orphan);
        fs.unmount().unwrap_err();

        let header = dumpe2fs_header(image.path()).unwrap();
        assert_eq!(header["FS Error count"], "1");
        assert!(header["Filesystem state"].ends_with("with errors"));
        let names = |image: &Image| {
            let fs = open(image);
            [&b"synced"[..], b"lost"].map(|name| fs.lookup(ROOT, name).is_ok())
        };
        if features != [NO_JOURNAL] {
            // A program that recovers the journal still knows of the error.
            let by_kernel = image.copy().unwrap();
            let kernel = KernelMount::new(by_kernel.path(), Access::ReadWrite, "").unwrap();
            kernel.unmount().unwrap();
            let header = dumpe2fs_header(by_kernel.path()).unwrap();
            assert_eq!(header["Filesystem state"], "clean with errors");
            assert_eq!(names(&by_kernel), [true, false]);
            assert_repaired(&by_kernel);
            let by_us = image.copy().unwrap();
            mount_words(&by_us, "").unmount().unwrap();
            let header = dumpe2fs_header(by_us.path()).unwrap();
            assert_eq!(header["Filesystem state"], "clean with errors");
            assert_eq!(header["FS Error count"], "1");
            assert_eq!(names(&by_us), [true, false]);
            assert_repaired(&by_us);
        }
        assert_repaired(&image);
        assert_eq!(names(&image), [true, false]);
    }
}

#[test]
fn the_program_gets_an_error_instead_of_a_panic() {
    require_e2fsprogs!();
    // Reported by the mount, and by the superblock.
    for (policy, on_error) in [("continue", Some(OnError::Panic)), ("panic", None)] {
        let (image, _) = broken(&[], &["-e", policy]);
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&told);
        let mut options =
            MountOptions::new().on_panic(move |why| hears.lock().push(why.to_owned()));
        if let Some(on_error) = on_error {
            options = options.on_error(on_error);
        }
        let fs = Fs::mount(device(&image), &options).unwrap();
        let dir = fs.resolve(b"broken", Follow::No).unwrap();
        assert_eq!(make_in_broken(&fs), 117);
        assert_eq!(make_in_broken(&fs), 30);
        fs.unmount().unwrap_err();
        let told = told.lock();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with(&format!("inode {dir}: ")), "{told:?}");
        assert_repaired(&image);
    }
}

#[test]
fn a_journal_that_cannot_be_written_ends_the_writing() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs")
    );
    for words in ["errors=continue", "errors=remount-ro"] {
        let image = Image::builder(MiB(32)).kind("ext4").block_size_bytes(4096);
        let image = image.make().unwrap();
        let faulty = Arc::new(FaultyDevice::new(device(&image)));
        let options = MountOptions::new().parse(words).unwrap();
        let fs = Fs::mount(faulty.clone(), &options).unwrap();
        let file = fs.create(ROOT, b"file", &OWNER).unwrap();
        fs.write_at(file, b"content", 0).unwrap();
        fs.fsync(file).unwrap();
        let journal = fs.extents(InodeNr::JOURNAL).unwrap()[0];
        // Not the journal's superblock, in its first block.
        let log = (journal.physical.0 + 1) * 4096..(journal.physical.0 + 1000) * 4096;
        faulty.add(Rule::nth(DeviceOp::Write, 1).within(log));
        fs.append(file, b" and more").unwrap();
        assert_eq!(errno(fs.fsync(file)), 5, "{words}");
        assert_eq!(errno(fs.truncate(file, 2)), 30);
        assert_eq!(errno(fs.fsync(file)), 30);
        fs.unmount().unwrap_err();
        drop(faulty);
        let header = dumpe2fs_header(image.path()).unwrap();
        assert_eq!(header["FS Error count"], "1");
        assert_eq!(header["Last error err"], "EIO");
        mount_words(&image, "").unmount().unwrap();
        assert_repaired(&image);
    }
}

/// A call that changes an inode, and the end of the name of the file whose path is noted.
type Call = (&'static str, fn(&Fs, InodeNr) -> fourscore::Result<()>);

/// All calls on one inode.
const CALLS: [Call; 25] = [
    ("file/write.rs", |fs, nr| fs.write_at(nr, b"x", 0).map(drop)),
    ("file/write.rs", |fs, nr| fs.append(nr, b"x").map(drop)),
    ("file/truncate.rs", |fs, nr| fs.truncate(nr, 3)),
    ("file/copy.rs", |fs, nr| {
        let bufs = [IoSlice::new(b"x"), IoSlice::new(b"y")];
        fs.write_vectored_at(nr, &bufs, 0).map(drop)
    }),
    ("file/copy.rs", |fs, nr| {
        let source = fs.lookup(ROOT, b"file")?;
        fs.copy_file_range(source, 0, nr, 0, 7).map(drop)
    }),
    ("file/copy.rs", |fs, nr| {
        let target = fs.lookup(ROOT, b"file")?;
        fs.copy_file_range(nr, 0, target, 0, 7).map(drop)
    }),
    ("file/fallocate.rs", |fs, nr| {
        fs.fallocate(nr, Fallocate::Allocate, 0, 9)
    }),
    ("file/fallocate.rs", |fs, nr| {
        fs.fallocate(nr, Fallocate::PunchHole, 0, 9)
    }),
    ("inode/flags.rs", |fs, nr| {
        fs.set_flags(nr, InodeFlags::NODUMP_FL)
    }),
    ("inode/flags.rs", |fs, nr| fs.set_project(nr, 7)),
    ("inode/flags.rs", |fs, nr| {
        fs.set_generation(nr, InodeGeneration(7))
    }),
    ("inode/access_times.rs", |fs, nr| fs.accessed(nr)),
    ("inode/attributes.rs", |fs, nr| {
        let permissions = Some(0o600);
        let change = AttributeChange {
            permissions,
            ..AttributeChange::default()
        };
        fs.set_attributes(nr, &change)
    }),
    ("inode/attributes.rs", |fs, nr| {
        fs.remove_privileges(nr, &Caller::ROOT).map(drop)
    }),
    ("xattr/change.rs", |fs, nr| {
        fs.set_xattr(nr, b"user.a", b"b", SetXattr::Any)
    }),
    ("xattr/change.rs", |fs, nr| fs.remove_xattr(nr, b"user.a")),
    ("dir/create.rs", |fs, nr| fs.link(nr, ROOT, b"second")),
    ("dir/create.rs", |fs, nr| {
        fs.create(nr, b"inside", &OWNER).map(drop)
    }),
    ("dir/create.rs", |fs, nr| {
        fs.mkdir(nr, b"inside", &OWNER).map(drop)
    }),
    ("dir/create.rs", |fs, nr| {
        OpenInode::unnamed(fs, nr, &OWNER).map(drop)
    }),
    ("dir/remove.rs", |fs, _| fs.unlink(ROOT, b"victim")),
    ("dir/rename.rs", |fs, _| {
        fs.rename((ROOT, b"victim"), (ROOT, b"other"), Replace::Yes)
    }),
    ("dir/exchange.rs", |fs, _| {
        fs.exchange((ROOT, b"victim"), (ROOT, b"file"))
    }),
    ("file/sync.rs", |fs, nr| fs.fsync(nr)),
    ("file/sync.rs", |fs, nr| fs.fdatasync(nr)),
];

/// The number of errors that the superblock reports, and the location of the last one.
fn noted(image: &Image) -> (u32, String) {
    let fs = open(image);
    let header = dumpe2fs_header(image.path()).unwrap();
    let count = header.get("FS Error count").map_or("0", String::as_str);
    let place = header.get("Last error function").cloned();
    let last = fs.superblock().last_error();
    assert_eq!(last.is_some(), place.is_some());
    (count.parse().unwrap(), place.unwrap_or_default())
}

#[test]
fn whatever_meets_a_broken_inode_notes_it_once() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs"),
        Need::Program("dumpe2fs")
    );
    for features in [&["^metadata_csum"][..], &[]] {
        let (image, _) = broken(features, &[]);
        let fs = mount_words(&image, "");
        let victim = fs.create(ROOT, b"victim", &OWNER).unwrap();
        fs.write_at(victim, b"content", 0).unwrap();
        fs.unmount().unwrap();
        // The root of its map is not valid any more.
        let command = format!("set_inode_field <{victim}> block[0] 0x1234");
        debugfs_write(image.path(), &[command]).unwrap();
        for (nth, (place, call)) in CALLS.into_iter().enumerate() {
            let image = image.copy().unwrap();
            let fs = mount_words(&image, "errors=continue");
            assert_eq!(errno(call(&fs, victim)), 117, "call {nth}");
            fs.unmount().unwrap();
            let (count, found) = noted(&image);
            assert_eq!(count, 1, "call {nth}: {found}");
            assert!(found.ends_with(place), "call {nth}: {found}");
            // With `errors=remount-ro` any of the calls stops further changes.
            let fs = mount_words(&image, "errors=remount-ro");
            assert_eq!(errno(call(&fs, victim)), 117, "call {nth}");
            assert_eq!(errno(fs.create(ROOT, b"other", &OWNER)), 30, "call {nth}");
            fs.unmount().unwrap_err();
        }
        e2fsck_repair(image.path(), &[]).unwrap();
        assert_clean(image.path());
    }
}

#[test]
fn bitmaps_that_are_wrong_are_noted() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs")
    );
    // Without a checksum of its own, a bitmap is compared with the count in its descriptor.
    for features in [&["^metadata_csum"][..], &[]] {
        let (image, _) = broken(features, &[]);
        let bitmap = {
            let fs = open(&image);
            fs.group(GroupNr(0)).unwrap().block_bitmap()
        };
        let file = File::options().write(true).open(image.path()).unwrap();
        // Some free clusters near the end of the 8192.
        let place = bitmap.0 * 4096 + 1000;
        file.write_all_at(&[0x0f], place).unwrap();
        let calls: [Call; 2] = [
            ("mount/trim.rs", |fs, _| fs.trim(&Trim::default()).map(drop)),
            ("file/write.rs", |fs, nr| {
                fs.write_at(nr, &[7; 8192], 8192).map(drop)
            }),
        ];
        for (place, call) in calls {
            let image = image.copy().unwrap();
            let fs = mount_words(&image, "errors=continue");
            let file = fs.lookup(ROOT, b"file").unwrap();
            assert_eq!(errno(call(&fs, file)), 117, "{place}");
            fs.unmount().unwrap();
            let (count, found) = noted(&image);
            assert_eq!(count, 1, "{place}");
            assert!(found.ends_with(place), "{found}");
            assert_repaired(&image);
        }
    }
}

/// Reads the file until the clock of the file system, which advances every few milliseconds, shows
/// another time than when the file was made.
fn access_until_the_time_changes(fs: &Fs, file: InodeNr) {
    let before = fs.stat(file).unwrap().atime;
    while fs.stat(file).unwrap().atime == before {
        fs.accessed(file).unwrap();
    }
}

#[test]
fn every_operation_that_sees_the_journal_fail_notes_it() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs")
    );
    let calls: [(&str, Call); 7] = [
        ("", ("file/sync.rs", |fs, nr| fs.fsync(nr))),
        ("", ("file/sync.rs", |fs, nr| fs.fdatasync(nr))),
        ("", ("file/sync.rs", |fs, _| fs.sync())),
        ("", ("mount/freeze.rs", |fs, _| fs.freeze())),
        ("lazytime", ("file/sync.rs", |fs, nr| fs.fsync(nr))),
        ("lazytime", ("file/sync.rs", |fs, _| fs.sync())),
        ("lazytime", ("mount/freeze.rs", |fs, _| fs.freeze())),
    ];
    for (words, (place, call)) in calls {
        let (image, _) = broken(&[], &[]);
        let faulty = Arc::new(FaultyDevice::new(device(&image)));
        let options = MountOptions::new().parse(words).unwrap();
        let options = options.parse("strictatime").unwrap();
        let fs = Fs::mount(faulty.clone(), &options).unwrap();
        let file = fs.lookup(ROOT, b"file").unwrap();
        let journal = fs.extents(InodeNr::JOURNAL).unwrap()[0];
        let log = (journal.physical.0 + 1) * 4096..(journal.physical.0 + 1000) * 4096;
        faulty.add(Rule::nth(DeviceOp::Write, 1).within(log));
        // Changes only times, or more.
        match words {
            "" => drop(fs.append(file, &[7; 10_000]).unwrap()),
            _ => access_until_the_time_changes(&fs, file),
        }
        assert_eq!(errno(call(&fs, file)), 5, "{words} {place}");
        assert_eq!(errno(call(&fs, file)), 30, "{words} {place}");
        fs.unmount().unwrap_err();
        drop(faulty);
        let (count, found) = noted(&image);
        assert_eq!(count, 1, "{words} {place}");
        assert!(found.ends_with(place), "{words} {place}: {found}");
        mount_words(&image, "").unmount().unwrap();
        assert_repaired(&image);
    }
}

#[test]
fn without_barriers_nothing_is_flushed_until_the_end() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("tune2fs")
    );
    let image = Image::builder(MiB(32)).kind("ext4").make().unwrap();
    let flushes = |options: &MountOptions| {
        let recording = Arc::new(RecordingDevice::new(device_to_read(&image)));
        let fs = Fs::mount(recording.clone(), options).unwrap();
        let before = recording.cuts();
        for number in 0..5_u32 {
            let file = fs
                .create(ROOT, number.to_string().as_bytes(), &OWNER)
                .unwrap();
            fs.write_at(file, b"content", 0).unwrap();
            fs.fsync(file).unwrap();
        }
        let events = recording.events();
        let meanwhile = events[before..].iter().filter(|event| event.is_flush());
        let meanwhile = meanwhile.count();
        fs.unmount().unwrap();
        let at_the_end = recording.events()[events.len()..]
            .iter()
            .any(|event| event.is_flush());
        assert!(at_the_end, "what was unmounted is durable");
        meanwhile
    };
    let plain = MountOptions::new();
    assert!(flushes(&plain) >= 5);
    assert_eq!(flushes(&plain.clone().parse("nobarrier").unwrap()), 0);
    let mut tune = tools::command("tune2fs").unwrap();
    let tune = tune.args(["-o", "nobarrier"]).arg(image.path());
    tools::stdout_of(tune).unwrap();
    assert_eq!(flushes(&plain), 0, "the superblock says so");
    assert!(flushes(&plain.barriers(Barriers::On)) >= 5);
}

/// Reading ahead is a hint: a block that cannot be read hides no name of the blocks in front of it.
#[test]
fn names_in_front_of_a_block_that_cannot_be_read_are_found() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(8)).kind("ext4").block_size_bytes(1024);
    let image = image.features(&["^dir_index"]).make().unwrap();
    let name = |number: u32| format!("{number:0>100}").into_bytes();
    let fs = mount_words(&image, "");
    let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
    for number in 0..40 {
        fs.create(dir, &name(number), &OWNER).unwrap();
    }
    let third = fs.extents(dir).unwrap()[0].physical.0 + 2;
    assert!(fs.extents(dir).unwrap()[0].blocks > 3, "in one piece");
    fs.unmount().unwrap();

    let faulty = Arc::new(FaultyDevice::new(device(&image)));
    let rule = Rule::nth(DeviceOp::Read, 1).within(third * 1024..(third + 1) * 1024);
    faulty.add(rule.and_after());
    let fs = Fs::open(faulty, &fourscore::OpenOptions::new()).unwrap();
    assert!(fs.lookup(dir, &name(0)).is_ok());
    assert!(matches!(
        fs.lookup(dir, &name(39)),
        Err(fourscore::Error::Io(_))
    ));
    let mut listed = 0;
    let all = fs.for_each_entry(dir, |_| {
        listed += 1;
        std::ops::ControlFlow::Continue(())
    });
    assert!(matches!(all, Err(fourscore::Error::Io(_))));
    assert!(listed > 2, "{listed} entries in front of the block");
}

/// A file system with the project quota file and the orphan file, which have ordinary numbers.
fn with_hidden_files() -> (Image, [InodeNr; 2]) {
    let image = Image::builder(MiB(32)).kind("ext4");
    let image = image
        .features(&["quota", "project", "orphan_file"])
        .extended("quotatype=usrquota:grpquota:prjquota");
    let image = image.make().unwrap();
    let fs = open(&image);
    let superblock = fs.superblock();
    let hidden = [
        superblock.quota_inodes().project,
        superblock.orphan_file_inode(),
    ];
    let hidden = hidden.map(Option::unwrap);
    (image, hidden)
}

/// No operation finds a file of the file system's own by a name.
#[test]
fn names_of_hidden_files_are_damage() {
    require_e2fsprogs!();
    let (image, hidden) = with_hidden_files();
    debugfs_write(
        image.path(),
        &hidden.map(|nr| format!("ln <{0}> /x{0}", nr.0)),
    )
    .unwrap();
    let fs = mount_words(&image, "");
    for nr in hidden {
        let name = format!("x{}", nr.0).into_bytes();
        let (from, to) = ((ROOT, &name[..]), (ROOT, &b"new"[..]));
        let results = [
            fs.lookup(ROOT, &name).map(drop),
            fs.lookup_once(ROOT, &name).map(drop),
            fs.unlink(ROOT, &name),
            fs.rename(from, to, Replace::No),
            fs.exchange(from, (ROOT, b"lost+found")),
            OpenInode::named(&*fs, ROOT, &name).map(drop),
        ];
        let found = results.map(|result| result.unwrap_err().errno());
        assert_eq!(found, [117; 6], "EUCLEAN");
        assert_eq!(fs.stat(nr).unwrap().links, 1);
    }
    fs.unmount().unwrap();
}

#[test]
fn a_quota_file_is_no_orphan() {
    require_e2fsprogs!();
    let (image, [quota, _]) = with_hidden_files();
    debugfs_write(image.path(), &[format!("ssv last_orphan {}", quota.0)]).unwrap();
    let refused = common::try_mount(&image, &MountOptions::new()).unwrap_err();
    assert_eq!(refused.errno(), 117, "EUCLEAN");
}
