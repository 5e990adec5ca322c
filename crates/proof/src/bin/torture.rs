//! **Purpose.** Torture as a program: what `cargo xtask torture` runs. It is both the supervisor
//! and, when it calls itself with `live`, the life that is killed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use fourscore_proof::torture::{Life, Torture};
use fourscore_testkit::programs;

/// How often a life mounts the image that ends by itself.
const ROUNDS: u64 = 2;

/// Tortures the file system.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// What decides everything but when things happen.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How long it goes on.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Where images are kept with which something is wrong.
    #[arg(long, default_value = "target/torture-findings")]
    findings: PathBuf,
}

#[derive(Subcommand)]
enum Role {
    /// Lives on an image, and dies.
    Live {
        image: PathBuf,
        notes: PathBuf,
        seed: u64,
        number: u64,
        /// When it dies; without it, it ends by itself.
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
    println!("nothing wrong: {tally:?}");
    Ok(())
}
