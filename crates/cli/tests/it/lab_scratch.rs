//! `fourscore lab` on whole file systems: the experiments `peers`, `scale` and `aging`, and
//! commands of the user. Nothing stays mounted and nothing stays behind, after a signal either.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fourscore_testkit::require;
use fourscore_testkit::scratch;
use fourscore_testkit::tools::{Need, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{failing, fourscore, printed, refused, text};

/// How long what a signal undoes may take.
const TIMEOUT: Duration = Duration::from_secs(20);

fn folder() -> TempDir {
    scratch::folder().expect("a folder")
}

/// Checks that nothing is mounted below a folder, no loop device has an image in it, and the folder
/// is empty.
#[track_caller]
fn assert_nothing_is_left(folder: &Path) {
    let began = Instant::now();
    loop {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("proc");
        let mut left: Vec<String> = mounts
            .lines()
            .filter(|line| line.contains(&text(folder).replace(' ', r"\040")))
            .map(str::to_owned)
            .collect();
        left.extend(loop_devices(folder));
        let entries = fs::read_dir(folder).expect("a folder");
        left.extend(entries.map(|entry| entry.expect("an entry").path().display().to_string()));
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < TIMEOUT, "left behind: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The loop devices whose images are below a folder.
fn loop_devices(folder: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").expect("sys");
    let devices = devices.filter_map(|device| {
        let device = device.ok()?.path();
        let image = fs::read_to_string(device.join("loop/backing_file")).ok()?;
        image
            .contains(text(folder))
            .then(|| format!("{} of {}", device.display(), image.trim()))
    });
    devices.collect()
}

/// The report of `lab run` with images in a folder, which is empty again.
fn report(folder: &Path, arguments: &[&str]) -> Value {
    let begin = ["lab", "run", "--json", "--scratch", text(folder)];
    let text = printed(&mut fourscore(&[&begin[..], arguments].concat()));
    assert_nothing_is_left(folder);
    serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

fn sides(run: &Value) -> Vec<&str> {
    let sides = run["sides"].as_array().expect("sides");
    let names = sides.iter().map(|side| side["side"].as_str());
    names.map(|name| name.expect("a name")).collect()
}

fn fact(side: &Value, name: &str) -> f64 {
    let value = side["facts"][name].as_f64();
    value.unwrap_or_else(|| panic!("{name} in {side}"))
}

/// Each kind of file system runs, or is named with what is missing.
fn assert_all_sides(report: &Value, kinds: &[&str]) {
    let missing = report["missing"].as_array().expect("a list");
    let missing: Vec<&str> = missing
        .iter()
        .map(|missing| missing["side"].as_str().expect("a name"))
        .collect();
    for run in report["runs"].as_array().expect("runs") {
        let sides = sides(run);
        for kind in kinds {
            assert_ne!(sides.contains(kind), missing.contains(kind), "{kind}");
        }
        for side in run["sides"].as_array().expect("sides") {
            assert!(side["operations_per_second"].as_f64() > Some(0.0), "{side}");
        }
        if Need::KernelMount.is_met() {
            assert!(sides.contains(&"ext4"), "{sides:?}");
        }
        if Need::Fuse.is_met() {
            assert!(sides.contains(&"mount"), "{sides:?}");
        }
        assert!(sides.contains(&"in-process"), "{sides:?}");
    }
}

#[test]
fn peers_run_at_their_smallest_size_and_what_is_missing_is_named() {
    let folder = folder();
    let report = report(folder.path(), &["peers", "--smallest"]);
    let kinds = ["ext4", "xfs", "btrfs", "fuse2fs", "mount", "in-process"];
    assert_all_sides(&report, &kinds);
    let cases = report["runs"].as_array().expect("runs").iter();
    let cases: Vec<_> = cases.map(|run| run["case"].as_str()).collect();
    assert_eq!(cases, [Some("create"), Some("fallocate2")]);
}

#[test]
fn scale_says_how_many_times_as_fast_more_threads_are() {
    let folder = folder();
    let arguments = [
        "scale",
        "--cases",
        "create",
        "--threads",
        "1,2",
        "--steps",
        "50",
        "--rounds",
        "1",
        "--on",
        "in-process",
    ];
    let report = report(folder.path(), &arguments);
    let runs = report["runs"].as_array().expect("runs");
    let of = |run: usize, name: &str| fact(&runs[run]["sides"][0], name);
    let speed = |run: usize| runs[run]["sides"][0]["operations_per_second"].as_f64();
    let times = "times the first number of threads";
    assert!((of(0, times) - 1.0).abs() < 1e-9);
    let expected = speed(1).expect("a speed") / speed(0).expect("a speed");
    assert!((of(1, times) - expected).abs() < 1e-9);
    let all = printed(&mut fourscore(&["lab", "list"]));
    assert!(all.contains("scale "), "{all}");
}

#[test]
fn aging_fills_a_file_system_and_keeps_it_full() {
    let folder = folder();
    let report = report(folder.path(), &["aging", "--smallest"]);
    assert_all_sides(&report, &["ext4", "xfs", "mount", "in-process"]);
    for side in report["runs"][0]["sides"].as_array().expect("sides") {
        let full = fact(side, "full at the end, %");
        assert!((45.0..62.0).contains(&full), "{side}");
        assert!(fact(side, "large files after, MiB/s") > 0.0, "{side}");
        // Only the images of ext4 are read afterwards.
        if !matches!(side["side"].as_str(), Some("xfs")) {
            assert!(fact(side, "extents of a file") >= 1.0, "{side}");
            assert!(fact(side, "mean free extent, KiB") > 0.0, "{side}");
        }
    }
}

#[test]
fn a_side_that_a_machine_cannot_run_is_left_out_with_what_is_missing() {
    let folder = folder();
    let arguments = [
        "lab",
        "run",
        "peers",
        "--cases",
        "create",
        "--steps",
        "5",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--scratch",
        text(folder.path()),
    ];
    // Without programs, there is nothing but ours.
    let printed = printed(fourscore(&arguments).env("PATH", "/nonexistent"));
    for part in [
        "  xfs            is left out: mkfs.xfs is not installed\n",
        "  fuse2fs        is left out: fuse2fs is not installed\n",
        "  ext4           is left out: mount is not installed\n",
        "\ncreate, 1 thread\n",
        "  in-process     ",
    ] {
        assert!(printed.contains(part), "{part:?} is missing in:\n{printed}");
    }
    assert!(!printed.contains("published"), "{printed}");
    let only = [&arguments[..], &["--on", "xfs"]].concat();
    let output = fourscore(&only).env("PATH", "/nonexistent").output();
    let output = output.expect("it runs");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        message.contains("xfs: mkfs.xfs is not installed"),
        "{message}"
    );
    assert_nothing_is_left(folder.path());
}

/// The kinds that this machine can certainly run a command on, separated by commas.
fn kinds_for_commands() -> Option<&'static str> {
    match (Need::KernelMount.is_met(), Need::Fuse.is_met()) {
        (true, true) => Some("ext4,mount"),
        (true, false) => Some("ext4"),
        (false, true) => Some("mount"),
        (false, false) => None,
    }
}

#[test]
fn a_command_runs_on_each_kind_with_figures_before_and_after() {
    let Some(kinds) = kinds_for_commands() else {
        return skip("neither loop devices nor FUSE");
    };
    let base = folder();
    // The kernel lists mount points with white space in another form.
    let folder = base.path().join("a b");
    fs::create_dir(&folder).expect("a folder");
    let script = "test \"$(ls)\" = \"\" && echo \"$LAB_KIND\" > kind && \
                  for i in 1 2 3 4 5 6 7 8; do head -c 65536 /dev/zero > $i; done";
    let arguments = [
        "--on", kinds, "--size", "300M", "--rounds", "2", "--", "sh", "-c", script,
    ];
    let report = report(&folder, &arguments);
    assert_eq!(report["experiment"], "command");
    let run = &report["runs"][0];
    assert_eq!(run["case"], "sh");
    assert_eq!(sides(run).join(","), kinds);
    for side in run["sides"].as_array().expect("sides") {
        assert_eq!(side["samples"].as_array().map(Vec::len), Some(2));
        let [before, after] = ["before", "after"].map(|when| &side[when]);
        let count = |of: &Value, name: &str| of[name].as_u64().expect("a number");
        assert_eq!(
            count(after, "inodes"),
            count(before, "inodes") + 9,
            "{side}"
        );
        let grown = count(after, "used_bytes") - count(before, "used_bytes");
        assert!((8 * 65536..2 << 20).contains(&grown), "{grown}");
        let free = |of: &Value| count(&of["free_space"], "bytes");
        assert!(free(before) - free(after) >= 8 * 65536, "{side}");
        let allocated = |of: &Value| of["counters"]["mb_stats"]["reqs"].as_u64();
        assert!(
            allocated(after) > Some(allocated(before).unwrap_or(0)),
            "{side}"
        );
        assert!(fact(side, "command, ms") > 0.0);
    }
    let again = report["command"].as_str().expect("a command");
    let expected = format!("fourscore lab run --on {kinds} --size 300M --rounds 2 -- sh -c '");
    assert!(again.starts_with(&expected), "{again}");
}

#[test]
fn a_command_that_fails_or_does_not_exist_leaves_nothing_behind() {
    let Some(kinds) = kinds_for_commands() else {
        return skip("neither loop devices nor FUSE");
    };
    let folder = folder();
    let begin = [
        "lab",
        "run",
        "--scratch",
        text(folder.path()),
        "--on",
        kinds,
        "--",
    ];
    for (command, expected) in [
        // What is left running does not keep the file system in use.
        (
            &["sh", "-c", "sleep 100 & exit 3"][..],
            "sh: exit status: 3",
        ),
        (&["/no/such/program"][..], "/no/such/program: No such file"),
    ] {
        refused(&[&begin[..], command].concat(), expected);
        assert_nothing_is_left(folder.path());
    }
}

/// Starts `lab run` with the default action of SIGINT, as a shell runs it in the foreground.
fn start(folder: &Path, arguments: &[&str]) -> Child {
    let begin = ["lab", "run", "--scratch", text(folder)];
    let run = fourscore(&[&begin[..], arguments].concat());
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(run.get_program());
    let command = command.args(run.get_args()).stdin(Stdio::null());
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}

/// Waits until something holds while the command runs.
fn wait_for(child: &mut Child, folder: &Path, is_there: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_there() {
        let ended = child.try_wait().expect("a process");
        assert!(ended.is_none(), "{ended:?} in {}", folder.display());
        assert!(began.elapsed() < 3 * TIMEOUT, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_signal_during_a_command_undoes_everything() {
    let Some(kinds) = kinds_for_commands() else {
        return skip("neither loop devices nor FUSE");
    };
    for kind in kinds.split(',') {
        let folder = folder();
        let marks = self::folder();
        let mark = marks.path().join("begun");
        // A file that stays open, and a process that ignores requests to end.
        let script = format!(
            "exec 3>open; trap '' TERM; touch {}; while :; do sleep 1; done",
            text(&mark)
        );
        let arguments = ["--on", kind, "--", "sh", "-c", &script];
        let mut child = start(folder.path(), &arguments);
        wait_for(&mut child, folder.path(), || mark.exists());
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::INT).expect("it runs");
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), Some(130), "{kind}");
        assert_nothing_is_left(folder.path());
    }
}

#[test]
fn a_signal_during_an_experiment_undoes_everything() {
    let Some(kinds) = kinds_for_commands() else {
        return skip("neither loop devices nor FUSE");
    };
    for kind in kinds.split(',') {
        let folder = folder();
        let arguments = [
            "peers",
            "--on",
            kind,
            "--cases",
            "create",
            "--threads",
            "2",
            "--steps",
            "4000000",
        ];
        let mut child = start(folder.path(), &arguments);
        // It works in a directory of the file system.
        let is_working = || {
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
            let mut points = points.filter(|point| point.starts_with(text(folder.path())));
            points.any(|point| Path::new(point).join("w1/f10").exists())
        };
        wait_for(&mut child, folder.path(), is_working);
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), Some(130), "{kind}");
        assert_nothing_is_left(folder.path());
    }
}

#[test]
fn wrong_names_and_sizes_are_refused_before_anything_begins() {
    for wrong in [
        &["peers", "--on", "ext5"][..],
        &["aging", "--on", "fuse2fs"],
        &["peers", "--cases", "format"],
        &["peers", "--scenario", "133g-50"],
        &["s1-prefetch", "--on", "ext4"],
        &["s2-fastcommit", "--scratch", "/tmp"],
        &["peers", "--size", "1G"],
        &["--size", "much", "--", "true"],
        &["--threads", "2", "--", "true"],
        &["peers", "--", "true"],
        &[],
    ] {
        let (status, message) = failing(&[&["lab", "run"][..], wrong].concat());
        assert_eq!(status, Some(2), "{wrong:?}: {message}");
    }
    refused(
        &["lab", "run", "--on", "in-process", "--", "true"],
        "in-process: a command needs a mount",
    );
    refused(
        &["lab", "run", "peers", "--scratch", "/no/such"],
        "/no/such: No such file",
    );
}

#[test]
fn a_directory_without_the_space_is_refused() {
    require!(Need::KernelMount);
    let folder = folder();
    let mount = |command: &mut Command| {
        let status = command.status().expect("it runs");
        assert!(status.success());
    };
    let options = ["-t", "tmpfs", "-o", "size=64M", "none"];
    mount(Command::new("mount").args(options).arg(folder.path()));
    let (status, message) = failing(&["lab", "run", "peers", "--scratch", text(folder.path())]);
    mount(Command::new("umount").arg(folder.path()));
    assert_eq!(status, Some(1));
    assert!(
        message.contains("the images take up to 1024 MiB, and 64 MiB are free")
            && message.contains("--scratch takes another directory"),
        "{message}"
    );
}
