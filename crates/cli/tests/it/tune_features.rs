//! `tune` of what more than the superblock has to change for: checksums, the journal, quota, the
//! orphan file, indexes of directories, the width of descriptors. After it e2fsck and our check
//! find nothing, the tree is the same, the header is that of tune2fs, and the kernel writes the
//! result. And what is refused, and undone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, debugfs, debugfs_write, dumpe2fs_header};
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};
use tempfile::TempDir;

use crate::common::{failing, fourscore, printed, refused, text};

/// What each program writes for itself.
const NOT_COMPARED: &[&str] = &[
    "Filesystem created",
    "Last write time",
    "Last checked",
    "Last mount time",
    "Next check after",
    "Mount count",
    "Lifetime writes",
    "Checksum",
];
const UUID: &str = "-U 12345678-9abc-4def-8123-456789abcdef";

/// A folder with a tree, and the path of an image that is not made yet.
struct Fixture {
    folder: TempDir,
    tree: PathBuf,
    image: PathBuf,
}

fn fixture() -> Fixture {
    let folder = scratch::folder().expect("a folder");
    let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
    source(&tree);
    Fixture {
        folder,
        tree,
        image,
    }
}

/// A tree with a directory of many names, an indexed one, many extents, long links.
fn source(folder: &Path) {
    let many = folder.join("many");
    fs::create_dir_all(&many).expect("space");
    // Twelve bytes: without checksums, blocks of 1 KiB have no byte left.
    for nr in 0..300 {
        fs::write(many.join(format!("name-{nr:07}")), []).expect("space");
    }
    let deep = folder.join("deep");
    fs::create_dir(&deep).expect("space");
    for nr in 0..60 {
        fs::write(deep.join(format!("a-rather-long-name-{nr}")), [7; 700]).expect("space");
    }
    std::os::unix::fs::symlink("x".repeat(90), folder.join("link")).expect("space");
    let sparse = fs::File::create(folder.join("sparse")).expect("space");
    for nr in 0..300 {
        use std::os::unix::fs::FileExt;
        sparse.write_all_at(b"y", nr * 20_000).expect("space");
    }
}

fn mke2fs(image: &Path, source: &Path, options: &str) {
    let mut command = tools::command("mke2fs").expect("found before");
    command
        .args(["-q", "-F", "-t", "ext4", "-d", text(source)])
        .args(options.split_whitespace())
        .args([text(image), "48M"]);
    tools::stdout_of(&mut command).expect("mke2fs runs");
    if source.join("sparse").exists() {
        let value = "v".repeat(500);
        debugfs_write(image, &[format!("ea_set /sparse user.big {value}")]).expect("it runs");
    }
    // It counts the files for quota, and builds indexes.
    let mut command = tools::command("e2fsck").expect("found before");
    tools::output_of(command.args(["-fyD", text(image)])).expect("it runs");
}

fn walk(image: &Path) -> String {
    printed(&mut fourscore(&["walk", "--hash", text(image)]))
}

fn tune(image: &Path, options: &str) {
    let words: Vec<&str> = options.split(' ').chain([text(image)]).collect();
    printed(fourscore(&["tune"]).args(words));
}

fn header(image: &Path) -> BTreeMap<String, String> {
    let mut header = dumpe2fs_header(image).expect("a header");
    header.retain(|name, _| !NOT_COMPARED.contains(&name.as_str()));
    header
}

/// Whether the kernel's features include these.
fn is_mountable(options: &str) -> bool {
    !["quota", "project", "casefold"]
        .iter()
        .any(|feature| options.contains(feature))
}

/// Writes the image by the kernel's own ext4, if tests run as root.
fn write_by_kernel(image: &Path) {
    if !tools::is_root() {
        return;
    }
    let mounted = KernelMount::new(image, Access::ReadWrite, "").expect("a mount");
    let root = mounted.path();
    for nr in 0..40 {
        fs::write(root.join(format!("many/more-{nr}")), [1; 3000]).expect("space");
    }
    assert_eq!(
        fs::read(root.join("many/more-7")).expect("it is there"),
        [1; 3000]
    );
    mounted.unmount().expect("it ends");
    assert_clean(image);
}

/// Tunes an image; what must hold after every change.
#[track_caller]
fn tuned(image: &Path, source: &Path, made: &str, options: &str) {
    mke2fs(image, source, made);
    let before = walk(image);
    tune(image, options);
    assert_clean(image);
    printed(&mut fourscore(&["check", "-n", "-q", text(image)]));
    assert!(
        walk(image) == before,
        "{made} | {options}: the tree differs"
    );
}

/// Compares with what tune2fs makes of the same image.
fn compare(cases: &[(&str, &str)]) {
    require!(
        Need::Program("tune2fs"),
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs"),
        Need::Program("debugfs")
    );
    let Fixture {
        folder,
        tree,
        image: ours,
    } = fixture();
    let theirs = folder.path().join("theirs");
    for (made, options) in cases {
        mke2fs(&theirs, &tree, made);
        let mut tune2fs = tools::command("tune2fs").expect("found before");
        tune2fs.args(options.split(' ')).arg(text(&theirs));
        tools::stdout_of(&mut tune2fs).unwrap_or_else(|why| panic!("tune2fs {options}: {why}"));
        tuned(&ours, &tree, made, options);
        let (mut a, mut b) = (header(&ours), header(&theirs));
        if !options.contains("-U") {
            // mke2fs chose a random one for each image.
            a.remove("Filesystem UUID");
            b.remove("Filesystem UUID");
        }
        a.remove("Directory Hash Seed");
        b.remove("Directory Hash Seed");
        // Directories were rebuilt otherwise, with another number of blocks.
        if made.contains("1024") {
            a.remove("Free blocks");
            b.remove("Free blocks");
        }
        assert_eq!(a, b, "{made} | {options}");
        if is_mountable(&format!("{made} {options}")) {
            write_by_kernel(&ours);
        }
    }
}

#[test]
fn checksums_are_switched_as_by_tune2fs() {
    compare(&[
        ("-b 1024", "-O ^metadata_csum"),
        ("-O metadata_csum_seed", "-O ^metadata_csum"),
        ("", "-O ^metadata_csum,^uninit_bg"),
        ("-O ^metadata_csum,uninit_bg", "-O metadata_csum"),
        ("-O ^metadata_csum,^uninit_bg", "-O metadata_csum"),
        (
            "-I 128 -O ^metadata_csum,^extents,^64bit,^flex_bg",
            "-O metadata_csum",
        ),
        (
            "-O meta_bg,^resize_inode,^metadata_csum",
            "-O metadata_csum",
        ),
        ("-O bigalloc,^metadata_csum -C 16384", "-O metadata_csum"),
        ("-O inline_data,^metadata_csum", "-O metadata_csum"),
        ("-O orphan_file,^metadata_csum", "-O metadata_csum"),
        ("-O ^metadata_csum,^uninit_bg", "-O uninit_bg"),
        ("-O ^metadata_csum,uninit_bg", "-O ^uninit_bg"),
        ("", "-O uninit_bg"),
        ("-b 1024", UUID),
        ("-O ^metadata_csum,uninit_bg", UUID),
        ("-O ^metadata_csum", &format!("-O metadata_csum {UUID}")),
    ]);
}

#[test]
fn files_of_features_come_and_go_as_by_tune2fs() {
    compare(&[
        ("-O ^has_journal", "-O has_journal"),
        ("-O ^has_journal", "-J size=8"),
        ("-O ^has_journal", "-j -O fast_commit"),
        ("-O ^has_journal,^extents,^64bit", "-j"),
        ("-O ^has_journal,bigalloc -C 16384", "-j"),
        ("", "-O ^has_journal"),
        ("-O fast_commit", "-O ^has_journal"),
        ("", "-O quota"),
        ("", "-O project"),
        ("", "-Q prjquota"),
        ("-O quota", "-Q ^usrquota,prjquota"),
        ("-O quota", "-O ^quota"),
        ("-O quota,project", "-O ^quota"),
        ("", "-O orphan_file"),
        ("-O orphan_file", "-O ^orphan_file"),
    ]);
}

#[test]
fn indexes_of_directories_come_and_go_as_by_tune2fs() {
    compare(&[
        ("", "-O ^dir_index"),
        ("-b 1024", "-O ^dir_index"),
        ("-b 1024 -O ^metadata_csum", "-O ^dir_index"),
        ("-O ^extents,^64bit -I 128", "-O ^dir_index"),
        ("-O bigalloc -C 16384", "-O ^dir_index"),
        ("-O inline_data,^has_journal", "-O ^dir_index"),
        ("-b 1024", "-O ^dir_index,^metadata_csum"),
        ("-b 1024 -O ^dir_index", "-O dir_index"),
    ]);
}

/// An index of two levels below its root, in a directory that once had too many subdirectories to
/// count: it gets its count, and its blocks take names.
#[test]
fn an_index_of_several_levels_becomes_a_linear_directory() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let folder = scratch::folder().expect("a folder");
    let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
    let many = tree.join("many");
    fs::create_dir_all(&many).expect("space");
    // Four names in a block of 1 KiB, and 124 blocks below a root.
    for nr in 0..800 {
        fs::write(many.join(format!("{nr:0>200}")), []).expect("space");
    }
    mke2fs(&image, &tree, "-b 1024");
    let index = debugfs(&image, &["htree /many"]).expect("it runs");
    assert!(index.contains("Indirect levels: 1"), "{index}");
    debugfs_write(&image, &["sif /many links_count 1"]).expect("it runs");
    assert_clean(&image);
    tune(&image, "-O ^dir_index");
    assert_clean(&image);
    printed(&mut fourscore(&["check", "-n", "-q", text(&image)]));
    let stat = debugfs(&image, &["stat /many"]).expect("it runs");
    assert!(
        stat.contains("Links: 2 ") && !stat.contains("0x81000"),
        "{stat}"
    );
    let names = printed(&mut fourscore(&["ls", text(&image), "/many"]));
    assert_eq!(names.lines().count(), 800);
    let file = tree.join("file");
    fs::write(&file, "text").expect("space");
    for name in ["one", "two", "three"] {
        let target = format!("{}:/many/{name}", text(&image));
        printed(&mut fourscore(&["cp", text(&file), &target]));
    }
    assert_clean(&image);
    write_by_kernel(&image);
}

/// Without an index Linux counts subdirectories, of which there are too many here.
#[test]
fn an_index_that_is_needed_stays() {
    let folder = scratch::folder().expect("a folder");
    let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
    for nr in 0..65_000 {
        fs::create_dir_all(tree.join(format!("many/{nr}"))).expect("space");
    }
    let made = [
        "build",
        "-q",
        "-O",
        "inline_data",
        "-o",
        text(&image),
        text(&tree),
    ];
    printed(&mut fourscore(&made));
    let before = fs::read(&image).expect("an image");
    refused(
        &["tune", "-O", "^dir_index", text(&image)],
        "-O ^dir_index: directory inode 12 has more subdirectories than can be counted",
    );
    assert!(before == fs::read(&image).expect("an image"));
}

/// `64bit` in both directions, beside `resize2fs -b` and `-s`.
#[test]
fn descriptors_get_longer_and_shorter_as_by_resize2fs() {
    require!(
        Need::Program("resize2fs"),
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("dumpe2fs"),
        Need::Program("debugfs")
    );
    let Fixture {
        folder,
        tree,
        image: ours,
    } = fixture();
    let theirs = folder.path().join("theirs");
    for (made, options) in [
        ("-O ^64bit", "-O 64bit"),
        ("-b 1024 -g 1024 -O ^64bit", "-O 64bit"),
        ("-b 1024 -g 1024 -O ^64bit,^flex_bg", "-O 64bit"),
        ("-b 1024 -g 1024 -O ^64bit,^metadata_csum", "-O 64bit"),
        (
            "-b 1024 -g 1024 -O ^64bit,^metadata_csum,^uninit_bg,^has_journal",
            "-O 64bit",
        ),
        ("-b 1024 -g 512 -O ^64bit,sparse_super2", "-O 64bit"),
        ("-C 16384 -O ^64bit,bigalloc", "-O 64bit"),
        ("", "-O ^64bit"),
        ("-b 1024 -g 1024", "-O ^64bit"),
        ("-b 1024 -g 1024 -O ^resize_inode", "-O ^64bit"),
        (
            "-b 1024 -g 1024 -O ^sparse_super,^resize_inode",
            "-O ^64bit",
        ),
        ("-b 1024 -g 1024 -O ^metadata_csum,uninit_bg", "-O ^64bit"),
    ] {
        mke2fs(&theirs, &tree, made);
        let way = if options.contains('^') { "-s" } else { "-b" };
        let mut resize2fs = tools::command("resize2fs").expect("found before");
        tools::stdout_of(resize2fs.args(["-f", way, text(&theirs)])).expect("it runs");
        tuned(&ours, &tree, made, options);
        let (mut a, mut b) = (header(&ours), header(&theirs));
        // resize2fs 1.47.0 counts more free blocks than there are blocks.
        let wrong = made.contains("bigalloc").then_some("Free blocks");
        for name in ["Filesystem UUID", "Directory Hash Seed"]
            .iter()
            .chain(&wrong)
        {
            a.remove(*name);
            b.remove(*name);
        }
        assert_eq!(a, b, "{made} | {options}");
        write_by_kernel(&ours);
        // And back, where files did not take the blocks that became free.
        if made.contains("^resize_inode") {
            continue;
        }
        let back = if way == "-s" { "-O 64bit" } else { "-O ^64bit" };
        let before = walk(&ours);
        tune(&ours, back);
        assert_clean(&ours);
        assert!(walk(&ours) == before, "{made} | {back}");
        write_by_kernel(&ours);
    }
}

/// Free blocks behind the descriptors do as well as blocks that are reserved.
#[test]
fn descriptors_take_free_blocks_where_none_are_reserved() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let Fixture {
        folder: _folder,
        tree,
        image,
    } = fixture();
    mke2fs(&image, &tree, "-b 1024 -g 1024 -O ^64bit");
    tune(&image, "-O ^resize_inode");
    let before = walk(&image);
    tune(&image, "-O 64bit");
    assert_clean(&image);
    printed(&mut fourscore(&["check", "-n", "-q", text(&image)]));
    assert!(walk(&image) == before, "the tree differs");
    write_by_kernel(&image);
}

/// Changes that tune2fs does not make, or leaves to e2fsck.
#[test]
fn what_tune2fs_leaves_undone_is_done() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let Fixture {
        folder: _folder,
        tree,
        image,
    } = fixture();
    let features = || debugfs(&image, &["feature"]).expect("it runs");
    // tune2fs 1.47.0 fails to add a journal with the new checksums.
    let all = "-O has_journal,metadata_csum,quota,orphan_file";
    tuned(&image, &tree, "-O ^has_journal,^metadata_csum", all);
    for name in ["has_journal", "metadata_csum", "quota", "orphan_file"] {
        assert!(features().contains(name), "{name}: {}", features());
    }
    // Blocks without a byte for their checksum.
    let made = "-b 1024 -O ^metadata_csum,^dir_index";
    tuned(&image, &tree, made, "-O metadata_csum");
    write_by_kernel(&image);
    // Without a journal, the orphan file has no use.
    tuned(&image, &tree, "-O orphan_file", "-O ^has_journal");
    assert!(!features().contains("orphan_file"), "{}", features());
    tuned(&image, &tree, "", "-O ^resize_inode");
    assert!(!features().contains("resize_inode"), "{}", features());
    write_by_kernel(&image);
    tuned(&image, &tree, "", "-O mmp");
    assert!(features().contains("mmp"), "{}", features());
    tune(&image, "-O ^mmp");
    assert_clean(&image);
    assert!(!features().contains("mmp"), "{}", features());
}

/// How an image is made, options of tune, its exit status, and a part of the error.
const REFUSED: &[(&str, &str, i32, &str)] = &[
    ("-O ^has_journal", "-J size=40", 1, "is over half of the"),
    (
        "-O ^has_journal -b 4096",
        "-J size=1",
        1,
        "256 blocks: 1024 to 10240000",
    ),
    ("", "-j", 2, "it has a journal already"),
    ("", "-J size=8 -O ^has_journal", 2, "give one of them"),
    (
        "-O ^has_journal",
        "-J device=/dev/null",
        2,
        "made and joined by tune2fs",
    ),
    ("-O ^has_journal", "-O orphan_file", 1, "needs a journal"),
    ("-I 128", "-O project", 1, "inodes of 128 bytes"),
    ("-O ^64bit", "-O 64bit -L data", 2, "give it alone"),
    ("", "-Q nonsense", 2, "usrquota, grpquota and prjquota"),
    // The rest of a change is refused before anything is written.
    ("", "-O ^metadata_csum -m 51", 1, "not a percentage"),
    ("", "-O quota,bigalloc", 1, "can only be chosen when"),
];

#[test]
fn what_is_not_possible_is_refused_before_a_byte_is_written() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let folder = scratch::folder().expect("a folder");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("space");
    let image = folder.path().join("image");
    let path = text(&image);
    for (made, options, status, expected) in REFUSED {
        mke2fs(&image, &tree, made);
        let before = fs::read(&image).expect("an image");
        let words: Vec<&str> = ["tune", path]
            .into_iter()
            .chain(options.split(' '))
            .collect();
        let (found, message) = failing(&words);
        assert!(message.contains(expected), "{options}: {message}");
        assert_eq!(found, Some(*status), "{options}: {message}");
        let is_same = before == fs::read(&image).expect("an image");
        assert!(is_same, "{options}: it was changed");
    }
    for (change, expected) in [
        ("feature needs_recovery", "its journal needs recovery"),
        ("ssv state 0", "it was not unmounted, or has errors"),
        ("sif / links_count 77", "it has errors ("),
    ] {
        mke2fs(&image, &tree, "");
        debugfs_write(&image, &[change]).expect("it runs");
        refused(&["tune", path, "-O", "^metadata_csum"], expected);
    }
    // Of what the check finds, a warning comes first, and is not why.
    mke2fs(&image, &tree, "");
    let changes = ["ssv want_extra_isize 33", "sif / links_count 77"];
    debugfs_write(&image, &changes).expect("it runs");
    refused(&["tune", path, "-O", "^64bit"], "it has errors (inode 2");
}

/// How an image with a value in an inode of its own is made, a change of it before, the change that
/// would give the value another hash, and a part of the error.
const OTHER_SEED: &[(&str, &str, &str, &str)] = &[
    (
        "-O ea_inode,^metadata_csum",
        "",
        "-U random",
        "depend on the UUID; tune2fs -U computes them again",
    ),
    (
        "-O ea_inode,^metadata_csum,uninit_bg",
        "",
        "-O ^uninit_bg -U random",
        "depend on the UUID; tune2fs -U computes them again",
    ),
    (
        "-O ea_inode",
        "",
        "-O ^metadata_csum,^uninit_bg -U random",
        "depend on the UUID; tune2fs -U computes them again",
    ),
    (
        "-O ea_inode",
        "",
        "-U random",
        "depend on the UUID; with -O metadata_csum_seed as well they do not",
    ),
    (
        "-O ea_inode,metadata_csum_seed",
        "-U random",
        "-O ^metadata_csum",
        "depend on the stored seed",
    ),
    (
        "-O ea_inode,metadata_csum_seed",
        "-U random",
        "-O ^metadata_csum,^uninit_bg",
        "depend on the stored seed",
    ),
];

/// The value of the attribute, as debugfs reads it, which compares its hash.
fn big_value(image: &Path) -> String {
    debugfs(image, &["ea_get /name user.big"]).expect("it runs")
}

/// Values in inodes of their own have hashes with the seed of checksums, and can be read after each
/// change that is made.
#[test]
fn a_seed_on_which_values_depend_stays() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let folder = scratch::folder().expect("a folder");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("space");
    fs::write(tree.join("name"), []).expect("space");
    let image = folder.path().join("image");
    let path = text(&image);
    let value = "v".repeat(20_000);
    for (made, first, options, expected) in OTHER_SEED {
        // Without a value nothing depends on the seed.
        mke2fs(&image, &tree, made);
        for options in [first, options].into_iter().filter(|one| !one.is_empty()) {
            let before = header(&image);
            tune(&image, options);
            assert_clean(&image);
            let is_new = before["Filesystem UUID"] != header(&image)["Filesystem UUID"];
            assert_eq!(is_new, options.contains("-U"), "{made} | {options}");
        }
        mke2fs(&image, &tree, made);
        let words = [
            "edit", path, "setfattr", "-n", "user.big", "-v", &value, "/name",
        ];
        printed(&mut fourscore(&words));
        if !first.is_empty() {
            tune(&image, first);
        }
        assert!(big_value(&image).contains(&value), "{made} | {first}");
        let before = fs::read(&image).expect("an image");
        let words = ["tune", path].into_iter().chain(options.split(' '));
        refused(&words.collect::<Vec<_>>(), expected);
        let is_same = before == fs::read(&image).expect("an image");
        assert!(is_same, "{made} | {options}: it was changed");
    }
    mke2fs(&image, &tree, "-O ea_inode,^metadata_csum");
    refused(
        &["edit", path, "uuid", "random"],
        "depend on the UUID (ea_inode)",
    );
    mke2fs(&image, &tree, "-O ea_inode");
    let words = [
        "edit", path, "setfattr", "-n", "user.big", "-v", &value, "/name",
    ];
    printed(&mut fourscore(&words));
    for options in ["-U random -O metadata_csum_seed", "-U random"] {
        tune(&image, options);
        assert_clean(&image);
        assert!(big_value(&image).contains(&value), "{options}");
    }
    printed(&mut fourscore(&["edit", path, "uuid", "random"]));
    assert!(big_value(&image).contains(&value), "edit uuid");
}

#[test]
fn an_undo_file_brings_everything_back() {
    require!(Need::Program("mke2fs"), Need::Program("e2undo"));
    let Fixture {
        folder,
        tree,
        image,
    } = fixture();
    let all = [
        "-O ^metadata_csum,^has_journal",
        "-O ^64bit",
        "-O ^dir_index",
        "-L label",
    ];
    for options in all {
        for is_ours in [true, false] {
            let undo = folder
                .path()
                .join(format!("undo-{is_ours}-{}", options.len()));
            mke2fs(&image, &tree, "");
            let before = fs::read(&image).expect("an image");
            tune(&image, &format!("-z {} {options}", text(&undo)));
            assert!(before != fs::read(&image).expect("an image"), "{options}");
            if is_ours {
                let words = ["check", "-q", "--undo-apply", text(&undo), text(&image)];
                printed(&mut fourscore(&words));
            } else {
                let mut command = tools::command("e2undo").expect("found before");
                tools::stdout_of(command.args([text(&undo), text(&image)])).expect("it runs");
            }
            assert!(before == fs::read(&image).expect("an image"), "{options}");
        }
    }
}
