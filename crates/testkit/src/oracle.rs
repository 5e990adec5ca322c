//! **Purpose.** Runs the oracles on an image: e2fsck, debugfs, dumpe2fs.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::tools;

/// The result of e2fsck.
#[derive(Clone, Debug)]
pub struct Fsck {
    /// The exit status: a sum of 1 (repaired), 4 (errors left), 8 (could not check), and more.
    pub code: i32,
    /// Everything it printed.
    pub output: String,
}

impl Fsck {
    /// Whether e2fsck found nothing.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.code == 0
    }

    /// Whether errors are left unrepaired.
    #[must_use]
    pub fn left_errors(&self) -> bool {
        self.code & 4 != 0
    }
}

/// Checks everything and changes nothing (`e2fsck -fn`).
///
/// # Errors
/// If e2fsck cannot be run or dies.
pub fn e2fsck(image: &Path) -> Result<Fsck> {
    fsck(image, &["-f", "-n"])
}

/// Replays the journal and repairs errors (`e2fsck -fy`), with further arguments.
///
/// # Errors
/// If e2fsck cannot be run, dies, or leaves errors.
pub fn e2fsck_repair(image: &Path, arguments: &[&str]) -> Result<Fsck> {
    let mut all = vec!["-f", "-y"];
    all.extend_from_slice(arguments);
    let result = fsck(image, &all)?;
    if result.code & !3 != 0 {
        bail!("e2fsck {} left errors: {}", all.join(" "), result.output);
    }
    Ok(result)
}

/// Replays the journal and makes safe repairs, as at every boot (`e2fsck -fp`). It stops at the
/// first error that needs more ([`Fsck::left_errors`]).
///
/// # Errors
/// If e2fsck cannot be run, dies, or cannot check.
pub fn e2fsck_preen(image: &Path) -> Result<Fsck> {
    let result = fsck(image, &["-f", "-p"])?;
    if result.code & !7 != 0 {
        bail!("e2fsck -fp could not check: {}", result.output);
    }
    Ok(result)
}

fn fsck(image: &Path, arguments: &[&str]) -> Result<Fsck> {
    let mut command = tools::command("e2fsck")?;
    let output = tools::output_of(command.args(arguments).arg(image))?;
    let code = output
        .status
        .code()
        .context("e2fsck was killed by a signal")?;
    Ok(Fsck {
        code,
        output: tools::describe(&command, &output),
    })
}

/// Fails the test with the output of e2fsck unless the image is clean.
///
/// # Panics
/// If e2fsck finds something or cannot be run.
#[track_caller]
pub fn assert_clean(image: &Path) {
    match e2fsck(image) {
        Ok(fsck) => assert!(fsck.is_clean(), "e2fsck finds faults:\n{}", fsck.output),
        Err(error) => panic!("{error:#}"),
    }
}

/// Runs commands of debugfs, opened read-only, and returns their output.
///
/// # Errors
/// If debugfs cannot be run, or prints anything to stderr but its version: it exits with 0 also
/// after errors.
pub fn debugfs<C: AsRef<str>>(image: &Path, commands: &[C]) -> Result<String> {
    run_debugfs(image, &["-f", "-"], commands)
}

/// Runs commands of debugfs in catastrophic mode, which ignores bitmaps: before a journal is
/// replayed they need not match their checksums.
///
/// # Errors
/// As [`debugfs`].
pub fn debugfs_without_bitmaps<C: AsRef<str>>(image: &Path, commands: &[C]) -> Result<String> {
    run_debugfs(image, &["-c", "-f", "-"], commands)
}

/// Runs commands of debugfs, opened read-write.
///
/// # Errors
/// As [`debugfs`].
pub fn debugfs_write<C: AsRef<str>>(image: &Path, commands: &[C]) -> Result<String> {
    run_debugfs(image, &["-w", "-f", "-"], commands)
}

fn run_debugfs<C: AsRef<str>>(image: &Path, arguments: &[&str], commands: &[C]) -> Result<String> {
    let mut command = tools::command("debugfs")?;
    command.args(arguments).arg(image);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    let mut stdin = child.stdin.take().context("no stdin of debugfs")?;
    let script: String = commands
        .iter()
        .map(|command| format!("{}\n", command.as_ref()))
        .collect();
    // debugfs prints while it reads its script, so another thread writes the script.
    let output = fourscore_sync::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(script.as_bytes()));
        child.wait_with_output()
    })?;
    let greeting = |line: &&str| !line.starts_with("debugfs ") && !line.trim().is_empty();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() || words.lines().any(|line| greeting(&line)) {
        bail!("{}", tools::describe(&command, &output));
    }
    let echo = |line: &&str| !line.starts_with("debugfs: ");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text
        .lines()
        .filter(echo)
        .map(|line| format!("{line}\n"))
        .collect())
}

/// The lines `Name: value` that `dumpe2fs -h` prints about the superblock and the journal.
///
/// # Errors
/// If dumpe2fs cannot be run or refuses the image.
pub fn dumpe2fs_header(image: &Path) -> Result<BTreeMap<String, String>> {
    let text = tools::stdout_of(tools::command("dumpe2fs")?.arg("-h").arg(image))?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Image, MiB};
    use crate::require;
    use crate::tools::Need;

    #[test]
    fn e2fsck_distinguishes_clean_from_broken() {
        require!(
            Need::Program("mke2fs"),
            Need::Program("e2fsck"),
            Need::Program("debugfs")
        );
        let image = Image::builder(MiB(16)).make().unwrap();
        assert_clean(image.path());
        debugfs_write(image.path(), &["clri <2>"]).unwrap();
        assert!(!e2fsck(image.path()).unwrap().is_clean());
        let preened = e2fsck_preen(image.path()).unwrap();
        assert!(preened.left_errors(), "{}", preened.output);
        e2fsck_repair(image.path(), &[]).unwrap();
        assert_clean(image.path());
        assert!(!e2fsck_preen(image.path()).unwrap().left_errors());
    }

    #[test]
    fn debugfs_prints_and_its_complaints_are_errors() {
        require!(Need::Program("mke2fs"), Need::Program("debugfs"));
        let image = Image::builder(MiB(16)).make().unwrap();
        debugfs_write(image.path(), &["mkdir /d", "symlink /d/s target"]).unwrap();
        let listing = debugfs(image.path(), &["ls -p /d"]).unwrap();
        assert!(listing.contains("/s/"), "{listing}");
        assert!(debugfs(image.path(), &["stat /nothing"]).is_err());
    }
}
