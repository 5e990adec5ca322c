//! Builds that fail or are interrupted: the message names the entry at fault, the exit status is 1,
//! and neither an image nor a temporary file is left.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fourscore_sync::thread;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{self, failing, fourscore, printed, text};
use crate::place::{Place, run};

/// Names in the folder, without those that tests create.
fn left_behind(place: &Place) -> Vec<String> {
    let names = fs::read_dir(place.0.path()).expect("a folder").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let created = [
        "tree",
        "in.tar",
        "in.tar.gz",
        "in.tar.zst",
        "output",
        "layout",
    ];
    names
        .filter(|name| !created.contains(&name.as_str()))
        .collect()
}

/// Checks that a command has failed with this message, and returns all that it printed.
#[track_caller]
fn fails_with(output: &Output, expected: &str) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains(expected),
        "expected {expected}\nfound    {message}"
    );
    message
}

/// As [`fails_with`], with nothing else printed and nothing left in the folder.
#[track_caller]
fn fails(place: &Place, output: &Output, expected: &str) {
    let message = fails_with(output, expected);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert_eq!(left_behind(place), Vec::<String>::new());
}

/// An archive of one file of this length.
fn archive(name: &str, len: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(len as u64);
    header.set_mode(0o644);
    let content = vec![b'x'; len];
    builder
        .append_data(&mut header, name, &content[..])
        .expect("memory");
    builder.into_inner().expect("memory")
}

/// The command with the default action of SIGINT, as a shell runs it in the foreground. Tests in
/// the background may ignore SIGINT, and their children inherit that.
fn stoppable(arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_fourscore")]);
    command.args(arguments).env("TZ", "UTC");
    command
}

/// A build of a source and an archive from a pipe. It has read the source and waits for the end of
/// the archive.
fn build_that_waits(place: &Place, source: &str) -> (Child, Vec<u8>) {
    let arguments = [
        "build",
        &place.text(source),
        "-",
        "-o",
        &place.text("image"),
    ];
    let mut child = stoppable(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut archive = archive("from/pipe", 1 << 20);
    let end = archive.split_off(archive.len() - 1024);
    // More than a pipe holds: when all is written, the build is reading it and has read the tree.
    let pipe = child.stdin.as_mut().expect("a pipe");
    pipe.write_all(&archive).expect("the build reads it");
    (child, end)
}

#[test]
fn a_source_that_changes_while_it_is_read() {
    type Change = fn(&Path) -> std::io::Result<()>;
    let changes: [(Change, &str); 6] = [
        (
            |file| fs::write(file, vec![b'b'; (3 << 20) + 1]),
            "/etc/big: the file changed",
        ),
        (
            |file| fs::write(file, "short"),
            "/etc/big: the file changed",
        ),
        (
            |file| {
                thread::sleep(Duration::from_millis(20));
                fs::write(file, vec![b'c'; 3 << 20])
            },
            "/etc/big: the file changed",
        ),
        (|file| fs::remove_file(file), "/etc/big: No such file"),
        (
            |file| fs::remove_file(file).and_then(|()| symlink("passwd", file)),
            "/etc/big: the file changed",
        ),
        (
            |file| fs::remove_file(file).and_then(|()| fs::create_dir(file)),
            "/etc/big: ",
        ),
    ];
    for (change, expected) in changes {
        let place = Place::new();
        let (child, end) = build_that_waits(&place, "tree");
        change(&place.path("tree/etc/big")).expect("space");
        fails(&place, &goes_on(child, &end), expected);
    }
}

/// Writes the end of the archive that a build waits for.
fn goes_on(mut child: Child, end: &[u8]) -> Output {
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(end).expect("the build reads it");
    drop(pipe);
    child.wait_with_output().expect("it ran")
}

/// Of an archive in a file, the headers are read first and the data later.
#[test]
fn an_archive_that_changes_while_it_is_read() {
    require!(Need::Program("tar"));
    let place = Place::new();
    run("tar", &["-cf", "../in.tar", "."], &place.tree()).expect("an archive");
    let (child, end) = build_that_waits(&place, "in.tar");
    let output = goes_on(child, &end);
    assert!(output.status.success(), "{output:?}");
    fs::remove_file(place.path("image")).expect("it was built");
    let (child, end) = build_that_waits(&place, "in.tar");
    let file = fs::File::options().write(true).open(place.path("in.tar"));
    let written = file.and_then(|file| file.write_all_at(b"changed", 1 << 20));
    written.expect("space");
    let expected = "in.tar: the file changed while it was read";
    fails(&place, &goes_on(child, &end), expected);
}

#[test]
fn a_file_that_the_user_cannot_read_is_named() {
    require!(Need::Root, Need::Program("setpriv"));
    let place = Place::new();
    let (tree, image) = (place.text("tree"), place.text("image"));
    run("chmod", &["0644", "etc/big"], &place.tree()).expect("permission");
    let build = ["build", &tree, "-o", &image, "--owner", "0:0"];
    let output = place
        .as_unprivileged_user(&build)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let walk = place.walk("image");
    let owners = walk
        .lines()
        .map(|line| line.split(' ').skip(3).take(2).collect::<Vec<_>>());
    assert!(owners.clone().count() > 8 && owners.clone().all(|ids| ids == ["0", "0"]));
    fs::remove_file(place.path("image")).expect("it was built");
    for closed in ["many/7.txt", "sparse", "etc/empty"] {
        let path = place.path("tree").join(closed);
        let before = fs::metadata(&path).expect("it exists").permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("permission");
        let output = place
            .as_unprivileged_user(&build)
            .output()
            .expect("it runs");
        fails(&place, &output, &format!("{closed}: Permission denied"));
        fs::set_permissions(&path, before).expect("permission");
    }
}

#[test]
fn truncated_and_escaping_archives_are_refused() {
    require!(Need::Program("gzip"), Need::Program("zstd"));
    let place = Place::new();
    let build = |name: &str| {
        let arguments = ["build", &place.text(name), "-o", &place.text("image")];
        fourscore(&arguments).output().expect("it runs")
    };
    run("tar", &["-cf", "../in.tar", "etc"], &place.tree()).expect("an archive");
    run("gzip", &["-k", "in.tar"], place.0.path()).expect("an archive");
    run("zstd", &["-q", "in.tar"], place.0.path()).expect("an archive");
    for (name, expected) in [
        ("in.tar", "in.tar: etc/big: the archive is truncated"),
        ("in.tar.gz", "in.tar.gz: etc/big: cannot be decompressed"),
        ("in.tar.zst", "in.tar.zst: etc/big: cannot be decompressed"),
    ] {
        let whole = fs::read(place.path(name)).expect("an archive");
        fs::write(place.path(name), &whole[..whole.len() / 2]).expect("space");
        fails(&place, &build(name), expected);
    }
    let long = ["d/", &"n".repeat(256)].concat();
    fs::write(place.path("in.tar"), archive(&long, 1)).expect("space");
    fails(&place, &build("in.tar"), ": the name has 256 bytes");
    // The crate tar refuses to write such a name.
    let mut climbing = archive("aa/bb/escape", 1);
    climbing[..12].copy_from_slice(b"aa/../escape");
    let sum: u32 = climbing[..148]
        .iter()
        .chain(&climbing[156..512])
        .map(|&b| u32::from(b))
        .sum();
    let sum = format!("{:06o}\0 ", sum + 8 * 32);
    climbing[148..156].copy_from_slice(sum.as_bytes());
    fs::write(place.path("in.tar"), climbing).expect("space");
    fails(
        &place,
        &build("in.tar"),
        "aa/../escape: the path leaves its tree",
    );
}

/// Sends the signal and returns how the build ended.
fn ended_by(signal: Signal, child: &mut Child) -> std::process::ExitStatus {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), signal).expect("it runs");
    child.wait().expect("it ran")
}

/// Whether the process has an open file without a name, as an incomplete image is.
fn has_begun_the_image(child: &Child, folder: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", child.id()));
    let mut links = open
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links.any(|path| path.starts_with(folder) && text(&path).ends_with("(deleted)"))
}

#[test]
fn a_signal_leaves_nothing_behind() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let (mut child, _end) = build_that_waits(&place, "tree");
        let status = ended_by(signal, &mut child);
        assert_eq!(status.signal(), Some(signal.as_raw()), "while it reads");
        assert_eq!(left_behind(&place), Vec::<String>::new());

        fs::write(place.path("tree/large"), vec![1; 96 << 20]).expect("space");
        let arguments = [
            "build",
            &place.text("tree"),
            "-o",
            &place.text("image"),
            "--verify",
        ];
        let sums = ["--sums", &place.text("sums")];
        // On a loaded machine the build may end before the signal.
        let was_stopped = (0..20).any(|_| {
            let mut child = stoppable(&[&arguments[..], &sums].concat())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("it runs");
            wait_for_the_image(&mut child, &place);
            let is_early = !place.path("image").exists();
            let status = ended_by(signal, &mut child);
            let was_stopped = status.code() == Some(1);
            if was_stopped {
                assert!(is_early, "it had its name before it was complete");
                assert_eq!(left_behind(&place), Vec::<String>::new());
            } else {
                assert!(status.success(), "{status:?}");
                fs::remove_file(place.path("image")).expect("it was built");
                fs::remove_file(place.path("sums")).expect("it was built");
            }
            was_stopped
        });
        assert!(was_stopped, "it was asked twenty times");
    }
}

/// Waits until a build writes its image, or has ended.
fn wait_for_the_image(child: &mut Child, place: &Place) {
    while !has_begun_the_image(child, place.0.path()) {
        if child.try_wait().expect("it ran").is_some() {
            break;
        }
        thread::yield_now();
    }
}

#[test]
fn a_build_under_nohup_outlives_its_terminal() {
    let place = Place::new();
    fs::write(place.path("tree/large"), vec![1; 96 << 20]).expect("space");
    // Usually the signal comes while the image is written.
    for _ in 0..5 {
        let mut child = Command::new("env")
            .args(["--ignore-signal=HUP", env!("CARGO_BIN_EXE_fourscore")])
            .args(["build", "-q", &place.text("tree"), "--verify"])
            .args(["-o", &place.text("image")])
            .spawn()
            .expect("it runs");
        wait_for_the_image(&mut child, &place);
        let status = ended_by(Signal::HUP, &mut child);
        assert!(status.success(), "{status:?}");
    }
}

#[test]
fn the_largest_size_is_refused() {
    let place = Place::new();
    let size = format!("+{}", u64::MAX);
    let (tree, image) = (place.text("tree"), place.text("image"));
    let (status, message) = failing(&["build", &tree, "-o", &image, "--size", &size]);
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("blocks are more than"), "{message}");
    assert_eq!(left_behind(&place), Vec::<String>::new());
}

/// The output on a terminal of a build of the tree and an archive of one file of this length, which
/// is written after bars have begun to show.
fn shown_on_a_terminal(place: &Place, more: &str, len: usize) -> String {
    run("mkfifo", &["output"], place.0.path()).expect("space");
    let line = format!(
        "{} build {} - -o {} {more} <{}",
        env!("CARGO_BIN_EXE_fourscore"),
        place.text("tree"),
        place.text("image"),
        place.text("output"),
    );
    let mut script = Command::new("script");
    script.args(["-qefc", &line, "/dev/null"]);
    let child = script
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let fifo = fs::File::options().write(true).open(place.path("output"));
    let mut fifo = fifo.expect("the build reads it");
    let mut archive = archive("from/pipe", len);
    let end = archive.split_off(archive.len() - 1024);
    fifo.write_all(&archive).expect("the build reads it");
    // Bars are hidden for the first second.
    thread::sleep(Duration::from_millis(1500));
    fifo.write_all(&end).expect("the build reads it");
    drop(fifo);
    let output = child.wait_with_output().expect("it ran");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}");
    fs::remove_file(place.path("output")).expect("permission");
    shown
}

#[test]
fn a_terminal_shows_the_progress_of_reading() {
    require!(Need::Program("script"), Need::Program("mkfifo"));
    let shown = shown_on_a_terminal(&Place::new(), "", 1 << 20);
    assert!(
        shown.contains("reading the sources: 511 objects, "),
        "{shown:?}"
    );
}

/// Whether the text is a complete bar: `PHASE [bar] FILES/FILES files,
/// BYTES/BYTES, BYTES/s, TIME left`.
fn is_complete_bar(drawn: &str, phase: &str) -> bool {
    let parts: Vec<&str> = drawn.split(", ").collect();
    let [files, bytes, rate, left] = parts.as_slice() else {
        return false;
    };
    let is_count = |text: &str| text.parse::<u64>().is_ok();
    let counts = files
        .strip_suffix(" files")
        .and_then(|rest| rest.rsplit(' ').next());
    let counts = counts.and_then(|counts| counts.split_once('/'));
    files.contains(phase)
        && counts.is_some_and(|(done, all)| is_count(done) && is_count(all))
        && bytes
            .split_once('/')
            .is_some_and(|(_, all)| all.ends_with("iB"))
        && rate.ends_with("B/s")
        && left.contains("s left")
}

#[test]
fn a_terminal_shows_files_bytes_rate_and_remaining_time() {
    require!(Need::Program("script"), Need::Program("mkfifo"));
    // The bar is drawn ten times a second; on a fast machine it needs more work to appear.
    let mut seen = Vec::new();
    let mut shown = String::new();
    for mib in [64, 256, 1024] {
        let place = Place::new();
        shown = shown_on_a_terminal(&place, "--threads 1 --verify", mib << 20);
        let drawn: Vec<&str> = shown.split('\r').collect();
        seen = ["writing ", "reading back "]
            .into_iter()
            .filter(|phase| drawn.iter().any(|drawn| is_complete_bar(drawn, phase)))
            .collect();
        if seen.len() == 2 {
            return;
        }
    }
    panic!("only {seen:?} in {shown:?}");
}

#[test]
fn a_manifest_or_list_that_cannot_be_written_leaves_no_image() {
    let place = Place::new();
    let (tree, image) = (place.text("tree"), place.text("image"));
    for option in ["--write-manifest", "--sums"] {
        let nowhere = place.text("no/such/list");
        let (status, message) = failing(&["build", &tree, "-o", &image, option, &nowhere]);
        assert_eq!(status, Some(1), "{message}");
        assert!(message.contains("no/such/list: No such file"), "{message}");
        assert_eq!(left_behind(&place), Vec::<String>::new());
    }
}

/// A build that must fail with status 1 and one line that contains `expected`.
#[track_caller]
fn refused(arguments: &[&str], expected: &str) {
    common::refused(&[&["build"], arguments].concat(), expected);
}

#[test]
fn invalid_sources_are_named() {
    let place = Place::new();
    let zeroes = |len: usize| vec![0; len];
    let mut disk = zeroes(1 << 20);
    disk[510..512].copy_from_slice(b"\x55\xaa");
    for (content, expected) in [
        (
            zeroes(0),
            "in: is an empty file (a source is a directory, a tar archive",
        ),
        (zeroes(1024), "in: is a file of zeroes (a source is"),
        (zeroes(1 << 20), "in: is a file of zeroes (a source is"),
        (b"#!/bin/sh\n".to_vec(), "in: is text (a source is"),
        (disk, "in: is a disk with a partition table (a source is"),
        (b"\x7fELF rest".to_vec(), "in: is a program (ELF)"),
    ] {
        fs::write(place.path("in"), content).expect("space");
        refused(&[&place.text("in"), "-o", &place.text("image")], expected);
        assert!(!place.path("image").exists());
    }
    // An archive without entries, as all tar programs make it.
    fs::write(place.path("in"), zeroes(10_240)).expect("space");
    printed(&mut fourscore(&[
        "build",
        &place.text("in"),
        "-o",
        &place.text("image"),
    ]));
    // A file system on standard input, from which it cannot be read.
    let mut command = fourscore(&["build", "-", "-o", &place.text("new")]);
    command.stdin(fs::File::open(place.path("image")).expect("it was built"));
    let output = command.output().expect("it runs");
    fails_with(&output, "standard input: is a file system");
}

/// A build that fails while it fills a partition reports that, and keeps the rest of the disk.
#[test]
fn an_incomplete_partition_is_reported_and_the_rest_of_the_disk_is_kept() {
    let place = Place::new();
    let disk = place.path("disk");
    let part = format!("{}@8M", place.text("disk"));
    fs::write(&disk, vec![0xa5; 64 << 20]).expect("space");
    let tree = place.text("tree");
    // Nothing is written if the image does not fit.
    refused(
        &[&tree, "-F", "--size", "57M", "-o", &part],
        "extend past the end of the file",
    );
    refused(&[&tree, "-F", "--size", "1M", "-o", &part], "is too small");
    refused(
        &[&tree, "--size", "20M", "-o", &part],
        "contains data of an unknown kind",
    );
    assert!(
        fs::read(&disk)
            .expect("a disk")
            .iter()
            .all(|&byte| byte == 0xa5)
    );
    let (status, message) = failing(&["build", &tree, "-F", "--shrink", "-o", &part]);
    assert_eq!(status, Some(2), "{message}");
    // The file changes after its blocks are allocated and before its data is read.
    fs::write(place.path("in.tar"), archive("file", 1 << 20)).expect("space");
    let arguments = [
        "build",
        &place.text("in.tar"),
        "-",
        "-F",
        "--size",
        "20M",
        "-o",
        &part,
    ];
    let mut child = stoppable(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut over = archive("other", 1 << 20);
    let end = over.split_off(over.len() - 1024);
    let pipe = child.stdin.as_mut().expect("a pipe");
    pipe.write_all(&over).expect("the build reads it");
    thread::sleep(Duration::from_millis(20));
    fs::write(place.path("in.tar"), archive("file", 1 << 20)).expect("space");
    let output = goes_on(child, &end);
    fails_with(&output, "the content is undefined now");
    let found = fs::read(&disk).expect("a disk");
    assert_eq!(found.len(), 64 << 20);
    let (front, rest) = found.split_at(8 << 20);
    assert!(front.iter().all(|&byte| byte == 0xa5));
    assert!(rest[20 << 20..].iter().all(|&byte| byte == 0xa5));
}
