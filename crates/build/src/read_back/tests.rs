//! Tests of reading back: any difference from the sources is found and named.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fourscore_block::{DeviceOptions, open_path};
use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::DeviceNr;

use super::*;
use crate::layout::{compute_layout, image_seconds};
use crate::target::{Overwrite, Target};
use crate::tree::{Content, Kind, Meta, Piece, Sparse, Xattrs};
use crate::write;

/// The tree of all images here, with one change.
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
    // The same UUID and hash seed for every tree.
    options.format.uuid = Some(uuid::Uuid::from_u128(7));
    options
        .format
        .add_extended("hash_seed=00000000-0000-4000-8000-000000000001")
        .unwrap();
    options.read_back.comparison = Comparison::Everything;
    options
}

/// An image of [`tree`] without changes.
struct Built {
    _directory: tempfile::TempDir,
    image: PathBuf,
    options: Options,
}

impl Built {
    fn new(features: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        let options = options(features);
        let watch = |_: Progress| Flow::Continue;
        write_image(&image, &options, &watch).unwrap();
        Self {
            _directory: directory,
            image,
            options,
        }
    }

    /// Compares the image with a tree that has one change.
    fn compare(&self, change: &str) -> String {
        self.compare_tree(tree(change))
    }

    /// Compares the image with a tree; returns the difference.
    fn compare_tree(&self, tree: Tree) -> String {
        let device = open_path(&self.image, DeviceOptions::default()).unwrap();
        let layout = compute_layout(&self.options, tree, None).unwrap();
        let result = read_back(&layout, &self.options, Arc::new(device), &|_| {
            Flow::Continue
        });
        result.map_or_else(|error| error.to_string(), |_| SAME.to_owned())
    }
}

const SAME: &str = "the same";

fn write_image(image: &Path, options: &Options, watch: Watch<'_>) -> BuildResult<()> {
    let layout = compute_layout(options, tree(""), None).unwrap();
    let target = Target::find(image, Overwrite::AnyContent).unwrap();
    let new_image = write::NewImage::new(&target).unwrap();
    let made = Timestamp::new(2_000_000_000, 0).unwrap();
    write::write(&layout, options, &target, new_image, made, watch)
}

#[test]
fn every_difference_is_found_and_named() {
    let built = Built::new("^has_journal");
    assert_eq!(built.compare(""), SAME);
    for (change, expected) in [
        (
            "mode",
            "/d/meta: the finished image differs from its source: mode is",
        ),
        ("uid", "uid is 0 instead of 1"),
        (
            "time",
            "/d/meta: the finished image differs from its source: atime is",
        ),
        (
            "xattr",
            "/d/meta: the finished image differs from its source: the attribute user.a",
        ),
        ("more xattrs", "the attribute user.b differs"),
        (
            "content",
            "/d/file: the finished image differs from its source: the content differs at byte 8",
        ),
        (
            "device",
            "/null: the finished image differs from its source: device is",
        ),
        (
            "target",
            "/link: the finished image differs from its source: the link target differs",
        ),
        (
            "name",
            "/d: the finished image differs from its source: the name one differs",
        ),
    ] {
        let found = built.compare(change);
        assert!(
            found.contains(expected),
            "expected {expected}\nfound    {found}"
        );
    }
}

/// The offset of a text in the image.
fn find(image: &Path, text: &[u8]) -> u64 {
    let bytes = std::fs::read(image).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text);
    at.expect("it is in the image") as u64
}

#[test]
fn a_changed_byte_in_the_image_is_found() {
    for (features, text, expected) in [
        (
            "^has_journal",
            &b"the needle"[..],
            "/d/file: the finished image differs from its source: the content differs at byte 0",
        ),
        (
            "^has_journal",
            b"\x04\x01meta",
            "/d: the finished image differs from its source: ",
        ),
        (
            "^has_journal,^metadata_csum,^uninit_bg",
            b"meta",
            "/d: the finished image differs from its source: the name ?eta differs",
        ),
    ] {
        let built = Built::new(features);
        let at = find(&built.image, text);
        let mut options = std::fs::File::options();
        let file = options.write(true).open(&built.image).unwrap();
        file.write_all_at(b"?", at + if text.starts_with(b"\x04") { 2 } else { 0 })
            .unwrap();
        let found = built.compare("");
        assert!(
            found.contains(expected),
            "{features}: expected {expected}\nfound    {found}"
        );
    }
}

#[test]
fn a_source_with_data_where_the_image_has_a_hole_differs() {
    let built = Built::new("^has_journal");
    let compare_with = |byte: u8| {
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
        built.compare_tree(tree)
    };
    assert_eq!(compare_with(0), SAME);
    let found = compare_with(5);
    assert!(
        found.contains("/hole") && found.contains("at byte 70001"),
        "{found}"
    );
}

#[test]
fn a_build_can_be_stopped_while_reading_back() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let watch = |progress: Progress| match progress.phase {
        Phase::ReadingBack => Flow::Stop,
        Phase::Writing => Flow::Continue,
    };
    let result = write_image(&image, &options("^has_journal"), &watch);
    assert!(matches!(result, Err(BuildError::Stopped)), "{result:?}");
    assert!(!image.exists());
}
