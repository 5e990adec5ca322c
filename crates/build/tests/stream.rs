//! Archives that can be read only once: their contents go into the image as they arrive, and what
//! comes out is as exact as from a file.

#[path = "images/mod.rs"]
mod images;

use std::fs;
use std::path::{Path, PathBuf};

use fourscore_build::source::{Reading, Source};
use fourscore_build::{BuildError, Comparison, Size, Summary};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};

use images::{Case, sha256, with_everything};

/// A form whose contents can be placed as they arrive, and no place for any that wait.
fn flowing(form: &str) -> Case {
    let mut case = waiting(form);
    case.scratch = PathBuf::from("/nowhere/at/all");
    case
}

/// A form that is not verified, so that contents may flow.
fn waiting(form: &str) -> Case {
    let mut case = Case::new(form);
    case.options.read_back.comparison = Comparison::No;
    case
}

/// A tree with one of everything but a socket, which no archive can hold.
fn with_all_that_archives_hold() -> tempfile::TempDir {
    let tree = with_everything();
    let socket = tree.path().join("socket");
    // Only root could make it.
    if socket.symlink_metadata().is_ok() {
        fs::remove_file(socket).expect("ours");
    }
    tree
}

/// Packs these parts of a folder, in this order.
fn packed(folder: &Path, parts: &[&str]) -> tempfile::TempDir {
    let place = scratch::folder().expect("a folder");
    let mut tar = tools::command("tar").expect("tar");
    tar.args(["--format=pax", "--sparse", "--xattrs", "--acls", "-czf"])
        .arg(place.path().join("source.tar.gz"))
        .arg("-C")
        .arg(folder)
        .args(["--no-recursion", ".", "--recursion"])
        .args(parts);
    tools::stdout_of(&mut tar).expect("an archive");
    place
}

fn source(place: &tempfile::TempDir) -> Source {
    Source::Path(place.path().join("source.tar.gz"), Reading::ByContent)
}

/// Builds, and has e2fsck and the kernel look at it.
#[track_caller]
fn check(case: &Case, archive: &tempfile::TempDir, tree: &Path) -> Summary {
    let summary = case.build_source(&source(archive)).expect("room");
    assert_clean(&case.image());
    case.compare(tree);
    let len = fs::metadata(case.image()).expect("the image").len();
    assert_eq!(len, summary.size_bytes);
    summary
}

#[test]
fn contents_are_placed_as_they_arrive() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let tree = with_all_that_archives_hold();
    let archive = packed(tree.path(), &["."]);
    for size in [
        Size::Minimum,
        Size::AutoPlusPercent(20),
        Size::Bytes(300 << 20),
    ] {
        let mut case = flowing("-t ext4");
        case.options.size = size;
        check(&case, &archive, tree.path());
    }
    for form in [
        "-t ext4 -b 1024",
        "-t ext4 -b 2048 -I 512",
        "-t ext4 -O ^has_journal",
        "-t ext4 -O ^64bit,^resize_inode",
        "-t ext4 -O ^sparse_super,^resize_inode -b 1024",
        "-t ext4 -O ^extent,^64bit",
        "-t ext4 -g 4096 -b 1024",
    ] {
        check(&flowing(form), &archive, tree.path());
    }
}

#[test]
fn where_tables_are_tied_to_their_groups_contents_wait() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let tree = with_all_that_archives_hold();
    let archive = packed(tree.path(), &["."]);
    for form in [
        "-t ext2",
        "-t ext3 -b 1024",
        "-t ext4 -O bigalloc",
        "-t ext4 -O ^flex_bg,^resize_inode,meta_bg",
        "-t ext4 -O sparse_super2,^resize_inode",
    ] {
        check(&waiting(form), &archive, tree.path());
    }
    // The room that a draft keeps free for superblocks is most of such a group.
    check(&waiting("-t ext4 -g 512 -b 1024"), &archive, tree.path());
    let mut verified = waiting("-t ext4");
    verified.options.read_back.comparison = Comparison::Everything;
    check(&verified, &archive, tree.path());
}

/// Files of lengths that fill groups and gaps in ever other ways.
fn many(folder: &Path, files: u32) {
    let mut state = 1u64;
    for number in 0..files {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let len = match number % 7 {
            0 => 300_000,
            1..4 => (state >> 33) % 3000,
            _ => (state >> 33) % 20_000,
        };
        let len = usize::try_from(len).expect("small");
        let byte = number.to_le_bytes()[0];
        fs::write(folder.join(format!("file-{number}")), vec![byte; len]).expect("room");
    }
}

#[test]
fn what_later_entries_replace_costs_no_space() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let tree = scratch::folder().expect("a folder");
    many(tree.path(), 150);
    let parts: Vec<String> = (0..150).map(|number| format!("file-{number}")).collect();
    let once: Vec<&str> = parts.iter().map(String::as_str).collect();
    // All files twice and more, in turns: whatever came first is replaced.
    let mut often = once[40..].to_vec();
    often.extend(once.iter().rev());
    often.extend(&once[..90]);
    let (once, often) = (packed(tree.path(), &once), packed(tree.path(), &often));
    for form in ["-t ext4 -b 1024", "-t ext4"] {
        for size in [Size::Auto, Size::AutoPlusBytes(5 << 20)] {
            let mut case = flowing(form);
            case.options.size = size;
            let single = check(&case, &once, tree.path());
            let multiple = check(&case, &often, tree.path());
            let slack = match size {
                Size::AutoPlusBytes(bytes) => bytes,
                _ => 0,
            };
            for made in [single, multiple] {
                assert!(made.free_bytes <= slack + made.size_bytes / 100, "{made:?}");
            }
            let apart = single.size_bytes.abs_diff(multiple.size_bytes);
            assert!(apart <= single.size_bytes / 100, "{apart}");
            // And as much as an image whose contents waited.
            let mut other = waiting(form);
            other.options.size = size;
            other.options.read_back.comparison = Comparison::Everything;
            let waited = other.build_source(&source(&often)).expect("room");
            let apart = waited.size_bytes.abs_diff(multiple.size_bytes);
            assert!(apart <= waited.size_bytes / 100, "{waited:?} {multiple:?}");
        }
    }
}

#[test]
fn the_same_stream_makes_the_same_bytes_on_any_number_of_threads() {
    require!(Need::Program("e2fsck"));
    let tree = with_all_that_archives_hold();
    many(tree.path(), 60);
    let archive = packed(tree.path(), &["."]);
    let sums: Vec<String> = [1, 2, 7, 2]
        .into_iter()
        .map(|threads| {
            let mut case = flowing("-t ext4 -b 1024");
            case.options.threads = Some(threads);
            case.options.source_date_epoch = Some(1_500_000_000);
            case.build_source(&source(&archive)).expect("room");
            sha256(&case.image())
        })
        .collect();
    assert!(sums.windows(2).all(|pair| pair[0] == pair[1]), "{sums:?}");
}

#[test]
fn a_size_that_does_not_do_is_an_error_and_leaves_nothing() {
    require!(Need::Program("e2fsck"));
    let tree = scratch::folder().expect("a folder");
    many(tree.path(), 500);
    let archive = packed(tree.path(), &["."]);
    let mut case = flowing("-t ext4");
    let content_bytes = case
        .build_source(&source(&archive))
        .expect("room")
        .content_bytes;
    fs::remove_file(case.image()).expect("it is there");
    // There is room for the contents and for nothing else.
    case.options.size = Size::Bytes(content_bytes);
    let error = case.build_source(&source(&archive)).expect_err("too small");
    let is_named = |error: &BuildError| match error {
        BuildError::NoSpace { needed_bytes, .. } => *needed_bytes > content_bytes,
        _ => false,
    };
    assert!(is_named(&error), "{error}");
    let folder = case.image();
    let folder = folder.parent().expect("a folder");
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0);
}

#[test]
fn more_inodes_than_groups_of_the_draft_can_hold() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let tree = scratch::folder().expect("a folder");
    // Groups of 8 MiB have room for 8192 inodes; so many empty files make groups smaller.
    for number in 0..20_000 {
        fs::write(tree.path().join(format!("{number}")), "").expect("room");
    }
    fs::write(tree.path().join("big"), vec![5; 9 << 20]).expect("room");
    let archive = packed(tree.path(), &["."]);
    check(&flowing("-t ext4 -b 1024"), &archive, tree.path());
}

#[test]
fn images_can_be_written_to_and_resized() {
    require!(
        Need::KernelMount,
        Need::Program("e2fsck"),
        Need::Program("resize2fs")
    );
    let tree = with_all_that_archives_hold();
    let archive = packed(tree.path(), &["."]);
    let case = flowing("-t ext4 -b 1024");
    check(&case, &archive, tree.path());
    let resize = |arguments: &[&str]| {
        let mut command = tools::command("resize2fs").expect("resize2fs");
        command.args(&arguments[..arguments.len() - 1]);
        command.arg(case.image());
        command.args(arguments.last().filter(|last| !last.is_empty()));
        tools::stdout_of(&mut command).expect("it can be resized");
        assert_clean(&case.image());
        case.compare(tree.path());
    };
    resize(&["-f", "400M"]);
    resize(&["-f", "-M", ""]);
    let mount = KernelMount::new(&case.image(), Access::ReadWrite, "").expect("a mount");
    fs::write(mount.path().join("more"), vec![8; 1 << 20]).expect("room");
    fs::remove_file(mount.path().join("big")).expect("a file");
    mount.unmount().expect("nobody uses it");
    assert_clean(&case.image());
}
