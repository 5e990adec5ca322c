//! Tests of the server without a kernel: they build requests and parse replies.

mod flags;
mod privileges;

use fourscore::{Fs, InodeNr, MountOptions, NewAttributes, OpenInode};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::abi::{
    AttrOut, CreateIn, Dirent, EntryOut, FallocateIn, Fsxattr, GetxattrIn, IoctlIn, IoctlOut,
    LinkIn, MkdirIn, OpenIn, OpenOut, OutHeader, ROOT_ID, ReadIn, ReleaseIn, Rename2In, SetattrIn,
    SetxattrIn, StatfsOut, StatxIn, StatxOut, WRITE_CACHE, WriteIn, fattr, opcode,
};

const EPERM: i32 = 1;
const EIO: i32 = 5;
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
const ENODATA: i32 = 61;
const ESTALE: i32 = 116;

const OWNER: NewAttributes = NewAttributes::owned_by(0, 0);

fn image() -> Image {
    Image::builder(MiB(32)).kind("ext4").make().unwrap()
}

fn mount(image: &Image) -> Arc<Fs> {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    Fs::mount(Arc::new(device), &MountOptions::new()).unwrap()
}

/// A substitute for the kernel.
struct Kernel<'f> {
    server: Server<'f>,
    reply: Reply,
    uid: u32,
    unique: u64,
}

impl<'f> Kernel<'f> {
    fn new(fs: &'f Fs) -> Self {
        Self::with(fs, &SessionOptions::default())
    }

    fn with(fs: &'f Fs, options: &SessionOptions) -> Self {
        Self {
            server: Server::new(
                fs,
                None,
                Agreed::all(),
                options,
                Box::leak(Box::new(Latencies::new())),
            ),
            reply: Reply::new(1 << 20),
            uid: 0,
            unique: 0,
        }
    }

    /// Sends a request as it is; `None` if it has no reply.
    fn send(&mut self, bytes: &[u8]) -> Option<Result<Vec<u8>, i32>> {
        let request = Request::parse(bytes).expect("a request");
        let answered = self.server.answer(&request, &mut self.reply);
        if matches!(answered, Answered::WithoutReply) {
            return None;
        }
        let slices = self.reply.slices();
        let bytes: Vec<u8> = slices
            .iter()
            .flat_map(|slice| slice.deref().to_vec())
            .collect();
        let (header, body) = OutHeader::read_from_prefix(&bytes).expect("a header");
        assert_eq!(header.len as usize, bytes.len());
        assert_eq!(header.unique, request.header.unique);
        assert!((-511..=0).contains(&header.error));
        assert!(header.error == 0 || body.is_empty());
        Some(match header.error {
            0 => Ok(body.to_vec()),
            error => Err(-error),
        })
    }

    fn bytes(&mut self, opcode: u32, nodeid: u64, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        self.unique += 2;
        let header = InHeader {
            len: u32::try_from(size_of::<InHeader>() + body.len()).unwrap(),
            opcode,
            unique: self.unique,
            nodeid,
            uid: self.uid,
            gid: self.uid,
            ..InHeader::default()
        };
        [header.as_bytes(), &body].concat()
    }

    fn request_raw(&mut self, opcode: u32, nodeid: u64, parts: &[&[u8]]) -> Result<Vec<u8>, i32> {
        let bytes = self.bytes(opcode, nodeid, parts);
        self.send(&bytes).expect("a reply")
    }

    fn request<T: FromBytes>(
        &mut self,
        opcode: u32,
        nodeid: u64,
        parts: &[&[u8]],
    ) -> Result<T, i32> {
        let body = self.request_raw(opcode, nodeid, parts)?;
        Ok(T::read_from_prefix(&body).expect("long enough").0)
    }

    fn lookup(&mut self, dir: u64, name: &str) -> Result<EntryOut, i32> {
        self.request(opcode::LOOKUP, dir, &[name.as_bytes(), b"\0"])
    }

    fn create(&mut self, dir: u64, name: &str, mode: u32) -> Result<EntryOut, i32> {
        let wanted = CreateIn {
            mode: 0o100_000 | mode,
            umask: 0o022,
            ..CreateIn::default()
        };
        let parts = [wanted.as_bytes(), name.as_bytes(), b"\0"];
        self.request(opcode::CREATE, dir, &parts)
    }

    fn mkdir(&mut self, dir: u64, name: &str) -> EntryOut {
        let wanted = MkdirIn {
            mode: 0o755,
            umask: 0,
        };
        let parts = [wanted.as_bytes(), name.as_bytes(), b"\0"];
        self.request(opcode::MKDIR, dir, &parts).expect("made")
    }

    fn unlink(&mut self, dir: u64, name: &str) {
        let parts = [name.as_bytes(), b"\0"];
        self.request_raw(opcode::UNLINK, dir, &parts)
            .expect("removed");
    }

    fn write(&mut self, node: u64, offset: u64, data: &[u8], flags: u32) -> Result<(), i32> {
        let wanted = WriteIn {
            offset,
            size: u32::try_from(data.len()).unwrap(),
            write_flags: flags,
            ..WriteIn::default()
        };
        let parts = [wanted.as_bytes(), data];
        self.request_raw(opcode::WRITE, node, &parts).map(drop)
    }

    fn read(&mut self, node: u64, offset: u64, size: u32) -> Result<Vec<u8>, i32> {
        let wanted = ReadIn {
            offset,
            size,
            ..ReadIn::default()
        };
        self.request_raw(opcode::READ, node, &[wanted.as_bytes()])
    }

    fn setattr(&mut self, node: u64, wanted: SetattrIn) -> Result<AttrOut, i32> {
        self.request(opcode::SETATTR, node, &[wanted.as_bytes()])
    }

    fn forget(&mut self, node: u64, lookups: u64) {
        let bytes = self.bytes(opcode::FORGET, node, &[lookups.as_bytes()]);
        assert_eq!(self.send(&bytes), None);
    }

    fn lookups(&self, node: u64) -> u64 {
        self.server
            .nodes
            .lookups(InodeNr(u32::try_from(node).unwrap()))
    }

    fn statfs(&mut self) -> StatfsOut {
        self.request(opcode::STATFS, 0, &[]).expect("known")
    }

    /// One reply of READDIR or READDIRPLUS: cookie, name and node.
    fn list(
        &mut self,
        opcode: u32,
        dir: u64,
        fh: u64,
        offset: u64,
        size: u32,
    ) -> Vec<(u64, String, u64)> {
        let wanted = ReadIn {
            fh,
            offset,
            size,
            ..ReadIn::default()
        };
        let body = self
            .request_raw(opcode, dir, &[wanted.as_bytes()])
            .expect("listed");
        assert!(body.len() <= size as usize);
        let mut rest = &body[..];
        let mut listed = Vec::new();
        while !rest.is_empty() {
            let mut node = 0;
            if opcode == opcode::READDIRPLUS {
                let (entry, behind) = EntryOut::read_from_prefix(rest).expect("whole");
                (node, rest) = (entry.nodeid, behind);
            }
            let (dirent, behind) = Dirent::read_from_prefix(rest).expect("whole");
            let len = dirent.namelen as usize;
            let name = String::from_utf8(behind[..len].to_vec()).expect("text");
            listed.push((dirent.off, name, node));
            rest = &behind[len.next_multiple_of(8)..];
        }
        listed
    }

    fn opendir(&mut self, dir: u64) -> u64 {
        let opened: OpenOut = self
            .request(opcode::OPENDIR, dir, &[OpenIn::default().as_bytes()])
            .expect("opened");
        opened.fh
    }
}

/// Runs `test` on a new file system, which must be sound afterwards.
fn with_kernel(test: impl FnOnce(&mut Kernel<'_>)) {
    let image = image();
    with_kernel_of(&image, &SessionOptions::default(), test);
    assert_clean(image.path());
}

/// Runs `test` on the file system of an image.
fn with_kernel_of(image: &Image, options: &SessionOptions, test: impl FnOnce(&mut Kernel<'_>)) {
    let fs = mount(image);
    test(&mut Kernel::with(&fs, options));
    // DESTROY has frozen it, if the test sent that.
    let _ = fs.thaw();
    fs.unmount().expect("not in use");
}

#[test]
fn destroy_waits_for_a_growth() {
    let image = image();
    let fs = mount(&image);
    let mut kernel = Kernel::new(&fs);
    kernel.create(ROOT_ID, "file", 0o644).expect("made");
    let bytes = kernel.bytes(opcode::DESTROY, ROOT_ID, &[]);
    let growth = fs.begin_growth().expect("not frozen");
    thread::scope(|scope| {
        let destroyed = scope.spawn(|| {
            let request = Request::parse(&bytes).expect("a request");
            let answered = kernel.server.answer(&request, &mut kernel.reply);
            matches!(answered, Answered::Farewell(Ok(())))
        });
        std::thread::sleep(Duration::from_millis(50));
        drop(growth);
        assert!(destroyed.join().expect("no panic"));
    });
    assert!(fs.begin_growth().is_err(), "it is frozen");
    assert_clean(image.path());
    drop(kernel);
    drop(fs);
}

#[test]
fn destroy_writes_everything_to_the_device() {
    let image = image();
    let fs = mount(&image);
    let mut kernel = Kernel::new(&fs);
    let node = kernel.create(ROOT_ID, "file", 0o644).expect("made").nodeid;
    kernel.write(node, 0, &[7; 50_000], 0).expect("space");
    let unnamed = kernel.create(ROOT_ID, "unnamed", 0o644).expect("made");
    kernel
        .write(unnamed.nodeid, 0, &[7; 50_000], 0)
        .expect("space");
    kernel.unlink(ROOT_ID, "unnamed");
    let bytes = kernel.bytes(opcode::DESTROY, ROOT_ID, &[]);
    let request = Request::parse(&bytes).expect("a request");
    let answered = kernel.server.answer(&request, &mut kernel.reply);
    assert!(matches!(answered, Answered::Farewell(Ok(()))));
    // The file system is not unmounted, but the image is as after an unmount.
    assert_clean(image.path());
    let before = std::fs::read(image.path()).expect("there");
    assert_eq!(kernel.write(node, 0, &[8; 10], 0), Err(EIO));
    kernel.forget(node, 1);
    assert_eq!(kernel.request_raw(opcode::DESTROY, ROOT_ID, &[]), Err(EIO));
    drop(kernel);
    drop(fs);
    assert!(std::fs::read(image.path()).expect("there") == before);
}

/// The kernel may end a mount while other workers still process FORGET requests; their inodes must
/// be freed before the file system is frozen.
#[test]
fn forgetting_all_waits_for_inodes_that_are_being_closed() {
    let image = image();
    let fs = mount(&image);
    let nodes = Nodes::new(&fs);
    for number in 0..100 {
        let name = number.to_string();
        let open = OpenInode::created(&*fs, InodeNr::ROOT, name.as_bytes(), &OWNER).expect("space");
        let inode = open.inode();
        fs.write_at(inode, &[7; 50_000], 0).expect("space");
        fs.unlink(InodeNr::ROOT, name.as_bytes()).expect("there");
        nodes.enter(open);
        thread::scope(|scope| {
            scope.spawn(|| nodes.forget(inode, 1));
            while nodes.lookups(inode) > 0 {
                thread::yield_now();
            }
            nodes.forget_all();
            assert!(fs.stat(inode).is_err(), "the inode still exists");
        });
    }
    drop(nodes);
    fs.unmount().expect("not in use");
    assert_clean(image.path());
}

/// The kernel may forget an inode long after it has released the file.
#[test]
fn releasing_a_file_gives_back_what_is_preallocated() {
    let image = image();
    let fs = mount(&image);
    let discards_nothing = || {
        let stats = fs.stats().mount.expect("mounted").allocator.to_string();
        stats.contains("\tdiscarded: 0\n")
    };
    let mut kernel = Kernel::new(&fs);
    let file = kernel.create(ROOT_ID, "file", 0o644).expect("made").nodeid;
    kernel.write(file, 0, &[7; 100_000], 0).expect("space");
    let mut release = |flags| {
        let released = ReleaseIn {
            flags,
            ..ReleaseIn::default()
        };
        let ended = kernel.request_raw(opcode::RELEASE, file, &[released.as_bytes()]);
        ended.expect("open");
    };
    let (to_read, to_read_and_write) = (0, 2);
    release(to_read);
    assert!(discards_nothing());
    release(to_read_and_write);
    assert!(!discards_nothing());
    drop(kernel);
    fs.unmount().expect("not in use");
    assert_clean(image.path());
}

#[test]
fn lookup_counts_are_exact() {
    with_kernel(|kernel| {
        let dir = kernel.mkdir(ROOT_ID, "dir").nodeid;
        let file = kernel.create(dir, "file", 0o644).expect("made").nodeid;
        assert_eq!((kernel.lookups(dir), kernel.lookups(file)), (1, 1));
        for _ in 0..3 {
            assert_eq!(kernel.lookup(dir, "file").expect("found").nodeid, file);
        }
        let link = LinkIn { oldnodeid: file };
        let parts = [link.as_bytes(), b"other\0"];
        let linked: EntryOut = kernel
            .request(opcode::LINK, ROOT_ID, &parts)
            .expect("linked");
        assert_eq!((linked.nodeid, linked.attr.nlink), (file, 2));
        assert_eq!(kernel.lookups(file), 5);
        // A missing name is not an error, but a negative entry.
        let missing = kernel.lookup(dir, "missing").expect("an answer");
        assert_eq!((missing.nodeid, missing.entry_valid), (0, VALID_SECS));
        // The root is not counted.
        kernel.forget(ROOT_ID, 1);
        assert!(kernel.lookup(ROOT_ID, "dir").is_ok());
        kernel.forget(file, 4);
        assert_eq!(kernel.lookups(file), 1);
        let gone: [u64; 4] = [dir, 2, file, 1];
        let batch = [
            BatchForgetIn { count: 2, dummy: 0 }.as_bytes(),
            gone.as_bytes(),
        ]
        .concat();
        let bytes = kernel.bytes(opcode::BATCH_FORGET, 0, &[&batch]);
        assert_eq!(kernel.send(&bytes), None);
        assert_eq!((kernel.lookups(dir), kernel.lookups(file)), (0, 0));
        // A reply that does not arrive does not count.
        kernel.lookup(dir, "file").expect("found");
        kernel.server.undo_lookups(&mut kernel.reply);
        assert_eq!(kernel.lookups(file), 0);
    });
}

#[test]
fn a_removed_file_exists_until_it_is_forgotten() {
    with_kernel(|kernel| {
        let before = kernel.statfs();
        let file = kernel.create(ROOT_ID, "file", 0o600).expect("made").nodeid;
        kernel.write(file, 0, &[7; 10_000], 0).expect("space");
        kernel.unlink(ROOT_ID, "file");
        assert_eq!(kernel.lookup(ROOT_ID, "file").expect("an answer").nodeid, 0);
        kernel.write(file, 10_000, b"more", 0).expect("still there");
        assert_eq!(kernel.read(file, 9_999, 100).expect("there"), b"\x07more");
        assert!(kernel.statfs().ffree < before.ffree);
        kernel.forget(file, 1);
        assert_eq!(kernel.statfs().ffree, before.ffree);
        // Its number is stale, also for a lookup by file handle.
        assert_eq!(kernel.lookup(file, ".").expect_err("gone"), ESTALE);
        assert_eq!(kernel.read(file, 0, 1), Err(ENOENT));
        // A file that never had a name.
        let wanted = CreateIn {
            mode: 0o100_600,
            ..CreateIn::default()
        };
        let parts = [wanted.as_bytes(), b"#1\0"];
        let made: EntryOut = kernel
            .request(opcode::TMPFILE, ROOT_ID, &parts)
            .expect("made");
        assert_eq!(made.attr.nlink, 0);
        kernel.write(made.nodeid, 0, b"x", 0).expect("space");
        kernel.forget(made.nodeid, 1);
        assert_eq!(kernel.statfs().ffree, before.ffree);
        // A lookup by number, while the file exists.
        let file = kernel.create(ROOT_ID, "again", 0o600).expect("made");
        let found = kernel.lookup(file.nodeid, ".").expect("there");
        assert_eq!(
            (found.nodeid, found.generation),
            (file.nodeid, file.generation)
        );
    });
}

#[test]
fn cookies_stay_valid_across_changes() {
    const NAMES: usize = 700;
    with_kernel(|kernel| {
        let dir = kernel.mkdir(ROOT_ID, "dir").nodeid;
        let name = |number: usize| format!("a name {number}");
        for number in 0..NAMES {
            let made = kernel.create(dir, &name(number), 0o644).expect("made");
            kernel.forget(made.nodeid, 1);
        }
        let handle = kernel.opendir(dir);
        let (mut seen, mut cookies) = (BTreeMap::new(), BTreeSet::from([0]));
        let (mut at, mut rounds) = (0, 0);
        for round in 0.. {
            // Another open directory continues at the same cookie.
            let handle = if round % 2 == 0 {
                handle
            } else {
                kernel.opendir(dir)
            };
            let listed = kernel.list(opcode::READDIR, dir, handle, at, 1 << 10);
            let Some(last) = listed.last() else { break };
            at = last.0;
            for (cookie, name, _) in listed {
                assert!(cookie > *cookies.last().expect("one"), "in order");
                cookies.insert(cookie);
                *seen.entry(name).or_insert(0) += 1;
            }
            rounds = round + 1;
            kernel.unlink(dir, &name(NAMES - rounds));
            let made = kernel
                .create(dir, &format!("new {round}"), 0o644)
                .expect("made");
            kernel.forget(made.nodeid, 1);
        }
        let untouched = (0..NAMES - rounds).map(name);
        for name in untouched.chain([".".into(), "..".into()]) {
            assert_eq!(seen.get(&name), Some(&1), "{name}");
        }
        assert!(seen.values().all(|&times| times == 1));
        // From the start again: all names that exist now.
        let again = kernel.list(opcode::READDIR, dir, handle, 0, 1 << 19);
        assert_eq!(again.len(), NAMES + 2);
        let released = ReleaseIn {
            fh: handle,
            ..ReleaseIn::default()
        };
        kernel
            .request_raw(opcode::RELEASEDIR, dir, &[released.as_bytes()])
            .expect("open");
        let wanted = ReadIn {
            fh: handle,
            ..ReadIn::default()
        };
        assert!(
            kernel
                .request_raw(opcode::READDIR, dir, &[wanted.as_bytes()])
                .is_err()
        );
    });
}

#[test]
fn readdirplus_returns_the_inodes_to_which_names_refer_now() {
    with_kernel(|kernel| {
        let dir = kernel.mkdir(ROOT_ID, "dir").nodeid;
        let mut nodes = BTreeMap::new();
        for name in ["one", "two", "three", "four"] {
            let node = kernel.create(dir, name, 0o644).expect("made").nodeid;
            nodes.insert(name.to_owned(), node);
        }
        let handle = kernel.opendir(dir);
        // Makes the listing, and reads only the dots.
        let dots = kernel.list(opcode::READDIRPLUS, dir, handle, 0, 340);
        assert_eq!(dots.len(), 2);
        assert!(dots.iter().all(|(_, _, node)| *node == 0));
        // Meanwhile one name is removed and another one refers to a different inode.
        kernel.unlink(dir, "one");
        let names = Rename2In {
            newdir: dir,
            ..Rename2In::default()
        };
        let parts = [names.as_bytes(), b"two\0three\0"];
        kernel
            .request_raw(opcode::RENAME2, dir, &parts)
            .expect("renamed");
        let listed = kernel.list(opcode::READDIRPLUS, dir, handle, dots[1].0, 4096);
        let listed: BTreeMap<_, _> = listed
            .into_iter()
            .map(|(_, name, node)| (name, node))
            .collect();
        let expected = [("three", nodes["two"]), ("four", nodes["four"])];
        let expected = expected.map(|(name, node)| (name.to_owned(), node));
        assert_eq!(listed, BTreeMap::from(expected));
        assert_eq!(
            (kernel.lookups(nodes["two"]), kernel.lookups(nodes["four"])),
            (2, 2)
        );
    });
}

#[test]
fn set_id_bits_are_cleared_when_necessary() {
    with_kernel(|kernel| {
        let file = kernel.create(ROOT_ID, "file", 0o6755).expect("made");
        assert_eq!(file.attr.mode, 0o106_755);
        let file = file.nodeid;
        let mode = |kernel: &mut Kernel<'_>| {
            let attr: AttrOut = kernel.request(opcode::GETATTR, file, &[]).expect("there");
            attr.attr.mode & 0o7777
        };
        let again = |kernel: &mut Kernel<'_>| {
            let wanted = SetattrIn {
                valid: fattr::MODE,
                mode: 0o6755,
                ..SetattrIn::default()
            };
            kernel.setattr(file, wanted).expect("ours");
        };
        kernel.write(file, 0, b"by root", 0).expect("space");
        kernel
            .write(file, 0, b"kept back", WRITE_CACHE)
            .expect("space");
        assert_eq!(mode(kernel), 0o6755);
        kernel
            .write(file, 0, b"by others", crate::abi::WRITE_KILL_SUIDGID)
            .expect("space");
        assert_eq!(mode(kernel), 0o755);
        again(kernel);
        let shorter = SetattrIn {
            valid: fattr::SIZE | fattr::KILL_SUIDGID,
            size: 3,
            ..SetattrIn::default()
        };
        let found = kernel.setattr(file, shorter).expect("ours");
        assert_eq!((found.attr.mode & 0o7777, found.attr.size), (0o755, 3));
        again(kernel);
        let given = SetattrIn {
            valid: fattr::UID | fattr::KILL_SUIDGID,
            uid: 1000,
            ..SetattrIn::default()
        };
        let found = kernel.setattr(file, given).expect("root may");
        assert_eq!((found.attr.mode & 0o7777, found.attr.uid), (0o755, 1000));
        // For a chown(2) that changes nothing the kernel sends only a ctime.
        again(kernel);
        let same = SetattrIn {
            valid: fattr::CTIME,
            ..SetattrIn::default()
        };
        let found = kernel.setattr(file, same).expect("root may");
        assert_eq!((found.attr.mode & 0o7777, found.attr.uid), (0o755, 1000));
        again(kernel);
        kernel.uid = 7;
        let found = kernel.setattr(file, same).expect("an empty change");
        assert_eq!(found.attr.mode & 0o7777, 0o6755);
        kernel.uid = 1000;
        let longer = FallocateIn {
            length: 8192,
            ..FallocateIn::default()
        };
        kernel
            .request_raw(opcode::FALLOCATE, file, &[longer.as_bytes()])
            .expect("space");
        assert_eq!(mode(kernel), 0o755);
    });
}

fn ioctl(kernel: &mut Kernel<'_>, node: u64, cmd: u32, data: &[u8]) -> Result<Vec<u8>, i32> {
    let wanted = IoctlIn {
        cmd,
        in_size: u32::try_from(data.len()).unwrap(),
        ..IoctlIn::default()
    };
    let found = kernel.request_raw(opcode::IOCTL, node, &[wanted.as_bytes(), data])?;
    Ok(found[size_of::<IoctlOut>()..].to_vec())
}

#[test]
fn opening_to_read_is_an_access() {
    // open(2) of a 64-bit program always sets this one.
    const O_LARGEFILE: u32 = 0o100_000;
    const O_NOATIME: u32 = 0o1_000_000;
    const O_RDWR: u32 = 2;
    const OLD: u64 = 1_000_000_000;
    with_kernel(|kernel| {
        let file = kernel.create(ROOT_ID, "file", 0o644).expect("made").nodeid;
        let mut is_noted = |flags| {
            let old = SetattrIn {
                valid: fattr::ATIME,
                atime: OLD,
                ..SetattrIn::default()
            };
            kernel.setattr(file, old).expect("ours");
            let wanted = OpenIn {
                flags,
                open_flags: 0,
            };
            let parts = [wanted.as_bytes()];
            kernel
                .request::<OpenOut>(opcode::OPEN, file, &parts)
                .expect("opened");
            let found = kernel.request::<AttrOut>(opcode::GETATTR, file, &[&[0; 16]]);
            found.expect("known").attr.atime != OLD
        };
        assert!(is_noted(O_LARGEFILE));
        // An open for reading and writing may be for writing only, and the kernel opens files for
        // its own ioctls with no flag at all.
        for flags in [0, O_LARGEFILE | O_RDWR, O_LARGEFILE | O_NOATIME] {
            assert!(!is_noted(flags), "{flags:o}");
        }
    });
}

#[test]
fn xattrs_are_returned_if_the_buffer_is_long_enough() {
    with_kernel(|kernel| {
        let file = kernel.create(ROOT_ID, "file", 0o644).expect("made").nodeid;
        for name in [&b"user.one\0"[..], b"trusted.two\0"] {
            let wanted = SetxattrIn {
                size: 5,
                ..SetxattrIn::default()
            };
            let parts = [wanted.as_bytes(), name, b"value"];
            kernel
                .request_raw(opcode::SETXATTR, file, &parts)
                .expect("space");
        }
        let ask = |kernel: &mut Kernel<'_>, opcode, size, name: &[u8]| {
            let wanted = GetxattrIn { size, padding: 0 };
            kernel.request_raw(opcode, file, &[wanted.as_bytes(), name])
        };
        let get = opcode::GETXATTR;
        assert_eq!(
            ask(kernel, get, 0, b"user.one\0"),
            Ok(vec![5, 0, 0, 0, 0, 0, 0, 0])
        );
        assert_eq!(ask(kernel, get, 5, b"user.one\0"), Ok(b"value".to_vec()));
        assert_eq!(ask(kernel, get, 4, b"user.one\0"), Err(34));
        assert_eq!(ask(kernel, get, 9, b"user.no\0"), Err(ENODATA));
        let list = opcode::LISTXATTR;
        let all = ask(kernel, list, 100, b"").expect("space");
        assert_eq!(all.split(|&byte| byte == 0).count(), 3);
        kernel.uid = 1000;
        assert_eq!(ask(kernel, list, 100, b""), Ok(b"user.one\0".to_vec()));
        let parts = [&b"user.one\0"[..]];
        kernel
            .request_raw(opcode::REMOVEXATTR, file, &parts)
            .expect("there");
        assert_eq!(ask(kernel, get, 9, b"user.one\0"), Err(ENODATA));
    });
}

#[test]
fn unsupported_operations_and_bad_nodes_are_errors() {
    with_kernel(|kernel| {
        // LSEEK, FLUSH, ACCESS, INTERRUPT, BMAP, POLL, and unknown opcodes.
        for opcode in [46, 25, 34, 36, 37, 40, 4095] {
            let parts = [&[0; 64][..]];
            assert_eq!(
                kernel.request_raw(opcode, ROOT_ID, &parts),
                Err(ENOSYS),
                "{opcode}"
            );
        }
        assert_eq!(
            kernel.request_raw(opcode::INTERRUPT, 0, &[&[0; 8]]),
            Err(ENOSYS)
        );
        // Nodes that no inode can have, reserved ones among them.
        for node in [0, 2, 5, 8, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(
                kernel.request_raw(opcode::GETATTR, node, &[]),
                Err(ESTALE),
                "{node}"
            );
        }
    });
}

/// The root, possible inodes, and impossible node ids.
fn node() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, 1, 2, 11, 12, 13, 14, 1 << 40])
}

/// Bytes that make names, small numbers and large ones.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop::sample::select(vec![0_u8, 1, 2, 12, b'a', b'/', 0xff]);
    prop::collection::vec(byte, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Every request gets a well-formed reply, and leaves a consistent file system.
    #[test]
    fn any_bytes_are_answered(
        requests in prop::collection::vec((0_u32..56, node(), body()), 0..60)
    ) {
        with_kernel(|kernel| {
            let _ = kernel.create(ROOT_ID, "a", 0o644);
            let _ = kernel.mkdir(ROOT_ID, "aa");
            for (opcode, node, body) in requests {
                let bytes = kernel.bytes(opcode, node, &[&body]);
                let _ = kernel.send(&bytes);
            }
        });
    }

    #[test]
    fn malformed_requests_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let claimed = bytes.get(..4).map(|len| u32::read_from_bytes(len).unwrap() as usize);
        let is_whole = bytes.len() >= size_of::<InHeader>() && claimed == Some(bytes.len());
        prop_assert_eq!(Request::parse(&bytes).is_some(), is_whole);
    }
}
