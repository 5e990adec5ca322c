//! Tests of reading back: what is not as it was built is found and named.

use std::os::unix::fs::FileExt;
use std::path::Path;

use fourscore_block::{DeviceOptions, open_path};
use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::DeviceNr;

use super::*;
use crate::layout::{image_seconds, settle};
use crate::target::{Overwrite, Target};
use crate::tree::{Content, Kind, Meta, Piece, Sparse, Xattrs};
use crate::write;

/// The tree that all images here are of, with one thing changed.
fn tree(change: &str) -> Tree {
    let mut tree = Tree::new();
    let is = |what: &str| change == what;
    let meta = Meta {
        permissions: if is("mode") { 0o600 } else { 0o644 },
        uid: if is("uid") { 1 } else { 0 },
        mtime: Timestamp::new(1_000_000_000, if is("time") { 1 } else { 2 }).unwrap(),
        ..Meta::default()
    };
    let mut xattrs = Xattrs::new();
    xattrs.set(b"user.a", if is("xattr") { b"x" } else { b"y" });
    if is("more xattrs") {
        xattrs.set(b"user.b", b"x");
    }
    let plain = Meta::default();
    let none = Xattrs::new();
    let content = if is("content") {
        b"the needXe"
    } else {
        b"the needle"
    };
    let bytes = |bytes: &[u8]| Kind::File(Content::Bytes(bytes.into()));
    let minor = if is("device") { 4 } else { 3 };
    let target = if is("target") {
        b"b".repeat(80)
    } else {
        b"a".repeat(80)
    };
    let mut put = |path: &str, meta: &Meta, kind, xattrs: &Xattrs| {
        tree.insert(path.as_bytes(), meta, kind, xattrs).unwrap()
    };
    put("d/file", &plain, bytes(content), &none);
    put("d/meta", &meta, bytes(b"same"), &xattrs);
    let number = DeviceNr { major: 1, minor };
    put("null", &plain, Kind::CharDevice(number), &none);
    put("link", &plain, Kind::Symlink(target), &none);
    put(
        if is("name") { "d/two" } else { "d/one" },
        &plain,
        bytes(b"1"),
        &none,
    );
    let pieces = [0_u64, 64 << 10].map(|at| Piece {
        at,
        from: 0,
        len_bytes: 0,
    });
    let sparse = Sparse {
        data: crate::tree::DataPlace::Open(crate::tree::FileId(0)),
        len_bytes: 1 << 20,
        pieces: pieces.into(),
    };
    put(
        "hole",
        &plain,
        Kind::File(Content::Sparse(Box::new(sparse))),
        &none,
    );
    for number in 0..200 {
        put(&format!("many/{number}"), &plain, Kind::Fifo, &none);
    }
    tree.add_file(Arc::new(tempfile::tempfile().unwrap()))
        .unwrap();
    tree
}

fn options(features: &str) -> Options {
    let mut options = Options::new();
    options.threads = Some(2);
    options.source_date_epoch = Some(2_000_000_000);
    options.format.features = Some(features.to_owned());
    options.format.time_seconds = Some(image_seconds(&options));
    // The same, whatever is in the image.
    options.format.uuid = Some(uuid::Uuid::from_u128(7));
    options
        .format
        .add_extended("hash_seed=00000000-0000-4000-8000-000000000001")
        .unwrap();
    options.read_back.comparison = Comparison::Everything;
    options
}

fn settled(change: &str, options: &Options) -> Settled {
    settle(options, tree(change), None).unwrap()
}

/// Compares the image with a tree in which one thing is changed.
fn compare(change: &str, options: &Options, image: &Path) -> String {
    let device = open_path(image, DeviceOptions::default()).unwrap();
    let settled = settled(change, options);
    let result = read_back(&settled, options, Arc::new(device), &|_| Flow::Continue);
    result.map_or_else(|error| error.to_string(), |_| "the same".to_owned())
}

fn target(image: &Path) -> Target {
    Target::find(image, Overwrite::AnyContent).unwrap()
}

fn write(built: &Settled, options: &Options, image: &Path, made: Timestamp) {
    let target = target(image);
    let begun = write::Begun::new(&target).unwrap();
    write::write(built, options, (&target, begun), made, &|_| Flow::Continue).unwrap();
}

#[test]
fn everything_that_differs_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = options("^has_journal");
    let made = Timestamp::new(2_000_000_000, 0).unwrap();
    let built = settled("", &options);
    write(&built, &options, &image, made);
    assert_eq!(compare("", &options, &image), "the same");
    for (change, expected) in [
        (
            "mode",
            "/d/meta: the finished image is not as its source: mode is",
        ),
        ("uid", "uid is 0 instead of 1"),
        (
            "time",
            "/d/meta: the finished image is not as its source: atime is",
        ),
        (
            "xattr",
            "/d/meta: the finished image is not as its source: the attribute user.a",
        ),
        ("more xattrs", "the attribute user.b differs"),
        (
            "content",
            "/d/file: the finished image is not as its source: the content differs at byte 8",
        ),
        (
            "device",
            "/null: the finished image is not as its source: device is",
        ),
        (
            "target",
            "/link: the finished image is not as its source: the link target differs",
        ),
        (
            "name",
            "/d: the finished image is not as its source: the name one differs",
        ),
    ] {
        let found = compare(change, &options, &image);
        assert!(
            found.contains(expected),
            "expected {expected}\nfound    {found}"
        );
    }
}

/// Where a text is in the image.
fn find(image: &Path, text: &[u8]) -> u64 {
    let bytes = std::fs::read(image).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text);
    at.expect("it is in the image") as u64
}

#[test]
fn a_byte_that_changes_on_the_way_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let made = Timestamp::new(2_000_000_000, 0).unwrap();
    for (features, text, expected) in [
        (
            "^has_journal",
            &b"the needle"[..],
            "/d/file: the finished image is not as its source: the content differs at byte 0",
        ),
        (
            "^has_journal",
            b"\x04\x01meta",
            "/d: the finished image is not as its source: ",
        ),
        (
            "^has_journal,^metadata_csum,^uninit_bg",
            b"meta",
            "/d: the finished image is not as its source: the name ?eta differs",
        ),
    ] {
        let image = folder.path().join("image");
        let options = options(features);
        let built = settled("", &options);
        write(&built, &options, &image, made);
        let at = find(&image, text);
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(b"?", at + if text.starts_with(b"\x04") { 2 } else { 0 })
            .unwrap();
        let found = compare("", &options, &image);
        assert!(
            found.contains(expected),
            "{features}: expected {expected}\nfound    {found}"
        );
    }
}

#[test]
fn a_source_with_data_where_the_image_has_a_hole_differs() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = options("^has_journal");
    let made = Timestamp::new(2_000_000_000, 0).unwrap();
    let built = settled("", &options);
    write(&built, &options, &image, made);
    let settle_with = |byte: u8| {
        let mut tree = tree("");
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0, byte], 0).unwrap();
        let data = tree.add_file(Arc::new(file)).unwrap();
        let hole = tree.lookup(b"hole").unwrap().unwrap();
        let sparse = Sparse {
            data: crate::tree::DataPlace::Open(data),
            len_bytes: 1 << 20,
            pieces: vec![Piece {
                at: 70_000,
                from: 0,
                len_bytes: 2,
            }],
        };
        let kind = Kind::File(Content::Sparse(Box::new(sparse)));
        tree.set_kind(hole, kind, b"hole").unwrap();
        let device = open_path(&image, DeviceOptions::default()).unwrap();
        let settled = settle(&options, tree, None).unwrap();
        let read = read_back(&settled, &options, Arc::new(device), &|_| Flow::Continue);
        read.err().map(|error| error.to_string())
    };
    assert_eq!(settle_with(0), None);
    let found = settle_with(5).expect("another content");
    assert!(
        found.contains("/hole") && found.contains("at byte 70001"),
        "{found}"
    );
}

#[test]
fn whoever_asks_to_stop_is_heard() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = options("^has_journal");
    let made = Timestamp::new(2_000_000_000, 0).unwrap();
    let watch = |progress: Progress| match progress.phase {
        Phase::ReadingBack => Flow::Stop,
        Phase::Writing => Flow::Continue,
    };
    let target = target(&image);
    let begun = write::Begun::new(&target).unwrap();
    let built = settled("", &options);
    let result = write::write(&built, &options, (&target, begun), made, &watch);
    assert!(matches!(result, Err(BuildError::Stopped)), "{result:?}");
    assert!(!image.exists());
}
