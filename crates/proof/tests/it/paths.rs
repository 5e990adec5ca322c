//! The calls by path do what `std::fs` does on Linux: each case runs on the host's file system and
//! on ours, and the results and the kinds of errors are compared.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fourscore::{Error, FileOptions, FileType, Fs};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{mount, open, unmount_clean};

fn mounted() -> (Image, Arc<Fs>) {
    let image = Image::builder(MiB(32)).kind("ext4").make().unwrap();
    let fs = mount(&image);
    (image, fs)
}

/// A case: what is called, on the host below a folder, and on our file system.
type Case = (
    &'static str,
    fn(&Host) -> io::Result<String>,
    fn(&Fs) -> io::Result<String>,
);

/// Paths on the host: `/` is a folder.
struct Host(PathBuf);

impl Host {
    fn at(&self, path: &str) -> PathBuf {
        // `join` would drop trailing dots and slashes of the meaning.
        let mut whole = self.0.as_os_str().to_owned();
        whole.push(path);
        whole.into()
    }
}

/// The result of a call of which only success or failure is compared.
fn done<T, E: Into<io::Error>>(result: Result<T, E>) -> io::Result<String> {
    result.map(|_| String::new()).map_err(Into::into)
}

/// The same call on both sides.
macro_rules! both {
    ($($what:literal: |$host:ident| $theirs:expr, |$fs:ident| $ours:expr;)*) => {
        &[$(($what, |$host| $theirs, |$fs| $ours)),*]
    };
}

/// They run one after the other on the same trees.
const CASES: &[Case] = both! {
    "a parent is missing": |h| done(fs::write(h.at("/no/file"), "x")),
        |f| done(f.paths().write("/no/file", "x"));
    "a directory": |h| done(fs::create_dir(h.at("/dir"))),
        |f| done(f.paths().create_dir("/dir"));
    "the directory again": |h| done(fs::create_dir(h.at("/dir"))),
        |f| done(f.paths().create_dir("/dir"));
    "a trailing slash": |h| done(fs::create_dir(h.at("/dir/sub/"))),
        |f| done(f.paths().create_dir("/dir/sub/"));
    "a file": |h| done(fs::write(h.at("/dir/file"), "first")),
        |f| done(f.paths().write("/dir/file", "first"));
    "the file again, shorter": |h| done(fs::write(h.at("/dir/file"), "2nd")),
        |f| done(f.paths().write("/dir/file", "2nd"));
    "its text": |h| fs::read_to_string(h.at("/dir/file")),
        |f| f.paths().read_to_string("/dir/file").map_err(io::Error::from);
    "a file as a directory": |h| done(fs::read(h.at("/dir/file/below"))),
        |f| done(f.paths().read("/dir/file/below"));
    "a file with a trailing slash": |h| done(fs::read(h.at("/dir/file/"))),
        |f| done(f.paths().read("/dir/file/"));
    "a directory as a file": |h| done(fs::read(h.at("/dir"))),
        |f| done(f.paths().read("/dir"));
    "all of a path, a file in it": |h| done(fs::create_dir_all(h.at("/dir/file/a/b"))),
        |f| done(f.paths().create_dir_all("/dir/file/a/b"));
    "all of a path": |h| done(fs::create_dir_all(h.at("/dir/a/b/c"))),
        |f| done(f.paths().create_dir_all("/dir/a/b/c"));
    "all of it again": |h| done(fs::create_dir_all(h.at("/dir/a/b/c"))),
        |f| done(f.paths().create_dir_all("/dir/a/b/c"));
    "all of a path, a dot behind it": |h| done(fs::create_dir_all(h.at("/none/."))),
        |f| done(f.paths().create_dir_all("/none/."));
    "whether it was made": |h| Ok(h.at("/none").try_exists()?.to_string()),
        |f| Ok(f.paths().exists("/none")?.to_string());
    "all of a path with dots in it": |h| done(fs::create_dir_all(h.at("/dir/./d/../e/./f/"))),
        |f| done(f.paths().create_dir_all("/dir/./d/../e/./f/"));
    "a dot behind what it made": |h| done(fs::create_dir_all(h.at("/dir/e/./f/./."))),
        |f| done(f.paths().create_dir_all("/dir/e/./f/./."));
    "dots and a dot behind them": |h| done(fs::create_dir_all(h.at("/dir/g/./h/.//."))),
        |f| done(f.paths().create_dir_all("/dir/g/./h/.//."));
    "what that made": |h| Ok(fs::read_dir(h.at("/dir/g"))?.count().to_string()),
        |f| Ok(f.paths().read_dir("/dir/g")?.len().to_string());
    "dots": |h| fs::read_to_string(h.at("/dir/a/.././a/../file")),
        |f| f.paths().read_to_string("/dir/a/.././a/../file").map_err(io::Error::from);
    "a directory with names": |h| done(fs::remove_dir(h.at("/dir"))),
        |f| done(f.paths().remove_dir("/dir"));
    "a directory removed as a file": |h| done(fs::remove_file(h.at("/dir/a"))),
        |f| done(f.paths().remove_file("/dir/a"));
    "a file removed as a directory": |h| done(fs::remove_dir(h.at("/dir/file"))),
        |f| done(f.paths().remove_dir("/dir/file"));
    "a relative link": |h| done(symlink("file", h.at("/dir/link"))),
        |f| done(f.paths().symlink("file", "/dir/link"));
    "its target": |h| Ok(fs::read_link(h.at("/dir/link"))?.display().to_string()),
        |f| Ok(String::from_utf8_lossy(&f.paths().read_link("/dir/link")?).into_owned());
    "through it": |h| fs::read_to_string(h.at("/dir/link")),
        |f| f.paths().read_to_string("/dir/link").map_err(io::Error::from);
    "a link to itself": |h| done(symlink("loop", h.at("/dir/loop"))),
        |f| done(f.paths().symlink("loop", "/dir/loop"));
    "the loop": |h| done(fs::metadata(h.at("/dir/loop"))),
        |f| done(f.paths().metadata("/dir/loop"));
    "the loop itself": |h| Ok(fs::symlink_metadata(h.at("/dir/loop"))?.len().to_string()),
        |f| Ok(f.paths().symlink_metadata("/dir/loop")?.size_bytes.to_string());
    "a dangling link": |h| done(symlink("nothing", h.at("/dir/dangling"))),
        |f| done(f.paths().symlink("nothing", "/dir/dangling"));
    "a write through it": |h| done(fs::write(h.at("/dir/dangling"), "made")),
        |f| done(f.paths().write("/dir/dangling", "made"));
    "what that made": |h| fs::read_to_string(h.at("/dir/nothing")),
        |f| f.paths().read_to_string("/dir/nothing").map_err(io::Error::from);
    "a second name": |h| done(fs::hard_link(h.at("/dir/file"), h.at("/dir/hard"))),
        |f| done(f.paths().hard_link("/dir/file", "/dir/hard"));
    "a second name of a directory": |h| done(fs::hard_link(h.at("/dir/a"), h.at("/dir/hard2"))),
        |f| done(f.paths().hard_link("/dir/a", "/dir/hard2"));
    "a rename": |h| done(fs::rename(h.at("/dir/hard"), h.at("/moved"))),
        |f| done(f.paths().rename("/dir/hard", "/moved"));
    "a rename below itself": |h| done(fs::rename(h.at("/dir"), h.at("/dir/a/dir"))),
        |f| done(f.paths().rename("/dir", "/dir/a/dir"));
    "a rename of nothing": |h| done(fs::rename(h.at("/none"), h.at("/some"))),
        |f| done(f.paths().rename("/none", "/some"));
    "a rename of nothing to a long name":
        |h| done(fs::rename(h.at("/none"), h.at(&format!("/{}", "n".repeat(256))))),
        |f| done(f.paths().rename("/none", format!("/{}", "n".repeat(256))));
    "a rename to a long name":
        |h| done(fs::rename(h.at("/moved"), h.at(&format!("/{}", "n".repeat(256))))),
        |f| done(f.paths().rename("/moved", format!("/{}", "n".repeat(256))));
    "a rename to a long name of a directory":
        |h| done(fs::rename(h.at("/moved"), h.at(&format!("/{}/", "n".repeat(256))))),
        |f| done(f.paths().rename("/moved", format!("/{}/", "n".repeat(256))));
    "a rename of nothing to a long name of a directory":
        |h| done(fs::rename(h.at("/none/"), h.at(&format!("/{}/", "n".repeat(256))))),
        |f| done(f.paths().rename("/none/", format!("/{}/", "n".repeat(256))));
    "a rename from a long name":
        |h| done(fs::rename(h.at(&format!("/{}", "n".repeat(256))), h.at("/none"))),
        |f| done(f.paths().rename(format!("/{}", "n".repeat(256)), "/none"));
    "a rename to a dot": |h| done(fs::rename(h.at("/none"), h.at("/dir/."))),
        |f| done(f.paths().rename("/none", "/dir/."));
    "permissions": |h| done(fs::set_permissions(h.at("/moved"), fs::Permissions::from_mode(0o640))),
        |f| done(f.paths().set_permissions("/moved", 0o640));
    "a copy": |h| Ok(fs::copy(h.at("/moved"), h.at("/copy"))?.to_string()),
        |f| Ok(f.paths().copy("/moved", "/copy")?.to_string());
    "its permissions": |h| Ok(format!("{:o}", fs::metadata(h.at("/copy"))?.permissions().mode() & 0o777)),
        |f| Ok(format!("{:o}", f.paths().metadata("/copy")?.mode.0 & 0o777));
    "a copy of a directory": |h| done(fs::copy(h.at("/dir"), h.at("/copy2"))),
        |f| done(f.paths().copy("/dir", "/copy2"));
    "a long name": |h| done(fs::write(h.at(&format!("/{}", "n".repeat(256))), "")),
        |f| done(f.paths().write(format!("/{}", "n".repeat(256)), ""));
    "bytes that are no text": |h| done(fs::write(h.at("/bytes"), [0xff, 0xfe])),
        |f| done(f.paths().write("/bytes", [0xff, 0xfe]));
    "read as text": |h| done(fs::read_to_string(h.at("/bytes"))),
        |f| done(f.paths().read_to_string("/bytes"));
    "there": |h| Ok(h.at("/copy").try_exists()?.to_string()),
        |f| Ok(f.paths().exists("/copy")?.to_string());
    "not there": |h| Ok(h.at("/copy/none").try_exists().map_or("error".into(), |is| is.to_string())),
        |f| Ok(f.paths().exists("/copy/none").map_or("error".into(), |is| is.to_string()));
    "everything below a link": |h| done(fs::remove_dir_all(h.at("/dir/link"))),
        |f| done(f.paths().remove_dir_all("/dir/link"));
    "everything": |h| done(fs::remove_dir_all(h.at("/dir"))),
        |f| done(f.paths().remove_dir_all("/dir"));
    "everything again": |h| done(fs::remove_dir_all(h.at("/dir"))),
        |f| done(f.paths().remove_dir_all("/dir"));
};

#[test]
fn calls_by_path_equal_those_of_std() {
    require!(Need::Program("mke2fs"));
    let folder = tempfile::tempdir().unwrap();
    let host = Host(folder.path().to_owned());
    let (image, fs) = mounted();
    for (what, theirs, ours) in CASES {
        let (theirs, ours) = (theirs(&host), ours(&fs));
        match (&theirs, &ours) {
            (Ok(theirs), Ok(ours)) => assert_eq!(theirs, ours, "{what}"),
            (Err(theirs), Err(ours)) => assert_eq!(theirs.kind(), ours.kind(), "{what}: {ours}"),
            _ => panic!("{what}: {theirs:?}, but {ours:?}"),
        }
    }
    let mut walked: Vec<_> = fs
        .paths()
        .walk("/")
        .map(|entry| entry.unwrap().path)
        .collect();
    walked.sort();
    walked.retain(|path| !path.ends_with(b"lost+found"));
    assert_eq!(walked, [&b"/bytes"[..], b"/copy", b"/moved"]);
    unmount_clean(fs, &image);
}

#[test]
fn names_may_be_any_bytes() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = mounted();
    let path = Path::new(OsStr::from_bytes(b"/\xff\xfe"));
    fs.paths().write(path, "content").unwrap();
    assert_eq!(fs.paths().read(path).unwrap(), b"content");
    let names = fs.paths().read_dir("/").unwrap();
    assert!(names.iter().any(|entry| entry.name == b"\xff\xfe"));
    fs.unmount().unwrap();
}

#[test]
fn files_read_write_and_seek() {
    require!(Need::Program("mke2fs"));
    let (image, fs) = mounted();
    let files = fs.paths();
    let mut log = BufWriter::new(files.create("/log").unwrap());
    for line in 0..5000 {
        writeln!(log, "line {line}").unwrap();
    }
    log.into_inner().unwrap().sync_all().unwrap();
    let mut lines = BufReader::new(files.open("/log").unwrap()).lines();
    assert_eq!(lines.nth(4999).unwrap().unwrap(), "line 4999");
    assert!(lines.next().is_none());
    drop(lines);

    let mut file = files
        .open_with("/log", FileOptions::new().read().write())
        .unwrap();
    assert_eq!(
        file.seek(SeekFrom::End(-5)).unwrap() + 5,
        file.metadata().unwrap().size_bytes
    );
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "4999\n");
    assert!(file.seek(SeekFrom::Current(-1 << 40)).is_err());
    file.write_all_at(b"LINE", 0).unwrap();
    let mut first = [0; 6];
    file.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(&first, b"LINE 0");
    file.set_len(3).unwrap();
    assert!(matches!(
        io::Error::from(file.read_exact_at(&mut first, 0).unwrap_err()).kind(),
        io::ErrorKind::UnexpectedEof
    ));

    // An open file outlives its name.
    files.remove_file("/log").unwrap();
    file.write_all_at(b"still", 0).unwrap();
    file.rewind().unwrap();
    let mut content = Vec::new();
    (&file).read_to_end(&mut content).unwrap();
    assert_eq!(content, b"still");
    file.close().unwrap();

    let appended = || files.open_with("/tail", FileOptions::new().append().create());
    let (mut one, mut other) = (appended().unwrap(), appended().unwrap());
    one.write_all(b"one ").unwrap();
    other.write_all(b"other ").unwrap();
    one.write_all(b"one").unwrap();
    drop((one, other));
    assert_eq!(files.read("/tail").unwrap(), b"one other one");
    assert!(matches!(files.create_new("/tail"), Err(Error::Exists)));
    let read_only = files.open("/tail").unwrap();
    assert!((&read_only).write(b"x").is_err());
    drop(read_only);
    unmount_clean(fs, &image);
}

/// The same as the host's files in what std's extension trait has.
#[test]
fn positioned_calls_equal_those_of_std() {
    require!(Need::Program("mke2fs"));
    let (_image, fs) = mounted();
    let theirs = tempfile::tempfile().unwrap();
    let ours = fs
        .paths()
        .open_with("/file", FileOptions::new().read().write().create())
        .unwrap();
    for (data, offset) in [(&b"abc"[..], 10), (b"", 5), (b"xyz", 11)] {
        theirs.write_all_at(data, offset).unwrap();
        ours.write_all_at(data, offset).unwrap();
    }
    for (len, offset) in [(20, 0), (3, 12), (5, 14), (1, 100)] {
        let (mut one, mut other) = (vec![1; len], vec![1; len]);
        let theirs = theirs.read_at(&mut one, offset).unwrap();
        assert_eq!(theirs, ours.read_at(&mut other, offset).unwrap());
        assert_eq!(one, other);
    }
    ours.close().unwrap();
    fs.unmount().unwrap();
}

#[test]
fn threads_create_and_remove_the_same_trees() {
    require!(Need::Program("mke2fs"));
    let (image, fs) = mounted();
    thread::scope(|scope| {
        let creators: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| fs.paths().create_dir_all("/a/deep/path/for/all")))
            .collect();
        for creator in creators {
            creator.join().unwrap().unwrap();
        }
    });
    assert_eq!(
        fs.paths()
            .metadata("/a/deep/path/for/all")
            .unwrap()
            .file_type,
        FileType::Directory
    );
    for _ in 0..20 {
        thread::scope(|scope| {
            let creators: Vec<_> = (0..3)
                .map(|nr| {
                    let fs = &fs;
                    scope.spawn(move || {
                        for number in 0..20 {
                            let dir = format!("/a/deep/{nr}/{number}");
                            // The directory may be gone before the file is made.
                            if fs.paths().create_dir_all(&dir).is_ok() {
                                let _ = fs.paths().write(format!("{dir}/file"), "x");
                            }
                        }
                    })
                })
                .collect();
            // It ends beside threads that go on creating, with success or with a directory that got
            // a name again.
            match fs.paths().remove_dir_all("/a/deep") {
                Ok(()) | Err(Error::NotEmpty | Error::NotFound) => {}
                Err(error) => panic!("{error}"),
            }
            for creator in creators {
                creator.join().unwrap();
            }
        });
    }
    fs.paths().remove_dir_all("/a").unwrap();
    assert!(!fs.paths().exists("/a").unwrap());
    unmount_clean(fs, &image);
}

#[test]
fn a_file_system_that_is_read_refuses_changes() {
    require!(Need::Program("mke2fs"));
    let (image, fs) = mounted();
    fs.paths().write("/file", "content").unwrap();
    fs.unmount().unwrap();
    let fs = open(&image);
    let files = fs.paths();
    assert_eq!(files.read_to_string("/file").unwrap(), "content");
    for refused in [
        files.write("/file", "x").unwrap_err(),
        files.create_dir("/dir").unwrap_err(),
        files.remove_file("/file").unwrap_err(),
    ] {
        assert_eq!(
            io::Error::from(refused).kind(),
            io::ErrorKind::ReadOnlyFilesystem
        );
    }
}

#[test]
fn links_that_linux_refuses_are_not_made() {
    require!(Need::Program("mkfs.ext4"), Need::Program("e2fsck"));
    let (image, fs) = mounted();
    let owner = fourscore::NewAttributes::owned_by(0, 0);
    let root = fourscore::InodeNr::ROOT;
    for target in [&b"a\0b"[..], &[&[b'q'; 100][..], b"\0"].concat()] {
        let made = fs.symlink(root, b"symbolic", target, &owner);
        assert!(matches!(made, Err(Error::InvalidArgument(_))), "{made:?}");
    }
    let dir = fs.mkdir(root, b"dir", &owner).unwrap();
    fs.create(root, b"taken", &owner).unwrap();
    // The inode of reserved descriptors has no name.
    let reserved = fourscore::InodeNr(7);
    for inode in [dir, reserved] {
        let made = fs.link(inode, root, b"new");
        assert!(matches!(made, Err(Error::NotPermitted)), "{made:?}");
        let made = fs.link(inode, root, b"taken");
        assert!(matches!(made, Err(Error::Exists)), "{made:?}");
    }
    unmount_clean(fs, &image);
}
