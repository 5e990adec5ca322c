//! **Purpose.** The concurrent oracle: builds the program and hands over to it.
//!
//! **Model.** It is built as the crash harness is, so that known faults can be put back.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::crash::built;
use crate::run::run as run_command;
use crate::workspace::Workspace;

/// How long the run is that is part of `test`, in seconds.
const SMOKE_SECONDS: u64 = 60;
/// How long the run through a mount is that is part of `test`, in seconds.
const MOUNTED_SECONDS: u64 = 60;
/// How long a fault that was put back may take to be found, in seconds: usually some ten, and longer
/// on a busy machine.
const BROKEN_SECONDS: u64 = 300;

/// How long, and what the threads do.
#[derive(Args)]
pub(crate) struct Options {
    /// How long it goes on; with `--broken`, how long each fault may take to be found.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of the first round; the next round has the next.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What the threads mostly do: tree, names, new-names, listings, eviction, content, reuse or
    /// everything; drawn for each round unless said.
    #[arg(long)]
    theme: Option<String>,
    /// The threads use a mount instead of the library; needs root.
    #[arg(long)]
    mount: bool,
    /// Puts this fault back, or `each` in turn, and expects it to be found.
    #[arg(long)]
    broken: Option<String>,
}

/// Judges what threads see of a file system that others change.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = built(workspace, "fourscore-oracle")?;
    let findings = workspace.target().join("oracle-findings");
    let mut command = Command::new(program);
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

/// What is part of `test`: rounds of a sound library, and each known fault put back.
pub(crate) fn smoke(workspace: &Workspace) -> Result<()> {
    let sound = Options {
        seconds: SMOKE_SECONDS,
        seed: 0,
        theme: None,
        mount: false,
        broken: None,
    };
    run(workspace, &sound)?;
    let mounted = Options {
        seconds: MOUNTED_SECONDS,
        mount: true,
        ..sound
    };
    run(workspace, &mounted)?;
    let broken = Options {
        seconds: BROKEN_SECONDS,
        mount: false,
        broken: Some("each".to_owned()),
        ..mounted
    };
    run(workspace, &broken)
}
