//! **Purpose.** The programs and privileges that a test needs, and how a test without them is
//! skipped.
//!
//! **Model.** A test that cannot run says so on stderr and in the file named by the variable
//! `FOURSCORE_SKIP_LOG`, from which `cargo xtask test` makes its summary. On CI (variable `CI`) it
//! panics instead: a test that is silently not run proves nothing.

use std::ffi::OsStr;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// A requirement of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program, as [`find`] finds it.
    Program(&'static str),
    /// The effective user is root.
    Root,
    /// Root with loop devices: the kernel can mount image files.
    KernelMount,
    /// `/dev/fuse` and fusermount3.
    Fuse,
    /// A kernel with FUSE over io_uring, where that is switched on; root switches it on.
    FuseRings,
}

impl Need {
    /// Whether the machine meets it.
    #[must_use]
    pub fn is_met(self) -> bool {
        match self {
            Self::Program(name) => find(name).is_some(),
            Self::Root => is_root(),
            Self::KernelMount => {
                is_root() && Path::new("/dev/loop-control").exists() && find("losetup").is_some()
            }
            Self::Fuse => Path::new("/dev/fuse").exists() && find("fusermount3").is_some(),
            Self::FuseRings => has_fuse_rings(),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) => write!(f, "the program {name}"),
            Self::Root => f.write_str("root"),
            Self::KernelMount => f.write_str("root and loop devices"),
            Self::Fuse => f.write_str("/dev/fuse and fusermount3"),
            Self::FuseRings => write!(f, "FUSE over io_uring (Linux 6.14, and Y in {RING_SWITCH})"),
        }
    }
}

/// Returns from the calling test if one of its needs is not met; panics on CI instead.
///
/// ```
/// use fourscore_testkit::{require, tools::Need};
///
/// fn lists_itself() {
///     require!(Need::Program("ls"));
///     assert!(std::fs::read_dir(".").unwrap().count() > 0);
/// }
/// # lists_itself();
/// ```
#[macro_export]
macro_rules! require {
    ($($need:expr),+ $(,)?) => {
        if !$crate::tools::are_met(&[$($need),+]) {
            return;
        }
    };
}

/// Existing mounts do not change with it.
const RING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

fn has_fuse_rings() -> bool {
    let is_on = || std::fs::read_to_string(RING_SWITCH).is_ok_and(|switch| switch.trim() == "Y");
    is_on() || std::fs::write(RING_SWITCH, "Y").is_ok() && is_on()
}

/// Whether all needs are met; what is missing is reported as a skip of the running test.
///
/// # Panics
/// On CI, if something is missing.
#[must_use]
pub fn are_met(needs: &[Need]) -> bool {
    let missing: Vec<String> = needs
        .iter()
        .filter(|need| !need.is_met())
        .map(ToString::to_string)
        .collect();
    if missing.is_empty() {
        return true;
    }
    skip(&format!("needs {}", missing.join(", ")));
    false
}

/// Reports that the running test, or a part of it, is skipped, and why.
///
/// # Panics
/// On CI.
pub fn skip(why: &str) {
    let line = format!("{}: {why}", current_test());
    if on_ci() {
        panic!("skipped on CI: {line}");
    }
    eprintln!("SKIPPED {line}");
    if let Some(log) = std::env::var_os("FOURSCORE_SKIP_LOG") {
        // A missing line in the summary is better than a failed test run.
        let _ = OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .and_then(|mut file| writeln!(file, "{line}"));
    }
}

/// The name of the running test: the test harness names its threads after the tests.
fn current_test() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// Whether this runs under continuous integration.
#[must_use]
pub fn on_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

/// Whether the effective user is root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The path of a program, from `PATH`, the folders of system administration, and those in which
/// Debian keeps the versions of PostgreSQL's server.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
    let versions = versions.into_iter().flatten().flatten();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .chain(versions.map(|version| version.path().join("bin")))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

/// A command that runs a program in the C locale, without input.
///
/// # Errors
/// If the program is not installed.
pub fn command(name: &str) -> Result<Command> {
    let path = find(name).with_context(|| format!("{name} is not installed (run ./x setup)"))?;
    let mut command = Command::new(path);
    command.env("LC_ALL", "C").stdin(Stdio::null());
    Ok(command)
}

/// Runs a command and returns its stdout.
///
/// # Errors
/// If it cannot be started or fails; the error carries the command line and all of its output.
pub fn stdout_of(command: &mut Command) -> Result<String> {
    let output = output_of(command)?;
    if !output.status.success() {
        bail!("{}", describe(command, &output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program with arguments; the shortest form of [`stdout_of`].
///
/// # Errors
/// As [`stdout_of`].
pub fn run(name: &str, arguments: &[&OsStr]) -> Result<String> {
    stdout_of(command(name)?.args(arguments))
}

/// Runs a command and returns its output, also after a failure.
///
/// # Errors
/// If it cannot be started.
pub fn output_of(command: &mut Command) -> Result<Output> {
    command
        .output()
        .with_context(|| format!("{command:?} cannot be started"))
}

/// A command, its exit status and its output, for a message.
#[must_use]
pub fn describe(command: &Command, output: &Output) -> String {
    format!(
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_and_one_that_does_not_exist_is_not() {
        assert!(Need::Program("sh").is_met());
        assert!(!Need::Program("no-such-program-anywhere").is_met());
        assert!(command("no-such-program-anywhere").is_err());
    }

    #[test]
    fn output_is_returned_and_failure_carries_it() {
        let shell = |script: &str| run("sh", &["-c".as_ref(), script.as_ref()]);
        assert_eq!(shell("echo hello").unwrap(), "hello\n");
        let error = shell("echo why >&2; exit 3").unwrap_err().to_string();
        assert!(error.contains("why") && error.contains('3'), "{error}");
    }
}
