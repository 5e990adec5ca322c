//! Tests of archives that can be read only once: their data is written to the image as it arrives,
//! and the image is as exact as one built from a file.

use std::fs;
use std::path::{Path, PathBuf};

use fourscore_build::source::{Reading, Source};
use fourscore_build::{BuildError, Comparison, Size, Summary};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};

use crate::cases::{self, Case, with_everything};

/// A case whose data is streamed into the image, with no directory for a spool.
fn streaming(form: &str) -> Case {
    let mut case = spooling(form);
    case.scratch = PathBuf::from("/nowhere/at/all");
    case
}

/// A case without verification, so that data may be streamed.
fn spooling(form: &str) -> Case {
    let mut case = Case::new(form);
    case.options.read_back.comparison = Comparison::No;
    case
}

/// A tree with every kind of object except a socket, which archives do not store.
fn tree_for_archives() -> tempfile::TempDir {
    let tree = with_everything();
    let socket = tree.path().join("socket");
    // The socket exists only if the test runs as root.
    if socket.symlink_metadata().is_ok() {
        fs::remove_file(socket).expect("ours");
    }
    tree
}

/// A tree of [`tree_for_archives`], and its archive.
fn packed_tree() -> (tempfile::TempDir, tempfile::TempDir) {
    let tree = tree_for_archives();
    let archive = packed(tree.path(), &["."]);
    (tree, archive)
}

/// Packs these parts of a directory, in this order.
fn packed(folder: &Path, parts: &[&str]) -> tempfile::TempDir {
    let directory = scratch::folder().expect("a folder");
    let mut tar = tools::command("tar").expect("tar");
    tar.args(["--format=pax", "--sparse", "--xattrs", "--acls", "-czf"])
        .arg(directory.path().join("source.tar.gz"))
        .arg("-C")
        .arg(folder)
        .args(["--no-recursion", ".", "--recursion"])
        .args(parts);
    tools::stdout_of(&mut tar).expect("an archive");
    directory
}

fn source(directory: &tempfile::TempDir) -> Source {
    Source::Path(directory.path().join("source.tar.gz"), Reading::ByContent)
}

/// Builds, runs e2fsck, and compares the kernel's mount with the tree.
#[track_caller]
fn check(case: &Case, archive: &tempfile::TempDir, tree: &Path) -> Summary {
    let summary = case.build_source(&source(archive)).expect("disk space");
    assert_clean(&case.image());
    case.compare(tree);
    let len = fs::metadata(case.image()).expect("the image").len();
    assert_eq!(len, summary.size_bytes);
    summary
}

#[test]
fn data_is_written_as_it_arrives() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let (tree, archive) = packed_tree();
    for size in [
        Size::Minimum,
        Size::AutoPlusPercent(20),
        Size::Bytes(300 << 20),
    ] {
        let mut case = streaming("-t ext4");
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
        check(&streaming(form), &archive, tree.path());
    }
}

#[test]
fn data_is_spooled_if_tables_are_tied_to_their_groups() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let (tree, archive) = packed_tree();
    for form in [
        "-t ext2",
        "-t ext3 -b 1024",
        "-t ext4 -O bigalloc",
        "-t ext4 -O ^flex_bg,^resize_inode,meta_bg",
        "-t ext4 -O sparse_super2,^resize_inode",
    ] {
        check(&spooling(form), &archive, tree.path());
    }
    // The space that a draft reserves for superblocks is most of such a group.
    check(&spooling("-t ext4 -g 512 -b 1024"), &archive, tree.path());
    let mut verified = spooling("-t ext4");
    verified.options.read_back.comparison = Comparison::Everything;
    check(&verified, &archive, tree.path());
}

/// Files of pseudorandom lengths, which fill groups and gaps in various ways.
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
        fs::write(folder.join(format!("file-{number}")), vec![byte; len]).expect("disk space");
    }
}

#[test]
fn replaced_files_take_no_space() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let tree = scratch::folder().expect("a folder");
    many(tree.path(), 150);
    let parts: Vec<String> = (0..150).map(|number| format!("file-{number}")).collect();
    let once: Vec<&str> = parts.iter().map(String::as_str).collect();
    // All files are packed at least twice, and the first ones are replaced.
    let mut often = once[40..].to_vec();
    often.extend(once.iter().rev());
    often.extend(&once[..90]);
    let (once, often) = (packed(tree.path(), &once), packed(tree.path(), &often));
    for form in ["-t ext4 -b 1024", "-t ext4"] {
        for size in [Size::Auto, Size::AutoPlusBytes(5 << 20)] {
            let mut case = streaming(form);
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
            // The size is also that of an image whose data was spooled.
            let mut other = spooling(form);
            other.options.size = size;
            other.options.read_back.comparison = Comparison::Everything;
            let spooled = other.build_source(&source(&often)).expect("disk space");
            let apart = spooled.size_bytes.abs_diff(multiple.size_bytes);
            assert!(
                apart <= spooled.size_bytes / 100,
                "{spooled:?} {multiple:?}"
            );
        }
    }
}

#[test]
fn images_of_a_stream_do_not_depend_on_threads() {
    require!(Need::Program("e2fsck"));
    let tree = tree_for_archives();
    many(tree.path(), 60);
    let archive = packed(tree.path(), &["."]);
    cases::assert_same_bytes_on_any_thread_count(
        || streaming("-t ext4 -b 1024"),
        |case| case.build_source(&source(&archive)),
    );
}

#[test]
fn too_small_a_size_is_an_error_and_leaves_nothing() {
    require!(Need::Program("e2fsck"));
    let tree = scratch::folder().expect("a folder");
    many(tree.path(), 500);
    let archive = packed(tree.path(), &["."]);
    let mut case = streaming("-t ext4");
    let content_bytes = case
        .build_source(&source(&archive))
        .expect("disk space")
        .content_bytes;
    fs::remove_file(case.image()).expect("it is there");
    // This size holds the data, but nothing else.
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
fn more_inodes_than_fit_into_the_groups_of_the_draft() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let tree = scratch::folder().expect("a folder");
    // Groups of 8 MiB hold 8192 inodes; this many empty files make groups smaller.
    for number in 0..20_000 {
        fs::write(tree.path().join(format!("{number}")), "").expect("disk space");
    }
    fs::write(tree.path().join("big"), vec![5; 9 << 20]).expect("disk space");
    let archive = packed(tree.path(), &["."]);
    check(&streaming("-t ext4 -b 1024"), &archive, tree.path());
}

#[test]
fn images_can_be_written_to_and_resized() {
    require!(
        Need::KernelMount,
        Need::Program("e2fsck"),
        Need::Program("resize2fs")
    );
    let (tree, archive) = packed_tree();
    let case = streaming("-t ext4 -b 1024");
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
    fs::write(mount.path().join("more"), vec![8; 1 << 20]).expect("disk space");
    fs::remove_file(mount.path().join("big")).expect("a file");
    mount.unmount().expect("not busy");
    assert_clean(&case.image());
}
