//! **Purpose.** Torture: builds the program and hands over to it.
//!
//! **Model.** It is built as the crash harness is.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::crash::built;
use crate::run::run as run_command;
use crate::workspace::Workspace;

/// How long the run is that is part of `test`, in seconds.
const SMOKE_SECONDS: u64 = 60;

/// How long, and which images.
#[derive(Args)]
pub(crate) struct Options {
    /// How long it goes on.
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// The first image, and what is done to it.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Tortures the file system.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = built(workspace, "fourscore-torture")?;
    let findings = workspace.target().join("torture-findings");
    run_command(
        Command::new(program)
            .arg(format!("--seconds={}", options.seconds))
            .arg(format!("--seed={}", options.seed))
            .arg("--findings")
            .arg(findings),
    )
}

/// What is part of `test`.
pub(crate) fn smoke(workspace: &Workspace) -> Result<()> {
    let options = Options {
        seconds: SMOKE_SECONDS,
        seed: 0,
    };
    run(workspace, &options)
}
