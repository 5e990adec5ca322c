//! **Purpose.** The torture test: builds its program, as the crash harness does, and runs it.

use anyhow::Result;
use clap::Args;

use crate::builds::Programs;
use crate::crash;
use crate::run::run as run_command;
use crate::workspace::Workspace;

/// The length of the run that is part of `test`, in seconds.
const SMOKE_SECONDS: u64 = 30;

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
    run_with(workspace, &crash::built(workspace)?, options)
}

fn run_with(workspace: &Workspace, programs: &Programs, options: &Options) -> Result<()> {
    let findings = workspace.target().join("torture-findings");
    run_command(
        workspace
            .program(programs.path("fourscore-torture")?)
            .arg(format!("--seconds={}", options.seconds))
            .arg(format!("--seed={}", options.seed))
            .arg("--findings")
            .arg(findings),
    )
}

/// Runs the part of `test`.
pub(crate) fn smoke(workspace: &Workspace, programs: &Programs) -> Result<()> {
    let options = Options {
        seconds: SMOKE_SECONDS,
        seed: 0,
    };
    run_with(workspace, programs, &options)
}
