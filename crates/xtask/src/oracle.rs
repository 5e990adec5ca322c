//! **Purpose.** The concurrent oracle: builds its program and runs it.
//!
//! **Model.** The build is that of the crash harness, so that known faults can be injected.

use anyhow::Result;
use clap::Args;

use crate::builds::Programs;
use crate::crash;
use crate::run::run as run_command;
use crate::workspace::Workspace;

/// The length of the run that is part of `test`, in seconds.
const SMOKE_SECONDS: u64 = 30;
/// The length of the run through a mount that is part of `test`, in seconds.
const MOUNTED_SECONDS: u64 = 30;
/// The longest that finding an injected fault may take, in seconds. It usually takes some ten, and
/// longer on a busy machine.
const BROKEN_SECONDS: u64 = 300;

/// How long, and what the threads do.
#[derive(Args)]
pub(crate) struct Options {
    /// How long it runs; with `--broken`, the longest that finding each fault may take.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of the first round; the next round has the next.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What the threads mostly do: tree, names, new-names, listings, eviction, content, copies,
    /// attributes, one-attribute, reuse, growth or everything; without it, each round draws its
    /// own.
    #[arg(long)]
    theme: Option<String>,
    /// The threads use a mount instead of the library; needs root.
    #[arg(long)]
    mount: bool,
    /// Injects this fault, or `each` in turn, and expects it to be found.
    #[arg(long)]
    broken: Option<String>,
}

/// Checks the results of calls while other threads change the same files and directories.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    run_with(workspace, &crash::built(workspace)?, options)
}

fn run_with(workspace: &Workspace, programs: &Programs, options: &Options) -> Result<()> {
    let findings = workspace.target().join("oracle-findings");
    let mut command = workspace.program(programs.path("fourscore-oracle")?);
    command
        .arg(format!("--seconds={}", options.seconds))
        .arg(format!("--seed={}", options.seed))
        .arg("--findings")
        .arg(findings);
    if let Some(theme) = &options.theme {
        command.arg(format!("--theme={theme}"));
    }
    if options.mount {
        command.arg("--mount");
    }
    if let Some(broken) = &options.broken {
        command.arg(format!("--broken={broken}"));
    }
    run_command(&mut command)
}

/// Runs the part of `test`: rounds of the sound library, and each known fault injected.
pub(crate) fn smoke(workspace: &Workspace, programs: &Programs) -> Result<()> {
    let sound = Options {
        seconds: SMOKE_SECONDS,
        seed: 0,
        theme: None,
        mount: false,
        broken: None,
    };
    run_with(workspace, programs, &sound)?;
    let mounted = Options {
        seconds: MOUNTED_SECONDS,
        mount: true,
        ..sound
    };
    run_with(workspace, programs, &mounted)?;
    let broken = Options {
        seconds: BROKEN_SECONDS,
        mount: false,
        broken: Some("each".to_owned()),
        ..mounted
    };
    run_with(workspace, programs, &broken)
}
