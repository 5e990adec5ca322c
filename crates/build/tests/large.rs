//! Trees that take too long for every day:
//! `cargo test -p fourscore-build --test large -- --ignored`.

mod common;
#[path = "images/mod.rs"]
mod images;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;

use common::oci::{Layout, MANIFEST, TAR_ZSTD, descriptor};
use common::{END, header};
use fourscore_build::manifest::Manifest;
use fourscore_build::source::{Excludes, Reading, Source};
use fourscore_build::{Flow, Summary, build};
use fourscore_sync::Mutex;
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch};

use images::Case;

/// Held by each test here: memory is the whole process's.
static ALONE: Mutex<()> = Mutex::new(());

/// What is promised: so many bytes for each file, and so many in any case.
const BYTES_PER_FILE: u64 = 200;
const BYTES_ANYWAY: u64 = 256 << 20;

/// The root and lost+found.
const OBJECTS_ANYWAY: u64 = 2;

/// The most memory that this process had since [`forget_most_memory`], in bytes.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok())
        .expect("a number")
        << 10
}

fn forget_most_memory() {
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
    forget_most_memory();
    let summary = case.build(folder.path()).unwrap();
    assert_little_memory(&summary);
    case.check_both(folder.path());
}

#[track_caller]
fn assert_little_memory(summary: &Summary) {
    let most = most_memory();
    let allowed = summary.objects * BYTES_PER_FILE + BYTES_ANYWAY;
    let objects = summary.objects;
    println!("{objects} objects, at most {most} bytes of memory");
    assert!(most < allowed, "{most} bytes, {allowed} are promised");
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

/// An image in a layout, of these compressed layers.
fn image_of(layers: &[Vec<u8>]) -> Layout {
    let layout = Layout::new();
    let blobs = layers.iter().map(|layer| (TAR_ZSTD, layout.blob(layer)));
    let manifest = layout.manifest(&blobs.collect::<Vec<_>>());
    layout.index(&[descriptor(MANIFEST, &manifest, "")]);
    layout
}

/// So many that keeping all entries beside all objects would take more than is promised.
#[test]
#[ignore = "two million files take minutes"]
fn a_layer_of_two_million_files_in_bounded_memory() {
    require!(Need::Program("e2fsck"));
    let _alone = ALONE.lock();
    let layout = image_of(&[packed(thousands(0..2000))]);
    let case = Case::new("-t ext4");
    forget_most_memory();
    let summary = case.build_source(&layout.source(None)).unwrap();
    assert_little_memory(&summary);
    assert_eq!(summary.objects, 2_002_000 + OBJECTS_ANYWAY);
    assert_clean(&case.image());
}

/// The second layer replaces files, the third takes some away and is as long as the first.
#[test]
#[ignore = "two million files take minutes"]
fn layers_over_each_other_in_bounded_memory() {
    require!(Need::Program("e2fsck"));
    let _alone = ALONE.lock();
    let gone = (0..100).map(|directory| format!("directory-{directory}/.wh..wh..opq"));
    let layout = image_of(&[
        packed(thousands(0..1000)),
        packed(thousands(900..1000)),
        packed(gone.chain(thousands(1000..2000))),
    ]);
    let case = Case::new("-t ext4");
    forget_most_memory();
    let summary = case.build_source(&layout.source(None)).unwrap();
    assert_little_memory(&summary);
    assert_eq!(summary.objects, 1_902_000 + OBJECTS_ANYWAY);
    assert_clean(&case.image());
}

/// A list of all that is in an image is longer than what is kept of it.
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
    case.options.read_back.manifest = Some(list.clone());
    forget_most_memory();
    let summary = case
        .build_source(&Source::Path(archive.clone(), Reading::ByContent))
        .unwrap();
    assert_little_memory(&summary);
    assert_eq!(summary.objects, 2_000_001 + OBJECTS_ANYWAY);
    assert_clean(&case.image());
    case.options.read_back.manifest = Some(again.clone());
    forget_most_memory();
    let mut tree = case.tree_of(&Source::Path(archive, Reading::ByContent));
    let manifest = Manifest::read(&list).unwrap();
    manifest.apply(&mut tree, &Excludes::default()).unwrap();
    let made = build(&case.options, tree, &images::target(&case.image()), &|_| {
        Flow::Continue
    });
    assert_little_memory(&made.unwrap());
    let (list, again) = (File::open(list).unwrap(), File::open(again).unwrap());
    let lines = |list| BufReader::new(list).lines().map(Result::unwrap);
    assert!(
        lines(list).eq(lines(again)),
        "the manifest changed something"
    );
}

#[test]
#[ignore = "/usr of this machine takes minutes and its own size in memory"]
fn the_root_file_system_of_this_machine() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let _alone = ALONE.lock();
    let case = Case::new("-t ext4");
    let summary = case.check_both(Path::new("/usr"));
    println!("{} objects, {} bytes", summary.objects, summary.size_bytes);
    assert!(summary.free_bytes * 100 < summary.size_bytes, "{summary:?}");
}
