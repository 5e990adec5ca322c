//! `fourscore check -n`: its output as text and as JSON, the number of findings it prints, its exit
//! status, and that it changes no image.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fourscore_testkit::crash::load::Seed;
use fourscore_testkit::crash::{Death, JOURNALS};
use fourscore_testkit::damage::Patient;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{debugfs_write, dumpe2fs_header, e2fsck};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require, scratch};
use serde_json::Value;

use crate::common::{fourscore, text};

const FILES: u64 = 20;
/// The finding that a journal was replayed in memory.
const NOTES: [&str; 2] = ["journal-replayed", "fast-commits-replayed"];

/// An image with some files in two directories.
fn image() -> Image {
    let source = scratch::folder().expect("a folder");
    for directory in ["one", "two"] {
        fs::create_dir(source.path().join(directory)).expect("space");
    }
    for nr in 0..FILES {
        let name = format!("one/file-{nr}");
        fs::write(source.path().join(name), vec![7; 5000]).expect("space");
    }
    let image = Image::builder(MiB(16)).kind("ext4");
    image.source(source.path()).make().expect("mke2fs runs")
}

/// The result of a run.
struct Run {
    status: Option<i32>,
    stdout: String,
    message: String,
}

fn check(image: &Path, more: &[&str]) -> Run {
    let arguments = [&["check", "-n", text(image)], more].concat();
    let output: Output = fourscore(&arguments).output().expect("the program exists");
    Run {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        message: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).expect("JSON")
}

fn findings(report: &Value) -> &[Value] {
    report["findings"].as_array().expect("a list")
}

fn word<'v>(finding: &'v Value, key: &str) -> &'v str {
    finding[key].as_str().expect("a text")
}

/// Injects a wrong block count into all files in `one`, and a second fault into one of them.
fn miscount(image: &Image) {
    let count = |nr| format!("set_inode_field /one/file-{nr} blocks 77");
    let mut commands: Vec<String> = (0..FILES).map(count).collect();
    commands.push("set_inode_field /one/file-3 links_count 5".to_owned());
    debugfs_write(image.path(), &commands).expect("debugfs runs");
}

#[test]
fn a_clean_image_has_one_line_and_status_0() {
    require!(Need::Program("mke2fs"), Need::Program("dumpe2fs"));
    let image = image();
    let run = check(image.path(), &[]);
    assert_eq!((run.status, run.message.as_str()), (Some(0), ""));
    assert_eq!(run.stdout.lines().count(), 1, "{}", run.stdout);
    let verdict = format!("{}: clean: ", text(image.path()));
    assert!(run.stdout.starts_with(&verdict), "{}", run.stdout);

    let run = check(image.path(), &["--json", "--threads", "2"]);
    let report = json(&run);
    assert_eq!(run.status, Some(0));
    assert_eq!(report["clean"], true);
    assert!(findings(&report).is_empty());
    // `.` and `..` of root, lost+found, one and two; their names; the files.
    assert_eq!(report["directories"], 4);
    assert_eq!(report["entries"], 4 * 2 + 3 + FILES);
    let header = dumpe2fs_header(image.path()).expect("dumpe2fs runs");
    let number = |name: &str| header[name].parse::<u64>().expect("a number");
    let inodes = number("Inode count") - number("Free inodes");
    // Of the first ten inodes only the root counts.
    assert_eq!(report["inodes"], inodes - 9);
    let blocks = number("Block count") - number("Free blocks") - number("First block");
    assert_eq!(report["blocks"], blocks);
}

#[test]
fn text_and_json_have_the_same_findings_and_status_4() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("e2fsck")
    );
    let image = image();
    miscount(&image);
    let fsck = e2fsck(image.path()).expect("e2fsck runs");
    let (as_text, as_json) = (check(image.path(), &[]), check(image.path(), &["--json"]));
    assert_eq!((as_text.status, as_json.status), (Some(4), Some(4)));
    assert_eq!(fsck.code, 4);
    // Standard output has only the findings.
    assert_eq!(as_json.message, as_text.message);
    let report = json(&as_json);
    assert_eq!(report["clean"], false);
    let lines: Vec<&str> = as_text.stdout.lines().collect();
    let (verdict, lines) = lines.split_last().expect("a verdict");
    assert!(verdict.contains(": HAS ERRORS: "), "{verdict}");
    let found = findings(&report);
    assert_eq!(lines.len(), found.len());
    for (line, finding) in lines.iter().zip(found) {
        let [text, code, repair] = ["text", "code", "repair"].map(|key| word(finding, key));
        assert_eq!(*line, format!("{text} [{code}] (repair: {repair})"));
        assert_eq!(finding["severity"], "error");
        let inode = &finding["fields"]["inode"];
        assert!(text.starts_with(&format!("inode {inode}: ")), "{text}");
    }
    assert_eq!(report["counts"]["inode-blocks"], FILES);
    assert_eq!(report["counts"]["links-count"], 1);
    let passes = found.iter().map(|finding| finding["pass"].as_u64());
    assert!(passes.is_sorted(), "findings come by pass");
    let links = found
        .iter()
        .find(|finding| finding["code"] == "links-count");
    let fields = &links.expect("it is found")["fields"];
    assert_eq!(
        (&fields["found"], &fields["expected"]),
        (&5.into(), &1.into())
    );
}

#[test]
fn the_option_most_limits_the_findings() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = image();
    miscount(&image);
    let run = check(image.path(), &["--most", "3"]);
    assert_eq!(run.status, Some(4));
    let of_code = |code: &str| run.stdout.matches(&format!("[{code}]")).count();
    assert_eq!((of_code("inode-blocks"), of_code("links-count")), (3, 1));
    let left = format!("... and {} more of the same kinds", FILES - 3);
    assert!(
        run.stdout.lines().any(|line| line == left),
        "{}",
        run.stdout
    );

    // The same ones on any number of threads.
    let report = json(&check(
        image.path(),
        &["--most", "3", "--json", "--threads", "1"],
    ));
    let again = json(&check(
        image.path(),
        &["--most", "3", "--json", "--threads", "3"],
    ));
    assert_eq!(report, again);
    assert_eq!(
        (findings(&report).len(), &report["counts"]["inode-blocks"]),
        (4, &FILES.into())
    );
    let none = check(image.path(), &["--most", "0"]);
    assert_eq!((none.status, none.stdout.lines().count()), (Some(4), 2));
}

#[test]
fn a_check_that_cannot_run_has_status_8() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let folder = scratch::folder().expect("a folder");
    let blank = Image::blank(MiB(4)).expect("space");
    let tiny = folder.path().join("tiny");
    fs::write(&tiny, "not a file system\n").expect("space");
    let unknown = image();
    debugfs_write(unknown.path(), &["feature FEATURE_I30"]).expect("debugfs runs");
    let missing = folder.path().join("missing");
    for path in [blank.path(), &tiny, folder.path(), &missing, unknown.path()] {
        for more in [&[][..], &["--json"]] {
            let run = check(path, more);
            assert_eq!(run.status, Some(8), "{}: {}", path.display(), run.message);
            assert_eq!(run.stdout, "");
            let names_it = run.message.contains(text(path));
            assert!(
                names_it && run.message.lines().count() == 1,
                "{}",
                run.message
            );
        }
    }
}

#[test]
fn what_to_do_must_be_said() {
    for arguments in [&["check", "image"][..], &["check", "-n", "-y", "image"]] {
        let output = fourscore(arguments).output().expect("the program exists");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("-n"));
    }
}

/// Runs a repair: the exit status and what was printed.
fn repair(arguments: &[&str], image: &Path) -> (Option<i32>, String) {
    let arguments = [&["check"], arguments, &[text(image)]].concat();
    let output = fourscore(&arguments).output().expect("the program exists");
    let printed = String::from_utf8(output.stdout).expect("text");
    (output.status.code(), printed)
}

#[test]
fn repairs_have_the_exit_statuses_of_e2fsck_and_can_be_undone() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let image = image();
    for option in ["-p", "-y"] {
        let (status, printed) = repair(&[option], image.path());
        assert_eq!(status, Some(0), "{printed}");
        assert!(printed.contains(": clean: "), "{printed}");
    }
    // A wrong count is safe to mend, a lost name is not.
    debugfs_write(image.path(), &["sif /one/file-1 links_count 7"]).expect("debugfs");
    let (status, printed) = repair(&["-p"], image.path());
    assert_eq!(status, Some(1), "{printed}");
    assert!(
        printed.contains("[links-count] (repaired: set it)"),
        "{printed}"
    );
    debugfs_write(image.path(), &["unlink /one/file-2"]).expect("debugfs");
    let before = fs::read(image.path()).expect("readable");
    let (status, printed) = repair(&["-p"], image.path());
    assert_eq!(status, Some(4), "{printed}");
    assert!(
        printed.contains("[unattached] (not repaired: "),
        "{printed}"
    );
    assert!(fs::read(image.path()).expect("readable") == before);
    let folder = scratch::folder().expect("a folder");
    let undo = folder.path().join("undo");
    let (status, printed) = repair(&["-y", "--json", "--undo", text(&undo)], image.path());
    assert_eq!(status, Some(1), "{printed}");
    let report: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(report["repaired"][0]["code"], "unattached", "{report}");
    assert_eq!(report["clean"], true, "{report}");
    assert!(e2fsck(image.path()).expect("it runs").is_clean());
    let (status, printed) = repair(&["--undo-apply", text(&undo)], image.path());
    assert_eq!(status, Some(0), "{printed}");
    assert!(fs::read(image.path()).expect("readable") == before);
    let (status, _) = repair(&["-y"], folder.path());
    assert_eq!(status, Some(8), "a directory");
}

#[test]
fn a_dirty_log_is_replayed_before_a_repair() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("xfs_io"),
        Need::KernelMount
    );
    let named = |name| JOURNALS.iter().find(|journal| journal.name == name);
    for name in ["ordered", "fast-commit", "orphan-file"] {
        let journal = named(name).expect("there is one");
        let death = match journal.has_fast_commits() {
            true => Death::Copied,
            false => Death::ShutdownLogFlushed,
        };
        let crashed = journal.crashed(death, Seed(7)).expect("a crash");
        let (status, printed) = repair(&["-p"], crashed.image.path());
        assert!(matches!(status, Some(0 | 1)), "{name}: {printed}");
        assert!(printed.contains("the log was replayed"), "{printed}");
        assert!(e2fsck(crashed.image.path()).expect("it runs").is_clean());
    }
}

/// Checks an image, whose bytes and times must not change.
#[track_caller]
fn assert_untouched(image: &Path) -> Run {
    let state = || {
        let modified = fs::metadata(image).and_then(|meta| meta.modified());
        (
            fs::read(image).expect("it exists"),
            modified.expect("a time"),
        )
    };
    let before = state();
    let run = check(image, &["--json", "--threads", "2"]);
    assert!(before == state(), "the image has changed");
    run
}

#[test]
fn damaged_images_are_not_changed() {
    require!(Need::Program("mke2fs"));
    let image = image();
    assert_eq!(assert_untouched(image.path()).status, Some(0));
    let patient = Patient::new(image.path()).expect("a sound image");
    let mut broken = 0;
    for seed in 0..30 {
        let damage = patient.damage(seed).expect("damage fits");
        let run = assert_untouched(image.path());
        assert!(
            matches!(run.status, Some(0 | 4 | 8)),
            "{damage}: {:?}",
            run.status
        );
        broken += u32::from(run.status != Some(0));
        patient.undo(damage).expect("it was written before");
    }
    assert!(broken > 10, "the damage is too gentle");
}

#[test]
fn dirty_journals_are_not_changed() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("xfs_io"),
        Need::KernelMount
    );
    let named = |name| JOURNALS.iter().find(|journal| journal.name == name);
    for name in ["ordered", "fast-commit", "orphan-file"] {
        let journal = named(name).expect("there is one");
        let death = if journal.has_fast_commits() {
            Death::Copied
        } else {
            Death::ShutdownLogFlushed
        };
        let crashed = journal.crashed(death, Seed(7)).expect("a crash");
        let run = assert_untouched(crashed.image.path());
        let report = json(&run);
        assert_eq!(run.status, Some(0), "{name}: {report:#}");
        let replayed = NOTES.iter().any(|note| report["counts"][note] == 1);
        assert!(replayed, "{name}: {report:#}");
    }
}

/// A check with at most `mib` MiB of memory for data and stacks.
fn check_within(mib: u32, image: &Path) -> Run {
    let limited = format!("ulimit -d {}; exec \"$0\" \"$@\"", mib * 1024);
    let mut command = Command::new("sh");
    command
        .args(["-c", &limited, env!("CARGO_BIN_EXE_fourscore")])
        .args(["check", "-n", "--json", "--threads", "2"])
        .arg(image);
    let output = command.output().expect("there is a shell");
    Run {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        message: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// 900 GiB in one file: 236 million blocks in use take 28 MiB of bits. A second inode with the same
/// map shares all of them, which takes as many bits again, and a bounded list of shared blocks.
#[test]
fn memory_is_bounded_by_bits_of_blocks() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    let image = Image::builder(MiB(1 << 20)).kind("ext4").journal(MiB(4));
    let image = image
        .arguments(["-N", "100000"])
        .extended("lazy_itable_init=1");
    let image = image.make().expect("mke2fs runs");
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "noinit_itable");
    let mount = mount.expect("a mount");
    let large = File::create_new(mount.path().join("large")).expect("space");
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&large, flags, 0, 900 << 30).expect("space");
    drop(large);
    fs::write(mount.path().join("twin"), "x").expect("space");
    mount.unmount().expect("it is not in use");
    let run = check_within(64, image.path());
    assert_eq!(run.status, Some(0), "{}", run.message);
    let blocks = json(&run)["blocks"].as_u64().expect("a number");
    assert!(blocks > 900 << 18, "{blocks}");

    debugfs_write(image.path(), &["copy_inode large twin"]).expect("debugfs runs");
    let run = check_within(160, image.path());
    assert_eq!(run.status, Some(4), "{}", run.message);
    let shared = json(&run)["counts"]["shared-blocks"].as_u64();
    assert!(shared.is_some_and(|shared| shared > 0), "{}", run.stdout);
    assert_ne!(
        check_within(16, image.path()).status,
        Some(4),
        "the limit does not count"
    );
}

/// A wrong field that is not needed for reading, or a corrupt journal, prevents neither `check` nor
/// `info` nor `walk`.
#[test]
fn info_and_walk_read_images_with_wrong_fields() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let cases = [
        (
            "set_super_value journal_inum 4000000",
            Some(0),
            "s_journal_inum 4000000",
        ),
        (
            "set_super_value journal_inum 0",
            Some(0),
            "has_journal needs",
        ),
        ("set_inode_field <8> mode 0", Some(1), "journal"),
        ("zap_block -f <8> 0", Some(1), "journal"),
    ];
    for (command, status, says) in cases {
        let image = image();
        let whole = fourscore(&["walk", text(image.path())]).output();
        debugfs_write(image.path(), &[command]).expect("debugfs runs");
        let walk = fourscore(&["walk", text(image.path())]).output();
        let (whole, walk) = (whole.expect("it runs"), walk.expect("it runs"));
        assert_eq!((walk.status.code(), walk.stdout), (Some(0), whole.stdout));
        for more in [&["info"][..], &["info", "--json"], &["info", "--groups"]] {
            let info = fourscore(&[more, &[text(image.path())]].concat());
            let info = { info }.output().expect("it runs");
            let shown = String::from_utf8(info.stdout).expect("text");
            let told = String::from_utf8(info.stderr).expect("text");
            assert_eq!(info.status.code(), status, "{command}: {told}");
            assert!(
                told.contains(says) && told.contains(text(image.path())),
                "{told}"
            );
            assert_eq!(told.lines().count(), 1, "{told}");
            assert!(shown.contains("4096") && shown.len() > 1000, "{shown}");
            if more.contains(&"--json") {
                let json: Value = serde_json::from_str(&shown).expect("JSON");
                assert_eq!(json["problems"].as_array().expect("a list").len(), 1);
            }
        }
        assert_eq!(check(image.path(), &[]).status, Some(4), "{command}");
    }
}

#[test]
fn the_exit_status_is_what_was_found_also_if_it_cannot_be_printed() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = image();
    let status = |option: &str, to: Stdio| {
        let mut command = fourscore(&["check", option, text(image.path())]);
        let output = command.stdout(to).stderr(Stdio::null()).status();
        output.expect("the program exists").code()
    };
    let full = || {
        Stdio::from(
            File::options()
                .write(true)
                .open("/dev/full")
                .expect("there"),
        )
    };
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Stdio::from(writer)
    };
    assert_eq!(status("-n", closed()), Some(0));
    assert_eq!(status("-n", full()), Some(8));
    debugfs_write(image.path(), &["sif /one/file-1 links_count 7"]).expect("debugfs");
    for to in [closed(), full()] {
        assert_eq!(status("-n", to), Some(4));
    }
    assert_eq!(status("-y", full()), Some(1));
    debugfs_write(image.path(), &["sif /one/file-1 links_count 7"]).expect("debugfs");
    assert_eq!(status("-y", closed()), Some(1));
    assert_eq!(status("-y", closed()), Some(0));
}
