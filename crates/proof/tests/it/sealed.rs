//! Directories that ignore case, encrypted files and directories without their key, and files with
//! verity: the changes that are allowed, and those that are refused. For encryption the kernel does
//! the same on a twin. It has no casefold here, so e2fsck checks names and hashes.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;

use fourscore::{AttributeChange, Fallocate, Follow, Fs, InodeNr, OpenInode, Replace, SetXattr};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, debugfs, debugfs_write};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use crate::common::{OWNER, ROOT, host_names, image, mount, require_e2fsprogs, unmount_clean};
use crate::outcome::{ours, theirs};

fn casefolded(fs: &Fs, name: &[u8]) -> InodeNr {
    let dir = fs.mkdir(ROOT, name, &OWNER).unwrap();
    let flags = fs.stat(dir).unwrap().flags & InodeFlags::USER_VISIBLE;
    fs.set_flags(dir, flags | InodeFlags::CASEFOLD_FL).unwrap();
    dir
}

fn casefold_image(block_size: u32, features: &[&str], strict: &str) -> Image {
    let features = [&["casefold"], features].concat();
    let image = Image::builder(MiB(64))
        .kind("ext4")
        .block_size_bytes(block_size)
        .features(&features)
        .extended("encoding=utf8");
    let image = if strict.is_empty() {
        image
    } else {
        image.extended(strict)
    };
    image.make().unwrap()
}

#[test]
fn names_that_differ_in_case_are_one() {
    require_e2fsprogs!();
    for (block_size, features) in [
        (1024, &[][..]),
        (4096, &["^metadata_csum"]),
        (1024, &["inline_data"]),
        (1024, &["^dir_index"]),
    ] {
        let image = casefold_image(block_size, features, "");
        let fs = mount(&image);
        let dir = casefolded(&fs, b"dir");
        let street = fs.create(dir, "Stra\u{df}e".as_bytes(), &OWNER).unwrap();
        for other in ["STRASSE", "strasse", "sTRA\u{df}E", "Stra\u{1e9e}e"] {
            assert_eq!(fs.lookup(dir, other.as_bytes()).unwrap(), street);
            let made = fs.create(dir, other.as_bytes(), &OWNER);
            assert_eq!(ours(made), Err(17), "{other}");
            assert_eq!(ours(fs.mkdir(dir, other.as_bytes(), &OWNER)), Err(17));
            assert_eq!(ours(fs.link(street, dir, other.as_bytes())), Err(17));
        }
        // Directories inside ignore case, too; the parent does not.
        let below = fs.mkdir(dir, b"Below", &OWNER).unwrap();
        let flags = fs.stat(below).unwrap().flags;
        assert!(flags.contains(InodeFlags::CASEFOLD_FL));
        fs.create(below, b"FILE", &OWNER).unwrap();
        fs.resolve(b"dir/below/file", Follow::No).unwrap();
        assert_eq!(ours(fs.resolve(b"DIR/below", Follow::No)), Err(2));
        // A directory with names cannot change its flag.
        let clear = flags & (InodeFlags::USER_VISIBLE - InodeFlags::CASEFOLD_FL);
        assert_eq!(ours(fs.set_flags(below, clear)), Err(39));
        fs.unlink(below, b"file").unwrap();
        fs.set_flags(below, clear).unwrap();
        fs.create(below, b"file", &OWNER).unwrap();
        fs.create(below, b"FILE", &OWNER).unwrap();
        // A rename over an equal name replaces its inode, and the old spelling of the name stays.
        let other = fs.create(dir, b"Other", &OWNER).unwrap();
        fs.rename((dir, b"OTHER"), (dir, b"STRASSE"), Replace::Yes)
            .unwrap();
        assert_eq!(fs.lookup(dir, b"strasse").unwrap(), other);
        // Bytes that are not UTF-8 are valid names, unless they are forbidden.
        fs.create(dir, b"\xff\xfe", &OWNER).unwrap();
        assert_eq!(ours(fs.create(dir, b"\xff\xfe", &OWNER)), Err(17));
        unmount_clean(fs, &image);
        let listing = debugfs(image.path(), &["ls -p /dir"]).unwrap();
        assert!(listing.contains("/Stra\u{df}e/"), "{listing}");
    }
}

#[test]
fn indexes_lead_to_names_in_any_case() {
    require_e2fsprogs!();
    let image = casefold_image(1024, &[], "");
    let fs = mount(&image);
    let dir = casefolded(&fs, b"dir");
    let mut random = Rng::new(5);
    let name = |number: u64, random: &mut Rng| {
        let text = format!("\u{c4}rger mit \u{dc}berl\u{e4}nge und Nummer {number}");
        let turn = |c: char| match random.bits() % 2 {
            0 => c.to_lowercase().to_string(),
            _ => c.to_uppercase().to_string(),
        };
        text.chars().map(turn).collect::<String>().into_bytes()
    };
    let target = fs.create(ROOT, b"target", &OWNER).unwrap();
    for number in 0..700 {
        fs.link(target, dir, &name(number, &mut random)).unwrap();
    }
    assert!(fs.stat(dir).unwrap().flags.contains(InodeFlags::INDEX_FL));
    for number in 0..700 {
        let again = fs.link(target, dir, &name(number, &mut random));
        assert_eq!(ours(again), Err(17), "{number}");
    }
    fs.sync().unwrap();
    let full = image.copy().unwrap();
    mount(&full).unmount().unwrap();
    assert_clean(full.path());
    for number in (0..700).step_by(2) {
        fs.unlink(dir, &name(number, &mut random)).unwrap();
        let (from, to) = (
            name(number + 1, &mut random),
            name(number + 5000, &mut random),
        );
        fs.rename((dir, &from), (dir, &to), Replace::No).unwrap();
    }
    for number in 0..700 {
        let number = if number % 2 == 0 {
            number
        } else {
            number + 4999
        };
        let found = ours(fs.lookup(dir, &name(number, &mut random)));
        let is_there = number > 700;
        assert_eq!(found, if is_there { Ok(()) } else { Err(2) }, "{number}");
    }
    unmount_clean(fs, &image);
}

#[test]
fn strict_encoding_refuses_what_is_no_text() {
    require_e2fsprogs!();
    let image = casefold_image(4096, &[], "encoding_flags=strict");
    let fs = mount(&image);
    let dir = casefolded(&fs, b"dir");
    let file = fs.create(dir, b"Text", &OWNER).unwrap();
    assert_eq!(ours(fs.create(dir, b"\xff", &OWNER)), Err(22));
    assert_eq!(ours(fs.link(file, dir, b"x\xff")), Err(22));
    let renamed = fs.rename((dir, b"text"), (dir, b"\xff"), Replace::Yes);
    assert_eq!(ours(renamed), Err(22));
    // A directory that does not ignore case accepts any bytes.
    fs.rename((dir, b"TEXT"), (ROOT, b"\xff"), Replace::Yes)
        .unwrap();
    unmount_clean(fs, &image);
}

/// An image with an encrypted directory, whose key is lost.
fn encrypted_image() -> Image {
    let image = image(&["encrypt"]);
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
    let folder = kernel.path().join("dir");
    std::fs::create_dir(&folder).unwrap();
    let mut add_key = tools::command("xfs_io").unwrap();
    add_key.args(["-c", "add_enckey"]).arg(kernel.path());
    add_key
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = add_key.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[0x42; 64]).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let key = text
        .lines()
        .find_map(|line| line.strip_prefix("Added encryption key with identifier "))
        .unwrap_or_else(|| panic!("no key: {text}"))
        .trim()
        .to_owned();
    let policy = format!("set_encpolicy -v 2 {key}");
    let mut set_policy = tools::command("xfs_io").unwrap();
    tools::stdout_of(set_policy.args(["-c", &policy]).arg(&folder)).unwrap();
    std::fs::write(folder.join("file"), [1; 5000]).unwrap();
    std::fs::write(folder.join("n".repeat(200)), b"").unwrap();
    std::fs::create_dir(folder.join("below")).unwrap();
    std::fs::write(folder.join("below/file"), b"x").unwrap();
    std::os::unix::fs::symlink("target", folder.join("symlink")).unwrap();
    for number in 0..300 {
        std::fs::write(folder.join(format!("many {number}")), b"").unwrap();
    }
    std::fs::write(kernel.path().join("plain"), b"plain").unwrap();
    drop(kernel);
    image
}

/// The encrypted names: the longest file and the directory first.
fn encrypted_names(fs: &Fs, dir: InodeNr) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = fs.read_dir(dir).unwrap();
    names.retain(|entry| !matches!(&entry.name[..], b"." | b".."));
    names.sort_by_key(|entry| {
        let stat = fs.stat(entry.inode).unwrap();
        let is_dir = stat.file_type == fourscore::FileType::Directory;
        (!is_dir, u64::MAX - stat.size_bytes, entry.name.clone())
    });
    names.into_iter().map(|entry| entry.name).collect()
}

#[test]
fn without_the_key_names_go_and_nothing_comes() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("xfs_io"),
        Need::KernelMount
    );
    let image = encrypted_image();
    let twin = image.copy().unwrap();
    let kernel = KernelMount::new(twin.path(), Access::ReadWrite, "").unwrap();
    let root = kernel.path();
    let fs = mount(&image);
    let dir = fs.lookup(ROOT, b"dir").unwrap();
    let plain = fs.lookup(ROOT, b"plain").unwrap();
    let names = encrypted_names(&fs, dir);
    let host = |name: &[u8]| root.join("dir").join(OsStr::from_bytes(name));
    let file = &names[1][..];
    let nr = fs.lookup(dir, file).unwrap();
    let new = host(b"new");

    let made = ours(fs.create(dir, b"new", &OWNER));
    assert_eq!(made, Err(126));
    assert_eq!(made, theirs(std::fs::File::create_new(&new)));
    assert_eq!(
        ours(fs.create(dir, file, &OWNER)),
        theirs(std::fs::File::create_new(host(file)))
    );
    let made = ours(fs.mkdir(dir, b"new", &OWNER));
    assert_eq!(made, theirs(std::fs::create_dir(&new)));
    let made = ours(fs.symlink(dir, b"new", b"x", &OWNER));
    assert_eq!(made, theirs(std::os::unix::fs::symlink("x", &new)));
    let linked = ours(fs.link(nr, dir, b"new"));
    assert_eq!(linked, theirs(std::fs::hard_link(host(file), &new)));
    let linked = ours(fs.link(plain, dir, b"new"));
    assert_eq!(linked, theirs(std::fs::hard_link(root.join("plain"), &new)));
    let renamed = ours(fs.rename((dir, file), (dir, b"new"), Replace::Yes));
    assert_eq!(renamed, theirs(std::fs::rename(host(file), &new)));
    let renamed = ours(fs.rename((dir, file), (ROOT, b"new"), Replace::Yes));
    assert_eq!(
        renamed,
        theirs(std::fs::rename(host(file), root.join("new")))
    );
    let renamed = ours(fs.rename((ROOT, b"plain"), (dir, b"new"), Replace::Yes));
    assert_eq!(renamed, theirs(std::fs::rename(root.join("plain"), &new)));
    let exchanged = ours(fs.exchange((ROOT, b"plain"), (dir, file)));
    assert_eq!(exchanged, Err(126));
    assert_eq!(ours(OpenInode::unnamed(&*fs, dir, &OWNER)), Err(126));
    assert_eq!(ours(fs.write_at(nr, b"x", 0)), Err(126));
    let cut = std::fs::OpenOptions::new().write(true).open(host(file));
    assert_eq!(ours(fs.truncate(nr, 0)), theirs(cut));
    assert_eq!(ours(fs.fallocate(nr, Fallocate::PunchHole, 0, 9)), Err(126));

    removals(&fs, root, dir, nr, &names);
    unmount_clean(fs, &image);
}

/// The operations that are allowed without the key.
fn removals(fs: &Fs, root: &Path, dir: InodeNr, nr: InodeNr, names: &[Vec<u8>]) {
    let host = |name: &[u8]| root.join("dir").join(OsStr::from_bytes(name));
    let below = &names[0][..];
    // Attributes that do not concern data may be changed.
    let change = AttributeChange {
        permissions: Some(0o600),
        ..AttributeChange::default()
    };
    fs.set_attributes(nr, &change).unwrap();
    fs.set_xattr(nr, b"user.name", b"value", SetXattr::Any)
        .unwrap();
    let removed = ours(fs.rmdir(dir, below));
    assert_eq!(removed, Err(39));
    assert_eq!(removed, theirs(std::fs::remove_dir(host(below))));
    assert_eq!(
        ours(fs.unlink(dir, b"no such name")),
        theirs(std::fs::remove_file(host(b"no such name")))
    );
    let inner = fs.lookup(dir, below).unwrap();
    for name in encrypted_names(fs, inner) {
        fs.unlink(inner, &name).unwrap();
        let at = host(below).join(OsStr::from_bytes(&name));
        std::fs::remove_file(at).unwrap();
    }
    fs.rmdir(dir, below).unwrap();
    std::fs::remove_dir(host(below)).unwrap();
    for name in names[1..].iter().step_by(2) {
        fs.unlink(dir, name).unwrap();
        std::fs::remove_file(host(name)).unwrap();
    }
    let mut left = encrypted_names(fs, dir);
    left.sort();
    assert_eq!(left, host_names(&root.join("dir")));
    // The directory itself has a plain name that can be changed.
    fs.rename((ROOT, b"dir"), (ROOT, b"moved"), Replace::No)
        .unwrap();
    for name in left {
        fs.unlink(dir, &name).unwrap();
    }
    fs.rmdir(ROOT, b"moved").unwrap();
}

#[test]
fn files_with_verity_keep_their_content() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let image = Image::builder(MiB(64)).kind("ext4").features(&["verity"]);
    let image = image.make().unwrap();
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    // The tree of hashes lies behind the end.
    fs.write_at(file, &[7; 80_000], 0).unwrap();
    fs.unmount().unwrap();
    // VERITY_FL and EXTENTS_FL.
    let commands = [
        "set_inode_field /file flags 0x180000",
        "set_inode_field /file size 10000",
    ];
    debugfs_write(image.path(), &commands).unwrap();
    assert_clean(image.path());
    let fs = mount(&image);
    let before = fs.stat(file).unwrap();
    assert!(before.flags.contains(InodeFlags::VERITY_FL));
    assert_eq!(ours(fs.write_at(file, b"x", 0)), Err(1));
    assert_eq!(ours(fs.append(file, b"x")), Err(1));
    assert_eq!(ours(fs.truncate(file, 10_000)), Err(1));
    assert_eq!(ours(fs.fallocate(file, Fallocate::Allocate, 0, 9)), Err(1));
    assert_eq!(fs.stat(file).unwrap(), before);
    let change = AttributeChange {
        permissions: Some(0o600),
        ..AttributeChange::default()
    };
    fs.set_attributes(file, &change).unwrap();
    fs.set_xattr(file, b"user.name", b"value", SetXattr::Any)
        .unwrap();
    fs.link(file, ROOT, b"other").unwrap();
    fs.rename((ROOT, b"file"), (ROOT, b"moved"), Replace::No)
        .unwrap();
    let mut content = [0; 10_000];
    assert_eq!(fs.read_at(file, &mut content, 0).unwrap(), 10_000);
    assert_eq!(content, [7; 10_000]);
    assert_eq!(fs.stat(file).unwrap().sectors, before.sectors);
    fs.unlink(ROOT, b"other").unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().unwrap().free_blocks;
    fs.unlink(ROOT, b"moved").unwrap();
    fs.sync().unwrap();
    let freed = fs.statfs().unwrap().free_blocks - free;
    let bits = fs.superblock().geometry().block_size().bits();
    assert_eq!((freed << bits) / 512, before.sectors);
    unmount_clean(fs, &image);
}
