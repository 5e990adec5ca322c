//! Runs the built command, or the one that `FOURSCORE_COMMAND` names, such as an installed one.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

/// The command with these arguments.
pub(crate) fn fourscore<A: AsRef<OsStr>>(arguments: &[A]) -> Command {
    let built = || env!("CARGO_BIN_EXE_fourscore").into();
    let program = std::env::var_os("FOURSCORE_COMMAND").unwrap_or_else(built);
    let mut command = Command::new(program);
    command.args(arguments).env("TZ", "UTC");
    command
}

/// The output of a run that must succeed without a message.
#[track_caller]
pub(crate) fn printed(command: &mut Command) -> String {
    let output = command.output().expect("the program exists");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && message.is_empty(),
        "{command:?}: {message}"
    );
    String::from_utf8(output.stdout).expect("text")
}

/// The exit status and the messages of a run that fails.
pub(crate) fn failing<A: AsRef<OsStr>>(arguments: &[A]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = fourscore(arguments).output().expect("the program exists");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// A run that must fail with status 1 and one line that contains `expected`.
#[track_caller]
pub(crate) fn refused<A: AsRef<OsStr> + std::fmt::Debug>(arguments: &[A], expected: &str) {
    let (status, message) = failing(arguments);
    assert_eq!(status, Some(1), "{arguments:?}: {message}");
    assert!(
        message.contains(expected) && message.lines().count() == 1,
        "expected {expected}\nfound    {message}"
    );
}

/// The lines of a walk without lost+found, which every file system has and sources have not.
pub(crate) fn without_lost_and_found(walk: &str) -> Vec<&str> {
    let lines = walk.lines();
    lines
        .filter(|line| !line.starts_with("/lost+found "))
        .collect()
}
