//! **Purpose.** The torture test as a program, which `cargo xtask torture` runs. It is the
//! supervisor and, when it runs itself with `live`, the process that is killed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use fourscore_proof::torture::{Life, Torture};
use fourscore_testkit::programs;

/// The number of mounts in a life that ends by itself.
const ROUNDS: u64 = 2;

/// Runs the torture test.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// The seed of everything except timing.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How long it runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The folder for images that show a failure.
    #[arg(long, default_value = "target/torture-findings")]
    findings: PathBuf,
}

#[derive(Subcommand)]
enum Role {
    /// Works on an image until the process kills itself.
    Live {
        image: PathBuf,
        notes: PathBuf,
        seed: u64,
        number: u64,
        /// The time until it kills itself; without it, it ends by itself.
        millis: Option<u64>,
    },
}

fn main() -> ExitCode {
    programs::end("torture", run(Arguments::parse()))
}

fn run(arguments: Arguments) -> Result<()> {
    if let Some(Role::Live {
        image,
        notes,
        seed,
        number,
        millis,
    }) = arguments.role
    {
        let life = Life {
            image,
            notes,
            seed,
            number,
            until_death: millis.map(Duration::from_millis),
            rounds: millis.map_or(ROUNDS, |_| u64::MAX),
        };
        return life.live();
    }
    let torture = Torture {
        seed: arguments.seed,
        span: Duration::from_secs(arguments.seconds),
        findings: arguments.findings,
        program: std::env::current_exe()?,
    };
    let tally = torture.run()?;
    println!("no failure: {tally:?}");
    Ok(())
}
