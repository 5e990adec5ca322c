//! **Purpose.** A command line as a side of a comparison: starts the process, waits for its end,
//! and takes its CPU time and peak memory from the kernel.
//!
//! **Model.** `wait4` accounts for the child and every descendant that the child has waited for. A
//! pipeline in a shell is therefore counted completely, and its peak memory is that of its largest
//! process.

use std::ffi::OsString;
use std::fmt;
use std::process::{Command, Stdio};
use std::time::Duration;

use wait4::Wait4;

use crate::comparison::{LabError, ThreadCount};

/// The environment variable in which a command finds the thread count of the row.
pub const THREADS_VARIABLE: &str = "LAB_THREADS";

/// A program and its arguments. Standard input and output are `/dev/null`; messages go to this
/// process's standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    program: OsString,
    arguments: Vec<OsString>,
}

/// Resources that a process and its descendants used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// The largest resident set of one process.
    pub max_rss_bytes: u64,
}

impl CommandLine {
    /// The program `program` with `arguments`, without a shell.
    pub fn new<A: Into<OsString>>(
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }

    /// A line for `sh -c`, for pipelines and redirections. The thread count of the row is in
    /// `$LAB_THREADS`.
    #[must_use]
    pub fn shell(line: &str) -> Self {
        Self::new("sh", ["-c", line])
    }

    /// Runs the command to its end.
    ///
    /// # Errors
    ///
    /// [`LabError::Start`] if it cannot be started, [`LabError::Failed`] if its exit status is not
    /// 0.
    pub fn run(&self, threads: ThreadCount) -> Result<Usage, LabError> {
        let start_error = |source| LabError::Start {
            command: self.to_string(),
            source,
        };
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .env(THREADS_VARIABLE, threads.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(start_error)?;
        let used = child.wait4().map_err(start_error)?;
        if !used.status.success() {
            return Err(LabError::Failed {
                command: self.to_string(),
                status: used.status.to_string(),
            });
        }
        Ok(Usage {
            user: used.rusage.utime,
            system: used.rusage.stime,
            max_rss_bytes: used.rusage.maxrss,
        })
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program.to_string_lossy())?;
        for argument in &self.arguments {
            let argument = argument.to_string_lossy();
            if argument.is_empty() || argument.contains(|c: char| c.is_whitespace() || c == '\'') {
                write!(f, " '{}'", argument.replace('\'', r"'\''"))?;
            } else {
                write!(f, " {argument}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_a_line_that_a_shell_accepts() {
        let command = CommandLine::new("tar", ["cf", "-", "it's here", ""]);
        assert_eq!(command.to_string(), r"tar cf - 'it'\''s here' ''");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = CommandLine::new("/no/such/program", ["x"])
            .run(ThreadCount::ONE)
            .expect_err("it does not exist");
        assert!(
            error
                .to_string()
                .starts_with("/no/such/program x: cannot be started"),
            "{error}"
        );
    }

    #[test]
    fn the_thread_count_is_in_the_environment() {
        let command = CommandLine::shell("test \"$LAB_THREADS\" = 6");
        assert!(command.run(ThreadCount::new(6)).is_ok());
        assert!(command.run(ThreadCount::new(5)).is_err());
    }
}
