//! **Purpose.** Man pages and shell completions, written by the command itself.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::run::{cargo, run as run_command};
use crate::workspace::Workspace;

/// Where the files go.
#[derive(Args)]
pub(crate) struct Options {
    /// The directory to write to; made if it is missing.
    #[arg(default_value = "target/generated")]
    directory: PathBuf,
}

/// What is generated.
#[derive(Clone, Copy)]
pub(crate) enum What {
    /// One page for the command and one for each verb, section 1.
    Man,
    /// bash, zsh, fish, elvish and PowerShell.
    Completions,
}

/// Runs the verb of the command, which knows its own definition.
pub(crate) fn run(workspace: &Workspace, what: What, options: &Options) -> Result<()> {
    let verb = match what {
        What::Man => "man",
        What::Completions => "completions",
    };
    let run = [
        "run",
        "--quiet",
        "--package",
        "fourscore-cli",
        "--",
        verb,
        "--output",
    ];
    run_command(
        cargo(workspace)
            .args(run)
            .arg(workspace.root.join(&options.directory)),
    )
}
