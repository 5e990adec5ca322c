//! **Purpose.** Coverage-guided fuzzing with libFuzzer on the stable compiler.
//!
//! **Model.** `-Cpasses=sancov-module` makes a stable rustc add the counters that libFuzzer reads;
//! cargo-fuzz and a nightly are not needed. The flags must not reach build scripts (they would not
//! link), hence the explicit `--target`. The targets are the files in `fuzz/fuzz_targets`; their
//! first inputs are written by the program `fuzz-seeds`, which is built without the flags.
//!
//! The target `mount` is of another kind: a test of the command, which damages images at random and
//! mounts them for the kernel to use (as root). It runs for a given time.
//!
//! A small file keeps the sum of a target's executions over all runs, and work is done in chunks,
//! so that a long campaign may be interrupted and resumed: libFuzzer's corpus keeps what was found.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::builds::{Build, Programs};
use crate::run::{Steps, cargo, run as run_command};
use crate::workspace::Workspace;

/// Executions between two updates of the counts file.
const CHUNK_RUNS: u64 = 250_000;

/// Executions of each target in the smoke run that is part of `test`.
const SMOKE_RUNS: u64 = 20_000;

/// The longest a smoke run may take, in seconds.
const SMOKE_SECONDS: u64 = 20;

/// What the code under test may use before libFuzzer reports it, in MiB (the promise is 1 GiB).
const MEMORY_LIMIT_MIB: u32 = 1024;

/// The longest one input may take before libFuzzer reports it, in seconds.
const INPUT_SECONDS: u32 = 10;

const SANCOV_FLAGS: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The package with the targets.
const PACKAGE: &str = "fourscore-fuzz";

/// The program that writes the first inputs.
const SEEDS: &str = "fuzz-seeds";

/// The name of the target that is a test of the command.
const MOUNT: &str = "mount";

/// What to fuzz, and how long.
#[derive(Args)]
pub(crate) struct Options {
    /// The target, a file name below fuzz/fuzz_targets, or `mount`; without one, they are listed.
    target: Option<String>,
    /// Runs every target.
    #[arg(long, conflicts_with = "target")]
    all: bool,
    /// Runs until the executions of the target, summed over all runs, reach this number.
    #[arg(long, default_value_t = 1_000_000)]
    runs: u64,
    /// How long the target `mount` runs.
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// The first seed of the target `mount`.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs every target for a moment, as `test` does.
    #[arg(long, conflicts_with_all = ["target", "all", "runs"])]
    smoke: bool,
}

/// Fuzzes, or lists what there is to fuzz.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.smoke {
        build(workspace, &targets(workspace)?)?;
        return smoke(workspace);
    }
    let targets = targets(workspace)?;
    let chosen = match &options.target {
        Some(name) if name == MOUNT => return mount(workspace, options),
        Some(name) if targets.contains(name) => vec![name.clone()],
        Some(name) => bail!(
            "no fuzz target '{name}' (targets: {} {MOUNT})",
            targets.join(" ")
        ),
        None if options.all => targets,
        None => {
            for target in &targets {
                println!(
                    "{target}: {} executions so far",
                    Counts::of(workspace, target).load()?
                );
            }
            println!("{MOUNT}: mounts damaged images, for a given time");
            return Ok(());
        }
    };
    build(workspace, &chosen)?;
    let mut steps = Steps::default();
    for target in &chosen {
        steps.step(format!("fuzz {target}"), || {
            campaign(workspace, target, options.runs)
        });
    }
    steps.finish()
}

/// Fuzzes mounts of damaged images.
fn mount(workspace: &Workspace, options: &Options) -> Result<()> {
    run_command(
        cargo(workspace)
            .args(["test", "--package", "fourscore-cli", "--test", "it"])
            .args(["mount_fuzz", "--", "--ignored", "--nocapture"])
            .env("FOURSCORE_MOUNT_SECONDS", options.seconds.to_string())
            .env("FOURSCORE_MOUNT_SEED", options.seed.to_string()),
    )
}

/// Runs a target until it was executed `runs` times, summed over all runs.
fn campaign(workspace: &Workspace, target: &str, runs: u64) -> Result<()> {
    let counts = Counts::of(workspace, target);
    let mut total = counts.load()?;
    while total < runs {
        let chunk = CHUNK_RUNS.min(runs - total);
        total += Running::start(workspace, target, chunk, None)?.finish()?;
        counts.store(total)?;
    }
    println!("{target}: {total} executions");
    Ok(())
}

/// Begins the build of all targets beside other steps. It has a folder of its own, so it waits for
/// no other build.
pub(crate) fn build_beside(workspace: &Workspace) -> Result<Build> {
    let command = build_command(workspace, &targets(workspace)?)?;
    Build::beside(workspace, "fuzz", command)
}

/// A short run of every target; all are built. Each has one thread, so that one target runs on each
/// core.
pub(crate) fn smoke(workspace: &Workspace) -> Result<()> {
    let targets = targets(workspace)?;
    if targets.is_empty() {
        println!("no fuzz targets");
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut running = VecDeque::new();
    let mut outcome = Ok(());
    for target in &targets {
        if running.len() == cores {
            outcome = outcome.and(finish_first(&mut running));
        }
        running.push_back(Running::start(
            workspace,
            target,
            SMOKE_RUNS,
            Some(SMOKE_SECONDS),
        )?);
    }
    while !running.is_empty() {
        outcome = outcome.and(finish_first(&mut running));
    }
    outcome
}

/// Waits for the target that was started first.
fn finish_first(running: &mut VecDeque<Running>) -> Result<()> {
    if let Some(first) = running.pop_front() {
        let target = first.target.clone();
        println!("{target}: {} executions", first.finish()?);
    }
    Ok(())
}

/// The names of the targets, sorted.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = workspace.path("fuzz/fuzz_targets");
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The command that builds the programs of `targets`.
fn build_command(workspace: &Workspace, targets: &[String]) -> Result<Command> {
    let mut command = cargo(workspace);
    command
        .args(["build", "--profile", "fuzz", "--package", PACKAGE])
        .args(["--features", "libfuzzer", "--target", &host_triple()?])
        .args(targets.iter().flat_map(|target| ["--bin", target]))
        .env("RUSTFLAGS", SANCOV_FLAGS)
        .env("CARGO_TARGET_DIR", build_folder(workspace));
    Ok(command)
}

/// Builds the programs of `targets`, and writes the first inputs of all targets.
fn build(workspace: &Workspace, targets: &[String]) -> Result<()> {
    run_command(&mut build_command(workspace, targets)?)?;
    let seeds = ["build", "--package", PACKAGE, "--bin", SEEDS];
    write_seeds(workspace, &Programs::build(workspace, &seeds)?)
}

/// Writes the first inputs of all targets, with the program that a build of the package made.
pub(crate) fn write_seeds(workspace: &Workspace, programs: &Programs) -> Result<()> {
    let mut command = workspace.program(programs.path(SEEDS)?);
    run_command(command.arg(seeds_folder(workspace)))
}

/// Where the first inputs are written, in a folder for each target.
fn seeds_folder(workspace: &Workspace) -> PathBuf {
    workspace.target().join("fuzz-seeds")
}

fn build_folder(workspace: &Workspace) -> PathBuf {
    workspace.target().join("fuzz")
}

fn host_triple() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("rustc could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host
        .context("'rustc -vV' does not name its host")?
        .to_owned())
}

/// A target that is being executed.
struct Running {
    target: String,
    child: Child,
    artifacts: PathBuf,
}

impl Running {
    /// Starts a target for a number of executions.
    fn start(workspace: &Workspace, target: &str, runs: u64, seconds: Option<u64>) -> Result<Self> {
        let corpus = workspace.path("fuzz/corpus").join(target);
        let artifacts = workspace.path("fuzz/artifacts").join(target);
        fs::create_dir_all(&corpus)?;
        fs::create_dir_all(&artifacts)?;
        let program = build_folder(workspace)
            .join(host_triple()?)
            .join("fuzz")
            .join(target);
        let mut command = Command::new(&program);
        command
            .arg(&corpus)
            .arg(format!("-runs={runs}"))
            .arg(format!("-rss_limit_mb={MEMORY_LIMIT_MIB}"))
            .arg(format!("-timeout={INPUT_SECONDS}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args(["-print_final_stats=1", "-verbosity=0"])
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let regressions = workspace.path("fuzz/regressions").join(target);
        for seeds in [seeds_folder(workspace).join(target), regressions] {
            if seeds.is_dir() {
                command.arg(seeds);
            }
        }
        if let Some(seconds) = seconds {
            command.arg(format!("-max_total_time={seconds}"));
        }
        let child = command
            .spawn()
            .with_context(|| format!("{}", program.display()))?;
        Ok(Self {
            target: target.to_owned(),
            child,
            artifacts,
        })
    }

    /// Shows what it prints, waits for its end, and returns the number of executions that libFuzzer
    /// reports.
    fn finish(mut self) -> Result<u64> {
        let stderr = self.child.stderr.take();
        let stderr = stderr.context("no stderr of the fuzzer")?;
        let mut executed = None;
        for line in BufReader::new(stderr).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            executed = executed_units(&line).or(executed);
            eprintln!("{line}");
        }
        let (status, target) = (self.child.wait()?, &self.target);
        if !status.success() {
            bail!(
                "{target}: {status}; the input is in {}",
                self.artifacts.display()
            );
        }
        executed.with_context(|| format!("{target} printed no number of executions"))
    }
}

/// The number in libFuzzer's line `stat::number_of_executed_units: N`.
fn executed_units(line: &str) -> Option<u64> {
    line.strip_prefix("stat::number_of_executed_units:")?
        .trim()
        .parse()
        .ok()
}

/// The file with the number of executions of a target.
struct Counts(PathBuf);

impl Counts {
    fn of(workspace: &Workspace, target: &str) -> Self {
        Self(workspace.target().join("fuzz-counts").join(target))
    }

    fn load(&self) -> Result<u64> {
        if !self.0.exists() {
            return Ok(0);
        }
        let text = fs::read_to_string(&self.0)?;
        text.trim()
            .parse()
            .with_context(|| format!("{} holds no number", self.0.display()))
    }

    /// Replaces the file as a whole, so that an interrupt leaves the old number or the new one.
    fn store(&self, total: u64) -> Result<()> {
        let folder = self.0.parent().context("the counts file has no folder")?;
        fs::create_dir_all(folder)?;
        let new = self.0.with_extension("new");
        fs::write(&new, format!("{total}\n"))?;
        fs::rename(&new, &self.0)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executions_are_read_from_the_final_statistics() {
        assert_eq!(
            executed_units("stat::number_of_executed_units: 4711"),
            Some(4711)
        );
        assert_eq!(executed_units("stat::average_exec_per_sec:     12"), None);
    }

    #[test]
    fn counts_are_stored_and_garbage_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let counts = Counts(folder.path().join("counts").join("superblock"));
        assert_eq!(counts.load().unwrap(), 0);
        counts.store(7).unwrap();
        counts.store(12).unwrap();
        assert_eq!(counts.load().unwrap(), 12);
        fs::write(&counts.0, "x").unwrap();
        assert!(counts.load().is_err());
    }

    #[test]
    fn targets_are_the_sources_of_the_fuzz_crate() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::at(folder.path());
        assert!(targets(&workspace).unwrap().is_empty());
        let sources = folder.path().join("fuzz/fuzz_targets");
        fs::create_dir_all(&sources).unwrap();
        for name in ["walk.rs", "inode.rs", "README.md"] {
            fs::write(sources.join(name), "").unwrap();
        }
        assert_eq!(targets(&workspace).unwrap(), ["inode", "walk"]);
    }
}
