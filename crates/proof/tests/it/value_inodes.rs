//! Inodes that hold the value of an attribute can be reached only through the attribute. A name
//! that refers to one is listed, and every operation on it is refused, by us as by the kernel. By
//! its number such an inode is not found: the number is that of an inode that was deleted.

use fourscore::{Error, FileType, Follow, Fs, InodeNr, MountOptions, Replace, Result, SetXattr};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{debugfs, debugfs_write};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{self, PLAIN, ROOT, mount, mount_with, names, open, unmount_clean};

const VALUE: [u8; 5000] = [7; 5000];
const EA_INODE_FL: u32 = 0x20_0000;

/// An image with a file that has the value of an attribute in an inode, for which there is the name
/// `xlink`; and a directory and a file with the flag of such inodes.
fn image() -> (Image, InodeNr) {
    let image = Image::builder(MiB(16))
        .kind("ext4")
        .inode_size_bytes(256)
        .features(&["ea_inode"])
        .make()
        .unwrap();
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    let dir = fs.mkdir(ROOT, b"flagged-dir", &PLAIN).unwrap();
    fs.mkdir(dir, b"below", &PLAIN).unwrap();
    fs.create(ROOT, b"flagged-file", &PLAIN).unwrap();
    fs.set_xattr(file, b"user.large", &VALUE, SetXattr::Create)
        .unwrap();
    unmount_clean(fs, &image);
    let fs = open(&image);
    let mut numbers = (11..=fs.geometry().inodes()).map(InodeNr);
    let value = numbers.find(|&nr| fs.holds_value(nr).unwrap_or(false));
    let value = value.unwrap();
    let stat = |path: &str| {
        let nr = fs.resolve(path.as_bytes(), Follow::No).unwrap();
        fs.stat(nr).unwrap().flags.bits() | EA_INODE_FL
    };
    let flag = |path: &str| format!("set_inode_field {path} flags {:#x}", stat(path));
    let commands = [
        format!("ln <{value}> xlink"),
        flag("flagged-dir"),
        flag("flagged-file"),
    ];
    debugfs_write(image.path(), &commands).unwrap();
    (image, value)
}

/// The bytes of an inode that must not change, as debugfs shows them.
fn times(image: &Image, inode: InodeNr) -> String {
    debugfs(image.path(), &[format!("inode_dump <{inode}>")]).unwrap()
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(what: &str, outcome: Result<T>) {
    match outcome {
        Err(Error::Corrupt(corrupt)) => {
            let text = corrupt.to_string();
            assert!(text.contains("EA_INODE_FL"), "{what}: {text}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

#[track_caller]
fn assert_not_found<T: std::fmt::Debug>(what: &str, outcome: Result<T>) {
    match outcome {
        Err(Error::NotFound) => {}
        other => panic!("{what}: {other:?}"),
    }
}

fn assert_reading_refused(fs: &Fs, value: InodeNr) {
    for name in [&b"xlink"[..], b"flagged-dir", b"flagged-file"] {
        let what = String::from_utf8_lossy(name);
        // The second lookup uses the name cache, if the first one filled it.
        for _ in 0..2 {
            assert_refused(&what, fs.lookup(ROOT, name));
        }
    }
    for follow in [Follow::Yes, Follow::No] {
        assert_refused("resolve", fs.resolve(b"/xlink", follow));
    }
    assert_refused(
        "resolve below",
        fs.resolve(b"/flagged-dir/below", Follow::Yes),
    );
    assert_not_found("stat", fs.stat(value));
    assert_not_found("scan", fs.scan(value));
    assert_not_found("read", fs.read_at(value, &mut [0; 16], 0));
    assert_not_found("list attributes", fs.xattrs(value));
}

#[test]
fn a_name_that_leads_to_a_value_is_listed_and_refused() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let (image, value) = image();
    let before = times(&image, value);
    for is_mounted in [false, true] {
        let fs = match is_mounted {
            false => open(&image),
            true => mount(&image),
        };
        let listed = names(&fs, ROOT);
        let expected: [&[u8]; 5] = [
            b"file",
            b"flagged-dir",
            b"flagged-file",
            b"lost+found",
            b"xlink",
        ];
        assert_eq!(listed, expected);
        assert_reading_refused(&fs, value);
        // The attribute itself is read, also while its inode is in the cache.
        let file = fs.resolve(b"file", Follow::No).unwrap();
        assert_eq!(fs.xattr(file, b"user.large").unwrap(), VALUE);
        assert_reading_refused(&fs, value);
        fs.unmount().unwrap();
    }
    assert_eq!(times(&image, value), before);
}

#[test]
fn nothing_is_changed_through_a_name_that_leads_to_a_value() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let (image, value) = image();
    let before = times(&image, value);
    let options = MountOptions::new().parse("strictatime").unwrap();
    let fs = mount_with(&image, &options);
    let xlink = &b"xlink"[..];
    assert_not_found("access time", fs.accessed(value));
    assert_not_found("write", fs.write_at(value, b"x", 0));
    assert_not_found("link", fs.link(value, ROOT, b"second"));
    let moved = fs.rename((ROOT, xlink), (ROOT, b"other"), Replace::Yes);
    assert_refused("rename", moved);
    let over = fs.rename((ROOT, b"file"), (ROOT, xlink), Replace::Yes);
    assert_refused("rename over it", over);
    assert_refused("unlink", fs.unlink(ROOT, xlink));
    assert_refused("rmdir", fs.rmdir(ROOT, b"flagged-dir"));
    let attribute = fs.set_xattr(value, b"user.x", b"y", SetXattr::Any);
    assert_not_found("attribute", attribute);
    // The value is freed with its attribute, even if a name refers to it.
    let file = fs.resolve(b"file", Follow::No).unwrap();
    assert_eq!(fs.stat(file).unwrap().file_type, FileType::Regular);
    assert_eq!(fs.xattr(file, b"user.large").unwrap(), VALUE);
    fs.unmount().unwrap();
    assert_eq!(times(&image, value), before);
}

/// A caller that has the number of an inode that was deleted does not find it, and that is no
/// damage: the file system stays writable with `errors=remount-ro`.
#[test]
fn an_old_number_that_a_value_has_got_is_not_found() {
    require!(Need::Program("mke2fs"));
    let image = common::image_of_inodes(4096, 256, &["ea_inode"]);
    let options = MountOptions::new().parse("errors=remount-ro").unwrap();
    let fs = mount_with(&image, &options);
    let file = fs.create(ROOT, b"file", &PLAIN).unwrap();
    let old = fs.create(ROOT, b"old", &PLAIN).unwrap();
    fs.unlink(ROOT, b"old").unwrap();
    fs.sync().unwrap();
    fs.set_xattr(file, b"user.large", &VALUE, SetXattr::Create)
        .unwrap();
    assert!(fs.holds_value(old).unwrap(), "the number was used again");
    assert_not_found("lookup in it", fs.lookup(old, b"name"));
    assert_not_found("create in it", fs.create(old, b"name", &PLAIN));
    assert_not_found("write", fs.write_at(old, b"x", 0));
    let attribute = fs.set_xattr(old, b"user.x", b"y", SetXattr::Any);
    assert_not_found("attribute", attribute);
    assert_not_found("link", fs.link(old, ROOT, b"second"));
    assert_not_found("truncate", fs.truncate(old, 0));
    fs.create(ROOT, b"still writable", &PLAIN).unwrap();
    assert_eq!(fs.xattr(file, b"user.large").unwrap(), VALUE);
    unmount_clean(fs, &image);
}

#[test]
fn the_kernel_refuses_the_same() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let (image, _) = image();
    let kernel = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
    let root = kernel.path();
    let listed = common::host_names(root);
    assert_eq!(listed.len(), 5);
    for name in ["xlink", "flagged-dir", "flagged-file"] {
        let error = root.join(name).symlink_metadata().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(117), "{name}");
    }
}
