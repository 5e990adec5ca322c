//! Hostile images: with any names and links, nothing is written outside of the target, and the walk
//! ends.

use std::path::{Path, PathBuf};

use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{Image, MiB, oracle, require, scratch};

use crate::common::{failing, fourscore, printed, text};

/// An image without checksums, with a tree, in which every `from` is replaced by `to`.
fn forged(make: impl Fn(&Path), replace: &[(&[u8], &[u8])]) -> Image {
    let source = scratch::folder().expect("a folder");
    make(source.path());
    let image = Image::builder(MiB(8))
        .kind("ext4")
        .features(&["^metadata_csum", "^has_journal", "^dir_index"])
        .block_size_bytes(1024)
        .source(source.path())
        .make()
        .expect("mke2fs runs");
    let mut bytes = std::fs::read(image.path()).expect("the image");
    for (from, to) in replace {
        assert_eq!(from.len(), to.len());
        let places: Vec<usize> = (0..bytes.len() - from.len())
            .filter(|&at| bytes[at..].starts_with(from))
            .collect();
        assert!(!places.is_empty(), "nothing to forge");
        for at in places {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    std::fs::write(image.path(), bytes).expect("space");
    image
}

/// Extracts into `outer/target` and returns all paths below `outer`, which must be below
/// `outer/target`.
fn extracted(image: &Image) -> (Option<i32>, String, Vec<PathBuf>) {
    let outer = scratch::folder().expect("a folder");
    let target = outer.path().join("target");
    let (status, message) = failing(&["extract", text(image.path()), text(&target)]);
    let mut found = Vec::new();
    let mut waiting = vec![outer.path().to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).expect("readable") {
            let entry = entry.expect("readable");
            if entry.file_type().expect("a type").is_dir() {
                waiting.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    let escaped = found.iter().find(|path| !path.starts_with(&target));
    assert_eq!(escaped, None);
    (status, message, found)
}

fn write(path: PathBuf) {
    std::fs::write(path, b"evil").expect("space");
}

#[test]
fn names_outside_of_the_target() {
    require!(Need::Program("mke2fs"));
    let forgeries: [(&[u8], &[u8]); 3] = [
        (b"dotdotfile", b"../outside"),
        (b"absolute00", b"/tmp/evil0"),
        (b"zer0byte", b"zer\0byte"),
    ];
    for forgery in forgeries {
        let name = std::str::from_utf8(forgery.0).expect("text");
        let image = forged(|root| write(root.join(name)), &[forgery]);
        let (status, message, _) = extracted(&image);
        assert_eq!(status, Some(1), "{message}");
        let tar = fourscore(&["extract", text(image.path()), "-"])
            .output()
            .expect("it runs");
        assert_eq!(tar.status.code(), Some(1));
        let stored = tar
            .stdout
            .windows(forgery.1.len())
            .any(|bytes| bytes == forgery.1);
        assert!(!stored, "the archive has the forged name");
    }
    assert!(!Path::new("/tmp/evil0").exists());
}

#[test]
fn a_second_dot_dot() {
    require!(Need::Program("mke2fs"));
    // The record of a name of two letters becomes a `..` that is not the second entry.
    let make = |root: &Path| {
        std::fs::create_dir(root.join("QZ")).expect("space");
        write(root.join("QZ/inside"));
    };
    let image = forged(make, &[(b"\x02\x02QZ", b"\x02\x02..")]);
    let (_, message, found) = extracted(&image);
    assert!(
        !found.iter().any(|path| path.ends_with("inside")),
        "{message}"
    );
}

#[test]
fn a_link_and_a_directory_with_the_same_name() {
    require!(Need::Program("mke2fs"));
    let outside = scratch::folder().expect("a folder");
    let make = |root: &Path| {
        std::os::unix::fs::symlink(outside.path(), root.join("same-name-1")).expect("space");
        std::fs::create_dir(root.join("same-name-2")).expect("space");
        write(root.join("same-name-2/file"));
        write(root.join("same-name-3"));
    };
    let forgery: [(&[u8], &[u8]); 2] = [
        (b"same-name-2", b"same-name-1"),
        (b"same-name-3", b"same-name-1"),
    ];
    let image = forged(make, &forgery);
    let (status, message, _) = extracted(&image);
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains("exists"), "{message}");
    assert_eq!(
        std::fs::read_dir(outside.path()).expect("readable").count(),
        0
    );
}

#[test]
fn directories_that_contain_themselves() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let make = |root: &Path| {
        std::fs::create_dir_all(root.join("a/b")).expect("space");
        write(root.join("a/b/file"));
    };
    let image = forged(make, &[]);
    oracle::debugfs_write(image.path(), &["link /a /a/b/loop", "link / /a/up"]).expect("debugfs");
    let (status, message, found) = extracted(&image);
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains("a second name refers to it"), "{message}");
    assert_eq!(
        found
            .iter()
            .filter(|path| path.ends_with("a/b/file"))
            .count(),
        1
    );
    for arguments in [&["walk"][..], &["ls", "-R"]] {
        let (verb, options) = arguments.split_first().expect("a verb");
        let mut all = vec![*verb];
        all.extend(options);
        all.push(text(image.path()));
        let (status, message) = failing(&all);
        assert_eq!(status, Some(1), "{all:?}: {message}");
        assert!(
            message.lines().all(|line| line.starts_with("fourscore: /")),
            "{message}"
        );
    }
}

/// Files that are not complete ext4 images, and the words that the message must contain.
#[test]
fn the_error_of_opening_is_one_line() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(8))
        .kind("ext4")
        .block_size_bytes(1024)
        .features(&["^has_journal", "metadata_csum"])
        .make()
        .expect("mke2fs runs");
    let good = std::fs::read(image.path()).expect("the image");
    // Byte 0x60 of the superblock begins the INCOMPAT bits, byte 0x78 the volume's name.
    let changed = |at: usize, bytes: &[u8]| {
        let mut forged = good.clone();
        forged[1024 + at..][..bytes.len()].copy_from_slice(bytes);
        forged
    };
    let cases: [(&str, Vec<u8>, &[&str]); 7] = [
        (
            "empty",
            Vec::new(),
            &["0 bytes found", "1024", "truncated?"],
        ),
        (
            "short",
            good[..900].to_vec(),
            &["0 bytes found", "truncated?"],
        ),
        (
            "part",
            good[..1500].to_vec(),
            &["476 bytes found", "truncated?"],
        ),
        (
            "middle",
            good[..5 << 20].to_vec(),
            &["5242880 bytes", "needs 8388608", "truncated?"],
        ),
        (
            "zeros",
            vec![0; 1 << 20],
            &["s_magic is 0x0000, not 0xef53", "disk.img@1M"],
        ),
        (
            "feature",
            changed(0x60, &0x40_0000_u32.to_le_bytes()),
            &["cannot read", "INCOMPAT 0x400000"],
        ),
        (
            "name",
            changed(0x78, b"X"),
            &["s_checksum", "found", "expected"],
        ),
    ];
    let folder = scratch::folder().expect("a folder");
    for (name, bytes, words) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, &bytes).expect("space");
        for verb in ["info", "ls", "walk", "freefrag", "xattr-report"] {
            fails_in_one_line(&[verb, text(&path)], words);
        }
        let found = std::fs::read(&path).expect("still there");
        assert!(found == bytes, "{name} was written to");
    }
    let missing = folder.path().join("missing");
    fails_in_one_line(&["info", text(&missing)], &["No such file"]);
    assert!(!missing.exists());
    fails_in_one_line(
        &["info", text(folder.path())],
        &["is a directory, not an image"],
    );
    fails_in_one_line(&["info", "/dev/null"], &["is a character device"]);
    let behind = format!("{}@1G", text(image.path()));
    fails_in_one_line(
        &["info", &behind],
        &["ends at byte 8388608, before the offset 1073741824"],
    );
}

/// Another user runs this, since root may read everything.
#[test]
fn the_error_of_an_unreadable_image_is_one_line() {
    require!(Need::Root, Need::Program("setpriv"));
    let folder = scratch::folder().expect("a folder");
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everyone).expect("permission");
    let path = folder.path().join("image");
    std::fs::write(&path, [0; 4096]).expect("space");
    let nobody = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    std::fs::set_permissions(&path, nobody).expect("permission");
    let output = tools::command("setpriv")
        .expect("it exists")
        .args(["--bounding-set=-all", "--inh-caps=-all", "--"])
        .arg(env!("CARGO_BIN_EXE_fourscore"))
        .args(["info", text(&path)])
        .output()
        .expect("it runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), message.lines().count()),
        (Some(1), 1),
        "{message}"
    );
    assert!(message.contains("image: Permission denied"), "{message}");
}

/// The command fails with status 1, no output, and one line of message that contains all `words`.
#[track_caller]
fn fails_in_one_line(arguments: &[&str], words: &[&str]) {
    let output = fourscore(arguments).output().expect("it runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(message.lines().count(), 1, "{arguments:?}: {message}");
    let image = arguments.last().and_then(|path| path.split('@').next());
    let head = format!("fourscore: {}: ", image.expect("an image"));
    assert!(message.starts_with(&head), "{message}");
    for word in words {
        assert!(message.contains(word), "{arguments:?}: {message}");
    }
}

/// debugfs writes a journal with one transaction; then its commit block is damaged.
#[test]
fn info_reports_a_damaged_last_transaction() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = Image::builder(MiB(16))
        .kind("ext4")
        .block_size_bytes(1024)
        .make()
        .expect("mke2fs runs");
    oracle::debugfs_write(image.path(), &["jo -c", "jw -b 15000 /dev/zero", "jc"])
        .expect("debugfs has a journal");
    let intact = printed(&mut fourscore(&["info", "--json", text(image.path())]));
    let json: serde_json::Value = serde_json::from_str(&intact).expect("JSON");
    assert!(json["journal_damage"].is_null(), "{intact}");

    let mut bytes = std::fs::read(image.path()).expect("the image");
    let is_commit = |block: &&mut [u8]| block.starts_with(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2]);
    let commit = bytes.chunks_mut(1024).find(is_commit);
    // The time of the commit, which only the checksum covers.
    commit.expect("a commit block")[0x3b] ^= 1;
    std::fs::write(image.path(), &bytes).expect("space");
    let output = fourscore(&["info", "--json", text(image.path())])
        .output()
        .expect("it runs");
    let (message, json) = (
        String::from_utf8_lossy(&output.stderr),
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON"),
    );
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(
        message.contains("journal: transaction ") && message.contains("was left out: "),
        "{message}"
    );
    let damage = json["journal_damage"].as_str().expect("a field");
    assert!(message.contains(damage), "{damage}");
    assert_eq!(std::fs::read(image.path()).expect("the image"), bytes);
}
