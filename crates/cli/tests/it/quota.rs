//! Quota on the command line: usage is counted by `cp` and `edit`, limits are set by `setquota`,
//! and debugfs and e2fsck read what `info --quota` prints. A mount keeps limits of its users.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use fourscore_testkit::oracle::{assert_clean, debugfs};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch};
use serde_json::Value;

use crate::common::{failing, fourscore, printed, refused, text};

fn make(image: &Path) {
    printed(&mut fourscore(&[
        "mkfs",
        "-q",
        "-O",
        "quota,project",
        text(image),
        "32M",
    ]));
}

fn edit(image: &Path, words: &[&str]) {
    let arguments: Vec<&str> = ["edit", text(image)].iter().chain(words).copied().collect();
    printed(&mut fourscore(&arguments));
}

/// What `info` says that an identifier uses and may use: space, its limits, inodes, their limits.
fn entry(image: &Path, kind: &str, id: u64) -> Vec<u64> {
    let json = printed(&mut fourscore(&["info", text(image), "--quota", "--json"]));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let entries = json[kind]["entries"].as_array().expect("entries").clone();
    let found = entries.into_iter().find(|entry| entry["id"] == id);
    let found = found.unwrap_or_else(|| panic!("no {kind} {id}: {json:#}"));
    let keys = [
        "used_bytes",
        "soft_bytes",
        "hard_bytes",
        "used_inodes",
        "soft_inodes",
        "hard_inodes",
    ];
    let number = |key: &&str| found[*key].as_u64().expect("a number");
    keys.iter().map(number).collect()
}

#[test]
fn usage_and_limits_are_those_of_debugfs() {
    require!(Need::Program("debugfs"), Need::Program("e2fsck"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    make(&image);
    let file = folder.path().join("file");
    fs::write(&file, vec![7; 10_000]).expect("a file");
    let target = format!("{}:/file", text(&image));
    printed(&mut fourscore(&["cp", text(&file), &target]));
    edit(&image, &["mkdir", "/etc", "/dir"]);
    let passwd = folder.path().join("passwd");
    fs::write(&passwd, "root:x:0:0::/:\nanna:x:1000:1000::/:\n").expect("a file");
    let etc = format!("{}:/etc/passwd", text(&image));
    printed(&mut fourscore(&["cp", text(&passwd), &etc]));
    edit(&image, &["chown", "anna:77", "/file"]);
    edit(&image, &["chattr", "-p", "42", "/file"]);
    assert_eq!(entry(&image, "user", 1000), [10_240, 0, 0, 1, 0, 0]);
    edit(&image, &["setquota", "anna", "1M", "2048", "10", "20"]);
    edit(&image, &["setquota", "-P", "42", "0", "8", "0", "0"]);
    edit(&image, &["setquota", "-t", "-u", "172800", "3600"]);
    let mib = 1 << 20;
    assert_eq!(
        entry(&image, "user", 1000),
        [10_240, mib, 2 * mib, 1, 10, 20]
    );
    assert_eq!(entry(&image, "project", 42), [10_240, 0, 8192, 1, 0, 0]);
    assert_eq!(entry(&image, "group", 77), [10_240, 0, 0, 1, 0, 0]);
    let report = printed(&mut fourscore(&["info", text(&image), "--quota"]));
    let words = |name: &str| -> Vec<String> {
        let mut lines = report.lines();
        let line = lines.find(|line| line.starts_with(name)).expect("a line");
        line.split_whitespace().map(str::to_owned).collect()
    };
    let expected = ["anna", "--", "10", "1024", "2048", "1", "10", "20"];
    assert_eq!(words("anna"), expected, "{report}");
    assert!(report.contains("Block grace time: 2days; Inode grace time: 01:00"));
    let theirs = debugfs(&image, &["list_quota user"]).expect("debugfs");
    let line = theirs.lines().find(|line| line.contains("1000"));
    let numbers: Vec<u64> = line
        .unwrap_or_else(|| panic!("{theirs}"))
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    assert_eq!(numbers, [1000, 10_240, 1024, 2048, 1, 10, 20], "{theirs}");
    edit(&image, &["rm", "/file"]);
    assert_eq!(entry(&image, "user", 1000)[0], 0);
    assert_clean(&image);
    printed(&mut fourscore(&["check", "-n", "-q", text(&image)]));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    make(&image);
    let plain = folder.path().join("plain");
    printed(&mut fourscore(&["mkfs", "-q", text(&plain), "16M"]));
    refused(&["info", text(&plain), "--quota"], "no feature quota");
    let limits = ["1", "0", "1", "0", "0"];
    let arguments = ["edit", text(&plain), "setquota"];
    let arguments: Vec<&str> = arguments.iter().chain(&limits).copied().collect();
    refused(&arguments, "no feature quota");
    for words in [&["1", "2"][..], &["1", "x", "0", "0", "0"], &["-t", "1"]] {
        let arguments = ["edit", text(&image), "setquota"];
        let arguments: Vec<&str> = arguments.iter().chain(words).copied().collect();
        let (status, message) = failing(&arguments);
        assert_eq!(status, Some(2), "{words:?}: {message}");
    }
}

#[test]
fn a_mount_keeps_limits_of_its_users() {
    require!(Need::Root, Need::Fuse, Need::Program("e2fsck"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    make(&image);
    edit(&image, &["mkdir", "-m", "777", "/dir"]);
    edit(&image, &["setquota", "1234", "0", "100", "0", "3"]);
    let point = folder.path().join("point");
    fs::create_dir(&point).expect("a directory");
    let world = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), world).expect("permissions");
    let options = "usrquota,allow_other";
    printed(&mut fourscore(&[
        "mount",
        "-o",
        options,
        text(&image),
        text(&point),
    ]));
    let shell = |uid: u32, script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(&point);
        let output = command.uid(uid).gid(uid).output().expect("a shell");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (is_done, message) = shell(1234, "head -c 150000 /dev/zero >dir/one");
    assert!(!is_done && message.contains("quota exceeded"), "{message}");
    let len = fs::metadata(point.join("dir/one")).expect("a file").len();
    assert!((90_000..=102_400).contains(&len), "{len}");
    let (is_done, message) = shell(1234, ">dir/two && >dir/three && >dir/four");
    assert!(!is_done && message.contains("quota exceeded"), "{message}");
    let (is_done, message) = shell(0, "head -c 150000 /dev/zero >dir/one; sync dir/one");
    assert!(is_done, "{message}");
    printed(&mut fourscore(&["umount", text(&point)]));
    assert!(entry(&image, "user", 1234)[0] > 150_000);
    assert_clean(&image);
}
