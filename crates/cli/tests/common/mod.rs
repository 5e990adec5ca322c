//! Running the built binary, or the one that `FOURSCORE_COMMAND` names: another build, or what is
//! installed.
#![allow(unreachable_pub, reason = "a module of several test programs")]

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

/// The command with arguments.
pub fn fourscore<A: AsRef<OsStr>>(arguments: &[A]) -> Command {
    let built = || env!("CARGO_BIN_EXE_fourscore").into();
    let program = std::env::var_os("FOURSCORE_COMMAND").unwrap_or_else(built);
    let mut command = Command::new(program);
    command.args(arguments).env("TZ", "UTC");
    command
}

/// What a run printed, which must have succeeded and complained about nothing.
#[track_caller]
#[allow(dead_code, reason = "not every test program prints")]
pub fn printed(command: &mut Command) -> String {
    let output = command.output().expect("the program exists");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && complaint.is_empty(),
        "{command:?}: {complaint}"
    );
    String::from_utf8(output.stdout).expect("text")
}

/// A run that fails: its exit status and its complaint.
#[allow(dead_code, reason = "not every test program fails")]
pub fn complained<A: AsRef<OsStr>>(arguments: &[A]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = fourscore(arguments).output().expect("the program exists");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// A path as an argument.
#[allow(dead_code, reason = "not every test program has paths")]
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// The lines of a walk, without the directory that every file system has and sources do not.
#[allow(dead_code, reason = "not every test program compares walks")]
pub fn without_lost_and_found(walk: &str) -> Vec<&str> {
    let lines = walk.lines();
    lines
        .filter(|line| !line.starts_with("/lost+found "))
        .collect()
}
