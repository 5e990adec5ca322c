//! **Purpose.** `-q` and `-v`: how much a command says besides what it was asked for.
//!
//! **Model.** The levels belong to the process, because a progress bar or a notice may be made at
//! any depth. They are set once, before the verb runs.
//!
//! | | standard error has |
//! |---|---|
//! | `-q` | errors, and what was left out: no progress bar; and standard output has no summary |
//! | not given | a progress bar too, on a terminal |
//! | `-v` | the steps as well: what is opened, replayed, copied, changed |
//! | `-vv`, `-vvv` | all events of the libraries: decisions, and details |
//!
//! Data that was asked for, such as a listing, findings or JSON, is printed at all levels.

use std::io::{IsTerminal, stderr};

use clap::{ArgAction, Args};
use fourscore_sync::atomic::{AtomicBool, Ordering};
use tracing::level_filters::LevelFilter;

static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// `-q` and `-v`, which all verbs take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct Verbosity {
    /// Prints errors and what was asked for, but no progress and no summaries
    #[arg(short = 'q', long, global = true)]
    quiet: bool,
    /// Prints the steps to standard error; -vv and -vvv print more
    #[arg(short = 'v', long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

impl Verbosity {
    /// Applies the levels to this process.
    pub(crate) fn begin(self) {
        IS_QUIET.store(self.quiet, Ordering::Relaxed);
        let Some(level) = self.level() else {
            return;
        };
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(stderr)
            .with_ansi(stderr().is_terminal())
            .without_time()
            // An event that cannot be written is left out: the server of a mount goes on when the
            // command that read its messages has ended.
            .log_internal_errors(false)
            .finish();
        // An error means that a program that calls this library has its own subscriber.
        let _ = tracing::subscriber::set_global_default(subscriber);
    }

    fn level(self) -> Option<LevelFilter> {
        match (self.quiet, self.verbose) {
            (true, _) | (_, 0) => None,
            (_, 1) => Some(LevelFilter::INFO),
            (_, 2) => Some(LevelFilter::DEBUG),
            _ => Some(LevelFilter::TRACE),
        }
    }

    /// The options that give another process of the command the same levels.
    pub(crate) fn as_option(self) -> Option<&'static str> {
        match (self.quiet, self.verbose) {
            (true, _) => Some("-q"),
            (false, 0) => None,
            (false, 1) => Some("-v"),
            (false, 2) => Some("-vv"),
            (false, _) => Some("-vvv"),
        }
    }

    pub(crate) fn is_verbose(self) -> bool {
        self.verbose > 0
    }
}

/// Whether only errors, and what was asked for, are printed.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}
