//! **Purpose.** The crash harness of the whole file system as a program, which `cargo xtask crash
//! --fs` runs.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
#[cfg(feature = "sabotage")]
use anyhow::{bail, ensure};
use clap::Parser;
use fourscore_proof::crash::{Campaign, Format, InjectedFault, Log, Session, Tally, faults};
use fourscore_sync::thread;
use fourscore_testkit::programs;

/// The longest time for one seed: much longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Checks crash states of the file system.
#[derive(Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The least number of crash states to check.
    #[arg(long, default_value_t = 50_000)]
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
    /// Makes the device fail at every moment of every operation, and space and memory short.
    #[arg(long)]
    faults: bool,
    /// ... or only at one of this many moments.
    #[arg(long, requires = "faults", default_value_t = NonZeroU64::MIN)]
    one_in: NonZeroU64,
    /// The format of the file systems.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// File systems with the feature `fast_commit`.
    #[arg(long, conflicts_with = "format")]
    fast_commit: bool,
    /// The number of threads; by default the number of cores.
    #[arg(long)]
    threads: Option<usize>,
    /// Injects the fault of this name, or `each` in turn, and expects to find it.
    #[cfg(feature = "sabotage")]
    #[arg(long)]
    broken: Option<String>,
    /// The folder for histories that show a failure.
    #[arg(long, default_value = "target/crash-findings")]
    findings: PathBuf,
}

fn main() -> ExitCode {
    programs::end("crash", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Some(file) = &arguments.replay {
        let session = Session::load(file)?;
        println!("{}", session.workload().describe());
        let seen = session.explore(arguments.samples, arguments.state)?;
        println!("{seen:?}");
        return Ok(());
    }
    if arguments.faults {
        let began = Instant::now();
        let share = faults::OneIn(arguments.one_in);
        let trials = faults::run(threads(arguments), PATIENCE, share)?;
        println!("{trials}, {:.1} s", began.elapsed().as_secs_f64());
        return Ok(());
    }
    let campaign = campaign(arguments);
    #[cfg(feature = "sabotage")]
    if let Some(name) = &arguments.broken {
        return broken(&campaign, name);
    }
    sound(&campaign)
}

fn threads(arguments: &Arguments) -> usize {
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    arguments.threads.unwrap_or_else(cores)
}

fn campaign(arguments: &Arguments) -> Campaign {
    Campaign {
        first_seed: arguments.seed,
        states: arguments.states,
        samples: arguments.samples,
        threads: threads(arguments),
        patience: PATIENCE,
        format: arguments.format,
        log: match arguments.fast_commit {
            true => Log::FastCommits,
            false => Log::Usual,
        },
        injected: InjectedFault::default(),
        shortens: true,
        findings: arguments.findings.clone(),
    }
}

fn sound(campaign: &Campaign) -> Result<()> {
    let began = Instant::now();
    let (next_seed, Tally { histories, seen }) = campaign.run()?;
    let seconds = began.elapsed().as_secs_f64();
    println!("{histories} histories, {seen:?}, {seconds:.1} s");
    println!("states: {}\nnext seed: {next_seed}", seen.states);
    seen.ensure_proof(campaign.log)
}

/// Injects the named fault, or each in turn, and expects the harness to find it.
#[cfg(feature = "sabotage")]
fn broken(campaign: &Campaign, name: &str) -> Result<()> {
    let of_fast_commits = match campaign.log {
        Log::Usual => &[][..],
        Log::FastCommits => &InjectedFault::OF_FAST_COMMITS[..],
    };
    let all = [&InjectedFault::ALL[..], of_fast_commits].concat();
    for (name, injected) in programs::chosen(&all, name)? {
        let campaign = Campaign {
            first_seed: campaign.first_seed.max(injected.first_seed()),
            injected,
            shortens: false,
            ..campaign.clone()
        };
        let began = Instant::now();
        let Err(finding) = campaign.run() else {
            bail!("{name}: the injected fault was not found");
        };
        // The saved history fails as well.
        if let Some(file) = &finding.file {
            let again = Session::load(file)?.explore(campaign.samples, None);
            ensure!(
                again.is_err(),
                "{name}: the saved history does not fail: {}",
                file.display()
            );
        }
        let text = finding.to_string();
        let seconds = began.elapsed().as_secs_f64();
        let lines: Vec<_> = text.lines().take(4).map(str::trim).collect();
        println!("{name}: found after {seconds:.1} s: {}", lines.join(" "));
    }
    Ok(())
}
