//! docs/ERRNO.md: each row is reproduced, by us and by the kernel on a twin.

mod cases;

use fourscore::{AttributeChange, FileType, Follow, Fs, InodeNr, Replace, Result, SetXattr};
use fourscore_ondisk::inode::{DeviceNr, InodeFlags};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use rustix::fs::{AtFlags, CWD, IFlags, RenameFlags, XattrFlags};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cases::anywhere::{anywhere, variant, variants};
use cases::{COPIES, FILES, FLAGS, WHOLE};

use crate::common::{OWNER, Populated, ROOT, image, mount, open, require_kernel};

const LONG: &[u8] = &[b'n'; 256];
/// The first byte offset that a file with 4 KiB blocks cannot have.
const END_BYTES: u64 = u32::MAX as u64 * 4096;

const NAMES: [(i32, &str); 27] = [
    (1, "EPERM"),
    (2, "ENOENT"),
    (5, "EIO"),
    (7, "E2BIG"),
    (9, "EBADF"),
    (13, "EACCES"),
    (16, "EBUSY"),
    (17, "EEXIST"),
    (18, "EXDEV"),
    (20, "ENOTDIR"),
    (21, "EISDIR"),
    (22, "EINVAL"),
    (27, "EFBIG"),
    (28, "ENOSPC"),
    (30, "EROFS"),
    (31, "EMLINK"),
    (34, "ERANGE"),
    (36, "ENAMETOOLONG"),
    (39, "ENOTEMPTY"),
    (40, "ELOOP"),
    (61, "ENODATA"),
    (75, "EOVERFLOW"),
    (84, "EILSEQ"),
    (95, "EOPNOTSUPP"),
    (117, "EUCLEAN"),
    (122, "EDQUOT"),
    (126, "ENOKEY"),
];

type Ours = fn(&Fs) -> Result<()>;
type Theirs = fn(&Path) -> std::io::Result<()>;

/// An operation, the condition under which it fails, and how to make it fail.
type Case = (&'static str, &'static str, Ours, Option<Theirs>);

fn at(fs: &Fs, path: &str) -> InodeNr {
    fs.resolve(path.as_bytes(), Follow::No).unwrap()
}

fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

fn open_write(path: &Path) -> std::io::Result<File> {
    std::fs::OpenOptions::new().write(true).open(path)
}

fn set_xattr(path: &Path, name: &[u8], len: usize, flags: XattrFlags) -> std::io::Result<()> {
    Ok(rustix::fs::lsetxattr(path, os(name), &vec![1; len], flags)?)
}

const PATHS: [Case; 8] = [
    (
        "resolve",
        "a component is missing",
        |fs| fs.resolve(b"no/x", Follow::Yes).map(drop),
        Some(|root| root.join("no/x").metadata().map(drop)),
    ),
    (
        "resolve",
        "a component is no directory",
        |fs| fs.resolve(b"file/x", Follow::Yes).map(drop),
        Some(|root| root.join("file/x").metadata().map(drop)),
    ),
    (
        "resolve",
        "more than 40 links",
        |fs| fs.resolve(b"loop", Follow::Yes).map(drop),
        Some(|root| root.join("loop").metadata().map(drop)),
    ),
    (
        "resolve",
        "a name of more than 255 bytes",
        |fs| fs.resolve(LONG, Follow::Yes).map(drop),
        Some(|root| root.join(os(LONG)).metadata().map(drop)),
    ),
    (
        "read",
        "a directory",
        |fs| fs.read_at(ROOT, &mut [0], 0).map(drop),
        Some(|root| {
            rustix::io::read(File::open(root)?, &mut [0_u8; 1])
                .map(drop)
                .map_err(Into::into)
        }),
    ),
    (
        "read_link",
        "no symbolic link",
        |fs| fs.read_link(at(fs, "file")).map(drop),
        Some(|root| std::fs::read_link(root.join("file")).map(drop)),
    ),
    (
        "for_each_entry",
        "no directory",
        |fs| fs.for_each_entry(at(fs, "file"), |_| std::ops::ControlFlow::Continue(())),
        Some(|root| std::fs::read_dir(root.join("file")).map(drop)),
    ),
    (
        "stat",
        "the inode was deleted",
        |fs| {
            let file = fs.create(ROOT, b"deleted", &OWNER)?;
            fs.unlink(ROOT, b"deleted")?;
            fs.stat(file).map(drop)
        },
        None,
    ),
];

const NEW_NAMES: [Case; 12] = [
    (
        "create",
        "the name is taken",
        |fs| fs.create(ROOT, b"file", &OWNER).map(drop),
        Some(|root| File::create_new(root.join("file")).map(drop)),
    ),
    (
        "create",
        "in what is no directory",
        |fs| fs.create(at(fs, "file"), b"x", &OWNER).map(drop),
        Some(|root| File::create_new(root.join("file/x")).map(drop)),
    ),
    (
        "create",
        "a name of more than 255 bytes",
        |fs| fs.create(ROOT, LONG, &OWNER).map(drop),
        Some(|root| File::create_new(root.join(os(LONG))).map(drop)),
    ),
    (
        "create",
        "in an immutable directory",
        |fs| fs.create(at(fs, "kept"), b"x", &OWNER).map(drop),
        Some(|root| File::create_new(root.join("kept/x")).map(drop)),
    ),
    (
        "mkdir",
        "the name is taken",
        |fs| fs.mkdir(ROOT, b"file", &OWNER).map(drop),
        Some(|root| std::fs::create_dir(root.join("file"))),
    ),
    (
        "symlink",
        "an empty target",
        |fs| fs.symlink(ROOT, b"x", b"", &OWNER).map(drop),
        Some(|root| std::os::unix::fs::symlink("", root.join("x"))),
    ),
    (
        "symlink",
        "a target of a block or more",
        |fs| fs.symlink(ROOT, b"x", &[b't'; 4096], &OWNER).map(drop),
        Some(|root| std::os::unix::fs::symlink(os(&[b't'; 4096]), root.join("x"))),
    ),
    (
        "mknod",
        "a directory or a link",
        |fs| {
            let device = DeviceNr { major: 0, minor: 0 };
            fs.mknod(ROOT, b"x", FileType::Symlink, device, &OWNER)
                .map(drop)
        },
        None,
    ),
    (
        "link",
        "a directory",
        |fs| fs.link(at(fs, "dir"), ROOT, b"x"),
        Some(|root| std::fs::hard_link(root.join("dir"), root.join("x"))),
    ),
    (
        "link",
        "the name is taken",
        |fs| fs.link(at(fs, "file"), ROOT, b"dir"),
        Some(|root| std::fs::hard_link(root.join("file"), root.join("dir"))),
    ),
    (
        "link",
        "the name is taken, whatever may be linked",
        |fs| fs.link(at(fs, "grows"), ROOT, b"dir"),
        Some(|root| std::fs::hard_link(root.join("grows"), root.join("dir"))),
    ),
    (
        "link",
        "immutable, or only grows",
        |fs| fs.link(at(fs, "grows"), ROOT, b"x"),
        Some(|root| std::fs::hard_link(root.join("grows"), root.join("x"))),
    ),
];

const NO_NAMES: [Case; 19] = [
    (
        "unlink",
        "the name is missing",
        |fs| fs.unlink(ROOT, b"no"),
        Some(|root| std::fs::remove_file(root.join("no"))),
    ),
    (
        "unlink",
        "a directory",
        |fs| fs.unlink(ROOT, b"dir"),
        Some(|root| {
            Ok(rustix::fs::unlinkat(
                CWD,
                root.join("dir"),
                AtFlags::empty(),
            )?)
        }),
    ),
    (
        "unlink",
        "immutable, or only grows",
        |fs| fs.unlink(ROOT, b"grows"),
        Some(|root| std::fs::remove_file(root.join("grows"))),
    ),
    (
        "unlink",
        "from a directory that only grows",
        |fs| fs.unlink(at(fs, "log"), b"below"),
        Some(|root| std::fs::remove_file(root.join("log/below"))),
    ),
    (
        "rmdir",
        "the directory has entries",
        |fs| fs.rmdir(ROOT, b"dir"),
        Some(|root| std::fs::remove_dir(root.join("dir"))),
    ),
    (
        "rmdir",
        "no directory",
        |fs| fs.rmdir(ROOT, b"file"),
        Some(|root| std::fs::remove_dir(root.join("file"))),
    ),
    (
        "rmdir",
        "`.`",
        |fs| fs.rmdir(at(fs, "dir"), b"."),
        Some(|root| {
            Ok(rustix::fs::unlinkat(
                CWD,
                root.join("dir/."),
                AtFlags::REMOVEDIR,
            )?)
        }),
    ),
    (
        "rmdir",
        "`..`",
        |fs| fs.rmdir(at(fs, "dir"), b".."),
        Some(|root| {
            Ok(rustix::fs::unlinkat(
                CWD,
                root.join("dir/.."),
                AtFlags::REMOVEDIR,
            )?)
        }),
    ),
    (
        "rename",
        "the old name is missing",
        |fs| fs.rename((ROOT, b"no"), (ROOT, b"x"), Replace::Yes),
        Some(|root| std::fs::rename(root.join("no"), root.join("x"))),
    ),
    (
        "rename",
        "the new name is taken, with `Replace::No`",
        |fs| fs.rename((ROOT, b"file"), (ROOT, b"link"), Replace::No),
        Some(|root| {
            Ok(rustix::fs::renameat_with(
                CWD,
                root.join("file"),
                CWD,
                root.join("link"),
                RenameFlags::NOREPLACE,
            )?)
        }),
    ),
    (
        "rename",
        "a directory below itself",
        |fs| fs.rename((ROOT, b"dir"), (at(fs, "dir"), b"x"), Replace::Yes),
        Some(|root| std::fs::rename(root.join("dir"), root.join("dir/x"))),
    ),
    (
        "rename",
        "a directory over what is none",
        |fs| fs.rename((ROOT, b"empty"), (ROOT, b"file"), Replace::Yes),
        Some(|root| std::fs::rename(root.join("empty"), root.join("file"))),
    ),
    (
        "rename",
        "over a directory what is none",
        |fs| fs.rename((ROOT, b"file"), (ROOT, b"empty"), Replace::Yes),
        Some(|root| std::fs::rename(root.join("file"), root.join("empty"))),
    ),
    (
        "rename",
        "a file over a directory that it lies in",
        |fs| {
            let dir = at(fs, "dir");
            fs.create(dir, b"inner", &OWNER)?;
            let renamed = fs.rename((dir, b"inner"), (ROOT, b"dir"), Replace::Yes);
            fs.unlink(dir, b"inner")?;
            renamed
        },
        Some(|root| {
            let inner = root.join("dir/inner");
            std::fs::write(&inner, "")?;
            let renamed = std::fs::rename(&inner, root.join("dir"));
            std::fs::remove_file(&inner)?;
            renamed
        }),
    ),
    (
        "rename",
        "over a directory with entries",
        |fs| fs.rename((ROOT, b"empty"), (ROOT, b"dir"), Replace::Yes),
        Some(|root| std::fs::rename(root.join("empty"), root.join("dir"))),
    ),
    (
        "rename",
        "`.` or `..`",
        |fs| fs.rename((at(fs, "dir"), b"."), (ROOT, b"x"), Replace::Yes),
        Some(|root| std::fs::rename(root.join("dir/."), root.join("x"))),
    ),
    (
        "rename",
        "immutable, or only grows",
        |fs| fs.rename((ROOT, b"grows"), (ROOT, b"x"), Replace::Yes),
        Some(|root| std::fs::rename(root.join("grows"), root.join("x"))),
    ),
    (
        "rename",
        "a name of more than 255 bytes",
        |fs| fs.rename((ROOT, b"file"), (ROOT, LONG), Replace::Yes),
        Some(|root| std::fs::rename(root.join("file"), root.join(os(LONG)))),
    ),
    (
        "rename",
        "the old name is missing, and the new one has more than 255 bytes",
        |fs| fs.rename((ROOT, b"none"), (ROOT, LONG), Replace::Yes),
        Some(|root| std::fs::rename(root.join("none"), root.join(os(LONG)))),
    ),
];

const CONTENT: [Case; 9] = [
    (
        "write_at",
        "a directory",
        |fs| fs.write_at(ROOT, b"x", 0).map(drop),
        Some(|root| open_write(root).map(drop)),
    ),
    (
        "write_at",
        "past the largest file",
        |fs| fs.write_at(at(fs, "file"), b"x", END_BYTES).map(drop),
        Some(|root| {
            Ok(rustix::io::pwrite(open_write(&root.join("file"))?, b"x", END_BYTES).map(drop)?)
        }),
    ),
    (
        "write_at",
        "immutable",
        |fs| fs.write_at(at(fs, "frozen"), b"x", 0).map(drop),
        Some(|root| open_write(&root.join("frozen")).map(drop)),
    ),
    (
        "write_at",
        "before the end of what only grows",
        |fs| fs.write_at(at(fs, "grows"), b"x", 0).map(drop),
        Some(|root| open_write(&root.join("grows")).map(drop)),
    ),
    (
        "write_at",
        "no file",
        |fs| fs.write_at(at(fs, "fifo"), b"x", 0).map(drop),
        None,
    ),
    (
        "truncate",
        "a directory",
        |fs| fs.truncate(ROOT, 0),
        Some(|root| open_write(root)?.set_len(0)),
    ),
    (
        "truncate",
        "past the largest file",
        |fs| fs.truncate(at(fs, "file"), END_BYTES + 1),
        Some(|root| open_write(&root.join("file"))?.set_len(END_BYTES + 1)),
    ),
    (
        "truncate",
        "only grows",
        |fs| fs.truncate(at(fs, "grows"), 0),
        Some(|root| open_write(&root.join("grows"))?.set_len(0)),
    ),
    (
        "write_at",
        "no free blocks",
        |fs| {
            let file = fs.create(ROOT, b"large", &OWNER)?;
            let full = fs.write_all_at(file, &vec![1; 100 << 20], 0);
            fs.unlink(ROOT, b"large")?;
            full
        },
        Some(|root| {
            let full = File::create(root.join("large"))?.write_all(&vec![1; 100 << 20]);
            std::fs::remove_file(root.join("large"))?;
            full
        }),
    ),
];

const ATTRIBUTES: [Case; 17] = [
    (
        "set_attributes",
        "immutable, or only grows",
        |fs| fs.set_attributes(at(fs, "grows"), &MODE),
        Some(|root| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            std::fs::set_permissions(root.join("grows"), mode)
        }),
    ),
    (
        "xattr",
        "the attribute is missing",
        |fs| fs.xattr(at(fs, "file"), b"user.no").map(drop),
        Some(|root| {
            Ok(
                rustix::fs::lgetxattr(root.join("file"), "user.no", &mut [0_u8; 9][..])
                    .map(drop)?,
            )
        }),
    ),
    (
        "xattr",
        "no namespace that is known",
        |fs| fs.xattr(at(fs, "file"), b"other.x").map(drop),
        Some(|root| {
            Ok(
                rustix::fs::lgetxattr(root.join("file"), "other.x", &mut [0_u8; 9][..])
                    .map(drop)?,
            )
        }),
    ),
    (
        "set_xattr",
        "it is there, with `SetXattr::Create`",
        |fs| set(fs, "file", b"user.a", 1, SetXattr::Create),
        Some(|root| set_xattr(&root.join("file"), b"user.a", 1, XattrFlags::CREATE)),
    ),
    (
        "set_xattr",
        "it is missing, with `SetXattr::Replace`",
        |fs| set(fs, "file", b"user.b", 1, SetXattr::Replace),
        Some(|root| set_xattr(&root.join("file"), b"user.b", 1, XattrFlags::REPLACE)),
    ),
    (
        "set_xattr",
        "no space in inode and block",
        |fs| set(fs, "file", b"user.b", 5000, SetXattr::Any),
        Some(|root| set_xattr(&root.join("file"), b"user.b", 5000, XattrFlags::empty())),
    ),
    (
        "set_xattr",
        "a value of more than 64 KiB",
        |fs| set(fs, "file", b"user.b", 65_537, SetXattr::Any),
        Some(|root| set_xattr(&root.join("file"), b"user.b", 65_537, XattrFlags::empty())),
    ),
    (
        "set_xattr",
        "a name that is empty or longer than 255 bytes",
        |fs| set(fs, "file", b"", 1, SetXattr::Any),
        Some(|root| set_xattr(&root.join("file"), b"", 1, XattrFlags::empty())),
    ),
    (
        "set_xattr",
        "a name that is a prefix alone",
        |fs| set(fs, "file", b"user.", 1, SetXattr::Any),
        Some(|root| set_xattr(&root.join("file"), b"user.", 1, XattrFlags::empty())),
    ),
    (
        "set_xattr",
        "no namespace that is known",
        |fs| set(fs, "file", b"other.x", 1, SetXattr::Any),
        Some(|root| set_xattr(&root.join("file"), b"other.x", 1, XattrFlags::empty())),
    ),
    (
        "set_xattr",
        "`user.` on neither file nor directory",
        |fs| set(fs, "link", b"user.a", 1, SetXattr::Any),
        Some(|root| set_xattr(&root.join("link"), b"user.a", 1, XattrFlags::empty())),
    ),
    (
        "set_xattr",
        "immutable, or only grows",
        |fs| set(fs, "grows", b"user.a", 1, SetXattr::Any),
        Some(|root| set_xattr(&root.join("grows"), b"user.a", 1, XattrFlags::empty())),
    ),
    (
        "set_xattr",
        "no access control list",
        |fs| fs.set_xattr(at(fs, "file"), ACL, &BAD_LIST, SetXattr::Any),
        Some(|root| {
            Ok(rustix::fs::lsetxattr(
                root.join("file"),
                os(ACL),
                &BAD_LIST,
                XattrFlags::empty(),
            )?)
        }),
    ),
    (
        "set_xattr",
        "an access control list of another version, or on a symbolic link",
        |fs| fs.set_xattr(at(fs, "link"), ACL, &LIST, SetXattr::Any),
        Some(|root| {
            Ok(rustix::fs::lsetxattr(
                root.join("link"),
                os(ACL),
                &LIST,
                XattrFlags::empty(),
            )?)
        }),
    ),
    (
        "set_xattr",
        "a default list on no directory",
        |fs| fs.set_xattr(at(fs, "file"), DEFAULT, &LIST, SetXattr::Any),
        Some(|root| {
            Ok(rustix::fs::lsetxattr(
                root.join("file"),
                os(DEFAULT),
                &LIST,
                XattrFlags::empty(),
            )?)
        }),
    ),
    (
        "remove_xattr",
        "the attribute is missing",
        |fs| fs.remove_xattr(at(fs, "file"), b"user.no"),
        Some(|root| Ok(rustix::fs::lremovexattr(root.join("file"), "user.no")?)),
    ),
    (
        "set_project",
        "without the feature `project`",
        |fs| fs.set_project(at(fs, "file"), 7),
        None,
    ),
];

const ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const MODE: AttributeChange = AttributeChange {
    permissions: Some(0o700),
    uid: None,
    gid: None,
    atime: None,
    mtime: None,
};
/// `u::rwx,g::rwx,o::rwx`
const LIST: [u8; 28] = {
    let mut list = [255; 28];
    let mut entry = 0;
    [list[0], list[1], list[2], list[3]] = [2, 0, 0, 0];
    while entry < 3 {
        let at = 4 + entry * 8;
        [list[at], list[at + 1], list[at + 2], list[at + 3]] = [[1, 4, 32][entry], 0, 7, 0];
        entry += 1;
    }
    list
};
/// The same without the entry of the owner.
const BAD_LIST: [u8; 20] = {
    let mut list = [0; 20];
    list[0] = 2;
    let mut at = 4;
    while at < 20 {
        list[at] = LIST[at + 8];
        at += 1;
    }
    list
};

fn set(fs: &Fs, path: &str, name: &[u8], len: usize, how: SetXattr) -> Result<()> {
    fs.set_xattr(at(fs, path), name, &vec![1; len], how)
}

fn set_flags(root: &Path, path: &str, flags: u32) -> std::io::Result<()> {
    let file = File::open(root.join(path))?;
    Ok(rustix::fs::ioctl_setflags(
        file,
        IFlags::from_bits_retain(flags),
    )?)
}

fn cases() -> impl Iterator<Item = &'static Case> {
    let first = PATHS.iter().chain(&NEW_NAMES).chain(&NO_NAMES);
    let second = CONTENT.iter().chain(&COPIES).chain(&FILES);
    let third = WHOLE.iter();
    first
        .chain(second)
        .chain(third)
        .chain(&ATTRIBUTES)
        .chain(&FLAGS)
}

fn populate(fs: &Fs) {
    let add = |path: &str, flag: InodeFlags| {
        let inode = at(fs, path);
        let flags = fs.stat(inode).unwrap().flags | flag;
        fs.set_flags(inode, flags).unwrap();
    };
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.set_xattr(file, b"user.a", b"a", SetXattr::Any).unwrap();
    fs.mkdir(ROOT, b"empty", &OWNER).unwrap();
    for dir in [&b"dir"[..], b"log", b"kept"] {
        let dir = fs.mkdir(ROOT, dir, &OWNER).unwrap();
        fs.create(dir, b"below", &OWNER).unwrap();
    }
    fs.symlink(ROOT, b"link", b"file", &OWNER).unwrap();
    fs.symlink(ROOT, b"loop", b"loop", &OWNER).unwrap();
    let device = DeviceNr { major: 0, minor: 0 };
    fs.mknod(ROOT, b"fifo", FileType::Fifo, device, &OWNER)
        .unwrap();
    for file in [&b"grows"[..], b"frozen"] {
        let file = fs.create(ROOT, file, &OWNER).unwrap();
        fs.append(file, b"content").unwrap();
    }
    add("grows", InodeFlags::APPEND_FL);
    add("log", InodeFlags::APPEND_FL);
    add("frozen", InodeFlags::IMMUTABLE_FL);
    add("kept", InodeFlags::IMMUTABLE_FL);
}

fn name(errno: i32) -> &'static str {
    let found = NAMES.iter().find(|(number, _)| *number == errno);
    found.map_or("?", |(_, name)| name)
}

#[test]
fn the_table_says_what_happens_here_and_in_linux() {
    require_kernel!();
    let twins = Populated::new(populate);
    let Populated {
        fs, image, kernel, ..
    } = twins;
    let mut table =
        String::from("| operation | fails because | errno | Linux |\n|---|---|---|---|\n");
    for (operation, condition, ours, theirs) in cases() {
        let found = ours(&fs).expect_err(condition).errno();
        let linux = theirs.map(|theirs| {
            let error = theirs(kernel.path()).expect_err(condition);
            let errno = error.raw_os_error().unwrap_or(0);
            assert_eq!(name(found), name(errno), "{operation}: {condition}");
            "the same"
        });
        let linux = linux.unwrap_or("has no such call, or is not asked");
        let errno = name(found);
        writeln!(
            table,
            "| `{operation}` | {condition} | `{errno}` | {linux} |"
        )
        .unwrap();
    }
    fs.unmount().unwrap();
    drop(kernel);
    assert_clean(image.path());
    let fs = open(&image);
    assert_eq!(fs.unlink(ROOT, b"file").unwrap_err().errno(), 30);

    let mut general = String::from("| what is wrong | errno |\n|---|---|\n");
    for (what, error) in anywhere() {
        writeln!(general, "| {what} | `{}` |", name(error.errno())).unwrap();
    }
    compare_document(&[("| operation |", table), ("| what is wrong |", general)]);
}

#[test]
fn each_variant_of_the_error_is_in_a_table() {
    require!(Need::Program("mke2fs"));
    let image = image(&[]);
    let fs = mount(&image);
    populate(&fs);
    let fail = |(_, condition, ours, _): &Case| ours(&fs).expect_err(condition);
    let errors = anywhere().map(|(_, error)| error);
    let found = cases().map(fail).chain(errors);
    let found: BTreeSet<_> = found.map(|error| variant(&error)).collect();
    assert_eq!(found, variants());
    fs.unmount().unwrap();
}

/// Compares the tables, each identified by its beginning, with the document.
fn compare_document(tables: &[(&str, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ERRNO.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let mut expected = found.clone();
    for (begin, table) in tables {
        let start = expected.find(begin).expect("docs/ERRNO.md has the table");
        let rest = &expected[start..];
        let len = rest.find("\n\n").map_or(rest.len(), |at| at + 1);
        expected.replace_range(start..start + len, table);
    }
    if std::env::var_os("FOURSCORE_WRITE_DOCS").is_some() {
        std::fs::write(&path, expected).unwrap();
    } else {
        let hint = "run `FOURSCORE_WRITE_DOCS=1 cargo test -p fourscore-proof --test it errno`";
        assert_eq!(found, expected, "docs/ERRNO.md differs: {hint}");
    }
}
