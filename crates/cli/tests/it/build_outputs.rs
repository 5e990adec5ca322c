//! Destinations of `fourscore build`: files that are replaced or refused, partitions, and standard
//! output.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use fourscore_sync::thread;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{LoopDevice, require};

use crate::common::{self, failing, fourscore, printed, text, without_lost_and_found};
use crate::place::{Place, run, walk_of_host};

/// A build that must fail with status 1 and one line that contains `expected`.
#[track_caller]
fn refused(arguments: &[&str], expected: &str) {
    common::refused(&[&["build"], arguments].concat(), expected);
}

#[test]
fn an_output_that_is_also_a_source_is_refused() {
    let place = Place::new();
    place.build("image", &[]);
    let image = place.text("image");
    let before = fs::read(&image).expect("an image");
    symlink("image", place.path("link")).expect("space");
    fs::hard_link(&image, place.path("other")).expect("space");
    let (link, other) = (place.text("link"), place.text("other"));
    let expected = "is also the output (write the image somewhere else, or --exclude it)";
    for (source, output) in [(&image, &image), (&link, &image), (&image, &other)] {
        refused(&[source, "--shrink", "-o", output], expected);
    }
    refused(&[&place.text("tree"), &image, "-o", &image], expected);
    assert!(fs::read(&image).expect("an image") == before);
    let walk = place.walk("image");
    // In a folder that is a source, and the file of its sums.
    let folder = text(place.0.path());
    refused(&[folder, "-o", &image], &format!("image: {expected}"));
    let (status, message) = failing(&["build", &image, "-o", &other, "--sums", &other]);
    assert_eq!(status, Some(2), "{message}");
    assert!(fs::read(&image).expect("an image") == before);
    // A file is replaced when the image is complete, and can be read until then.
    printed(&mut fourscore(&[
        "build", &image, "--shrink", "-o", &image, "-F",
    ]));
    assert_eq!(place.walk("image"), walk);
    // A device is written in place, and cannot be a source under any name.
    if Need::KernelMount.is_met() {
        let disk = LoopDevice::new(&place.path("image")).expect("a device");
        refused(&[&image, "-o", text(disk.path())], expected);
        refused(&[&image, "-o", text(disk.path()), "-F"], expected);
        refused(&[text(disk.path()), "-o", text(disk.path())], expected);
        drop(disk);
        assert_eq!(place.walk("image"), walk);
    }
    let disk = fs::File::create(place.path("disk")).expect("space");
    disk.set_len(64 << 20).expect("space");
    let part = format!("{}@1M", place.text("disk"));
    printed(&mut fourscore(&["build", &place.text("tree"), "-o", &part]));
    refused(&[&part, "-o", &part, "-F"], expected);
    refused(
        &[
            &part,
            "-F",
            "--size",
            "8M",
            "-o",
            &format!("{}@2M", place.text("disk")),
        ],
        expected,
    );
}

#[test]
fn an_image_in_use_is_refused() {
    let place = Place::new();
    place.build("image", &[]);
    let (tree, image) = (place.text("tree"), place.text("image"));
    let build = [tree.as_str(), "-o", &image];
    if Need::Fuse.is_met() && Need::Root.is_met() {
        let point = place.text("point");
        fs::create_dir(&point).expect("space");
        printed(&mut fourscore(&["mount", &image, &point]));
        refused(&build, "is being written by process");
        fs::write(place.path("point/written"), "while it was mounted").expect("space");
        printed(&mut fourscore(&["umount", &point]));
        assert!(
            place.walk("image").contains("/written "),
            "it was left alone"
        );
        place.build("image", &["-F"]);
    }
    if Need::KernelMount.is_met() {
        let disk = LoopDevice::new(&place.path("image")).expect("a device");
        refused(&build, "is in use by /dev/loop");
        refused(&build, "(unmount or detach it first, or use -F");
        drop(disk);
    }
    place.build("image", &[]);
}

#[test]
fn only_empty_and_built_files_are_replaced_without_force() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("tar")
    );
    let place = Place::new();
    let (tree, image) = (place.text("tree"), place.text("image"));
    let build = [tree.as_str(), "-o", &image];
    fs::write(&image, "precious\n").expect("space");
    refused(
        &build,
        "image: contains text (use -F to replace it, or name another destination)",
    );
    assert_eq!(fs::read(&image).expect("it exists"), b"precious\n");
    run("tar", &["-cf", &image, "tree"], place.0.path()).expect("an archive");
    refused(&build, "contains a tar archive");
    fs::remove_file(&image).expect("permission");
    run(
        "mke2fs",
        &["-q", "-t", "ext4", &image, "16M"],
        place.0.path(),
    )
    .expect("an image");
    refused(
        &build,
        "contains a file system or volume (ext2, ext3 or ext4)",
    );
    place.build("image", &["-F"]);

    // An image that was built, also with a UUID of the user, and one that e2fsck has checked.
    for more in [&["-U", "random"][..], &["-E", "hash_seed=time"], &[]] {
        place.build("image", &[&["-F"], more].concat());
        place.build("image", &[]);
    }
    run("e2fsck", &["-fy", &image], place.0.path()).expect("clean");
    place.build("image", &[]);
    fs::write(&image, "").expect("space");
    place.build("image", &["--size", "+4M"]);

    // An image that has been changed is refused.
    thread::sleep(Duration::from_millis(1100));
    let to = format!("{image}:/new");
    printed(&mut fourscore(&["cp", &place.text("tree/etc/passwd"), &to]));
    refused(
        &build,
        "contains an image that was changed since it was built",
    );
    assert!(place.walk("image").contains("/new "));
    place.build("image", &["-F"]);
    let file = fs::File::options().append(true).open(&image);
    file.and_then(|mut file| file.write_all(b"behind"))
        .expect("space");
    refused(&build, "contains an image followed by other data");
}

/// A build of `tree.tar` from its standard input, while which `meanwhile` is done: after the output
/// was examined, and before the image is complete.
fn built_while(place: &Place, more: &[&str], meanwhile: impl FnOnce()) -> Output {
    let image = place.text("image");
    let archive = fs::read(place.path("tree.tar")).expect("an archive");
    let mut child = fourscore(&[&["build", "-", "-o", &image], more].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // More than a pipe holds.
    let (begin, end) = archive.split_at(archive.len() - 1024);
    stdin.write_all(begin).expect("it is read");
    meanwhile();
    stdin.write_all(end).expect("it is read");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_file_that_appears_or_changes_during_a_build_is_left_alone() {
    require!(Need::Program("tar"));
    let place = Place::new();
    run("tar", &["-cf", "tree.tar", "tree"], place.0.path()).expect("an archive");
    let image = place.path("image");
    let precious = || fs::write(&image, "precious\n").expect("space");
    let is_left_alone = |output: &Output, expected: &str| {
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(expected), "{message}");
        assert!(message.ends_with("(use -F to replace it, or name another destination)\n"));
        assert_eq!(fs::read(&image).expect("it exists"), b"precious\n");
        assert_eq!(fs::read_dir(place.0.path()).expect("a folder").count(), 3);
    };
    let refused = built_while(&place, &[], precious);
    is_left_alone(&refused, "image: was created by another program meanwhile");
    // An empty file may be replaced, until it is written or is another one.
    fs::write(&image, "").expect("space");
    let refused = built_while(&place, &[], precious);
    is_left_alone(&refused, "image: was changed by another program meanwhile");
    fs::write(&image, "").expect("space");
    let refused = built_while(&place, &[], || {
        fs::remove_file(&image).expect("permission");
        precious();
    });
    is_left_alone(&refused, "image: was changed by another program meanwhile");
    fs::remove_file(&image).expect("permission");
    let built = built_while(&place, &["-F"], precious);
    assert!(built.status.success(), "{built:?}");
    let built = built_while(&place, &[], || ());
    assert!(built.status.success(), "{built:?}");
    assert!(place.walk("image").contains("/tree/etc/passwd "));
}

#[test]
fn lists_replace_files_only_with_force() {
    let place = Place::new();
    let (tree, image, list) = (place.text("tree"), place.text("image"), place.text("list"));
    for option in ["--sums", "--write-manifest"] {
        let build = [tree.as_str(), "-o", &image, option, &list];
        fs::write(&list, "precious\n").expect("space");
        refused(&build, "list: contains data (use -F to replace it, or name");
        assert_eq!(fs::read(&list).expect("it exists"), b"precious\n");
        assert!(!Path::new(&image).exists());
        let forced = [&["build"], &build[..], &["-F"]].concat();
        printed(&mut fourscore(&forced));
        assert!(fs::read(&list).expect("it exists").len() > 1000);
        fs::remove_file(&image).expect("permission");
        fs::write(&list, "").expect("space");
        printed(&mut fourscore(&[&["build"], &build[..]].concat()));
        assert!(fs::read(&list).expect("it exists").len() > 1000);
        fs::remove_file(&image).expect("permission");
        fs::remove_file(&list).expect("permission");
    }
    let both = ["--sums", &list, "--write-manifest", &list];
    let (status, message) = failing(&[&["build", &tree, "-o", &image], &both[..]].concat());
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("is also the file of --sums"), "{message}");
}

/// A list on standard output that a shell has redirected to a file keeps what is there, as in a
/// pipe.
#[test]
fn a_list_on_standard_output_keeps_what_is_in_its_file() {
    let place = Place::new();
    let log = place.path("log");
    fs::write(&log, "before\n").expect("space");
    let (tree, image) = (place.text("tree"), place.text("image"));
    for more in [&["-q"][..], &["-q", "-F"]] {
        let arguments = ["build", &tree, "-o", &image, "--sums", "/dev/stdout"];
        let mut build = fourscore(&[&arguments[..], more].concat());
        let to = fs::File::options().append(true).open(&log).expect("a file");
        let output = build.stdout(to).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }
    let sums = place.text("sums");
    printed(&mut fourscore(&[
        "build", "-q", &tree, "-o", &image, "--sums", &sums,
    ]));
    let sums = fs::read_to_string(sums).expect("a list");
    let expected = format!("before\n{sums}{sums}");
    assert!(fs::read_to_string(log).expect("a file") == expected);
}

/// A user who replaces a file of another group cannot keep the group, and opens the file to no one
/// else.
#[test]
fn a_replaced_file_that_loses_its_group_is_not_shared_with_another() {
    require!(Need::Root, Need::Program("setpriv"));
    let place = Place::new();
    let image = place.path("output/image");
    let build = ["build", &place.text("tree/many"), "-o", text(&image)];
    let edit = ["edit", text(&image), "--atomic=copy", "mkdir", "/new"];
    printed(&mut place.as_unprivileged_user(&build));
    for arguments in [&build[..], &edit] {
        chown(&image, Some(65534), Some(0)).expect("permission");
        fs::set_permissions(&image, fs::Permissions::from_mode(0o660)).expect("permission");
        printed(&mut place.as_unprivileged_user(arguments));
        let found = fs::metadata(&image).expect("it exists");
        let found = (found.uid(), found.gid(), found.mode() & 0o7777);
        assert_eq!(found, (65534, 65534, 0o600), "{arguments:?}");
    }
}

/// A disk image, and the names of its partitions.
struct Disk<'a>(&'a Place);

impl Disk<'_> {
    const BYTES: usize = 96 << 20;

    fn fill_with(&self, byte: u8) {
        fs::write(self.0.path("disk"), vec![byte; Self::BYTES]).expect("space");
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.0.path("disk")).expect("a disk")
    }

    fn part(&self, at: &str) -> String {
        format!("{}@{at}", self.0.text("disk"))
    }

    /// Builds the tree into a partition.
    #[track_caller]
    fn build(&self, at: &str, more: &[&str]) {
        let (tree, part) = (self.0.text("tree"), self.part(at));
        let arguments = [&["build", &tree, "-o", &part], more].concat();
        printed(&mut fourscore(&arguments));
    }

    /// Checks a partition that contains the tree with e2fsck, and returns its size in bytes.
    #[track_caller]
    fn check(&self, bytes: u64) -> u64 {
        let image = format!("disk?offset={bytes}");
        run("e2fsck", &["-fn", &image], self.0.0.path()).expect("clean");
        let spec = self.part(&bytes.to_string());
        let walk = printed(&mut fourscore(&["walk", "--hash", &spec]));
        let walk = without_lost_and_found(&walk).join("\n");
        assert_eq!(walk, walk_of_host(&self.0.tree()).trim_end());
        let info = printed(&mut fourscore(&["info", &spec]));
        let number = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name));
            let value = value.and_then(|value| value.trim().parse::<u64>().ok());
            value.unwrap_or_else(|| panic!("{name} {info}"))
        };
        number("Block count:") * number("Block size:")
    }
}

/// Without a partition table the file system extends to the end of the disk, or has the given size.
#[test]
fn a_part_of_a_disk_is_filled_in_place() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let disk = Disk(&place);
    let is_as_before = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0xa5);
    disk.fill_with(0xa5);
    disk.build("65M", &["-F", "--verify"]);
    assert_eq!(disk.check(65 << 20), 31 << 20);
    let found = disk.bytes();
    assert_eq!(found.len(), Disk::BYTES);
    assert!(is_as_before(&found[..65 << 20]));
    disk.fill_with(0xa5);
    disk.build("1M", &["-F", "--size", "24M"]);
    assert_eq!(disk.check(1 << 20), 24 << 20);
    let found = disk.bytes();
    assert!(is_as_before(&found[..1 << 20]) && is_as_before(&found[25 << 20..]));
    assert!(!place.path("disk@1M").exists());
}

/// With a partition table the file system fills a partition.
#[test]
fn a_partition_is_filled_in_place() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let disk = Disk(&place);
    let tree = place.text("tree");
    disk.fill_with(0);
    // A DOS table: 32 MiB at 1 MiB, and 63 MiB after them.
    let file = fs::File::options().write(true).open(place.path("disk"));
    let file = file.expect("a disk");
    for (at, start, sectors) in [(446, 2048_u32, 65_536_u32), (462, 67_584, 129_024)] {
        let numbers = [start.to_le_bytes(), sectors.to_le_bytes()].concat();
        let entry = [&[0, 0, 0, 0, 0x83, 0, 0, 0][..], &numbers].concat();
        file.write_all_at(&entry, at).expect("space");
    }
    file.write_all_at(b"\x55\xaa", 510).expect("space");
    let before = disk.bytes();
    disk.build("1M", &[]);
    assert_eq!(disk.check(1 << 20), 32 << 20);
    let found = disk.bytes();
    assert!(found[..1 << 20] == before[..1 << 20] && found[33 << 20..] == before[33 << 20..]);
    // A built partition is replaced, and one partition is a source of the other.
    disk.build("1M", &["--size", "auto"]);
    assert!(disk.check(1 << 20) < 32 << 20);
    printed(&mut fourscore(&[
        "build",
        &disk.part("1M"),
        "-o",
        &disk.part("33M"),
    ]));
    disk.check(33 << 20);
    let before = disk.bytes();
    for (arguments, expected) in [
        (
            &["-o", &disk.part("2M")][..],
            "no partition that begins at byte 2097152",
        ),
        (
            &["-o", &disk.part("1M"), "--size", "33M"],
            "past the end of the partition",
        ),
        (&["-o", &disk.part("96M")], "ends at byte 100663296"),
    ] {
        refused(&[&[tree.as_str()], arguments].concat(), expected);
    }
    assert!(disk.bytes() == before);
}

#[test]
fn standard_output_gets_the_image_and_standard_error_the_summary() {
    require!(Need::Program("cat"));
    let place = Place::new();
    let tree = place.text("tree");
    let build = |output: &str| {
        let mut command = fourscore(&["build", &tree, "-o", output]);
        command
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .current_dir(place.0.path());
        command
    };
    printed(&mut build("image"));
    let expected = fs::read(place.path("image")).expect("an image");
    let output = build("-").output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(
        told.starts_with("standard output: ") && told.lines().count() == 1,
        "{told}"
    );
    assert!(output.stdout == expected, "a pipe");
    let file = fs::File::create(place.path("redirected")).expect("space");
    assert!(
        build("-")
            .stdout(file)
            .stderr(Stdio::null())
            .status()
            .expect("it runs")
            .success()
    );
    assert!(
        fs::read(place.path("redirected")).expect("an image") == expected,
        "a file"
    );
    assert!(!place.path("-").exists());
    let names = fs::read_dir(place.0.path()).expect("a folder").count();
    assert_eq!(names, 3, "nothing else was left behind");
}
