//! **Purpose.** The crash harness as a program: what `cargo xtask crash` runs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Parser;
use fourscore_journal::Sabotage;
use fourscore_sync::thread;
use fourscore_testkit::journal_alone::{Campaign, Session, Tally};
use fourscore_testkit::programs;

/// The injected faults of the journal, by name.
const BREAKINGS: [(&str, Sabotage); 6] = [
    ("no-flush-before-commit", Sabotage::NoFlushBeforeCommit),
    ("no-revoke", Sabotage::NoRevoke),
    ("no-tag-checksum", Sabotage::NoTagChecksum),
    ("early-tail", Sabotage::EarlyTail),
    ("no-copy-on-write", Sabotage::NoCopyOnWrite),
    ("no-wake-up", Sabotage::NoWakeUp),
];

/// The longest time for a history, or for the recovery of a state: much more than on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// The same with an injected fault, of which one never wakes waiters.
const PATIENCE_WITH_BROKEN: Duration = Duration::from_secs(15);

/// Threads for each core: the threads of a history mostly wait for each other.
const THREADS_PER_CORE: usize = 4;

/// Checks crash states of the journal.
#[derive(Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Crash states to be checked, at least.
    #[arg(long, default_value_t = 200_000)]
    states: u64,
    /// Random survivals for each cut, beside the exhaustive ones.
    #[arg(long, default_value_t = 20)]
    samples: usize,
    /// Checks one state only: with --replay.
    #[arg(long, requires = "replay")]
    state: Option<u64>,
    /// Explores a saved history.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Injects this fault into the journal, or `each` in turn, and expects the harness to find it.
    #[arg(long)]
    broken: Option<String>,
    /// The folder for histories with a bad state.
    #[arg(long, default_value = "target/crash-findings")]
    findings: PathBuf,
}

fn main() -> ExitCode {
    programs::end("crash", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Some(file) = &arguments.replay {
        let session = Session::load(file)?;
        let effort = session.effort(arguments.samples, arguments.state);
        let seen = session.explore(effort, |_, _| {})?;
        println!("{:?}: {seen:?}", session.name());
        return Ok(());
    }
    let campaign = Campaign {
        first_seed: arguments.seed,
        states: arguments.states,
        samples: arguments.samples,
        threads: thread::available_parallelism().map_or(1, usize::from) * THREADS_PER_CORE,
        patience: PATIENCE,
        breaking: None,
        findings: arguments.findings.clone(),
    };
    match &arguments.broken {
        None => sound(&campaign),
        Some(name) => {
            let chosen = programs::chosen(&BREAKINGS, name)?;
            let mut chosen = chosen.into_iter();
            chosen.try_for_each(|(name, breaking)| broken(&campaign, name, breaking))
        }
    }
}

fn sound(campaign: &Campaign) -> Result<()> {
    let began = Instant::now();
    let (next_seed, done) = campaign.run()?;
    let Tally {
        histories,
        aborted,
        transactions,
        seen,
    } = done;
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{histories} histories ({aborted} aborted), {transactions} transactions, {seen:?}, {seconds:.1} s"
    );
    println!("states: {}\nnext seed: {next_seed}", seen.states);
    Ok(())
}

/// Runs a campaign with an injected fault, which must fail.
fn broken(campaign: &Campaign, name: &str, breaking: Sabotage) -> Result<()> {
    let campaign = Campaign {
        patience: PATIENCE_WITH_BROKEN,
        breaking: Some(breaking),
        ..campaign.clone()
    };
    match campaign.run() {
        Ok(_) => bail!("{name}: nothing was found"),
        Err(finding) => {
            let text = finding.to_string();
            println!(
                "{name}: red, as expected: {}",
                text.lines().next().unwrap_or_default()
            );
            Ok(())
        }
    }
}
