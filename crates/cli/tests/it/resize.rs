//! `resize` beside resize2fs: images of many shapes and of random sizes keep their trees, e2fsck
//! finds nothing, and the superblock says what resize2fs writes. And what is refused.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use fourscore_testkit::explore::Rng;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, debugfs, debugfs_write, dumpe2fs_header};
use fourscore_testkit::tools::{self, Need, skip};
use fourscore_testkit::{require, scratch};

use crate::common::{failing, fourscore, printed, refused, text};

/// Options of mke2fs.
const SHAPES: &[&str] = &[
    "-t ext2",
    "-t ext2 -b 1024",
    "-t ext3",
    "-t ext3 -b 1024 -I 128",
    "-t ext4",
    "-t ext4 -b 1024",
    "-t ext4 -b 2048 -G 4",
    "-t ext4 -O ^64bit",
    "-t ext4 -b 1024 -O meta_bg,^resize_inode",
    "-t ext4 -b 1024 -O sparse_super2,^resize_inode",
    "-t ext4 -O bigalloc -C 16384",
    "-t ext4 -b 1024 -O bigalloc -C 8192",
    "-t ext4 -b 1024 -O ^resize_inode",
    "-t ext4 -b 1024 -O ^flex_bg",
    "-t ext4 -b 1024 -g 1024",
    "-t ext4 -b 1024 -g 1024 -E resize=200M",
    "-t ext4 -O inline_data",
    "-t ext4 -O quota",
    "-t ext4 -O orphan_file",
    "-t ext4 -O ^metadata_csum,^uninit_bg",
    "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
    "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg,^flex_bg",
    "-t ext4 -O ^has_journal",
    "-t ext4 -b 1024 -O ^has_journal,^metadata_csum,^sparse_super,^resize_inode",
];

/// What says nothing about the size, and what each program writes for itself.
const NOT_COMPARED: &[&str] = &[
    "Last write time",
    "Last checked",
    "Last mount time",
    "Mount count",
    "Lifetime writes",
    "Checksum",
    "Journal sequence",
    "Journal start",
    "Journal checksum",
    "Journal checksum type",
    "Journal features",
];

fn mke2fs(image: &Path, options: &str, kib: u64) {
    let mut command = tools::command("mke2fs").expect("found before");
    command
        .args(["-q", "-F", "-d", "tests"])
        .args(options.split_whitespace())
        .args([text(image), &format!("{kib}k")]);
    tools::stdout_of(&mut command).expect("mke2fs runs");
    if options.contains("quota") {
        // mke2fs does not count the files that it copies.
        fsck(image, "-fy");
    }
}

fn fsck(image: &Path, how: &str) {
    let mut command = tools::command("e2fsck").expect("found before");
    tools::output_of(command.args([how, text(image)])).expect("e2fsck runs");
}

fn resize2fs(image: &Path, kib: u64) {
    // It asks for a check of what it has resized itself.
    fsck(image, "-fy");
    let mut command = tools::command("resize2fs").expect("found before");
    command.args(["-f", text(image), &format!("{kib}K")]);
    tools::stdout_of(&mut command).expect("resize2fs runs");
}

fn walk(image: &Path) -> String {
    printed(&mut fourscore(&["walk", "--hash", text(image)]))
}

fn header(image: &Path) -> BTreeMap<String, String> {
    let mut header = dumpe2fs_header(image).expect("a header");
    header.retain(|name, _| !NOT_COMPARED.contains(&name.as_str()));
    header
}

fn resize(image: &Path, kib: u64) {
    printed(&mut fourscore(&["resize", text(image), &format!("{kib}K")]));
    assert_clean(image);
    printed(&mut fourscore(&["check", "-n", text(image)]));
}

/// What the kernel finds, if it mounts the image.
fn kernel_walk(image: &Path) -> Option<String> {
    let mounted = KernelMount::new(image, Access::ReadOnly, "noload").ok()?;
    Some(printed(&mut fourscore(&[
        "walk".as_ref(),
        "--hash".as_ref(),
        "--host".as_ref(),
        mounted.path().as_os_str(),
    ])))
}

/// Whether descriptors, backups and tables are where resize2fs has them: see `fourscore_resize`. Of
/// file systems with clusters resize2fs says itself that it was not fully tested with them.
fn has_same_places(options: &str) -> bool {
    let differs = ["sparse_super2", "^resize_inode", "bigalloc"];
    options.contains("meta_bg") || !differs.iter().any(|word| options.contains(word))
}

#[test]
fn growing_keeps_the_tree_and_counts_as_resize2fs() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("resize2fs")
    );
    let folder = scratch::folder().expect("a folder");
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let mut rng = Rng::new(26);
    for options in SHAPES {
        let mut kib = 14_000 + rng.below(80_000) as u64;
        mke2fs(&ours, options, kib);
        fs::copy(&ours, &theirs).expect("a copy");
        let tree = walk(&ours);
        let by_kernel = kernel_walk(&ours);
        for _ in 0..2 {
            kib += 1 + rng.below(200_000) as u64;
            let what = format!("mke2fs {options}, to {kib} KiB");
            resize(&ours, kib);
            assert_eq!(walk(&ours), tree, "{what}");
            assert_eq!(kernel_walk(&ours), by_kernel, "{what}");
            resize2fs(&theirs, kib);
            if has_same_places(options) {
                assert_eq!(header(&ours), header(&theirs), "{what}");
            }
        }
    }
}

#[test]
fn what_lies_behind_the_end_moves() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    let mut rng = Rng::new(62);
    for options in SHAPES.iter().chain(&["-t ext4 -b 1024 -O ea_inode"]) {
        let kib = 60_000 + rng.below(100_000) as u64;
        mke2fs(&image, options, kib);
        if !options.contains("quota") {
            fill(&image, kib);
        }
        let (tree, by_kernel) = (walk(&image), kernel_walk(&image));
        printed(&mut fourscore(&["resize", "-M", text(&image)]));
        let least = fs::metadata(&image).expect("a file").len() >> 10;
        assert!(least < kib * 3 / 4, "{options}: {least} of {kib} KiB");
        for kib in [least, kib + 30_000, least + rng.below(20_000) as u64] {
            let what = format!("mke2fs {options}, to {kib} KiB");
            resize(&image, kib);
            assert_eq!(walk(&image), tree, "{what}");
            assert_eq!(kernel_walk(&image), by_kernel, "{what}");
        }
        refused(
            &["resize", text(&image), &format!("{}K", least / 2)],
            "the least size is",
        );
    }
}

/// Fills most of a file system with files in many directories, and removes all but the last.
fn fill(image: &Path, kib: u64) {
    let folder = scratch::folder().expect("a folder");
    let (data, small) = (folder.path().join("data"), folder.path().join("small"));
    fs::write(&data, vec![0x5a; 700_000]).expect("space");
    fs::write(&small, "small").expect("space");
    let count = kib * 7 / 10 / 700;
    let mut script = String::new();
    for number in 0..count {
        let dir = format!("/directory-{number}");
        script += &format!("write /filler-{number} <{}\n", text(&data));
        script += &format!("mkdir {dir}\nwrite {dir}/small <{}\n", text(&small));
    }
    for number in 0..count - 1 {
        script += &format!("rm /filler-{number}\n");
    }
    let file = folder.path().join("script");
    fs::write(&file, script).expect("space");
    printed(&mut fourscore(&["edit", text(image), "-f", text(&file)]));
}

#[test]
fn a_journal_that_moves_leaves_its_records_behind() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    mke2fs(&image, "-t ext4 -b 1024 -J size=4", 64 << 10);
    let map = || debugfs(&image, &["blocks <8>"]).expect("debugfs runs");
    // The log has records of the changes.
    fill(&image, 20_000);
    let before = map();
    resize(&image, 14 << 10);
    assert!(map() != before, "the journal stays where it was");
    let log = folder.path().join("log");
    debugfs(&image, &[format!("dump <8> {}", text(&log))]).expect("debugfs runs");
    let log = fs::read(&log).expect("readable");
    assert_eq!(log.len(), 4 << 20);
    // Names in copies of blocks of directories; the last step of the move is in the new log.
    let name = b"directory-";
    let names = log.windows(name.len()).filter(|window| window == name);
    assert_eq!(names.count(), 0, "records of the log at its old place");
}

#[test]
fn bad_sizes_and_file_systems_in_use_are_refused() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    mke2fs(&image, "-t ext4 -b 1024 -O ^64bit", 20_000);
    let (status, message) = failing(&["resize", text(&image), "12Q"]);
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("as in 4G"), "{message}");
    refused(&["resize", text(&image), "5T"], "without the feature 64bit");
    debugfs_write(&image, &["set_super_value state 2"]).expect("debugfs runs");
    refused(&["resize", text(&image), "30M"], "check it first");
    debugfs_write(
        &image,
        &["set_super_value state 1", "feature needs_recovery"],
    )
    .expect("debugfs");
    refused(&["resize", text(&image), "30M"], "needs recovery");
    assert_eq!(fs::metadata(&image).expect("a file").len(), 20_000 << 10);
}

/// Makes an image on a tmpfs that has no space for what a larger file system needs, and grows it.
const GROW_WITHOUT_SPACE: &str = r#"
mount -t tmpfs -o size=1200k none "$1" && cd "$1" || exit 99
"$2" mkfs -q -t ext4 image 128M && echo text >file || exit 98
for name in a b c; do "$2" cp file image:/$name || exit 97; done
"$2" resize image 15G
echo "status $?"
"$2" check -n image
echo "status $?"
"$2" cat image:/a image:/b image:/c
"#;

#[test]
fn a_file_keeps_what_the_file_system_has_when_growing_fails() {
    require!(Need::Root);
    let folder = scratch::folder().expect("a folder");
    let program = fourscore(&[""; 0]);
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", GROW_WITHOUT_SPACE, "sh"])
        .arg(folder.path())
        .arg(program.get_program())
        .output();
    let output = output.expect("unshare runs");
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("unshare failed") {
        return skip("needs mount namespaces");
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines.first(), Some(&"status 1"), "{printed}{message}");
    assert!(
        message.contains("the file system has the new size"),
        "{message}"
    );
    // All that was said of it is there, and so is its content.
    assert!(printed.contains("image: clean: "), "{printed}{message}");
    assert!(
        printed.ends_with("status 0\ntext\ntext\ntext\n"),
        "{printed}{message}"
    );
}

/// The blocks that the superblock of an image states.
fn stated_blocks(image: &File) -> u32 {
    let mut bytes = [0; 4];
    image
        .read_exact_at(&mut bytes, 1024 + 4)
        .expect("a superblock");
    u32::from_le_bytes(bytes)
}

/// Another writer waits for the lock of the image, and changes its length as soon as it has it.
#[test]
fn the_lock_is_held_until_the_length_is_final() {
    const ROUNDS: u32 = 10;
    let folder = scratch::folder().expect("a folder");
    let path = folder.path().join("image");
    let mut waited = 0;
    for round in 0..ROUNDS {
        printed(&mut fourscore(&[
            "mkfs",
            "-q",
            "-F",
            "-b",
            "4096",
            text(&path),
            "16M",
        ]));
        let image = File::options().read(true).write(true).open(&path);
        let image = image.expect("an image");
        let of_image = format!(":{} ", image.metadata().expect("attributes").ino());
        let is_locked = || {
            let locks = fs::read_to_string("/proc/locks").expect("a list of locks");
            { locks.lines() }.any(|line| line.contains("FLOCK") && line.contains(&of_image))
        };
        let mut command = fourscore(&["resize", text(&path), "24M"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program exists");
        let mut has_ended = || child.try_wait().expect("a child").is_some();
        while !is_locked() && !has_ended() {}
        waited += u32::from(!has_ended());
        while image.try_lock().is_err() {}
        assert_eq!(stated_blocks(&image), (24 << 20) / 4096, "round {round}");
        image.set_len(96 << 20).expect("space");
        child.wait().expect("it ends");
        let bytes = image.metadata().expect("attributes").len();
        assert_eq!(bytes, 96 << 20, "round {round}");
    }
    assert!(waited > 0, "no resize was seen at work");
}
