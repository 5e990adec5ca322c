//! **Purpose.** Errors as people meet them: one line `fourscore: WHAT: WHY (what to do)`.

use std::fmt;
use std::io::{self, Write};

use fourscore_sync::atomic::{AtomicU64, Ordering};

use crate::text::for_people;

/// The result of everything that can fail in the command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why the command could not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to tell.
    Told {
        /// The image, path or option it is about.
        what: String,
        /// What was found.
        why: String,
        /// What the reader can do about it.
        advice: Option<&'static str>,
    },
    /// The command line asks for something that does not exist.
    Usage {
        /// The option it is about.
        what: String,
        /// What was asked for, and what there is.
        why: String,
    },
    /// The reader of standard output has gone; there is nobody left to tell.
    BrokenPipe,
    /// Problems were told one by one as they were met.
    AlreadyTold,
    /// Nothing could be checked.
    NotChecked(Box<Failure>),
    /// A check found errors, and told them.
    ErrorsLeft,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Told {
            what: what.into(),
            why: why.to_string(),
            advice: None,
        }
    }

    /// A failure of whoever typed the command line.
    pub(crate) fn usage(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Usage {
            what: what.into(),
            why: why.to_string(),
        }
    }

    /// The exit status that says so.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage { .. } => 2,
            Self::NotChecked(_) => 8,
            Self::ErrorsLeft => 4,
            Self::Told { .. } | Self::BrokenPipe | Self::AlreadyTold => 1,
        }
    }

    /// A failure about a path inside an image or a tree.
    pub(crate) fn at(path: &[u8], why: impl fmt::Display) -> Self {
        Self::new(for_people(path), why)
    }

    /// A failure to write to standard output.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::BrokenPipe
        } else {
            Self::new("standard output", error)
        }
    }

    /// Adds what the reader can do.
    pub(crate) fn advise(self, text: &'static str) -> Self {
        match self {
            Self::Told { what, why, .. } => Self::Told {
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
            Self::Told { what, why, advice } => {
                // Errors from below may carry line breaks of other programs; one line is promised.
                write!(f, "{what}: {}", why.replace('\n', " "))?;
                advice.map_or(Ok(()), |advice| write!(f, " ({advice})"))
            }
            Self::Usage { what, why } => write!(f, "{what}: {}", why.replace('\n', " ")),
            Self::BrokenPipe => f.write_str("standard output: broken pipe"),
            Self::AlreadyTold => f.write_str("there were problems"),
            Self::NotChecked(failure) => failure.fmt(f),
            Self::ErrorsLeft => f.write_str("errors are left"),
        }
    }
}

impl std::error::Error for Failure {}

/// Writes one line to standard error.
pub(crate) fn say(text: &str) {
    // When standard error is gone there is no other place to say so.
    let _ = writeln!(anstream::stderr(), "fourscore: {text}");
}

/// Problems that do not end the work: each is told when it is met, and the exit status says in
/// the end that there were some.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    count: AtomicU64,
}

impl Problems {
    /// Tells one problem.
    pub(crate) fn tell(&self, problem: &Failure) {
        say(&problem.to_string());
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells a problem with the object at `path`, which `failure` does not name.
    pub(crate) fn tell_at(&self, path: &[u8], failure: &Failure) {
        match failure {
            Failure::Told { why, .. } => self.tell(&Failure::at(path, why)),
            other => self.tell(other),
        }
    }

    /// An error when there was at least one.
    pub(crate) fn result(&self) -> Result<()> {
        if self.count.load(Ordering::Relaxed) == 0 {
            Ok(())
        } else {
            Err(Failure::AlreadyTold)
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
    fn a_gone_reader_is_recognised() {
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::stdout(&gone), Failure::BrokenPipe));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(Failure::stdout(&full), Failure::Told { .. }));
    }

    #[test]
    fn problems_decide_the_result() {
        let problems = Problems::default();
        assert!(problems.result().is_ok());
        problems.tell(&Failure::BrokenPipe);
        assert!(matches!(problems.result(), Err(Failure::AlreadyTold)));
    }
}
