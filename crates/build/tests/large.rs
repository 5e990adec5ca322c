//! Trees that take too long for every day:
//! `cargo test -p fourscore-build --test large -- --ignored`.

mod common;
#[path = "images/mod.rs"]
mod images;

use std::fs;
use std::io::Write;
use std::path::Path;

use common::oci::{Layout, MANIFEST, TAR_ZSTD, descriptor};
use common::{END, header};
use fourscore_build::Summary;
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

/// So many that keeping all entries beside all objects would take more than is promised.
#[test]
#[ignore = "two million files take minutes"]
fn a_layer_of_two_million_files_in_bounded_memory() {
    require!(Need::Program("e2fsck"));
    let _alone = ALONE.lock();
    let layout = Layout::new();
    let mut packed = zstd::Encoder::new(Vec::new(), 1).unwrap();
    for directory in 0..2000 {
        for file in 0..1000 {
            let path = format!("directory-{directory}/file-{file}");
            packed.write_all(&header(path.as_bytes(), b'0', 0)).unwrap();
        }
    }
    packed.write_all(&END).unwrap();
    let layer = layout.blob(&packed.finish().unwrap());
    let manifest = layout.manifest(&[(TAR_ZSTD, layer)]);
    layout.index(&[descriptor(MANIFEST, &manifest, "")]);
    let case = Case::new("-t ext4");
    forget_most_memory();
    let summary = case.build_source(&layout.source(None)).unwrap();
    assert_little_memory(&summary);
    assert_eq!(summary.objects, 2_002_000 + 1);
    assert_clean(&case.image());
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
