//! Trees that take too long for the ordinary test run: `cargo test -p fourscore-build --test large
//! -- --ignored`.
//!
//! A binary of its own, because it measures the memory of its process.

#[allow(dead_code, reason = "it needs a part of it")]
#[path = "it/cases/mod.rs"]
mod cases;
#[allow(dead_code, reason = "it needs a part of it")]
#[path = "it/common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;

use common::oci::{Layout, MANIFEST, TAR_ZSTD, descriptor};
use common::{END, header};
use fourscore_build::Overwrite;
use fourscore_build::manifest::Manifest;
use fourscore_build::source::{Excludes, Reading, Source};
use fourscore_build::{Flow, ListTarget, Summary, build};
use fourscore_sync::Mutex;
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch};

use cases::Case;

/// Held by each test, because memory is measured for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// The promised memory limit: bytes for each file, and a constant.
const BYTES_PER_FILE: u64 = 200;
const CONSTANT_BYTES: u64 = 256 << 20;

/// The root and lost+found.
const FIXED_OBJECTS: u64 = 2;

/// The peak memory of this process since [`reset_peak_memory`], in bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok())
        .expect("a number")
        << 10
}

/// The file at `path`, to which a list is written.
fn list_target(path: &Path) -> ListTarget {
    ListTarget::find(path, Overwrite::default()).unwrap()
}

fn reset_peak_memory() {
    fs::write("/proc/self/clear_refs", "5").expect("proc");
}

#[test]
#[ignore = "a million files take minutes"]
fn a_million_small_files_in_bounded_memory() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let _alone = ALONE.lock();
    let folder = scratch::folder().unwrap();
    for directory in 0..1000 {
        let directory = folder.path().join(format!("directory-{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..1000 {
            fs::write(directory.join(format!("file-{file}")), format!("{file}")).unwrap();
        }
    }
    let case = Case::new("-t ext4");
    reset_peak_memory();
    let summary = case.build(folder.path()).unwrap();
    assert_bounded_memory(&summary);
    case.check_both(folder.path());
}

#[track_caller]
fn assert_bounded_memory(summary: &Summary) {
    let most = peak_memory();
    let allowed = summary.objects * BYTES_PER_FILE + CONSTANT_BYTES;
    let objects = summary.objects;
    println!("{objects} objects, at most {most} bytes of memory");
    assert!(most < allowed, "{most} bytes, the limit is {allowed}");
}

/// A compressed archive of empty files with these paths.
fn packed(paths: impl Iterator<Item = String>) -> Vec<u8> {
    let mut packed = zstd::Encoder::new(Vec::new(), 1).unwrap();
    for path in paths {
        packed.write_all(&header(path.as_bytes(), b'0', 0)).unwrap();
    }
    packed.write_all(&END).unwrap();
    packed.finish().unwrap()
}

/// Paths of a thousand files in each of these directories.
fn thousands(directories: Range<u32>) -> impl Iterator<Item = String> {
    let files = |directory| (0..1000).map(move |nr| format!("directory-{directory}/file-{nr}"));
    directories.flat_map(files)
}

/// A layout with one image of these compressed layers.
fn image_of(layers: &[Vec<u8>]) -> Layout {
    let layout = Layout::new();
    let blobs = layers.iter().map(|layer| (TAR_ZSTD, layout.blob(layer)));
    let manifest = layout.manifest(&blobs.collect::<Vec<_>>());
    layout.index(&[descriptor(MANIFEST, &manifest, "")]);
    layout
}

/// With so many files, storing all entries beside all objects would exceed the limit.
#[test]
#[ignore = "two million files take minutes"]
fn a_layer_of_two_million_files_in_bounded_memory() {
    require!(Need::Program("e2fsck"));
    let _alone = ALONE.lock();
    let layout = image_of(&[packed(thousands(0..2000))]);
    let case = Case::new("-t ext4");
    reset_peak_memory();
    let summary = case.build_source(&layout.source(None)).unwrap();
    assert_bounded_memory(&summary);
    assert_eq!(summary.objects, 2_002_000 + FIXED_OBJECTS);
    assert_clean(&case.image());
}

/// The second layer replaces files, the third removes some and is as long as the first.
#[test]
#[ignore = "two million files take minutes"]
fn three_layers_in_bounded_memory() {
    require!(Need::Program("e2fsck"));
    let _alone = ALONE.lock();
    let gone = (0..100).map(|directory| format!("directory-{directory}/.wh..wh..opq"));
    let layout = image_of(&[
        packed(thousands(0..1000)),
        packed(thousands(900..1000)),
        packed(gone.chain(thousands(1000..2000))),
    ]);
    let case = Case::new("-t ext4");
    reset_peak_memory();
    let summary = case.build_source(&layout.source(None)).unwrap();
    assert_bounded_memory(&summary);
    assert_eq!(summary.objects, 1_902_000 + FIXED_OBJECTS);
    assert_clean(&case.image());
}

/// The manifest of the image is longer than the memory limit.
#[test]
#[ignore = "two million files take minutes"]
fn one_directory_and_manifests_of_two_million_files_in_bounded_memory() {
    require!(Need::Program("e2fsck"));
    let _alone = ALONE.lock();
    let folder = scratch::folder().unwrap();
    let archive = folder.path().join("archive");
    let paths = (0..2_000_000).map(|number| format!("directory/file-{number}"));
    fs::write(&archive, packed(paths)).unwrap();
    let (list, again) = (folder.path().join("list"), folder.path().join("again"));
    let mut case = Case::new("-t ext4");
    case.options.read_back.manifest = Some(list_target(&list));
    reset_peak_memory();
    let summary = case
        .build_source(&Source::Path(archive.clone(), Reading::ByContent))
        .unwrap();
    assert_bounded_memory(&summary);
    assert_eq!(summary.objects, 2_000_001 + FIXED_OBJECTS);
    assert_clean(&case.image());
    case.options.read_back.manifest = Some(list_target(&again));
    reset_peak_memory();
    let mut tree = case.tree_of(&Source::Path(archive, Reading::ByContent));
    let manifest = Manifest::read(&list).unwrap();
    manifest.apply(&mut tree, &Excludes::default()).unwrap();
    let made = build(&case.options, tree, &cases::target(&case.image()), &|_| {
        Flow::Continue
    });
    assert_bounded_memory(&made.unwrap());
    let (list, again) = (File::open(list).unwrap(), File::open(again).unwrap());
    let lines = |list| BufReader::new(list).lines().map(Result::unwrap);
    assert!(
        lines(list).eq(lines(again)),
        "the manifest changed something"
    );
}

#[test]
#[ignore = "/usr of this machine takes minutes and its own size in memory"]
fn the_usr_directory_of_this_machine() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let _alone = ALONE.lock();
    let case = Case::new("-t ext4");
    let summary = case.check_both(Path::new("/usr"));
    println!("{} objects, {} bytes", summary.objects, summary.size_bytes);
    assert!(summary.free_bytes * 100 < summary.size_bytes, "{summary:?}");
}
