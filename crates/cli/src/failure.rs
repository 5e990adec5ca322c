//! **Purpose.** Errors of the command and their messages: one line `fourscore: WHAT: WHY (ADVICE)`.

use std::fmt;
use std::io::{self, Write};

use fourscore_sync::atomic::{AtomicU64, Ordering};

use crate::text::printable;

/// The result of everything that can fail in the command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// The status that a shell shows for a program that SIGPIPE has ended.
const BROKEN_PIPE: u8 = 128 + 13;

/// Why the command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error with a message.
    Error {
        /// The image, path or option.
        what: String,
        /// What was found.
        why: String,
        /// What the user can do about it.
        advice: Option<&'static str>,
    },
    /// The command line is wrong.
    Usage {
        /// The option or argument.
        what: String,
        /// What was given, and what is possible.
        why: String,
    },
    /// The reader of standard output has closed it. No message is printed.
    BrokenPipe,
    /// Problems, each of which was reported when it was found.
    AlreadyReported,
    /// Requests of debugfs that are not known, each of which was reported.
    UnknownRequests {
        /// Their number, or 255 if there were more: the exit status.
        count: u8,
    },
    /// The check could not run.
    NotChecked(Box<Failure>),
    /// The check found errors and has reported them.
    ErrorsLeft,
    /// A repair mended all errors and has reported them.
    ErrorsMended,
}

impl Failure {
    /// An error about `what`, with the reason `why`.
    pub(crate) fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Error {
            what: what.into(),
            why: without_numbers(why.to_string()),
            advice: None,
        }
    }

    /// An error of the command line about the option or argument `what`.
    pub(crate) fn usage(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Usage {
            what: what.into(),
            why: why.to_string(),
        }
    }

    /// The exit status of the command.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage { .. } => 2,
            Self::NotChecked(_) => 8,
            Self::ErrorsLeft => 4,
            Self::BrokenPipe => BROKEN_PIPE,
            Self::UnknownRequests { count } => *count,
            Self::Error { .. } | Self::AlreadyReported | Self::ErrorsMended => 1,
        }
    }

    /// An error about a path inside an image or a tree.
    pub(crate) fn at(path: &[u8], why: impl fmt::Display) -> Self {
        Self::new(printable(path), why)
    }

    /// An error of writing to standard output.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::BrokenPipe
        } else {
            Self::new("standard output", error)
        }
    }

    /// The same failure, about the object at `path`.
    pub(crate) fn named(self, path: &[u8]) -> Self {
        match self {
            Self::Error { why, advice, .. } => Self::Error {
                what: printable(path),
                why,
                advice,
            },
            other => other,
        }
    }

    /// The same failure, of something that is in `place`: an image, or the line of a script.
    pub(crate) fn within(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Error { what, why, advice } => Self::Error {
                what: format!("{place}: {what}"),
                why,
                advice,
            },
            Self::Usage { what, why } => Self::Usage {
                what: format!("{place}: {what}"),
                why,
            },
            other => other,
        }
    }

    /// Adds what the user can do.
    pub(crate) fn advise(self, text: &'static str) -> Self {
        match self {
            Self::Error { what, why, .. } => Self::Error {
                what,
                why,
                advice: Some(text),
            },
            other => other,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error { what, why, advice } => {
                // The message is one line, but an error of a library may have several.
                write!(f, "{what}: {}", why.replace('\n', " "))?;
                advice.map_or(Ok(()), |advice| write!(f, " ({advice})"))
            }
            Self::Usage { what, why } => write!(f, "{what}: {}", why.replace('\n', " ")),
            Self::BrokenPipe => f.write_str("standard output: broken pipe"),
            Self::AlreadyReported => f.write_str("there were errors"),
            Self::UnknownRequests { count } => write!(f, "{count} requests are not known"),
            Self::NotChecked(failure) => failure.fmt(f),
            Self::ErrorsLeft => f.write_str("the file system has errors"),
            Self::ErrorsMended => f.write_str("errors were repaired"),
        }
    }
}

impl std::error::Error for Failure {}

/// Takes out the numbers that std adds to the host's errors: ` (os error 2)`.
fn without_numbers(mut text: String) -> String {
    const BEGIN: &str = " (os error ";
    while let Some(at) = text.find(BEGIN) {
        let digits = &text[at + BEGIN.len()..];
        let count = digits.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 || !digits[count..].starts_with(')') {
            break;
        }
        text.replace_range(at..at + BEGIN.len() + count + 1, "");
    }
    text
}

/// Prints one line to standard error. Control characters in it, which may be from an image, are
/// escaped.
pub(crate) fn message(text: &str) {
    let text = printable(text.as_bytes());
    // If standard error is closed, there is no other place for the message.
    let _ = writeln!(anstream::stderr(), "fourscore: {text}");
}

/// Problems that do not end the command: each is reported when it is found, and the exit status
/// shows at the end that there were some.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    count: AtomicU64,
}

impl Problems {
    /// Reports a problem.
    pub(crate) fn report(&self, problem: &Failure) {
        message(&problem.to_string());
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports a problem with the object at `path`, which `failure` does not name.
    pub(crate) fn report_at(&self, path: &[u8], failure: &Failure) {
        match failure {
            Failure::Error { why, .. } => self.report(&Failure::at(path, why)),
            other => self.report(other),
        }
    }

    /// An error if there was at least one problem.
    pub(crate) fn result(&self) -> Result<()> {
        if self.count.load(Ordering::Relaxed) == 0 {
            Ok(())
        } else {
            Err(Failure::AlreadyReported)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_with_advice() {
        let failure = Failure::new("disk.img", "bad magic\nfound 0").advise("use a file system");
        assert_eq!(
            failure.to_string(),
            "disk.img: bad magic found 0 (use a file system)"
        );
        assert_eq!(Failure::at(b"a\nb", "gone").to_string(), "a\\nb: gone");
    }

    #[test]
    fn errors_of_the_host_have_no_numbers() {
        let missing = io::Error::from_raw_os_error(2);
        let failure = Failure::new("disk.img", &missing);
        assert_eq!(failure.to_string(), "disk.img: No such file or directory");
        let text = "a (os error 12) b (os error x)";
        assert_eq!(without_numbers(text.into()), "a b (os error x)");
    }

    #[test]
    fn a_closed_pipe_is_recognised() {
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::stdout(&gone), Failure::BrokenPipe));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(Failure::stdout(&full), Failure::Error { .. }));
    }

    #[test]
    fn problems_decide_the_result() {
        let problems = Problems::default();
        assert!(problems.result().is_ok());
        problems.report(&Failure::BrokenPipe);
        assert!(matches!(problems.result(), Err(Failure::AlreadyReported)));
    }
}
