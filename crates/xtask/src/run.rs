//! **Purpose.** Child processes with their command line shown, and lists of steps with a summary.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// Whether this runs under continuous integration, where a missing tool is a failure.
pub(crate) fn on_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

/// The environment variable with which cargo turns incremental compilation on or off.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";

/// A `cargo` command in the workspace's root. It compiles without incremental files unless the
/// caller's environment asks for them: a run of the suites compiles each crate once for each set of
/// features, so that the files would not be read again, and they took half of the disk space.
pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = workspace.program(cargo.as_ref());
    command.current_dir(&workspace.root);
    if std::env::var_os(INCREMENTAL).is_none() {
        command.env(INCREMENTAL, "0");
    }
    command
}

/// Runs a command to its end with its output shown; a failure names the command line.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = command_line(command);
    println!("\n\x1b[1m$ {line}\x1b[0m");
    let status = command
        .status()
        .with_context(|| format!("'{line}' could not be started"))?;
    if !status.success() {
        bail!("'{line}' failed ({status})");
    }
    Ok(())
}

/// The command as one would type it, changed variables included.
pub(crate) fn command_line(command: &Command) -> String {
    let mut line = String::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            let _ = write!(line, "{}={} ", name.display(), quoted(value));
        }
    }
    let program = PathBuf::from(command.get_program());
    line.push_str(&quoted(
        program.file_name().unwrap_or(command.get_program()),
    ));
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&quoted(argument));
    }
    line
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Looks for a program in `PATH` and in the folders of system administration, which the `PATH` of
/// an ordinary user often leaves out.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

/// The result of a step.
enum Outcome {
    Passed,
    Failed(String),
}

/// A step that was run.
struct Step {
    name: String,
    outcome: Outcome,
    took: Duration,
}

/// A list of steps. All are run, even after one has failed, and a summary lists their results.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<Step>,
    notes: Vec<String>,
}

impl Steps {
    /// Runs a step, and records its result and its time.
    pub(crate) fn step(&mut self, name: impl Into<String>, work: impl FnOnce() -> Result<()>) {
        let name = name.into();
        println!("\n\x1b[1m== {name}\x1b[0m");
        let begin = Instant::now();
        let outcome = match work() {
            Ok(()) => Outcome::Passed,
            Err(error) => {
                let why = format!("{error:#}");
                eprintln!("{name}: {why}");
                Outcome::Failed(why)
            }
        };
        self.done.push(Step {
            name,
            outcome,
            took: begin.elapsed(),
        });
    }

    /// As [`Steps::step`], for work with a result; nothing is returned if it failed.
    pub(crate) fn value<T>(
        &mut self,
        name: impl Into<String>,
        work: impl FnOnce() -> Result<T>,
    ) -> Option<T> {
        let mut value = None;
        self.step(name, || {
            value = Some(work()?);
            Ok(())
        });
        value
    }

    /// Adds a line to the summary.
    pub(crate) fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// Prints the summary; an error if a step failed.
    pub(crate) fn finish(self) -> Result<()> {
        println!("\n\x1b[1m== summary\x1b[0m");
        for line in self.summary() {
            println!("{line}");
        }
        let has_failed = |step: &&Step| matches!(step.outcome, Outcome::Failed(_));
        let failed = self.done.iter().filter(has_failed).count();
        if failed > 0 {
            bail!("{failed} of {} steps failed", self.done.len());
        }
        Ok(())
    }

    /// One line for each step in the order in which they ran, the total time, and the notes.
    fn summary(&self) -> Vec<String> {
        let of_step = |step: &Step| {
            let (name, seconds) = (&step.name, step.took.as_secs_f64());
            match &step.outcome {
                Outcome::Passed => format!("passed  {seconds:7.1} s  {name}"),
                Outcome::Failed(why) => format!("FAILED  {seconds:7.1} s  {name}: {why}"),
            }
        };
        let total: Duration = self.done.iter().map(|step| step.took).sum();
        let seconds = total.as_secs_f64();
        let mut lines: Vec<String> = self.done.iter().map(of_step).collect();
        lines.push(format!(
            "total   {seconds:7.1} s  {} steps",
            self.done.len()
        ));
        lines.extend(self.notes.iter().cloned());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_can_be_typed_again() {
        let mut command = Command::new("/usr/bin/prog");
        command.args(["-x", "two words", "it's"]).env("NAME", "a b");
        assert_eq!(
            command_line(&command),
            r"NAME='a b' prog -x 'two words' 'it'\''s'"
        );
    }

    #[test]
    fn one_failed_step_fails_the_list_and_the_others_still_run() {
        let mut ran = 0;
        let mut steps = Steps::default();
        steps.step("bad", || bail!("broken"));
        steps.step("good", || {
            ran += 1;
            Ok(())
        });
        assert!(steps.finish().is_err());
        assert_eq!(ran, 1);
    }

    #[test]
    fn the_summary_lists_steps_as_run_with_their_times_and_the_total() {
        let step = |name: &str, outcome, seconds| Step {
            name: name.to_owned(),
            outcome,
            took: Duration::from_secs(seconds),
        };
        let steps = Steps {
            done: vec![
                step("slow", Outcome::Passed, 90),
                step("quick", Outcome::Failed("broken".to_owned()), 2),
            ],
            notes: vec!["skipped: nothing".to_owned()],
        };
        let expected = [
            "passed     90.0 s  slow",
            "FAILED      2.0 s  quick: broken",
            "total      92.0 s  2 steps",
            "skipped: nothing",
        ];
        assert_eq!(steps.summary(), expected);
    }

    #[test]
    fn a_failing_program_is_an_error_that_names_it() {
        let error = run(&mut Command::new("false")).unwrap_err();
        assert!(error.to_string().contains("'false' failed"), "{error}");
    }
}
