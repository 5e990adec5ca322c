//! **Purpose.** Builds of the programs that steps run; some of them beside other steps.
//!
//! **Model.** A build is one call of cargo, and what it made is read from cargo's messages. A build
//! beside other steps has the lowest priority: it takes the time of the cores that tests leave
//! while they wait for a device or a mount, and tests with limits of time do not notice it. Calls
//! of cargo for one target folder wait for each other, so a step that runs beside a build starts
//! its programs by their paths and does not call cargo.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use fourscore_sync::thread;
use serde_json::Value;

use crate::run::{cargo, command_line, run as run_command};
use crate::workspace::Workspace;

/// A program that a build made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    /// The folder of its package, in which tests expect to be started.
    pub(crate) folder: PathBuf,
    /// The name of its target.
    pub(crate) name: String,
    /// Whether it is the test harness's, with tests to choose from.
    pub(crate) is_test: bool,
    /// The file.
    pub(crate) path: PathBuf,
}

/// A build that was begun.
pub(crate) struct Build {
    line: String,
    child: Child,
    /// What cargo says to programs, one JSON object a line.
    messages: PathBuf,
    /// What it says to people.
    errors: PathBuf,
}

impl Build {
    /// Begins a build beside other steps. `name` is that of its files in the target folder;
    /// `arguments` are cargo's, which print no messages themselves.
    ///
    /// # Errors
    /// If cargo or nice(1) cannot be started.
    pub(crate) fn beside(workspace: &Workspace, name: &str, mut cargo: Command) -> Result<Self> {
        let folder = workspace.target().join("builds");
        fs::create_dir_all(&folder)?;
        let messages = folder.join(format!("{name}.json"));
        let errors = folder.join(format!("{name}.errors"));
        let line = command_line(&cargo);
        cargo.arg("--message-format=json-render-diagnostics");
        let mut command = at_lowest_priority(&cargo);
        command
            .stdin(Stdio::null())
            .stdout(File::create(&messages)?)
            .stderr(File::create(&errors)?);
        let child = command.spawn();
        let child = child.with_context(|| format!("'{line}' could not be started"))?;
        println!("beside other steps: {line}");
        Ok(Self {
            line,
            child,
            messages,
            errors,
        })
    }

    /// Waits for its end, and returns the programs that it made.
    ///
    /// # Errors
    /// If the build failed; what the compiler said is printed.
    pub(crate) fn wait(mut self) -> Result<Programs> {
        let status = self.child.wait()?;
        if !status.success() {
            io::copy(&mut File::open(&self.errors)?, &mut io::stderr())?;
            bail!("'{}' failed ({status})", self.line);
        }
        Programs::parse(&fs::read_to_string(&self.messages)?)
    }
}

/// The same command at the lowest priority.
fn at_lowest_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program());
    nice.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice
}

/// The programs that a build made, sorted by their packages' folders and their names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Programs(Vec<Program>);

impl Programs {
    /// Runs a build, with what the compiler says shown.
    ///
    /// # Errors
    /// If it fails.
    pub(crate) fn build(workspace: &Workspace, arguments: &[&str]) -> Result<Self> {
        let mut command = cargo(workspace);
        command.args(arguments);
        let line = command_line(&command);
        println!("\n\x1b[1m$ {line}\x1b[0m");
        command.arg("--message-format=json-render-diagnostics");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let output = child
            .and_then(Child::wait_with_output)
            .with_context(|| format!("'{line}' could not be started"))?;
        if !output.status.success() {
            bail!("'{line}' failed ({})", output.status);
        }
        Self::parse(&String::from_utf8_lossy(&output.stdout))
    }

    /// Reads cargo's messages.
    fn parse(messages: &str) -> Result<Self> {
        let mut programs = Vec::new();
        for line in messages.lines().filter(|line| line.starts_with('{')) {
            let message: Value = serde_json::from_str(line).context("a message of cargo")?;
            if let Some(path) = message["executable"].as_str() {
                let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
                let manifest = text(&message["manifest_path"]).context("no manifest is named")?;
                programs.push(Program {
                    folder: Path::new(&manifest).with_file_name(""),
                    name: text(&message["target"]["name"]).context("no target is named")?,
                    is_test: message["profile"]["test"] == true,
                    path: path.into(),
                });
            }
        }
        programs.sort_unstable();
        Ok(Self(programs))
    }

    /// The path of the program `name`, which is no test.
    ///
    /// # Errors
    /// If the build did not make it.
    pub(crate) fn path(&self, name: &str) -> Result<&Path> {
        let mut programs = self.0.iter();
        let found = programs.find(|program| program.name == name && !program.is_test);
        let found = found.with_context(|| format!("the build has made no program '{name}'"))?;
        Ok(&found.path)
    }

    /// Runs all test programs one after the other, the tests whose names contain `filter`. All are
    /// run, even after one has failed.
    ///
    /// # Errors
    /// If a test fails; the programs with such tests are named.
    pub(crate) fn test(&self, workspace: &Workspace, filter: Option<&str>) -> Result<()> {
        let mut failed = Vec::new();
        for program in self.0.iter().filter(|program| program.is_test) {
            let mut command = workspace.program(&program.path);
            command.args(filter).current_dir(&program.folder);
            // As cargo does; proptest keeps failing inputs beside the sources that it names.
            command.env("CARGO_MANIFEST_DIR", &program.folder);
            command.env("RUST_TEST_THREADS", test_threads().to_string());
            if let Err(error) = run_command(&mut command) {
                eprintln!("{error:#}");
                failed.push(format!("{} of {}", program.name, program.folder.display()));
            }
        }
        if !failed.is_empty() {
            bail!("tests failed in: {}", failed.join(", "));
        }
        Ok(())
    }
}

/// One thread more than there are cores: many tests wait, for a mount, a device, or another host.
fn test_threads() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"
{"reason":"compiler-artifact","manifest_path":"/w/crates/b/Cargo.toml","target":{"name":"it"},"profile":{"test":true},"executable":"/w/target/it-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"a"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"tool"},"profile":{"test":true},"executable":"/w/target/tool-2"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"tool"},"profile":{"test":false},"executable":"/w/target/tool"}
{"reason":"build-finished","success":true}
"#;

    #[test]
    fn programs_are_read_from_the_messages() {
        let programs = Programs::parse(MESSAGES).unwrap();
        let names = |program: &Program| (program.name.clone(), program.is_test);
        let found: Vec<_> = programs.0.iter().map(names).collect();
        let expected = [("tool", false), ("tool", true), ("it", true)];
        assert_eq!(found, expected.map(|(name, test)| (name.to_owned(), test)));
        assert_eq!(programs.0[2].folder, Path::new("/w/crates/b/"));
        assert_eq!(programs.path("tool").unwrap(), Path::new("/w/target/tool"));
        assert!(programs.path("it").is_err());
        assert!(Programs::parse("{").is_err());
    }

    #[test]
    fn a_failed_program_is_named_and_the_others_still_run() {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, path: &str| Program {
            folder: folder.path().to_path_buf(),
            name: name.to_owned(),
            is_test: true,
            path: path.into(),
        };
        let programs = Programs(vec![
            program("bad", "/bin/false"),
            program("good", "/usr/bin/touch"),
        ]);
        let error = programs.test(&Workspace::at(folder.path()), Some("mark"));
        assert!(error.unwrap_err().to_string().contains("bad of"));
        assert!(folder.path().join("mark").exists());
    }

    #[test]
    fn a_command_keeps_its_arguments_and_variables_at_the_lowest_priority() {
        let mut command = Command::new("sh");
        command.args(["-c", "nice; echo $NAME; pwd"]);
        command.env("NAME", "value").current_dir("/");
        let output = at_lowest_priority(&command).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "19\nvalue\n/\n");
    }
}
