//! **Purpose.** Tests of flags: what they forbid and make durable, and who may set them.

use super::*;
use crate::abi::{CopyFileRangeIn, FsyncIn, OpenIn};
use fourscore_ondisk::inode::InodeFlags;

const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;
const GETVERSION: u32 = 0x8008_7601;
const SETVERSION: u32 = 0x4008_7602;
const SETFSLABEL: u32 = 0x4100_9432;
const SYNC: u32 = 0x8;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NODUMP: u32 = 0x40;
const JOURNAL_DATA: u32 = 0x4000;
const DIRSYNC: u32 = 0x1_0000;
const O_WRONLY: u32 = 1;
const O_APPEND: u32 = 0o2000;
const O_DSYNC: u32 = 0o10_000;
const O_SYNC: u32 = 0o4_010_000;

fn flags_of(kernel: &mut Kernel<'_>, node: u64) -> u32 {
    let flags = ioctl(kernel, node, GETFLAGS, &[]).expect("known");
    u32::read_from_bytes(&flags).expect("a number")
}

/// Sets flags beside those that the inode has.
fn add_flags(kernel: &mut Kernel<'_>, node: u64, more: u32) -> Result<(), i32> {
    let flags = flags_of(kernel, node) | more;
    ioctl(kernel, node, SETFLAGS, flags.as_bytes()).map(drop)
}

fn open(kernel: &mut Kernel<'_>, node: u64, flags: u32) -> Result<OpenOut, i32> {
    let wanted = OpenIn {
        flags,
        open_flags: 0,
    };
    kernel.request(opcode::OPEN, node, &[wanted.as_bytes()])
}

fn sync(kernel: &mut Kernel<'_>) {
    let all = FsyncIn::default();
    kernel
        .request_raw(opcode::FSYNC, ROOT_ID, &[all.as_bytes()])
        .expect("synced");
}

/// Calls `look` with the file system as it is after a crash at this moment.
fn after_crash<T>(image: &Image, look: impl FnOnce(&Fs) -> T) -> T {
    let copy = Image::copy_of(image.path()).expect("space");
    let fs = mount(&copy);
    let seen = look(&fs);
    fs.unmount().expect("not in use");
    assert_clean(copy.path());
    seen
}

fn content(fs: &Fs, name: &str) -> Vec<u8> {
    let inode = fs.lookup(InodeNr::ROOT, name.as_bytes()).expect("there");
    let mut bytes = vec![0; 100];
    let len = fs.read_at(inode, &mut bytes, 0).expect("read");
    bytes.truncate(len);
    bytes
}

#[test]
fn flags_are_set_and_enforced() {
    with_kernel(|kernel| {
        let file = kernel.create(ROOT_ID, "file", 0o644).expect("made").nodeid;
        kernel.write(file, 0, b"begun", 0).expect("space");
        let flags = ioctl(kernel, file, GETFLAGS, &[]).expect("known");
        let flags = u32::read_from_bytes(&flags).expect("a number");
        ioctl(kernel, file, SETFLAGS, (flags | APPEND).as_bytes()).expect("root may");
        let found = ioctl(kernel, file, FSGETXATTR, &[]).expect("known");
        assert_eq!(
            Fsxattr::read_from_bytes(&found).expect("whole").xflags,
            0x10
        );
        let open = |kernel: &mut Kernel<'_>, flags| {
            let wanted = OpenIn {
                flags,
                open_flags: 0,
            };
            kernel.request::<OpenOut>(opcode::OPEN, file, &[wanted.as_bytes()])
        };
        assert_eq!(open(kernel, O_WRONLY).expect_err("it only grows"), EPERM);
        let opened = open(kernel, O_WRONLY | O_APPEND).expect("it may grow");
        assert_ne!(opened.open_flags & crate::abi::fopen::DIRECT_IO, 0);
        let opened = open(kernel, 0).expect("it may be read");
        assert_eq!(opened.open_flags & crate::abi::fopen::DIRECT_IO, 0);
        assert_eq!(kernel.write(file, 0, b"x", 0), Err(EPERM));
        kernel.write(file, 5, b" and gone on", 0).expect("it grows");
        // Times of an append-only file may be set to now, but not to a chosen time. With the
        // writeback cache the kernel sends now as a value, which is the time of change as well.
        let times = |valid| SetattrIn {
            valid,
            mtime: 1_000_000_000,
            ctime: 1_000_000_000,
            ..SetattrIn::default()
        };
        let chosen = times(fattr::ATIME | fattr::MTIME);
        assert_eq!(kernel.setattr(file, chosen).err(), Some(EPERM));
        let now = times(fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME | fattr::CTIME);
        kernel.setattr(file, now).expect("it is touched");
        let chosen = SetattrIn {
            ctime: 1_000_000_001,
            ..now
        };
        assert_eq!(kernel.setattr(file, chosen).err(), Some(EPERM));
        // Cached writes were permitted when they were made.
        ioctl(kernel, file, SETFLAGS, flags.as_bytes()).expect("root may");
        ioctl(kernel, file, SETFLAGS, (flags | IMMUTABLE).as_bytes()).expect("root may");
        assert_eq!(kernel.setattr(file, now).err(), Some(EPERM));
        assert_eq!(kernel.write(file, 0, b"x", 0), Err(EPERM));
        kernel
            .write(file, 0, b"kept", WRITE_CACHE)
            .expect("it was allowed");
        let chosen = times(fattr::MTIME | fattr::CTIME);
        assert_eq!(kernel.setattr(file, chosen).err(), Some(EPERM));
        let written = times(fattr::MTIME | fattr::CTIME | fattr::FH);
        let found = kernel.setattr(file, written).expect("it was allowed");
        assert_eq!(found.attr.mtime, 1_000_000_000);
        assert_eq!(ioctl(kernel, file, 0x1234, &[]), Err(25));
        assert_eq!(ioctl(kernel, file, SETFLAGS, &[]), Err(22));
    });
}

#[test]
fn statx_reports_all_flags_that_it_defines() {
    // Compressed, immutable, append only, not dumped: STATX_ATTR_* have the numbers of the flags.
    const FLAGS: [u32; 4] = [0x4, 0x10, 0x20, 0x40];
    with_kernel(|kernel| {
        let file = kernel.create(ROOT_ID, "file", 0o644).expect("made").nodeid;
        let others = ioctl(kernel, file, GETFLAGS, &[]).expect("known");
        let others = u32::read_from_bytes(&others).expect("a number");
        for flag in FLAGS {
            ioctl(kernel, file, SETFLAGS, (others | flag).as_bytes()).expect("root may");
            let parts = [StatxIn::default()];
            let found = kernel.request::<StatxOut>(opcode::STATX, file, &[parts.as_bytes()]);
            let found = found.expect("known");
            assert_eq!(found.attributes, u64::from(flag));
            assert_ne!(found.attributes_mask & u64::from(flag), 0);
        }
    });
}

/// The kernel sends no FSYNC after a write with O_SYNC to a file that it writes to directly.
#[test]
fn synchronous_writes_to_append_only_files_are_durable() {
    let image = image();
    with_kernel_of(&image, &SessionOptions::default(), |kernel| {
        let log = kernel.create(ROOT_ID, "log", 0o644).expect("made").nodeid;
        kernel.write(log, 0, b"first.", 0).expect("space");
        add_flags(kernel, log, APPEND).expect("root may");
        sync(kernel);
        let opened = open(kernel, log, O_WRONLY | O_APPEND).expect("it may grow");
        let append = |kernel: &mut Kernel<'_>, offset, data: &[u8], flags| {
            let wanted = WriteIn {
                fh: opened.fh,
                offset,
                size: u32::try_from(data.len()).unwrap(),
                flags: O_WRONLY | O_APPEND | flags,
                ..WriteIn::default()
            };
            let written = kernel.request_raw(opcode::WRITE, log, &[wanted.as_bytes(), data]);
            written.expect("space");
        };
        append(kernel, 6, b"lost if nothing syncs", 0);
        assert_eq!(after_crash(&image, |fs| content(fs, "log")), b"first.");
        append(kernel, 27, b"data.", O_DSYNC);
        let all = b"first.lost if nothing syncsdata.";
        assert_eq!(after_crash(&image, |fs| content(fs, "log")), all);
        append(kernel, 32, b"all.", O_SYNC);
        let all = b"first.lost if nothing syncsdata.all.";
        assert_eq!(after_crash(&image, |fs| content(fs, "log")), all);
    });
}

/// Before Linux 5.13 the kernel passes these ioctls on without any check.
#[test]
fn flags_are_changed_by_those_who_may() {
    with_kernel(|kernel| {
        let file = kernel.create(ROOT_ID, "file", 0o644).expect("made").nodeid;
        let own = SetattrIn {
            valid: fattr::UID,
            uid: 1000,
            ..SetattrIn::default()
        };
        kernel.setattr(file, own).expect("root may");
        let set_fsxattr = |kernel: &mut Kernel<'_>, xflags, projid| {
            let wanted = Fsxattr {
                xflags,
                projid,
                ..Fsxattr::default()
            };
            ioctl(kernel, file, FSSETXATTR, wanted.as_bytes()).map(drop)
        };
        // Another user may change nothing, not even to the values that there are.
        kernel.uid = 1001;
        for more in [0, NODUMP, IMMUTABLE] {
            assert_eq!(add_flags(kernel, file, more), Err(EPERM), "{more:x}");
        }
        assert_eq!(set_fsxattr(kernel, 0, 0), Err(EPERM));
        assert_eq!(set_fsxattr(kernel, 0, 7), Err(EPERM));
        // The owner may change what needs no capability.
        kernel.uid = 1000;
        add_flags(kernel, file, NODUMP).expect("its own");
        set_fsxattr(kernel, 0x80, 0).expect("its own");
        for more in [IMMUTABLE, APPEND, JOURNAL_DATA] {
            assert_eq!(add_flags(kernel, file, more), Err(EPERM), "{more:x}");
        }
        for xflag in [0x8, 0x10] {
            assert_eq!(set_fsxattr(kernel, xflag, 0), Err(EPERM), "{xflag:x}");
        }
        // There are no projects here, and no file has the project that means none.
        assert_eq!(set_fsxattr(kernel, 0x80, 7), Err(95));
        assert_eq!(set_fsxattr(kernel, 0x80, u32::MAX), Err(22));
        kernel.uid = 0;
        add_flags(kernel, file, IMMUTABLE).expect("root may");
        kernel.uid = 1000;
        let flags = flags_of(kernel, file) & !IMMUTABLE;
        let cleared = ioctl(kernel, file, SETFLAGS, flags.as_bytes());
        assert_eq!(cleared.err(), Some(EPERM));
        assert_eq!(set_fsxattr(kernel, 0x80, 0), Err(EPERM));
        kernel.uid = 0;
        set_fsxattr(kernel, 0x80, 0).expect("root may");
        assert_eq!(flags_of(kernel, file) & IMMUTABLE, 0);
    });
}

/// The kernel makes an inode bad if a reply reports another generation than before.
#[test]
fn a_node_keeps_its_generation() {
    let image = Image::builder(MiB(32)).kind("ext4");
    let image = image.features(&["^metadata_csum"]).make().unwrap();
    with_kernel_of(&image, &SessionOptions::default(), |kernel| {
        let made = kernel.create(ROOT_ID, "file", 0o644).expect("made");
        let file = made.nodeid;
        assert_ne!(made.generation, 77);
        for generation in [76_u32, 77] {
            ioctl(kernel, file, SETVERSION, generation.as_bytes()).expect("root may");
            let found = ioctl(kernel, file, GETVERSION, &[]).expect("known");
            assert_eq!(found, generation.as_bytes());
        }
        let link = LinkIn { oldnodeid: file };
        let parts = [link.as_bytes(), b"other\0"];
        let linked: EntryOut = kernel.request(opcode::LINK, ROOT_ID, &parts).expect("made");
        assert_eq!(linked.generation, made.generation);
        let found = kernel.lookup(ROOT_ID, "file").expect("there");
        assert_eq!(found.generation, made.generation);
        // The kernel knows the root by generation 0, whatever its inode has.
        ioctl(kernel, ROOT_ID, SETVERSION, 5_u32.as_bytes()).expect("root may");
        let dir = kernel.mkdir(ROOT_ID, "dir").nodeid;
        let root = kernel.lookup(dir, "..").expect("there");
        assert_eq!((root.nodeid, root.generation), (ROOT_ID, 0));
        // A node that the kernel has forgotten is entered with the new one.
        kernel.forget(file, 3);
        let found = kernel.lookup(ROOT_ID, "file").expect("there");
        assert_eq!(found.generation, 77);
        kernel.forget(file, 1);
        kernel.forget(dir, 1);
    });
    assert_clean(image.path());
}

#[test]
fn with_sync_ioctls_are_durable() {
    let image = Image::builder(MiB(32)).kind("ext4");
    let image = image.features(&["^metadata_csum"]).make().unwrap();
    let options = SessionOptions {
        durability: Durability::Everything,
        ..SessionOptions::default()
    };
    with_kernel_of(&image, &options, |kernel| {
        let file = kernel.create(ROOT_ID, "file", 0o644).expect("made").nodeid;
        let inode = InodeNr(u32::try_from(file).unwrap());
        let stat = |fs: &Fs| fs.stat(inode).expect("there");
        add_flags(kernel, file, NODUMP).expect("root may");
        let after = after_crash(&image, stat);
        assert!(after.flags.contains(InodeFlags::NODUMP_FL));
        ioctl(kernel, file, SETVERSION, 77_u32.as_bytes()).expect("root may");
        assert_eq!(after_crash(&image, stat).generation, 77);
        let wanted = Fsxattr {
            xflags: 0x40,
            ..Fsxattr::default()
        };
        ioctl(kernel, file, FSSETXATTR, wanted.as_bytes()).expect("root may");
        let after = after_crash(&image, stat);
        assert!(after.flags.contains(InodeFlags::NOATIME_FL));
        let mut label = [0_u8; 256];
        label[..4].copy_from_slice(b"name");
        ioctl(kernel, ROOT_ID, SETFSLABEL, &label).expect("root may");
        let found = after_crash(&image, |fs| fs.label().expect("read"));
        assert_eq!(found, b"name");
    });
}

#[test]
fn changes_of_synchronous_inodes_are_durable() {
    let image = image();
    with_kernel_of(&image, &SessionOptions::default(), |kernel| {
        let [file, plain] = ["file", "plain"].map(|name| {
            let node = kernel.create(ROOT_ID, name, 0o644).expect("made").nodeid;
            kernel.write(node, 0, b"begun", 0).expect("space");
            node
        });
        let [dir, other] = ["dir", "other"].map(|name| kernel.mkdir(ROOT_ID, name).nodeid);
        add_flags(kernel, file, SYNC).expect("root may");
        add_flags(kernel, dir, DIRSYNC).expect("root may");
        sync(kernel);
        kernel.write(plain, 5, b" late", 0).expect("space");
        kernel.create(other, "lost", 0o644).expect("made");
        let has = |fs: &Fs, dir: u64, name: &str| {
            let dir = InodeNr(u32::try_from(dir).unwrap());
            fs.lookup(dir, name.as_bytes()).is_ok()
        };
        after_crash(&image, |fs| {
            assert_eq!(content(fs, "plain"), b"begun");
            assert!(!has(fs, other, "lost"));
        });
        kernel.write(file, 5, b" and done", 0).expect("space");
        let found = after_crash(&image, |fs| content(fs, "file"));
        assert_eq!(found, b"begun and done");
        let shorter = SetattrIn {
            valid: fattr::SIZE,
            size: 3,
            ..SetattrIn::default()
        };
        kernel.setattr(file, shorter).expect("ours");
        assert_eq!(after_crash(&image, |fs| content(fs, "file")), b"beg");
        let source = kernel
            .create(ROOT_ID, "source", 0o644)
            .expect("made")
            .nodeid;
        kernel.write(source, 0, b"copied", 0).expect("space");
        let copy = CopyFileRangeIn {
            nodeid_out: file,
            len: 6,
            ..CopyFileRangeIn::default()
        };
        let parts = [copy.as_bytes()];
        kernel
            .request_raw(opcode::COPY_FILE_RANGE, source, &parts)
            .expect("space");
        assert_eq!(after_crash(&image, |fs| content(fs, "file")), b"copied");
        kernel.create(dir, "made", 0o644).expect("made");
        assert!(after_crash(&image, |fs| has(fs, dir, "made")));
        // A rename changes both directories.
        kernel.create(other, "moved", 0o644).expect("made");
        let names = Rename2In {
            newdir: dir,
            ..Rename2In::default()
        };
        let parts = [names.as_bytes(), b"moved\0moved\0"];
        kernel
            .request_raw(opcode::RENAME2, other, &parts)
            .expect("renamed");
        after_crash(&image, |fs| {
            assert!(has(fs, dir, "moved") && !has(fs, other, "moved"));
        });
    });
}

/// A name that is missing now may differ in case from one that is made after `chattr +F`.
#[test]
fn missing_names_are_not_cached_where_directories_may_ignore_case() {
    let image = Image::builder(MiB(32)).kind("ext4").features(&["casefold"]);
    let image = image.make().unwrap();
    with_kernel_of(&image, &SessionOptions::default(), |kernel| {
        let dir = kernel.mkdir(ROOT_ID, "dir").nodeid;
        let found = kernel.lookup(ROOT_ID, "dir").expect("there");
        assert_eq!(found.entry_valid, VALID_SECS);
        let missing = kernel.lookup(dir, "Name").expect("an answer");
        assert_eq!((missing.nodeid, missing.entry_valid), (0, 0));
    });
}
