//! **Purpose.** The crash harness of the whole file system as a program: what
//! `cargo xtask crash --fs` runs.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
#[cfg(feature = "sabotage")]
use anyhow::{bail, ensure};
use clap::Parser;
use fourscore_proof::crash::{Breaking, Campaign, Format, Session, Tally, faults};
use fourscore_sync::thread;
use fourscore_testkit::programs;

/// How long a seed may take: much more than on the busiest of machines.
const PATIENCE: Duration = Duration::from_secs(300);

/// Checks crash states of the file system.
#[derive(Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Crash states to be checked, at least.
    #[arg(long, default_value_t = 50_000)]
    states: u64,
    /// Random survivals for each cut, beside the exhaustive ones.
    #[arg(long, default_value_t = 12)]
    samples: usize,
    /// Looks at one state only: with --replay.
    #[arg(long, requires = "replay")]
    state: Option<u64>,
    /// Explores a history that was kept.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Has the device fail at every moment of every operation, and room and memory be short.
    #[arg(long)]
    faults: bool,
    /// ... or only at one in so many of these moments.
    #[arg(long, requires = "faults", default_value_t = NonZeroU64::MIN)]
    one_in: NonZeroU64,
    /// What the file systems have of the format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// How many threads work; as many as there are cores unless said.
    #[arg(long)]
    threads: Option<usize>,
    /// Breaks it in this way, or in `each` way, and expects to find it.
    #[cfg(feature = "sabotage")]
    #[arg(long)]
    broken: Option<String>,
    /// Where histories with a bad state are kept.
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
        breaking: Breaking::default(),
        findings: arguments.findings.clone(),
    }
}

fn sound(campaign: &Campaign) -> Result<()> {
    let began = Instant::now();
    let (next_seed, Tally { histories, seen }) = campaign.run()?;
    let seconds = began.elapsed().as_secs_f64();
    println!("{histories} histories, {seen:?}, {seconds:.1} s");
    println!("states: {}\nnext seed: {next_seed}", seen.states);
    Ok(())
}

/// Expects the harness to go red with what is named, or with each.
#[cfg(feature = "sabotage")]
fn broken(campaign: &Campaign, name: &str) -> Result<()> {
    for (name, breaking) in programs::chosen(&Breaking::ALL, name)? {
        let campaign = Campaign {
            breaking,
            ..campaign.clone()
        };
        let began = Instant::now();
        let Err(finding) = campaign.run() else {
            bail!("{name}: nothing was found");
        };
        // What was kept shows the same again.
        if let Some(file) = &finding.file {
            let again = Session::load(file)?.explore(campaign.samples, None);
            ensure!(
                again.is_err(),
                "{name}: nothing is wrong in {}",
                file.display()
            );
        }
        let text = finding.to_string();
        let seconds = began.elapsed().as_secs_f64();
        let lines: Vec<_> = text.lines().take(4).map(str::trim).collect();
        println!(
            "{name}: red after {seconds:.1} s, as it should be: {}",
            lines.join(" ")
        );
    }
    Ok(())
}
