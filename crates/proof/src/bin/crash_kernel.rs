//! **Purpose.** The crash harness for the kernel's own ext4 as a program, which `cargo xtask crash
//! --kernel` runs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use fourscore_proof::crash::kernel::{KernelCampaign, KernelSession, KernelTally, NEEDS};
use fourscore_testkit::{programs, tools};

/// The longest time for one seed: much longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Checks crash states of what the kernel's ext4 writes.
#[derive(Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The least number of crash states to check.
    #[arg(long, default_value_t = 20_000)]
    states: u64,
    /// Random selections of surviving writes for each cut, besides the exhaustive ones.
    #[arg(long, default_value_t = 12)]
    samples: usize,
    /// Checks only this state, with --replay.
    #[arg(long, requires = "replay")]
    state: Option<u64>,
    /// Explores a saved history.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// The number of threads, each with a file system of its own.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Where the machine does not support it, reports that and succeeds.
    #[arg(long)]
    skip: bool,
    /// The folder for histories that show a failure.
    #[arg(long, default_value = "target/crash-findings")]
    findings: PathBuf,
}

fn main() -> ExitCode {
    programs::end("crash", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    if arguments.skip && !tools::are_met(&NEEDS) {
        return Ok(());
    }
    if let Some(file) = &arguments.replay {
        let session = KernelSession::load(file)?;
        let workload = session.workload();
        println!("Linux {}, {:?}", session.kernel(), workload.shape.log);
        println!("{}", workload.describe());
        for (call, nr) in session.calls().iter().zip(1..) {
            println!("{nr}: {call}");
        }
        let seen = session.explore(arguments.samples, arguments.state)?;
        println!("{seen:?}");
        return Ok(());
    }
    let campaign = KernelCampaign {
        first_seed: arguments.seed,
        states: arguments.states,
        samples: arguments.samples,
        threads: arguments.threads,
        patience: PATIENCE,
        findings: arguments.findings.clone(),
    };
    let began = Instant::now();
    let (next_seed, KernelTally { histories, seen }) = campaign.run()?;
    let seconds = began.elapsed().as_secs_f64();
    println!("{histories} histories, {seen:?}, {seconds:.1} s");
    println!("states: {}\nnext seed: {next_seed}", seen.states);
    Ok(())
}
