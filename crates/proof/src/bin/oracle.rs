//! **Purpose.** The concurrent oracle as a program, which `cargo xtask oracle` runs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
#[cfg(feature = "sabotage")]
use anyhow::bail;
use clap::Parser;
use fourscore_proof::concurrent::{Campaign, InjectedFault, Theme, Through};
use fourscore_testkit::programs;

/// Checks the results of calls while other threads change the same files and directories.
#[derive(Parser)]
struct Arguments {
    /// The seed of the first round.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How long it runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The largest number of rounds.
    #[arg(long, default_value_t = u64::MAX)]
    rounds: u64,
    /// What the threads mostly do; without it, each round draws its own.
    #[arg(long, value_enum)]
    theme: Option<Theme>,
    /// The threads use a mount instead of the library; needs root.
    #[arg(long)]
    mount: bool,
    /// Injects this fault, or `each` in turn, and expects to find it in that time.
    #[cfg(feature = "sabotage")]
    #[arg(long)]
    broken: Option<String>,
    /// The folder for images that show a failure.
    #[arg(long, default_value = "target/oracle-findings")]
    findings: PathBuf,
}

fn main() -> ExitCode {
    programs::end("oracle", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    let campaign = Campaign {
        seed: arguments.seed,
        span: Duration::from_secs(arguments.seconds),
        rounds: arguments.rounds,
        theme: arguments.theme,
        through: match arguments.mount {
            true => Through::Mount,
            false => Through::Library,
        },
        injected: InjectedFault::default(),
        findings: arguments.findings.clone(),
    };
    #[cfg(feature = "sabotage")]
    if let Some(name) = &arguments.broken {
        return broken(&campaign, name);
    }
    let began = Instant::now();
    let tally = campaign.run()?;
    println!(
        "no failure: {tally}, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Injects the named fault, or each in turn, and expects the oracle to find it.
#[cfg(feature = "sabotage")]
fn broken(campaign: &Campaign, name: &str) -> Result<()> {
    for (name, injected) in programs::chosen(&InjectedFault::ALL, name)? {
        let campaign = Campaign {
            injected,
            ..campaign.clone()
        };
        let began = Instant::now();
        let Err(finding) = campaign.run() else {
            bail!("{name}: the injected fault was not found");
        };
        let seconds = began.elapsed().as_secs_f64();
        let text = format!("{finding:#}");
        let line = text.lines().next().unwrap_or_default();
        println!("{name}: found after {seconds:.1} s: {line}");
    }
    Ok(())
}
