//! **Purpose.** The torture test: builds its program, as the crash harness does, and runs it.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::crash::built;
use crate::run::run as run_command;
use crate::workspace::Workspace;

/// The length of the run that is part of `test`, in seconds.
const SMOKE_SECONDS: u64 = 60;

/// How long, and which images.
#[derive(Args)]
pub(crate) struct Options {
    /// How long it runs.
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// The seed of the first image and of its operations.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Runs the torture test.
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

/// Runs the part of `test`.
pub(crate) fn smoke(workspace: &Workspace) -> Result<()> {
    let options = Options {
        seconds: SMOKE_SECONDS,
        seed: 0,
    };
    run(workspace, &options)
}
